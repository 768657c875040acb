"""`create_sqlite_engine`: an engine whose connections share one file, within a process and between processes."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any, Final, Literal

from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.sql.errors import EngineError
from reflexr.sql.sessions import BEGIN_OPTION

BUSY_TIMEOUT: Final = timedelta(seconds=30)
"""How long a writer waits for those of other processes before it gives up."""

type Synchronous = Literal["OFF", "NORMAL", "FULL"]
"""When the disk has to have a commit: FULL at once, which survives a loss of power; NORMAL and OFF later."""


def create_sqlite_engine(
    url: str | URL,
    *,
    busy_timeout: timedelta = BUSY_TIMEOUT,
    synchronous: Synchronous = "FULL",
    **options: Any,
) -> AsyncEngine:
    """Returns an engine for a file, in WAL mode, so that readers and the one writer do not wait for each other.

    A transaction that SQLAlchemy begins on it takes the write lock at once (`BEGIN IMMEDIATE`), so that it waits for
    others at its beginning, where waiting helps, and is never told later that the database is locked. For one that only
    reads, `connection.execution_options(sqlite_begin="DEFERRED")` leaves the lock alone.

    Args:
        url: Such as `"sqlite+aiosqlite:///app.db"`.
        busy_timeout: How long a writer waits for other processes; by default 30 seconds.
        synchronous: `"FULL"`, by default; or `"NORMAL"`, which is faster, and after a loss of power may have forgotten
            the latest commits; or `"OFF"`, which may have spoilt the file then.
        options: What else `create_async_engine` takes.

    Raises:
        EngineError: The URL is of another driver, or names no file: a database in memory has one connection only.
    """
    parsed = make_url(url)
    if parsed.drivername != "sqlite+aiosqlite" or parsed.database in (None, "", ":memory:"):
        raise EngineError(
            f"{parsed.render_as_string()!r} names no SQLite file: write 'sqlite+aiosqlite:///' and its path; "
            "for workspaces in memory there is reflexr.workspace.InMemoryStorage"
        )
    engine = create_async_engine(parsed, **options)
    milliseconds = busy_timeout // timedelta(milliseconds=1)

    def prepare(connection: DBAPIConnection, _record: object) -> None:
        with closing(connection.cursor()) as cursor:
            # First of all, so that what follows waits for others too.
            cursor.execute(f"PRAGMA busy_timeout = {milliseconds}")
            cursor.execute("PRAGMA journal_mode = WAL")
            cursor.execute(f"PRAGMA synchronous = {synchronous}")

    event.listen(engine.sync_engine, "do_connect", _try_to_open)
    event.listen(engine.sync_engine, "connect", prepare)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _try_to_open(_dialect: object, _record: object, path: Sequence[Any], options: Mapping[str, Any]) -> None:
    # Where it cannot open a file, aiosqlite leaves a thread to end by itself, which then tells an event loop that may
    # be closed by now. It takes microseconds to find out first.
    sqlite3.connect(*path, uri=options.get("uri", False)).close()


def _begin(connection: Connection) -> None:
    mode = connection.get_execution_options().get(BEGIN_OPTION, "IMMEDIATE")
    connection.exec_driver_sql(f"BEGIN {mode}")
