"""Each promise of command results and of wake-ups is noticed when it is broken."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, ClassVar, override

import pytest

from reflexr.contracts import CommandResultsContract, Contract, Feature, WakeupsContract
from reflexr.core import CommandResult
from reflexr.workspace import (
    CommandKey,
    CommandResults,
    InMemoryCommandResults,
    InProcessWakeups,
    Listener,
    Wakeups,
    WorkspaceRef,
)

from .timeless import TimelessLoop

# --- Command results


class ResultsContract(CommandResultsContract):
    """Over an adapter that a test names, which two processes share."""

    features: ClassVar[frozenset[Feature]] = frozenset(Feature)

    def __init__(self, kind: type[InMemoryCommandResults]) -> None:
        self.kind = kind

    @override
    @asynccontextmanager
    async def results(self) -> AsyncGenerator[CommandResults]:
        yield self.kind()

    @override
    @asynccontextmanager
    async def beside(self, results: CommandResults) -> AsyncGenerator[CommandResults]:
        yield self.kind() if self.kind is KeepsToItself else results

    @override
    def event_loop(self) -> asyncio.AbstractEventLoop:
        return TimelessLoop()


class KeepsToItself(InMemoryCommandResults):
    """Of two processes none knows what the other does."""


class ForgetsResults(InMemoryCommandResults):
    def __init__(self) -> None:
        super().__init__(max_results=0)


class ClaimsForEverybody(InMemoryCommandResults):
    def __init__(self) -> None:
        super().__init__()
        self.finished: dict[CommandKey, CommandResult] = {}

    @override
    async def claim(self, key: CommandKey) -> CommandResult | None:
        return self.finished.get(key)

    @override
    async def finish(self, key: CommandKey, result: CommandResult) -> None:
        self.finished[key] = result

    @override
    async def abandon(self, key: CommandKey) -> None:
        self.finished.pop(key, None)


class NeverGivesUp(InMemoryCommandResults):
    @override
    async def abandon(self, key: CommandKey) -> None:
        """Keeps the claim."""


class LooksAtIdsOnly(InMemoryCommandResults):
    """Tells commands apart by nothing else, and cuts that off."""

    @override
    async def claim(self, key: CommandKey) -> CommandResult | None:
        return await super().claim(self.cut(key))

    @override
    async def finish(self, key: CommandKey, result: CommandResult) -> None:
        await super().finish(self.cut(key), result)

    @override
    async def abandon(self, key: CommandKey) -> None:
        await super().abandon(self.cut(key))

    def cut(self, key: CommandKey) -> CommandKey:
        return CommandKey(WorkspaceRef("", ""), "", key.command_id)


class ChangesResults(InMemoryCommandResults):
    @override
    async def finish(self, key: CommandKey, result: CommandResult) -> None:
        rejection: Any = getattr(result, "rejection", None)
        if rejection is not None:
            result = result.model_copy(update={"rejection": rejection.model_copy(update={"message": "refused"})})
        await super().finish(key, result)


class ClaimsForTheCancelled(InMemoryCommandResults):
    """Gives the claim to somebody who was called off."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[CommandKey] = set()

    @override
    async def claim(self, key: CommandKey) -> CommandResult | None:
        if key in self.taken:
            await asyncio.Event().wait()
        try:
            await asyncio.sleep(0)
            return await super().claim(key)
        except asyncio.CancelledError:
            self.taken.add(key)
            raise


class ClaimsAlready(InMemoryCommandResults):
    """Has a claim on everything from the beginning."""

    @override
    async def claim(self, key: CommandKey) -> CommandResult | None:
        await asyncio.Event().wait()


# --- Wake-ups


class ListenerContract(WakeupsContract):
    """Over an adapter that a test names, which two processes share."""

    features: ClassVar[frozenset[Feature]] = frozenset(Feature)

    def __init__(self, kind: type[InProcessWakeups]) -> None:
        self.kind = kind

    @override
    @asynccontextmanager
    async def wakeups(self) -> AsyncGenerator[Wakeups]:
        yield self.kind()

    @override
    @asynccontextmanager
    async def beside(self, wakeups: Wakeups) -> AsyncGenerator[Wakeups]:
        yield self.kind() if self.kind is WakesItsOwn else wakeups

    @override
    def event_loop(self) -> asyncio.AbstractEventLoop:
        return TimelessLoop()


class WakesItsOwn(InProcessWakeups):
    """Of two processes none hears the other."""


class WakesNobody(InProcessWakeups):
    @override
    def announce(self, workspaces: Collection[WorkspaceRef]) -> None:
        """Says nothing."""


class WakesForTheFirst(InProcessWakeups):
    @override
    def announce(self, workspaces: Collection[WorkspaceRef]) -> None:
        super().announce(list(workspaces)[:1])


class WakesForSomething(InProcessWakeups):
    @override
    def announce(self, workspaces: Collection[WorkspaceRef]) -> None:
        super().announce(workspaces or [WorkspaceRef("", "")])


class PollsAllTheTime(InProcessWakeups):
    @property
    @override
    def poll_interval(self) -> timedelta | None:
        return timedelta()


class Changed(InProcessWakeups):
    """Listens with listeners of another kind."""

    @contextmanager
    @override
    def listen(self, workspace: WorkspaceRef | None = None) -> Generator[Listener]:
        with super().listen(workspace) as listener:
            yield self.changed(listener)

    def changed(self, listener: Listener) -> Listener:
        return listener


class Passing:
    """A listener that passes on what another hears."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    async def wait(self, at_most: timedelta | None = None) -> frozenset[WorkspaceRef]:
        return await self.listener.wait(at_most)


class HearsWhileItWaits(Changed):
    class Deaf(Passing):
        @override
        async def wait(self, at_most: timedelta | None = None) -> frozenset[WorkspaceRef]:
            await self.listener.wait(timedelta())
            return await self.listener.wait(at_most)

    @override
    def changed(self, listener: Listener) -> Listener:
        return self.Deaf(listener)


class ForgetsWhenCancelled(Changed):
    class Forgetful(Passing):
        @override
        async def wait(self, at_most: timedelta | None = None) -> frozenset[WorkspaceRef]:
            try:
                return await self.listener.wait(at_most)
            except asyncio.CancelledError:
                await self.listener.wait(timedelta())
                raise

    @override
    def changed(self, listener: Listener) -> Listener:
        return self.Forgetful(listener)


class WaitsForEver(Changed):
    class Patient(Passing):
        @override
        async def wait(self, at_most: timedelta | None = None) -> frozenset[WorkspaceRef]:
            return await self.listener.wait()

    @override
    def changed(self, listener: Listener) -> Listener:
        return self.Patient(listener)


class TellsEverything(InProcessWakeups):
    @contextmanager
    @override
    def listen(self, workspace: WorkspaceRef | None = None) -> Generator[Listener]:
        with super().listen() as listener:
            yield listener


class HasOneListener(InProcessWakeups):
    """The last one who came."""

    latest: Listener | None = None

    @contextmanager
    @override
    def listen(self, workspace: WorkspaceRef | None = None) -> Generator[Listener]:
        with InProcessWakeups.listen(self, workspace) as listener:
            shared = self.latest = self.latest or listener
            try:
                yield shared
            finally:
                self.latest = None


type Broken = tuple[type[Any], set[str]]

BROKEN_RESULTS: list[Broken] = [
    (
        KeepsToItself,
        {"a_result_is_that_of_every_process", "who_asks_meanwhile_in_another_process_gets_the_first_result"},
    ),
    (
        ForgetsResults,
        {
            "a_result_comes_back_as_it_was",
            "a_result_is_remembered",
            "a_result_is_that_of_every_process",
            "commands_are_told_apart_by_all_of_their_key",
        },
    ),
    (
        ClaimsForEverybody,
        {
            "a_claim_that_is_given_up_goes_to_one_who_waits",
            "of_many_who_ask_at_once_one_gets_the_claim",
            "who_asks_meanwhile_gets_the_first_result",
            "who_asks_meanwhile_in_another_process_gets_the_first_result",
        },
    ),
    (
        NeverGivesUp,
        {
            "a_claim_that_is_given_up_can_be_had_again",
            "a_claim_that_is_given_up_goes_to_one_who_waits",
            "who_is_cancelled_while_waiting_holds_nothing",
        },
    ),
    (LooksAtIdsOnly, {"commands_are_told_apart_by_all_of_their_key"}),
    (ChangesResults, {"a_result_comes_back_as_it_was"}),
    (
        ClaimsForTheCancelled,
        {"who_is_cancelled_while_asking_holds_nothing", "who_is_cancelled_while_waiting_holds_nothing"},
    ),
    (
        ClaimsAlready,
        {
            "a_claim_that_is_given_up_can_be_had_again",
            "a_claim_that_is_given_up_goes_to_one_who_waits",
            "a_result_comes_back_as_it_was",
            "a_result_is_remembered",
            "a_result_is_that_of_every_process",
            "commands_are_told_apart_by_all_of_their_key",
            "of_many_who_ask_at_once_one_gets_the_claim",
            "the_first_who_asks_gets_the_claim",
            "who_asks_meanwhile_gets_the_first_result",
            "who_asks_meanwhile_in_another_process_gets_the_first_result",
            "who_is_cancelled_while_asking_holds_nothing",
            "who_is_cancelled_while_waiting_holds_nothing",
        },
    ),
]
BROKEN_WAKEUPS: list[Broken] = [
    (WakesItsOwn, {"a_listener_of_another_process_is_woken"}),
    (
        WakesNobody,
        {
            "a_listener_hears_of_its_workspace",
            "a_listener_hears_of_no_other_workspace",
            "a_listener_of_all_hears_of_every_workspace",
            "a_listener_of_another_process_is_woken",
            "a_listener_that_left_takes_nothing_from_others",
            "a_wait_ends_when_its_time_is_over",
            "a_wait_that_is_cancelled_forgets_nothing",
            "every_listener_is_woken",
            "what_is_announced_between_two_waits_is_kept",
            "who_waits_is_woken",
        },
    ),
    (WakesForTheFirst, {"a_listener_hears_of_no_other_workspace", "a_listener_of_all_hears_of_every_workspace"}),
    (WakesForSomething, {"announcing_nothing_wakes_nobody"}),
    (PollsAllTheTime, {"the_poll_interval_is_a_time"}),
    (
        HearsWhileItWaits,
        {
            "a_listener_hears_of_its_workspace",
            "a_listener_hears_of_no_other_workspace",
            "a_listener_of_all_hears_of_every_workspace",
            "a_listener_of_another_process_is_woken",
            "a_listener_that_left_takes_nothing_from_others",
            "a_wait_ends_when_its_time_is_over",
            "a_wait_that_is_cancelled_forgets_nothing",
            "every_listener_is_woken",
            "what_is_announced_between_two_waits_is_kept",
        },
    ),
    (ForgetsWhenCancelled, {"a_wait_that_is_cancelled_forgets_nothing"}),
    (
        WaitsForEver,
        {
            "a_listener_hears_of_no_other_workspace",
            "a_wait_ends_when_its_time_is_over",
            "announcing_nothing_wakes_nobody",
            "what_is_announced_between_two_waits_is_kept",
        },
    ),
    (TellsEverything, {"a_listener_hears_of_no_other_workspace"}),
    (HasOneListener, {"a_listener_of_another_process_is_woken", "every_listener_is_woken"}),
]


def failing(contract: Contract[Any]) -> set[str]:
    names = [name for name in dir(contract) if name.startswith("test_")]
    return {name.removeprefix("test_") for name in names if fails(contract, name)}


def fails(contract: Contract[Any], name: str) -> bool:
    try:
        getattr(contract, name)()
    except BaseException as error:
        # What pytest raises to fail a test is no Exception.
        return not isinstance(error, KeyboardInterrupt)
    return False


@pytest.mark.parametrize(("kind", "guarantees"), BROKEN_RESULTS)
def test_a_broken_promise_of_results_is_noticed(kind: type[InMemoryCommandResults], guarantees: set[str]) -> None:
    assert failing(ResultsContract(kind)) == guarantees


@pytest.mark.parametrize(("kind", "guarantees"), BROKEN_WAKEUPS)
def test_a_broken_promise_of_wakeups_is_noticed(kind: type[InProcessWakeups], guarantees: set[str]) -> None:
    assert failing(ListenerContract(kind)) == guarantees


@pytest.mark.parametrize(
    ("contract", "broken"),
    [(ResultsContract(InMemoryCommandResults), BROKEN_RESULTS), (ListenerContract(InProcessWakeups), BROKEN_WAKEUPS)],
)
def test_every_guarantee_is_one_that_some_adapter_breaks(contract: Contract[Any], broken: list[Broken]) -> None:
    noticed = {guarantee for _, guarantees in broken for guarantee in guarantees}
    assert noticed == {name.removeprefix("test_") for name in dir(contract) if name.startswith("test_")}


@pytest.mark.parametrize("contract", [ResultsContract(InMemoryCommandResults), ListenerContract(InProcessWakeups)])
def test_what_is_shared_and_breaks_nothing_fails_nothing(contract: Contract[Any]) -> None:
    assert failing(contract) == set()
