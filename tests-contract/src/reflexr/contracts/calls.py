"""The calls on a transaction that a state machine makes, each beside the same on a model.

Each is a value, so that Hypothesis can show it and shrink it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol, override

from reflexr.contracts import samples
from reflexr.contracts.model import REFUSED, Entry, ModelWorkspace
from reflexr.contracts.samples import ALPHA, BETA, START, run_scope
from reflexr.core import Draft, Envelope, RuleProgress, Run, StoredRule
from reflexr.workspace import (
    DuplicateEventIdError,
    RunQuery,
    RunScope,
    StateChanges,
    Storage,
    StoredRuleConflictError,
    Transaction,
    WorkspaceRef,
    run_lease,
)

RULES: Final = (ALPHA, BETA)
SCOPES: Final = tuple(run_scope(name, scope) for name in RULES for scope in ("x", "y"))
RUNS: Final = tuple(f"r{number}" for number in range(6))
LEASES: Final = tuple(run_lease(run_id) for run_id in RUNS[:3])
KEYS: Final = ("[1]", "[2]", "[3]")
ASKED: Final = (
    samples.needs(*KEYS),
    samples.needs(KEYS[0], through=START + timedelta(minutes=6)),
    samples.needs(through=START + timedelta(minutes=20)),
)


class Call(Protocol):
    """One call on a transaction, and the same on a model."""

    async def call(self, transaction: Transaction) -> object:
        """Calls the transaction."""
        ...

    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        """Does the same with the model."""
        ...


@dataclass(frozen=True)
class Append(Call):
    """Appends drafts of one type under these ids."""

    ids: tuple[str, ...]
    type: str

    @override
    async def call(self, transaction: Transaction) -> object:
        return await self._appended(transaction.append)

    async def call_alone(self, storage: Storage, workspace: WorkspaceRef) -> object:
        """Appends them as all that a transaction does."""
        return await self._appended(partial(storage.append, workspace))

    async def _appended(self, append: Callable[[Sequence[Draft]], Awaitable[list[Envelope]]]) -> object:
        try:
            return entries(await append(self._drafts))
        except DuplicateEventIdError:
            return REFUSED

    @override
    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        return model.append(self._drafts)

    @property
    def _drafts(self) -> list[Draft]:
        return [samples.draft(one, self.type) for one in self.ids]


@dataclass(frozen=True)
class SaveProgress(Call):
    """Saves a rule's progress, and reads all of it. No rule has come further than the log."""

    progress: RuleProgress

    @override
    async def call(self, transaction: Transaction) -> object:
        await transaction.save_progress([self._within(transaction.head.seq)])
        return list((await transaction.progress()).items())

    @override
    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        model.progress[self.progress.rule] = self._within(len(model.log))
        return list(model.progress.items())

    def _within(self, head: int) -> RuleProgress:
        return replace(self.progress, cursor=min(self.progress.cursor, head))


@dataclass(frozen=True)
class ChangeStates(Call):
    """Changes a rule's states, and reads them by key and by timer."""

    rule: str
    changes: StateChanges

    @override
    async def call(self, transaction: Transaction) -> object:
        await transaction.change_states({self.rule: self.changes})
        return await self._look(transaction)

    async def _look(self, transaction: Transaction) -> object:
        return [(await transaction.states({self.rule: asked}))[self.rule] for asked in ASKED]

    @override
    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        model.change_states(self.rule, self.changes)
        return [model.find_states(self.rule, asked) for asked in ASKED]


@dataclass(frozen=True)
class ClearStates(Call):
    """Clears a rule's states, and reads those of all."""

    rule: str

    @override
    async def call(self, transaction: Transaction) -> object:
        await transaction.clear_states([self.rule])
        return await transaction.states(dict.fromkeys(RULES, ASKED[0]))

    @override
    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        model.states.pop(self.rule, None)
        return {name: model.find_states(name, ASKED[0]) for name in RULES}


@dataclass(frozen=True)
class SaveRuns(Call):
    """Saves runs, but for those that would run beside another, and reads them and whose turn it is."""

    runs: tuple[Run, ...]

    @override
    async def call(self, transaction: Transaction) -> object:
        # No storage rules out two runs that run in one scope, but whose turn it is then nothing says.
        running = await transaction.find_runs(RunQuery(statuses=frozenset({"running"})))
        await transaction.save_runs(without_collisions(self.runs, running))
        return await self._look(transaction)

    async def _look(self, transaction: Transaction) -> object:
        return (
            await transaction.find_runs(RunQuery()),
            [await transaction.first_runs(SCOPES, blocking=names) for names in ((), RULES)],
        )

    @override
    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        running = [one for one in model.runs.values() if one.status == "running"]
        model.runs.update((one.id, one) for one in without_collisions(self.runs, running))
        return model.find_runs(RunQuery()), [turns(model, blocking=blocking) for blocking in (False, True)]


@dataclass(frozen=True)
class AddDeadLetter(Call):
    """Records a dead letter."""

    rule: str
    seq: int

    @override
    async def call(self, transaction: Transaction) -> object:
        return await transaction.add_dead_letters([samples.dead_letter(self.rule, self.seq)])

    @override
    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        return model.dead_letters.append(samples.dead_letter(self.rule, self.seq))


@dataclass(frozen=True)
class SaveStored(Call):
    """Saves a version of a stored rule."""

    rule: str
    version: int
    is_active: bool
    is_enabled: bool
    is_ordered: bool
    is_blocking: bool

    @override
    async def call(self, transaction: Transaction) -> object:
        try:
            await transaction.save_stored_rules([self._stored])
        except StoredRuleConflictError:
            return REFUSED
        return None

    @override
    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        return model.save_stored(self._stored)

    @property
    def _stored(self) -> StoredRule:
        changed = samples.rule(
            self.rule,
            enabled=self.is_enabled,
            ordering="scope" if self.is_ordered else "none",
            on_dead_letter="block" if self.is_blocking else "continue",
        )
        return samples.stored(changed, self.version, is_active=self.is_active)


@dataclass(frozen=True)
class Tick(Call):
    """Saves a schedule's tick, and reads all of them."""

    schedule: str
    at: datetime

    @override
    async def call(self, transaction: Transaction) -> object:
        await transaction.save_schedule_ticks({self.schedule: self.at})
        return list((await transaction.schedule_ticks()).items())

    @override
    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        model.tick(self.schedule, self.at)
        return list(model.ticks.items())


@dataclass(frozen=True)
class Acquire(Call):
    """Takes leases."""

    names: frozenset[str]
    holder: str
    ttl: timedelta

    @override
    async def call(self, transaction: Transaction) -> object:
        return await transaction.acquire(self.names, self.holder, self.ttl)

    @override
    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        return model.acquire(self.names, self.holder, self.ttl, now)


@dataclass(frozen=True)
class Release(Call):
    """Gives back leases, and reads who holds them."""

    names: frozenset[str]
    holder: str

    @override
    async def call(self, transaction: Transaction) -> object:
        await transaction.release(self.names, self.holder)
        return await transaction.holders(LEASES)

    @override
    def imagine(self, model: ModelWorkspace, now: datetime) -> object:
        model.release(self.names, self.holder, now)
        return holders(model, now)


def entries(envelopes: Sequence[Envelope]) -> list[Entry]:
    """Returns what the model has of envelopes."""
    return [Entry(envelope.seq, envelope.id, envelope.event_type) for envelope in envelopes]


def holders(model: ModelWorkspace, now: datetime) -> dict[str, str]:
    """Returns who holds each lease."""
    return {name: holder for name in LEASES if (holder := model.holder(name, now)) is not None}


def turns(model: ModelWorkspace, *, blocking: bool) -> dict[RunScope, str]:
    """Returns whose turn it is in each scope."""
    return {scope: turn for scope in SCOPES if (turn := model.turn(scope, blocking=blocking)) is not None}


def without_collisions(runs: Sequence[Run], running: Sequence[Run]) -> list[Run]:
    """Returns runs of which none runs in a scope where another one does."""
    taken = {(one.rule, one.scope_key): one.id for one in running}
    return [
        one for one in runs if one.status != "running" or taken.setdefault((one.rule, one.scope_key), one.id) == one.id
    ]
