"""The names of the attributes of spans and metrics, and how an actor becomes some of them."""

from typing import Final

from reflexr.core import Actor, participant

TENANT: Final = "reflexr.tenant.id"
WORKSPACE: Final = "reflexr.workspace.id"
ACTOR_KIND: Final = "reflexr.actor.kind"
ACTOR: Final = "reflexr.actor.id"
SESSION: Final = "session.id"
"""The correlation id of the causal chain: every backend groups traces by it."""
EVENT_TYPE: Final = "reflexr.event.type"
EVENT_ID: Final = "reflexr.event.id"
EVENT_SEQ: Final = "reflexr.event.seq"
EVENT_COUNT: Final = "reflexr.event.count"
DUPLICATE: Final = "reflexr.duplicate"
RULE: Final = "reflexr.rule"
RULES: Final = "reflexr.rules"
FIRINGS: Final = "reflexr.firings"
RUN: Final = "reflexr.run.id"
RUN_ATTEMPT: Final = "reflexr.run.attempt"
RUN_STATUS: Final = "reflexr.run.status"
REASON: Final = "reflexr.reason"
FEEDBACK_TYPE: Final = "reflexr.feedback.type"
SCHEDULE: Final = "reflexr.schedule"
COMMAND: Final = "reflexr.command"
OUTCOME: Final = "reflexr.outcome"
ERROR_TYPE: Final = "error.type"
"""OpenTelemetry's own: what kind of failure it was."""

type Attributes = dict[str, str | bool | int | float]
"""Attributes of a span, by name."""


def actor_attributes(actor: Actor) -> Attributes:
    """Returns the attributes that say who acted."""
    return {ACTOR_KIND: actor.kind, ACTOR: participant(actor)}
