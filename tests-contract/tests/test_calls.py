"""Each call of the state machine does to a storage what it does to the model, and both answer the same."""

from collections.abc import Collection, Sequence
from datetime import timedelta

import pytest

from reflexr.contracts import samples
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
    without_collisions,
)
from reflexr.contracts.model import REFUSED, Entry, ModelWorkspace
from reflexr.contracts.samples import ALPHA, BETA, START, WORKSPACE, at, run_scope
from reflexr.core import Run
from reflexr.workspace import InMemoryStorage, ManualClock, StateChanges, run_lease

LEASE = run_lease("r0")
MINUTE = timedelta(minutes=1)
ARMED, MARKED = samples.armed(at(60)), samples.marked(None)
PENDING, RUNNING = samples.run("r0", scope="x"), samples.run("r1", BETA, "running", scope="y", seq=2)
BESIDE = samples.run("r2", BETA, "running", scope="y", seq=3)
RULE = SaveStored(ALPHA, 1, is_active=True, is_enabled=True, is_ordered=True, is_blocking=True)
TURNS = [{run_scope(ALPHA, "x"): "r0", run_scope(BETA, "y"): "r1"}] * 2


CASES: list[tuple[list[Call], list[object]]] = [
    (
        [Append(("a", "b"), ALPHA), Append(("c",), BETA)],
        [[Entry(1, "a", ALPHA), Entry(2, "b", ALPHA)], [Entry(3, "c", BETA)]],
    ),
    (
        [Append(("a",), ALPHA), Append(("b", "a"), ALPHA), Append(("c", "c"), ALPHA)],
        [[Entry(1, "a", ALPHA)], REFUSED, REFUSED],
    ),
    (
        [Append(("a",), ALPHA), SaveProgress(samples.progress(ALPHA, 6))],
        [[Entry(1, "a", ALPHA)], [(ALPHA, samples.progress(ALPHA, 1))]],
    ),
    (
        [
            ChangeStates(ALPHA, StateChanges({"[1]": MARKED, "[2]": ARMED}, frozenset(), None)),
            ChangeStates(ALPHA, StateChanges({}, frozenset({"[1]"}), None)),
            ClearStates(ALPHA),
            ClearStates(BETA),
        ],
        [
            [{"[1]": MARKED, "[2]": ARMED}, {"[1]": MARKED, "[2]": ARMED}, {"[2]": ARMED}],
            [{"[2]": ARMED}] * 3,
            {ALPHA: {}, BETA: {}},
            {ALPHA: {}, BETA: {}},
        ],
    ),
    ([SaveRuns((PENDING, RUNNING)), SaveRuns((BESIDE,))], [([RUNNING, PENDING], TURNS)] * 2),
    ([AddDeadLetter(ALPHA, 1)], [None]),
    ([RULE, RULE], [None, REFUSED]),
    ([Tick("daily", at(2)), Tick("daily", at(1))], [[("daily", at(2))]] * 2),
    (
        [Acquire(frozenset({LEASE}), "first", MINUTE), Acquire(frozenset({LEASE}), "second", MINUTE)],
        [frozenset({LEASE}), frozenset()],
    ),
    (
        [
            Acquire(frozenset({LEASE}), "first", MINUTE),
            Release(frozenset({LEASE}), "second"),
            Release(frozenset({LEASE}), "first"),
        ],
        [frozenset({LEASE}), {LEASE: "first"}, {}],
    ),
]
"""What to call, and what is answered."""


async def answers(calls: Sequence[Call]) -> list[object]:
    """What a storage answers, in one transaction; the model has to answer the same."""
    model = ModelWorkspace()
    async with InMemoryStorage(clock=ManualClock(START)).transaction(WORKSPACE) as transaction:
        answered = [await call.call(transaction) for call in calls]
    assert [call.imagine(model, START) for call in calls] == answered
    return answered


@pytest.mark.parametrize(("calls", "expected"), CASES)
async def test_a_call_is_answered_by_a_storage_as_by_the_model(calls: Sequence[Call], expected: list[object]) -> None:
    assert await answers(calls) == expected


async def test_an_append_that_is_all_that_happens_is_answered_as_one_beside_others() -> None:
    storage = InMemoryStorage()
    append = Append(("a", "b"), ALPHA)
    assert await append.call_alone(storage, WORKSPACE) == [Entry(1, "a", ALPHA), Entry(2, "b", ALPHA)]
    assert await append.call_alone(storage, WORKSPACE) == REFUSED


def test_a_stored_rule_is_what_was_drawn_of_it() -> None:
    model = ModelWorkspace()
    SaveStored(ALPHA, 1, is_active=False, is_enabled=False, is_ordered=False, is_blocking=False).imagine(model, START)
    saved = model.stored[ALPHA]
    assert not saved.active
    assert (saved.rule.enabled, saved.rule.ordering, saved.rule.on_dead_letter) == (False, "none", "continue")


@pytest.mark.parametrize(
    ("running", "kept"),
    [([], [PENDING, RUNNING]), ([RUNNING], [PENDING, RUNNING]), ([BESIDE], [PENDING])],
)
def test_of_two_runs_that_would_run_in_one_scope_the_first_is_kept(
    running: Collection[Run], kept: Sequence[Run]
) -> None:
    assert without_collisions([PENDING, RUNNING, BESIDE], [*running])[: len(kept)] == kept
