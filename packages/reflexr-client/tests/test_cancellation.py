"""What is left of a subscription that ends: no task and no connection, wherever it was when it ended."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta

import pytest
from websockets.asyncio.client import ClientConnection

from reflexr.client import Backoff, Client, RemoteWorkspace, connections
from reflexr.core import Envelope

from .answering import no_http
from .logs import Log
from .servers import Script, StreamServer, close, cut, hang, say, serving, speak


@asynccontextmanager
async def leaving_nothing(server: StreamServer) -> AsyncGenerator[RemoteWorkspace]:
    """Checks that what happens inside leaves no task and no connection."""
    async with Client(server.url, http=no_http(), backoff=Backoff(first=timedelta())) as client:
        yield client.workspace("prod")
    await server.until(lambda: server.open == 0)
    left = [task for task in asyncio.all_tasks() if "reflexr.client" in repr(task) or "keepalive" in repr(task)]
    assert left == []


async def read_forever(workspace: RemoteWorkspace, got: list[int]) -> None:
    async with aclosing(workspace.subscribe(after_seq=len(got))) as stream:
        while True:
            got.append((await anext(stream)).seq)


@pytest.mark.parametrize("steps", range(0, 80, 2))
async def test_a_subscriber_that_is_cancelled_at_any_step_leaves_nothing_and_can_go_on(steps: int) -> None:
    async with serving(Log(5)) as server, leaving_nothing(server) as workspace:
        server.scripts += [cut(3), speak()]
        got: list[int] = []
        reading = asyncio.create_task(read_forever(workspace, got))
        for _ in range(steps):
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        async with aclosing(workspace.subscribe(after_seq=len(got))) as stream:
            while len(got) < 5:
                got.append((await anext(stream)).seq)
        assert got == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("script", [speak(), hang(3)], ids=["polite", "hanging"])
async def test_a_generator_that_is_closed_closes_its_connection_at_once_whatever_the_server_does(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FAREWELL", timedelta(hours=1))
    async with serving(Log(5)) as server, leaving_nothing(server) as workspace:
        server.scripts += [script]
        stream = workspace.subscribe()
        await anext(stream)
        # A closing handshake that is waited for takes longer than this.
        async with asyncio.timeout(5):
            await stream.aclose()
        server.released.set()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_connection_on_which_nothing_more_can_be_said_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def close(socket: ClientConnection) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(connections, "FAREWELL", timedelta(milliseconds=10))
    monkeypatch.setattr(ClientConnection, "close", close)
    async with serving(Log(5)) as server, leaving_nothing(server) as workspace:
        stream = workspace.subscribe()
        await anext(stream)
        await stream.aclose()


async def divide(workspace: RemoteWorkspace) -> None:
    async with aclosing(workspace.subscribe()) as stream:
        async for envelope in stream:
            assert envelope.seq / 0


async def test_an_error_of_the_subscriber_closes_the_connection() -> None:
    async with serving(Log(5)) as server, leaving_nothing(server) as workspace:
        with pytest.raises(ZeroDivisionError):
            await divide(workspace)


WAITING: dict[str, tuple[Script, Callable[[StreamServer], bool]]] = {
    "for-a-welcome": (say(), lambda server: len(server.hellos) == 1),
    "for-an-event": (speak(), lambda server: len(server.hellos) == 1),
}


@pytest.mark.parametrize(("script", "holds"), WAITING.values(), ids=WAITING)
async def test_a_subscriber_that_waits_ends_at_once_when_it_is_cancelled(
    script: Script, holds: Callable[[StreamServer], bool]
) -> None:
    async with serving(Log(0)) as server, leaving_nothing(server) as workspace:
        server.scripts += [script]
        reading = asyncio.create_task(read_forever(workspace, []))
        await server.until(lambda: holds(server))
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_a_subscriber_that_is_cancelled_twice_while_it_closes_leaves_nothing() -> None:
    async with serving(Log(0)) as server, leaving_nothing(server) as workspace:
        reading = asyncio.create_task(read_forever(workspace, []))
        await server.until(lambda: len(server.hellos) == 1)
        reading.cancel()
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_a_subscriber_that_waits_to_try_again_ends_at_once_when_it_is_cancelled() -> None:
    waiting = asyncio.Event()

    async def wait(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with serving(Log(0)) as server:
        server.scripts += [close(1001)]
        async with Client(server.url, http=no_http(), backoff=Backoff(sleep=wait)) as client:
            reading = asyncio.create_task(read_forever(client.workspace("prod"), []))
            await waiting.wait()
            await server.until(lambda: server.open == 0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading


async def test_subscribers_of_one_client_do_not_disturb_each_other() -> None:
    async def first(stream: AsyncGenerator[Envelope], number: int) -> list[int]:
        async with aclosing(stream):
            return [(await anext(stream)).seq for _ in range(number)]

    async with serving(Log(5)) as server, leaving_nothing(server) as workspace:
        server.scripts += [cut(3), close(4429, after=2)]
        streams = [first(workspace.subscribe(after_seq=seq), 5 - seq) for seq in range(5)]
        assert await asyncio.gather(*streams) == [list(range(seq + 1, 6)) for seq in range(5)]
