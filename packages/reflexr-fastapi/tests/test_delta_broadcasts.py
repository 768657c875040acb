import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import override

import pytest

from reflexr.core import Delta, ServerFrame, write_frame
from reflexr.fastapi import delta_broadcasts as module
from reflexr.fastapi.delta_broadcasts import DeltaBroadcasts
from reflexr.workspace import DeltaListener, InProcessLiveOutput, WorkspaceRef

from .ops import PROD, THEIRS
from .saying import delta, told, written


class Hearing:
    """A member that keeps the deltas that it is offered."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.when_offered: Callable[[], None] = lambda: None
        self._happened = asyncio.Event()

    def offer_delta(self, delta: Delta, frame: str) -> None:
        assert written(delta) == frame
        self.frames.append(frame)
        self.when_offered()
        self._happened.set()

    async def has(self, number: int) -> None:
        while len(self.frames) < number:
            self._happened.clear()
            await self._happened.wait()


@contextmanager
def joined(broadcasts: DeltaBroadcasts, *members: Hearing, workspace: WorkspaceRef = PROD) -> Generator[None]:
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(broadcasts.join(workspace, member))
        yield


async def nothing_is_left(broadcasts: DeltaBroadcasts, output: InProcessLiveOutput) -> None:
    await broadcasts.close()
    assert (len(broadcasts), len(output)) == (0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_each_member_of_a_workspace_is_offered_what_is_said_there_once_it_has_joined() -> None:
    output = InProcessLiveOutput()
    broadcasts = DeltaBroadcasts(output)
    first, second, elsewhere = Hearing(), Hearing(), Hearing()
    with joined(broadcasts, first), joined(broadcasts, elsewhere, workspace=THEIRS):
        output.send(PROD, delta(1))
        await first.has(1)
        with joined(broadcasts, second):
            assert len(broadcasts) == 2
            output.send(PROD, delta(2))
            await second.has(1)
        output.send(PROD, delta(3))
        await first.has(3)
        output.send(THEIRS, delta(9))
        await elsewhere.has(1)

    assert [told(member.frames) for member in (first, second, elsewhere)] == [
        [(1, 0), (2, 0), (3, 0)],
        [(2, 0)],
        [(9, 0)],
    ]
    await nothing_is_left(broadcasts, output)


async def test_a_delta_is_written_once_for_a_hundred_members(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[ServerFrame] = []

    def write(frame: ServerFrame) -> str:
        frames.append(frame)
        return write_frame(frame)

    monkeypatch.setattr(module, "write_frame", write)
    output = InProcessLiveOutput()
    broadcasts = DeltaBroadcasts(output)
    members = [Hearing() for _ in range(100)]
    with joined(broadcasts, *members):
        for number in range(1, 11):
            output.send(PROD, delta(number))
        for member in members:
            await member.has(10)

    assert len(frames) == 10
    await nothing_is_left(broadcasts, output)


async def test_who_offers_a_burst_gives_everybody_a_turn_to_send_it_on() -> None:
    output = InProcessLiveOutput()
    broadcasts = DeltaBroadcasts(output)
    member = Hearing()
    waiting: list[int] = []
    with joined(broadcasts, member):
        for number in range(1, 1_001):
            output.send(PROD, delta(number))
        while sum(waiting) < 1_000:
            await member.has(sum(waiting) + 1)
            waiting.append(len(member.frames) - sum(waiting))

    assert max(waiting) <= 2 * module.BURST
    await nothing_is_left(broadcasts, output)


async def test_who_leaves_while_others_are_offered_something_takes_nothing_from_them() -> None:
    output = InProcessLiveOutput()
    broadcasts = DeltaBroadcasts(output)
    leaving, staying = Hearing(), Hearing()
    with joined(broadcasts, staying):
        with ExitStack() as stack:
            stack.enter_context(joined(broadcasts, leaving))
            output.send(PROD, delta(1))
            await leaving.has(1)
        output.send(PROD, delta(2))
        await staying.has(2)

    assert (told(leaving.frames), told(staying.frames)) == ([(1, 0)], [(1, 0), (2, 0)])
    await nothing_is_left(broadcasts, output)


class BreakingOutput(InProcessLiveOutput):
    """Breaks off as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = True

    @override
    @contextmanager
    def listen(self, workspace: WorkspaceRef) -> Generator[DeltaListener]:
        with super().listen(workspace) as listener:
            yield BrokenListener() if self.is_broken else listener


class BrokenListener:
    async def take(self) -> list[Delta]:
        raise OSError("the connection is gone")


async def test_what_carries_deltas_may_break_and_who_comes_next_has_another(caplog: pytest.LogCaptureFixture) -> None:
    output = BreakingOutput()
    broadcasts = DeltaBroadcasts(output)
    first, second = Hearing(), Hearing()
    with ExitStack() as stack:
        with joined(broadcasts, first), caplog.at_level(logging.ERROR, logger="reflexr.fastapi"):
            assert "broke off" in caplog.text
            output.is_broken = False
            stack.enter_context(joined(broadcasts, second))
            output.send(PROD, delta(1))
            await second.has(1)
        assert len(broadcasts) == 1
        output.send(PROD, delta(2))
        await second.has(2)

    assert (told(first.frames), told(second.frames)) == ([], [(1, 0), (2, 0)])
    await nothing_is_left(broadcasts, output)
