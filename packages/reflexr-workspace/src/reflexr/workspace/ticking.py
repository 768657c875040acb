"""Ticking: publishing the ticks of schedules that are due.

When those are due is `reflexr.workspace.schedules`'s. Which workspaces are looked at when is
`reflexr.workspace.rounds`'s.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from reflexr.telemetry import Attributes, attributes, traceparent_of
from reflexr.workspace.configuration import Configuration
from reflexr.workspace.facts import append_facts
from reflexr.workspace.refs import WorkspaceRef, schedule_lease
from reflexr.workspace.rounds import PARALLEL, Delays, Work
from reflexr.workspace.schedules import Schedule, tick
from reflexr.workspace.storage import Deadline, DueSchedule, LogWindow, Transaction


class Ticking:
    """The duty of publishing every tick that is due."""

    name = "ticking"

    def __init__(self, configuration: Configuration, *, holder: str, lease_ttl: timedelta, serving: bool) -> None:
        """Takes up the duty.

        Args:
            configuration: The schedules, and where the workspaces are.
            holder: Who holds the leases.
            lease_ttl: How long a lease lasts.
            serving: Whether what broke is tried again after a while.
        """
        self._configuration = configuration
        self._storage = configuration.storage
        self._schedules: Final[Mapping[str, Schedule]] = {
            schedule.name: schedule for schedule in configuration.settings.schedules
        }
        self._holder = holder
        self._lease_ttl = lease_ttl
        self._serving = serving
        self._aside = Delays[WorkspaceRef]()
        # Where no tick is due though none was ever published, as the log is younger than the schedule's latest time;
        # and without serving, where each schedule has had its turn.
        self._seen: set[WorkspaceRef] = set()
        # Until then no schedule has a new tick, and what was due before has been found.
        self._quiet_until: datetime | None = None

    @property
    def idle(self) -> bool:
        """Always: everything that it does is work that was found."""
        return True

    def heard(self, changed: frozenset[WorkspaceRef]) -> bool:
        """Takes no note: ticks are due by time alone, and in workspaces that are new."""
        return True

    async def find(self, busy: Collection[WorkspaceRef]) -> Mapping[WorkspaceRef, Work]:
        """Returns the workspaces where ticks are due."""
        now = await self._storage.now()
        if self._quiet_until is not None:
            if now < self._quiet_until:
                return {}
            self._quiet_until = None
            self._seen.clear()
        deadlines = {
            name: Deadline(at=schedule.latest(now), workspaces=schedule.targets)
            for name, schedule in self._schedules.items()
        }
        limit = (PARALLEL + len(self._aside) + len(self._seen)) * len(deadlines)
        found: dict[WorkspaceRef, list[DueSchedule]] = {}
        for due in await self._storage.due_schedules(deadlines, limit=limit):
            if due.workspace not in busy and due.workspace not in self._aside and due.workspace not in self._seen:
                found.setdefault(due.workspace, []).append(due)
        if not (found or busy or len(self._aside)):
            self._quiet_until = self._next(now)
        todo = list(found.items())[: PARALLEL - len(busy)]
        return {workspace: partial(self._tick, workspace, dues) for workspace, dues in todo}

    async def rest(self) -> timedelta | None:
        """Returns how long it is until the next tick of any schedule, or until what broke is tried again."""
        now = await self._storage.now()
        waits = [self._next(now) - now, self._aside.rest()]
        return min(wait for wait in waits if wait is not None)

    def failed(self, workspace: WorkspaceRef) -> None:
        """Leaves a workspace alone for a while."""
        self._aside.add(workspace, None if self._serving else timedelta.max)

    def _next(self, now: datetime) -> datetime:
        return min(schedule.next(now) for schedule in self._schedules.values())

    async def _tick(self, workspace: WorkspaceRef, dues: Sequence[DueSchedule]) -> int:
        """Publishes the ticks of schedules that are due in a workspace, and returns how many."""
        began: datetime | None = None
        if any(due.last is None for due in dues):
            first = await self._storage.read(workspace, LogWindow(limit=1))
            began = first[0].ts if first else None
        now = await self._storage.now()
        names = [due.schedule for due in dues if self._missed(due.schedule, due.last, began, now)]
        published: Counter[str] = Counter()
        if names:
            with self._configuration.tracing.span("reflexr.tick", partial(_attributes, workspace)) as span:
                async with self._storage.transaction(workspace) as transaction:
                    published = await self._publish(transaction, names, began, traceparent_of(span))
        if not (published and self._serving):
            self._seen.add(workspace)
        self._aside.forget(workspace)
        self._measure(workspace, published)
        return published.total()

    def _missed(self, name: str, last: datetime | None, began: datetime | None, now: datetime) -> list[datetime]:
        """Returns the times of the ticks to publish: the first of a schedule is none from before the log began."""
        missed = self._schedules[name].missed(last, now)
        return missed if last is not None or began is None else [at for at in missed if at > began]

    async def _publish(
        self, transaction: Transaction, names: Sequence[str], began: datetime | None, traceparent: str | None
    ) -> Counter[str]:
        """Appends the ticks that are still due, and saves the time of the last of each schedule."""
        leases = {schedule_lease(name): name for name in names}
        taken = await transaction.acquire(leases, self._holder, self._lease_ttl)
        ticks = await transaction.schedule_ticks()
        missed = {
            name: times
            for lease, name in leases.items()
            if lease in taken and (times := self._missed(name, ticks.get(name), began, transaction.now))
        }
        # In the order in which they were due, as if each had been published in time.
        due = sorted((at, name) for name, times in missed.items() for at in times)
        drafts = [tick(name, at) for at, name in due]
        known = await transaction.find({draft.id for draft in drafts}) if drafts else {}
        fresh = [draft for draft in drafts if draft.id not in known or known[draft.id].payload != draft.payload]
        if fresh:
            await append_facts(transaction, fresh, traceparent)
        if missed:
            await transaction.save_schedule_ticks({name: times[-1] for name, times in missed.items()})
        await transaction.release(taken, self._holder)
        return Counter(name for _, name in due)

    def _measure(self, workspace: WorkspaceRef, published: Mapping[str, int]) -> None:
        for name, count in published.items():
            self._configuration.instruments.ticks.add(
                count,
                {
                    "reflexr.tenant.id": workspace.tenant_id,
                    "reflexr.workspace.id": workspace.workspace_id,
                    "reflexr.schedule": name,
                },
            )


def _attributes(workspace: WorkspaceRef) -> Attributes:
    return {attributes.TENANT: workspace.tenant_id, attributes.WORKSPACE: workspace.workspace_id}
