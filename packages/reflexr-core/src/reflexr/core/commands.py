"""Commands: what a participant asks a workspace to do, as it travels.

What comes of them is in `reflexr.core.outcomes` and `reflexr.core.rejections`, and the frames around both in
`reflexr.core.frames`. Whether a command's event, rule or run exists is the workspace's to say.
"""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema
from pydantic_core import PydanticCustomError

from reflexr.core.canonical import check_json
from reflexr.core.errors import NotJsonError
from reflexr.core.integers import Place, Positive
from reflexr.core.messages import Request
from reflexr.core.names import AnyRuleName, Id, Text
from reflexr.core.rules import Rule
from reflexr.core.targets import Target


def _json[T](value: T, place: str, depth: int) -> T:
    try:
        check_json(value, place, depth)
    except NotJsonError as error:
        raise PydanticCustomError("json", "{problem}", {"problem": str(error)}) from error
    return value


def _json_object(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    # A fact and what is in it are around the object where it is stored.
    return _json(value, "value", 1)


def _json_answer(value: JsonValue) -> JsonValue:
    # A run and its answer are around the value where it is stored.
    return _json(value, "answer", 2)


def _event(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if not isinstance(value.get("type"), str):
        raise PydanticCustomError(
            "event", "An event is an object with its type, such as {example}", {"example": _EXAMPLE}
        )
    return value


_EXAMPLE: Final = '{"type": "ops:service.error"}'

MAX_BATCH: Final = 10_000
"""How many events one command may publish."""

type JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_json_object)]
"""A JSON object whose numbers are finite and that nests no deeper than a log can hold."""

type JsonAnswer = Annotated[JsonValue, AfterValidator(_json_answer)]
"""A JSON value whose numbers are finite and that nests no deeper than a run can hold."""

type EventObject = Annotated[
    JsonObject,
    AfterValidator(_event),
    WithJsonSchema({"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}),
]
"""An event as JSON: an object with its `type`, which the workspace knows or refuses."""


class Publish(Request):
    """Appends an event to the log; an `id` that is there already appends nothing."""

    type: Literal["publish"] = "publish"
    event: EventObject
    id: Id | None = None
    correlation_id: Id | None = None


class EventToPublish(Request):
    """One event of a `publish_many`, with its `id` if the client chooses it."""

    event: EventObject
    id: Id | None = None


class PublishMany(Request):
    """Appends events to the log, in order and all or none; those whose `id` is there already append nothing.

    At most `MAX_BATCH` of them.
    """

    type: Literal["publish_many"] = "publish_many"
    events: Annotated[tuple[EventToPublish, ...], Field(max_length=MAX_BATCH)]
    correlation_id: Id | None = None


class GiveFeedback(Request):
    """Records a judgement of a run, a firing or a chain."""

    type: Literal["give_feedback"] = "give_feedback"
    feedback_type: Id
    target: Target
    value: JsonObject


class RetryRun(Request):
    """Queues a run again that was dead-lettered, cancelled or skipped."""

    type: Literal["retry_run"] = "retry_run"
    run_id: Id


class SkipRun(Request):
    """Gives up a run, so that it holds back no later run of its scope."""

    type: Literal["skip_run"] = "skip_run"
    run_id: Id
    reason: Text | None = None


class CancelRun(Request):
    """Ends a run that has not ended."""

    type: Literal["cancel_run"] = "cancel_run"
    run_id: Id
    reason: Text | None = None


class ResumeRun(Request):
    """Answers a paused run, which then goes on.

    Attributes:
        run_id: The run.
        answer: The answer, which is its action's to understand.
        attempt: The attempt whose question it answers, the run's `attempt` when that was read; the command is refused
            where the run asks another one by now.
    """

    type: Literal["resume_run"] = "resume_run"
    run_id: Id
    answer: JsonAnswer = None
    attempt: Positive | None = None


class ReplayRule(Request):
    """Evaluates the log again from a place.

    Attributes:
        rule: The rule's name.
        from_seq: The first place to evaluate.
        mode: `rebuild` recomputes the rule's state without firing up to the head; `refire` fires again for the past.
    """

    type: Literal["replay_rule"] = "replay_rule"
    rule: AnyRuleName
    from_seq: Place
    mode: Literal["rebuild", "refire"]


class InstallRule(Request):
    """Stores a rule in the workspace, as a first version or as the next after it was archived."""

    type: Literal["install_rule"] = "install_rule"
    rule: Rule
    provenance: JsonObject = Field(default_factory=dict)


class UpdateRule(Request):
    """Stores a rule's next version.

    Attributes:
        rule: The rule as it is to be.
        expected_version: The version it is to follow; the command is refused where another is current.
        provenance: Where the change comes from; opaque to reflexr.
    """

    type: Literal["update_rule"] = "update_rule"
    rule: Rule
    expected_version: Positive | None = None
    provenance: JsonObject = Field(default_factory=dict)


class ArchiveRule(Request):
    """Ends a stored rule, with its unfinished runs.

    Attributes:
        rule: The rule's name.
        expected_version: The version it ends; the command is refused where another is current.
        reason: Why.
    """

    type: Literal["archive_rule"] = "archive_rule"
    rule: AnyRuleName
    expected_version: Positive | None = None
    reason: Text | None = None


type Command = Annotated[
    Publish
    | PublishMany
    | GiveFeedback
    | RetryRun
    | SkipRun
    | CancelRun
    | ResumeRun
    | ReplayRule
    | InstallRule
    | UpdateRule
    | ArchiveRule,
    Field(discriminator="type"),
]
"""Any command, discriminated by `type`."""
