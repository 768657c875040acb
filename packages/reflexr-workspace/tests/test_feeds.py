import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, override

import pytest

from reflexr.core import Envelope, EventRegistry, ValidationFailed
from reflexr.workspace import Head, InMemoryStorage, LogWindow, NewEvent, Workspace, WorkspaceRef, feeds

from .plant import ADA, REF, Alarm, Opened, PlantEvent, append, opened, workspaces


async def take(stream: AsyncGenerator[Envelope], count: int) -> list[int]:
    return [(await anext(stream)).seq for _ in range(count)]


class CountingStorage(InMemoryStorage):
    """Counts its reads of the log, and hesitates in each read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    @override
    async def head(self, workspace: WorkspaceRef) -> Head:
        await asyncio.sleep(0)
        return await super().head(workspace)

    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        self.reads += 1
        await asyncio.sleep(0)
        return await super().read(workspace, window)


async def test_a_subscriber_gets_what_is_there_and_then_what_comes_each_once() -> None:
    storage = InMemoryStorage()
    host = workspaces(storage)
    workspace = await host.open("acme", "prod", actor=ADA)
    await append(storage, "a", "b")

    async with aclosing(workspace.subscribe()) as stream:
        assert await take(stream, 2) == [1, 2]
        waiting = asyncio.create_task(take(stream, 2))
        await asyncio.sleep(0)
        await append(storage, "c")
        await append(storage, "d")
        assert await waiting == [3, 4]

    assert len(host.configuration.feeds) == 0
    assert len(storage.wakeups) == 0


async def test_a_subscriber_can_begin_anywhere_and_choose_its_types() -> None:
    storage = InMemoryStorage()
    workspace = await opened(storage)
    for kind in ("a", "b", "c"):
        await workspace.publish(Alarm(machine=kind))
        await workspace.publish(Opened())

    async with aclosing(workspace.subscribe(after_seq=2, types=[Opened])) as stream:
        assert await take(stream, 2) == [4, 6]
        waiting = asyncio.create_task(take(stream, 1))
        await asyncio.sleep(0)
        await workspace.publish(Alarm(machine="d"))
        await workspace.publish(Opened())
        assert await waiting == [8]


async def test_a_subscriber_ahead_of_the_log_waits_for_its_place() -> None:
    storage = InMemoryStorage()
    workspace = await opened(storage)
    async with aclosing(workspace.subscribe(after_seq=2)) as stream:
        waiting = asyncio.create_task(take(stream, 1))
        for name in "abc":
            await asyncio.sleep(0)
            await append(storage, name)

        assert await waiting == [3]


async def test_a_log_longer_than_a_page_and_a_tail_is_followed_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "PAGE", 3)
    storage = InMemoryStorage()
    workspace = await opened(storage)
    await append(storage, *(f"a{index}" for index in range(8)))

    async with aclosing(workspace.subscribe()) as slow, aclosing(workspace.subscribe(after_seq=8)) as quick:
        assert await take(slow, 1) == [1]
        waiting = asyncio.create_task(take(quick, 7))
        await asyncio.sleep(0)
        await append(storage, *(f"b{index}" for index in range(7)))
        assert await waiting == list(range(9, 16))
        assert await take(slow, 14) == list(range(2, 16))


async def test_the_subscribers_of_a_workspace_share_one_read_of_each_new_envelope() -> None:
    storage = CountingStorage()
    workspace = await opened(storage)
    streams = [workspace.subscribe() for _ in range(100)]
    waiting = [asyncio.create_task(take(stream, 1)) for stream in streams]
    for _ in range(5):
        await asyncio.sleep(0)

    await append(storage, "a")

    assert await asyncio.gather(*waiting) == [[1]] * 100
    assert storage.reads == 1
    for stream in streams:
        await stream.aclose()


@pytest.mark.parametrize("moments", range(8))
async def test_a_subscriber_that_is_cancelled_at_any_moment_costs_the_others_nothing(moments: int) -> None:
    storage = CountingStorage()
    workspace = await opened(storage)
    streams = [workspace.subscribe() for _ in range(3)]
    tasks = [asyncio.create_task(take(stream, 2)) for stream in streams]
    await asyncio.sleep(0)
    await append(storage, "a")
    for _ in range(moments):
        await asyncio.sleep(0)

    tasks[0].cancel()
    await append(storage, "b")

    assert await asyncio.gather(*tasks[1:]) == [[1, 2], [1, 2]]
    await asyncio.gather(tasks[0], return_exceptions=True)
    for stream in streams:
        await stream.aclose()
    assert len(storage.wakeups) == 0


async def test_envelopes_are_bound_to_the_registry_of_the_workspaces() -> None:
    registry = EventRegistry(PlantEvent)
    workspace = await opened(registry=registry)
    [published] = await workspace.publish_many([NewEvent(Alarm(machine="press"), "a")])

    async with aclosing(workspace.subscribe()) as stream:
        followed = await anext(stream)
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        await workspace.publish(Alarm(machine="saw"))
        live = await waiting

    [read] = await workspace.read(limit=1)
    assert all(envelope.registry is registry for envelope in (published.envelope, followed, live, read))


@pytest.mark.parametrize("arguments", [{"after_seq": -1}, {"types": ["alarm"]}])
async def test_a_subscription_that_can_be_none_is_refused(arguments: Any) -> None:
    workspace: Workspace = await opened()

    with pytest.raises(ValidationFailed):
        await anext(workspace.subscribe(**arguments))


async def test_two_workspaces_have_feeds_of_their_own() -> None:
    storage = InMemoryStorage()
    host = workspaces(storage)
    workspace, test = [await host.open("acme", name, actor=ADA) for name in ("prod", "test")]
    other = test.subscribe()
    async with aclosing(workspace.subscribe()) as stream, aclosing(other):
        waiting = asyncio.create_task(anext(other))
        await append(storage, "a", ref=REF)
        assert await take(stream, 1) == [1]
        await append(storage, "b", ref=WorkspaceRef("acme", "test"))
        assert (await waiting).id == "b"
