"""Bodies: what clients send that is no frame of the protocol, and what the OpenAPI document shows of it."""

from typing import Annotated, Any, Final

from fastapi import Body
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from reflexr.core import MAX_BATCH, CommandFrame, EventToPublish, Id, Publish, PublishMany


class PublishEvent(EventToPublish):
    """One event, with its `id` if the client chooses it, and the causal chain that it joins, if it joins one."""

    correlation_id: Id | None = None


class PublishEvents(BaseModel):
    """Several events, which are there together or not at all, and the causal chain that all of them join, if any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    events: Annotated[tuple[EventToPublish, ...], Field(max_length=MAX_BATCH)]
    correlation_id: Id | None = None


def _form(body: Any) -> str:
    return "PublishEvents" if "events" in body else "PublishEvent"


type PublishBody = Annotated[
    Annotated[PublishEvent, Tag("PublishEvent")] | Annotated[PublishEvents, Tag("PublishEvents")], Discriminator(_form)
]
"""What is published by one request: one event, or several."""


def _typed(frame: Any) -> Any:
    if "type" not in frame:
        raise PydanticCustomError("frame", 'A command comes in a frame that has the type "command"')
    return frame


CommandBody = Annotated[CommandFrame, BeforeValidator(_typed)]
"""A command's frame, which says that it is one, as on a stream."""


def publishing(body: PublishEvent | PublishEvents) -> Publish | PublishMany:
    """Returns the command that a body asks for."""
    if isinstance(body, PublishEvents):
        return PublishMany(events=body.events, correlation_id=body.correlation_id)
    return Publish(event=body.event, id=body.id, correlation_id=body.correlation_id)


_EVENT: Final[dict[str, Any]] = {"type": "ops:service.error", "service": "auth", "severity": 8}

PUBLISH_BODY: Final = Body(
    openapi_examples={
        "one": {"summary": "One event", "value": {"event": _EVENT, "id": "alert-7"}},
        "several": {
            "summary": "Several events, all or none",
            "value": {"events": [{"event": _EVENT, "id": "alert-7"}, {"event": _EVENT, "id": "alert-8"}]},
        },
    }
)
"""How a body of `PublishBody` is declared."""

COMMAND_BODY: Final = Body(
    openapi_examples={
        "publish": {
            "summary": "Publish an event",
            "value": {
                "type": "command",
                "command_id": "c-1",
                "command": {"type": "publish", "event": _EVENT, "id": "alert-7"},
            },
        },
        "retry_run": {
            "summary": "Queue a dead-lettered run again",
            "value": {
                "type": "command",
                "command_id": "c-2",
                "command": {"type": "retry_run", "run_id": "fir_0123456789abcdef"},
            },
        },
        "resume_run": {
            "summary": "Answer a paused run",
            "value": {
                "type": "command",
                "command_id": "c-3",
                "command": {
                    "type": "resume_run",
                    "run_id": "fir_0123456789abcdef",
                    "answer": {"approved": True},
                    "attempt": 1,
                },
            },
        },
    }
)
"""How a body of `CommandBody` is declared."""

PUBLISHED_EXAMPLE: Final = {"type": "published", "seq": 7, "id": "alert-7", "duplicate": False}

ENVELOPE_EXAMPLE: Final[dict[str, Any]] = {
    "seq": 7,
    "id": "alert-7",
    "ts": "2026-01-01T09:30:00Z",
    "workspace_id": "prod",
    "actor": {"kind": "source", "name": "monitor"},
    "causation": None,
    "correlation_id": "alert-7",
    "traceparent": None,
    "event": _EVENT,
}

RULE_EXAMPLE: Final[dict[str, Any]] = {
    "name": "ops:error-spike",
    "when": {
        "filter": {"kind": "on", "types": ["ops:service.error"]},
        "pattern": {"kind": "count", "at_least": 3, "within": "PT1M"},
    },
    "scope": {"fields": ["service"]},
    "then": {"action": "triage"},
}

RULE_DESCRIPTION_EXAMPLE: Final[dict[str, Any]] = {
    "rule": RULE_EXAMPLE,
    "origin": "code",
    "version": None,
    "status": "active",
    "provenance": {},
}

INSTALLED_EXAMPLE: Final[dict[str, Any]] = {
    **ENVELOPE_EXAMPLE,
    "id": "evt_0123456789abcdef",
    "actor": {"kind": "user", "id": "ada"},
    "correlation_id": "evt_0123456789abcdef",
    "event": {
        "type": "reflexr:rule_installed",
        "rule": "ops:error-spike",
        "version": 1,
        "spec": RULE_EXAMPLE,
        "provenance": {},
    },
}

DEAD_LETTER_EXAMPLE: Final[dict[str, Any]] = {
    "rule": "ops:error-spike",
    "generation": 1,
    "seq": 7,
    "scope_key": '["auth"]',
    "ts": "2026-01-01T09:30:00Z",
    "kind": "predicate_failed",
    "error": "LookupError: nobody knows the service",
}

RUN_EXAMPLE: Final[dict[str, Any]] = {
    "id": "fir_0123456789abcdef",
    "rule": "ops:error-spike",
    "generation": 1,
    "scope": {"service": "auth"},
    "scope_key": '["auth"]',
    "fired_seq": 7,
    "fired_at": "2026-01-01T09:30:00Z",
    "matched": [5, 6, 7],
    "correlation_id": "alert-7",
    "depth": 1,
    "status": "succeeded",
    "attempt": 1,
    "output": {"severity": "high"},
    "started_at": "2026-01-01T09:30:01Z",
    "finished_at": "2026-01-01T09:30:04Z",
}

RULE_STATUS_EXAMPLE: Final[dict[str, Any]] = {
    "rule": "chat:deployments",
    "origin": "stored",
    "version": 1,
    "enabled": True,
    "generation": 1,
    "cursor": 7,
    "lag": 0,
    "dead_letters": 0,
}

SCHEDULE_EXAMPLE: Final[dict[str, Any]] = {
    "name": "heartbeat-check",
    "every": "PT30S",
    "cron": None,
    "timezone": "UTC",
    "catch_up": "skip",
    "limit": 100,
    "targets": None,
}

SCHEDULE_STATUS_EXAMPLE: Final[dict[str, Any]] = {
    "schedule": "heartbeat-check",
    "last_tick": "2026-01-01T09:30:00Z",
    "next_tick": "2026-01-01T09:30:30Z",
}
