"""The tables: created and migrated they are the same, and what is in them stays."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.core import Envelope
from reflexr.sql import SchemaError, SqlStorage, create_schema, create_sqlite_engine, migrate
from reflexr.sql.values import micros
from reflexr.workspace import LogWindow, RunPolicy, WorkspaceRef

from .servers import server_url
from .shop import REF, START, append, draft, run

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


OTHER = WorkspaceRef(REF.tenant_id, "zoo")
POLICY = RunPolicy(unordered=frozenset({"sqlshop:restock"}))
RUN = run("r").model_dump_json()
ENVELOPE = Envelope.placed(draft("e1"), seq=1, ts=START, workspace_id=REF.workspace_id).to_json()
EARLIEST: dict[str, dict[str, Any]] = {
    "reflexr_workspaces": {
        "head_seq": 1,
        "head_ts": micros(START),
        "counter": 1,
        "settled": "",
        "unsettled": "",
        "ticked": "",
        "has_stored_rules": False,
        "has_log": True,
    },
    "reflexr_members": {"digest": "d", "members": "[]"},
    "reflexr_events": {"seq": 1, "event_id": "e1", "event_type": "sqlshop:sold", "envelope": ENVELOPE},
    "reflexr_rule_progress": {
        "rule": "sqlshop:restock",
        "number": 1,
        "generation": 1,
        "cursor": 0,
        "definition": "d1",
        "silent_through": 0,
    },
    "reflexr_scope_states": {"rule": "sqlshop:restock", "scope": "[]", "scope_key": "[]", "state": "[]"},
    "reflexr_runs": {
        "run_id": "r",
        "number": 1,
        "rule": "sqlshop:restock",
        "scope": "[]",
        "status": "pending",
        "generation": 1,
        "fired_seq": 1,
        "line": 1,
        "due": 1,
        "queue": "0:sqlshop:restock",
        "stored_queue": "sqlshop",
        "run": RUN,
    },
    "reflexr_dead_letters": {"number": 1, "rule": "sqlshop:restock", "dead_letter": "{}"},
    "reflexr_stored_rules": {
        "rule": "chat:own",
        "number": 1,
        "version": 1,
        "is_active": False,
        "is_enabled": False,
        "is_ordered": True,
        "is_blocking": False,
        "stored_rule": "{}",
    },
    "reflexr_schedules": {"schedule": "s", "name": "s", "number": 1, "last_tick": 1},
    "reflexr_cursors": {"name": "mirror", "seq": 1},
    "reflexr_leases": {"name": "evaluation", "holder": "h", "expires": 1},
    "reflexr_command_results": {"participant": "p", "command_id": "c", "expires": 1, "result": "{}"},
}
"""A row of each table of the first revision, but for the workspace."""


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


async def test_a_database_at_any_revision_is_migrated_with_all_that_is_in_it(empty: Empty) -> None:
    created = await empty.engine()
    await create_schema(created)
    for revision in heads():
        engine = await empty.engine()
        await migrate(engine, revision=revision)
        await fill(engine)
        before = await rows(engine)
        await migrate(engine)
        assert await structure(engine) == await structure(created), revision
        assert await rows(engine) == before, revision
        assert all(before.values()), before
        storage = SqlStorage(engine, listen=False)
        assert await append(storage, draft("e2")) == [2]
        due = [(one.workspace, one.run_id) for one in await storage.due_runs(POLICY, limit=1, after=REF)]
        assert due == [(OTHER, "r")], revision


async def fill(engine: AsyncEngine) -> None:
    """Puts something into every table, by statements that any revision understands."""
    ids = ({"tenant_id": REF.tenant_id, "workspace_id": one.workspace_id} for one in (REF, OTHER))
    async with engine.begin() as connection:
        for place, workspace in enumerate(ids):
            for table, values in EARLIEST.items():
                row = {**({} if table == "reflexr_members" else workspace), **values}
                if table == "reflexr_members":
                    row["digest"] += str(place)
                names = ", ".join(row)
                await connection.execute(
                    text(f"INSERT INTO {table} ({names}) VALUES ({', '.join(f':{name}' for name in row)})"), row
                )


async def rows(engine: AsyncEngine) -> dict[str, list[str]]:
    """Everything that is in the tables of the first revision, in its columns."""
    found: dict[str, list[str]] = {}
    async with engine.connect() as connection:
        for table, values in EARLIEST.items():
            read = await connection.execute(text(f"SELECT {', '.join(values)} FROM {table}"))
            found[table] = sorted(repr(tuple(row)) for row in read)
    return found


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


def test_only_who_migrates_waits_for_alembic_to_be_imported() -> None:
    program = "import sys; import reflexr.sql; print('sqlalchemy' in sys.modules, 'alembic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def heads() -> list[str]:
    """Every revision, the oldest first."""
    config = Config()
    config.set_main_option("script_location", "reflexr.sql:migrations")
    config.set_main_option("version_locations", "reflexr.sql:revisions")
    config.set_main_option("path_separator", "newline")
    return [revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()][::-1]
