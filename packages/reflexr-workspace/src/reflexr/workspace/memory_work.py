"""What `InMemoryStorage` finds work by, over all workspaces: leases, due runs, rules that are behind, due schedules.

Each index is brought up to date at each commit for what the commit changed, so that finding work costs what there is of
it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import chain, groupby, islice, zip_longest
from typing import Any, Final

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


type _Cell = tuple[WorkspaceRef, str]
"""A workspace and a rule."""

type _Line = tuple[WorkspaceRef, str, Timers[str]]
"""A workspace, a rule, and the rule's runs there."""


class Backlog:
    """Runs with the time from which each may start, by workspace and rule.

    Workspaces are found in their order, so that they can take turns, however many runs each of them has.
    """

    def __init__(self) -> None:
        self._runs: dict[_Cell, Timers[str]] = {}
        self._cells: list[_Cell] = []
        self._firsts = Timers[_Cell]()
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def set(self, workspace: WorkspaceRef, rule: str, run_id: str, at: datetime | None) -> None:
        """Gives a run this time in place of any other; no time forgets it."""
        cell = (workspace, rule)
        runs = self._runs.get(cell)
        if runs is None:
            if at is None:
                return
            runs = self._runs[cell] = Timers[str]()
            insort(self._cells, cell)
        self._number -= len(runs)
        runs.set(run_id, at)
        self._number += len(runs)
        self._firsts.set(cell, runs.first())
        if not runs:
            del self._runs[cell], self._cells[bisect_left(self._cells, cell)]

    def first(self) -> datetime | None:
        """Returns the earliest time of all."""
        return self._firsts.first()

    def due(self, now: datetime, after: WorkspaceRef | None, few: int) -> Iterator[_Line]:
        """Yields where runs may start now, workspace by workspace, those after one first.

        Args:
            now: What time it is.
            after: The workspace after which to begin.
            few: Up to how many are looked up by their time; of more, those that come next are.
        """
        found = [cell for _, cell in self._firsts.through(now, few + 1)]
        if len(found) <= few:
            cells: Iterable[_Cell] = sorted(found, key=lambda cell: (_is_behind_turn(cell[0], after), cell))
        else:
            start = 0 if after is None else bisect_right(self._cells, after, key=_workspace_of)
            places = chain(range(start, len(self._cells)), range(start))
            cells = (cell for place in places if self._is_due(cell := self._cells[place], now))
        return ((*cell, self._runs[cell]) for cell in cells)

    def _is_due(self, cell: _Cell, now: datetime) -> bool:
        first = self._firsts.get(cell)
        return first is not None and first <= now


class RuleQueue:
    """The unfinished runs of one rule, each with the time from which it may start.

    Attributes:
        free: Those whose turn it is, whether or not dead-lettered runs hold back the later ones, and those that are
            paused, which are ended whosever turn it is.
        blocked: Those whose turn it is only where they do not.
        waiting: Those behind them.
    """

    def __init__(self) -> None:
        self.free = Backlog()
        self.blocked = Backlog()
        self.waiting = Backlog()

    def __len__(self) -> int:
        return len(self.free) + len(self.blocked) + len(self.waiting)

    def discard(self, workspace: WorkspaceRef, rule: str, run_id: str) -> None:
        """Forgets a run."""
        for backlog in (self.free, self.blocked, self.waiting):
            backlog.set(workspace, rule, run_id, None)


class DueRuns:
    """The unfinished runs of every workspace, by rule and by the time from which each may start.

    Attributes:
        rules: Those of each rule that has any.
        stored: Those of stored rules that their workspace lets start, by namespace.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.rules: dict[str, RuleQueue] = {}
        self.stored: dict[str, Backlog] = {}

    def update(self, workspace: WorkspaceRef, data: WorkspaceData, run_ids: Iterable[str], now: datetime) -> None:
        """Brings these runs up to date: those that changed, and those whose turn it was or has become."""
        for run_id in run_ids:
            row = data.runs.rows[run_id]
            rule = row.scope.rule
            queue = self.rules.get(rule)
            at = self._starts(workspace, row, now)
            if at is None:
                self._forget(workspace, rule, run_id, queue)
                continue
            if queue is None:
                queue = self.rules[rule] = RuleQueue()
            scope = data.runs.scopes[row.scope]
            queue.discard(workspace, rule, run_id)
            if row.status == "paused" or scope.turn(blocking=True) == run_id:
                queue.free.set(workspace, rule, run_id, at)
            elif scope.turn(blocking=False) == run_id:
                queue.blocked.set(workspace, rule, run_id, at)
            else:
                queue.waiting.set(workspace, rule, run_id, at)
            self._update_stored(workspace, data, row, at)

    def find(
        self,
        policy: RunPolicy,
        now: datetime,
        *,
        limit: int,
        each: int | None = None,
        after: WorkspaceRef | None = None,
        but_runs: Collection[LeaseKey] = (),
        but_workspaces: Collection[WorkspaceRef] = (),
    ) -> list[DueRun]:
        """Returns runs that may start now, of which workspaces take turns."""
        most = limit if each is None else min(each, limit)
        if most <= 0:
            return []
        left_out: dict[WorkspaceRef, set[str]] = {}
        for key in but_runs:
            left_out.setdefault(key.workspace, set()).add(key.name)
        found = [backlog.due(now, after, limit) for backlog in self._admitted(policy)]
        in_turn = merge(*found, key=lambda line: (_is_behind_turn(line[0], after), line[0]))
        places: list[tuple[list[_Line], Collection[str]]] = []
        for workspace, group in groupby(in_turn, key=_workspace_of):
            lines, but = [line for line in group if line[1] not in policy.withheld], left_out.get(workspace, ())
            if workspace not in but_workspaces and _longest_waiting(lines, now, 1, but):
                places.append((lines, but))
            if len(places) == limit:
                break
        # The others have a run each.
        most = min(most, limit - len(places) + 1)
        turns = zip_longest(*(_longest_waiting(lines, now, most, but) for lines, but in places))
        return list(islice((run for turn in turns for run in turn if run is not None), limit))

    def first(self, policy: RunPolicy) -> datetime | None:
        """Returns the earliest time from which an admitted run may start."""
        return min(filter(None, (backlog.first() for backlog in self._admitted(policy))), default=None)

    def _admitted(self, policy: RunPolicy) -> Iterator[Backlog]:
        for rule, queue in self.rules.items():
            if rule in policy.withheld:
                continue
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
                return now if row.at is None else row.at
            case "paused":
                return row.at
            case "running":
                return self._leases.until(LeaseKey(workspace, run_lease(row.id))) or min(row.fired_at, now)
            case _:
                return None

    def _update_stored(self, workspace: WorkspaceRef, data: WorkspaceData, row: RunRow, at: datetime) -> None:
        rule = row.scope.rule
        stored = data.stored_rules.get(rule)
        if stored is None:
            return
        turn = (
            row.status == "paused"
            or not stored.ordered
            or data.runs.scopes[row.scope].turn(blocking=stored.blocking) == row.id
        )
        backlog = self.stored.setdefault(namespace_of(rule), Backlog())
        backlog.set(workspace, rule, row.id, at if stored.enabled and turn else None)

    def _forget(self, workspace: WorkspaceRef, rule: str, run_id: str, queue: RuleQueue | None) -> None:
        if queue is not None:
            queue.discard(workspace, rule, run_id)
            if not queue:
                del self.rules[rule]
        if (backlog := self.stored.get(namespace_of(rule))) is not None:
            backlog.set(workspace, rule, run_id, None)
            if not backlog:
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


def _workspace_of(place: tuple[WorkspaceRef, *tuple[Any, ...]]) -> WorkspaceRef:
    return place[0]


def _is_behind_turn(workspace: WorkspaceRef, after: WorkspaceRef | None) -> bool:
    """Whether a workspace comes after all those that come after another one."""
    return after is not None and workspace <= after


def _longest_waiting(lines: Iterable[_Line], now: datetime, most: int, but: Collection[str]) -> list[DueRun]:
    """Returns the runs of one workspace that may start now, but for some, those that have waited longest first."""
    found = [
        [(at, DueRun(workspace, run_id, rule)) for at, run_id in runs.through(now, most + len(but))]
        for workspace, rule, runs in lines
    ]
    earliest = merge(*found, key=lambda item: item[0])
    return list(islice((run for _, run in earliest if run_lease(run.run_id) not in but), most))


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
