"""Workspaces that survive: reflexr's storage on PostgreSQL and SQLite, with SQLAlchemy."""

from reflexr.sql.errors import (
    DatabaseBusyError,
    DatabaseUnavailableError,
    EngineError,
    InvalidValueError,
    SchemaError,
    SqlStorageError,
)
from reflexr.sql.live_output import PostgresLiveOutput
from reflexr.sql.results import SqlCommandResults
from reflexr.sql.schema import create_schema, migrate
from reflexr.sql.sqlite import create_sqlite_engine
from reflexr.sql.storage import SqlStorage
from reflexr.sql.wakeups import DatabaseWakeups

__all__ = [
    # Storage
    "SqlStorage",
    "create_sqlite_engine",
    "SqlCommandResults",
    "DatabaseWakeups",
    "PostgresLiveOutput",
    # Schema
    "migrate",
    "create_schema",
    # Errors
    "SqlStorageError",
    "DatabaseUnavailableError",
    "DatabaseBusyError",
    "SchemaError",
    "InvalidValueError",
    "EngineError",
]
