"""Descriptions: what a server says about schedules. Fields that a newer server sends besides are ignored."""

from typing import Literal

from pydantic import BaseModel

from reflexr.core import Id, Window


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
