"""A naive model of a storage: plain lists and dictionaries, each question answered by looking at everything.

It is what `reflexr.contracts.machine` compares a storage with; it knows neither awaits nor other callers.
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from reflexr.contracts.samples import START
from reflexr.core import UNFINISHED, DeadLetter, Draft, Needs, RuleProgress, Run, ScopeState, StoredRule
from reflexr.workspace import (
    Deadline,
    DueRun,
    DueSchedule,
    LeaseKey,
    LogWindow,
    RunPolicy,
    RunQuery,
    RunScope,
    StateChanges,
    Watch,
    WorkspaceRef,
    run_lease,
)

REFUSED: Final = "refused"
"""What the model answers where a storage raises."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An envelope of the model: what of it depends on the storage."""

    seq: int
    id: str
    type: str


@dataclass(frozen=True)
class Share:
    """How much is asked for of the runs that may start, as `Storage.due_runs` takes it."""

    limit: int
    each: int | None = None
    after: WorkspaceRef | None = None
    but_runs: frozenset[LeaseKey] = frozenset()
    but_workspaces: frozenset[WorkspaceRef] = frozenset()

    def admits(self, run: DueRun) -> bool:
        """Whether a run is not left out."""
        lease = LeaseKey(run.workspace, run_lease(run.run_id))
        return lease not in self.but_runs and run.workspace not in self.but_workspaces

    def place(self, workspace: WorkspaceRef) -> tuple[bool, WorkspaceRef]:
        """Returns what workspaces are ordered by."""
        return self.after is not None and workspace <= self.after, workspace


@dataclass(slots=True)
class ModelWorkspace:
    """Everything of one workspace."""

    log: list[Entry] = field(default_factory=list[Entry])
    progress: dict[str, RuleProgress] = field(default_factory=dict[str, RuleProgress])
    states: dict[str, dict[str, ScopeState]] = field(default_factory=dict[str, dict[str, ScopeState]])
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    dead_letters: list[DeadLetter] = field(default_factory=list[DeadLetter])
    stored: dict[str, StoredRule] = field(default_factory=dict[str, StoredRule])
    ticks: dict[str, datetime] = field(default_factory=dict[str, datetime])
    leases: dict[str, tuple[str, datetime]] = field(default_factory=dict[str, tuple[str, datetime]])
    cursors: dict[str, int] = field(default_factory=dict[str, int])

    def append(self, drafts: Collection[Draft]) -> object:
        """Appends, unless an id is there already or twice."""
        ids = [draft.id for draft in drafts]
        if len({*ids, *(entry.id for entry in self.log)}) < len(ids) + len(self.log):
            return REFUSED
        for draft in drafts:
            self.log.append(Entry(len(self.log) + 1, draft.id, draft.payload["type"]))
        return list(self.log[len(self.log) - len(ids) :])

    def read(self, window: LogWindow) -> list[Entry]:
        """Returns a window."""
        before = len(self.log) + 1 if window.before_seq is None else window.before_seq
        found = [
            entry
            for entry in self.log
            if window.after_seq < entry.seq < before and (window.types is None or entry.type in window.types)
        ]
        if window.last is not None:
            return found[max(len(found) - window.last, 0) :]
        return found[: window.limit]

    def change_states(self, rule: str, changes: StateChanges) -> None:
        """Changes a rule's states."""
        through = changes.expired_through
        self.states[rule] = {
            key: state
            for key, state in self.states.get(rule, {}).items()
            if key not in changes.dropped and (through is None or state.expires is None or state.expires > through)
        }
        self.states[rule].update(changes.saved)

    def find_states(self, rule: str, needs: Needs) -> dict[str, ScopeState]:
        """Returns the states that the needs name."""
        through = needs.due_through
        return {
            key: state
            for key, state in self.states.get(rule, {}).items()
            if key in needs.scope_keys or (through is not None and state.due is not None and state.due <= through)
        }

    def save_stored(self, stored: StoredRule) -> object:
        """Saves a stored rule, unless its version is not the next."""
        known = self.stored.get(stored.name)
        if stored.version != (1 if known is None else known.version + 1):
            return REFUSED
        self.stored[stored.name] = stored
        return None

    def find_runs(self, query: RunQuery) -> list[Run]:
        """Returns the runs that meet a query, newest first."""
        found = [
            run
            for run in reversed(self.runs.values())
            if (query.rules is None or run.rule in query.rules)
            and (query.scope_key is None or run.scope_key == query.scope_key)
            and (query.statuses is None or run.status in query.statuses)
        ]
        return found[: query.limit]

    def turn(self, scope: RunScope, *, blocking: bool) -> str | None:
        """Returns the run whose turn it is in a scope."""
        runs = [run for run in self.runs.values() if RunScope(run.rule, run.scope_key) == scope]
        if running := [run for run in runs if run.status == "running"]:
            return running[0].id
        holding = UNFINISHED | {"dead_lettered"} if blocking else UNFINISHED
        waiting = [run for run in runs if run.status in holding and (run.waiting is None or run.waiting.blocks)]
        return min(waiting, key=lambda run: run.position).id if waiting else None

    def tick(self, schedule: str, at: datetime) -> None:
        """Moves a schedule's last tick forward."""
        self.ticks[schedule] = max(at, self.ticks.get(schedule, at))

    def holder(self, name: str, now: datetime) -> str | None:
        """Returns who holds a lease."""
        holder, until = self.leases.get(name, ("", now))
        return holder if until > now else None

    def acquire(self, names: Collection[str], holder: str, ttl: timedelta, now: datetime) -> frozenset[str]:
        """Takes the leases that are free."""
        got = frozenset(name for name in names if self.holder(name, now) in (None, holder))
        self.leases.update(dict.fromkeys(got, (holder, now + ttl)))
        return got

    def renew(self, names: Collection[str], holder: str, ttl: timedelta, now: datetime) -> frozenset[str]:
        """Extends the leases that the holder has."""
        return self.acquire([name for name in names if self.holder(name, now) == holder], holder, ttl, now)

    def release(self, names: Collection[str], holder: str, now: datetime) -> None:
        """Gives back the leases that the holder has."""
        for name in names:
            if self.holder(name, now) == holder:
                del self.leases[name]

    def starts(self, run: Run, now: datetime) -> datetime | None:
        """Returns from when on a run may start, as far as it alone is concerned; `None` for never."""
        match run.status:
            case "pending":
                return now
            case "retrying":
                return run.next_attempt_at
            case "running":
                _, until = self.leases.get(run_lease(run.id), ("", now))
                return until
            case _:
                return None if run.waiting is None else run.waiting.until


class Model:
    """Every workspace, and the time."""

    def __init__(self) -> None:
        """Begins with no workspace, at the start."""
        self.now = START
        self.workspaces: dict[WorkspaceRef, ModelWorkspace] = {}

    def __getitem__(self, workspace: WorkspaceRef) -> ModelWorkspace:
        """Returns a workspace, perhaps a new one."""
        return self.workspaces.setdefault(workspace, ModelWorkspace())

    def copied(self, workspace: WorkspaceRef) -> ModelWorkspace:
        """Returns a copy of a workspace, for a transaction that may roll back."""
        return deepcopy(self[workspace])

    def logs(self) -> list[WorkspaceRef]:
        """Returns the workspaces with a log."""
        return sorted(workspace for workspace, data in self.workspaces.items() if data.log)

    def due(self, policy: RunPolicy) -> dict[DueRun, datetime]:
        """Returns the runs that may start now or later by time alone, with when."""
        return {
            DueRun(workspace, run.id, run.rule): starts
            for workspace, data in self.workspaces.items()
            for run in data.runs.values()
            if (starts := data.starts(run, self.now)) is not None and _admits(policy, data, run)
        }

    def turns(self, runs: Collection[DueRun], share: Share) -> list[WorkspaceRef]:
        """Returns the workspaces that have a turn, in order, where these are the runs that may start."""
        left: dict[WorkspaceRef, int] = {}
        for run in runs:
            if share.admits(run):
                left[run.workspace] = left.get(run.workspace, 0) + 1
        turns: list[WorkspaceRef] = []
        for turn in range(max(left.values(), default=0) if share.each is None else share.each):
            turns += sorted((place for place, number in left.items() if number > turn), key=share.place)
        return turns[: share.limit]

    def behind(self, watch: Watch) -> set[WorkspaceRef]:
        """Returns the workspaces where a rule has something to do."""
        return {workspace for workspace in self.logs() if _is_behind(self[workspace], watch)}

    def due_schedules(self, deadlines: Mapping[str, Deadline]) -> set[DueSchedule]:
        """Returns where schedules have not ticked since their deadlines."""
        return {
            DueSchedule(workspace, schedule, last)
            for schedule, deadline in deadlines.items()
            for workspace in (self.logs() if deadline.workspaces is None else deadline.workspaces)
            if (last := self[workspace].ticks.get(schedule)) is None or last < deadline.at
        }


def _admits(policy: RunPolicy, data: ModelWorkspace, run: Run) -> bool:
    scope = RunScope(run.rule, run.scope_key)
    if run.rule in policy.withheld:
        return False
    if run.rule in policy.unordered:
        return True
    if run.rule in policy.ordered:
        return run.status == "paused" or data.turn(scope, blocking=run.rule in policy.blocking) == run.id
    stored = data.stored.get(run.rule)
    return (
        stored is not None
        and stored.active
        and stored.rule.enabled
        and stored.name.partition(":")[0] in policy.stored
        and (
            stored.rule.ordering == "none"
            or run.status == "paused"
            or data.turn(scope, blocking=stored.rule.on_dead_letter == "block") == run.id
        )
    )


def _is_behind(data: ModelWorkspace, watch: Watch) -> bool:
    names = {
        name
        for name, stored in data.stored.items()
        if stored.active and stored.rule.enabled and stored.name.partition(":")[0] in watch.stored
    }
    return any(
        (progress := data.progress.get(rule)) is None
        or progress.cursor < len(data.log)
        or progress.definition != watch.definitions.get(rule, progress.definition)
        for rule in {*watch.definitions, *names}
    )
