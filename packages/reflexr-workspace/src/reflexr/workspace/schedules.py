"""Schedules: timetables by which ticks are published, and the pure functions that say when those are due.

Publishing them is `reflexr.workspace.ticking`'s. A schedule reads no clock: what time it is comes in as an argument.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain, islice, takewhile
from typing import Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_serializer, field_validator, model_validator
from pydantic_core import PydanticCustomError

from reflexr.core import Draft, Id, SystemActor, Tick, Window, derived_id
from reflexr.workspace.refs import WorkspaceRef

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RESOLUTION: Final = timedelta(microseconds=1)
_LONGEST: Final = timedelta(days=36_525)
_LONGEST_SHIFT: Final = timedelta(hours=24)
"""No zone ever put its clocks back by more: Kwajalein and Samoa skipped or repeated a day."""


def _ref(pair: Any) -> Any:
    match pair:
        case (str() as tenant_id, str() as workspace_id):
            return WorkspaceRef(tenant_id, workspace_id)
        case _:
            return pair


class Schedule(BaseModel):
    """When ticks are published, and where.

    Exactly one of `every` and `cron` says when. A tick carries the time at which it was due, whenever it is published.

    Attributes:
        name: The name that its ticks carry; unique in a process.
        every: The time from one tick to the next, at most a century. Ticks fall on its multiples since
            1970-01-01T00:00Z, so every process names the same times.
        cron: A cron expression of five fields, or of six with seconds first, as `cronsim` reads it: like Debian's cron,
            also where clocks are put forward or back.
        timezone: The IANA time zone of `cron`.
        catch_up: Which of the ticks that were missed are published: the latest alone (`skip`), or each, oldest first
            (`all`).
        limit: With `all`, how many are published at once; the next pass goes on after them. 1 to 10,000.
        targets: The workspaces that get the ticks, such as `[("acme", "prod")]`, with or without a log; `None` for
            every workspace with a log.

    Raises:
        ValidationError: The schedule can never work; every problem is listed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Id
    every: Window | None = None
    cron: str | None = None
    timezone: str = "UTC"
    catch_up: Literal["skip", "all"] = "skip"
    limit: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 100
    targets: frozenset[Annotated[WorkspaceRef, BeforeValidator(_ref)]] | None = None

    def next(self, after: datetime) -> datetime:
        """Returns the first time after this one, in UTC."""
        return next(self._times(after))

    def latest(self, now: datetime) -> datetime:
        """Returns the last time at or before this one, in UTC."""
        if self.every is not None:
            return _EPOCH + (now - _EPOCH) // self.every * self.every
        return next(at for at in self._cron_times_back(now) if at <= now)

    def missed(self, last: datetime | None, now: datetime) -> list[datetime]:
        """Returns the times of the ticks to publish now, oldest first.

        Args:
            last: The time of the last tick; `None` if there was none yet, which is answered with the latest alone.
            now: The time now.
        """
        latest = self.latest(now)
        if last is not None and latest <= last:
            return []
        if last is None or self.catch_up == "skip":
            return [latest]
        before = takewhile(lambda at: at < latest, self._times(last))
        return list(islice(chain(before, (latest,)), self.limit))

    def admits(self, workspace: WorkspaceRef) -> bool:
        """Whether the workspace gets the ticks, once it has a log."""
        return self.targets is None or workspace in self.targets

    def within(self, tenant_id: str) -> Self | None:
        """Returns the schedule as one tenant sees it, with its own workspaces as targets; `None` if it has none."""
        if self.targets is None:
            return self
        targets = frozenset(target for target in self.targets if target.tenant_id == tenant_id)
        return self.model_copy(update={"targets": targets}) if targets else None

    @field_serializer("targets")
    def _sorted_targets(self, targets: frozenset[WorkspaceRef] | None) -> list[WorkspaceRef] | None:
        """The same schedule has the same JSON in every process."""
        return None if targets is None else sorted(targets)

    @field_validator("every")
    @classmethod
    def _every_has_times(cls, every: timedelta | None) -> timedelta | None:
        if every is not None and every > _LONGEST:
            raise PydanticCustomError("every", "{every} is longer than a century, 36,525 days", {"every": str(every)})
        return every

    @field_validator("timezone")
    @classmethod
    def _zone_exists(cls, timezone: str) -> str:
        try:
            ZoneInfo(timezone)
        except (KeyError, ValueError, OSError) as error:
            raise PydanticCustomError(
                "time_zone",
                "{zone} is no time zone: name one of the IANA's, such as 'Europe/Oslo'",
                {"zone": repr(timezone)},
            ) from error
        return timezone

    @field_validator("cron")
    @classmethod
    def _cron_has_times(cls, cron: str | None) -> str | None:
        if cron is None:
            return None
        try:
            # The longest that days of any pattern are apart is 40 years, around 1900 and 2100, and `cronsim` looks
            # for 50.
            first = next(CronSim(cron, _EPOCH), None)
        except (CronSimError, ValueError) as error:
            raise PydanticCustomError(
                "cron",
                "{cron} is no cron expression: {problem}. Write five fields, such as '0 9 * * mon-fri'",
                {"cron": repr(cron), "problem": str(error)},
            ) from error
        if first is None:
            raise PydanticCustomError("cron", "{cron} names a day that never comes", {"cron": repr(cron)})
        return cron

    @model_validator(mode="after")
    def _every_or_cron(self) -> Self:
        if (self.every is None) == (self.cron is None):
            raise PydanticCustomError("schedule", "A schedule has either `every` or `cron`, and not both")
        if self.cron is None and self.timezone != "UTC":
            raise PydanticCustomError("schedule", "`timezone` is for `cron` alone: `every` counts in UTC")
        return self

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    def _times(self, after: datetime) -> Iterator[datetime]:
        return self._cron_times(after) if self.every is None else _multiples(self.every, after)

    def _cron_times(self, after: datetime) -> Iterator[datetime]:
        sim = CronSim(str(self.cron), after.astimezone(self._zone))
        while True:
            at = next(sim).astimezone(UTC)
            # An hour that is repeated is first read as its first pass, so what comes out may lie before what went in.
            if at > after:
                after = at
                yield at

    def _cron_times_back(self, now: datetime) -> Iterator[datetime]:
        """Returns times from some time after `now` back, so that none at or before it is left out."""
        from_here = now + _RESOLUTION
        sim = CronSim(str(self.cron), from_here.astimezone(self._zone), reverse=True)
        if sim.fixup_tz is not None:
            # These times are reckoned by the wall clock, which may show less now than it did at a time before.
            sim = CronSim(str(self.cron), (from_here + _LONGEST_SHIFT).astimezone(self._zone), reverse=True)
        return (local.astimezone(UTC) for local in sim)


def _multiples(every: timedelta, after: datetime) -> Iterator[datetime]:
    at = _EPOCH + (after - _EPOCH) // every * every
    while True:
        at += every
        yield at


def tick_id(schedule: str, at: datetime) -> str:
    """Returns the id of a schedule's tick, which is the same in every process."""
    return derived_id("evt", "tick", schedule, at.astimezone(UTC).isoformat())


def tick(schedule: str, at: datetime) -> Draft:
    """Returns the `reflexr:tick` event of a schedule that was due at this time. It starts a causal chain of its own."""
    event_id = tick_id(schedule, at)
    return Draft(
        id=event_id, payload=Tick(schedule=schedule, at=at).payload(), actor=SCHEDULER, correlation_id=event_id
    )


SCHEDULER: Final = SystemActor(name="scheduler")
"""Who publishes ticks."""
