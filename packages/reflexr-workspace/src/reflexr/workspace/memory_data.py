"""What `InMemoryStorage` keeps of one workspace, as it was committed. Everything here is synchronous.

Values are kept as JSON text, so that nobody shares them with the storage; beside each text stands what it is found by.
The indexes over many workspaces live in `reflexr.workspace.memory_work`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Final

from pydantic import TypeAdapter

from reflexr.core import Envelope, RuleProgress, Run, RunStatus, ScopeState, StoredRule, stored_rule_of
from reflexr.workspace.ordered import Ordered
from reflexr.workspace.storage import Head, LogWindow, RunQuery, RunScope
from reflexr.workspace.timers import Timers

SCOPE_STATE: Final = TypeAdapter(ScopeState)
"""Writes and reads scope states."""


class Log:
    """Envelopes in order, found by place, id, type and the stored rule they are a version of."""

    def __init__(self) -> None:
        self.head = Head()
        self._texts: list[str] = []
        self._seqs: dict[str, int] = {}
        self._by_type: dict[str, list[int]] = {}
        self._by_rule: dict[str, list[int]] = {}

    def add(self, envelope: Envelope, text: str) -> None:
        """Appends the envelope after the head, as its text."""
        self.head = Head(envelope.seq, envelope.ts)
        self._texts.append(text)
        self._seqs[envelope.id] = envelope.seq
        self._by_type.setdefault(envelope.event_type, []).append(envelope.seq)
        if rule := stored_rule_of(envelope):
            self._by_rule.setdefault(rule, []).append(envelope.seq)

    def seq(self, event_id: str) -> int | None:
        """Returns the place of the event with this id."""
        return self._seqs.get(event_id)

    def text(self, seq: int) -> str:
        """Returns the text of the envelope at this place, which is one of the log's."""
        return self._texts[seq - 1]

    def history(self, rule: str) -> list[int]:
        """Returns the places of a stored rule's versions."""
        return list(self._by_rule.get(rule, ()))

    def window(self, window: LogWindow) -> list[int]:
        """Returns the places that the window takes in, in order."""
        end = self.head.seq + 1 if window.before_seq is None else min(window.before_seq, self.head.seq + 1)
        if window.types is None:
            places: range | list[int] = range(window.after_seq + 1, end)
        else:
            places = sorted(seq for name in window.types for seq in _bounded(self._by_type.get(name, []), window, end))
        if window.limit is not None:
            return list(places[: window.limit])
        return list(places) if window.last is None else list(places[max(len(places) - window.last, 0) :])


class RuleStates:
    """The scope states of one rule, found by key and by their times."""

    def __init__(self) -> None:
        self._texts: dict[str, bytes] = {}
        self.due = Timers[str]()
        self.expires = Timers[str]()

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, key: str) -> ScopeState | None:
        """Returns the scope's state."""
        text = self._texts.get(key)
        return None if text is None else SCOPE_STATE.validate_json(text)

    def save(self, key: str, text: bytes, due: datetime | None, expires: datetime | None) -> None:
        """Saves the scope's state, as its text and its times."""
        self._texts[key] = text
        self.due.set(key, due)
        self.expires.set(key, expires)

    def drop(self, key: str) -> None:
        """Drops the scope's state."""
        self._texts.pop(key, None)
        self.due.discard(key)
        self.expires.discard(key)

    def expire(self, clock: datetime) -> None:
        """Drops every state that is worth nothing from this time on."""
        for key in self.expires.expire(clock):
            del self._texts[key]
            self.due.discard(key)


type Place = tuple[tuple[int, int], str]
"""A run's place in the order of its scope: its position, and its id."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """What a run is found by.

    Attributes:
        id: Its id.
        scope: Its rule and scope.
        place: Its place in the order of its scope.
        status: Its status.
        fired_at: When it was fired.
        at: When its next attempt may start, or until when it waits for an answer.
        blocks: Whether it is paused and keeps its place in the order meanwhile.
    """

    id: str
    scope: RunScope
    place: Place
    status: RunStatus
    fired_at: datetime
    at: datetime | None
    blocks: bool

    @staticmethod
    def of(run: Run) -> "RunRow":
        """Returns the row of a run."""
        return RunRow(
            id=run.id,
            scope=RunScope(run.rule, run.scope_key),
            place=(run.position, run.id),
            status=run.status,
            fired_at=run.fired_at,
            at=run.next_attempt_at if run.waiting is None else run.waiting.until,
            blocks=run.waiting is not None and run.waiting.blocks,
        )


@dataclass(slots=True)
class ScopeRuns:
    """The runs of one scope that are not finished for good, in firing order; those that are paused are in no order."""

    running: Ordered[Place] = field(default_factory=Ordered[Place])
    waiting: Ordered[Place] = field(default_factory=Ordered[Place])
    dead: Ordered[Place] = field(default_factory=Ordered[Place])
    paused: Ordered[Place] = field(default_factory=Ordered[Place])

    def of(self, row: RunRow) -> Ordered[Place] | None:
        """Returns the places among which a run's is."""
        match row.status:
            case "running":
                return self.running
            case "pending" | "retrying":
                return self.waiting
            case "paused":
                return self.waiting if row.blocks else self.paused
            case "dead_lettered":
                return self.dead
            case _:
                return None

    @property
    def empty(self) -> bool:
        """Whether it holds no run."""
        return not (self.running or self.waiting or self.dead or self.paused)

    def changed(self, rows: Collection[RunRow]) -> "ScopeRuns":
        """Returns as much of the scope as `turn` looks at, with these rows in place of what was known of their runs."""
        ids = {row.id for row in rows}
        runs = ScopeRuns()
        for known, places in zip(self._places, runs._places, strict=True):
            for place in islice((place for place in known if place[1] not in ids), 1):
                places.add(place)
        for row in rows:
            if (places := runs.of(row)) is not None:
                places.add(row.place)
        return runs

    def turn(self, *, blocking: bool) -> str | None:
        """Returns the id of the run whose turn it is."""
        for _, run_id in self.running:
            return run_id
        candidates = (self.waiting, self.dead) if blocking else (self.waiting,)
        first = min((place for places in candidates for place in islice(places, 1)), default=None)
        return None if first is None else first[1]

    @property
    def _places(self) -> tuple[Ordered[Place], ...]:
        return self.running, self.waiting, self.dead


class Runs:
    """Runs, found by id and by scope, and newest first by rule and status."""

    def __init__(self) -> None:
        self.rows: dict[str, RunRow] = {}
        self.scopes: dict[RunScope, ScopeRuns] = {}
        self.numbers: dict[str, int] = {}
        self.texts: dict[str, str] = {}
        self._ids: list[str] = []
        self._numbers_by: dict[tuple[str, RunStatus], Ordered[int]] = {}

    def save(self, row: RunRow, text: str) -> None:
        """Saves a run, as its text and its row."""
        before = self.rows.get(row.id)
        if before is None:
            number = self.numbers[row.id] = len(self._ids)
            self._ids.append(row.id)
        else:
            number = self.numbers[row.id]
            self._leave(before, number)
        self.rows[row.id] = row
        self.texts[row.id] = text
        self._numbers_by.setdefault((row.scope.rule, row.status), Ordered[int]()).add(number)
        scope = self.scopes.setdefault(row.scope, ScopeRuns())
        if (places := scope.of(row)) is not None:
            places.add(row.place)
        elif scope.empty:
            del self.scopes[row.scope]

    def newest(self, query: RunQuery) -> Iterator[str]:
        """Yields the ids of the runs that meet the query, but for its limit, newest first."""
        numbers = [
            reversed(numbers)
            for (rule, status), numbers in self._numbers_by.items()
            if (query.rules is None or rule in query.rules) and (query.statuses is None or status in query.statuses)
        ]
        ids = (self._ids[number] for number in merge(*numbers, reverse=True))
        return (run_id for run_id in ids if matches(self.rows[run_id], query))

    def _leave(self, row: RunRow, number: int) -> None:
        self._numbers_by[row.scope.rule, row.status].remove(number)
        places = self.scopes[row.scope].of(row) if row.scope in self.scopes else None
        if places is not None:
            places.remove(row.place)


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A stored rule's text, and what it is found by.

    Attributes:
        text: Its JSON.
        version: Its version.
        active: Whether it is active, rather than archived.
        enabled: Whether it is active and its rule enabled.
        ordered: Whether its runs are carried out in order.
        blocking: Whether a dead-lettered one holds back the later ones.
    """

    text: str
    version: int
    active: bool
    enabled: bool
    ordered: bool
    blocking: bool

    @staticmethod
    def of(stored: StoredRule) -> "StoredRow":
        """Returns the row of a stored rule."""
        active = stored.status == "active"
        return StoredRow(
            text=stored.model_dump_json(),
            version=stored.version,
            active=active,
            enabled=active and stored.rule.enabled,
            ordered=stored.rule.ordering == "scope",
            blocking=stored.rule.on_dead_letter == "block",
        )


@dataclass(slots=True)
class WorkspaceData:
    """Everything of one workspace."""

    log: Log = field(default_factory=Log)
    progress: dict[str, RuleProgress] = field(default_factory=dict[str, RuleProgress])
    states: dict[str, RuleStates] = field(default_factory=dict[str, RuleStates])
    runs: Runs = field(default_factory=Runs)
    dead_letters: list[str] = field(default_factory=list[str])
    dead_letters_by_rule: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    stored_rules: dict[str, StoredRow] = field(default_factory=dict[str, StoredRow])
    ticks: dict[str, datetime] = field(default_factory=dict[str, datetime])
    cursors: dict[str, int] = field(default_factory=dict[str, int])

    def add_dead_letter(self, rule: str, text: str) -> None:
        """Records an envelope that a rule could not decide on, as its text."""
        self.dead_letters_by_rule.setdefault(rule, []).append(len(self.dead_letters))
        self.dead_letters.append(text)


def matches(row: RunRow, query: RunQuery) -> bool:
    """Whether a run meets the query."""
    return (
        (query.rules is None or row.scope.rule in query.rules)
        and (query.scope_key is None or row.scope.scope_key == query.scope_key)
        and (query.statuses is None or row.status in query.statuses)
    )


def _bounded(seqs: list[int], window: LogWindow, end: int) -> list[int]:
    """Returns those of one type's places that the window can take in, no more than it can answer with."""
    start, stop = bisect_right(seqs, window.after_seq), bisect_left(seqs, end)
    if window.limit is not None:
        stop = min(stop, start + window.limit)
    if window.last is not None:
        start = max(start, stop - window.last)
    return seqs[start:stop]
