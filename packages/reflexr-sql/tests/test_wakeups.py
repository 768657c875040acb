"""Wake-ups between processes: another storage on the same database stands for another process."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic_core import from_json
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.sql import SqlStorage
from reflexr.sql.wakeups import CHANNEL, payloads
from reflexr.workspace import LogWindow, Storage, WorkspaceError, WorkspaceRef

from .servers import Kind, beside, engine_of
from .shop import HOUR, REF, append, draft, opened

OTHER = WorkspaceRef("acme", "other")
SOON = timedelta(seconds=20)


@pytest.fixture(params=["sqlite", "postgresql"])
async def engine(request: pytest.FixtureRequest) -> AsyncGenerator[AsyncEngine]:
    kind: Kind = request.param
    async with engine_of(kind) as engine:
        yield engine


@pytest.fixture
async def postgresql() -> AsyncGenerator[AsyncEngine]:
    async with engine_of("postgresql") as engine:
        yield engine


@asynccontextmanager
async def process(engine: AsyncEngine, **options: Any) -> AsyncGenerator[SqlStorage]:
    """A storage as another process has it, which looks by itself so seldom that only being woken helps."""
    other = beside(engine)
    async with SqlStorage(other, poll_interval=HOUR, **options) as storage:
        yield storage
    await other.dispose()


async def terminate_links(engine: AsyncEngine) -> int:
    """Hangs up on every link, and returns how many there were."""
    query = """
        SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
          AND (query LIKE '%pg_notify%' OR query LIKE 'LISTEN%')
    """
    async with engine.connect() as connection:
        return (await connection.execute(text(query))).scalar_one()


async def woken(storage: Storage, workspace: WorkspaceRef | None, action: Any) -> frozenset[WorkspaceRef]:
    with storage.wakeups.listen(workspace) as listener:
        await action()
        return await listener.wait(SOON)


async def test_a_commit_wakes_the_subscribers_of_another_process(engine: AsyncEngine) -> None:
    async with process(engine) as here, process(engine) as there:
        with there.wakeups.listen(REF) as listener:
            await there.wakeups.ready()
            await listener.wait(timedelta())
            await append(here, draft("e1"))
            assert await listener.wait(SOON) == {REF}
        assert len(await there.read(REF, LogWindow())) == 1


async def test_a_subscription_in_another_process_gets_each_event_once_in_order(engine: AsyncEngine) -> None:
    async with process(engine) as here, process(engine) as there:
        workspace = await opened(there)
        subscription = workspace.subscribe()
        got: list[str] = []
        for number in range(5):
            await append(here, draft(f"a{number}", item="tea"), draft(f"b{number}", item="tea"))
            got += [(await anext(subscription)).id for _ in range(2)]
        await subscription.aclose()
        assert got == [f"{letter}{number}" for number in range(5) for letter in "ab"]


async def test_a_listener_of_all_is_told_which_workspaces_changed(postgresql: AsyncEngine) -> None:
    async with process(postgresql) as here, process(postgresql) as there:
        with there.wakeups.listen() as listener:
            await there.wakeups.ready()
            await listener.wait(timedelta())
            await append(here, draft("e1"), workspace=OTHER)
            assert await listener.wait(SOON) == {OTHER}


async def test_what_a_process_commits_wakes_it_once(postgresql: AsyncEngine) -> None:
    async with process(postgresql) as here, process(postgresql) as there:
        await here.wakeups.ready()
        await there.wakeups.ready()
        with here.wakeups.listen() as mine, there.wakeups.listen() as theirs:
            await append(here, draft("e1"))
            assert await mine.wait(SOON) == {REF}
            # By now it went to the server and came back to both.
            assert await theirs.wait(SOON) == {REF}
            assert await mine.wait(timedelta()) == frozenset()


async def test_many_commits_are_told_in_few_notifications(postgresql: AsyncEngine) -> None:
    received: list[str] = []
    spy = await postgresql.connect()
    driver: Any = (await spy.get_raw_connection()).driver_connection

    def receive(_connection: object, _process: int, _channel: str, payload: str) -> None:
        received.append(payload)

    await driver.add_listener(CHANNEL, receive)
    async with process(postgresql) as here, process(postgresql) as there:
        await here.wakeups.ready()
        await there.wakeups.ready()
        refs = [WorkspaceRef("acme", f"w{number}") for number in range(50)]
        heard: set[WorkspaceRef] = set()
        with there.wakeups.listen() as listener:
            here.wakeups.announce(refs[:25])
            for ref in refs[25:]:
                here.wakeups.announce([ref])
            while len(heard) < len(refs):
                heard |= await listener.wait(SOON)
    await spy.close()
    assert heard == set(refs)
    assert len(received) == 1


async def test_a_link_that_broke_comes_back_and_what_was_missed_is_caught_at_once(
    postgresql: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with process(postgresql) as there, process(postgresql, listen=False) as silent:
        with there.wakeups.listen(REF) as one, there.wakeups.listen() as every:
            await there.wakeups.ready()
            await one.wait(timedelta())
            await every.wait(timedelta())
            with caplog.at_level(logging.WARNING):
                assert await terminate_links(postgresql) == 1
                # Nobody tells of it.
                await append(silent, draft("missed"))
                assert await one.wait(SOON) == {REF}
                assert await every.wait(SOON) == frozenset()
            assert "wake-ups between processes are lost" in caplog.text
            async with process(postgresql) as here:
                await append(here, draft("heard"))
                assert await one.wait(SOON) == {REF}


async def test_what_could_not_be_told_is_told_later(postgresql: AsyncEngine) -> None:
    async with process(postgresql) as here, process(postgresql) as there:
        await here.wakeups.ready()
        await there.wakeups.ready()
        await terminate_links(postgresql)
        here.wakeups.announce([OTHER])
        with there.wakeups.listen(OTHER) as listener:
            assert await listener.wait(SOON) == {OTHER}


async def test_a_server_that_stays_away_is_asked_again_and_again() -> None:
    engine = create_async_engine("postgresql+asyncpg://postgres@127.0.0.1:1/nowhere")
    warnings: asyncio.Queue[str] = asyncio.Queue()
    handler = logging.Handler()
    handler.emit = lambda record: warnings.put_nowait(record.getMessage())
    logger = logging.getLogger("reflexr.sql.wakeups")
    logger.addHandler(handler)
    async with SqlStorage(engine) as storage:
        storage.wakeups.announce([REF])
        first, second = await warnings.get(), await warnings.get()
    logger.removeHandler(handler)
    assert "trying again in 0.1 s" in first
    assert "trying again in 0.2 s" in second


async def test_without_a_link_listeners_of_this_process_are_woken_and_others_poll(engine: AsyncEngine) -> None:
    async with process(engine, listen=False) as here:
        await here.wakeups.ready()

        async def publish() -> None:
            await append(here, draft("e1"))

        assert await woken(here, REF, publish) == {REF}
        assert here.wakeups.poll_interval == HOUR


async def test_a_closed_storage_can_be_used_and_begins_again(engine: AsyncEngine) -> None:
    async with process(engine) as here, process(engine) as there:
        with there.wakeups.listen(REF) as listener:
            await there.wakeups.ready()
            await there.close()
            await there.close()
            await there.wakeups.ready()
            await listener.wait(timedelta())
            await append(here, draft("e1"))
            assert await listener.wait(SOON) == {REF}


async def test_a_file_is_looked_at_only_while_somebody_listens() -> None:
    async with engine_of("sqlite") as engine, process(engine) as storage:
        before = asyncio.all_tasks()
        with storage.wakeups.listen():
            await storage.wakeups.ready()
            (link,) = asyncio.all_tasks() - before
            assert not link.done()
        await link
        with storage.wakeups.listen():
            await storage.wakeups.ready()
            assert len(asyncio.all_tasks() - before) == 1


def test_a_poll_interval_is_a_time() -> None:
    engine = create_async_engine("postgresql+asyncpg://nobody@nowhere/nothing")
    with pytest.raises(WorkspaceError, match="more than zero"):
        SqlStorage(engine, poll_interval=timedelta())


def test_a_payload_is_as_large_as_postgresql_takes_it_and_no_workspace_is_left_out() -> None:
    refs = {WorkspaceRef("acme", f"{number:0200}") for number in range(500)}
    found = payloads("me", refs)
    assert all(len(payload.encode()) < 8_000 for payload in found)
    assert len(found) < 20
    assert {WorkspaceRef(*name) for payload in found for name in from_json(payload)[1]} == refs
    assert payloads("me", []) == []


async def test_a_workspace_whose_name_no_payload_holds_wakes_everybody(postgresql: AsyncEngine) -> None:
    assert [from_json(payload) for payload in payloads("me", [WorkspaceRef("\x01" * 3_000, "w")])] == [["me", None]]
    async with process(postgresql) as here, process(postgresql) as there:
        await here.wakeups.ready()
        await there.wakeups.ready()
        with there.wakeups.listen(REF) as listener:
            here.wakeups.announce([WorkspaceRef("\x01" * 3_000, "w")])
            assert await listener.wait(SOON) == {REF}
