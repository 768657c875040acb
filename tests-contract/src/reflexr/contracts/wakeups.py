"""`WakeupsContract`: everything that `Wakeups` promises."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, override

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import Contract, guarantee
from reflexr.workspace import Listener, Wakeups, WorkspaceRef

ONE: Final = WorkspaceRef("contract-tenant", "one")
TWO: Final = WorkspaceRef("contract-tenant", "two")
ELSEWHERE: Final = WorkspaceRef("another-tenant", "one")
MOMENT: Final = timedelta(milliseconds=10)
"""How long to listen for what must not come."""


@dataclass(frozen=True, slots=True)
class WakeupsTrial:
    """Wake-ups on trial.

    Attributes:
        wakeups: Nobody listens to them yet.
        open_beside: Opens the wake-ups of another process on the same data.
    """

    wakeups: Wakeups
    open_beside: Callable[[], AbstractAsyncContextManager[Wakeups]]


class WakeupsContract(Contract[WakeupsTrial]):
    """Everything that `Wakeups` promises, one guarantee a test. Derive a class named `Test…` and override `wakeups`."""

    def wakeups(self) -> AbstractAsyncContextManager[Wakeups]:
        """Opens wake-ups to which nobody listens. This is the factory to override."""
        raise self.missing("wakeups")

    def beside(self, wakeups: Wakeups) -> AbstractAsyncContextManager[Wakeups]:
        """Opens the wake-ups that another process would have on the data of those that `wakeups` opened.

        To be overridden by whoever declares `Feature.SHARED_WAKEUPS`.
        """
        raise NotImplementedError(f"{type(self).__name__} declares {Feature.SHARED_WAKEUPS!r}: override beside() too")

    @override
    @asynccontextmanager
    async def trial(self) -> AsyncGenerator[WakeupsTrial]:
        async with self.wakeups() as wakeups:
            yield WakeupsTrial(wakeups, lambda: self.beside(wakeups))

    @guarantee()
    async def test_a_listener_hears_of_its_workspace(self, trial: WakeupsTrial) -> None:
        """A listener of one workspace is woken when it is announced, and told which it is."""
        with trial.wakeups.listen(ONE) as listener:
            trial.wakeups.announce([ONE])
            assert await listener.wait(self.soon) == {ONE}

    @guarantee()
    async def test_a_listener_hears_of_no_other_workspace(self, trial: WakeupsTrial) -> None:
        """A listener of one workspace is not woken for another, nor for another tenant's of the same name."""
        with trial.wakeups.listen(ONE) as listener:
            trial.wakeups.announce([TWO, ELSEWHERE])
            assert await listener.wait(MOMENT) == frozenset()
            trial.wakeups.announce([TWO, ONE])
            assert await listener.wait(self.soon) == {ONE}

    @guarantee()
    async def test_a_listener_of_all_hears_of_every_workspace(self, trial: WakeupsTrial) -> None:
        """A listener of no workspace in particular is woken for each, and told which they are."""
        with trial.wakeups.listen() as listener:
            trial.wakeups.announce([ONE, ELSEWHERE])
            assert await _heard(listener, 2, self.soon) == {ONE, ELSEWHERE}
            trial.wakeups.announce([TWO])
            assert await listener.wait(self.soon) == {TWO}

    @guarantee()
    async def test_who_waits_is_woken(self, trial: WakeupsTrial) -> None:
        """Somebody who waits already is woken by what is announced then."""
        with trial.wakeups.listen(ONE) as listener:
            waiting = asyncio.create_task(listener.wait(self.soon))
            await asyncio.sleep(0)
            trial.wakeups.announce([ONE])
            assert await waiting == {ONE}

    @guarantee()
    async def test_what_is_announced_between_two_waits_is_kept(self, trial: WakeupsTrial) -> None:
        """What is announced while nobody waits is kept for the next wait, and told once however often it was."""
        with trial.wakeups.listen() as listener:
            for _ in range(100):
                trial.wakeups.announce([ONE])
                trial.wakeups.announce([TWO])
            assert await _heard(listener, 2, self.soon) == {ONE, TWO}
            assert await listener.wait(MOMENT) == frozenset()

    @guarantee()
    async def test_a_wait_ends_when_its_time_is_over(self, trial: WakeupsTrial) -> None:
        """A wait during which nothing is announced ends when its time is over, with an empty answer."""
        with trial.wakeups.listen(ONE) as listener:
            assert await listener.wait(MOMENT) == frozenset()
            assert await listener.wait(timedelta()) == frozenset()
            trial.wakeups.announce([ONE])
            assert await listener.wait(self.soon) == {ONE}

    @guarantee()
    async def test_a_wait_that_is_cancelled_forgets_nothing(self, trial: WakeupsTrial) -> None:
        """What was announced before or while a wait was cancelled is told to the next one."""
        with trial.wakeups.listen(ONE) as listener:
            waiting = asyncio.create_task(listener.wait())
            await asyncio.sleep(0)
            trial.wakeups.announce([ONE])
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            assert await listener.wait(self.soon) == {ONE}

    @guarantee()
    async def test_every_listener_is_woken(self, trial: WakeupsTrial) -> None:
        """Each of several listeners hears of everything; one that hears takes nothing from another."""
        with trial.wakeups.listen(ONE) as first, trial.wakeups.listen(ONE) as second, trial.wakeups.listen() as third:
            trial.wakeups.announce([ONE])
            assert [await one.wait(self.soon) for one in (first, second, third)] == [{ONE}] * 3

    @guarantee()
    async def test_a_listener_that_left_takes_nothing_from_others(self, trial: WakeupsTrial) -> None:
        """Where one of two listeners ends, the other goes on hearing; where both end, announcing goes on working."""
        with trial.wakeups.listen(ONE) as staying:
            with trial.wakeups.listen(ONE):
                pass
            trial.wakeups.announce([ONE])
            assert await staying.wait(self.soon) == {ONE}
        trial.wakeups.announce([ONE])
        with trial.wakeups.listen(ONE) as listener:
            trial.wakeups.announce([ONE])
            assert await listener.wait(self.soon) == {ONE}

    @guarantee()
    async def test_announcing_nothing_wakes_nobody(self, trial: WakeupsTrial) -> None:
        """Announcing no workspace wakes nobody."""
        with trial.wakeups.listen() as listener:
            trial.wakeups.announce([])
            assert await listener.wait(MOMENT) == frozenset()

    @guarantee()
    async def test_the_poll_interval_is_a_time(self, trial: WakeupsTrial) -> None:
        """`poll_interval` is a time after which to look without having been woken, or `None` where none is lost."""
        interval = trial.wakeups.poll_interval
        assert interval is None or interval > timedelta()

    @guarantee(Feature.SHARED_WAKEUPS)
    async def test_a_listener_of_another_process_is_woken(self, trial: WakeupsTrial) -> None:
        """What is announced in one process wakes the listeners of another, those of the workspace and those of all."""
        async with trial.open_beside() as other:
            with other.listen(ONE) as mine, other.listen() as every:
                trial.wakeups.announce([ONE])
                assert ONE in await mine.wait(self.soon)
                assert ONE in await every.wait(self.soon)


async def _heard(listener: Listener, count: int, soon: timedelta) -> set[WorkspaceRef]:
    """Waits until so many workspaces were heard of, in however many answers."""
    heard: set[WorkspaceRef] = set()
    while len(heard) < count and (more := await listener.wait(soon)):
        heard |= more
    return heard
