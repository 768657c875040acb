"""A storage over dictionaries that fills both ports by itself, in parts small enough to be broken one at a time.

It is what the broken storages derive from. How somebody outside this repository writes one is in `outside_storage`.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, override

from pydantic import BaseModel, TypeAdapter

from reflexr.core import (
    UNFINISHED,
    DeadLetter,
    Draft,
    Envelope,
    Needs,
    RuleProgress,
    Run,
    ScopeState,
    StoredRule,
    stored_rule_of,
)
from reflexr.workspace import (
    Clock,
    Deadline,
    DueRun,
    DueSchedule,
    DuplicateEventIdError,
    Head,
    InProcessWakeups,
    LeaseKey,
    LogWindow,
    RunPolicy,
    RunQuery,
    RunScope,
    StateChanges,
    Storage,
    StoredRuleConflictError,
    Transaction,
    TransactionClosedError,
    Watch,
    WorkspaceRef,
    run_lease,
)

STATE = TypeAdapter(ScopeState)


@dataclass
class Tables:
    """One workspace's rows. Values are JSON text, so nobody shares them."""

    log: list[str] = field(default_factory=list[str])
    ids: dict[str, int] = field(default_factory=dict[str, int])
    progress: dict[str, RuleProgress] = field(default_factory=dict[str, RuleProgress])
    states: dict[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])
    runs: dict[str, str] = field(default_factory=dict[str, str])
    dead_letters: list[str] = field(default_factory=list[str])
    stored: dict[str, str] = field(default_factory=dict[str, str])
    ticks: dict[str, datetime] = field(default_factory=dict[str, datetime])
    leases: dict[str, tuple[str, datetime]] = field(default_factory=dict[str, tuple[str, datetime]])

    def copy(self) -> "Tables":
        return Tables(*(getattr(self, column.name).copy() for column in fields(self)))

    def envelopes(self) -> list[Envelope]:
        return read_all(Envelope, self.log)

    def head(self) -> Head:
        last = read_all(Envelope, self.log[-1:])
        return Head(last[0].seq, last[0].ts) if last else Head()

    def find(self, ids: Collection[str]) -> dict[str, Envelope]:
        return {one: Envelope.model_validate_json(self.log[self.ids[one] - 1]) for one in ids if one in self.ids}

    def window(self, window: LogWindow) -> list[Envelope]:
        end = len(self.log) + 1 if window.before_seq is None else window.before_seq
        texts = self.log[min(window.after_seq, len(self.log)) : max(end - 1, 0)]
        found = [one for one in read_all(Envelope, texts) if window.types is None or one.event_type in window.types]
        return found[: window.limit] if window.last is None else found[max(len(found) - window.last, 0) :]

    def find_runs(self, query: RunQuery) -> list[Run]:
        found = [
            run
            for run in read_all(Run, reversed(self.runs.values()))
            if (query.rules is None or run.rule in query.rules)
            and (query.scope_key is None or run.scope_key == query.scope_key)
            and (query.statuses is None or run.status in query.statuses)
        ]
        return found[: query.limit]

    def turns(self, *, blocking: Collection[str] | None = None) -> dict[RunScope, str]:
        """Whose turn it is in every scope; without names every rule blocks."""
        firsts: dict[RunScope, tuple[bool, tuple[int, int], str]] = {}
        for run in read_all(Run, self.runs.values()):
            blocks = run.status == "dead_lettered" and (blocking is None or run.rule in blocking)
            waits_aside = run.waiting is not None and not run.waiting.blocks
            if (run.status in UNFINISHED and not waits_aside) or blocks:
                scope, place = RunScope(run.rule, run.scope_key), (run.status != "running", run.position, run.id)
                firsts[scope] = min(firsts.get(scope, place), place)
        return {scope: run_id for scope, (_, _, run_id) in firsts.items()}

    def stored_rules(self, names: Collection[str] | None) -> dict[str, StoredRule]:
        rules = {rule.name: rule for rule in read_all(StoredRule, self.stored.values())}
        return {name: rule for name, rule in rules.items() if (rule.active if names is None else name in names)}

    def holder(self, name: str, now: datetime) -> str | None:
        holder, until = self.leases.get(name, ("", now))
        return holder if until > now else None

    def acquire(self, names: Collection[str], holder: str, until: datetime, now: datetime) -> frozenset[str]:
        got = frozenset(name for name in names if self.holder(name, now) in (None, holder))
        self.leases.update(dict.fromkeys(got, (holder, until)))
        return got

    def release(self, names: Collection[str], holder: str, now: datetime) -> None:
        for name in [name for name in names if self.holder(name, now) == holder]:
            self.leases.pop(name, None)


@dataclass
class Database:
    """What several storages share."""

    tables: defaultdict[WorkspaceRef, Tables] = field(default_factory=lambda: defaultdict(Tables))
    locks: defaultdict[WorkspaceRef, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    cursors: dict[tuple[WorkspaceRef, str], int] = field(default_factory=dict[tuple[WorkspaceRef, str], int])
    wakeups: InProcessWakeups = field(default_factory=InProcessWakeups)


class DictionaryTransaction(Transaction):
    """Works on a copy of a workspace's tables."""

    def __init__(self, workspace: WorkspaceRef, tables: Tables, now: datetime) -> None:
        self._workspace = workspace
        self._now = now
        self._open: Tables | None = tables

    def close(self) -> None:
        self._open = None

    @property
    def tables(self) -> Tables:
        if self._open is None:
            raise TransactionClosedError
        return self._open

    @property
    @override
    def workspace(self) -> WorkspaceRef:
        return self._workspace

    @property
    @override
    def head(self) -> Head:
        return self.tables.head()

    @property
    @override
    def now(self) -> datetime:
        return self._now

    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        tables, counts = self.tables, Counter(draft.id for draft in drafts)
        if twice := [one for one, count in counts.items() if count > 1 or one in tables.ids]:
            raise DuplicateEventIdError(twice)
        head = tables.head()
        ts = self.stamp(head)
        for seq, draft in enumerate(drafts, start=head.seq + 1):
            values: dict[str, Any] = draft._asdict() | {"event": draft.payload, "seq": seq, "ts": ts}
            tables.log.append(Envelope(workspace_id=self._workspace.workspace_id, **values).to_json())
            tables.ids[draft.id] = seq
        return read_all(Envelope, tables.log[head.seq :])

    def stamp(self, head: Head) -> datetime:
        return self._now if head.ts is None else max(self._now, head.ts)

    @override
    async def find(self, ids: Collection[str]) -> dict[str, Envelope]:
        return self.tables.find(ids)

    @override
    async def read(self, window: LogWindow) -> list[Envelope]:
        return self.tables.window(window)

    @override
    async def read_seqs(self, seqs: Collection[int]) -> dict[int, Envelope]:
        return {one.seq: one for one in self.tables.envelopes() if one.seq in seqs}

    @override
    async def progress(self, rules: Collection[str] | None = None) -> dict[str, RuleProgress]:
        return {name: one for name, one in self.tables.progress.items() if rules is None or name in rules}

    @override
    async def save_progress(self, progress: Collection[RuleProgress]) -> None:
        self.tables.progress.update((one.rule, one) for one in progress)

    @override
    async def states(self, needs: Mapping[str, Needs]) -> dict[str, dict[str, ScopeState]]:
        found: dict[str, dict[str, ScopeState]] = {rule: {} for rule in needs}
        for (rule, key), text in self.tables.states.items():
            state, asked = STATE.validate_json(text), needs.get(rule)
            if asked and (key in asked.scope_keys or is_at_or_before(state.due, asked.due_through)):
                found[rule][key] = state
        return found

    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        states = self.tables.states
        for rule, change in changes.items():
            for (name, key), text in list(states.items()):
                expires = STATE.validate_json(text).expires
                if name == rule and (key in change.dropped or is_at_or_before(expires, change.expired_through)):
                    del states[name, key]
            states.update(((rule, key), STATE.dump_json(state)) for key, state in change.saved.items())

    @override
    async def clear_states(self, rules: Collection[str]) -> None:
        self.tables.states = {key: text for key, text in self.tables.states.items() if key[0] not in rules}

    @override
    async def runs(self, ids: Collection[str]) -> dict[str, Run]:
        return {one: Run.model_validate_json(text) for one in ids if (text := self.tables.runs.get(one)) is not None}

    @override
    async def find_runs(self, query: RunQuery) -> list[Run]:
        return self.tables.find_runs(query)

    @override
    async def save_runs(self, runs: Collection[Run]) -> None:
        self.tables.runs.update((run.id, run.model_dump_json()) for run in runs)

    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        return {scope: run_id for scope, run_id in self.tables.turns(blocking=blocking).items() if scope in scopes}

    @override
    async def add_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> None:
        self.tables.dead_letters += [one.model_dump_json() for one in dead_letters]

    @override
    async def stored_rules(self, names: Collection[str] | None = None) -> dict[str, StoredRule]:
        return self.tables.stored_rules(names)

    @override
    async def save_stored_rules(self, rules: Collection[StoredRule]) -> None:
        known = {name: rule.version for name, rule in self.tables.stored_rules([r.name for r in rules]).items()}
        for rule in rules:
            if rule.version != (expected := known.get(rule.name, 0) + 1):
                raise StoredRuleConflictError(rule.name, rule.version, expected)
            known[rule.name] = rule.version
        self.tables.stored.update((rule.name, rule.model_dump_json()) for rule in rules)

    @override
    async def schedule_ticks(self) -> dict[str, datetime]:
        return dict(self.tables.ticks)

    @override
    async def save_schedule_ticks(self, ticks: Mapping[str, datetime]) -> None:
        known = self.tables.ticks
        known.update((name, max(at, known.get(name, at))) for name, at in ticks.items())

    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        return self.tables.acquire(names, holder, self._now + ttl, self._now)

    @override
    async def release(self, names: Collection[str], holder: str) -> None:
        self.tables.release(names, holder, self._now)

    @override
    async def holders(self, names: Collection[str]) -> dict[str, str]:
        return {name: holder for name in names if (holder := self.tables.holder(name, self._now)) is not None}


class DictionaryStorage(Storage):
    """Keeps everything in a database of dictionaries, which several storages may share."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self.clock = clock

    @property
    @override
    def wakeups(self) -> InProcessWakeups:
        return self.database.wakeups

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        async with self.database.locks[workspace]:
            tables = self.tables(workspace).copy()
            transaction = self.begin(workspace, tables)
            try:
                yield transaction
                if tables != self.tables(workspace):
                    self.commit(workspace, transaction.tables)
            finally:
                transaction.close()

    @override
    async def append(self, workspace: WorkspaceRef, drafts: Sequence[Draft]) -> list[Envelope]:
        async with self.database.locks[workspace]:
            return await self.append_alone(workspace, self.tables(workspace), drafts)

    async def append_alone(self, workspace: WorkspaceRef, tables: Tables, drafts: Sequence[Draft]) -> list[Envelope]:
        """Appends to what the tables held, whatever a transaction would do."""
        tables = tables.copy()
        appended = await DictionaryTransaction(workspace, tables, self.clock()).append(drafts)
        if appended:
            self.database.tables[workspace] = tables
            self.wakeups.announce([workspace])
        return appended

    def begin(self, workspace: WorkspaceRef, tables: Tables) -> DictionaryTransaction:
        return DictionaryTransaction(workspace, tables, self.clock())

    def commit(self, workspace: WorkspaceRef, tables: Tables) -> None:
        self.database.tables[workspace] = tables
        self.wakeups.announce([workspace])

    def tables(self, workspace: WorkspaceRef) -> Tables:
        return self.database.tables[workspace]

    @override
    async def now(self) -> datetime:
        return self.clock()

    @override
    async def head(self, workspace: WorkspaceRef) -> Head:
        return self.tables(workspace).head()

    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        return self.tables(workspace).window(window)

    @override
    async def find(self, workspace: WorkspaceRef, ids: Collection[str]) -> dict[str, Envelope]:
        return self.tables(workspace).find(ids)

    @override
    async def rule_history(self, workspace: WorkspaceRef, rule: str) -> list[Envelope]:
        return [one for one in self.tables(workspace).envelopes() if stored_rule_of(one) == rule]

    @override
    async def stored_rules(
        self, workspace: WorkspaceRef, names: Collection[str] | None = None
    ) -> dict[str, StoredRule]:
        return self.tables(workspace).stored_rules(names)

    @override
    async def progress(self, workspace: WorkspaceRef) -> dict[str, RuleProgress]:
        return dict(self.tables(workspace).progress)

    @override
    async def runs(self, workspace: WorkspaceRef, query: RunQuery) -> list[Run]:
        return self.tables(workspace).find_runs(query)

    @override
    async def run(self, workspace: WorkspaceRef, run_id: str) -> Run | None:
        text = self.tables(workspace).runs.get(run_id)
        return None if text is None else Run.model_validate_json(text)

    @override
    async def dead_letters(
        self, workspace: WorkspaceRef, *, rule: str | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        letters = read_all(DeadLetter, self.tables(workspace).dead_letters)
        found = [one for one in letters if rule in (None, one.rule)]
        return found if limit is None else found[max(len(found) - limit, 0) :]

    @override
    async def dead_letter_counts(self, workspace: WorkspaceRef) -> dict[str, int]:
        rules = [one.rule for one in await self.dead_letters(workspace)]
        return {rule: rules.count(rule) for rule in rules}

    @override
    async def schedule_ticks(self, workspace: WorkspaceRef) -> dict[str, datetime]:
        return dict(self.tables(workspace).ticks)

    @override
    async def cursor(self, workspace: WorkspaceRef, name: str) -> int:
        return self.database.cursors.get((workspace, name), 0)

    @override
    async def save_cursor(self, workspace: WorkspaceRef, name: str, seq: int) -> int:
        self.database.cursors[workspace, name] = max(seq, await self.cursor(workspace, name))
        return await self.cursor(workspace, name)

    @override
    async def acquire(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        got: set[LeaseKey] = set()
        for workspace, names in by_workspace(keys).items():
            async with self.transaction(workspace) as transaction:
                got |= {LeaseKey(workspace, name) for name in await transaction.acquire(names, holder, ttl)}
        return frozenset(got)

    @override
    async def renew(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        got: set[LeaseKey] = set()
        for workspace, names in by_workspace(keys).items():
            async with self.transaction(workspace) as transaction:
                held = [name for name, by in (await transaction.holders(names)).items() if by == holder]
                got |= {LeaseKey(workspace, name) for name in await transaction.acquire(held, holder, ttl)}
        return frozenset(got)

    @override
    async def release(self, keys: Collection[LeaseKey], holder: str) -> None:
        for workspace, names in by_workspace(keys).items():
            async with self.transaction(workspace) as transaction:
                await transaction.release(names, holder)

    @override
    async def workspaces(
        self, *, tenant_id: str | None = None, after: WorkspaceRef | None = None, limit: int | None = None
    ) -> list[WorkspaceRef]:
        places = sorted(place for place, tables in self.database.tables.items() if tables.log)
        found = [one for one in places if tenant_id in (None, one.tenant_id) and (after is None or one > after)]
        return found[:limit]

    @override
    async def behind(self, watch: Watch, *, limit: int) -> list[WorkspaceRef]:
        return [place for place in await self.workspaces() if self.is_behind(self.tables(place), watch)][:limit]

    def is_behind(self, tables: Tables, watch: Watch) -> bool:
        stored = [name for name, rule in tables.stored_rules(None).items() if is_watched(rule, watch.stored)]
        for rule in [*watch.definitions, *stored]:
            known = tables.progress.get(rule)
            if known is None or known.cursor < len(tables.log):
                return True
            if known.definition != watch.definitions.get(rule, known.definition):
                return True
        return False

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
        lines: dict[WorkspaceRef, list[DueRun]] = {}
        for starts, due in self.longest_first(self.waiting(policy)):
            left_out = due.workspace in but_workspaces or LeaseKey(due.workspace, run_lease(due.run_id)) in but_runs
            if starts <= self.clock() and not left_out:
                lines.setdefault(due.workspace, []).append(due)
        turns = zip_longest(*(lines[place][:each] for place in self.in_order(lines, after)))
        return [due for turn in turns for due in turn if due is not None][:limit]

    def longest_first(self, waiting: list[tuple[datetime, DueRun]]) -> list[tuple[datetime, DueRun]]:
        return sorted(waiting, key=lambda one: one[0])

    def in_order(self, places: Iterable[WorkspaceRef], after: WorkspaceRef | None) -> list[WorkspaceRef]:
        return sorted(places, key=lambda place: (after is not None and place <= after, place))

    @override
    async def next_due(self, policy: RunPolicy) -> timedelta | None:
        first = min((starts for starts, _ in self.waiting(policy)), default=None)
        return None if first is None else max(first - self.clock(), timedelta())

    def waiting(self, policy: RunPolicy) -> list[tuple[datetime, DueRun]]:
        return [
            (starts, DueRun(place, run.id, run.rule))
            for place, tables in self.database.tables.items()
            for turns in [(tables.turns(blocking=()), tables.turns())]
            for run in read_all(Run, tables.runs.values())
            if (starts := self.starts(tables, run)) is not None and self.admits(policy, tables, run, *turns)
        ]

    def starts(self, tables: Tables, run: Run) -> datetime | None:
        if run.status == "running":
            return tables.leases.get(run_lease(run.id), ("", run.fired_at))[1]
        if run.waiting is not None:
            return run.waiting.until
        return {"pending": run.fired_at, "retrying": run.next_attempt_at}.get(run.status)

    def admits(
        self, policy: RunPolicy, tables: Tables, run: Run, free: dict[RunScope, str], blocked: dict[RunScope, str]
    ) -> bool:
        scope = RunScope(run.rule, run.scope_key)
        if run.rule in policy.withheld:
            return False
        if run.rule in policy.unordered:
            return True
        if run.rule in policy.ordered:
            return run.status == "paused" or (blocked if run.rule in policy.blocking else free).get(scope) == run.id
        stored = tables.stored_rules(None).get(run.rule)
        if stored is None or not is_watched(stored, policy.stored):
            return False
        turns = blocked if stored.rule.on_dead_letter == "block" else free
        return run.status == "paused" or stored.rule.ordering == "none" or turns.get(scope) == run.id

    @override
    async def due_schedules(self, deadlines: Mapping[str, Deadline], *, limit: int) -> list[DueSchedule]:
        found = [
            DueSchedule(place, schedule, last)
            for schedule, deadline in deadlines.items()
            for place in (await self.workspaces() if deadline.workspaces is None else deadline.workspaces)
            if (last := self.tables(place).ticks.get(schedule)) is None or last < deadline.at
        ]
        return found[:limit]


def read_all[Row: BaseModel](row: type[Row], texts: Iterable[str]) -> list[Row]:
    return [row.model_validate_json(text) for text in texts]


def is_at_or_before(at: datetime | None, limit: datetime | None) -> bool:
    return at is not None and limit is not None and at <= limit


def is_watched(stored: StoredRule, namespaces: Collection[str]) -> bool:
    return stored.active and stored.rule.enabled and stored.name.partition(":")[0] in namespaces


def by_workspace(keys: Collection[LeaseKey]) -> dict[WorkspaceRef, list[str]]:
    return {place: [key.name for key in keys if key.workspace == place] for place in {key.workspace for key in keys}}
