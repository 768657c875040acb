"""A storage over dictionaries, as somebody outside this repository writes one: short, complete, and slow."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import islice
from typing import override

from pydantic import BaseModel, TypeAdapter

from reflexr.core import DeadLetter, Envelope, RuleProgress, Run, ScopeState, StoredRule
from reflexr.workspace import (
    Clock,
    Head,
    InProcessWakeups,
    Lease,
    LogWindow,
    RunQuery,
    StorageKernel,
    TransactionClosedError,
    TransactionKernel,
    WorkspaceRef,
)

STATES = TypeAdapter(dict[str, ScopeState])


@dataclass
class Tables:
    """One workspace's rows. What could be changed is kept as JSON, so that nobody shares it."""

    log: dict[str, str] = field(default_factory=dict[str, str])
    cursors: dict[str, int] = field(default_factory=dict[str, int])
    progress: dict[str, RuleProgress] = field(default_factory=dict[str, RuleProgress])
    states: dict[str, bytes] = field(default_factory=dict[str, bytes])
    runs: dict[str, str] = field(default_factory=dict[str, str])
    dead_letters: list[str] = field(default_factory=list[str])
    stored_rules: dict[str, str] = field(default_factory=dict[str, str])
    ticks: dict[str, datetime] = field(default_factory=dict[str, datetime])
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])

    def copy(self) -> "Tables":
        return Tables(*(getattr(self, column.name).copy() for column in fields(self)))


@dataclass
class Database:
    """What several storages share."""

    tables: dict[WorkspaceRef, Tables] = field(default_factory=dict[WorkspaceRef, Tables])
    locks: defaultdict[WorkspaceRef, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    wakeups: InProcessWakeups = field(default_factory=InProcessWakeups)


class DictionaryTransaction(TransactionKernel):
    """Works on a copy of a workspace's tables, until it is closed."""

    def __init__(self, workspace: WorkspaceRef, tables: Tables, now: datetime) -> None:
        last = next(read_all(Envelope, reversed(tables.log.values())), None)
        super().__init__(workspace, Head() if last is None else Head(last.seq, last.ts), now)
        self.open: Tables | None = tables

    @property
    def tables(self) -> Tables:
        if self.open is None:
            raise TransactionClosedError
        return self.open

    @override
    async def find(self, ids: Collection[str]) -> dict[str, Envelope]:
        return {envelope.id: envelope for envelope in read_some(Envelope, self.tables.log, ids)}

    @override
    async def read(self, window: LogWindow) -> list[Envelope]:
        return window.select(read_all(Envelope, islice(self.tables.log.values(), window.after_seq, None)))

    @override
    async def put_envelopes(self, envelopes: Sequence[Envelope]) -> None:
        self.tables.log.update((envelope.id, envelope.to_json()) for envelope in envelopes)

    @override
    async def cursor(self, name: str) -> int:
        return self.tables.cursors.get(name, 0)

    @override
    async def put_cursor(self, name: str, seq: int) -> None:
        self.tables.cursors[name] = seq

    @override
    async def progress(self, rules: Collection[str] | None = None) -> dict[str, RuleProgress]:
        return {name: one for name, one in self.tables.progress.items() if rules is None or name in rules}

    @override
    async def save_progress(self, progress: Collection[RuleProgress]) -> None:
        self.tables.progress.update((one.rule, one) for one in progress)

    @override
    async def scope_states(self, rules: Collection[str]) -> dict[str, dict[str, ScopeState]]:
        return {rule: STATES.validate_json(text) for rule, text in self.tables.states.items() if rule in rules}

    @override
    async def put_scope_states(self, states: Mapping[str, Mapping[str, ScopeState]]) -> None:
        self.tables.states.update((rule, STATES.dump_json(dict(by_key))) for rule, by_key in states.items())

    @override
    async def runs(self, ids: Collection[str]) -> dict[str, Run]:
        return {run.id: run for run in read_some(Run, self.tables.runs, ids)}

    @override
    async def find_runs(self, query: RunQuery) -> list[Run]:
        return query.select(read_all(Run, reversed(self.tables.runs.values())))

    @override
    async def save_runs(self, runs: Collection[Run]) -> None:
        self.tables.runs.update((run.id, run.model_dump_json()) for run in runs)

    @override
    async def dead_letters(self, *, rule: str | None = None, limit: int | None = None) -> list[DeadLetter]:
        found = [one for one in read_all(DeadLetter, self.tables.dead_letters) if rule in (None, one.rule)]
        return found if limit is None else found[max(len(found) - limit, 0) :]

    @override
    async def add_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> None:
        self.tables.dead_letters += [one.model_dump_json() for one in dead_letters]

    @override
    async def stored_rules(self, names: Collection[str] | None = None) -> dict[str, StoredRule]:
        rules = read_all(StoredRule, self.tables.stored_rules.values())
        return {one.name: one for one in rules if (one.active if names is None else one.name in names)}

    @override
    async def put_stored_rules(self, rules: Mapping[str, StoredRule]) -> None:
        self.tables.stored_rules.update((name, one.model_dump_json()) for name, one in rules.items())

    @override
    async def schedule_ticks(self) -> dict[str, datetime]:
        return dict(self.tables.ticks)

    @override
    async def put_schedule_ticks(self, ticks: Mapping[str, datetime]) -> None:
        self.tables.ticks.update(ticks)

    @override
    async def leases(self, names: Collection[str]) -> dict[str, Lease]:
        return {name: self.tables.leases[name] for name in names if name in self.tables.leases}

    @override
    async def put_leases(self, leases: Mapping[str, Lease | None]) -> None:
        known = {**self.tables.leases, **leases}
        self.tables.leases = {name: one for name, one in known.items() if one is not None and one.expires > self.now}


class DictionaryStorage(StorageKernel):
    """Keeps everything in a database of dictionaries, which several storages may share."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(clock=clock, wakeups=database.wakeups)
        self.database = database

    @override
    @asynccontextmanager
    async def snapshot(self, workspace: WorkspaceRef) -> AsyncGenerator[DictionaryTransaction]:
        tables = self.database.tables.get(workspace, Tables()).copy()
        transaction = DictionaryTransaction(workspace, tables, await self.now())
        try:
            yield transaction
        finally:
            transaction.open = None

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[DictionaryTransaction]:
        async with self.database.locks[workspace], self.snapshot(workspace) as transaction:
            yield transaction
            if transaction.tables != self.database.tables.get(workspace, Tables()):
                self.database.tables[workspace] = transaction.tables
                self.wakeups.announce([workspace])

    @override
    async def known_workspaces(self, after: WorkspaceRef | None, limit: int) -> list[WorkspaceRef]:
        return sorted(one for one in self.database.tables if after is None or one > after)[:limit]


def read_all[Row: BaseModel](row: type[Row], texts: Iterable[str]) -> Iterator[Row]:
    return (row.model_validate_json(text) for text in texts)


def read_some[Row: BaseModel](row: type[Row], texts: Mapping[str, str], names: Collection[str]) -> Iterator[Row]:
    return read_all(row, (texts[name] for name in names if name in texts))
