from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from itertools import permutations
from typing import Any, Final, Literal

import pytest
from hypothesis import given
from pydantic import JsonValue

from reflexr.core.errors import NotJsonError
from reflexr.core.rejections import InvalidState
from reflexr.core.rules import RetryPolicy, Rule
from reflexr.core.runs import (
    UNANSWERED,
    Answer,
    Run,
    RunStatus,
    Waiting,
    abandon,
    answer,
    cancel,
    checkpoint,
    due,
    expire,
    fail,
    holds,
    overdue,
    pause,
    retry,
    runnable,
    skip,
    start,
    succeed,
)

from .json_values import NOT_JSON, json_values, nested
from .test_runs import ADA, END_OF_TIME, FIRST, NOW, POLICY, SECOND, SOON, STATUSES, a_rule, a_run, fact_of, ids

type Change = Callable[[Run], Run]


def running(run: Run | None = None) -> Run:
    return start(a_run() if run is None else run, now=NOW).run


def paused(run: Run | None = None, request: JsonValue = "sure?", **options: Any) -> Run:
    """Starts the run, whose attempt asks for something."""
    started = running(run)
    return pause(started, attempt=started.attempt, now=NOW, request=request, **options).run


def answered(run: Run, value: JsonValue = "yes") -> Run:
    return answer(run, now=NOW, value=value, actor=ADA).run


def failed(run: Run) -> Run:
    started = running(run)
    return fail(started, attempt=started.attempt, now=NOW, error="boom", policy=POLICY).run


# --- Asking


def test_a_run_that_pauses_says_what_it_waits_for_and_until_when() -> None:
    later = NOW + timedelta(hours=1)

    transition = pause(running(), attempt=1, now=NOW, request={"delete": [7]}, until=later, blocks=True)

    assert transition.run.status == "paused"
    assert transition.run.unfinished
    assert transition.run.waiting == Waiting(request={"delete": [7]}, since=NOW, until=later, blocks=True)
    assert (transition.run.attempt, transition.run.finished_at, transition.run.next_attempt_at) == (1, None, None)
    assert fact_of(transition) == {
        "type": "reflexr:run_paused",
        "run_id": "fir_1",
        "rule": "ops:spike",
        "attempt": 1,
        "request": {"delete": [7]},
        "until": "2026-01-01T01:00:00Z",
        "step": None,
    }


def test_a_run_waits_for_any_time_and_keeps_no_place_unless_it_is_told_to() -> None:
    transition = pause(running(), attempt=1, now=NOW, request=None)

    assert transition.run.waiting == Waiting(request=None, since=NOW, until=None, blocks=False)
    assert fact_of(transition)["until"] is None


def test_a_run_that_pauses_at_a_step_saves_a_checkpoint_with_it() -> None:
    saved = checkpoint(running(), attempt=1, step="look", value=1).run

    transition = pause(saved, attempt=1, now=NOW, request="sure?", step="ask", value={"at": [2]})

    assert (transition.run.checkpoint, transition.run.checkpoints, transition.run.step) == ({"at": [2]}, 2, "ask")
    assert fact_of(transition)["step"] == "ask"


def test_a_run_that_pauses_at_no_step_keeps_its_last_checkpoint() -> None:
    saved = checkpoint(running(), attempt=1, step="look", value=1).run

    asked = pause(saved, attempt=1, now=NOW, request="sure?").run

    assert (asked.checkpoint, asked.checkpoints, asked.step) == (1, 1, "look")


def test_an_empty_checkpoint_is_saved_too() -> None:
    saved = checkpoint(running(), attempt=1, step="look", value=1).run

    asked = pause(saved, attempt=1, now=NOW, request="sure?", step="ask").run

    assert (asked.checkpoint, asked.checkpoints) == (None, 2)


def test_a_step_that_json_cannot_hold_is_recorded_escaped() -> None:
    transition = pause(running(), attempt=1, now=NOW, request=None, step="ask \ud800")

    assert transition.run.step == fact_of(transition)["step"] == "ask \\ud800"
    assert Run.model_validate_json(transition.run.model_dump_json()) == transition.run


@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
def test_what_json_cannot_hold_is_neither_asked_nor_saved_nor_answered(value: Any, problem: str) -> None:
    run = running()

    with pytest.raises(NotJsonError, match=problem):
        pause(run, attempt=1, now=NOW, request=value)
    with pytest.raises(NotJsonError, match=problem):
        pause(run, attempt=1, now=NOW, request=None, step="ask", value=value)
    with pytest.raises(NotJsonError, match=problem):
        answer(paused(), now=NOW, value=value, actor=ADA)
    assert run == running()


@pytest.mark.parametrize("value", [object(), (1,), {1: 2}, [b""], {"a": NOW}])
def test_what_is_no_json_value_is_refused_by_what_it_was_to_be(value: Any) -> None:
    with pytest.raises(NotJsonError, match="what run 'fir_1' asks is not JSON"):
        pause(running(), attempt=1, now=NOW, request=value)
    with pytest.raises(NotJsonError, match="the checkpoint of run 'fir_1' is not JSON"):
        pause(running(), attempt=1, now=NOW, request=None, step="ask", value=value)
    with pytest.raises(NotJsonError, match="the answer to run 'fir_1' is not JSON"):
        answer(paused(), now=NOW, value=value, actor=ADA)


def test_a_request_and_an_answer_nest_as_deep_as_a_run_can_hold() -> None:
    deep = nested(98)

    asked = paused(request=deep)
    told = answered(asked, deep)

    assert asked.waiting is not None
    assert asked.waiting.request == deep
    assert told.answer == Answer(value=deep, actor=ADA, at=NOW)
    assert Run.model_validate_json(asked.model_dump_json()) == asked
    assert Run.model_validate_json(told.model_dump_json()) == told
    with pytest.raises(NotJsonError, match=r"what run 'fir_1' asks\S* nests deeper"):
        paused(request=[deep])
    with pytest.raises(NotJsonError, match=r"the answer to run 'fir_1'\S* nests deeper"):
        answered(asked, [deep])


@given(json_values)
def test_any_json_value_is_asked_and_answered_and_comes_back(value: JsonValue) -> None:
    asked = pause(running(), attempt=1, now=NOW, request=value, step="ask", value=value)
    told = answer(asked.run, now=NOW, value=value, actor=ADA)

    assert asked.run.waiting is not None
    assert told.run.answer is not None
    assert repr(asked.run.waiting.request) == repr(told.run.answer.value) == repr(fact_of(told)["answer"])
    assert Run.model_validate_json(asked.run.model_dump_json()) == asked.run
    assert Run.model_validate_json(told.run.model_dump_json()) == told.run


def test_a_request_and_an_answer_are_copied() -> None:
    asked: list[JsonValue] = [1]
    told: list[JsonValue] = [2]

    waiting = paused(request=asked)
    ready = answered(waiting, told)
    asked.append(3)
    told.append(4)

    assert waiting.waiting is not None
    assert ready.answer is not None
    assert (waiting.waiting.request, ready.answer.value) == ([1], [2])


@pytest.mark.parametrize("until", [datetime.min.replace(tzinfo=UTC), NOW - timedelta(days=1), NOW, SOON, END_OF_TIME])
def test_a_run_waits_until_whatever_time_it_is_told(until: datetime) -> None:
    asked = paused(until=until)

    assert asked.waiting is not None
    assert asked.waiting.until == until
    assert overdue(asked, NOW) is (until <= NOW)
    assert overdue(asked, END_OF_TIME)
    assert Run.model_validate_json(asked.model_dump_json()) == asked


def test_the_times_of_a_pause_are_kept_in_utc_and_naive_ones_are_refused() -> None:
    oslo, naive = NOW.astimezone(timezone(timedelta(hours=1))), NOW.replace(tzinfo=None)

    asked = pause(running(), attempt=1, now=oslo, request=None, until=oslo).run
    told = answer(asked, now=oslo, value=None, actor=ADA).run

    assert asked.waiting is not None
    assert told.answer is not None
    assert {str(time) for time in (asked.waiting.since, asked.waiting.until, told.answer.at)} == {
        "2026-01-01 00:00:00+00:00"
    }
    assert str(expire(asked, now=oslo).run.finished_at) == "2026-01-01 00:00:00+00:00"
    refused: list[Callable[[], object]] = [
        lambda: pause(running(), attempt=1, now=naive, request=None),
        lambda: pause(running(), attempt=1, now=NOW, request=None, until=naive),
        lambda: answer(asked, now=naive, value=None, actor=ADA),
        lambda: expire(asked, now=naive),
    ]
    for ask in refused:
        with pytest.raises(ValueError, match="names no instant: pass an aware datetime"):
            ask()


# --- Answering


def test_an_answered_run_may_start_again_and_knows_who_said_what() -> None:
    asked = paused(until=NOW)

    transition = answer(asked, now=SOON, value={"ok": True}, actor=ADA, attempt=1)

    assert transition.run.status == "pending"
    assert due(transition.run, NOW)
    assert transition.run.waiting is None
    assert transition.run.answer == Answer(value={"ok": True}, actor=ADA, at=SOON)
    assert fact_of(transition) == {
        "type": "reflexr:run_resumed",
        "run_id": "fir_1",
        "rule": "ops:spike",
        "attempt": 1,
        "answer": {"ok": True},
    }
    assert (running(transition.run).attempt, running(transition.run).answer) == (2, transition.run.answer)


def test_an_answer_that_is_nothing_is_an_answer_all_the_same() -> None:
    assert answered(paused(), None).answer == Answer(value=None, actor=ADA, at=NOW)


def test_an_answer_counts_also_after_its_time_until_somebody_notices() -> None:
    late = NOW + timedelta(days=1)

    assert answer(paused(until=NOW), now=late, value="yes", actor=ADA).run.status == "pending"


@pytest.mark.parametrize("attempt", [1, 3, 0, -1])
def test_only_what_a_run_asks_now_can_be_answered(attempt: int) -> None:
    asked = paused(answered(paused()))

    with pytest.raises(InvalidState) as refused:
        answer(asked, now=NOW, value="yes", actor=ADA, attempt=attempt)

    assert str(refused.value) == (
        f"cannot resume run 'fir_1' with an answer to its attempt {attempt}: what it asks now, its attempt 2 asked"
    )
    assert answer(asked, now=NOW, value="yes", actor=ADA, attempt=2).run.status == "pending"
    assert answer(asked, now=NOW, value="yes", actor=ADA).run.status == "pending"


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "paused"])
def test_what_asks_nothing_is_not_answered_whatever_the_answer(status: RunStatus) -> None:
    refusal = f"cannot resume run 'fir_1', which is '{status}': that takes a run that is 'paused'; what a '{status}'"

    for attempt in (None, 1, 99):
        with pytest.raises(InvalidState, match=refusal):
            answer(a_run(status), now=NOW, value=float("nan"), actor=ADA, attempt=attempt)


def test_a_second_answer_is_refused_and_the_first_one_stands() -> None:
    told = answered(paused())

    with pytest.raises(InvalidState, match="cannot resume run 'fir_1', which is 'pending'"):
        answered(told, "no")
    assert told.answer == Answer(value="yes", actor=ADA, at=NOW)


KEEPS: Final[dict[str, Change]] = {
    "start": running,
    "fail": failed,
    "abandon": lambda run: abandon(running(run), attempt=2, now=NOW, policy=POLICY).run,
    "dead_letter": lambda run: failed(failed(failed(run))),
    "succeed": lambda run: succeed(running(run), attempt=2, now=NOW).run,
}


@pytest.mark.parametrize("change", KEEPS.values(), ids=KEEPS.keys())
def test_an_answer_is_kept_until_what_was_made_of_it_is_saved(change: Change) -> None:
    told = answered(paused())

    assert change(told).answer == told.answer == Answer(value="yes", actor=ADA, at=NOW)


CLEARS: Final[dict[str, Change]] = {
    "cancel": lambda run: cancel(run, now=NOW, actor=ADA).run,
    "cancel and retry": lambda run: retry(cancel(run, now=NOW, actor=ADA).run, actor=ADA).run,
    "skip and retry": lambda run: retry(skip(run, now=NOW, actor=ADA).run, actor=ADA).run,
    "skip what failed for good": lambda run: skip(failed(failed(failed(run))), now=NOW, actor=ADA).run,
    "checkpoint": lambda run: checkpoint(running(run), attempt=2, step="act", value=1).run,
    "pause": paused,
    "pause at a step": lambda run: paused(run, step="ask", value=1),
    "pause after a failure": lambda run: paused(failed(run)),
}


@pytest.mark.parametrize("change", CLEARS.values(), ids=CLEARS.keys())
def test_an_answer_is_gone_once_its_run_saves_asks_again_or_is_given_up(change: Change) -> None:
    assert change(answered(paused())).answer is None


# --- What else ends a pause


def test_a_run_that_nobody_answers_in_time_is_dead_lettered() -> None:
    asked = paused(until=NOW, step="ask", value=7)

    transition = expire(asked, now=SOON)

    assert transition.run.status == "dead_lettered"
    assert (transition.run.waiting, transition.run.finished_at) == (None, SOON)
    assert (transition.run.reason, transition.run.checkpoint) == (UNANSWERED, 7)
    assert fact_of(transition) == {
        "type": "reflexr:run_dead_lettered",
        "run_id": "fir_1",
        "rule": "ops:spike",
        "attempts": 1,
        "error": "nobody answered until 2026-01-01 00:00:00+00:00",
        "reason": "unanswered",
    }


def test_a_run_is_overdue_from_the_very_moment_on() -> None:
    asked = paused(until=NOW)

    assert not overdue(asked, NOW - timedelta(microseconds=1))
    assert overdue(asked, NOW)
    assert expire(asked, now=NOW).run.status == "dead_lettered"


@pytest.mark.parametrize("until", [None, SOON, END_OF_TIME])
def test_a_run_that_has_time_is_not_dead_lettered(until: datetime | None) -> None:
    asked = paused(until=until)

    assert not overdue(asked, NOW)
    with pytest.raises(InvalidState, match="cannot expire run 'fir_1': there is still time to answer it"):
        expire(asked, now=NOW)


def test_a_run_that_waits_for_any_time_is_never_overdue() -> None:
    asked = paused()

    assert not overdue(asked, END_OF_TIME)
    with pytest.raises(InvalidState, match="there is still time"):
        expire(asked, now=END_OF_TIME)


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "paused"])
def test_only_a_paused_run_is_overdue(status: RunStatus) -> None:
    assert not overdue(a_run(status), END_OF_TIME)


def test_a_run_that_nobody_answered_asks_again_if_it_is_retried() -> None:
    dead = expire(paused(until=NOW, step="ask", value=7), now=NOW).run

    again = retry(dead, actor=ADA).run

    assert (again.status, again.error, again.reason, again.answer, again.checkpoint) == ("pending", None, None, None, 7)
    assert paused(again).status == "paused"
    with pytest.raises(InvalidState, match="what it asks now, its attempt 2 asked"):
        answer(paused(again), now=NOW, value="yes", actor=ADA, attempt=1)


@pytest.mark.parametrize("end", [cancel, skip])
def test_a_paused_run_can_be_given_up(end: Callable[..., Any]) -> None:
    ended: Run = end(paused(until=NOW), now=SOON, actor=ADA, reason="no need").run

    assert (ended.waiting, ended.reason, ended.finished_at) == (None, "no need", SOON)
    assert not overdue(ended, END_OF_TIME)
    with pytest.raises(InvalidState, match="cannot resume"):
        answered(ended)


# --- Counting attempts


def test_a_run_may_ask_more_often_than_it_may_fail() -> None:
    run = a_run()
    for _ in range(10):
        run = answered(paused(run))

    assert (run.status, run.attempt) == ("pending", 10)
    assert failed(run).next_attempt_at == NOW + POLICY.delay(1)
    assert failed(failed(failed(run))).status == "dead_lettered"


def test_failed_attempts_between_pauses_count_all_the_same() -> None:
    policy = RetryPolicy(max_attempts=3, backoff=timedelta(seconds=10), multiplier=3)
    run, waits = a_run(), list[datetime | None]()
    for _ in range(3):
        run = running(answered(paused(run)))
        run = fail(run, attempt=run.attempt, now=NOW, error="boom", policy=policy).run
        waits.append(run.next_attempt_at)

    assert waits == [NOW + timedelta(seconds=10), NOW + timedelta(seconds=30), None]
    assert (run.status, run.attempt) == ("dead_lettered", 6)


def test_an_abandoned_attempt_counts_although_the_one_before_it_asked() -> None:
    told = running(answered(paused()))

    assert abandon(told, attempt=2, now=NOW, policy=RetryPolicy(max_attempts=1)).run.status == "dead_lettered"


def test_a_retried_run_that_had_asked_has_a_fresh_count_of_attempts() -> None:
    dead = expire(paused(failed(answered(paused())), until=NOW), now=NOW).run

    again = retry(dead, actor=ADA).run

    assert failed(failed(again)).status == "retrying"
    assert failed(failed(failed(again))).status == "dead_lettered"
    assert failed(failed(answered(paused(again)))).status == "retrying"


def test_an_earlier_failure_is_told_until_the_run_has_succeeded() -> None:
    asked = paused(failed(a_run()))

    assert asked.error == "boom"
    assert succeed(running(answered(asked)), attempt=3, now=NOW).run.error is None


# --- The order of a scope


@pytest.mark.parametrize("on_pause", ["continue", "block"])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_paused_run_holds_its_scope_if_its_rule_said_so_when_it_paused(
    on_pause: Literal["continue", "block"], blocks: bool
) -> None:
    asked = paused(blocks=blocks)

    assert holds(asked, a_rule(on_pause=on_pause)) is blocks
    assert not holds(asked, a_rule(on_pause=on_pause, ordering="none"))


RULES: Final = [a_rule(), a_rule(on_pause="block", on_dead_letter="block")]


@pytest.mark.parametrize("rule", RULES)
def test_later_runs_start_beside_a_paused_one_that_keeps_no_place(rule: Rule) -> None:
    asked = paused(FIRST)

    for runs in permutations([asked, SECOND]):
        assert ids(runnable(runs, rule, NOW)) == ["second"]
    assert runnable([asked, running(SECOND)], rule, NOW) == ()


@pytest.mark.parametrize("rule", RULES)
def test_later_runs_wait_for_a_paused_one_that_blocks(rule: Rule) -> None:
    asked = paused(FIRST, blocks=True)

    for runs in permutations([asked, SECOND]):
        assert runnable(runs, rule, NOW) == ()
    assert ids(runnable([answered(asked), SECOND], rule, NOW)) == ["first"]
    assert ids(runnable([skip(asked, now=NOW, actor=ADA).run, SECOND], rule, NOW)) == ["second"]
    assert ids(runnable([cancel(asked, now=NOW, actor=ADA).run, SECOND], rule, NOW)) == ["second"]


def test_a_later_run_that_is_paused_holds_back_no_earlier_one() -> None:
    for blocks in (False, True):
        assert ids(runnable([FIRST, paused(SECOND, blocks=blocks)], a_rule(), NOW)) == ["first"]


@pytest.mark.parametrize("blocks", [False, True])
def test_a_paused_run_starts_no_attempt_of_its_own_even_when_it_is_overdue(blocks: bool) -> None:
    asked = paused(FIRST, until=NOW, blocks=blocks)

    for ordering in ("scope", "none"):
        assert runnable([asked], a_rule(ordering=ordering), END_OF_TIME) == ()
    assert ids(runnable([asked, SECOND], a_rule(ordering="none"), NOW)) == ["second"]


def test_an_answered_run_takes_its_place_again_and_starts_beside_no_other() -> None:
    told = answered(paused(FIRST))

    assert ids(runnable([told, SECOND], a_rule(), NOW)) == ["first"]
    assert runnable([told, running(SECOND)], a_rule(), NOW) == ()
    assert ids(runnable([told, running(SECOND)], a_rule(ordering="none"), NOW)) == ["first"]


def test_a_run_that_nobody_answered_blocks_if_its_rule_says_so_of_dead_letters() -> None:
    dead = expire(paused(FIRST, until=NOW), now=NOW).run

    assert ids(runnable([dead, SECOND], a_rule(), NOW)) == ["second"]
    assert runnable([dead, SECOND], a_rule(on_dead_letter="block"), NOW) == ()


# --- What was written before there were pauses

EARLIER: Final = """{
    "id": "fir_1", "rule": "ops:spike", "generation": 1, "scope": {"service": "auth"}, "scope_key": "[\\"auth\\"]",
    "fired_seq": 3, "fired_at": "2026-01-01T00:00:00Z", "matched": [1, 2, 3], "correlation_id": "evt_1", "depth": 2,
    "status": "retrying", "attempt": 1, "requeues": 0, "spent": 0, "next_attempt_at": "2026-01-01T00:00:01Z",
    "error": "boom", "reason": null, "output": null, "checkpoint": 1, "checkpoints": 1, "step": "look",
    "trace_ids": [], "started_at": "2026-01-01T00:00:00Z", "finished_at": null
}"""


def test_a_run_that_was_written_before_there_were_pauses_reads_as_one_that_never_paused() -> None:
    saved = checkpoint(running(), attempt=1, step="look", value=1).run

    earlier = Run.model_validate_json(EARLIER)

    assert earlier == fail(saved, attempt=1, now=NOW, error="boom", policy=POLICY).run
    assert (earlier.waiting, earlier.answer) == (None, None)
    assert answered(paused(earlier)).status == "pending"
