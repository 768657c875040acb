"""The transactions of `InMemoryStorage`: reads that see the data under what is staged, and the staged changes."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, override

from reflexr.core import DeadLetter, Draft, Envelope, Needs, RuleProgress, Run, ScopeState, StoredRule
from reflexr.workspace.errors import DuplicateEventIdError, StoredRuleConflictError, TransactionClosedError
from reflexr.workspace.memory_data import SCOPE_STATE, RuleStates, RunRow, ScopeRuns, StoredRow, WorkspaceData, matches
from reflexr.workspace.memory_work import Leases
from reflexr.workspace.refs import LeaseKey, WorkspaceRef
from reflexr.workspace.storage import Head, LogWindow, RunQuery, RunScope, StateChanges, Transaction


@dataclass(frozen=True, slots=True)
class _StagedState:
    text: bytes
    due: datetime | None
    expires: datetime | None


class _StagedStates:
    """What a transaction changed in one rule's states."""

    def __init__(self) -> None:
        self.cleared = False
        self.expired_through: datetime | None = None
        self.changed: dict[str, _StagedState | None] = {}

    def clear(self) -> None:
        self.cleared = True
        self.expired_through = None
        self.changed = {}

    def change(self, changes: StateChanges) -> None:
        if (clock := changes.expired_through) is not None:
            self.expired_through = clock if self.expired_through is None else max(self.expired_through, clock)
            for key, state in self.changed.items():
                if state is not None and state.expires is not None and state.expires <= clock:
                    self.changed[key] = None
        self.changed.update(dict.fromkeys(changes.dropped))
        for key, state in changes.saved.items():
            self.changed[key] = _StagedState(SCOPE_STATE.dump_json(state), state.due, state.expires)

    def find(self, states: RuleStates, needs: Needs) -> dict[str, ScopeState]:
        """Returns the states that the needs name, as the transaction sees them."""
        if self.cleared:
            states = _NO_STATES
        keys = set(needs.scope_keys)
        if (through := needs.due_through) is not None:
            keys.update(key for _, key in states.due.through(through))
            keys.update(
                key
                for key, state in self.changed.items()
                if state is not None and state.due is not None and state.due <= through
            )
        found = {key: self._get(states, key) for key in keys}
        return {
            key: state
            for key, state in found.items()
            if state is not None
            and (key in needs.scope_keys or (state.due is not None and through is not None and state.due <= through))
        }

    def apply(self, states: RuleStates) -> None:
        if self.expired_through is not None:
            states.expire(self.expired_through)
        for key, state in self.changed.items():
            if state is None:
                states.drop(key)
            else:
                states.save(key, state.text, state.due, state.expires)

    def _get(self, states: RuleStates, key: str) -> ScopeState | None:
        if key in self.changed:
            state = self.changed[key]
            return None if state is None else SCOPE_STATE.validate_json(state.text)
        expires = states.expires.get(key)
        if expires is not None and self.expired_through is not None and expires <= self.expired_through:
            return None
        return states.get(key)


@dataclass(slots=True)
class StagedChanges:
    """Everything that a transaction is going to change."""

    envelopes: list[tuple[Envelope, str]] = field(default_factory=list[tuple[Envelope, str]])
    places: dict[str, int] = field(default_factory=dict[str, int])
    progress: dict[str, RuleProgress] = field(default_factory=dict[str, RuleProgress])
    states: dict[str, _StagedStates] = field(default_factory=dict[str, _StagedStates])
    runs: dict[str, tuple[RunRow, str]] = field(default_factory=dict[str, tuple[RunRow, str]])
    scopes: dict[RunScope, set[str]] = field(default_factory=dict[RunScope, set[str]])
    dead_letters: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    stored_rules: dict[str, StoredRow] = field(default_factory=dict[str, StoredRow])
    ticks: dict[str, datetime] = field(default_factory=dict[str, datetime])
    taken: dict[str, tuple[str, datetime]] = field(default_factory=dict[str, tuple[str, datetime]])
    released: dict[str, str] = field(default_factory=dict[str, str])

    def __bool__(self) -> bool:
        return bool(
            self.envelopes
            or self.progress
            or self.states
            or self.runs
            or self.dead_letters
            or self.stored_rules
            or self.ticks
            or self.taken
            or self.released
        )

    def apply(self, data: WorkspaceData) -> set[str]:
        """Changes a workspace's data, and returns the runs whose turn or time may have changed. Cannot fail."""
        for envelope, text in self.envelopes:
            data.log.add(envelope, text)
        data.progress.update(self.progress)
        for rule, staged in self.states.items():
            states = RuleStates() if staged.cleared else data.states.get(rule) or RuleStates()
            staged.apply(states)
            if len(states):
                data.states[rule] = states
            else:
                data.states.pop(rule, None)
        for rule, text in self.dead_letters:
            data.add_dead_letter(rule, text)
        data.stored_rules.update(self.stored_rules)
        data.ticks.update(self.ticks)
        return self._apply_runs(data)

    def _apply_runs(self, data: WorkspaceData) -> set[str]:
        moved = set(self.runs)
        moved.update(_turns(data, self.scopes))
        for row, text in self.runs.values():
            data.runs.save(row, text)
        moved.update(_turns(data, self.scopes))
        if self.stored_rules:
            for scope, runs in data.runs.scopes.items():
                if scope.rule in self.stored_rules:
                    moved.update(run_id for _, run_id in (*runs.running, *runs.waiting, *runs.paused))
        return moved


class MemoryTransaction(Transaction):
    """One workspace's data in the hands of one caller. What it changes is staged in `changes`."""

    def __init__(self, workspace: WorkspaceRef, data: WorkspaceData, leases: Leases, now: datetime) -> None:
        """Begins a transaction, for the one whose turn it is."""
        self.data = data
        self._changes: StagedChanges | None = StagedChanges()
        self._workspace = workspace
        self._leases = leases
        self._now = now
        self._head = data.log.head

    @property
    def changes(self) -> StagedChanges:
        """What the transaction is going to change.

        Raises:
            TransactionClosedError: Its block has ended.
        """
        if self._changes is None:
            raise TransactionClosedError
        return self._changes

    def close(self) -> None:
        """Ends the transaction: it can do nothing from here on."""
        self._changes = None

    @property
    @override
    def workspace(self) -> WorkspaceRef:
        return self._workspace

    @property
    @override
    def head(self) -> Head:
        return self._head

    @property
    @override
    def now(self) -> datetime:
        return self._now

    # --- The log

    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        places = self.changes.places
        counts = Counter(draft.id for draft in drafts)
        if duplicates := [
            event_id
            for event_id, count in counts.items()
            if count > 1 or event_id in places or self.data.log.seq(event_id) is not None
        ]:
            raise DuplicateEventIdError(duplicates)
        ts = self._now if self._head.ts is None else max(self._now, self._head.ts)
        envelopes = [
            Envelope.placed(draft, seq=seq, ts=ts, workspace_id=self._workspace.workspace_id)
            for seq, draft in enumerate(drafts, start=self._head.seq + 1)
        ]
        texts = [envelope.to_json() for envelope in envelopes]
        self.changes.envelopes += zip(envelopes, texts, strict=True)
        places.update((envelope.id, envelope.seq) for envelope in envelopes)
        if envelopes:
            self._head = Head(envelopes[-1].seq, ts)
        return envelopes

    @override
    async def find(self, ids: Collection[str]) -> dict[str, Envelope]:
        places = self.changes.places
        seqs = {event_id: places.get(event_id) or self.data.log.seq(event_id) for event_id in ids}
        return {event_id: self._envelope(seq) for event_id, seq in seqs.items() if seq is not None}

    @override
    async def read(self, window: LogWindow) -> list[Envelope]:
        staged = [
            envelope.seq
            for envelope, _ in self.changes.envelopes
            if envelope.seq > window.after_seq
            and (window.before_seq is None or envelope.seq < window.before_seq)
            and (window.types is None or envelope.event_type in window.types)
        ]
        seqs = self.data.log.window(window) + staged
        if window.limit is not None:
            seqs = seqs[: window.limit]
        if window.last is not None:
            seqs = seqs[max(len(seqs) - window.last, 0) :]
        return [self._envelope(seq) for seq in seqs]

    @override
    async def read_seqs(self, seqs: Collection[int]) -> dict[int, Envelope]:
        return {seq: self._envelope(seq) for seq in seqs if 0 < seq <= self._head.seq}

    # --- Rules

    @override
    async def progress(self, rules: Collection[str] | None = None) -> dict[str, RuleProgress]:
        progress = {**self.data.progress, **self.changes.progress}
        return progress if rules is None else {rule: progress[rule] for rule in progress if rule in rules}

    @override
    async def save_progress(self, progress: Collection[RuleProgress]) -> None:
        self.changes.progress.update((item.rule, item) for item in progress)

    @override
    async def states(self, needs: Mapping[str, Needs]) -> dict[str, dict[str, ScopeState]]:
        staged = self.changes.states
        return {
            rule: staged.get(rule, _UNCHANGED).find(self.data.states.get(rule, _NO_STATES), rule_needs)
            for rule, rule_needs in needs.items()
        }

    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        for rule, rule_changes in changes.items():
            self.changes.states.setdefault(rule, _StagedStates()).change(rule_changes)

    @override
    async def clear_states(self, rules: Collection[str]) -> None:
        for rule in rules:
            self.changes.states.setdefault(rule, _StagedStates()).clear()

    @override
    async def add_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> None:
        self.changes.dead_letters += [(dead_letter.rule, dead_letter.model_dump_json()) for dead_letter in dead_letters]

    @override
    async def stored_rules(self, names: Collection[str] | None = None) -> dict[str, StoredRule]:
        rows = {**self.data.stored_rules, **self.changes.stored_rules}
        return {
            name: StoredRule.model_validate_json(row.text)
            for name, row in rows.items()
            if (row.active if names is None else name in names)
        }

    @override
    async def save_stored_rules(self, rules: Collection[StoredRule]) -> None:
        rows: dict[str, StoredRow] = {}
        for stored in rules:
            name = stored.rule.name
            current = rows.get(name) or self.changes.stored_rules.get(name) or self.data.stored_rules.get(name)
            expected = 1 if current is None else current.version + 1
            if stored.version != expected:
                raise StoredRuleConflictError(name, stored.version, expected)
            rows[name] = StoredRow.of(stored)
        self.changes.stored_rules.update(rows)

    # --- Runs

    @override
    async def runs(self, ids: Collection[str]) -> dict[str, Run]:
        texts = {run_id: self._run_text(run_id) for run_id in ids}
        return {run_id: Run.model_validate_json(text) for run_id, text in texts.items() if text is not None}

    @override
    async def find_runs(self, query: RunQuery) -> list[Run]:
        staged, runs = self.changes.runs, self.data.runs
        unchanged = islice((run_id for run_id in runs.newest(query) if run_id not in staged), query.limit)
        # New runs come after all others, in the order in which they were staged.
        order = {run_id: (1, index) for index, run_id in enumerate(staged) if run_id not in runs.rows}
        changed = [run_id for run_id, (row, _) in staged.items() if matches(row, query)]
        ids = sorted(
            [*unchanged, *changed], key=lambda run_id: order.get(run_id) or (0, runs.numbers[run_id]), reverse=True
        )
        found = await self.runs(ids[: query.limit])
        return list(found.values())

    @override
    async def save_runs(self, runs: Collection[Run]) -> None:
        for run in runs:
            row = RunRow.of(run)
            self.changes.runs[run.id] = (row, run.model_dump_json())
            self.changes.scopes.setdefault(row.scope, set()).add(run.id)

    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        turns = {scope: self._turn(scope, blocking=scope.rule in blocking) for scope in scopes}
        return {scope: run_id for scope, run_id in turns.items() if run_id is not None}

    # --- Schedules and leases

    @override
    async def schedule_ticks(self) -> dict[str, datetime]:
        return {**self.data.ticks, **self.changes.ticks}

    @override
    async def save_schedule_ticks(self, ticks: Mapping[str, datetime]) -> None:
        known = await self.schedule_ticks()
        self.changes.ticks.update(
            (schedule, at) for schedule, at in ticks.items() if schedule not in known or at > known[schedule]
        )

    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        holders = await self.holders(names)
        free = frozenset(name for name in names if holders.get(name, holder) == holder)
        for name in free:
            self.changes.taken[name] = (holder, self._now + ttl)
            self.changes.released.pop(name, None)
        return free

    @override
    async def release(self, names: Collection[str], holder: str) -> None:
        holders = await self.holders(names)
        for name in names:
            if holders.get(name) == holder:
                self.changes.taken.pop(name, None)
                self.changes.released[name] = holder

    @override
    async def holders(self, names: Collection[str]) -> dict[str, str]:
        holders = {name: self._holder(name) for name in names}
        return {name: holder for name, holder in holders.items() if holder is not None}

    # --- Inside

    def _envelope(self, seq: int) -> Envelope:
        staged, known = self.changes.envelopes, self.data.log.head.seq
        text = self.data.log.text(seq) if seq <= known else staged[seq - known - 1][1]
        return Envelope.model_validate_json(text)

    def _run_text(self, run_id: str) -> str | None:
        staged = self.changes.runs.get(run_id)
        return self.data.runs.texts.get(run_id) if staged is None else staged[1]

    def _turn(self, scope: RunScope, *, blocking: bool) -> str | None:
        changed = [self.changes.runs[run_id][0] for run_id in self.changes.scopes.get(scope, ())]
        runs = self.data.runs.scopes.get(scope, _NO_RUNS)
        return (runs.changed(changed) if changed else runs).turn(blocking=blocking)

    def _holder(self, name: str) -> str | None:
        if name in self.changes.taken:
            return self.changes.taken[name][0]
        if name in self.changes.released:
            return None
        return self._leases.holder(LeaseKey(self._workspace, name), self._now)


_UNCHANGED: Final = _StagedStates()
_NO_STATES: Final = RuleStates()
_NO_RUNS: Final = ScopeRuns()


def _turns(data: WorkspaceData, scopes: Iterable[RunScope]) -> Iterator[str]:
    """Yields the runs whose turn it is in these scopes, whether or not a dead-lettered run holds back others."""
    for scope in scopes:
        if (runs := data.runs.scopes.get(scope)) is not None:
            turns = (runs.turn(blocking=True), runs.turn(blocking=False))
            yield from filter(None, turns)
