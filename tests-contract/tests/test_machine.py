"""The state machine by itself: what it draws, and what it does with each step."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, override

import pytest
from hypothesis import find, given, settings

from reflexr.contracts import Feature, machine, samples
from reflexr.contracts.calls import (
    Acquire,
    AddDeadLetter,
    Append,
    Call,
    ChangeStates,
    ClearStates,
    Release,
    SaveProgress,
    SaveRuns,
    SaveStored,
    Tick,
)
from reflexr.contracts.machine import WORKSPACES, ModelContract, StorageMachine
from reflexr.contracts.model import Share
from reflexr.contracts.samples import ALPHA, BETA, HOUR, START
from reflexr.core import Run, RunStatus
from reflexr.workspace import (
    Deadline,
    InMemoryStorage,
    LogWindow,
    ManualClock,
    RunPolicy,
    RunQuery,
    Storage,
    Watch,
    WorkspaceRef,
    run_lease,
)

HERE, THERE = WORKSPACES
LEASE = run_lease("r0")
MINUTE = timedelta(minutes=1)
DRAWN: Any = machine
"""What a sequence is drawn from is nobody's to use but the machine's."""


class Unmovable(ModelContract):
    """Over a storage that goes by the system's clock."""

    examples: ClassVar[int] = 2
    steps: ClassVar[int] = 1

    def __init__(self) -> None:
        self.closed = 0

    @override
    @asynccontextmanager
    async def storage(self, clock: ManualClock) -> AsyncGenerator[Storage]:
        yield self.opened(clock)
        self.closed += 1

    def opened(self, clock: ManualClock) -> Storage:
        return InMemoryStorage()


class Movable(Unmovable):
    """Over a storage whose clock a test moves."""

    features: ClassVar[frozenset[Feature]] = frozenset({Feature.MOVABLE_CLOCK})

    @override
    def opened(self, clock: ManualClock) -> Storage:
        return InMemoryStorage(clock=clock)


class Boastful(Unmovable):
    """Over a storage that says that cursors came further than they did."""

    class Boasting(InMemoryStorage):
        @override
        async def save_cursor(self, workspace: WorkspaceRef, name: str, seq: int) -> int:
            return await super().save_cursor(workspace, name, seq) + 1

    @override
    def opened(self, clock: ManualClock) -> Storage:
        return self.Boasting()


class Hasty(Unmovable):
    """Over a storage that never lets anybody wait."""

    class Hurrying(InMemoryStorage):
        @override
        async def next_due(self, policy: RunPolicy) -> timedelta | None:
            return timedelta()

    @override
    def opened(self, clock: ManualClock) -> Storage:
        return self.Hurrying()


class Unopened(Unmovable):
    """Over a storage that cannot be opened."""

    @override
    def opened(self, clock: ManualClock) -> Storage:
        raise ConnectionError("the server is down")


def look(trial: StorageMachine) -> None:
    """Asks everything that can be asked."""
    trial.look(
        window=LogWindow(),
        query=RunQuery(),
        policy=RunPolicy(unordered=frozenset({ALPHA, BETA})),
        watch=Watch(samples.definitions(ALPHA)),
        deadlines={"daily": Deadline(START)},
    )


def drawing() -> settings:
    return settings(database=None, derandomize=True, deadline=None)


# --- What is drawn


@pytest.mark.parametrize(
    "kind",
    [Append, SaveProgress, ChangeStates, ClearStates, SaveRuns, AddDeadLetter, SaveStored, Tick, Acquire, Release],
)
def test_every_kind_of_call_is_drawn(kind: type[Call]) -> None:
    def is_of_the_kind(call: Call) -> bool:
        return isinstance(call, kind)

    assert find(DRAWN._calls, is_of_the_kind, settings=drawing())


@pytest.mark.parametrize(
    "status", ["pending", "running", "retrying", "paused", "succeeded", "dead_lettered", "cancelled"]
)
def test_runs_are_drawn_in_every_status_in_which_a_run_could_be(status: RunStatus) -> None:
    def is_in_it(run: Run) -> bool:
        return run.status == status

    assert is_in_it(find(DRAWN._runs, is_in_it, settings=drawing()))


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("has_an_end", [False, True])
def test_paused_runs_are_drawn_of_every_kind(blocks: bool, has_an_end: bool) -> None:
    def is_of_it(run: Run) -> bool:
        waiting = run.waiting
        return waiting is not None and (waiting.until is not None) == has_an_end and waiting.blocks == blocks

    assert is_of_it(find(DRAWN._runs, is_of_it, settings=settings(drawing(), max_examples=1_000)))


@pytest.mark.parametrize("kinds", [("unordered", "ordered"), ("ordered", "blocking"), ("stored",)])
def test_policies_are_drawn_of_every_kind_of_rule(kinds: tuple[str, ...]) -> None:
    def has_them(policy: RunPolicy) -> bool:
        return all(getattr(policy, kind) for kind in kinds)

    assert has_them(find(DRAWN._policies, has_them, settings=drawing()))


@drawing()
@given(DRAWN._policies)
def test_a_policy_that_is_drawn_names_a_rule_once(policy: RunPolicy) -> None:
    assert not policy.unordered & policy.ordered
    assert policy.blocking <= policy.ordered
    assert not (policy.stored and policy.unordered | policy.ordered)


@drawing()
@given(DRAWN._watches)
def test_a_watch_that_is_drawn_is_for_rules_of_the_application_or_for_stored_ones(watch: Watch) -> None:
    assert not (watch.definitions and watch.stored)


# --- What is done with it


@pytest.mark.parametrize("contract", [Movable(), Unmovable()])
def test_every_step_is_one_that_storages_answer_as_the_model_does(contract: ModelContract) -> None:
    trial = StorageMachine(contract)
    trial.transaction(HERE, [Append(("a",), ALPHA), SaveRuns((samples.run("r0"),))], is_kept=True)
    trial.transaction(THERE, [Append(("a",), ALPHA)], is_kept=False)
    for _ in range(2):
        trial.append_alone(HERE, Append(("b",), BETA))
    trial.go_on_with_runs(HERE, SaveRuns((samples.run("r0", status="running"), samples.run("r1", status="paused"))))
    look(trial)
    trial.look_for_runs(RunPolicy(unordered=frozenset({ALPHA})), Share(2, after=HERE))
    for minutes in (1, 5):
        trial.pass_time(minutes)
    for what in ("acquire", "renew", "release"):
        trial.lease(HERE, what, frozenset({LEASE}), "first", 5 * MINUTE)
    for seq in (2, 1):
        trial.save_cursor(HERE, "mirror", seq)
    look(trial)
    trial.teardown()


@pytest.mark.parametrize("contract", [Movable(), Unmovable()])
def test_what_waits_for_a_time_to_come_waits_as_long_as_the_model_says(contract: ModelContract) -> None:
    trial = StorageMachine(contract)
    later = datetime.now(UTC) + HOUR
    retried = samples.run("r0", status="retrying", retry_at=later)
    paused = samples.run("r1", BETA, "paused", until=later)
    for waiting in (retried, paused):
        trial.transaction(HERE, [SaveRuns((waiting,))], is_kept=True)
        look(trial)
    trial.teardown()


def test_how_long_to_wait_is_not_asked_where_runs_of_stored_rules_are_withheld() -> None:
    contract = Hasty()
    trial = StorageMachine(contract)
    trial.look_for_runs(RunPolicy(stored=frozenset({"contract"}), withheld=frozenset({ALPHA})), Share(1))
    with pytest.raises(AssertionError):
        trial.look_for_runs(RunPolicy(stored=frozenset({"contract"})), Share(1))
    with pytest.raises(AssertionError):
        trial.teardown()
    assert contract.closed == 1


def test_a_time_that_can_be_moved_goes_on_by_as_much_as_is_drawn() -> None:
    trial = StorageMachine(Movable())
    trial.transaction(HERE, [Acquire(frozenset({LEASE}), "first", 3 * MINUTE)], is_kept=True)
    trial.pass_time(4)
    trial.lease(HERE, "acquire", frozenset({LEASE}), "second", MINUTE)
    trial.transaction(HERE, [Release(frozenset(), "second")], is_kept=True)
    trial.teardown()


def test_an_answer_that_is_not_the_models_is_noticed_at_its_step() -> None:
    contract = Boastful()
    trial = StorageMachine(contract)
    with pytest.raises(AssertionError):
        trial.save_cursor(HERE, "mirror", 1)
    trial.teardown()
    assert contract.closed == 1


def test_a_storage_that_cannot_be_opened_fails_with_what_kept_it_from_that() -> None:
    with pytest.raises(ConnectionError, match="the server is down"):
        StorageMachine(Unopened())


def test_the_guarantee_tries_as_many_sequences_as_it_is_told() -> None:
    contract = Movable()
    contract.test_a_storage_answers_as_a_model_does()
    assert contract.closed == contract.examples
    assert contract.hypothesis().stateful_step_count == contract.steps
