"""`InMemoryStorage`: every workspace in the memory of one process, for tests, examples and prototypes.

A transaction stages its writes and applies them in one go, so nobody sees half of them. How the data is laid out is in
`reflexr.workspace.memory_data`; how work is found in `reflexr.workspace.memory_work`.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import override

from reflexr.core import DeadLetter, Envelope, RuleProgress, Run, StoredRule
from reflexr.workspace.clocks import Clock, system_clock
from reflexr.workspace.memory_data import WorkspaceData
from reflexr.workspace.memory_transaction import MemoryTransaction
from reflexr.workspace.memory_work import Behind, DueRuns, DueSchedules, Leases
from reflexr.workspace.refs import LeaseKey, WorkspaceRef
from reflexr.workspace.storage import (
    Deadline,
    DueRun,
    DueSchedule,
    Head,
    LogWindow,
    RunPolicy,
    RunQuery,
    Storage,
    Transaction,
    Watch,
)
from reflexr.workspace.wakeups import InProcessWakeups


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much an `InMemoryStorage` holds.

    Attributes:
        workspaces: The workspaces that hold anything.
        envelopes: The envelopes of all logs.
        states: The scope states that are worth something.
        runs: The runs, whatever became of them.
        open_scopes: The scopes with runs that have not ended well, been cancelled or been skipped.
        leases: The leases, live or not yet forgotten.
        callers: Those that are in a transaction, or wait for one.
    """

    workspaces: int = 0
    envelopes: int = 0
    states: int = 0
    runs: int = 0
    open_scopes: int = 0
    leases: int = 0
    callers: int = 0


class InMemoryStorage(Storage):
    """Keeps the workspaces of every tenant in this process's memory. What it holds is gone when the process is."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        """Creates an empty storage.

        Args:
            clock: What time it is, for envelopes, leases and due times. A clock that goes back is taken to stand still.
        """
        self._clock = clock
        self._latest = clock()
        self._workspaces: dict[WorkspaceRef, WorkspaceData] = {}
        self._queues: dict[WorkspaceRef, _Queue] = {}
        self._open: dict[WorkspaceRef, MemoryTransaction] = {}
        self._wakeups = InProcessWakeups()
        self._leases = Leases()
        self._due_runs = DueRuns(self._leases)
        self._behind = Behind(self._workspaces)
        self._due_schedules = DueSchedules(self._workspaces)

    def sizes(self) -> Sizes:
        """Returns how much it holds."""
        data = self._workspaces.values()
        return Sizes(
            workspaces=len(data),
            envelopes=sum(item.log.head.seq for item in data),
            states=sum(len(states) for item in data for states in item.states.values()),
            runs=sum(len(item.runs.rows) for item in data),
            open_scopes=sum(len(item.runs.scopes) for item in data),
            leases=len(self._leases),
            callers=sum(queue.users for queue in self._queues.values()),
        )

    @property
    @override
    def wakeups(self) -> InProcessWakeups:
        return self._wakeups

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        queue = self._queues.setdefault(workspace, _Queue())
        queue.users += 1
        try:
            async with queue.lock:
                transaction = MemoryTransaction(workspace, self._data(workspace), self._leases, self._now())
                self._open[workspace] = transaction
                try:
                    yield transaction
                    # From here on nothing is awaited, so nobody is cancelled half-way.
                    self._commit(transaction)
                finally:
                    del self._open[workspace]
                    transaction.close()
        finally:
            queue.users -= 1
            if not queue.users:
                del self._queues[workspace]

    @override
    async def now(self) -> datetime:
        return self._now()

    # --- One workspace's data

    @override
    async def head(self, workspace: WorkspaceRef) -> Head:
        return self._data(workspace).log.head

    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        log = self._data(workspace).log
        return [Envelope.model_validate_json(log.text(seq)) for seq in log.window(window)]

    @override
    async def find(self, workspace: WorkspaceRef, ids: Collection[str]) -> dict[str, Envelope]:
        log = self._data(workspace).log
        seqs = {event_id: log.seq(event_id) for event_id in ids}
        return {
            event_id: Envelope.model_validate_json(log.text(seq)) for event_id, seq in seqs.items() if seq is not None
        }

    @override
    async def rule_history(self, workspace: WorkspaceRef, rule: str) -> list[Envelope]:
        log = self._data(workspace).log
        return [Envelope.model_validate_json(log.text(seq)) for seq in log.history(rule)]

    @override
    async def stored_rules(
        self, workspace: WorkspaceRef, names: Collection[str] | None = None
    ) -> dict[str, StoredRule]:
        rows = self._data(workspace).stored_rules
        return {
            name: StoredRule.model_validate_json(row.text)
            for name, row in rows.items()
            if (row.active if names is None else name in names)
        }

    @override
    async def progress(self, workspace: WorkspaceRef) -> dict[str, RuleProgress]:
        return dict(self._data(workspace).progress)

    @override
    async def runs(self, workspace: WorkspaceRef, query: RunQuery) -> list[Run]:
        runs = self._data(workspace).runs
        return [Run.model_validate_json(runs.texts[run_id]) for run_id in islice(runs.newest(query), query.limit)]

    @override
    async def run(self, workspace: WorkspaceRef, run_id: str) -> Run | None:
        text = self._data(workspace).runs.texts.get(run_id)
        return None if text is None else Run.model_validate_json(text)

    @override
    async def dead_letters(
        self, workspace: WorkspaceRef, *, rule: str | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        data = self._data(workspace)
        places = range(len(data.dead_letters)) if rule is None else data.dead_letters_by_rule.get(rule, [])
        newest = places if limit is None else places[max(len(places) - limit, 0) :]
        return [DeadLetter.model_validate_json(data.dead_letters[place]) for place in newest]

    @override
    async def dead_letter_counts(self, workspace: WorkspaceRef) -> dict[str, int]:
        return {rule: len(places) for rule, places in self._data(workspace).dead_letters_by_rule.items()}

    @override
    async def schedule_ticks(self, workspace: WorkspaceRef) -> dict[str, datetime]:
        return dict(self._data(workspace).ticks)

    @override
    async def cursor(self, workspace: WorkspaceRef, name: str) -> int:
        return self._data(workspace).cursors.get(name, 0)

    @override
    async def save_cursor(self, workspace: WorkspaceRef, name: str, seq: int) -> int:
        cursors = self._workspaces.setdefault(workspace, WorkspaceData()).cursors
        cursors[name] = max(cursors.get(name, 0), seq)
        return cursors[name]

    # --- Leases

    @override
    async def acquire(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        now = self._now()
        self._leases.purge(now)
        free = frozenset(key for key in keys if self._may_take(key, holder, now))
        self._take(free, holder, now, ttl)
        return free

    @override
    async def renew(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        now = self._now()
        held = frozenset(key for key in keys if self._leases.holder(key, now) == holder)
        self._take(held, holder, now, ttl)
        return held

    @override
    async def release(self, keys: Collection[LeaseKey], holder: str) -> None:
        now = self._now()
        held = [key for key in dict.fromkeys(keys) if self._leases.holder(key, now) == holder]
        for key in held:
            self._leases.drop(key)
        self._leases_changed(held, now)
        self._wakeups.announce({key.workspace for key in held})

    # --- Discovery

    @override
    async def workspaces(
        self, *, tenant_id: str | None = None, after: WorkspaceRef | None = None, limit: int | None = None
    ) -> list[WorkspaceRef]:
        found = sorted(
            workspace
            for workspace, data in self._workspaces.items()
            if data.log.head.seq
            and (tenant_id is None or workspace.tenant_id == tenant_id)
            and (after is None or workspace > after)
        )
        return found[:limit]

    @override
    async def behind(self, watch: Watch, *, limit: int) -> list[WorkspaceRef]:
        return self._behind.find(watch, limit)

    @override
    async def due_runs(
        self,
        policy: RunPolicy,
        *,
        limit: int,
        each: int | None = None,
        after: WorkspaceRef | None = None,
        but_runs: Collection[LeaseKey] = (),
        but_workspaces: Collection[WorkspaceRef] = (),
    ) -> list[DueRun]:
        return self._due_runs.find(
            policy,
            self._now(),
            limit=limit,
            each=each,
            after=after,
            but_runs=but_runs,
            but_workspaces=but_workspaces,
        )

    @override
    async def next_due(self, policy: RunPolicy) -> timedelta | None:
        first = self._due_runs.first(policy)
        return None if first is None else max(first - self._now(), timedelta())

    @override
    async def due_schedules(self, deadlines: Mapping[str, Deadline], *, limit: int) -> list[DueSchedule]:
        return self._due_schedules.find(deadlines, limit)

    # --- Inside

    def _data(self, workspace: WorkspaceRef) -> WorkspaceData:
        return self._workspaces.get(workspace) or WorkspaceData()

    def _now(self) -> datetime:
        self._latest = max(self._latest, self._clock())
        return self._latest

    def _commit(self, transaction: MemoryTransaction) -> None:
        """Applies what a transaction staged."""
        workspace, changes, now = transaction.workspace, transaction.changes, self._now()
        if not changes:
            return
        data = self._workspaces.setdefault(workspace, transaction.data)
        moved = changes.apply(data)
        self._leases.purge(now)
        for name, (holder, until) in changes.taken.items():
            self._leases.take(LeaseKey(workspace, name), holder, until)
        for name, holder in changes.released.items():
            if self._leases.holder(LeaseKey(workspace, name), now) == holder:
                self._leases.drop(LeaseKey(workspace, name))
        self._due_runs.update(workspace, data, moved, now)
        self._leases_changed([LeaseKey(workspace, name) for name in (*changes.taken, *changes.released)], now)
        self._behind.changed(workspace)
        self._due_schedules.changed(workspace, data)
        self._wakeups.announce((workspace,))

    def _may_take(self, key: LeaseKey, holder: str, now: datetime) -> bool:
        at_hand = self._open.get(key.workspace)
        staged = at_hand is not None and key.name in at_hand.changes.taken
        return not staged and self._leases.holder(key, now) in (None, holder)

    def _take(self, keys: Collection[LeaseKey], holder: str, now: datetime, ttl: timedelta) -> None:
        for key in keys:
            self._leases.take(key, holder, now + ttl)
        self._leases_changed(keys, now)

    def _leases_changed(self, keys: Collection[LeaseKey], now: datetime) -> None:
        for key in keys:
            data = self._workspaces.get(key.workspace)
            run_id = key.name.removeprefix("run:")
            if data is not None and run_id in data.runs.rows:
                self._due_runs.update(key.workspace, data, (run_id,), now)


class _Queue:
    """Those who want a transaction on one workspace, in the order in which they came."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
