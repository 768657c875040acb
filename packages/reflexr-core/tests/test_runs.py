from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from itertools import permutations, product
from typing import Any, Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter

from reflexr.core.actors import UserActor
from reflexr.core.conditions import Condition
from reflexr.core.decisions import REACTOR, Firing
from reflexr.core.durations import MAX_DURATION
from reflexr.core.envelopes import Draft
from reflexr.core.errors import NotJsonError
from reflexr.core.facts import Fact
from reflexr.core.filters import On
from reflexr.core.rejections import InvalidState
from reflexr.core.rules import ActionRef, RetryPolicy, Rule
from reflexr.core.runs import (
    ABANDONED,
    TRANSITIONS,
    UNFINISHED,
    Answer,
    Run,
    RunOperation,
    RunStatus,
    Transition,
    Waiting,
    abandon,
    answer,
    cancel,
    checkpoint,
    create_run,
    due,
    expire,
    fail,
    holds,
    pause,
    retry,
    runnable,
    skip,
    start,
    succeed,
)

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
SOON: Final = NOW + timedelta(microseconds=1)
END_OF_TIME: Final = datetime.max.replace(tzinfo=UTC)
ADA: Final = UserActor(id="ada")
POLICY: Final = RetryPolicy(max_attempts=3)
STATUSES: Final[tuple[RunStatus, ...]] = get_args(RunStatus.__value__)
OPERATIONS: Final[tuple[RunOperation, ...]] = get_args(RunOperation.__value__)
FACT: TypeAdapter[Fact] = TypeAdapter(Fact)

ASKED: Final[dict[RunOperation, Callable[[Run], Transition]]] = {
    "start": lambda run: start(run, now=NOW, trace_id="trace"),
    "checkpoint": lambda run: checkpoint(run, attempt=run.attempt, step="look", value={"n": 1}),
    "pause": lambda run: pause(run, attempt=run.attempt, now=NOW, request={"ok": None}, until=NOW),
    "resume": lambda run: answer(run, attempt=run.attempt, now=NOW, value=["yes"], actor=ADA),
    "expire": lambda run: expire(run, now=NOW),
    "succeed": lambda run: succeed(run, attempt=run.attempt, now=NOW, output="done"),
    "fail": lambda run: fail(run, attempt=run.attempt, now=NOW, error="boom", policy=RetryPolicy(max_attempts=99)),
    "dead_letter": lambda run: fail(run, attempt=run.attempt, now=NOW, error="boom", policy=POLICY, permanent=True),
    "cancel": lambda run: cancel(run, now=NOW, actor=ADA, reason="no need"),
    "skip": lambda run: skip(run, now=NOW, actor=ADA),
    "retry": lambda run: retry(run, actor=ADA),
}
"""Every operation, asked for in such a way that nothing but the run's status can refuse it."""


def a_run(status: RunStatus = "pending", **fields: Any) -> Run:
    run = Run(
        id="fir_1",
        rule="ops:spike",
        generation=1,
        scope={"service": "auth"},
        scope_key='["auth"]',
        fired_seq=3,
        fired_at=NOW,
        matched=(1, 2, 3),
        correlation_id="evt_1",
        depth=2,
        status=status,
        attempt=0 if status == "pending" else 1,
        next_attempt_at=NOW if status == "retrying" else None,
        waiting=Waiting(request="sure?", since=NOW, until=NOW) if status == "paused" else None,
    )
    return run.model_copy(update=fields)


def test_a_firing_becomes_a_pending_run_of_the_same_id() -> None:
    firing = Firing(
        id="fir_1",
        rule="ops:spike",
        generation=1,
        scope={"service": "auth"},
        scope_key='["auth"]',
        seq=3,
        ts=NOW,
        matched=(1, 2, 3),
        correlation_id="evt_1",
        depth=2,
    )

    assert create_run(firing) == a_run()


def a_rule(**fields: Any) -> Rule:
    when = Condition(filter=On(types=("ops:error",)))
    return Rule(name="ops:spike", when=when, then=ActionRef(action="page"), **fields)


def fact_of(transition: Transition) -> dict[str, JsonValue]:
    (draft,) = transition.facts
    return draft.payload


@pytest.mark.parametrize(("status", "operation"), list(product(STATUSES, OPERATIONS)))
def test_the_table_says_what_each_operation_makes_of_each_status(status: RunStatus, operation: RunOperation) -> None:
    run = a_run(status)
    before = run.model_dump()

    if operation in TRANSITIONS[status]:
        assert ASKED[operation](run).run.status == TRANSITIONS[status][operation]
    else:
        with pytest.raises(InvalidState, match=f"run 'fir_1', which is '{status}': that takes a run that is"):
            ASKED[operation](run)

    assert run.model_dump() == before


def test_the_table_has_every_status_and_every_operation() -> None:
    assert set(TRANSITIONS) == set(STATUSES)
    assert {operation for row in TRANSITIONS.values() for operation in row} == set(OPERATIONS)
    assert {status for row in TRANSITIONS.values() for status in row.values()} == set(STATUSES)


def test_a_refusal_says_the_status_what_was_asked_and_what_is_allowed() -> None:
    with pytest.raises(InvalidState) as refused:
        skip(a_run("running"), now=NOW, actor=ADA)

    assert str(refused.value) == (
        "cannot skip run 'fir_1', which is 'running': that takes a run that is 'pending' or 'retrying' or "
        "'paused' or 'dead_lettered'; what a 'running' run allows is 'checkpoint' or 'pause' or 'succeed' or 'fail' or "
        "'dead_letter' or 'cancel'"
    )


def test_a_succeeded_run_allows_nothing_any_more() -> None:
    with pytest.raises(InvalidState, match="what a 'succeeded' run allows is nothing any more"):
        retry(a_run("succeeded"), actor=ADA)


@pytest.mark.parametrize("operation", ["checkpoint", "pause", "succeed", "fail", "dead_letter"])
def test_only_the_current_attempt_can_record_what_became_of_it(operation: RunOperation) -> None:
    run = start(start_over(a_run()), now=NOW).run
    stale: dict[str, Callable[[], Transition]] = {
        "checkpoint": lambda: checkpoint(run, attempt=1, step="look", value=None),
        "pause": lambda: pause(run, attempt=1, now=NOW, request=None),
        "succeed": lambda: succeed(run, attempt=1, now=NOW),
        "fail": lambda: fail(run, attempt=1, now=NOW, error="boom", policy=POLICY),
        "dead_letter": lambda: abandon(run, attempt=3, now=NOW, policy=POLICY),
    }

    with pytest.raises(InvalidState, match=r"at attempt [13]: it is running at attempt 2"):
        stale[operation]()


def start_over(run: Run) -> Run:
    """Starts the run and lets the attempt fail."""
    started = start(run, now=NOW).run
    return fail(started, attempt=started.attempt, now=NOW, error="boom", policy=POLICY).run


def test_a_run_names_the_traces_of_its_latest_attempts() -> None:
    run = a_run("retrying", trace_ids=tuple(f"t{number}" for number in range(100)))

    assert start(run, now=NOW, trace_id="t100").run.trace_ids == tuple(f"t{number}" for number in range(1, 101))


def test_starting_begins_the_next_attempt() -> None:
    transition = start(start_over(a_run()), now=NOW + timedelta(seconds=5), trace_id="t2")

    assert transition.run.attempt == 2
    assert transition.run.started_at == NOW + timedelta(seconds=5)
    assert transition.run.trace_ids == ("t2",)
    assert transition.run.next_attempt_at is None
    assert fact_of(transition) == {
        "type": "reflexr:run_started",
        "run_id": "fir_1",
        "rule": "ops:spike",
        "scope": {"service": "auth"},
        "scope_key": '["auth"]',
        "attempt": 2,
    }


def test_a_fact_is_the_reactors_in_the_runs_chain_and_as_deep_as_its_events() -> None:
    (draft,) = start(a_run(), now=NOW).facts

    assert draft.actor == REACTOR
    assert draft.correlation_id == "evt_1"
    assert draft.causation is not None
    assert draft.causation.model_dump() == {"firing_id": "fir_1", "run_id": "fir_1", "depth": 2}


@pytest.mark.parametrize(
    ("operation", "status"),
    [("cancel", "pending"), ("skip", "pending"), ("retry", "dead_lettered"), ("resume", "paused")],
)
def test_what_a_person_does_to_a_run_is_recorded_as_theirs(operation: RunOperation, status: RunStatus) -> None:
    (draft,) = ASKED[operation](a_run(status)).facts

    assert draft.actor == ADA


def test_a_checkpoint_is_what_the_next_attempt_resumes_from() -> None:
    run = start(a_run(), now=NOW).run

    transition = checkpoint(run, attempt=1, step="look", value={"at": [1, None]})
    resumed = start(fail(transition.run, attempt=1, now=NOW, error="boom", policy=POLICY).run, now=NOW).run

    assert fact_of(transition) == {
        "type": "reflexr:run_progressed",
        "run_id": "fir_1",
        "rule": "ops:spike",
        "step": "look",
    }
    assert (resumed.checkpoint, resumed.checkpoints, resumed.step) == ({"at": [1, None]}, 1, "look")


def test_a_run_that_succeeds_after_a_failure_has_its_output_and_no_error() -> None:
    run = start(start_over(a_run()), now=NOW).run

    transition = succeed(run, attempt=2, now=NOW + timedelta(seconds=9), output={"paged": True})

    assert (transition.run.output, transition.run.error, transition.run.reason) == ({"paged": True}, None, None)
    assert transition.run.finished_at == NOW + timedelta(seconds=9)
    assert fact_of(transition) == {
        "type": "reflexr:run_succeeded",
        "run_id": "fir_1",
        "rule": "ops:spike",
        "output": {"paged": True},
    }


def test_an_output_is_copied() -> None:
    output: list[JsonValue] = [1]
    run = succeed(start(a_run(), now=NOW).run, attempt=1, now=NOW, output=output).run
    output.append(2)

    assert run.output == [1]


@pytest.mark.parametrize("value", [float("nan"), [object()], "\ud800", (1,), {1: 2}])
def test_an_output_or_a_checkpoint_that_is_not_json_is_refused(value: Any) -> None:
    run = start(a_run(), now=NOW).run

    with pytest.raises(NotJsonError, match="the output of run 'fir_1'"):
        succeed(run, attempt=1, now=NOW, output=value)
    with pytest.raises(NotJsonError, match="the checkpoint of run 'fir_1'"):
        checkpoint(run, attempt=1, step="look", value=value)


def test_an_output_nests_as_deep_as_its_fact_can_hold() -> None:
    run = start(a_run(), now=NOW).run
    deep: JsonValue = 1
    for _ in range(99):
        deep = [deep]

    assert succeed(run, attempt=1, now=NOW, output=deep).run.output == deep
    with pytest.raises(NotJsonError, match="nests deeper"):
        succeed(run, attempt=1, now=NOW, output=[deep])


def test_a_failed_attempt_is_retried_after_the_back_off() -> None:
    run = start(a_run(), now=NOW).run
    policy = RetryPolicy(backoff=timedelta(seconds=10), multiplier=3, max_backoff=timedelta(seconds=50))

    first = fail(run, attempt=1, now=NOW, error="boom", policy=policy, reason="timed_out")
    second = fail(start(first.run, now=NOW).run, attempt=2, now=NOW, error="boom", policy=policy)
    third = fail(start(second.run, now=NOW).run, attempt=3, now=NOW, error="boom", policy=policy)

    waits = [transition.run.next_attempt_at for transition in (first, second, third)]
    assert waits == [NOW + timedelta(seconds=seconds) for seconds in (10, 30, 50)]
    assert (first.run.error, first.run.reason, first.run.finished_at) == ("boom", "timed_out", None)
    assert fact_of(first) == {
        "type": "reflexr:run_retrying",
        "run_id": "fir_1",
        "rule": "ops:spike",
        "attempt": 1,
        "error": "boom",
        "next_attempt_at": "2026-01-01T00:00:10Z",
        "reason": "timed_out",
    }


def test_a_run_whose_last_attempt_fails_is_dead_lettered() -> None:
    run = start(start_over(start_over(a_run())), now=NOW).run

    transition = fail(run, attempt=3, now=NOW, error="boom", policy=POLICY)

    assert transition.run.status == "dead_lettered"
    assert (transition.run.finished_at, transition.run.next_attempt_at) == (NOW, None)
    assert fact_of(transition) == {
        "type": "reflexr:run_dead_lettered",
        "run_id": "fir_1",
        "rule": "ops:spike",
        "attempts": 3,
        "error": "boom",
        "reason": None,
    }


def test_a_permanent_failure_is_dead_lettered_at_once() -> None:
    run = start(a_run(), now=NOW).run

    transition = fail(run, attempt=1, now=NOW, error="no", policy=POLICY, reason="guardrail_blocked", permanent=True)

    assert (transition.run.status, transition.run.reason) == ("dead_lettered", "guardrail_blocked")


def test_an_abandoned_attempt_counts_as_a_failed_one() -> None:
    run = start(a_run(), now=NOW).run
    policy = RetryPolicy(max_attempts=2)

    first = abandon(run, attempt=1, now=NOW, policy=policy)
    last = abandon(start(first.run, now=NOW).run, attempt=2, now=NOW, policy=policy)

    assert (first.run.status, first.run.reason) == ("retrying", ABANDONED)
    assert (last.run.status, last.run.error) == (
        "dead_lettered",
        "attempt 2 was abandoned: its executor died, lost its lease or was stopped",
    )


@given(
    failed=st.integers(1, 10_000),
    backoff=st.timedeltas(min_value=timedelta(), max_value=MAX_DURATION),
    multiplier=st.floats(1, 1e300),
    max_backoff=st.timedeltas(min_value=timedelta(), max_value=MAX_DURATION),
)
def test_a_back_off_never_overflows_and_never_exceeds_its_maximum(
    failed: int, backoff: timedelta, multiplier: float, max_backoff: timedelta
) -> None:
    policy = RetryPolicy(max_attempts=20_000, backoff=backoff, multiplier=multiplier, max_backoff=max_backoff)
    run = a_run("running", attempt=failed)

    retried = fail(run, attempt=failed, now=NOW, error="boom", policy=policy).run

    assert timedelta() <= policy.delay(failed) <= policy.delay(failed + 1) <= max_backoff
    assert retried.next_attempt_at is not None
    assert retried.next_attempt_at >= NOW


def test_a_run_that_waits_past_the_end_of_time_waits_until_then() -> None:
    policy = RetryPolicy(backoff=MAX_DURATION, max_backoff=MAX_DURATION)

    retried = fail(start(a_run(), now=NOW).run, attempt=1, now=NOW, error="boom", policy=policy).run

    assert retried.next_attempt_at == END_OF_TIME
    assert Run.model_validate_json(retried.model_dump_json()) == retried


def test_a_run_that_waits_without_back_off_never_waits() -> None:
    policy = RetryPolicy(max_attempts=20_000, backoff=timedelta())

    assert policy.delay(10_000) == timedelta()


def test_an_error_that_json_cannot_hold_is_recorded_escaped() -> None:
    run = start(a_run(), now=NOW).run

    transition = fail(run, attempt=1, now=NOW, error="bad \ud800", policy=POLICY, reason="\udfff")

    assert (transition.run.error, transition.run.reason) == ("bad \\ud800", "\\udfff")
    assert Run.model_validate_json(transition.run.model_dump_json()) == transition.run


def test_cancelling_a_running_run_fences_out_what_becomes_of_it() -> None:
    run = start(a_run(), now=NOW).run

    cancelled = cancel(run, now=NOW, actor=ADA, reason="no need").run

    assert (cancelled.reason, cancelled.finished_at) == ("no need", NOW)
    with pytest.raises(InvalidState, match="which is 'cancelled'"):
        succeed(cancelled, attempt=1, now=NOW)
    again = start(retry(cancelled, actor=ADA).run, now=NOW).run
    with pytest.raises(InvalidState, match="at attempt 1: it is running at attempt 2"):
        succeed(again, attempt=1, now=NOW)


def test_a_retried_run_has_a_fresh_count_of_attempts_and_keeps_its_checkpoint() -> None:
    saved = checkpoint(start(a_run(), now=NOW).run, attempt=1, step="look", value=7).run
    dead = fail(saved, attempt=1, now=NOW, error="no", policy=POLICY, permanent=True).run

    transition = retry(dead, actor=ADA)

    assert fact_of(transition) == {"type": "reflexr:run_requeued", "run_id": "fir_1", "rule": "ops:spike"}
    queued = transition.run
    assert (queued.status, queued.error, queued.finished_at, queued.checkpoint) == ("pending", None, None, 7)
    second = start_over(queued)
    assert (second.status, second.attempt, second.next_attempt_at) == ("retrying", 2, NOW + POLICY.delay(1))
    last = start_over(start_over(second))
    assert (last.status, last.attempt) == ("dead_lettered", 4)


def ask_saving(run: Run) -> Transition:
    """Pauses the run as `ASKED` does, and saves a checkpoint with it."""
    return pause(run, attempt=run.attempt, now=NOW, request="sure?", until=NOW, step="ask", value={"n": 2})


@given(st.data())
def test_no_history_of_a_run_uses_a_fence_or_the_id_of_a_fact_twice(data: st.DataObject) -> None:
    run = a_run()
    drafts: list[Draft] = []
    fences: list[int] = []
    counted = 0
    answered: Answer | None = None
    for _ in range(data.draw(st.integers(1, 40), "steps")):
        if not TRANSITIONS[run.status]:
            break
        operation = data.draw(st.sampled_from(sorted(TRANSITIONS[run.status])), "operation")
        saving = operation == "pause" and data.draw(st.booleans(), "saving")
        transition = ask_saving(run) if saving else ASKED[operation](run)
        drafts.extend(transition.facts)
        match operation:
            case "start":
                fences.append(transition.run.attempt)
                counted += 1
            case "pause":
                counted, answered = counted - 1, None
            case "checkpoint" | "cancel" | "skip":
                answered = None
            case "resume":
                answered = Answer(value=["yes"], actor=ADA, at=NOW)
            case "retry":
                counted = 0
            case _:
                pass
        run = transition.run

        assert Run.model_validate_json(run.model_dump_json()) == run
        assert (run.finished_at is None) is run.unfinished
        assert (run.next_attempt_at is not None) is (run.status == "retrying")
        assert (run.waiting is not None) is (run.status == "paused")
        assert run.answer == answered
        assert run.attempt - run.spent == counted

    assert fences == list(range(1, run.attempt + 1))
    assert len({draft.id for draft in drafts}) == len(drafts)
    assert all(FACT.validate_python(draft.payload).payload() == draft.payload for draft in drafts)


def test_the_facts_of_two_runs_have_different_ids() -> None:
    ids = {start(a_run(id=run_id), now=NOW).facts[0].id for run_id in ("fir_1", "fir_2")}

    assert len(ids) == 2


def test_the_same_transition_decided_twice_has_the_same_fact() -> None:
    assert start(a_run(), now=NOW) == start(a_run(), now=NOW)


def test_times_are_kept_in_utc_and_naive_ones_are_refused() -> None:
    oslo = NOW.astimezone(timezone(timedelta(hours=1)))

    assert str(start(a_run(), now=oslo).run.started_at) == "2026-01-01 00:00:00+00:00"
    with pytest.raises(ValueError, match="names no instant: pass an aware datetime"):
        start(a_run(), now=NOW.replace(tzinfo=None))


@pytest.mark.parametrize(("status", "held"), [(status, status in UNFINISHED - {"paused"}) for status in STATUSES])
def test_a_run_holds_back_its_scope_until_it_has_ended_or_pauses(status: RunStatus, held: bool) -> None:
    assert holds(a_run(status), a_rule()) is held
    assert holds(a_run(status), a_rule(ordering="none", on_dead_letter="block")) is False


def test_a_dead_lettered_run_holds_back_its_scope_if_the_rule_says_block() -> None:
    dead = a_run("dead_lettered")

    assert holds(dead, a_rule(on_dead_letter="block"))
    assert not holds(skip(dead, now=NOW, actor=ADA).run, a_rule(on_dead_letter="block"))


def ids(runs: tuple[Run, ...]) -> list[str]:
    return [run.id for run in runs]


FIRST: Final = a_run(id="first", fired_seq=3)
SECOND: Final = a_run(id="second", fired_seq=4)
REFIRED: Final = a_run(id="refired", fired_seq=1, generation=2)


@pytest.mark.parametrize("runs", list(permutations([FIRST, SECOND, REFIRED])))
def test_the_first_run_of_a_scope_starts_in_whatever_order_they_come(runs: tuple[Run, ...]) -> None:
    assert ids(runnable(runs, a_rule(), NOW)) == ["first"]
    assert ids(runnable(runs, a_rule(ordering="none"), NOW)) == ["first", "second", "refired"]


def test_a_run_that_waits_to_retry_holds_back_the_later_ones_until_it_is_due() -> None:
    waiting = FIRST.model_copy(update={"status": "retrying", "next_attempt_at": NOW})

    assert ids(runnable([waiting, SECOND], a_rule(), NOW - timedelta(microseconds=1))) == []
    assert ids(runnable([waiting, SECOND], a_rule(), NOW)) == ["first"]
    assert ids(runnable([waiting, SECOND], a_rule(ordering="none"), NOW - timedelta(seconds=1))) == ["second"]


@pytest.mark.parametrize("ended", ["succeeded", "cancelled", "skipped", "dead_lettered"])
def test_a_run_that_has_ended_lets_the_next_one_start(ended: RunStatus) -> None:
    assert ids(runnable([FIRST.model_copy(update={"status": ended}), SECOND], a_rule(), NOW)) == ["second"]


def test_a_dead_lettered_run_that_blocks_lets_none_start() -> None:
    dead = FIRST.model_copy(update={"status": "dead_lettered"})
    rule = a_rule(on_dead_letter="block")

    assert runnable([dead, SECOND], rule, NOW) == ()
    assert ids(runnable([retry(dead, actor=ADA).run, SECOND], rule, NOW)) == ["first"]
    assert ids(runnable([skip(dead, now=NOW, actor=ADA).run, SECOND], rule, NOW)) == ["second"]


def test_no_run_of_a_scope_starts_beside_a_running_one_even_before_it() -> None:
    running = SECOND.model_copy(update={"status": "running", "attempt": 1})

    assert runnable([FIRST, running], a_rule(), NOW) == ()
    assert ids(runnable([FIRST, running], a_rule(ordering="none"), NOW)) == ["first"]


def test_no_run_of_a_disabled_rule_starts() -> None:
    assert runnable([FIRST], a_rule(enabled=False), NOW) == ()
    assert runnable([FIRST], a_rule(enabled=False, ordering="none"), NOW) == ()


def test_nothing_is_runnable_where_there_is_nothing() -> None:
    assert runnable([], a_rule(), NOW) == ()


@pytest.mark.parametrize("status", STATUSES)
def test_only_a_pending_run_or_one_whose_back_off_is_over_is_due(status: RunStatus) -> None:
    assert due(a_run(status), NOW) is (status in {"pending", "retrying"})
