"""What a driver's errors mean: the one place that turns them into `reflexr.sql.errors`.

No driver is imported: PostgreSQL's errors are told by their SQLSTATE, SQLite's by their result code.
"""

import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from reflexr.sql.errors import (
    DatabaseBusyError,
    DatabaseUnavailableError,
    DuplicateKeyError,
    InvalidValueError,
    SchemaError,
    SqlStorageError,
)

_POSTGRESQL: Final[dict[str, type[SqlStorageError]]] = {
    "08": DatabaseUnavailableError,  # connection exceptions
    "22": InvalidValueError,  # data exceptions
    "23505": DuplicateKeyError,
    "25P02": SqlStorageError,  # a statement after one that failed
    "25P03": DatabaseUnavailableError,  # idle in a transaction for too long: the server hung up
    "28": DatabaseUnavailableError,  # who we say we are
    "3D000": DatabaseUnavailableError,  # no such database
    "3F000": SchemaError,
    "40": DatabaseBusyError,  # deadlocks and serialization failures
    "42703": SchemaError,
    "42P01": SchemaError,
    "53": DatabaseUnavailableError,  # out of memory, disk or connections
    "54": InvalidValueError,  # limits, such as that of an index row
    "55P03": DatabaseBusyError,  # lock_timeout
    "57014": DatabaseBusyError,  # statement_timeout
    "57P": DatabaseUnavailableError,  # shutting down, starting up, terminated
    "58": DatabaseUnavailableError,  # the server's own disk
    "XX": DatabaseUnavailableError,  # the server's own faults
}
"""By SQLSTATE or what it begins with; the longest that fits counts."""

_SQLITE: Final[dict[int, type[SqlStorageError]]] = {
    sqlite3.SQLITE_BUSY: DatabaseBusyError,
    sqlite3.SQLITE_LOCKED: DatabaseBusyError,
    sqlite3.SQLITE_CANTOPEN: DatabaseUnavailableError,
    sqlite3.SQLITE_FULL: DatabaseUnavailableError,
    sqlite3.SQLITE_IOERR: DatabaseUnavailableError,
    sqlite3.SQLITE_PERM: DatabaseUnavailableError,
    sqlite3.SQLITE_READONLY: DatabaseUnavailableError,
    sqlite3.SQLITE_MISMATCH: InvalidValueError,
    sqlite3.SQLITE_TOOBIG: InvalidValueError,
}
"""By primary result code."""

_ADVICE: Final[dict[type[SqlStorageError], str]] = {
    DatabaseUnavailableError: "the database cannot be reached, or the connection was lost; try again once it is back",
    DatabaseBusyError: "the database was busy for too long; try again",
    SchemaError: "a table or a column is missing; run reflexr.sql.migrate(engine) of this version first",
    DuplicateKeyError: "something is there already under the same key",
    InvalidValueError: "the database cannot hold a value",
    SqlStorageError: "the database failed",
}


def translated(error: Exception) -> SqlStorageError | None:
    """Returns what an error means, or `None` if it does not come from a database."""
    kind = _kind(error)
    return None if kind is None else kind(f"{_ADVICE[kind]}: {type(error).__name__}: {error}")


def is_disconnect(error: SqlStorageError) -> bool:
    """Whether a fresh connection may do better."""
    return isinstance(error, DatabaseUnavailableError)


def _kind(error: Exception) -> type[SqlStorageError] | None:
    sqlstate: object = getattr(error, "sqlstate", None)
    match error:
        case DBAPIError():
            return _kind_of_wrapped(error)
        case PoolTimeoutError():
            return DatabaseBusyError
        case sqlite3.Error():
            return _kind_of_sqlite(error)
        case UnicodeEncodeError() | OverflowError():
            return InvalidValueError
        case OSError():
            return DatabaseUnavailableError
        case _ if isinstance(sqlstate, str):
            return _kind_of_sqlstate(sqlstate)
        case _:
            return _kind_of_client(error)


def _kind_of_wrapped(error: DBAPIError) -> type[SqlStorageError]:
    """SQLAlchemy wraps its adapter's error, which has the driver's as its cause."""
    original = error.orig
    for one in (None if original is None else original.__cause__, original):
        if isinstance(one, Exception) and (kind := _kind(one)) is not None:
            return kind
    return DatabaseUnavailableError if error.connection_invalidated else SqlStorageError


def _kind_of_sqlite(error: sqlite3.Error) -> type[SqlStorageError]:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if str(error).startswith(("no such table", "no such column")) or "has no column named" in str(error):
        return SchemaError
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return DatabaseUnavailableError
    if code in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
        return DuplicateKeyError
    # The low byte is the primary code; the others say more about it.
    return _SQLITE.get(code & 0xFF, SqlStorageError)


def _kind_of_sqlstate(sqlstate: str) -> type[SqlStorageError]:
    fits = [begin for begin in _POSTGRESQL if sqlstate.startswith(begin)]
    return _POSTGRESQL[max(fits, key=len)] if fits else SqlStorageError


def _kind_of_client(error: Exception) -> type[SqlStorageError] | None:
    """The drivers' own errors, of which no server knows."""
    name, message = type(error).__name__, str(error).lower()
    if type(error).__module__.startswith("asyncpg"):
        if name == "DataError":
            return InvalidValueError
        # An internal error is what is left of a connection that the server hung up on between two statements.
        lost = name == "InternalClientError" or "closed" in message or "connection" in message
        return DatabaseUnavailableError if lost else SqlStorageError
    if isinstance(error, ValueError) and message in ("no active connection", "connection closed"):
        return DatabaseUnavailableError
    return None
