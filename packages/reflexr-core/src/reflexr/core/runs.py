"""The lifecycle of a run: one table of transitions, and pure functions over it.

A run is what a firing started. Each function takes a run and returns what it becomes, with the facts to append; nothing
is read and nothing is changed, and time comes in as an argument. Claims, leases and the actions are the host's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, JsonValue

from reflexr.core.actors import Actor
from reflexr.core.canonical import derived_id
from reflexr.core.decisions import REACTOR, Firing
from reflexr.core.envelopes import Causation, Draft, Seq, UtcDatetime
from reflexr.core.facts import (
    ReflexrEvent,
    RunCancelled,
    RunDeadLettered,
    RunPaused,
    RunProgressed,
    RunRequeued,
    RunResumed,
    RunRetrying,
    RunSkipped,
    RunStarted,
    RunSucceeded,
)
from reflexr.core.names import AnyRuleName, Id
from reflexr.core.rejections import InvalidState
from reflexr.core.rules import RetryPolicy, Rule
from reflexr.core.values import json_text, json_value

type RunStatus = Literal[
    "pending", "running", "retrying", "paused", "succeeded", "dead_lettered", "cancelled", "skipped"
]
"""Where a run is in its lifecycle."""

type RunOperation = Literal[
    "start", "checkpoint", "pause", "resume", "expire", "succeed", "fail", "dead_letter", "cancel", "skip", "retry"
]
"""What can be done to a run; `fail` and `dead_letter` are the two ways in which an attempt fails."""

TRANSITIONS: Final[Mapping[RunStatus, Mapping[RunOperation, RunStatus]]] = MappingProxyType(
    {
        "pending": {"start": "running", "cancel": "cancelled", "skip": "skipped"},
        "running": {
            "checkpoint": "running",
            "pause": "paused",
            "succeed": "succeeded",
            "fail": "retrying",
            "dead_letter": "dead_lettered",
            "cancel": "cancelled",
        },
        "retrying": {"start": "running", "cancel": "cancelled", "skip": "skipped"},
        "paused": {"resume": "pending", "expire": "dead_lettered", "cancel": "cancelled", "skip": "skipped"},
        "succeeded": {},
        "dead_lettered": {"skip": "skipped", "retry": "pending"},
        "cancelled": {"retry": "pending"},
        "skipped": {"retry": "pending"},
    }
)
"""What each operation makes of a run in each status; what is not here is refused."""

UNFINISHED: Final[frozenset[RunStatus]] = frozenset({"pending", "running", "retrying", "paused"})
"""The statuses of a run that is still to end."""

ABANDONED: Final = "abandoned"
"""The reason of an attempt whose executor died, lost its lease or was stopped."""

UNANSWERED: Final = "unanswered"
"""The reason of a paused run that nobody answered in time."""

MAX_TRACES: Final = 100
"""Of how many attempts a run names the traces, as it may pause and be retried any number of times."""


class Waiting(BaseModel, frozen=True):
    """What a paused run waits for.

    Attributes:
        request: What it asks, as its action put it.
        since: When it paused.
        until: When it fails if nobody has answered; `None` if it waits for any time.
        blocks: Whether it keeps its place in the order of its scope meanwhile, as its rule said when it paused.
    """

    request: JsonValue
    since: UtcDatetime
    until: UtcDatetime | None = None
    blocks: bool = False


class Answer(BaseModel, frozen=True):
    """What a paused run was told.

    Attributes:
        value: The answer.
        actor: Who gave it.
        at: When.
    """

    value: JsonValue
    actor: Actor
    at: UtcDatetime


class Run(BaseModel, frozen=True):
    """One firing's execution, over all its attempts.

    Attributes:
        id: The firing's id, its own in the workspace: a run elsewhere may have the same.
        rule: The rule that fired.
        generation: The rule's generation when it fired.
        scope: The scope's fields and their values; empty for the whole workspace.
        scope_key: The canonical JSON of the list of those values.
        fired_seq: The place of the envelope at which the rule fired.
        fired_at: That envelope's time.
        matched: The places of the envelopes that the firing matched, in order.
        correlation_id: The causal chain that the run continues.
        depth: How deep in that chain the run's events are, from 1.
        status: Where it is in its lifecycle.
        attempt: How many attempts have begun. It only grows, so it fences each attempt's outcome.
        requeues: How often it was retried after it had ended.
        spent: How many of its attempts its retry policy does not count: those before it was last retried, and those
            that paused.
        next_attempt_at: When a retrying run may start; `None` in every other status.
        error: What its latest failed attempt said; `None` if none failed since it was last retried, or it succeeded.
        reason: A stable code or a person's words for that failure, the cancellation or the skip.
        output: What its action returned.
        checkpoint: What its action last saved, from which the next attempt can resume.
        checkpoints: How often its action saved.
        step: The step after which it last saved.
        waiting: What it waits for; `None` in every status but `paused`.
        answer: What it was told when it last paused; `None` once its action has saved again, as then that is known, or
            the run was cancelled or skipped.
        trace_ids: The trace of each traced attempt, the latest last: of the latest `MAX_TRACES`.
        started_at: When its latest attempt began.
        finished_at: When it ended; `None` while it is to run.
    """

    id: Id
    rule: AnyRuleName
    generation: int = Field(ge=1)
    scope: dict[str, JsonValue]
    scope_key: str
    fired_seq: Seq
    fired_at: UtcDatetime
    matched: tuple[Seq, ...]
    correlation_id: Id
    depth: int = Field(ge=1)
    status: RunStatus = "pending"
    attempt: int = Field(default=0, ge=0)
    requeues: int = Field(default=0, ge=0)
    spent: int = Field(default=0, ge=0)
    next_attempt_at: UtcDatetime | None = None
    error: str | None = None
    reason: str | None = None
    output: JsonValue = None
    checkpoint: JsonValue = None
    checkpoints: int = Field(default=0, ge=0)
    step: str | None = None
    waiting: Waiting | None = None
    answer: Answer | None = None
    trace_ids: tuple[str, ...] = ()
    started_at: UtcDatetime | None = None
    finished_at: UtcDatetime | None = None

    @property
    def unfinished(self) -> bool:
        """Whether it is still to end."""
        return self.status in UNFINISHED

    @property
    def position(self) -> tuple[int, int]:
        """Its place in the firing order of its rule and scope: later generations come after earlier ones."""
        return self.generation, self.fired_seq

    @property
    def causation(self) -> Causation:
        """What its events, and the facts about it, name as their cause."""
        return Causation(firing_id=self.id, run_id=self.id, depth=self.depth)


@dataclass(frozen=True, slots=True)
class Transition:
    """What a run becomes, and the facts to append in the same transaction, in order."""

    run: Run
    facts: tuple[Draft, ...]


def create_run(firing: Firing) -> Run:
    """Returns the pending run of a firing, whose fact is the evaluation's."""
    return Run(
        id=firing.id,
        rule=firing.rule,
        generation=firing.generation,
        scope=dict(firing.scope),
        scope_key=firing.scope_key,
        fired_seq=firing.seq,
        fired_at=firing.ts,
        matched=firing.matched,
        correlation_id=firing.correlation_id,
        depth=firing.depth,
    )


def start(run: Run, *, now: datetime, trace_id: str | None = None, actor: Actor = REACTOR) -> Transition:
    """Begins the next attempt.

    Whether the run is due, and whether its scope lets it start, is `runnable`'s to say.

    Args:
        run: A pending or retrying run.
        now: When the attempt begins.
        trace_id: The attempt's trace.
        actor: Who starts it.

    Raises:
        InvalidState: The run is in another status. A running run whose executor is gone is `abandon`ed first.
    """
    return _moved(
        run,
        "start",
        actor,
        RunStarted(run_id=run.id, rule=run.rule, scope=run.scope, scope_key=run.scope_key, attempt=run.attempt + 1),
        attempt=run.attempt + 1,
        next_attempt_at=None,
        trace_ids=run.trace_ids if trace_id is None else (*run.trace_ids, trace_id)[-MAX_TRACES:],
        started_at=_utc(now),
    )


def checkpoint(run: Run, *, attempt: int, step: str, value: JsonValue, actor: Actor = REACTOR) -> Transition:
    """Saves what the next attempt can resume from, after the step `step`.

    Raises:
        InvalidState: The run is not running at this attempt.
        NotJsonError: The value is not JSON, or nests too deep.
    """
    _fence(run, "checkpoint", attempt)
    step = json_text(step)
    return _moved(
        run,
        "checkpoint",
        actor,
        RunProgressed(run_id=run.id, rule=run.rule, step=step),
        checkpoint=json_value(value, f"the checkpoint of run {run.id!r}", depth=1),
        checkpoints=run.checkpoints + 1,
        step=step,
        answer=None,
    )


def pause(
    run: Run,
    *,
    attempt: int,
    now: datetime,
    request: JsonValue,
    until: datetime | None = None,
    step: str | None = None,
    value: JsonValue = None,
    blocks: bool = False,
    actor: Actor = REACTOR,
) -> Transition:
    """Ends an attempt that asks for something: the run waits for an answer, and then has another attempt.

    The attempt did not fail, so the retry policy does not count it.

    Args:
        run: A run that is running at this attempt.
        attempt: The attempt that asks.
        now: When it asks.
        request: What it asks.
        until: When the run fails if nobody has answered; `None` if it waits for any time.
        step: The step after which `value` is saved as the checkpoint; `None` if the last checkpoint stands.
        value: What the next attempt can resume from.
        blocks: Whether the run keeps its place in the order of its scope meanwhile.
        actor: Who records it.

    Raises:
        InvalidState: The run is not running at this attempt.
        NotJsonError: The request or the value is not JSON, or nests too deep.
    """
    _fence(run, "pause", attempt)
    waiting = Waiting(
        request=json_value(request, f"what run {run.id!r} asks", depth=2),
        since=_utc(now),
        until=None if until is None else _utc(until),
        blocks=blocks,
    )
    saved: dict[str, Any] = {}
    if step is not None:
        step = json_text(step)
        saved = {
            "checkpoint": json_value(value, f"the checkpoint of run {run.id!r}", depth=1),
            "checkpoints": run.checkpoints + 1,
            "step": step,
        }
    return _moved(
        run,
        "pause",
        actor,
        RunPaused(
            run_id=run.id, rule=run.rule, attempt=attempt, request=waiting.request, until=waiting.until, step=step
        ),
        spent=run.spent + 1,
        waiting=waiting,
        answer=None,
        **saved,
    )


def answer(run: Run, *, now: datetime, value: JsonValue, actor: Actor, attempt: int | None = None) -> Transition:
    """Answers a paused run, which may start again: also one whose time is over, as long as it is not `expire`d.

    Args:
        run: A paused run.
        now: When it is answered.
        value: The answer, which is its action's to understand.
        actor: Who answers.
        attempt: The attempt whose question it answers; `None` for what the run asks now, whatever that is.

    Raises:
        InvalidState: The run is not paused, or by now asks something else than that attempt did.
        NotJsonError: The answer is not JSON, or nests too deep.
    """
    _allowed(run, "resume")
    if attempt is not None and attempt != run.attempt:
        raise InvalidState(
            f"cannot resume run {run.id!r} with an answer to its attempt {attempt}: "
            f"what it asks now, its attempt {run.attempt} asked"
        )
    value = json_value(value, f"the answer to run {run.id!r}", depth=2)
    return _moved(
        run,
        "resume",
        actor,
        RunResumed(run_id=run.id, rule=run.rule, attempt=run.attempt, answer=value),
        answer=Answer(value=value, actor=actor, at=_utc(now)),
    )


def expire(run: Run, *, now: datetime, actor: Actor = REACTOR) -> Transition:
    """Dead-letters a paused run that nobody answered in time: to ask the same again would be as pointless.

    Raises:
        InvalidState: The run is not paused, or still has time.
    """
    _allowed(run, "expire")
    now, until = _utc(now), _deadline(run)
    if until is None or now < until:
        raise InvalidState(f"cannot expire run {run.id!r}: there is still time to answer it")
    error = f"nobody answered until {until}"
    return _moved(
        run,
        "expire",
        actor,
        RunDeadLettered(run_id=run.id, rule=run.rule, attempts=run.attempt, error=error, reason=UNANSWERED),
        error=error,
        reason=UNANSWERED,
        finished_at=now,
    )


def succeed(run: Run, *, attempt: int, now: datetime, output: JsonValue = None, actor: Actor = REACTOR) -> Transition:
    """Ends the run with its action's output.

    Raises:
        InvalidState: The run is not running at this attempt.
        NotJsonError: The output is not JSON, or nests too deep.
    """
    _fence(run, "succeed", attempt)
    output = json_value(output, f"the output of run {run.id!r}", depth=1)
    return _moved(
        run,
        "succeed",
        actor,
        RunSucceeded(run_id=run.id, rule=run.rule, output=output),
        error=None,
        reason=None,
        output=output,
        finished_at=_utc(now),
    )


def fail(
    run: Run,
    *,
    attempt: int,
    now: datetime,
    error: str,
    policy: RetryPolicy,
    reason: str | None = None,
    permanent: bool = False,
    actor: Actor = REACTOR,
) -> Transition:
    """Ends an attempt that failed: the run is retried after the policy's back-off, or dead-lettered.

    Args:
        run: A run that is running at this attempt.
        attempt: The attempt that failed.
        now: When it failed.
        error: What went wrong, for a person.
        policy: How often and when to try again, counted since the run was last retried by hand.
        reason: A stable code for what went wrong.
        permanent: Whether trying again is pointless, so that the run is dead-lettered at once.
        actor: Who records it.

    Raises:
        InvalidState: The run is not running at this attempt.
    """
    _fence(run, "fail", attempt)
    error, reason = json_text(error), None if reason is None else json_text(reason)
    used = run.attempt - run.spent
    if permanent or used >= policy.max_attempts:
        return _moved(
            run,
            "dead_letter",
            actor,
            RunDeadLettered(run_id=run.id, rule=run.rule, attempts=run.attempt, error=error, reason=reason),
            error=error,
            reason=reason,
            finished_at=_utc(now),
        )
    try:
        next_attempt_at = _utc(now) + policy.delay(used)
    except OverflowError:
        next_attempt_at = datetime.max.replace(tzinfo=UTC)
    return _moved(
        run,
        "fail",
        actor,
        RunRetrying(
            run_id=run.id,
            rule=run.rule,
            attempt=attempt,
            error=error,
            next_attempt_at=next_attempt_at,
            reason=reason,
        ),
        error=error,
        reason=reason,
        next_attempt_at=next_attempt_at,
    )


def abandon(run: Run, *, attempt: int, now: datetime, policy: RetryPolicy, actor: Actor = REACTOR) -> Transition:
    """Ends an attempt whose executor died, lost its lease or was stopped: it counts as a failed one.

    Raises:
        InvalidState: The run is not running at this attempt.
    """
    error = f"attempt {attempt} was abandoned: its executor died, lost its lease or was stopped"
    return fail(run, attempt=attempt, now=now, error=error, policy=policy, reason=ABANDONED, actor=actor)


def cancel(run: Run, *, now: datetime, actor: Actor, reason: str | None = None) -> Transition:
    """Ends a run that has not ended, by somebody's wish.

    If an attempt is running, whatever becomes of it is refused from here on. What the run was told goes with it:
    retried, it asks again.

    Raises:
        InvalidState: The run has ended.
    """
    reason = None if reason is None else json_text(reason)
    return _moved(
        run,
        "cancel",
        actor,
        RunCancelled(run_id=run.id, rule=run.rule, reason=reason),
        reason=reason,
        next_attempt_at=None,
        answer=None,
        finished_at=_utc(now),
    )


def skip(run: Run, *, now: datetime, actor: Actor, reason: str | None = None) -> Transition:
    """Gives up a run that waits, is paused or is dead-lettered, so that it holds back no later run of its scope.

    What it was told goes with it: retried, it asks again.

    Raises:
        InvalidState: The run is running, and has to be cancelled instead, or has ended in another way.
    """
    reason = None if reason is None else json_text(reason)
    return _moved(
        run,
        "skip",
        actor,
        RunSkipped(run_id=run.id, rule=run.rule, reason=reason),
        reason=reason,
        next_attempt_at=None,
        answer=None,
        finished_at=_utc(now),
    )


def retry(run: Run, *, actor: Actor) -> Transition:
    """Queues a run again that was dead-lettered, cancelled or skipped, with a fresh count of attempts.

    It keeps its checkpoint, and its attempts are numbered on, so no fence and no fact's id is used twice.

    Raises:
        InvalidState: The run has not ended, or has succeeded.
    """
    return _moved(
        run,
        "retry",
        actor,
        RunRequeued(run_id=run.id, rule=run.rule),
        requeues=run.requeues + 1,
        spent=run.attempt,
        error=None,
        reason=None,
        finished_at=None,
    )


def due(run: Run, now: datetime) -> bool:
    """Whether the run may start now, as far as it alone is concerned: it is pending, or its back-off is over."""
    return run.status == "pending" or (
        run.status == "retrying" and run.next_attempt_at is not None and run.next_attempt_at <= now
    )


def overdue(run: Run, now: datetime) -> bool:
    """Whether the run is paused and nobody has answered it in time, so that it is to `expire`."""
    until = _deadline(run)
    return until is not None and until <= now


def holds(run: Run, rule: Rule) -> bool:
    """Whether the run holds back the later runs of its rule and scope.

    With the ordering `scope`, a run that has not ended does, but for a paused one that does not block, and a
    dead-lettered one does if the rule says `block`.
    """
    if rule.ordering == "none":
        return False
    if run.waiting is not None:
        return run.waiting.blocks
    return run.unfinished or (run.status == "dead_lettered" and rule.on_dead_letter == "block")


def runnable(runs: Iterable[Run], rule: Rule, now: datetime) -> tuple[Run, ...]:
    """Returns the runs of one scope of a rule that may start now, in firing order.

    With the ordering `scope` that is the first run that holds the scope, if it is due and no run of the scope is
    running; with `none` it is every run that is due. A disabled rule starts none.

    Args:
        runs: The runs of one scope of the rule, in any order: at least those that `holds` them or are due.
        rule: Their rule, as it is now.
        now: The time by the clock that `next_attempt_at` was set with.
    """
    if not rule.enabled:
        return ()
    in_order = sorted(runs, key=lambda run: run.position)
    if rule.ordering == "none":
        return tuple(run for run in in_order if due(run, now))
    # A run that was queued again can stand before one that is already running, and must not run beside it.
    if any(run.status == "running" for run in in_order):
        return ()
    first = next((run for run in in_order if holds(run, rule)), None)
    return () if first is None or not due(first, now) else (first,)


def _deadline(run: Run) -> datetime | None:
    return None if run.waiting is None else run.waiting.until


def _fence(run: Run, operation: RunOperation, attempt: int) -> None:
    _allowed(run, operation)
    if attempt != run.attempt:
        raise InvalidState(
            f"cannot {operation} run {run.id!r} at attempt {attempt}: it is running at attempt {run.attempt}, "
            "and only that attempt's outcome counts"
        )


def _allowed(run: Run, operation: RunOperation) -> RunStatus:
    """Returns what the operation makes of the run, as the table has it."""
    operations = TRANSITIONS[run.status]
    if operation in operations:
        return operations[operation]
    needed = " or ".join(repr(status) for status, operations in TRANSITIONS.items() if operation in operations)
    allowed = " or ".join(repr(operation) for operation in operations) or "nothing any more"
    raise InvalidState(
        f"cannot {operation} run {run.id!r}, which is {run.status!r}: that takes a run that is {needed}; "
        f"what a {run.status!r} run allows is {allowed}"
    )


def _moved(run: Run, operation: RunOperation, actor: Actor, fact: ReflexrEvent, **changes: Any) -> Transition:
    status = _allowed(run, operation)
    moved = run.model_copy(update={"status": status, "waiting": None, **changes})
    draft = Draft(
        # No two transitions of a run lead to the same three counts and the same kind of fact.
        id=derived_id("evt", fact.type, run.id, moved.attempt, moved.requeues, moved.checkpoints),
        # What the fact holds was checked when it got into the run, so it needs no second look.
        payload=fact.model_dump(mode="json"),
        actor=actor,
        correlation_id=run.correlation_id,
        causation=run.causation,
    )
    return Transition(run=moved, facts=(draft,))


def _utc(now: datetime) -> datetime:
    if now.tzinfo is None:
        raise ValueError(f"{now!r} names no instant: pass an aware datetime, such as one in UTC")
    return now.astimezone(UTC)
