"""`SqlTransaction`: one workspace's data in the hands of one caller, by a session that holds the workspace's row."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import override

from reflexr.core import DeadLetter, Draft, Envelope, Needs, RuleProgress, Run, ScopeState, StoredRule
from reflexr.sql.catalog import Catalog
from reflexr.sql.leases import is_of_run
from reflexr.sql.locks import WorkspaceRow
from reflexr.sql.members import Known, Members, digest
from reflexr.sql.rules import StoredRuleFlags, flags_of
from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import Parameters
from reflexr.sql.values import moment
from reflexr.workspace import (
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


def named(workspace: WorkspaceRef) -> dict[str, object]:
    """Returns the parameters that name a workspace."""
    return {"tenant": workspace.tenant_id, "workspace": workspace.workspace_id}


class SqlTransaction(Transaction):
    """A transaction that holds its workspace's row. Whoever opened it commits, after it was settled."""

    def __init__(
        self, workspace: WorkspaceRef, row: WorkspaceRow, fetcher: Fetcher, catalog: Catalog, known: Known
    ) -> None:
        """Begins, once the row is held.

        Args:
            workspace: The workspace.
            row: What its row holds, and what time it is.
            fetcher: Executes statements as part of the transaction.
            catalog: The statements.
            known: The sets that the storage has seen committed.
        """
        self._workspace = workspace
        self._named: Parameters = named(workspace)
        self._row = row
        self._now = row.now
        self._open: Fetcher | None = fetcher
        self._catalog = catalog
        self._known = known
        self._changed = False
        # What was looked up under the lock stays so, but for what this transaction does.
        self._absent: set[str] = set()
        self._progress: dict[str, RuleProgress] | None = None
        self._stored: dict[str, StoredRuleFlags] | None = None
        self._rules_moved = False
        self._counted = False
        self._dues: dict[LeaseKey, int] = {}
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
        fetcher = self._fetcher
        if not drafts:
            return []
        twice = [event_id for event_id, count in Counter(draft.id for draft in drafts).items() if count > 1]
        if unknown := [draft.id for draft in drafts if draft.id not in self._absent]:
            known = await self._catalog.logs.find(fetcher, self._named, unknown)
            self._absent.update(event_id for event_id in unknown if event_id not in known)
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
        texts = [envelope.to_json() for envelope in envelopes]
        await self._catalog.logs.append(fetcher, self._named, envelopes, texts)
        self._absent.difference_update(draft.id for draft in drafts)
        self._row.head_seq, self._row.head_ts = envelopes[-1].seq, ts
        self._row.settled = self._row.unsettled
        self._changed = True
        return envelopes

    @override
    async def find(self, ids: Collection[str]) -> dict[str, Envelope]:
        found = await self._catalog.logs.find(self._fetcher, self._named, ids)
        self._absent.update(event_id for event_id in ids if event_id not in found)
        return found

    @override
    async def read(self, window: LogWindow) -> list[Envelope]:
        return await self._catalog.logs.read(self._fetcher, self._named, window)

    @override
    async def read_seqs(self, seqs: Collection[int]) -> dict[int, Envelope]:
        return await self._catalog.logs.read_seqs(self._fetcher, self._named, seqs)

    # --- Rules

    @override
    async def progress(self, rules: Collection[str] | None = None) -> dict[str, RuleProgress]:
        progress = await self._all_progress()
        return dict(progress) if rules is None else {rule: progress[rule] for rule in progress if rule in rules}

    @override
    async def save_progress(self, progress: Collection[RuleProgress]) -> None:
        fetcher = self._fetcher
        latest = {one.rule: one for one in progress}
        if not latest:
            return
        await self._catalog.progress.save(fetcher, self._named, latest.values(), self._count(len(latest)))
        if self._progress is not None:
            self._progress.update(latest)
        self._rules_moved = self._changed = True

    @override
    async def states(self, needs: Mapping[str, Needs]) -> dict[str, dict[str, ScopeState]]:
        return await self._catalog.states.load(self._fetcher, self._named, needs)

    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        await self._catalog.states.change(self._fetcher, self._named, changes)

    @override
    async def clear_states(self, rules: Collection[str]) -> None:
        fetcher = self._fetcher
        if rules:
            await self._catalog.states.clear(fetcher, self._named, rules)

    @override
    async def add_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> None:
        fetcher = self._fetcher
        if dead_letters:
            number = self._count(len(dead_letters))
            await self._catalog.dead_letters.add(fetcher, self._named, dead_letters, number)

    @override
    async def stored_rules(self, names: Collection[str] | None = None) -> dict[str, StoredRule]:
        fetcher = self._fetcher
        if not self._row.has_stored_rules:
            return {}
        return await self._catalog.stored_rules.load(fetcher, self._named, names)

    @override
    async def save_stored_rules(self, rules: Collection[StoredRule]) -> None:
        fetcher = self._fetcher
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
        await self._catalog.stored_rules.save(fetcher, self._named, saved.values(), self._count(len(saved)))
        flags.update((name, flags_of(stored)) for name, stored in saved.items())
        self._row.has_stored_rules = self._rules_moved = self._changed = True
        await self._catalog.runs.requeue(fetcher, self._named, saved, flags)

    # --- Runs

    @override
    async def runs(self, ids: Collection[str]) -> dict[str, Run]:
        return await self._catalog.runs.load(self._fetcher, self._named, ids)

    @override
    async def find_runs(self, query: RunQuery) -> list[Run]:
        return await self._catalog.runs.find(self._fetcher, self._named, query)

    @override
    async def save_runs(self, runs: Collection[Run]) -> None:
        fetcher = self._fetcher
        if not runs:
            return
        flags = await self._stored_flags()
        number = self._count(len(runs))
        await self._catalog.runs.save(fetcher, self._named, runs, now=self._now, number=number, flags=flags)
        for run in runs:
            # Its row says now until when its lease is taken.
            self._dues.pop(LeaseKey(self._workspace, run_lease(run.id)), None)
        self._changed = True

    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        return await self._catalog.runs.first(self._fetcher, self._named, scopes, blocking)

    # --- Schedules and leases

    @override
    async def schedule_ticks(self) -> dict[str, datetime]:
        return await self._catalog.ticks.load(self._fetcher, self._named)

    @override
    async def save_schedule_ticks(self, ticks: Mapping[str, datetime]) -> None:
        fetcher = self._fetcher
        if not ticks:
            return
        await self._catalog.ticks.save(fetcher, self._named, ticks, self._count(len(ticks)))
        names = frozenset((name,) for name in await self._catalog.ticks.keys(fetcher, self._named))
        self._row.ticked = digest(names)
        self._sets |= await self._catalog.members.keep(fetcher, self._known, [names])
        self._changed = True

    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        fetcher = self._fetcher
        if not names:
            return frozenset()
        taken = await self._catalog.leases.acquire(fetcher, self._keys(names), holder, ttl, self._now)
        self._dues.update((lease, until) for lease, until in taken.items() if is_of_run(lease))
        self._changed = True
        return frozenset(lease.name for lease in taken)

    @override
    async def release(self, names: Collection[str], holder: str) -> None:
        fetcher = self._fetcher
        if not names:
            return
        released = await self._catalog.leases.release(fetcher, self._keys(names), holder)
        self._dues.update((lease, self._now) for lease in released if is_of_run(lease))
        self._changed = True

    @override
    async def holders(self, names: Collection[str]) -> dict[str, str]:
        fetcher = self._fetcher
        if not names:
            return {}
        return await self._catalog.leases.holders(fetcher, self._keys(names), self._now)

    # --- The end

    async def settle(self) -> None:
        """Brings up to date what others find the workspace by: the last that a transaction does."""
        fetcher = self._fetcher
        if self._rules_moved:
            await self._settle_rules(fetcher)
        if self._dues:
            await self._catalog.leases.set_due(fetcher, self._dues)
        if self._counted or self._rules_moved:
            await self._catalog.locks.save(fetcher, self._named, self._row)

    def close(self) -> None:
        """Ends the transaction: it can do nothing from here on."""
        self._open = None

    def committed(self) -> None:
        """Takes note that it is committed."""
        self._known.update(self._sets)

    @property
    def _fetcher(self) -> Fetcher:
        if self._open is None:
            raise TransactionClosedError
        return self._open

    async def _settle_rules(self, fetcher: Fetcher) -> None:
        progress, stored, head = await self._all_progress(), await self._stored_flags(), self._row.head_seq
        settled = {
            (rule, one.definition) for rule, one in progress.items() if rule not in stored and one.cursor >= head
        }
        enabled = {rule for rule, flags in stored.items() if flags.enabled}
        behind = {rule for rule in enabled if rule not in progress or progress[rule].cursor < head}
        now: Members = frozenset({*settled, *((_namespace(rule),) for rule in behind)})
        later: Members = frozenset((_namespace(rule),) for rule in enabled)
        self._row.settled, self._row.unsettled = digest(now), digest(later)
        self._sets |= await self._catalog.members.keep(fetcher, self._known, [now, later])

    async def _all_progress(self) -> dict[str, RuleProgress]:
        fetcher = self._fetcher
        if self._progress is None:
            self._progress = await self._catalog.progress.load(fetcher, self._named)
        return self._progress

    async def _stored_flags(self) -> dict[str, StoredRuleFlags]:
        fetcher = self._fetcher
        if self._stored is None:
            known = self._row.has_stored_rules
            self._stored = await self._catalog.stored_rules.flags(fetcher, self._named) if known else {}
        return self._stored

    def _count(self, number: int) -> int:
        """Returns the first of so many numbers that nothing of the workspace has yet."""
        first = self._row.counter
        self._row.counter += number
        self._counted = True
        return first

    def _keys(self, names: Collection[str]) -> list[LeaseKey]:
        return [LeaseKey(self._workspace, name) for name in dict.fromkeys(names)]


def _namespace(rule: str) -> str:
    return rule.partition(":")[0]
