"""The tables: created and migrated they are the same, and what is in them stays."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.sql import SchemaError, SqlStorage, create_schema, create_sqlite_engine, migrate
from reflexr.workspace import LogWindow

from .servers import server_url
from .shop import REF, append, draft

POSTGRESQL = (
    """
    SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default
    FROM information_schema.columns
    WHERE table_schema = current_schema() AND table_name <> 'reflexr_alembic_version'
    """,
    """
    SELECT tablename, indexname, regexp_replace(indexdef, ' ON [^ ]+', ' ON') FROM pg_indexes
    WHERE schemaname = current_schema() AND tablename <> 'reflexr_alembic_version'
    """,
    """
    SELECT relname, reloptions::text FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname <> 'reflexr_alembic_version'
    """,
)
SQLITE = ("SELECT type, name, tbl_name, sql FROM sqlite_master WHERE tbl_name <> 'reflexr_alembic_version'",)


class Empty:
    """Empty databases of one kind."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self._engines: list[AsyncEngine] = []

    async def engine(self) -> AsyncEngine:
        name = f"schema_{uuid4().hex}"
        if self.kind == "sqlite":
            engine = create_sqlite_engine(f"sqlite+aiosqlite:///{self._folder / name}.db", synchronous="OFF")
        else:
            engine = create_async_engine(
                server_url(), connect_args={"server_settings": {"search_path": name}}, echo=False
            )
            async with engine.begin() as connection:
                await connection.execute(text(f"CREATE SCHEMA {name}"))
        self._engines.append(engine)
        return engine

    async def close(self) -> None:
        for engine in self._engines:
            if self.kind == "postgresql":
                async with engine.begin() as connection:
                    schema = (await connection.execute(text("SELECT current_schema()"))).scalar_one()
                    await connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
            await engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
async def empty(request: pytest.FixtureRequest) -> AsyncGenerator[Empty]:
    with TemporaryDirectory() as folder:
        empty = Empty(request.param, Path(folder))
        yield empty
        await empty.close()


async def structure(engine: AsyncEngine) -> list[list[str]]:
    """Everything that the database itself says of the tables and their indexes."""
    queries = POSTGRESQL if engine.dialect.name == "postgresql" else SQLITE
    async with engine.connect() as connection:
        return [
            sorted(" ".join(repr(row).split()) for row in (await connection.execute(text(query))).all())
            for query in queries
        ]


async def test_a_database_that_was_migrated_is_as_one_that_was_created(empty: Empty) -> None:
    created, migrated = await empty.engine(), await empty.engine()
    await create_schema(created)
    await migrate(migrated)
    assert await structure(migrated) == await structure(created)


async def test_migrating_twice_changes_nothing(empty: Empty) -> None:
    engine = await empty.engine()
    await migrate(engine)
    await append(SqlStorage(engine, listen=False), draft("e1"))
    before = await structure(engine)
    await migrate(engine)
    assert await structure(engine) == before
    assert len(await SqlStorage(engine, listen=False).read(REF, LogWindow())) == 1


async def test_creating_twice_changes_nothing(empty: Empty) -> None:
    engine = await empty.engine()
    await create_schema(engine)
    await append(SqlStorage(engine, listen=False), draft("e1"))
    await create_schema(engine)
    assert len(await SqlStorage(engine, listen=False).read(REF, LogWindow())) == 1


async def test_processes_that_migrate_at_once_take_turns(empty: Empty) -> None:
    engine = await empty.engine()
    await asyncio.gather(*(migrate(engine) for _ in range(4)))
    assert await append(SqlStorage(engine, listen=False), draft("e1")) == [1]


async def test_the_revision_is_beside_the_applications_own(empty: Empty) -> None:
    engine = await empty.engine()
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        await connection.execute(text("INSERT INTO alembic_version VALUES ('the application''s')"))
    await migrate(engine)
    async with engine.connect() as connection:
        theirs = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalars().all()
        ours = (await connection.execute(text("SELECT version_num FROM reflexr_alembic_version"))).scalars().all()
    assert (theirs, ours) == (["the application's"], [heads()[-1]])


async def test_the_revisions_are_one_line_from_nothing_to_the_newest(empty: Empty) -> None:
    for revision in heads():
        engine = await empty.engine()
        await migrate(engine, revision=revision)
        await migrate(engine)
        assert await append(SqlStorage(engine, listen=False), draft("e1")) == [1]


async def test_a_migration_that_fails_leaves_the_database_as_it_was(empty: Empty) -> None:
    engine = await empty.engine()
    async with engine.begin() as connection:
        # In the way of one of the last tables.
        await connection.execute(text("CREATE TABLE reflexr_workspaces (id INTEGER)"))
    before = await structure(engine)
    with pytest.raises(Exception, match="reflexr_workspaces"):
        await migrate(engine)
    assert await structure(engine) == before
    with pytest.raises(SchemaError):
        await SqlStorage(engine, listen=False).read(REF, LogWindow())


def heads() -> list[str]:
    """Every revision, the oldest first."""
    config = Config()
    config.set_main_option("script_location", "reflexr.sql:migrations")
    config.set_main_option("version_locations", "reflexr.sql:revisions")
    config.set_main_option("path_separator", "newline")
    return [revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()][::-1]
