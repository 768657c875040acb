"""Connections: what becomes of them, and of those who use them, when something goes wrong."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, QueuePool

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
from reflexr.workspace import Head, LogWindow, ManualClock, WorkspaceRef

from .servers import Kind, beside, engine_of, server_url, terminate_others
from .shop import REF, START, append, draft


@pytest.fixture(params=["sqlite", "postgresql"])
async def engine(request: pytest.FixtureRequest) -> AsyncGenerator[AsyncEngine]:
    kind: Kind = request.param
    async with engine_of(kind) as engine:
        yield engine


@pytest.fixture
async def postgresql() -> AsyncGenerator[AsyncEngine]:
    async with engine_of("postgresql", pool_size=2, max_overflow=0, pool_timeout=5) as engine:
        yield engine


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
    await storage.close()
    assert connections_out(postgresql) == 0


async def test_a_storage_that_is_closed_has_given_every_connection_back(engine: AsyncEngine) -> None:
    for awaits in range(40):
        async with SqlStorage(engine) as storage:
            with storage.wakeups.listen():
                task = asyncio.create_task(append(storage, draft(f"e{awaits}")))
                for _ in range(awaits):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
        assert connections_out(engine) == 0, awaits


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_loop_that_ends_amid_a_call_leaves_no_connection(kind: Kind) -> None:
    out: list[int] = []

    async def ended_after(awaits: int) -> None:
        async with engine_of(kind, poolclass=NullPool) as engine:
            taken = asyncio.Event()
            event.listen(engine.sync_engine, "checkout", lambda *_: (out.append(1), taken.set()))
            event.listen(engine.sync_engine, "checkin", lambda *_: out.append(-1))
            task = asyncio.create_task(append(SqlStorage(engine, listen=False), draft("e1")))
            await taken.wait()
            for _ in range(awaits):
                await asyncio.sleep(0)
            task.cancel()

    for awaits in range(12):
        asyncio.run(ended_after(awaits))
        assert sum(out) == 0, awaits
    assert out


async def test_those_who_wait_for_a_workspace_hold_no_connection(postgresql: AsyncEngine) -> None:
    storage = SqlStorage(postgresql, listen=False)
    async with storage.transaction(REF):
        waiting = [asyncio.create_task(append(storage, draft(f"e{number}"))) for number in range(20)]
        await asyncio.sleep(0)
        assert await storage.read(REF, LogWindow()) == []
    seqs = await asyncio.gather(*waiting)
    assert sorted(seqs) == [[number] for number in range(1, 21)]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_however_many_who_wait_for_a_workspace_are_cancelled_others_have_connections(kind: Kind) -> None:
    async with engine_of(kind, pool_size=3, max_overflow=0, pool_timeout=5) as engine:
        storage = SqlStorage(engine, listen=False)
        other = beside(engine)
        try:
            async with SqlStorage(other, listen=False).transaction(REF):
                for _ in range(10):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.05), storage.transaction(REF):
                            raise NotImplementedError
                assert connections_out(engine) == 1
                assert await storage.head(WorkspaceRef("other", "desk")) == Head(0, None)
            async with storage.transaction(REF) as transaction:
                assert await transaction.append([draft("after")])
        finally:
            await other.dispose()
        assert connections_out(engine) == 0


async def test_a_pool_that_has_no_connection_left_is_busy() -> None:
    async with engine_of("postgresql", pool_size=1, max_overflow=0, pool_timeout=0.05) as engine:
        storage = SqlStorage(engine, listen=False)
        async with storage.transaction(REF):
            with pytest.raises(DatabaseBusyError):
                await storage.head(REF)


async def test_a_connection_that_was_lost_is_survived_by_the_next_call(postgresql: AsyncEngine) -> None:
    storage = SqlStorage(postgresql, listen=False)
    await append(storage, draft("before"))
    await terminate_others(postgresql.url)
    assert [envelope.id for envelope in await storage.read(REF, LogWindow())] == ["before"]
    await terminate_others(postgresql.url)
    assert await append(storage, draft("after")) == [2]


async def test_what_was_not_committed_when_the_connection_was_lost_is_not_there(postgresql: AsyncEngine) -> None:
    storage = SqlStorage(postgresql, listen=False)

    async def write() -> None:
        async with storage.transaction(REF) as transaction:
            await transaction.append([draft("lost")])
            await terminate_others(postgresql.url)
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
            await terminate_others(postgresql.url)

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


async def test_a_connection_that_cannot_be_used_goes_back(
    postgresql: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_connection: AsyncConnection) -> None:
        raise LookupError

    storage = SqlStorage(postgresql, listen=False)
    with monkeypatch.context() as patch:
        patch.setattr(AsyncConnection, "get_raw_connection", broken)
        with pytest.raises(LookupError):
            await storage.head(REF)
    assert connections_out(postgresql) == 0
    assert await append(storage, draft("next")) == [1]


async def test_a_rollback_that_is_broken_off_throws_its_connection_away(
    postgresql: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken_off(_driver: AsyncpgDriver) -> None:
        raise asyncio.CancelledError

    async def undone() -> None:
        async with storage.transaction(REF) as transaction:
            await transaction.append([draft("gone")])
            raise LookupError

    storage = SqlStorage(postgresql, listen=False)
    with monkeypatch.context() as patch:
        patch.setattr(AsyncpgDriver, "rollback", broken_off)
        with pytest.raises(asyncio.CancelledError):
            await undone()
    assert connections_out(postgresql) == 0
    assert await append(storage, draft("next")) == [1]
