"""The exceptions of `reflexr.sql`, sorted by what the caller should do. Each has the database's own as its cause.

Which error of which driver becomes which of these is `reflexr.sql.translation`'s to say.
"""

from reflexr.workspace import StorageError


class SqlStorageError(StorageError):
    """The database refused or failed in a way that none of the subclasses names. The root of this distribution's."""


class DatabaseUnavailableError(SqlStorageError):
    """The database cannot be reached, or the connection to it was lost. Try again once it is back.

    What was not committed is not there. If the connection was lost during a commit, only reading tells whether it was:
    publish again under the same ids, which appends nothing twice.
    """


class DatabaseBusyError(SqlStorageError):
    """Others kept the database or a part of it for too long, or two waited for each other. Try again."""


class SchemaError(SqlStorageError):
    """A table or a column is missing. Run `migrate` with this version before it is used."""


class InvalidValueError(SqlStorageError):
    """The database cannot hold a value, such as a name with a NUL or one that is too long: trying again is no use."""


class DuplicateKeyError(SqlStorageError):
    """Something is there already under the same key. No caller outside this package meets it."""


class EngineError(SqlStorageError):
    """The engine is none that this storage can use."""
