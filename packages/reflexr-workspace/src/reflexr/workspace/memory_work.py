"""What `InMemoryStorage` finds work by, over all workspaces: leases, due runs, rules that are behind, due schedules.

Each index is brought up to date at each commit for what the commit changed, so that finding work costs what there is of
it.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from heapq import merge
from typing import Final

from reflexr.workspace.memory_data import RunRow, WorkspaceData
from reflexr.workspace.refs import LeaseKey, WorkspaceRef, run_lease
from reflexr.workspace.storage import Deadline, DueRun, DueSchedule, RunPolicy, Watch
from reflexr.workspace.timers import Timers

_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_MAX_WATCHES: Final = 16


class Leases:
    """Who holds what, until when."""

    def __init__(self) -> None:
        self._holders: dict[LeaseKey, str] = {}
        self._until: dict[LeaseKey, datetime] = {}
        self._lapses = Timers[LeaseKey]()

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, key: LeaseKey, now: datetime) -> str | None:
        """Returns the holder of a lease that is live."""
        return self._holders[key] if key in self._until and self._until[key] > now else None

    def until(self, key: LeaseKey) -> datetime | None:
        """Returns when a lease lapses."""
        return self._until.get(key)

    def take(self, key: LeaseKey, holder: str, until: datetime) -> None:
        """Gives a lease to a holder."""
        self._holders[key] = holder
        self._until[key] = until
        self._lapses.set(key, until)

    def drop(self, key: LeaseKey) -> None:
        """Takes a lease from its holder."""
        del self._holders[key], self._until[key]
        self._lapses.discard(key)

    def purge(self, now: datetime) -> None:
        """Forgets the leases that have lapsed."""
        for key in self._lapses.expire(now):
            del self._holders[key], self._until[key]


type _Entry = tuple[WorkspaceRef, str]


class RuleQueue:
    """The unfinished runs of one rule, each with the time from which it may start.

    Attributes:
        free: Those whose turn it is, whether or not dead-lettered runs hold back the later ones.
        blocked: Those whose turn it is only where they do not.
        waiting: Those behind them.
    """

    def __init__(self) -> None:
        self.free = Timers[_Entry]()
        self.blocked = Timers[_Entry]()
        self.waiting = Timers[_Entry]()

    def __len__(self) -> int:
        return len(self.free) + len(self.blocked) + len(self.waiting)

    def discard(self, entry: _Entry) -> None:
        """Forgets a run."""
        for timers in (self.free, self.blocked, self.waiting):
            timers.discard(entry)


class DueRuns:
    """The unfinished runs of every workspace, by rule and by the time from which each may start.

    Attributes:
        rules: Those of each rule that has any.
        stored: Those of stored rules that their workspace lets start, by namespace.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.rules: dict[str, RuleQueue] = {}
        self.stored: dict[str, Timers[_Entry]] = {}
        self._rule_of: dict[_Entry, str] = {}

    def update(self, workspace: WorkspaceRef, data: WorkspaceData, run_ids: Iterable[str], now: datetime) -> None:
        """Brings these runs up to date: those that changed, and those whose turn it was or has become."""
        for run_id in run_ids:
            row = data.runs.rows[run_id]
            entry = (workspace, run_id)
            rule = row.scope.rule
            queue = self.rules.get(rule)
            at = self._starts(workspace, row, now)
            if at is None:
                self._forget(entry, rule, queue)
                continue
            if queue is None:
                queue = self.rules[rule] = RuleQueue()
            scope = data.runs.scopes[row.scope]
            queue.discard(entry)
            if scope.turn(blocking=True) == run_id:
                queue.free.set(entry, at)
            elif scope.turn(blocking=False) == run_id:
                queue.blocked.set(entry, at)
            else:
                queue.waiting.set(entry, at)
            self._rule_of[entry] = rule
            self._update_stored(entry, data, row, at)

    def find(self, policy: RunPolicy, now: datetime, limit: int) -> list[DueRun]:
        """Returns the runs that may start now, those that have waited longest first."""
        found = [timers.through(now, limit) for timers in self._admitted(policy)]
        earliest = merge(*found, key=lambda item: item[0])
        return [
            DueRun(workspace, run_id, self._rule_of[workspace, run_id])
            for _, (_, (workspace, run_id)) in zip(range(limit), earliest, strict=False)
        ]

    def first(self, policy: RunPolicy) -> datetime | None:
        """Returns the earliest time from which an admitted run may start."""
        return min(filter(None, (timers.first() for timers in self._admitted(policy))), default=None)

    def _admitted(self, policy: RunPolicy) -> Iterator[Timers[_Entry]]:
        for rule, queue in self.rules.items():
            if rule in policy.unordered or rule in policy.ordered:
                yield queue.free
            if rule in policy.unordered or (rule in policy.ordered and rule not in policy.blocking):
                yield queue.blocked
            if rule in policy.unordered:
                yield queue.waiting
        for namespace in policy.stored & self.stored.keys():
            yield self.stored[namespace]

    def _starts(self, workspace: WorkspaceRef, row: RunRow, now: datetime) -> datetime | None:
        match row.status:
            case "pending":
                return min(row.fired_at, now)
            case "retrying":
                return now if row.next_attempt_at is None else row.next_attempt_at
            case "running":
                return self._leases.until(LeaseKey(workspace, run_lease(row.id))) or min(row.fired_at, now)
            case _:
                return None

    def _update_stored(self, entry: _Entry, data: WorkspaceData, row: RunRow, at: datetime) -> None:
        stored = data.stored_rules.get(row.scope.rule)
        if stored is None:
            return
        turn = not stored.ordered or data.runs.scopes[row.scope].turn(blocking=stored.blocking) == row.id
        timers = self.stored.setdefault(namespace_of(row.scope.rule), Timers[_Entry]())
        timers.set(entry, at if stored.enabled and turn else None)

    def _forget(self, entry: _Entry, rule: str, queue: RuleQueue | None) -> None:
        self._rule_of.pop(entry, None)
        if queue is not None:
            queue.discard(entry)
            if not queue:
                del self.rules[rule]
        if (timers := self.stored.get(namespace_of(rule))) is not None:
            timers.discard(entry)
            if not timers:
                del self.stored[namespace_of(rule)]


class Behind:
    """The workspaces that changed since they were last seen to be done, for each set of rules somebody asked about."""

    def __init__(self, workspaces: Mapping[WorkspaceRef, WorkspaceData]) -> None:
        self._workspaces = workspaces
        # The set of rules is the key; of its workspaces, those that were answered last come last.
        self._changed: dict[object, dict[WorkspaceRef, None]] = {}

    def changed(self, workspace: WorkspaceRef) -> None:
        """Notes that a workspace's log, progress or stored rules changed."""
        for workspaces in self._changed.values():
            workspaces[workspace] = None

    def find(self, watch: Watch, limit: int) -> list[WorkspaceRef]:
        """Returns workspaces where one of the rules has something to do."""
        key = (frozenset(watch.definitions.items()), watch.stored)
        changed = self._changed.pop(key, None)
        if changed is None:
            # Whoever asks with new rules looks at every workspace once.
            changed = dict.fromkeys(self._workspaces)
            if len(self._changed) == _MAX_WATCHES:
                del self._changed[next(iter(self._changed))]
        self._changed[key] = changed
        found: list[WorkspaceRef] = []
        for workspace in list(changed):
            if len(found) == limit:
                break
            del changed[workspace]
            if is_behind(self._workspaces[workspace], watch):
                found.append(workspace)
        changed.update(dict.fromkeys(found))
        return found


class DueSchedules:
    """Every workspace with a log by the time of its last tick, for each schedule somebody asked about."""

    def __init__(self, workspaces: Mapping[WorkspaceRef, WorkspaceData]) -> None:
        self._workspaces = workspaces
        self._last: dict[str, Timers[WorkspaceRef]] = {}

    def changed(self, workspace: WorkspaceRef, data: WorkspaceData) -> None:
        """Notes that a workspace's log began, or that schedules ticked there."""
        if data.log.head.seq:
            for schedule, timers in self._last.items():
                timers.set(workspace, data.ticks.get(schedule, _NEVER))

    def find(self, deadlines: Mapping[str, Deadline], limit: int) -> list[DueSchedule]:
        """Returns where schedules have not ticked since their deadlines."""
        found: list[DueSchedule] = []
        for schedule, deadline in deadlines.items():
            if deadline.workspaces is not None:
                due = [
                    workspace
                    for workspace in sorted(deadline.workspaces)
                    if self._tick(workspace, schedule) < deadline.at
                ]
            else:
                before = deadline.at - timedelta.resolution
                due = [workspace for _, workspace in self._index(schedule).through(before, limit - len(found))]
            found += [DueSchedule(workspace, schedule, self._known(workspace, schedule)) for workspace in due]
            if len(found) >= limit:
                return found[:limit]
        return found

    def _index(self, schedule: str) -> Timers[WorkspaceRef]:
        timers = self._last.get(schedule)
        if timers is None:
            timers = self._last[schedule] = Timers[WorkspaceRef]()
            for workspace, data in self._workspaces.items():
                if data.log.head.seq:
                    timers.set(workspace, data.ticks.get(schedule, _NEVER))
        return timers

    def _known(self, workspace: WorkspaceRef, schedule: str) -> datetime | None:
        data = self._workspaces.get(workspace)
        return None if data is None else data.ticks.get(schedule)

    def _tick(self, workspace: WorkspaceRef, schedule: str) -> datetime:
        return self._known(workspace, schedule) or _NEVER


def is_behind(data: WorkspaceData, watch: Watch) -> bool:
    """Whether one of the watched rules has something to do in a workspace."""
    head = data.log.head.seq
    if not head:
        return False
    for rule, definition in watch.definitions.items():
        progress = data.progress.get(rule)
        if progress is None or progress.cursor < head or progress.definition != definition:
            return True
    for rule, stored in data.stored_rules.items():
        if stored.enabled and namespace_of(rule) in watch.stored:
            progress = data.progress.get(rule)
            if progress is None or progress.cursor < head:
                return True
    return False


def namespace_of(rule: str) -> str:
    """Returns the namespace of a rule's name."""
    return rule.partition(":")[0]
