"""`StorageKernel` and `TransactionKernel`: the ports of `reflexr.workspace.storage` from as few methods as can be.

A backend derives from both and implements what is abstract: to keep values and to give them back. What there is to
decide, in what order and under which id, is answered here. Whatever a backend can answer at less cost, it overrides.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime, timedelta
from itertools import islice, zip_longest
from typing import Final, override

from reflexr.core import (
    DeadLetter,
    Draft,
    Envelope,
    Needs,
    RuleArchived,
    RuleInstalled,
    RuleProgress,
    Run,
    ScopeState,
    StoredRule,
    stored_rule_of,
)
from reflexr.workspace import walks
from reflexr.workspace.clocks import Clock, system_clock
from reflexr.workspace.errors import DuplicateEventIdError, StoredRuleConflictError
from reflexr.workspace.refs import LeaseKey, WorkspaceRef, run_lease
from reflexr.workspace.snapshots import Lease, Snapshot
from reflexr.workspace.storage import (
    Deadline,
    DueRun,
    DueSchedule,
    Head,
    LogWindow,
    RunPolicy,
    RunQuery,
    RunScope,
    StateChanges,
    Storage,
    Transaction,
    Watch,
)
from reflexr.workspace.wakeups import InProcessWakeups, Wakeups

_PAGE: Final = 500
_VERSIONS: Final = frozenset({RuleInstalled.event_type, RuleArchived.event_type})


class TransactionKernel(Snapshot, Transaction):
    """A transaction from what a snapshot reads, scope states, and methods that put values in place of what was there.

    A method named `put_…` checks nothing, as what it is given has been decided. What it is given may be empty, and is
    not shared: the method has taken a copy when it returns.
    """

    # --- What a backend implements

    @abstractmethod
    async def put_envelopes(self, envelopes: Sequence[Envelope]) -> None:
        """Adds envelopes to the log, at least one. They follow its last one, and none has an id that is there."""

    @abstractmethod
    async def put_cursor(self, name: str, seq: int) -> None:
        """Saves where a consumer of the log stands."""

    @abstractmethod
    @override
    async def save_progress(self, progress: Collection[RuleProgress]) -> None:
        """Saves rules' progress in place of what was there, new ones after all others."""

    @abstractmethod
    async def scope_states(self, rules: Collection[str]) -> dict[str, dict[str, ScopeState]]:
        """Returns every scope state of these rules, by rule and scope key; of a rule without any it may say nothing."""

    @abstractmethod
    async def put_scope_states(self, states: Mapping[str, Mapping[str, ScopeState]]) -> None:
        """Saves every scope state of these rules, by rule and scope key, in place of all that each rule had."""

    @abstractmethod
    @override
    async def save_runs(self, runs: Collection[Run]) -> None:
        """Saves runs in place of what was there, new ones after all others, in the order given."""

    @abstractmethod
    @override
    async def add_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Records dead letters, in order, after all others."""

    @abstractmethod
    async def put_stored_rules(self, rules: Mapping[str, StoredRule]) -> None:
        """Saves the current version of stored rules, by name, new ones after all others."""

    @abstractmethod
    async def put_schedule_ticks(self, ticks: Mapping[str, datetime]) -> None:
        """Saves the time of schedules' last ticks, by name, new ones after all others."""

    @abstractmethod
    async def put_leases(self, leases: Mapping[str, Lease | None]) -> None:
        """Saves leases by name; `None` is one that was given back. Those that have lapsed may be forgotten."""

    # --- What follows from that

    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        counts = Counter(draft.id for draft in drafts)
        known = await self.find(counts)
        if twice := [event_id for event_id, count in counts.items() if count > 1 or event_id in known]:
            raise DuplicateEventIdError(twice)
        if not drafts:
            return []
        ts = self.now if self.head.ts is None else max(self.now, self.head.ts)
        envelopes = [
            Envelope.placed(draft, seq=seq, ts=ts, workspace_id=self.workspace.workspace_id)
            for seq, draft in enumerate(drafts, start=self.head.seq + 1)
        ]
        await self.put_envelopes(envelopes)
        self._head = Head(envelopes[-1].seq, ts)
        return envelopes

    @override
    async def read_seqs(self, seqs: Collection[int]) -> dict[int, Envelope]:
        """As the port has it, with one read for each stretch of places that follow one another."""
        found: list[Envelope] = []
        for first, last in _stretches(seq for seq in seqs if 0 < seq <= self.head.seq):
            found += await self.read(LogWindow(after_seq=first - 1, before_seq=last + 1))
        return {envelope.seq: envelope for envelope in found}

    @override
    async def states(self, needs: Mapping[str, Needs]) -> dict[str, dict[str, ScopeState]]:
        """As the port has it, but that every state of the rules is read."""
        known = await self.scope_states(needs.keys())
        return {rule: _needed(known.get(rule, {}), asked) for rule, asked in needs.items()}

    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        """As the port has it, but that every state of the rules is read, and saved where one changed."""
        known = await self.scope_states(changes.keys())
        changed = {rule: _changed(known.get(rule, {}), change) for rule, change in changes.items()}
        await self.put_scope_states({rule: states for rule, states in changed.items() if states != known.get(rule, {})})

    @override
    async def clear_states(self, rules: Collection[str]) -> None:
        await self.put_scope_states({rule: {} for rule in rules})

    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        """As the port has it, but that the cost grows with all unfinished runs of the scopes' rules, or of the scope.

        Dead-lettered ones are read too, where a rule is blocking.
        """
        rules, keys = {scope.rule for scope in scopes}, {scope.scope_key for scope in scopes}
        query = RunQuery(
            rules=frozenset(rules),
            scope_key=next(iter(keys)) if len(keys) == 1 else None,
            statuses=walks.statuses_in_order(rules.intersection(blocking)),
        )
        asked = frozenset(scopes)
        turns = walks.turns_of(await self.find_runs(query), blocking)
        return {scope: run_id for scope, run_id in turns.items() if scope in asked}

    @override
    async def save_stored_rules(self, rules: Collection[StoredRule]) -> None:
        known = {name: one.version for name, one in (await self.stored_rules([one.name for one in rules])).items()}
        for one in rules:
            expected = known.get(one.name, 0) + 1
            if one.version != expected:
                raise StoredRuleConflictError(one.name, one.version, expected)
            known[one.name] = one.version
        await self.put_stored_rules({one.name: one for one in rules})

    @override
    async def save_schedule_ticks(self, ticks: Mapping[str, datetime]) -> None:
        known = await self.schedule_ticks()
        await self.put_schedule_ticks({name: at for name, at in ticks.items() if at >= known.get(name, at)})

    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        holders = await self.holders(names)
        free = frozenset(name for name in names if holders.get(name, holder) == holder)
        await self.put_leases(dict.fromkeys(free, Lease(holder, self.now + ttl)))
        return free

    @override
    async def release(self, names: Collection[str], holder: str) -> None:
        held = [name for name, by in (await self.holders(names)).items() if by == holder]
        await self.put_leases(dict.fromkeys(held))

    @override
    async def holders(self, names: Collection[str]) -> dict[str, str]:
        leases = await self.leases(names)
        return {name: lease.holder for name, lease in leases.items() if lease.expires > self.now}


class StorageKernel(Storage):
    """A storage from transactions, snapshots and a list of its workspaces.

    A read outside a transaction opens a snapshot. Leases and cursors are changed in a transaction of each workspace in
    turn, so they wait for those that are open there. Whoever is cut off between two workspaces keeps the leases of the
    first until they lapse.

    Work is found by a walk over every workspace that holds anything, with a snapshot of each: `workspaces`, `behind`,
    `due_runs` and `due_schedules` until their limit is reached, `next_due` until a run may start at once. That is right
    and fair for any number of workspaces, and quick for hundreds: a storage for more overrides these five.
    """

    def __init__(self, *, clock: Clock = system_clock, wakeups: Wakeups | None = None) -> None:
        """Begins with nothing known.

        Args:
            clock: What time it is, for `now`; a storage with a clock of its own overrides that.
            wakeups: What each commit is announced to; by default the listeners of this process.
        """
        self._clock = clock
        self._wakeups = InProcessWakeups() if wakeups is None else wakeups
        self._behind_after: WorkspaceRef | None = None
        self._ticked_after: WorkspaceRef | None = None

    # --- What a backend implements

    @abstractmethod
    @override
    def transaction(self, workspace: WorkspaceRef) -> AbstractAsyncContextManager[TransactionKernel]:
        """Opens a transaction as the port has it. A commit that changed something is announced to `wakeups`."""

    @abstractmethod
    def snapshot(self, workspace: WorkspaceRef) -> AbstractAsyncContextManager[Snapshot]:
        """Opens what was committed of a workspace, to be read without waiting for its transactions.

        Two methods may see two states. The workspace need not exist yet, and does not because of this.
        """

    @abstractmethod
    async def known_workspaces(self, after: WorkspaceRef | None, limit: int) -> list[WorkspaceRef]:
        """Returns the workspaces that hold anything, with a log or without, ordered by tenant and workspace.

        Args:
            after: Only those that come after this one: where the last page ended; `None` for the first page.
            limit: The first so many, and no fewer if there are as many.
        """

    # --- What follows from that

    @property
    @override
    def wakeups(self) -> Wakeups:
        return self._wakeups

    @override
    async def now(self) -> datetime:
        return self._clock()

    # --- One workspace's data, as it was committed

    @override
    async def head(self, workspace: WorkspaceRef) -> Head:
        async with self.snapshot(workspace) as snapshot:
            return snapshot.head

    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        async with self.snapshot(workspace) as snapshot:
            return await snapshot.read(window)

    @override
    async def find(self, workspace: WorkspaceRef, ids: Collection[str]) -> dict[str, Envelope]:
        async with self.snapshot(workspace) as snapshot:
            return await snapshot.find(ids)

    @override
    async def rule_history(self, workspace: WorkspaceRef, rule: str) -> list[Envelope]:
        """As the port has it, but that the versions of every stored rule of the workspace are read."""
        versions = await self.read(workspace, LogWindow(types=_VERSIONS))
        return [envelope for envelope in versions if stored_rule_of(envelope) == rule]

    @override
    async def stored_rules(
        self, workspace: WorkspaceRef, names: Collection[str] | None = None
    ) -> dict[str, StoredRule]:
        async with self.snapshot(workspace) as snapshot:
            return await snapshot.stored_rules(names)

    @override
    async def progress(self, workspace: WorkspaceRef) -> dict[str, RuleProgress]:
        async with self.snapshot(workspace) as snapshot:
            return await snapshot.progress()

    @override
    async def runs(self, workspace: WorkspaceRef, query: RunQuery) -> list[Run]:
        async with self.snapshot(workspace) as snapshot:
            return await snapshot.find_runs(query)

    @override
    async def run(self, workspace: WorkspaceRef, run_id: str) -> Run | None:
        async with self.snapshot(workspace) as snapshot:
            return (await snapshot.runs([run_id])).get(run_id)

    @override
    async def dead_letters(
        self, workspace: WorkspaceRef, *, rule: str | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        async with self.snapshot(workspace) as snapshot:
            return await snapshot.dead_letters(rule=rule, limit=limit)

    @override
    async def dead_letter_counts(self, workspace: WorkspaceRef) -> dict[str, int]:
        """As the port has it, by reading all of them."""
        return dict(Counter(dead_letter.rule for dead_letter in await self.dead_letters(workspace)))

    @override
    async def schedule_ticks(self, workspace: WorkspaceRef) -> dict[str, datetime]:
        async with self.snapshot(workspace) as snapshot:
            return await snapshot.schedule_ticks()

    # --- Cursors and leases

    @override
    async def cursor(self, workspace: WorkspaceRef, name: str) -> int:
        async with self.snapshot(workspace) as snapshot:
            return await snapshot.cursor(name)

    @override
    async def save_cursor(self, workspace: WorkspaceRef, name: str, seq: int) -> int:
        async with self.transaction(workspace) as transaction:
            known = await transaction.cursor(name)
            if seq > known:
                await transaction.put_cursor(name, seq)
        return max(seq, known)

    @override
    async def acquire(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        got: list[LeaseKey] = []
        for workspace, names in _by_workspace(keys):
            async with self.transaction(workspace) as transaction:
                taken = await transaction.acquire(names, holder, ttl)
            got += (LeaseKey(workspace, name) for name in taken)
        return frozenset(got)

    @override
    async def renew(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        got: list[LeaseKey] = []
        for workspace, names in _by_workspace(keys):
            async with self.transaction(workspace) as transaction:
                held = [name for name, by in (await transaction.holders(names)).items() if by == holder]
                renewed = await transaction.acquire(held, holder, ttl)
            got += (LeaseKey(workspace, name) for name in renewed)
        return frozenset(got)

    @override
    async def release(self, keys: Collection[LeaseKey], holder: str) -> None:
        for workspace, names in _by_workspace(keys):
            async with self.transaction(workspace) as transaction:
                await transaction.release(names, holder)

    # --- Discovery

    @override
    async def workspaces(
        self, *, tenant_id: str | None = None, after: WorkspaceRef | None = None, limit: int | None = None
    ) -> list[WorkspaceRef]:
        found: list[WorkspaceRef] = []
        async with aclosing(self._paged(after)) as known:
            async for workspace in known:
                if limit is not None and len(found) >= limit:
                    break
                if tenant_id in (None, workspace.tenant_id) and (await self.head(workspace)).seq:
                    found.append(workspace)
        return found

    @override
    async def behind(self, watch: Watch, *, limit: int) -> list[WorkspaceRef]:
        found: list[WorkspaceRef] = []
        async with aclosing(self._in_turn(self._behind_after)) as known:
            async for workspace in known:
                if len(found) >= limit:
                    break
                async with self.snapshot(workspace) as snapshot:
                    if await walks.is_behind(snapshot, watch):
                        found.append(workspace)
        if found:
            # Where nothing can be done, no other workspace is to wait for that.
            self._behind_after = found[-1]
        return found

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
        but, passed_over = frozenset(but_runs), frozenset(but_workspaces)
        most = limit if each is None else min(each, limit)
        lines: list[list[DueRun]] = []
        async with aclosing(self._in_turn(after)) as known:
            async for workspace in known:
                if most <= 0 or len(lines) >= limit:
                    break
                if workspace in passed_over:
                    continue
                async with self.snapshot(workspace) as snapshot:
                    waiting = await walks.waiting_runs(snapshot, policy)
                due = (run for starts, run in waiting if starts <= snapshot.now)
                if line := list(islice((run for run in due if _lease_on(run) not in but), most)):
                    lines.append(line)
        turns = zip_longest(*lines)
        return list(islice((run for turn in turns for run in turn if run is not None), max(limit, 0)))

    @override
    async def next_due(self, policy: RunPolicy) -> timedelta | None:
        first: datetime | None = None
        async with aclosing(self._paged(None)) as known:
            async for workspace in known:
                async with self.snapshot(workspace) as snapshot:
                    waiting = await walks.waiting_runs(snapshot, policy)
                for starts, _ in waiting[:1]:
                    first = starts if first is None else min(first, starts)
                if first is not None and first <= snapshot.now:
                    return timedelta()
        return None if first is None else max(first - await self.now(), timedelta())

    @override
    async def due_schedules(self, deadlines: Mapping[str, Deadline], *, limit: int) -> list[DueSchedule]:
        named = [deadline.workspaces for deadline in deadlines.values()]
        targets = {workspace for workspaces in named for workspace in workspaces or ()}
        if None in named:
            targets.update([workspace async for workspace in self._paged(None)])
        after, found = self._ticked_after, list[DueSchedule]()
        for workspace in sorted(targets, key=lambda one: (after is not None and one <= after, one)):
            if len(found) >= limit:
                break
            async with self.snapshot(workspace) as snapshot:
                found += await walks.due_schedules(snapshot, deadlines)
        if found := found[: max(limit, 0)]:
            self._ticked_after = found[-1].workspace
        return found

    # --- Inside

    async def _paged(self, after: WorkspaceRef | None) -> AsyncGenerator[WorkspaceRef]:
        """Yields the workspaces that hold anything and come after one, in order."""
        while page := await self.known_workspaces(after, _PAGE):
            for workspace in page:
                yield workspace
            after = page[-1]

    async def _in_turn(self, after: WorkspaceRef | None) -> AsyncGenerator[WorkspaceRef]:
        """Yields the workspaces that hold anything, those after one first, and then the others."""
        first: WorkspaceRef | None = None
        async with aclosing(self._paged(after)) as known:
            async for workspace in known:
                first = first or workspace
                yield workspace
        if after is None:
            return
        async with aclosing(self._paged(None)) as known:
            async for workspace in known:
                if workspace == first:
                    return
                yield workspace


def _stretches(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Returns the first and the last of each stretch of places that follow one another."""
    stretches: list[tuple[int, int]] = []
    for seq in sorted(set(seqs)):
        if stretches and stretches[-1][1] == seq - 1:
            stretches[-1] = (stretches[-1][0], seq)
        else:
            stretches.append((seq, seq))
    return stretches


def _needed(states: Mapping[str, ScopeState], needs: Needs) -> dict[str, ScopeState]:
    return {
        key: state
        for key, state in states.items()
        if key in needs.scope_keys or _has_come(state.due, needs.due_through)
    }


def _changed(states: Mapping[str, ScopeState], changes: StateChanges) -> dict[str, ScopeState]:
    kept = {
        key: state
        for key, state in states.items()
        if key not in changes.dropped and not _has_come(state.expires, changes.expired_through)
    }
    return {**kept, **changes.saved}


def _has_come(at: datetime | None, through: datetime | None) -> bool:
    return at is not None and through is not None and at <= through


def _by_workspace(keys: Collection[LeaseKey]) -> list[tuple[WorkspaceRef, list[str]]]:
    """Returns the names of leases by workspace, in one order everywhere."""
    names: dict[WorkspaceRef, list[str]] = {}
    for key in keys:
        names.setdefault(key.workspace, []).append(key.name)
    return sorted(names.items())


def _lease_on(run: DueRun) -> LeaseKey:
    return LeaseKey(run.workspace, run_lease(run.run_id))
