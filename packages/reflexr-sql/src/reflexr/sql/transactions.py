"""`SqlTransaction`: one workspace's data in the hands of one caller, by a session that holds the workspace's row."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import override

from reflexr.core import DeadLetter, Draft, Envelope, Needs, RuleProgress, Run, ScopeState, StoredRule
from reflexr.sql.catalog import Catalog
from reflexr.sql.leases import is_of_run
from reflexr.sql.locks import WorkspaceRow
from reflexr.sql.logs import event_row
from reflexr.sql.members import Known, Members, digest
from reflexr.sql.queues import Fronts
from reflexr.sql.rules import StoredRuleFlags, flags_of
from reflexr.sql.sessions import Session
from reflexr.sql.statements import Parameters, Row, named
from reflexr.sql.values import key, moment
from reflexr.sql.writing import Writer, Writing
from reflexr.workspace import (
    EVALUATION_LEASE,
    DuplicateEventIdError,
    Head,
    LeaseKey,
    LogWindow,
    RunQuery,
    RunScope,
    StateChanges,
    StoredRuleConflictError,
    Transaction,
    TransactionClosedError,
    WorkspaceRef,
    run_lease,
)


class SqlTransaction(Transaction):
    """A transaction that holds its workspace's row. Whoever opened it commits, after it was settled."""

    def __init__(
        self, workspace: WorkspaceRef, row: WorkspaceRow, session: Session, catalog: Catalog, known: Known
    ) -> None:
        """Begins, once the row is held.

        Args:
            workspace: The workspace.
            row: What its row holds, and what time it is.
            session: Executes statements as part of the transaction.
            catalog: The statements.
            known: The sets that the storage has seen committed.
        """
        self._workspace = workspace
        self._named: Parameters = named(workspace)
        self._row = row
        # What the row is in the database, or will be once what is kept back is written.
        self._written = replace(row)
        self._now = row.now
        self._open: Writing | None = Writing(session, catalog.statements)
        self._catalog = catalog
        self._known = known
        self._changed = False
        # What was looked up under the lock stays so, but for what this transaction does.
        self._absent: set[str] = set()
        self._progress: dict[str, RuleProgress] | None = None
        self._evaluates: dict[str, str] | None = None
        self._fronts = Fronts()
        self._existing: set[str] = set()
        self._stored: dict[str, StoredRuleFlags] | None = None
        self._rules_moved = False
        self._dues: dict[LeaseKey, int] = {}
        self._resting: set[LeaseKey] = set()
        self._sets: Known = {}

    @property
    @override
    def workspace(self) -> WorkspaceRef:
        return self._workspace

    @property
    @override
    def head(self) -> Head:
        return Head(self._row.head_seq, None if self._row.head_ts is None else moment(self._row.head_ts))

    @property
    @override
    def now(self) -> datetime:
        return moment(self._now)

    @property
    def changed(self) -> bool:
        """Whether it changed anything that others may wait for."""
        return self._changed

    # --- The log

    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        writing = self._writing
        if not drafts:
            return []
        twice = [event_id for event_id, count in Counter(draft.id for draft in drafts).items() if count > 1]
        unknown = [draft.id for draft in drafts if draft.id not in self._absent]
        # PostgreSQL looks as it inserts.
        looks_first = twice or not self._catalog.statements.is_postgresql
        if unknown and looks_first:
            known = await self.find(unknown)
            twice += [draft.id for draft in drafts if draft.id in known and draft.id not in twice]
        if twice:
            raise DuplicateEventIdError(twice)
        ts = self._now if self._row.head_ts is None else max(self._now, self._row.head_ts)
        time = moment(ts)
        place = self._workspace.workspace_id
        envelopes = [
            Envelope.placed(draft, seq=seq, ts=time, workspace_id=place)
            for seq, draft in enumerate(drafts, start=self._row.head_seq + 1)
        ]
        rows = [event_row(envelope.seq, envelope, envelope.to_json()) for envelope in envelopes]
        before = replace(self._row)
        self._row.head_seq, self._row.head_ts = envelopes[-1].seq, ts
        self._row.settled = self._row.unsettled
        try:
            await self._insert(writing, rows, drafts, looks=bool(unknown) and not looks_first)
        except BaseException:
            self._row = before
            raise
        self._absent.difference_update(draft.id for draft in drafts)
        self._changed = True
        return envelopes

    async def _insert(self, writing: Writing, rows: Sequence[Row], drafts: Sequence[Draft], *, looks: bool) -> None:
        """Inserts events behind which the row's head is already, perhaps looking at once whether ids are taken."""
        if not looks:
            await self._catalog.logs.append(writing, self._named, rows)
            return
        await self._save_row(writing)
        if taken := await self._catalog.logs.append_new(writing, self._named, rows):
            raise DuplicateEventIdError([draft.id for draft in drafts if key(draft.id) in taken])

    @override
    async def find(self, ids: Collection[str]) -> dict[str, Envelope]:
        found = await self._catalog.logs.find(self._writing, self._named, ids)
        self._absent.update(event_id for event_id in ids if event_id not in found)
        return found

    @override
    async def read(self, window: LogWindow) -> list[Envelope]:
        return await self._catalog.logs.read(self._writing, self._named, window)

    @override
    async def read_seqs(self, seqs: Collection[int]) -> dict[int, Envelope]:
        return await self._catalog.logs.read_seqs(self._writing, self._named, seqs)

    # --- Rules

    @override
    async def progress(self, rules: Collection[str] | None = None) -> dict[str, RuleProgress]:
        progress = await self._all_progress()
        return dict(progress) if rules is None else {rule: progress[rule] for rule in progress if rule in rules}

    @override
    async def save_progress(self, progress: Collection[RuleProgress]) -> None:
        writing = self._writing
        latest = {one.rule: one for one in progress}
        if not latest:
            return
        known = await self._all_progress()
        number = self._count(sum(rule not in known for rule in latest))
        await self._catalog.progress.save(
            writing, self._named, sorted(latest.values(), key=lambda one: one.rule in known), number
        )
        known.update(latest)
        self._rules_moved = self._changed = True

    @override
    async def states(self, needs: Mapping[str, Needs]) -> dict[str, dict[str, ScopeState]]:
        return await self._catalog.states.load(self._writing, self._named, needs)

    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        await self._catalog.states.change(self._writing, self._named, changes)

    @override
    async def clear_states(self, rules: Collection[str]) -> None:
        writing = self._writing
        if rules:
            await self._catalog.states.clear(writing, self._named, rules)

    @override
    async def add_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> None:
        writing = self._writing
        if dead_letters:
            number = self._count(len(dead_letters))
            await self._catalog.dead_letters.add(writing, self._named, dead_letters, number)

    @override
    async def stored_rules(self, names: Collection[str] | None = None) -> dict[str, StoredRule]:
        writing = self._writing
        if not self._row.has_stored_rules:
            return {}
        return await self._catalog.stored_rules.load(writing, self._named, names)

    @override
    async def save_stored_rules(self, rules: Collection[StoredRule]) -> None:
        writing = self._writing
        flags = await self._stored_flags()
        saved: dict[str, StoredRule] = {}
        for stored in rules:
            name = stored.name
            known = saved[name].version if name in saved else flags[name].version if name in flags else 0
            if stored.version != known + 1:
                raise StoredRuleConflictError(name, stored.version, known + 1)
            saved[name] = stored
        if not saved:
            return
        await self._catalog.stored_rules.save(writing, self._named, saved.values(), self._count(len(saved)))
        flags.update((name, flags_of(stored)) for name, stored in saved.items())
        self._row.has_stored_rules = self._rules_moved = self._changed = True
        await self._catalog.runs.requeue(writing, self._named, saved, flags)
        # Some are in other queues now.
        self._fronts = Fronts()

    # --- Runs

    @override
    async def runs(self, ids: Collection[str]) -> dict[str, Run]:
        found = await self._catalog.runs.load(self._writing, self._named, ids)
        self._existing.update(found)
        return found

    @override
    async def find_runs(self, query: RunQuery) -> list[Run]:
        found = await self._catalog.runs.find(self._writing, self._named, query)
        self._existing.update(run.id for run in found)
        return found

    @override
    async def save_runs(self, runs: Collection[Run]) -> None:
        writing = self._writing
        if not runs:
            return
        flags = await self._stored_flags()
        # Those that are known to exist have their numbers.
        number = self._count(0 if self._existing.issuperset(run.id for run in runs) else len(runs))
        await self._catalog.runs.save(
            writing, self._named, runs, now=self._now, number=number, flags=flags, fronts=self._fronts
        )
        self._existing.update(run.id for run in runs)
        for run in runs:
            lease = LeaseKey(self._workspace, run_lease(run.id))
            # Its row says now until when its lease is taken, or does not depend on that.
            self._dues.pop(lease, None)
            (self._resting.discard if run.status == "running" else self._resting.add)(lease)
        self._changed = True

    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        return await self._catalog.runs.first(self._writing, self._named, scopes, blocking, self._fronts)

    # --- Schedules and leases

    @override
    async def schedule_ticks(self) -> dict[str, datetime]:
        return await self._catalog.ticks.load(self._writing, self._named)

    @override
    async def save_schedule_ticks(self, ticks: Mapping[str, datetime]) -> None:
        writing = self._writing
        if not ticks:
            return
        await self._catalog.ticks.save(writing, self._named, ticks, self._count(len(ticks)))
        names = frozenset((name,) for name in await self._catalog.ticks.keys(writing, self._named))
        self._row.ticked = digest(names)
        self._sets |= await self._catalog.members.keep(writing, self._known, [names])
        self._changed = True

    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        writing = self._writing
        if not names:
            return frozenset()
        taken = await self._catalog.leases.acquire(writing, self._keys(names), holder, ttl, self._now)
        self._dues.update((lease, until) for lease, until in taken.items() if self._is_of_work(lease))
        self._evaluates = None
        self._changed = True
        return frozenset(lease.name for lease in taken)

    @override
    async def release(self, names: Collection[str], holder: str) -> None:
        writing = self._writing
        if not names:
            return
        released = await self._catalog.leases.release(writing, self._keys(names), holder)
        self._dues.update((lease, self._now) for lease in released if self._is_of_work(lease))
        self._evaluates = None
        self._changed = True

    @override
    async def holders(self, names: Collection[str]) -> dict[str, str]:
        writing = self._writing
        if not names:
            return {}
        if set(names) == {EVALUATION_LEASE} and self._progress is None:
            # Whoever asks this evaluates, and asks how far the rules have come next.
            await self._all_progress()
        if set(names) == {EVALUATION_LEASE} and self._evaluates is not None:
            return dict(self._evaluates)
        return await self._catalog.leases.holders(writing, self._keys(names), self._now)

    # --- The end

    async def settle(self) -> None:
        """Brings up to date what others find the workspace by: the last that a transaction does."""
        writing = self._writing
        if self._rules_moved:
            await self._settle_rules(writing)
        if self._dues:
            await self._catalog.leases.set_due(writing, self._dues)
        await self._save_row(writing)
        await writing.flush()

    def close(self) -> None:
        """Ends the transaction: it can do nothing from here on."""
        self._open = None

    def committed(self) -> None:
        """Takes note that it is committed."""
        self._known.update(self._sets)

    @property
    def _writing(self) -> Writing:
        if self._open is None:
            raise TransactionClosedError
        return self._open

    async def _save_row(self, writer: Writer) -> None:
        """Saves the workspace's row, if it is another than the last time."""
        if self._row != self._written:
            await self._catalog.locks.save(writer, self._named, self._row)
            self._written = replace(self._row)

    async def _settle_rules(self, writer: Writer) -> None:
        progress, stored, head = await self._all_progress(), await self._stored_flags(), self._row.head_seq
        settled = {
            (rule, one.definition) for rule, one in progress.items() if rule not in stored and one.cursor >= head
        }
        enabled = {rule for rule, flags in stored.items() if flags.enabled}
        behind = {rule for rule in enabled if rule not in progress or progress[rule].cursor < head}
        now: Members = frozenset({*settled, *((_namespace(rule),) for rule in behind)})
        later: Members = frozenset((_namespace(rule),) for rule in enabled)
        self._row.settled, self._row.unsettled = digest(now), digest(later)
        self._sets |= await self._catalog.members.keep(writer, self._known, [now, later])

    async def _all_progress(self) -> dict[str, RuleProgress]:
        writing = self._writing
        if self._progress is None:
            opening = await self._catalog.progress.open(writing, self._named, self._now)
            self._progress = opening.progress
            self._evaluates = {} if opening.holder is None else {EVALUATION_LEASE: opening.holder}
            if not opening.has_runs_in_line:
                self._fronts.are_all()
        return self._progress

    async def _stored_flags(self) -> dict[str, StoredRuleFlags]:
        writing = self._writing
        if self._stored is None:
            known = self._row.has_stored_rules
            self._stored = await self._catalog.stored_rules.flags(writing, self._named) if known else {}
        return self._stored

    def _count(self, number: int) -> int:
        """Returns the first of so many numbers that nothing of the workspace has yet."""
        first = self._row.counter
        self._row.counter += number
        return first

    def _is_of_work(self, lease: LeaseKey) -> bool:
        """Whether a lease is on a run that may be running, so that the run is due when it lapses."""
        return is_of_run(lease) and lease not in self._resting

    def _keys(self, names: Collection[str]) -> list[LeaseKey]:
        return [LeaseKey(self._workspace, name) for name in dict.fromkeys(names)]


def _namespace(rule: str) -> str:
    return rule.partition(":")[0]
