"""Tampering with histories of the chaos: each makes one thing of a history other than it must be."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from reflexr.core import (
    Envelope,
    Event,
    RuleErrored,
    RuleFired,
    Run,
    RunDeadLettered,
    RunPaused,
    RunProgressed,
    RunResumed,
    RunRetrying,
    RunStarted,
    RunSucceeded,
    Tick,
)

from .chaos.events import Ping, Pong
from .chaos.history import Chronicle, History, of_type
from .chaos.journal import Answered, Begun, Ended, Entry, Published, Trouble
from .chaos.plans import WORKSPACES, lot_of
from .histories import LOTS, NOTHING, PUBLISHERS, SEED, START

type Tamper = Callable[[History], History]


def chronicle(history: History, index: int, **changes: Any) -> History:
    chronicles = list(history.chronicles)
    chronicles[index] = replace(chronicles[index], **changes)
    return replace(history, chronicles=chronicles)


def index_of(history: History, condition: Callable[[Chronicle], Any]) -> int:
    """The first workspace of which something holds."""
    return next(index for index, each in enumerate(history.chronicles) if condition(each))


def rewritten(history: History, index: int, changes: dict[int, dict[str, Any]]) -> History:
    """Other envelopes in a workspace's log, by place."""
    log = [envelope.model_copy(update=changes.get(envelope.seq, {})) for envelope in history.chronicles[index].log]
    return chronicle(history, index, log=log)


def payload(envelope: Envelope, **changes: Any) -> dict[str, Any]:
    return {"payload": {**envelope.payload, **changes}}


def appended(history: History, index: int, envelope: Envelope, **changes: Any) -> History:
    """One more envelope at the end of a workspace's log, with an id of its own."""
    log = history.chronicles[index].log
    placed = {"seq": len(log) + 1, "ts": log[-1].ts, "id": "one-more"} | changes
    return chronicle(history, index, log=[*log, envelope.model_copy(update=placed)])


def swapped(history: History, index: int, one: Envelope, other: Envelope) -> History:
    """Two envelopes, each at the place of the other."""
    return rewritten(
        history,
        index,
        {
            place.seq: {
                name: getattr(taken, name) for name in ("id", "payload", "actor", "correlation_id", "causation")
            }
            for place, taken in ((one, other), (other, one))
        },
    )


def journal(history: History, entries: Sequence[Entry]) -> History:
    return replace(history, journal=entries)


def runs(history: History, index: int, run_id: str, **changes: Any) -> History:
    """Another state of a run."""
    changed = [run.model_copy(update=changes) if run.id == run_id else run for run in history.chronicles[index].runs]
    return chronicle(history, index, runs=changed)


def first(
    history: History, event: type[Event], condition: Callable[[Envelope], bool] = lambda _: True
) -> tuple[int, Envelope]:
    """The first event of a type, and where it is."""
    index = index_of(history, lambda each: any(condition(envelope) for envelope in of_type(each.log, event)))
    return index, next(filter(condition, of_type(history.chronicles[index].log, event)))


def a_run(history: History, condition: Callable[[Run, Chronicle], bool]) -> tuple[int, Run]:
    """The first run that meets a condition, and where it is."""
    for index, each in enumerate(history.chronicles):
        for run in reversed(each.runs):
            if condition(run, each):
                return index, run
    raise AssertionError("there is none")


def ordered(history: History) -> frozenset[str]:
    return frozenset(rule.name for rule in history.rules if rule.ordering == "scope")


def neighbours(history: History) -> tuple[int, Run, Run]:
    """Two runs of one scope of an ordered rule, one after the other, that both succeeded."""

    def next_to(run: Run, each: Chronicle) -> Run | None:
        later = [
            other
            for other in each.runs
            if (other.rule, other.scope_key) == (run.rule, run.scope_key) and other.position > run.position
        ]
        return min(later, key=lambda other: other.position, default=None)

    def fits(run: Run, each: Chronicle) -> bool:
        after = next_to(run, each)
        return run.rule in ordered(history) and after is not None and run.status == after.status == "succeeded"

    index, run = a_run(history, fits)
    after = next_to(run, history.chronicles[index])
    assert after is not None
    return index, run, after


def fact(history: History, index: int, event: type[Event], run: Run) -> Envelope:
    return next(each for each in of_type(history.chronicles[index].log, event) if each.payload["run_id"] == run.id)


# --- Of the log


def leave_out_a_place(history: History) -> History:
    return chronicle(history, 0, log=[*history.chronicles[0].log[:4], *history.chronicles[0].log[5:]])


def go_back_in_time(history: History) -> History:
    return rewritten(history, 0, {2: {"ts": START - timedelta(seconds=1)}})


def repeat_an_id(history: History) -> History:
    return rewritten(history, 0, {2: {"id": history.chronicles[0].log[0].id}})


def put_an_event_elsewhere(history: History) -> History:
    return rewritten(history, 0, {2: {"workspace_id": "elsewhere"}})


def tick_again(history: History) -> History:
    return appended(history, *first(history, Tick))


# --- Of deciding


def take_out_a_firing(history: History) -> History:
    index, firing = first(history, RuleFired)
    return rewritten(history, index, {firing.seq: {"payload": NOTHING}})


def take_out_an_error(history: History) -> History:
    index, error = first(history, RuleErrored)
    return rewritten(history, index, {error.seq: {"payload": NOTHING}})


def fire_once_more(history: History) -> History:
    return appended(history, *first(history, RuleFired))


def fire_in_another_order(history: History) -> History:
    index, firing = first(history, RuleFired)
    firings = list(of_type(history.chronicles[index].log, RuleFired))
    other = next(each for each in firings if each.payload["rule"] == firing.payload["rule"] and each is not firing)
    return swapped(history, index, firing, other)


def match_something_else(history: History) -> History:
    index, firing = first(history, RuleFired)
    return rewritten(history, index, {firing.seq: payload(firing, matched=[1, 2, 3])})


def fire_in_another_chain(history: History) -> History:
    index, firing = first(history, RuleFired)
    return rewritten(history, index, {firing.seq: {"correlation_id": "another"}})


def decide_for_a_stranger(history: History) -> History:
    index, firing = first(history, RuleFired)
    return rewritten(history, index, {firing.seq: payload(firing, rule="chaos:stranger")})


def reset_a_rule(history: History) -> History:
    index, firing = first(history, RuleFired)
    return appended(history, index, firing, payload={"type": "reflexr:rule_reset", "rule": "chaos:each"})


def lose_a_dead_letter(history: History) -> History:
    index = index_of(history, lambda each: each.dead_letters)
    return chronicle(history, index, dead_letters=history.chronicles[index].dead_letters[1:])


def fall_behind(history: History) -> History:
    progress = dict(history.chronicles[0].progress)
    progress["chaos:each"] = progress["chaos:each"].moved(3)
    return chronicle(history, 0, progress=progress)


# --- Of runs


def lose_a_run(history: History) -> History:
    return chronicle(history, 0, runs=history.chronicles[0].runs[1:])


def run_twice(history: History) -> History:
    return chronicle(history, 0, runs=[*history.chronicles[0].runs, history.chronicles[0].runs[0]])


def run_for_nothing(history: History) -> History:
    run = history.chronicles[0].runs[0]
    return chronicle(history, 0, runs=[*history.chronicles[0].runs, run.model_copy(update={"id": "fir_none"})])


def run_in_another_scope(history: History) -> History:
    return runs(history, 0, history.chronicles[0].runs[0].id, scope_key="[99]")


def succeed_twice(history: History) -> History:
    return appended(history, *first(history, RunSucceeded))


def succeed_with_an_old_attempt(history: History) -> History:
    index, succeeded = first(history, RunSucceeded)
    return rewritten(history, index, {succeeded.seq: payload(succeeded, output={"attempt": 9})})


def fail_with_an_old_attempt(history: History) -> History:
    index, failed = first(history, RunRetrying)
    return rewritten(history, index, {failed.seq: payload(failed, attempt=9)})


def fail_by_an_old_attempt(history: History) -> History:
    index, failed = first(history, RunRetrying, lambda envelope: envelope.payload["reason"] == "planned")
    return rewritten(history, index, {failed.seq: payload(failed, error="attempt 9 failed")})


def give_up_an_old_attempt(history: History) -> History:
    index, dead = first(history, RunDeadLettered)
    return rewritten(history, index, {dead.seq: payload(dead, attempts=9)})


def save_with_an_old_attempt(history: History) -> History:
    index, saved = first(history, RunProgressed)
    return rewritten(history, index, {saved.seq: payload(saved, step="9:0")})


def skip_an_attempt(history: History) -> History:
    index, started = first(history, RunStarted)
    return rewritten(history, index, {started.seq: payload(started, attempt=9)})


def start_while_at_work(history: History) -> History:
    again = next(
        (entry.workspace, entry.run) for entry in history.journal if isinstance(entry, Begun) and entry.attempt == 2
    )
    index = WORKSPACES.index(again[0])
    failed = next(
        each for each in of_type(history.chronicles[index].log, RunRetrying) if each.payload["run_id"] == again[1]
    )
    return rewritten(history, index, {failed.seq: {"payload": NOTHING}})


def forget_an_outcome(history: History) -> History:
    index, run = a_run(history, lambda run, _: run.status == "succeeded")
    return runs(history, index, run.id, status="running")


def forget_a_checkpoint(history: History) -> History:
    index, saved = first(history, RunProgressed)
    return rewritten(history, index, {saved.seq: {"payload": NOTHING}})


def tell_of_a_run_that_is_not_there(history: History) -> History:
    index, started = first(history, RunStarted)
    return appended(history, index, started, **payload(started, run_id="fir_none"))


# --- Of order


def start_before_the_one_before_has_ended(history: History) -> History:
    index, run, after = neighbours(history)
    return swapped(history, index, fact(history, index, RunSucceeded, run), fact(history, index, RunStarted, after))


def end_in_another_order(history: History) -> History:
    index, run, after = neighbours(history)
    return swapped(history, index, fact(history, index, RunSucceeded, run), fact(history, index, RunSucceeded, after))


def start_behind_a_dead_letter(history: History) -> History:
    blocking = {rule.name for rule in history.rules if rule.on_dead_letter == "block"}
    index, run = a_run(history, lambda run, _: run.rule in blocking and run.status == "pending")
    started = first(history, RunStarted)[1]
    return appended(history, index, started, **payload(started, run_id=run.id, attempt=1))


def leave_out_a_run(history: History) -> History:
    index, run, _ = neighbours(history)
    return runs(history, index, run.id, status="pending", spent=0)


def wait_for_nothing(history: History) -> History:
    index, run = a_run(history, lambda run, _: run.status == "succeeded")
    return runs(history, index, run.id, status="pending")


def stay_at_work(history: History) -> History:
    index, run = a_run(history, lambda run, _: run.status == "pending")
    return runs(history, index, run.id, status="running")


def wait_too_long(history: History) -> History:
    return replace(history, settled_at=history.settled_at + timedelta(days=1))


# --- Of what runs ask


def ask_with_an_old_attempt(history: History) -> History:
    index, asked = first(history, RunPaused)
    return rewritten(history, index, {asked.seq: payload(asked, request={"attempt": 9})})


def save_an_old_attempt_with_a_pause(history: History) -> History:
    index, asked = first(history, RunPaused, lambda envelope: envelope.payload["step"] is not None)
    return rewritten(history, index, {asked.seq: payload(asked, step="9:0")})


def pause_at_work_of_nobody(history: History) -> History:
    index, asked = first(history, RunPaused)
    attempt = (history.chronicles[index].workspace, asked.payload["run_id"], asked.payload["attempt"])
    return journal(
        history,
        [
            entry
            for entry in history.journal
            if not (isinstance(entry, Ended) and (entry.workspace, entry.run, entry.attempt) == attempt)
        ],
    )


def answer_twice(history: History) -> History:
    index, answered = first(history, RunResumed)
    return rewritten(history, index, {answered.seq + 1: {"payload": answered.payload}})


def answer_an_old_attempt(history: History) -> History:
    index, answered = first(history, RunResumed)
    return rewritten(history, index, {answered.seq: payload(answered, attempt=9)})


def answer_something_else(history: History) -> History:
    index, succeeded = first(history, RunSucceeded, lambda envelope: envelope.payload["output"]["answer"])
    answers = [
        each
        for each in of_type(history.chronicles[index].log, RunResumed)
        if each.payload["run_id"] == succeeded.payload["run_id"]
    ]
    other = {**answers[-1].payload["answer"], "other": True}
    return rewritten(history, index, {answers[-1].seq: payload(answers[-1], answer=other)})


def lose_an_answer(history: History) -> History:
    index, answered = first(history, RunResumed)
    return rewritten(history, index, {answered.seq: {"payload": NOTHING}})


def acknowledge_two_answers(history: History) -> History:
    answered = next(entry for entry in history.journal if isinstance(entry, Answered))
    return journal(history, [*history.journal, answered])


def give_no_time_to_answer(history: History) -> History:
    return until(history, START + timedelta(days=1))


def end_a_pause_without_end(history: History) -> History:
    return until(history, None)


def until(history: History, time: datetime | None) -> History:
    """Another time until which a run waited that nobody answered."""
    index, dead = first(history, RunDeadLettered, lambda envelope: envelope.payload["reason"] == "unanswered")
    run = next(run for run in history.chronicles[index].runs if run.id == dead.payload["run_id"])
    asked = [each for each in of_type(history.chronicles[index].log, RunPaused) if each.payload["run_id"] == run.id]
    told = None if time is None else time.isoformat()
    return rewritten(history, index, {asked[-1].seq: payload(asked[-1], until=told)})


def start_behind_a_pause(history: History) -> History:
    blocking = {rule.name for rule in history.rules if rule.on_pause == "block"} & ordered(history)

    def behind(asked: Envelope) -> list[Run]:
        (run,) = (run for each in history.chronicles for run in each.runs if run.id == asked.payload["run_id"])
        return [
            other
            for each in history.chronicles
            for other in each.runs
            if run in each.runs
            and (other.rule, other.scope_key) == (run.rule, run.scope_key)
            and other.position > run.position
        ]

    index, asked = first(history, RunPaused, lambda asked: asked.payload["rule"] in blocking and bool(behind(asked)))
    started = first(history, RunStarted)[1]
    starts = payload(started, run_id=behind(asked)[0].id, attempt=1)
    return rewritten(history, index, {asked.seq + 1: starts})


def wait_for_an_answer_for_too_long(history: History) -> History:
    index, run = a_run(history, lambda run, _: run.status == "paused")
    assert run.waiting is not None
    return runs(history, index, run.id, waiting=run.waiting.model_copy(update={"until": START}))


# --- Of what runs emit


def emit_again(history: History) -> History:
    return appended(history, *first(history, Pong))


def emit_nothing(history: History) -> History:
    index, pong = first(history, Pong, lambda envelope: is_of(history, envelope, "succeeded"))
    return rewritten(history, index, {pong.seq: {"payload": NOTHING}})


def emit_too_late(history: History) -> History:
    index, pong = first(history, Pong, lambda envelope: is_of(history, envelope, "succeeded"))
    return appended(rewritten(history, index, {pong.seq: {"payload": NOTHING}}), index, pong)


def emit_at_another_step(history: History) -> History:
    index, pong = first(history, Pong)
    return rewritten(history, index, {pong.seq: payload(pong, step=7)})


def emit_for_another(history: History) -> History:
    index, pong = first(history, Pong)
    return rewritten(history, index, {pong.seq: {"causation": None}})


def is_of(history: History, pong: Envelope, status: str) -> bool:
    return any(
        run.id == pong.payload["run"] and run.status == status for each in history.chronicles for run in each.runs
    )


# --- Of what was published


def lose_what_was_acknowledged(history: History) -> History:
    index, ping = first(history, Ping)
    return rewritten(history, index, {ping.seq: {"payload": NOTHING, "id": "nothing"}})


def publish_a_half(history: History) -> History:
    number = next(
        number for number in reversed(range(LOTS // 2)) if len(lot_of(SEED, PUBLISHERS[0], number).events) > 1
    )
    lot = lot_of(SEED, PUBLISHERS[0], number)
    index = WORKSPACES.index(lot.workspace)
    half = next(envelope for envelope in history.chronicles[index].log if envelope.id == list(lot.events)[1])
    told = [
        entry
        for entry in history.journal
        if not (isinstance(entry, Published) and entry.by == PUBLISHERS[0] and entry.number >= number)
    ]
    return journal(rewritten(history, index, {half.seq: {"payload": NOTHING, "id": "nothing"}}), told)


def pull_a_lot_apart(history: History) -> History:
    index, ping = first(history, Ping, lambda envelope: envelope.id.endswith(":1"))
    far = history.chronicles[index].log[-1]
    return swapped(history, index, ping, far)


def publish_in_another_order(history: History) -> History:
    index, ping = first(history, Ping, lambda envelope: is_alone(envelope, 0))
    other = next(
        envelope
        for envelope in of_type(history.chronicles[index].log, Ping)
        if is_alone(envelope, 0) and envelope.id != ping.id and by(envelope) == by(ping)
    )
    return swapped(history, index, ping, other)


def publish_as_a_stranger(history: History) -> History:
    index, ping = first(history, Ping)
    return appended(history, index, ping, id="stranger:0:0")


def publish_something_else(history: History) -> History:
    index, ping = first(history, Ping)
    return rewritten(history, index, {ping.seq: payload(ping, key=99)})


def acknowledge_out_of_order(history: History) -> History:
    return journal(history, [Published(by=PUBLISHERS[0], number=3), *history.journal])


def by(envelope: Envelope) -> str:
    return envelope.id.partition(":")[0]


def is_alone(envelope: Envelope, least: int) -> bool:
    """Whether an event was published alone."""
    publisher, number, _ = envelope.id.split(":")
    return int(number) >= least and len(lot_of(SEED, publisher, int(number)).events) == 1


# --- Of what processes wrote down


def make_an_attempt_twice(history: History) -> History:
    begun = next(entry for entry in history.journal if isinstance(entry, Begun))
    return journal(history, [*history.journal, begun.model_copy(update={"by": "reactor-1.1"})])


def make_an_attempt_that_nobody_started(history: History) -> History:
    begun = next(entry for entry in history.journal if isinstance(entry, Begun))
    return journal(history, [*history.journal, begun.model_copy(update={"attempt": 9})])


def record_what_was_not_done(history: History) -> History:
    ended = next(entry for entry in history.journal if isinstance(entry, Ended))
    return journal(history, [entry for entry in history.journal if entry is not ended])


def make_two_attempts_at_once(history: History) -> History:
    ended = next(
        entry
        for entry in history.journal
        if isinstance(entry, Ended)
        and any(
            isinstance(other, Begun) and (other.run, other.attempt) == (entry.run, entry.attempt + 1)
            for other in history.journal
        )
    )
    return journal(history, [*(entry for entry in history.journal if entry is not ended), ended])


def work_out_of_turn(history: History) -> History:
    index, _, after = neighbours(history)
    where = history.chronicles[index].workspace
    begun = next(
        entry
        for entry in history.journal
        if isinstance(entry, Begun) and (entry.workspace, entry.run, entry.attempt) == (where, after.id, 1)
    )
    return journal(history, [begun, *(entry for entry in history.journal if entry is not begun)])


def get_into_trouble(history: History) -> History:
    return journal(history, [*history.journal, Trouble(by="reactor-0.1", text="it ended with KeyError()")])


TAMPERS: Final[dict[Tamper, str]] = {
    leave_out_a_place: "where 5 is due",
    go_back_in_time: "goes back in time",
    repeat_an_id: "is in the log 2 times",
    put_an_event_elsewhere: "is of the workspace 'elsewhere'",
    tick_again: "comes after that at",
    take_out_a_firing: "but evaluating it gives",
    take_out_an_error: "but evaluating it gives",
    fire_once_more: "but evaluating it gives None",
    fire_in_another_order: "but evaluating it gives",
    match_something_else: "but evaluating it gives",
    fire_in_another_chain: "but evaluating it gives",
    decide_for_a_stranger: "'chaos:stranger', which is no rule",
    reset_a_rule: "'chaos:each' was reset",
    lose_a_dead_letter: "the dead letters stored are",
    fall_behind: "its progress is",
    lose_a_run: "has no run",
    run_twice: "is there 2 times",
    run_for_nothing: "the run 'fir_none' has no firing",
    run_in_another_scope: "the scope_key of run",
    succeed_twice: "which is succeeded at attempt",
    succeed_with_an_old_attempt: "is of attempt 9",
    fail_with_an_old_attempt: "is of attempt 9",
    fail_by_an_old_attempt: "is of attempt 9",
    give_up_an_old_attempt: "is of attempt 9",
    save_with_an_old_attempt: "is of attempt 9",
    skip_an_attempt: "is of attempt 9",
    start_while_at_work: "which is running at attempt",
    forget_an_outcome: "but its facts say succeeded",
    forget_a_checkpoint: "checkpoints, but its facts say",
    tell_of_a_run_that_is_not_there: "there are facts about a run 'fir_none'",
    start_before_the_one_before_has_ended: "is running before it",
    end_in_another_order: "is running before it",
    start_behind_a_dead_letter: "is dead_lettered before it",
    leave_out_a_run: "is pending, though",
    wait_for_nothing: "is pending for no reason",
    stay_at_work: "is running for no reason",
    wait_too_long: "is retrying for no reason",
    ask_with_an_old_attempt: "is of attempt 9",
    save_an_old_attempt_with_a_pause: "is of attempt 9",
    pause_at_work_of_nobody: "was never made to its end",
    answer_twice: "which is pending at attempt",
    answer_an_old_attempt: "is of attempt 9",
    answer_something_else: "but the answer is",
    lose_an_answer: "is acknowledged, but not in the log",
    acknowledge_two_answers: "was answered 2 times",
    give_no_time_to_answer: "but it had time until",
    end_a_pause_without_end: "but it had time until None",
    start_behind_a_pause: "is paused before it",
    wait_for_an_answer_for_too_long: "is paused for no reason",
    emit_again: "again",
    emit_nothing: "never emitted at step",
    emit_too_late: "after it succeeded",
    emit_at_another_step: "emitted at step 7, which was not to",
    emit_for_another: "which is not its cause",
    lose_what_was_acknowledged: "is acknowledged, but",
    publish_a_half: "is published together, but",
    pull_a_lot_apart: "is not together",
    publish_in_another_order: "before what 'publisher",
    publish_as_a_stranger: "nobody published 'stranger:0:0'",
    publish_something_else: "'key': 99",
    acknowledge_out_of_order: "was told of its lots out of order",
    make_an_attempt_twice: "begun again, by 'reactor-1.1'",
    make_an_attempt_that_nobody_started: "attempt 9 of run",
    record_what_was_not_done: "was never made to its end",
    make_two_attempts_at_once: "before what it had to wait for was over",
    work_out_of_turn: "before what it had to wait for was over",
    get_into_trouble: "reactor-0.1: it ended with KeyError()",
}
