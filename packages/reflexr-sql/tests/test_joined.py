"""Publishing inside the application's own transaction."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from reflexr.core import Rejected
from reflexr.sql import DatabaseBusyError, EngineError, SqlStorage, create_sqlite_engine
from reflexr.workspace import LogWindow, TransactionClosedError, Watch, WorkspaceRef

from .servers import Kind, beside, engine_of
from .shop import HOUR, REF, Sold, append, draft, opened, progress

SOON = timedelta(seconds=20)


@pytest.fixture(params=["sqlite", "postgresql"])
async def engine(request: pytest.FixtureRequest) -> AsyncGenerator[AsyncEngine]:
    kind: Kind = request.param
    async with engine_of(kind) as engine:
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE IF NOT EXISTS orders (item VARCHAR(9))"))
            await connection.execute(text("DELETE FROM orders"))
        yield engine


def hasty(engine: AsyncEngine) -> AsyncEngine:
    """Another engine on the same database, which waits for nobody."""
    if engine.dialect.name == "postgresql":
        return create_async_engine(engine.url, connect_args={"server_settings": {"lock_timeout": "1"}})
    return create_sqlite_engine(engine.url, busy_timeout=timedelta(milliseconds=1))


async def order(connection: AsyncConnection | AsyncSession) -> None:
    await connection.execute(text("INSERT INTO orders VALUES ('tea')"))


async def orders(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return (await connection.execute(text("SELECT count(*) FROM orders"))).scalar_one()


async def ids(storage: SqlStorage) -> list[str]:
    return [envelope.id for envelope in await storage.read(REF, LogWindow())]


async def test_an_event_and_the_applications_rows_are_there_together(engine: AsyncEngine) -> None:
    storage = SqlStorage(engine, listen=False)
    workspace = await opened(storage)
    async with engine.begin() as connection:
        await order(connection)
        async with storage.joined(connection, REF) as transaction:
            (published,) = await workspace.publish_within(transaction, [Sold(item="tea")])
        assert await ids(storage) == []
    assert await ids(storage) == [published.id]
    assert await orders(engine) == 1


async def test_an_event_and_the_applications_rows_are_gone_together(engine: AsyncEngine) -> None:
    storage = SqlStorage(engine, listen=False)
    async with engine.connect() as connection:
        await order(connection)
        async with storage.joined(connection, REF) as transaction:
            await transaction.append([draft("gone")])
        await connection.rollback()
    assert (await ids(storage), await orders(engine)) == ([], 0)
    assert await append(storage, draft("next")) == [1]


async def test_a_session_is_joined_as_a_connection_is(engine: AsyncEngine) -> None:
    storage = SqlStorage(engine, listen=False)
    async with AsyncSession(engine) as session, session.begin():
        await order(session)
        async with storage.joined(session, REF) as transaction:
            await transaction.append([draft("e1")])
    assert (await ids(storage), await orders(engine)) == (["e1"], 1)


async def test_a_block_that_raises_takes_back_its_own_and_the_applications_transaction_goes_on(
    engine: AsyncEngine,
) -> None:
    storage = SqlStorage(engine, listen=False)
    workspace = await opened(storage)

    async def refused(connection: AsyncConnection) -> None:
        async with storage.joined(connection, REF) as transaction:
            await transaction.append([draft("gone")])
            await workspace.publish_within(transaction, [Sold(item="tea")], correlation_id="nowhere")

    async with engine.begin() as connection:
        with pytest.raises(Rejected):
            await refused(connection)
        await order(connection)
        async with storage.joined(connection, REF) as transaction:
            await transaction.append([draft("kept")])
    assert (await ids(storage), await orders(engine)) == (["kept"], 1)


async def test_who_joins_twice_reads_what_was_written_before(engine: AsyncEngine) -> None:
    storage = SqlStorage(engine, listen=False)
    async with engine.begin() as connection:
        for number in range(3):
            async with storage.joined(connection, REF) as transaction:
                assert transaction.head.seq == number
                await transaction.append([draft(f"e{number}")])
        async with storage.joined(connection, WorkspaceRef("acme", "other")) as transaction:
            await transaction.append([draft("other")])
    assert await ids(storage) == ["e0", "e1", "e2"]


async def test_the_workspace_is_held_until_the_application_commits(engine: AsyncEngine) -> None:
    storage, other = SqlStorage(engine, listen=False), hasty(engine)
    async with engine.begin() as connection:
        async with storage.joined(connection, REF) as transaction:
            await transaction.append([draft("first")])
        with pytest.raises(DatabaseBusyError):
            await append(SqlStorage(other, listen=False), draft("second"))
    assert await append(SqlStorage(other, listen=False), draft("second")) == [2]
    assert await ids(storage) == ["first", "second"]
    await other.dispose()


async def test_a_transaction_is_of_no_use_after_its_block(engine: AsyncEngine) -> None:
    storage = SqlStorage(engine, listen=False)
    async with engine.begin() as connection:
        async with storage.joined(connection, REF) as transaction:
            pass
        with pytest.raises(TransactionClosedError):
            await transaction.append([draft("e1")])


async def test_rules_are_behind_once_the_application_commits(engine: AsyncEngine) -> None:
    storage = SqlStorage(engine, listen=False)
    watch = Watch({"sqlshop:restock": "d1"})
    async with storage.transaction(REF) as transaction:
        await transaction.append([draft("e1")])
        await transaction.save_progress([progress("sqlshop:restock", 1)])
    assert await storage.behind(watch, limit=10) == []
    async with engine.begin() as connection, storage.joined(connection, REF) as joined:
        await joined.append([draft("e2")])
    assert await storage.behind(watch, limit=10) == [REF]


async def test_others_are_woken_when_the_application_commits_and_not_before(engine: AsyncEngine) -> None:
    other = beside(engine)
    async with SqlStorage(engine, poll_interval=HOUR) as here, SqlStorage(other, poll_interval=HOUR) as there:
        with here.wakeups.listen(REF) as mine, there.wakeups.listen(REF) as theirs:
            await here.wakeups.ready()
            await there.wakeups.ready()
            await _forget(mine, theirs)
            async with engine.begin() as connection:
                async with here.joined(connection, REF) as transaction:
                    await transaction.append([draft("e1")])
                assert await mine.wait(timedelta(milliseconds=50)) == frozenset()
            assert [await mine.wait(SOON), await theirs.wait(SOON)] == [{REF}, {REF}]
    await other.dispose()


async def test_nobody_is_woken_by_what_was_rolled_back(engine: AsyncEngine) -> None:
    async with SqlStorage(engine, poll_interval=HOUR) as storage:
        with storage.wakeups.listen(REF) as listener:
            await storage.wakeups.ready()
            await _forget(listener)
            async with engine.connect() as connection:
                async with storage.joined(connection, REF) as transaction:
                    await transaction.append([draft("gone")])
                async with storage.joined(connection, REF) as transaction:
                    await transaction.read(LogWindow())
                await connection.rollback()
            assert await listener.wait(timedelta(milliseconds=50)) == frozenset()


async def test_a_connection_of_another_kind_is_refused() -> None:
    async with engine_of("sqlite") as sqlite, engine_of("postgresql") as postgresql:
        async with sqlite.connect() as connection:
            with pytest.raises(EngineError, match="the storage is in 'postgresql'"):
                await _join(SqlStorage(postgresql).joined(connection, REF).__aenter__)
        async with postgresql.connect() as connection:
            with pytest.raises(EngineError, match="the storage is in 'sqlite'"):
                await _join(SqlStorage(sqlite).joined(connection, REF).__aenter__)


async def test_a_connection_without_transactions_is_refused(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(EngineError, match="commits each statement by itself"):
            await _join(SqlStorage(engine).joined(connection, REF).__aenter__)


async def _join(enter: Callable[[], Awaitable[object]]) -> None:
    await enter()


async def _forget(*listeners: Any) -> None:
    """Lets listeners forget that their links began."""
    for listener in listeners:
        await listener.wait(timedelta())
