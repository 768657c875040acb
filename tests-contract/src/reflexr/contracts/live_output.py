"""`LiveOutputContract`: everything that `LiveOutput` promises."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from itertools import accumulate
from typing import ClassVar, Final, override

from reflexr.contracts.comparisons import first_difference
from reflexr.contracts.contract import Contract, guarantee
from reflexr.core import Delta
from reflexr.workspace import DeltaListener, LiveOutput, WorkspaceRef

ONE: Final = WorkspaceRef("contract-tenant", "one")
TWO: Final = WorkspaceRef("contract-tenant", "two")
ELSEWHERE: Final = WorkspaceRef("another-tenant", "one")


class LiveOutputContract(Contract[LiveOutput]):
    """Everything that `LiveOutput` promises, one guarantee a test.

    Derive a class named `Test…` and override `live_output`.

    Attributes:
        many: How many deltas are more than wait for any listener.
    """

    many: ClassVar[int] = 20_000

    def live_output(self) -> AbstractAsyncContextManager[LiveOutput]:
        """Opens a live output to which nobody listens. This is the factory to override."""
        raise self.missing("live_output")

    @override
    @asynccontextmanager
    async def trial(self) -> AsyncGenerator[LiveOutput]:
        async with self.live_output() as live_output:
            yield live_output

    @guarantee()
    async def test_a_listener_takes_what_is_said_as_it_is(self, trial: LiveOutput) -> None:
        """A listener takes the deltas that are sent to its workspace, in their order and with all of their fields."""
        said = [
            _delta(1),
            _delta(2).model_copy(update={"kind": "tool_call", "tool": "look", "part": 7, "text": '{"é": "\\u0000𝄞\n'}),
            _delta(3).model_copy(update={"text": "x" * 1_000, "attempt": 2, "lost": 4}),
        ]
        with trial.listen(ONE) as listener:
            for delta in said:
                trial.send(ONE, delta)
            assert await _taken(listener, 3, self.soon) == said

    @guarantee()
    async def test_a_listener_hears_of_no_other_workspace(self, trial: LiveOutput) -> None:
        """A listener is told nothing of another workspace, nor of another tenant's of the same name."""
        with trial.listen(ONE) as listener:
            trial.send(TWO, _delta(1))
            trial.send(ELSEWHERE, _delta(2))
            trial.send(ONE, _delta(3))
            assert await _taken(listener, 1, self.soon) == [_delta(3)]

    @guarantee()
    async def test_who_waits_is_told(self, trial: LiveOutput) -> None:
        """Somebody who waits already is told what is said then, and nothing twice."""
        with trial.listen(ONE) as listener:
            for number in (1, 2):
                waiting = asyncio.create_task(_taken(listener, 1, self.soon))
                await asyncio.sleep(0)
                trial.send(ONE, _delta(number))
                assert await waiting == [_delta(number)]

    @guarantee()
    async def test_a_take_that_is_cancelled_forgets_nothing(self, trial: LiveOutput) -> None:
        """What was said while a take was cancelled is told to the next one."""
        with trial.listen(ONE) as listener:
            taking = asyncio.create_task(listener.take())
            await asyncio.sleep(0)
            trial.send(ONE, _delta(1))
            taking.cancel()
            await asyncio.wait([taking])
            assert taking.cancelled()
            assert await _taken(listener, 1, self.soon) == [_delta(1)]

    @guarantee()
    async def test_every_listener_is_told(self, trial: LiveOutput) -> None:
        """Each of several listeners is told everything; one that takes it takes nothing from another."""
        with trial.listen(ONE) as first, trial.listen(ONE) as second:
            trial.send(ONE, _delta(1))
            assert [await _taken(one, 1, self.soon) for one in (first, second)] == [[_delta(1)]] * 2

    @guarantee()
    async def test_a_listener_that_left_takes_nothing_from_others(self, trial: LiveOutput) -> None:
        """Where one of two listeners ends, the other goes on hearing; where both end, sending goes on working."""
        with trial.listen(ONE) as staying:
            with trial.listen(ONE):
                pass
            trial.send(ONE, _delta(1))
            assert await _taken(staying, 1, self.soon) == [_delta(1)]
        trial.send(ONE, _delta(2))
        with trial.listen(ONE) as listener:
            trial.send(ONE, _delta(3))
            assert await _taken(listener, 1, self.soon) == [_delta(3)]

    @guarantee()
    async def test_where_somebody_listens_it_is_heard(self, trial: LiveOutput) -> None:
        """A workspace to which somebody listens is one that is heard."""
        with trial.listen(ONE), trial.listen(TWO):
            assert trial.is_heard(ONE)
            assert trial.is_heard(TWO)

    @guarantee()
    async def test_a_listener_that_falls_behind_loses_the_oldest_and_is_told_how_many(self, trial: LiveOutput) -> None:
        """Of more than has room the newest are kept, in their order, and each says how many were lost before it."""
        taken: list[Delta] = []
        with trial.listen(ONE) as listener:
            for number in range(1, self.many + 1):
                trial.send(ONE, _delta(number))
            while not taken or taken[-1].number < self.many:
                taken += await _taken(listener, 1, self.soon)
        assert len(taken) < self.many
        numbers = (delta.number for delta in taken)
        assert first_difference(numbers, accumulate(1 + delta.lost for delta in taken)) is None


def _delta(number: int) -> Delta:
    return Delta(run_id="fir_1", rule="contract:a", attempt=1, number=number, kind="text", part=0, text=f"{number}")


async def _taken(listener: DeltaListener, number: int, soon: timedelta) -> list[Delta]:
    """Takes so many deltas, in however many answers."""
    taken: list[Delta] = []
    async with asyncio.timeout(soon.total_seconds()):
        while len(taken) < number:
            taken += await listener.take()
    return taken
