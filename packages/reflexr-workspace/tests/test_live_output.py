import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

import pytest

from reflexr.core import Delta, Envelope
from reflexr.workspace import InProcessLiveOutput, WorkspaceRef
from reflexr.workspace.live_output import with_deltas

from .plant import ADA, START

PROD = WorkspaceRef("acme", "prod")
TEST = WorkspaceRef("acme", "test")


def delta(number: int, *, lost: int = 0) -> Delta:
    return Delta(
        run_id="fir_1", rule="plant:a", attempt=1, number=number, kind="text", part=0, text=f"{number}", lost=lost
    )


def numbers(deltas: list[Delta]) -> list[int]:
    return [each.number for each in deltas]


# --- Within one process


async def test_who_listens_takes_what_is_sent_in_its_order() -> None:
    output = InProcessLiveOutput()
    with output.listen(PROD) as listener, output.listen(PROD) as another:
        output.send(PROD, delta(1))
        output.send(PROD, delta(2))

        assert numbers(await listener.take()) == [1, 2]
        output.send(PROD, delta(3))
        assert numbers(await listener.take()) == [3]
        assert numbers(await another.take()) == [1, 2, 3]


async def test_who_takes_waits_for_a_delta() -> None:
    output = InProcessLiveOutput()
    with output.listen(PROD) as listener:
        taking = asyncio.create_task(listener.take())
        await asyncio.sleep(0)
        assert not taking.done()

        output.send(PROD, delta(1))

        assert numbers(await taking) == [1]


async def test_a_listener_of_one_workspace_hears_of_no_other() -> None:
    output = InProcessLiveOutput()
    with output.listen(PROD) as listener:
        output.send(TEST, delta(1))
        output.send(PROD, delta(2))

        assert numbers(await listener.take()) == [2]


async def test_what_nobody_hears_is_known_and_is_kept_for_nobody() -> None:
    output = InProcessLiveOutput()
    assert not output.is_heard(PROD)
    output.send(PROD, delta(1))
    with output.listen(PROD) as listener, output.listen(PROD):
        assert (len(output), output.is_heard(PROD), output.is_heard(TEST)) == (2, True, False)
        output.send(PROD, delta(2))
        assert numbers(await listener.take()) == [2]

    assert (len(output), output.is_heard(PROD)) == (0, False)


@pytest.mark.parametrize("size", [1, 3])
async def test_a_listener_that_falls_behind_loses_the_oldest_and_is_told_how_many(size: int) -> None:
    output = InProcessLiveOutput(size)
    with output.listen(PROD) as listener:
        for number in range(1, 11):
            output.send(PROD, delta(number, lost=number == 1))
        first = await listener.take()
        output.send(PROD, delta(11))
        second = await listener.take()

    assert numbers(first) == [*range(11 - size, 11)]
    # What was lost before the first is lost with it.
    assert [each.lost for each in first] == [10 - size + 1] + [0] * (size - 1)
    assert [(each.number, each.lost) for each in second] == [(11, 0)]


async def test_what_the_next_has_lost_already_is_counted_too() -> None:
    output = InProcessLiveOutput(1)
    with output.listen(PROD) as listener:
        output.send(PROD, delta(1))
        output.send(PROD, delta(5, lost=3))

        assert [each.lost for each in await listener.take()] == [4]


async def test_a_take_that_is_cancelled_forgets_nothing() -> None:
    output = InProcessLiveOutput()
    with output.listen(PROD) as listener:
        taking = asyncio.create_task(listener.take())
        await asyncio.sleep(0)
        output.send(PROD, delta(1))
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking

        assert numbers(await listener.take()) == [1]


# --- Beside a log


class Log:
    """A log that grows by hand, and that may fail."""

    def __init__(self) -> None:
        self.is_closed = False
        self._envelopes: asyncio.Queue[Envelope | Exception] = asyncio.Queue()

    def grow(self, seq: int) -> None:
        self._envelopes.put_nowait(
            Envelope(
                seq=seq,
                id=f"e-{seq}",
                ts=START,
                workspace_id="prod",
                actor=ADA,
                correlation_id=f"e-{seq}",
                event={"type": "plant:alarm"},
            )
        )

    def fail(self, error: Exception) -> None:
        self._envelopes.put_nowait(error)

    async def follow(self) -> AsyncGenerator[Envelope]:
        try:
            while True:
                one = await self._envelopes.get()
                if isinstance(one, Exception):
                    raise one
                yield one
        finally:
            self.is_closed = True


def shown(one: Envelope | Delta) -> str:
    return f"seq {one.seq}" if isinstance(one, Envelope) else f"delta {one.number}"


async def take(following: AsyncGenerator[Envelope | Delta], number: int) -> list[str]:
    return [shown(await anext(following)) for _ in range(number)]


@asynccontextmanager
async def followed(log: Log, output: InProcessLiveOutput) -> AsyncGenerator[AsyncGenerator[Envelope | Delta]]:
    """A log with deltas, from its first envelope on; nothing is left of it when it is closed."""
    async with aclosing(log.follow()) as envelopes, aclosing(with_deltas(envelopes, output, PROD)) as following:
        log.grow(1)
        assert await take(following, 1) == ["seq 1"]
        yield following
    assert (log.is_closed, len(output)) == (True, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_envelopes_and_deltas_come_as_they_come() -> None:
    log, output = Log(), InProcessLiveOutput()
    async with followed(log, output) as following:
        output.send(PROD, delta(1))
        assert await take(following, 1) == ["delta 1"]
        waiting = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0)
        assert not waiting.done()
        log.grow(2)
        assert shown(await waiting) == "seq 2"


async def test_what_was_said_before_an_envelope_was_there_comes_before_it() -> None:
    log, output = Log(), InProcessLiveOutput()
    async with followed(log, output) as following:
        for number in range(1, 4):
            output.send(PROD, delta(number))
        log.grow(2)

        assert await take(following, 4) == ["delta 1", "delta 2", "delta 3", "seq 2"]


async def test_deltas_without_end_keep_back_no_envelope_and_envelopes_no_delta() -> None:
    log, output = Log(), InProcessLiveOutput(5)
    async with followed(log, output) as following:
        taken: list[str] = []
        for number in range(1, 101):
            output.send(PROD, delta(number))
            log.grow(number + 1)
            taken += await take(following, 1)
            await asyncio.sleep(0)

    seqs = [one for one in taken if one.startswith("seq")]
    assert seqs == [f"seq {number}" for number in range(2, len(seqs) + 2)]
    assert 40 <= len(seqs) <= 60


async def test_a_log_that_cannot_be_read_ends_it_as_it_ends_without_deltas() -> None:
    log, output = Log(), InProcessLiveOutput()
    async with followed(log, output) as following:
        log.fail(OSError("the disk is gone"))
        with pytest.raises(OSError, match="the disk is gone"):
            await anext(following)


async def test_who_is_cancelled_while_it_waits_leaves_nothing_at_work() -> None:
    log, output, begun = Log(), InProcessLiveOutput(), asyncio.Event()

    async def follow() -> None:
        async with followed(log, output) as following:
            begun.set()
            await anext(following)

    waiting = asyncio.create_task(follow())
    await begun.wait()
    waiting.cancel()
    await asyncio.wait([waiting])

    assert waiting.cancelled()
    assert (log.is_closed, len(output)) == (True, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
