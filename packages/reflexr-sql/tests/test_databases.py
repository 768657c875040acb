"""Connections: what becomes of them, and of those who use them, when something goes wrong."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool

from reflexr.sql import (
    DatabaseBusyError,
    DatabaseUnavailableError,
    EngineError,
    InvalidValueError,
    SchemaError,
    SqlStorage,
    SqlStorageError,
    create_sqlite_engine,
)
from reflexr.sql.sessions import AsyncpgDriver
from reflexr.workspace import LogWindow, ManualClock, WorkspaceRef

from .servers import Kind, engine_of, server_url
from .shop import REF, START, append, draft


@pytest.fixture(params=["sqlite", "postgresql"])
async def engine(request: pytest.FixtureRequest) -> AsyncGenerator[AsyncEngine]:
    kind: Kind = request.param
    async with engine_of(kind) as engine:
        yield engine


@pytest.fixture
async def postgresql() -> AsyncGenerator[AsyncEngine]:
    async with engine_of("postgresql", pool_size=2, max_overflow=0, pool_timeout=0.2) as engine:
        yield engine


async def terminate_others(engine: AsyncEngine) -> None:
    """Hangs up on every connection to the database but the one that says so, as a restart of the server would."""
    other = create_async_engine(engine.url)
    async with other.connect() as connection:
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    await other.dispose()


def connections_out(engine: AsyncEngine) -> int:
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    return pool.checkedout()


async def test_another_driver_is_refused() -> None:
    engine = create_async_engine("sqlite+aiosqlite:///unused.db")
    engine.dialect.driver = "pysqlite"
    with pytest.raises(EngineError, match=r"'sqlite\+pysqlite' cannot be used"):
        SqlStorage(engine)


async def test_no_connection_is_kept_by_those_who_are_cancelled(postgresql: AsyncEngine) -> None:
    storage = SqlStorage(postgresql, listen=False)
    for awaits in range(60):
        task = asyncio.create_task(append(storage, draft(f"e{awaits}")))
        for _ in range(awaits):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await append(storage, draft("last"))
    assert connections_out(postgresql) == 0


async def test_those_who_wait_for_a_workspace_hold_no_connection(postgresql: AsyncEngine) -> None:
    storage = SqlStorage(postgresql, listen=False)
    async with storage.transaction(REF):
        waiting = [asyncio.create_task(append(storage, draft(f"e{number}"))) for number in range(20)]
        await asyncio.sleep(0)
        assert await storage.read(REF, LogWindow()) == []
    seqs = await asyncio.gather(*waiting)
    assert sorted(seqs) == [[number] for number in range(1, 21)]


async def test_a_pool_that_has_no_connection_left_is_busy(postgresql: AsyncEngine) -> None:
    storage = SqlStorage(postgresql, listen=False)
    async with storage.transaction(REF), storage.transaction(WorkspaceRef("acme", "other")):
        with pytest.raises(DatabaseBusyError):
            await storage.head(REF)


async def test_a_connection_that_was_lost_is_survived_by_the_next_call(postgresql: AsyncEngine) -> None:
    storage = SqlStorage(postgresql, listen=False)
    await append(storage, draft("before"))
    await terminate_others(postgresql)
    assert [envelope.id for envelope in await storage.read(REF, LogWindow())] == ["before"]
    await terminate_others(postgresql)
    assert await append(storage, draft("after")) == [2]


async def test_what_was_not_committed_when_the_connection_was_lost_is_not_there(postgresql: AsyncEngine) -> None:
    storage = SqlStorage(postgresql, listen=False)

    async def write() -> None:
        async with storage.transaction(REF) as transaction:
            await transaction.append([draft("lost")])
            await terminate_others(postgresql)
            await transaction.append([draft("too late")])

    with pytest.raises(DatabaseUnavailableError) as lost:
        await write()
    assert lost.value.__cause__ is not None
    assert await storage.read(REF, LogWindow()) == []
    assert await append(storage, draft("next")) == [1]
    assert connections_out(postgresql) == 0


async def test_a_commit_on_a_lost_connection_is_no_success(postgresql: AsyncEngine) -> None:
    storage = SqlStorage(postgresql, listen=False)

    async def write() -> None:
        async with storage.transaction(REF) as transaction:
            await transaction.append([draft("lost")])
            await terminate_others(postgresql)

    with pytest.raises(DatabaseUnavailableError):
        await write()
    assert await storage.read(REF, LogWindow()) == []


async def test_a_transaction_in_which_a_statement_failed_is_not_committed(postgresql: AsyncEngine) -> None:
    storage = SqlStorage(postgresql, listen=False)

    async def write() -> None:
        async with storage.transaction(REF) as transaction:
            await transaction.append([draft("lost")])
            with pytest.raises(InvalidValueError):
                # The sum of now and this is more than a column holds, which only the server finds out.
                await transaction.acquire(["lease"], "holder", timedelta(days=106_751_990))

    with pytest.raises(SqlStorageError, match="rolled back"):
        await write()
    assert await storage.read(REF, LogWindow()) == []


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    engine = create_async_engine("postgresql+asyncpg://postgres@127.0.0.1:1/nowhere")
    with pytest.raises(DatabaseUnavailableError) as unavailable:
        await SqlStorage(engine).head(REF)
    assert isinstance(unavailable.value.__cause__, OSError)


async def test_a_database_without_the_tables_says_to_migrate(tmp_path: object) -> None:
    engine = create_sqlite_engine(f"sqlite+aiosqlite:///{tmp_path}/empty.db")
    with pytest.raises(SchemaError, match="migrate"):
        await append(SqlStorage(engine), draft("e1"))
    await engine.dispose()
    server = create_async_engine(server_url())
    with pytest.raises(SchemaError, match="migrate"):
        await SqlStorage(server).head(REF)
    await server.dispose()


async def test_an_error_of_the_callers_own_comes_as_it_is(engine: AsyncEngine) -> None:
    with pytest.raises(LookupError):
        async with SqlStorage(engine).transaction(REF):
            raise LookupError


async def test_a_storage_says_what_time_the_database_has(engine: AsyncEngine) -> None:
    storage = SqlStorage(engine)
    first, second = await storage.now(), await storage.now()
    assert abs(first - datetime.now(UTC)) < timedelta(minutes=1)
    assert first <= second
    assert await SqlStorage(engine, clock=ManualClock(START)).now() == START


async def test_a_fault_that_is_no_databases_keeps_no_connection(
    postgresql: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise LookupError

    storage = SqlStorage(postgresql, listen=False)
    with monkeypatch.context() as patch:
        patch.setattr(AsyncpgDriver, "alone", broken)
        with pytest.raises(LookupError):
            await storage.head(REF)
    assert connections_out(postgresql) == 0
    assert (await storage.head(REF)).seq == 0
