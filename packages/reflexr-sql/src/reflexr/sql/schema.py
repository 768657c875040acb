"""`migrate` and `create_schema`: bringing a database to this version's tables."""

from collections.abc import Callable
from importlib import import_module
from typing import Final

from sqlalchemy import Connection, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from reflexr.sql.cancellation import to_the_end
from reflexr.sql.sessions import reported
from reflexr.sql.tables import METADATA

VERSION_TABLE: Final = "reflexr_alembic_version"
"""Where Alembic keeps the revision, beside the application's own table of that kind."""

_LOCK: Final = 0x7265666C_65787200
"""The number of PostgreSQL's advisory lock under which one process migrates: "reflexr"."""


async def migrate(engine: AsyncEngine, *, revision: str = "head") -> None:
    """Brings a database to this version's tables, and keeps what is in it. Safe on every start of every process.

    It is one transaction: all of it or nothing. Processes that migrate at once take turns, and the later ones find
    nothing to do.

    Args:
        engine: The engine, as `SqlStorage` takes it.
        revision: The Alembic revision to go to; by default the newest.

    Raises:
        SqlStorageError: The database cannot be reached, or refused.
    """
    await to_the_end(reported(_on_connection(engine, lambda connection: _upgrade(connection, revision))))


async def create_schema(engine: AsyncEngine) -> None:
    """Creates the tables as they are now, where they are missing: for tests and prototypes.

    `migrate` cannot take over from it, as no revision is recorded.

    Raises:
        SqlStorageError: The database cannot be reached, or refused.
    """
    await to_the_end(reported(_on_connection(engine, METADATA.create_all)))


async def _on_connection(engine: AsyncEngine, work: Callable[[Connection], None]) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(work)


def _upgrade(connection: Connection, revision: str) -> None:
    if connection.dialect.name == "postgresql":
        # SQLite's transactions take turns by themselves.
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    # Alembic takes a while to import: who does not migrate does without.
    config = import_module("alembic.config").Config()
    config.set_main_option("script_location", "reflexr.sql:migrations")
    config.set_main_option("version_locations", "reflexr.sql:revisions")
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    import_module("alembic.command").upgrade(config, revision)
