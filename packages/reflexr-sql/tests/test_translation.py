"""Which of our errors each of the drivers' becomes."""

import sqlite3
from importlib import import_module
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from reflexr.sql import (
    DatabaseBusyError,
    DatabaseUnavailableError,
    InvalidValueError,
    SchemaError,
    SqlStorageError,
)
from reflexr.sql.errors import DuplicateKeyError
from reflexr.sql.translation import is_disconnect, translated
from reflexr.workspace import StorageError

# It has no types of its own.
asyncpg: Any = import_module("asyncpg")


def sqlite_error(code: int, message: str | None = None) -> sqlite3.Error:
    error = sqlite3.OperationalError(f"code {code}" if message is None else message)
    error.sqlite_errorcode = code
    return error


def wrapped(original: Exception | None, cause: Exception | None = None, *, lost: bool = False) -> DBAPIError:
    if original is not None:
        original.__cause__ = cause
    error = DBAPIError("SELECT 1", None, original or Exception("nothing"), connection_invalidated=lost)
    error.orig = original
    return error


# asyncpg's own of that name, for an argument that it cannot encode, has no SQLSTATE and is in a module of its own.
ArgumentError = type("DataError", (asyncpg.InterfaceError,), {"__module__": "asyncpg.exceptions._base"})

POSTGRESQL: list[tuple[Exception, type[SqlStorageError]]] = [
    (asyncpg.ConnectionDoesNotExistError("m"), DatabaseUnavailableError),
    (asyncpg.ConnectionFailureError("m"), DatabaseUnavailableError),
    (asyncpg.AdminShutdownError("m"), DatabaseUnavailableError),
    (asyncpg.CrashShutdownError("m"), DatabaseUnavailableError),
    (asyncpg.CannotConnectNowError("m"), DatabaseUnavailableError),
    (asyncpg.TooManyConnectionsError("m"), DatabaseUnavailableError),
    (asyncpg.DiskFullError("m"), DatabaseUnavailableError),
    (asyncpg.InvalidPasswordError("m"), DatabaseUnavailableError),
    (asyncpg.InvalidCatalogNameError("m"), DatabaseUnavailableError),
    (asyncpg.InternalServerError("m"), DatabaseUnavailableError),
    (asyncpg.PostgresIOError("m"), DatabaseUnavailableError),
    (asyncpg.IdleInTransactionSessionTimeoutError("m"), DatabaseUnavailableError),
    (asyncpg.DeadlockDetectedError("m"), DatabaseBusyError),
    (asyncpg.SerializationError("m"), DatabaseBusyError),
    (asyncpg.LockNotAvailableError("m"), DatabaseBusyError),
    (asyncpg.QueryCanceledError("m"), DatabaseBusyError),
    (asyncpg.UndefinedTableError("m"), SchemaError),
    (asyncpg.UndefinedColumnError("m"), SchemaError),
    (asyncpg.InvalidSchemaNameError("m"), SchemaError),
    (asyncpg.CharacterNotInRepertoireError("m"), InvalidValueError),
    (asyncpg.UntranslatableCharacterError("m"), InvalidValueError),
    (asyncpg.NumericValueOutOfRangeError("m"), InvalidValueError),
    (asyncpg.ProgramLimitExceededError("m"), InvalidValueError),
    (asyncpg.UniqueViolationError("m"), DuplicateKeyError),
    (asyncpg.InFailedSQLTransactionError("m"), SqlStorageError),
    (asyncpg.InsufficientPrivilegeError("m"), SqlStorageError),
    (ArgumentError("invalid input for query argument $1"), InvalidValueError),
    (asyncpg.InterfaceError("connection is closed"), DatabaseUnavailableError),
    (asyncpg.InterfaceError("cannot perform operation: another operation is in progress"), SqlStorageError),
    (asyncpg.InternalClientError("got result for unknown protocol state"), DatabaseUnavailableError),
    (ConnectionRefusedError(111, "m"), DatabaseUnavailableError),
    (TimeoutError("m"), DatabaseUnavailableError),
]

SQLITE: list[tuple[Exception, type[SqlStorageError]]] = [
    (sqlite_error(sqlite3.SQLITE_BUSY), DatabaseBusyError),
    (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), DatabaseBusyError),
    (sqlite_error(sqlite3.SQLITE_LOCKED), DatabaseBusyError),
    (sqlite_error(sqlite3.SQLITE_CANTOPEN), DatabaseUnavailableError),
    (sqlite_error(sqlite3.SQLITE_CORRUPT), SqlStorageError),
    (sqlite_error(sqlite3.SQLITE_FULL), DatabaseUnavailableError),
    (sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), DatabaseUnavailableError),
    (sqlite_error(sqlite3.SQLITE_NOTADB), SqlStorageError),
    (sqlite_error(sqlite3.SQLITE_PERM), DatabaseUnavailableError),
    (sqlite_error(sqlite3.SQLITE_READONLY), DatabaseUnavailableError),
    (sqlite_error(sqlite3.SQLITE_MISMATCH), InvalidValueError),
    (sqlite_error(sqlite3.SQLITE_TOOBIG), InvalidValueError),
    (sqlite_error(sqlite3.SQLITE_ERROR, "no such table: reflexr_events"), SchemaError),
    (sqlite_error(sqlite3.SQLITE_ERROR, "no such column: queue"), SchemaError),
    (sqlite_error(sqlite3.SQLITE_ERROR, "table reflexr_runs has no column named queue"), SchemaError),
    (sqlite_error(sqlite3.SQLITE_CONSTRAINT_UNIQUE), DuplicateKeyError),
    (sqlite3.OperationalError("without a code"), SqlStorageError),
    (sqlite3.ProgrammingError("Cannot operate on a closed database."), DatabaseUnavailableError),
    (sqlite3.ProgrammingError("Incorrect number of bindings supplied."), SqlStorageError),
    (ValueError("no active connection"), DatabaseUnavailableError),
    (ValueError("Connection closed"), DatabaseUnavailableError),
    (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), InvalidValueError),
    (OverflowError("Python int too large to convert to SQLite INTEGER"), InvalidValueError),
]

SQLALCHEMY: dict[str, tuple[Exception, type[SqlStorageError]]] = {
    "no connection left": (PoolTimeoutError("QueuePool limit reached"), DatabaseBusyError),
    "asyncpg's beneath": (wrapped(Exception("m"), asyncpg.DeadlockDetectedError("m")), DatabaseBusyError),
    "sqlite3's itself": (wrapped(sqlite_error(sqlite3.SQLITE_BUSY)), DatabaseBusyError),
    "a connection lost": (wrapped(Exception("m"), lost=True), DatabaseUnavailableError),
    "unknown": (wrapped(Exception("m")), SqlStorageError),
    "nothing beneath": (wrapped(None), SqlStorageError),
}


@pytest.mark.parametrize(("error", "kind"), [*POSTGRESQL, *SQLITE])
def test_an_error_of_a_driver_becomes_one_of_ours(error: Exception, kind: type[SqlStorageError]) -> None:
    meant = translated(error)
    assert type(meant) is kind
    assert isinstance(meant, StorageError)
    assert str(error) in str(meant)


@pytest.mark.parametrize(("error", "kind"), SQLALCHEMY.values(), ids=SQLALCHEMY.keys())
def test_an_error_of_sqlalchemy_becomes_what_its_cause_would(error: Exception, kind: type[SqlStorageError]) -> None:
    assert type(translated(error)) is kind


@pytest.mark.parametrize("error", [LookupError("m"), ValueError("m"), TypeError("m")])
def test_an_error_that_is_no_databases_is_left_alone(error: Exception) -> None:
    assert translated(error) is None


def test_only_a_lost_connection_is_worth_a_fresh_one() -> None:
    assert is_disconnect(DatabaseUnavailableError("m"))
    assert not is_disconnect(DatabaseBusyError("m"))
