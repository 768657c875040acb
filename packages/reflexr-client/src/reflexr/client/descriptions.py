"""Descriptions: what a server says about rules and schedules. Fields that a newer server sends besides are ignored."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from reflexr.core import AnyRuleName, Id, Rule, Seq, UtcDatetime, Window

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
    version: int | None = None
    enabled: bool
    generation: int | None = None
    cursor: Seq | None = None
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
    last_tick: UtcDatetime | None = None
    next_tick: UtcDatetime | None = None


class ScheduleTarget(BaseModel, frozen=True):
    """A workspace that gets a schedule's ticks."""

    tenant_id: Id
    workspace_id: Id


class ScheduleDescription(BaseModel, frozen=True):
    """When a schedule ticks, and where; exactly one of `every` and `cron` says when.

    Attributes:
        name: The name that its ticks carry.
        every: The time from one tick to the next.
        cron: Its cron expression.
        timezone: The IANA time zone of `cron`.
        catch_up: Which of the ticks that were missed are published: the latest alone, or each.
        limit: With `all`, how many are published at once.
        targets: The caller's workspaces that get the ticks; `None` for every one with a log.
    """

    name: Id
    every: Window | None = None
    cron: str | None = None
    timezone: str = "UTC"
    catch_up: Literal["skip", "all"] = "skip"
    limit: int = 100
    targets: frozenset[ScheduleTarget] | None = None
