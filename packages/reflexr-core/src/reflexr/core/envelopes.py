"""Envelopes: an event's place in a log, with who published it and what caused it.

An envelope is read without its event's class: conditions read the parsed JSON, and the typed event is built at its
first use.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, Final, NamedTuple, Self, override

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError, to_json

from reflexr.core.actors import Actor
from reflexr.core.events import DEFAULT_REGISTRY, Event, EventRegistry
from reflexr.core.names import Id

MAX_SEQ: Final = 2**63 - 1
"""The last place a log can have."""

type Seq = Annotated[int, Field(ge=0, le=MAX_SEQ)]
"""A place in a log, from 1; 0 is before the first."""


def _utc(value: datetime) -> datetime:
    try:
        return value if value.tzinfo is UTC else value.astimezone(UTC)
    except OverflowError as error:
        raise PydanticCustomError("utc", "A time is between the years 1 and 9999 in UTC") from error


type UtcDatetime = Annotated[AwareDatetime, AfterValidator(_utc)]
"""An aware time, kept in UTC, to the microsecond."""


class Causation(BaseModel, frozen=True):
    """The firing and the run that led to an event, and how deep its causal chain is by then."""

    firing_id: Id
    run_id: Id
    depth: int = Field(ge=1)


class Draft(NamedTuple):
    """What is about to be appended: an envelope but for the place, the time and the workspace that it gets.

    Attributes:
        id: The event's id.
        payload: The event's JSON object.
        actor: Who publishes it.
        correlation_id: The chain that the event joins; its own id where it starts one.
        causation: What emitted it.
        traceparent: The W3C trace context of the span that publishes it.
        fresh: Whether the id was made at random for this draft, so that it need not be looked for in the log.
    """

    id: str
    payload: dict[str, Any]
    actor: Actor
    correlation_id: str
    causation: Causation | None = None
    traceparent: str | None = None
    fresh: bool = False

    @staticmethod
    def texts(drafts: Sequence["Draft"], workspace_id: str) -> list[str]:
        """Returns the JSON text of each draft's envelope in a workspace, from after `seq` and `ts` on.

        For a storage that counts while it writes: behind `{"seq":1,"ts":"2026-01-01T00:00:00Z",` it is what
        `Envelope.model_validate_json` reads. It has no line breaks.
        """
        place = to_json(workspace_id).decode()
        texts: list[str] = []
        origin, whose = "", None
        for event_id, payload, actor, correlation_id, causation, traceparent, _ in drafts:
            # Those that are published together are of one origin, which is written once.
            if whose is None or whose[0] is not actor or whose[1] is not causation or whose[2] != traceparent:
                whose = (actor, causation, traceparent)
                by, cause, trace = (to_json(one).decode() for one in whose)
                origin = f'"workspace_id":{place},"actor":{by},"causation":{cause},"traceparent":{trace}'
            name = to_json(event_id).decode()
            chain = name if correlation_id == event_id else to_json(correlation_id).decode()
            event = to_json(payload).decode()
            texts.append(f'"id":{name},{origin},"correlation_id":{chain},"event":{event}}}')
        return texts


class Envelope(BaseModel):
    """A stored event, which is also its wire shape.

    Attributes:
        seq: Its gap-free place in the workspace's log, from 1.
        id: The event's id: publishing the same id again appends nothing.
        ts: When it was appended; the clock that rules use. It never decreases in a log.
        workspace_id: The workspace whose log holds it.
        actor: Who published it.
        causation: The firing and run that emitted it, and the chain's depth; `None` for an event from outside.
        correlation_id: The id of the first event of its causal chain.
        traceparent: The W3C trace context of the span that published it.
        payload: The event's JSON object, under `event` in JSON. Treat it as immutable.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    seq: int = Field(ge=1, le=MAX_SEQ)
    id: Id
    ts: UtcDatetime
    workspace_id: Id
    actor: Actor
    causation: Causation | None = None
    correlation_id: Id
    traceparent: str | None = None
    payload: dict[str, Any] = Field(alias="event")

    @classmethod
    def placed(cls, draft: Draft, *, seq: int, ts: datetime, workspace_id: str) -> Self:
        """Returns the envelope of a draft at its place, for a storage that appends it.

        Nothing is validated again: the draft was when it was made.
        """
        event_id, payload, actor, correlation_id, causation, traceparent, _ = draft
        # What `model_construct` does, at less than half its cost: each event that is appended is one of these.
        envelope = object.__new__(cls)
        values = {
            "seq": seq,
            "id": event_id,
            "ts": ts,
            "workspace_id": workspace_id,
            "actor": actor,
            "causation": causation,
            "correlation_id": correlation_id,
            "traceparent": traceparent,
            "payload": payload,
        }
        object.__setattr__(envelope, "__dict__", values)
        object.__setattr__(envelope, "__pydantic_fields_set__", set(_FIELDS))
        object.__setattr__(envelope, "__pydantic_extra__", None)
        object.__setattr__(envelope, "__pydantic_private__", None)
        return envelope

    @property
    def event_type(self) -> str:
        """The event's qualified type."""
        return self.payload["type"]

    @property
    def depth(self) -> int:
        """How deep the event is in its causal chain: 0 for an event from outside."""
        return 0 if self.causation is None else self.causation.depth

    @cached_property
    def registry(self) -> EventRegistry:
        """The registry that knows the event's class."""
        return DEFAULT_REGISTRY

    @cached_property
    def event(self) -> Event:
        """The typed event: an `UnknownEvent` if the registry does not know its type.

        Raises:
            InvalidEventError: Its class no longer accepts it.
        """
        return self.registry.parse(self.payload)

    @override
    def __copy__(self) -> Self:
        """Leaves out the typed event, whose payload a copy may change."""
        copied = super().__copy__()
        vars(copied).pop("event", None)
        return copied

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Leaves out the typed event, whose payload a copy may change."""
        copied = super().__deepcopy__(memo)
        vars(copied).pop("event", None)
        return copied

    def bind(self, registry: EventRegistry) -> Self:
        """Returns the same envelope, whose `event` is of the registry's class."""
        if registry is vars(self).get("registry", DEFAULT_REGISTRY):
            return self
        bound = self.model_copy()
        vars(bound)["registry"] = registry
        return bound

    def to_json(self) -> str:
        """Returns the envelope's JSON text, which `Envelope.model_validate_json` reads back."""
        return self.model_dump_json(by_alias=True)


_FIELDS: Final = frozenset(Envelope.model_fields)
