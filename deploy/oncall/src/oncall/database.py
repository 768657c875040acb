"""Where the application's workspaces are kept: in a file of SQLite's, or in memory for as long as it runs."""

import os
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, closing
from fcntl import LOCK_EX, LOCK_NB, lockf
from hashlib import sha256
from io import BufferedWriter
from pathlib import Path
from typing import Final

from sqlalchemy import URL

from oncall.sshd import visible
from reflexr.sql import SqlStorage, create_sqlite_engine, migrate
from reflexr.workspace import Clock, InMemoryStorage, Storage

NAME: Final = "oncall.db"


class DatabaseUnusableError(Exception):
    """A log cannot be kept in a database; the message says which and why."""


def default_database(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns where the database is if nobody says: in the user's folder for what programs remember.

    See the XDG Base Directory Specification, by which a folder that is not absolute counts as none.

    Raises:
        DatabaseUnusableError: The user has no folder.
    """
    state = Path(environment.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError as error:
            raise DatabaseUnusableError(
                "there is no home folder to keep a database in: name one with --database, or keep nothing with --memory"
            ) from error
    return state / "oncall" / NAME


@asynccontextmanager
async def kept(database: Path | None, workspace_id: str, clock: Clock) -> AsyncGenerator[Storage]:
    """Opens the storage that keeps a workspace, for this process alone, and closes it whichever way the block ends.

    Args:
        database: The file, which is created where there is none; `None` for memory.
        workspace_id: The workspace. Other processes may have others of the same database in hand meanwhile.
        clock: What time it is.

    Raises:
        DatabaseUnusableError: There is no database there and none can be, or another process has the workspace.
        StorageError: The database failed.
    """
    if database is None:
        yield InMemoryStorage(clock=clock)
        return
    with _reserved(database, workspace_id):
        # What a loss of power takes from the end of the database is still in the log, so no commit waits for the disk.
        engine = create_sqlite_engine(_url(database), synchronous="NORMAL")
        try:
            await migrate(engine)
            # Nobody else changes the workspace, so there is nothing to hear of from other processes.
            async with SqlStorage(engine, clock=clock, listen=False) as storage:
                yield storage
        finally:
            await engine.dispose()


def _url(database: Path) -> URL:
    return URL.create("sqlite+aiosqlite", database=str(database.absolute()))


def _reserved(database: Path, workspace_id: str) -> BufferedWriter:
    """Sees to it that there is a database, and returns a file that keeps others from the workspace until it is closed.

    Each workspace has a byte of that file, which need not be that long. The process's end closes it, whatever ends it.
    """
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(database.absolute())) as connection:
            connection.execute("PRAGMA schema_version")
        file = database.with_name(f"{database.name}.lock").open("wb")
    except (OSError, ValueError, sqlite3.Error) as error:
        raise _unusable(database, str(error)) from error
    try:
        lockf(file, LOCK_EX | LOCK_NB, 1, int.from_bytes(sha256(workspace_id.encode()).digest()[:7]))
    except OSError as error:
        file.close()
        raise _unusable(database, "another process is at work on this log there") from error
    return file


def _unusable(database: Path, reason: str) -> DatabaseUnusableError:
    return DatabaseUnusableError(f"{visible(repr(str(database)))} cannot be the database: {reason}")
