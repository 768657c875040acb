"""Descriptions: what every surface reports about rules and schedules, in the same words."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from reflexr.core.envelopes import Seq, UtcDatetime
from reflexr.core.names import AnyRuleName
from reflexr.core.rules import Rule

type Origin = Literal["code", "stored"]
"""Where a rule comes from: the application's code, or its workspace's storage."""


class RuleStatus(BaseModel, frozen=True):
    """How a rule stands in a workspace.

    Attributes:
        rule: Its name.
        origin: Where it comes from.
        version: A stored rule's version.
        enabled: Whether it is evaluated.
        generation: Counted from 1, by its resets; `None` if it has not begun here.
        cursor: The place of the last envelope it has evaluated; `None` if it has not begun here.
        lag: How many envelopes it has still to evaluate.
        dead_letters: How many envelopes it could not decide on.
    """

    rule: AnyRuleName
    origin: Origin
    version: int | None
    enabled: bool
    generation: int | None
    cursor: Seq | None
    lag: int
    dead_letters: int


class RuleDescription(BaseModel, frozen=True):
    """One rule, with where it comes from.

    Attributes:
        rule: The rule.
        origin: Where it comes from.
        version: A stored rule's version.
        status: Whether it is active, or a stored rule that was archived.
        provenance: Where a stored rule's version comes from.
    """

    rule: Rule
    origin: Origin
    version: int | None = None
    status: Literal["active", "archived"] = "active"
    provenance: dict[str, Any] = Field(default_factory=dict)


class ScheduleStatus(BaseModel, frozen=True):
    """How a schedule stands in a workspace.

    Attributes:
        schedule: Its name.
        last_tick: When its last tick here was due; `None` before the first.
        next_tick: When its next is due.
    """

    schedule: str
    last_tick: UtcDatetime | None
    next_tick: UtcDatetime | None
