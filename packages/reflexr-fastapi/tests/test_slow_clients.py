import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Final, override

import pytest

from reflexr.fastapi import connections
from reflexr.fastapi.outboxes import Outbox

from .lines import Line
from .ops import Deployed, ServiceError
from .staging import HELLO, LIMITS, Client, Stage, staged

SIZE: Final = 50
"""How many frames an outbox holds here."""

LARGE: Final = ServiceError(details="x" * 20_000)
"""An event of which some hundred are more than sockets hold."""

ENOUGH: Final = 600


class WatchedOutbox(Outbox):
    """An outbox that keeps in mind how full it ever was."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.most = 0
        OUTBOXES.append(self)

    @override
    def offer(self, frame: str) -> bool:
        found_room = super().offer(frame)
        self.most = max(self.most, len(self))
        return found_room


OUTBOXES: Final[list[WatchedOutbox]] = []


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Stage]:
    OUTBOXES.clear()
    monkeypatch.setattr(connections, "Outbox", WatchedOutbox)
    async with staged(limits=replace(LIMITS, outbox_size=SIZE), ws_ping_interval=None) as stage:
        yield stage
        await stage.assert_nothing_is_left()


@asynccontextmanager
async def stalled(stage: Stage) -> AsyncGenerator[Client]:
    """A client that reads nothing of itself, and whose socket holds little."""
    with socket.socket() as narrow:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        narrow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", stage.at.port))
        async with stage.connected(sock=narrow, max_queue=1, ping_interval=None) as client:
            try:
                yield client
            finally:
                await client.cut_off()


async def publish(stage: Stage, number: int = ENOUGH) -> None:
    for _ in range(number):
        await stage.workspace.publish(LARGE)


async def test_a_client_that_stalls_is_closed_and_sees_the_code_when_it_reads_again_and_resumes(stage: Stage) -> None:
    async with stalled(stage) as slow, stage.connected() as quick:
        for client in (slow, quick):
            await client.begin()
        publishing = asyncio.create_task(publish(stage))
        assert await quick.until(ENOUGH) == list(range(1, ENOUGH + 1))
        await publishing
        assert all(outbox.most <= SIZE for outbox in OUTBOXES)
        assert [len(outbox) for outbox in OUTBOXES] == [0, 0]

        code, frames = await slow.end()
        seen = [frame["envelope"]["seq"] for frame in frames]
        assert code == 4429
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) < ENOUGH

        async with stage.connected() as again:
            assert await again.begin(resume_after_seq=len(seen)) == list(range(len(seen) + 1, ENOUGH + 1))


async def test_publishing_waits_for_no_reader(stage: Stage) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(stalled(stage)) for _ in range(10)]
        for client in clients:
            await client.begin()

        await publish(stage)

        assert await stage.workspace.head_seq() == ENOUGH
        assert len(stage.streams) == len(clients)


async def test_a_hundred_clients_of_which_some_stall(stage: Stage) -> None:
    async with AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(stalled(stage)) for _ in range(5)]
        quick = [await stack.enter_async_context(stage.connected()) for _ in range(95)]
        for client in slow:
            await client.begin()
        for client in quick:
            await client.begin(types=["ops:deployed"])

        async def publish_some() -> None:
            for _ in range(ENOUGH // 4):
                await stage.workspace.publish_many([LARGE, LARGE, Deployed(service="auth")])

        publishing = asyncio.create_task(publish_some())
        reading = [asyncio.create_task(client.seqs(ENOUGH // 4)) for client in quick]
        assert await asyncio.gather(*reading) == [[3 * n for n in range(1, ENOUGH // 4 + 1)]] * len(quick)
        await publishing
        assert max(outbox.most for outbox in OUTBOXES) <= SIZE

        ends = [await client.end() for client in slow]
    assert [code for code, _ in ends] == [4429] * len(slow)


async def test_a_client_that_stalls_in_the_replay_keeps_no_more_of_it_than_has_room(stage: Stage) -> None:
    await publish(stage)
    async with stalled(stage) as slow, stage.connected() as quick:
        await slow.hello()
        assert await quick.begin() == list(range(1, ENOUGH + 1))
        await publish(stage, SIZE * 2)
        assert await quick.until(ENOUGH + SIZE * 2) == list(range(ENOUGH + 1, ENOUGH + SIZE * 2 + 1))
        assert all(len(outbox) <= SIZE for outbox in OUTBOXES)

        # It reads again, and has missed nothing: what is live does not overflow who is not there yet.
        assert await slow.replay() == list(range(1, ENOUGH + 1))
        assert await slow.until(ENOUGH + SIZE * 2) == list(range(ENOUGH + 1, ENOUGH + SIZE * 2 + 1))


async def test_a_client_with_the_past_still_to_read_is_not_closed_for_what_is_live(stage: Stage) -> None:
    line = Line(query="token=ada")
    # All but what is on its way fills the outbox.
    await stage.workspace.publish_many([ServiceError()] * (SIZE - 1))
    serving = asyncio.create_task(stage.streams.serve(line.websocket, "prod"))
    await line.told(1)
    line.is_open.clear()
    line.say(text=json.dumps(HELLO))
    for number in range(SIZE * 2):
        await stage.workspace.publish(Deployed(service=f"{number}"))

    line.is_open.set()
    await line.told(1 + 1 + SIZE - 1 + 1 + SIZE * 2)
    line.hang_up(code=1000)
    await serving

    frames = [json.loads(message["text"]) for message in line.sent[1:]]
    seqs = [frame["envelope"]["seq"] for frame in frames if frame["type"] == "event"]
    assert seqs == list(range(1, SIZE * 3))


async def test_a_client_that_accepts_no_frame_for_long_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE", timedelta(milliseconds=1))
    await publish(stage)
    async with stalled(stage) as slow:
        await slow.hello()
        await stage.streams.are_left()
        assert [len(outbox) for outbox in OUTBOXES] == [0]


async def test_a_server_that_goes_away_waits_for_no_client_that_stalls(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reflexr.fastapi.streams.FAREWELL", timedelta(milliseconds=1))
    await publish(stage)
    async with stalled(stage) as slow, stage.connected() as quick:
        await slow.hello()
        await quick.begin()
        await stage.router.close()
        assert (await quick.end())[0] == 1001
        assert len(stage.streams) == 1
