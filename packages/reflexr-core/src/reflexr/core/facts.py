"""reflexr's own events: the closed union of what it records about rules, runs, feedback and time.

`Fact` is closed, so pyright checks that a `match` over it is exhaustive.
"""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from reflexr.core.envelopes import Seq, UtcDatetime
from reflexr.core.events import Event
from reflexr.core.names import AnyRuleName, Id
from reflexr.core.targets import Target


class ReflexrEvent(Event, abstract=True, event_namespace="reflexr"):
    """The base of reflexr's own events, which only reflexr publishes."""


class RuleFired(ReflexrEvent):
    """A rule's condition held: a run with the firing's id begins.

    Attributes:
        scope: The scope's fields and their values; empty for the whole workspace.
        scope_key: The canonical JSON of the list of those values.
        matched: The places of the envelopes that the firing matched, in order.
    """

    rule: AnyRuleName
    scope: dict[str, JsonValue]
    scope_key: str
    firing_id: Id
    matched: list[Seq]


class RuleErrored(ReflexrEvent):
    """A rule could not decide on the envelope at `seq`, which is dead-lettered for this rule alone."""

    rule: AnyRuleName
    seq: Seq
    error: str


class RuleReset(ReflexrEvent):
    """A rule started afresh, with a new generation.

    Attributes:
        reason: Whether its definition changed or it is replayed.
        from_seq: The first place it evaluates.
        silent_through: The last place up to which it records no firing; 0 if it records all.
    """

    rule: AnyRuleName
    generation: int = Field(ge=1)
    reason: Literal["changed", "replayed"]
    from_seq: Seq
    silent_through: Seq = 0


class RuleInstalled(ReflexrEvent):
    """A stored rule was installed or updated: `spec` is its version `version`."""

    rule: AnyRuleName
    version: int = Field(ge=1)
    spec: dict[str, JsonValue]
    provenance: dict[str, JsonValue] = Field(default_factory=dict)


class RuleArchived(ReflexrEvent):
    """A stored rule was archived, and `cancelled` of its unfinished runs were cancelled."""

    rule: AnyRuleName
    version: int = Field(ge=1)
    reason: str | None = None
    cancelled: int = Field(ge=0)


class RunStarted(ReflexrEvent):
    """An attempt of a run began."""

    run_id: Id
    rule: AnyRuleName
    scope: dict[str, JsonValue]
    scope_key: str
    attempt: int = Field(ge=1)


class RunProgressed(ReflexrEvent):
    """A run saved a checkpoint after the step `step`."""

    run_id: Id
    rule: AnyRuleName
    step: str


class RunPaused(ReflexrEvent):
    """A run asks for something, and waits until it is answered.

    Attributes:
        attempt: The attempt that asks.
        request: What it asks.
        until: When it fails if nobody has answered; `None` if it waits for any time.
        step: The step after which it saved a checkpoint; `None` if it saved none.
    """

    run_id: Id
    rule: AnyRuleName
    attempt: int = Field(ge=1)
    request: JsonValue
    until: UtcDatetime | None = None
    step: str | None = None


class RunResumed(ReflexrEvent):
    """A paused run was answered, and may start again: `answer` is to what `attempt` asked."""

    run_id: Id
    rule: AnyRuleName
    attempt: int = Field(ge=1)
    answer: JsonValue


class RunRetrying(ReflexrEvent):
    """An attempt of a run failed, and the next may begin at `next_attempt_at`."""

    run_id: Id
    rule: AnyRuleName
    attempt: int = Field(ge=1)
    error: str
    next_attempt_at: UtcDatetime
    reason: str | None = None


class RunSucceeded(ReflexrEvent):
    """A run ended with an output."""

    run_id: Id
    rule: AnyRuleName
    output: JsonValue = None


class RunDeadLettered(ReflexrEvent):
    """A run failed for good, after `attempts` attempts."""

    run_id: Id
    rule: AnyRuleName
    attempts: int = Field(ge=0)
    error: str
    reason: str | None = None


class RunCancelled(ReflexrEvent):
    """A run was cancelled before it ended."""

    run_id: Id
    rule: AnyRuleName
    reason: str | None = None


class RunSkipped(ReflexrEvent):
    """A run that had not ended well was given up, so that later runs of its scope may start."""

    run_id: Id
    rule: AnyRuleName
    reason: str | None = None


class RunRequeued(ReflexrEvent):
    """A run that had ended is to run again, with a fresh count of attempts."""

    run_id: Id
    rule: AnyRuleName


class FeedbackGiven(ReflexrEvent):
    """Somebody judged a run, a firing or a chain; `value` is the feedback's validated JSON object."""

    feedback_type: str
    target: Target
    value: dict[str, JsonValue]


class Tick(ReflexrEvent):
    """A schedule's time came: `at` is when it was due, not when it was published."""

    schedule: str
    at: UtcDatetime


type Fact = Annotated[
    RuleFired
    | RuleErrored
    | RuleReset
    | RuleInstalled
    | RuleArchived
    | RunStarted
    | RunProgressed
    | RunPaused
    | RunResumed
    | RunRetrying
    | RunSucceeded
    | RunDeadLettered
    | RunCancelled
    | RunSkipped
    | RunRequeued
    | FeedbackGiven
    | Tick,
    Field(discriminator="type"),
]
"""Any of reflexr's own events, discriminated by `type`."""
