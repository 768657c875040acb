"""Deciding: what rules make of the next envelopes of a log.

Pure functions: the host loads what `needs` asks for, `evaluate` decides, and the host saves what it returns in one
transaction. Time is the envelopes' `ts` and nothing else, so the same log and the same rules always decide the same,
in any batches.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from pydantic_core import from_json

from reflexr.core.compiled import MissingScopeField, Predicates
from reflexr.core.decisions import DeadLetter, DeadLetterKind, Firing, firing_id
from reflexr.core.envelopes import Causation, Draft, Envelope
from reflexr.core.facts import RuleErrored
from reflexr.core.names import RESERVED_NAMESPACE
from reflexr.core.patterns import Memory
from reflexr.core.rules import Rule
from reflexr.core.states import RuleProgress, ScopeState
from reflexr.core.values import json_text

DEFAULT_MAX_DEPTH: Final = 8
"""How deep a causal chain may get by default."""

MAX_ERROR: Final = 1_000
"""The longest error that is recorded, in characters."""

NO_PREDICATES: Final[Predicates] = MappingProxyType({})


class Batch:
    """Consecutive envelopes of one log, grouped by event type once for all the rules that evaluate them.

    Attributes:
        envelopes: At least one, in the log's order.
        by_type: The same, by event type.
    """

    def __init__(self, envelopes: Iterable[Envelope]) -> None:
        """Groups the envelopes.

        Raises:
            ValueError: There is none, a place is missing or out of order, or a time is before the one ahead of it.
        """
        self.envelopes = list(envelopes)
        if not self.envelopes:
            raise ValueError("a batch holds at least one envelope")
        self.by_type: dict[str, list[Envelope]] = {}
        by_type, seq, ts = self.by_type, self.envelopes[0].seq, self.envelopes[0].ts
        for envelope in self.envelopes:
            if envelope.seq != seq or envelope.ts < ts:
                raise ValueError(
                    f"a batch holds consecutive envelopes of one log: {envelope.seq} at {envelope.ts} is where {seq} "
                    f"is due, at {ts} or later"
                )
            seq, ts = seq + 1, envelope.ts
            event_type = envelope.payload["type"]
            if event_type in by_type:
                by_type[event_type].append(envelope)
            else:
                by_type[event_type] = [envelope]

    @classmethod
    def of(cls, envelopes: "Batch | Iterable[Envelope]") -> "Batch":
        """Returns the batch itself, or one of these envelopes."""
        return envelopes if isinstance(envelopes, Batch) else cls(envelopes)

    @property
    def first_seq(self) -> int:
        """The place of the first envelope."""
        return self.envelopes[0].seq

    @property
    def last_seq(self) -> int:
        """The place of the last envelope."""
        return self.envelopes[-1].seq

    @property
    def last_ts(self) -> datetime:
        """The time of the last envelope."""
        return self.envelopes[-1].ts

    @cached_property
    def times(self) -> list[datetime]:
        """The time of each envelope."""
        return [envelope.ts for envelope in self.envelopes]


type Admitted = tuple[Envelope, str, tuple[DeadLetterKind, str] | None]
"""An envelope that passed a rule's filter, with its scope key; or, last, why the rule could not tell."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The scopes whose states an evaluation needs.

    Attributes:
        scope_keys: Those that the batch touches; a scope with no stored state is new.
        due_through: Also every scope whose state is due by this time; `None` if none is.
        admitted: What passed the filter, so that `evaluate` need not ask again.
    """

    scope_keys: frozenset[str]
    due_through: datetime | None
    admitted: Sequence[Admitted] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a rule made of a batch: save all of it in one transaction.

    Attributes:
        progress: The rule's progress, with the cursor at the batch's last envelope.
        states: The states that changed, by scope key.
        dropped: The scopes whose stored state is worth nothing any more: delete it.
        clock: The time of the last envelope. Any other state of the rule that expires by then is worth nothing too.
        firings: Each starts a run.
        errors: The dead letters to store.
        facts: The events to append, in order: of each recorded firing, and of each error but those about errors.
    """

    progress: RuleProgress
    states: Mapping[str, ScopeState]
    dropped: frozenset[str]
    clock: datetime
    firings: tuple[Firing, ...]
    errors: tuple[DeadLetter, ...]
    facts: tuple[Draft, ...]


def begin(rule: Rule, head_seq: int) -> RuleProgress:
    """Returns the progress of a rule that is new to a workspace whose log ends at `head_seq`.

    It starts after the head, or with `start="beginning"` at the first envelope.
    """
    cursor = head_seq if rule.start == "now" else 0
    return RuleProgress(rule=rule.name, generation=1, cursor=cursor, definition=rule.definition())


def needs(
    rule: Rule, progress: RuleProgress, batch: Batch | Iterable[Envelope], *, predicates: Predicates = NO_PREDICATES
) -> Needs:
    """Returns the scopes whose states `evaluate` needs for the same batch: none for a rule that remembers nothing.

    Raises:
        ValueError: The batch does not begin right after the rule's cursor.
    """
    batch = _following(progress, batch)
    admitted = _admit(rule, batch, predicates)
    stages = rule.compiled.stages
    return Needs(
        scope_keys=frozenset([key for _, key, failure in admitted if failure is None] if stages.stateful else ()),
        due_through=None if stages.quiet is None else batch.last_ts,
        admitted=admitted,
    )


def evaluate(
    rule: Rule,
    progress: RuleProgress,
    states: Mapping[str, ScopeState],
    batch: Batch | Iterable[Envelope],
    *,
    predicates: Predicates = NO_PREDICATES,
    max_depth: int = DEFAULT_MAX_DEPTH,
    needs: Needs | None = None,
) -> Evaluation:
    """Returns what the rule makes of the next envelopes.

    Args:
        rule: The rule.
        progress: How far it has come.
        states: The states that `needs` asks for, by scope key.
        batch: The envelopes right after the rule's cursor.
        predicates: The application's functions over envelopes. One that raises is an error for that envelope alone.
        max_depth: How deep a causal chain may get; a firing that would be deeper is refused and dead-lettered.
        needs: What `needs` returned for this batch, which spares filtering it again.

    Raises:
        ValueError: The batch does not begin right after the rule's cursor.
    """
    batch = _following(progress, batch)
    deciding = _Deciding(rule, progress, states, batch, max_depth)
    deciding.decide(_admit(rule, batch, predicates) if needs is None else needs.admitted, predicates)
    return deciding.evaluation()


class RuleSet:
    """Rules by the event types that they can admit, so that a batch costs what it touches, not what there is."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Indexes the rules."""
        self.rules = tuple(rules)
        self._by_type: dict[str, list[int]] = {}
        self._always: list[int] = []
        for index, rule in enumerate(self.rules):
            if rule.compiled.types.inverted or rule.compiled.stages.quiet is not None:
                self._always.append(index)
            else:
                for event_type in rule.compiled.types.names:
                    self._by_type.setdefault(event_type, []).append(index)

    def touched(self, batch: Batch) -> list[Rule]:
        """Returns the rules that have something to decide on the batch, in their order.

        A rule that waits for quiet always has: its deadlines pass with any envelope. The others only move their cursor.
        """
        indexes = {
            *self._always,
            *chain.from_iterable(self._by_type.get(event_type, ()) for event_type in batch.by_type),
        }
        return [self.rules[index] for index in sorted(indexes)]


def _following(progress: RuleProgress, envelopes: Batch | Iterable[Envelope]) -> Batch:
    batch = Batch.of(envelopes)
    if batch.first_seq != progress.cursor + 1:
        raise ValueError(
            f"{progress.rule!r} has evaluated through seq {progress.cursor}: its next batch begins at "
            f"{progress.cursor + 1}, not at {batch.first_seq}"
        )
    return batch


def _admit(rule: Rule, batch: Batch, predicates: Predicates) -> list[Admitted]:
    """Asks the filter about each envelope that can pass, and reads the scope of those that do."""
    compiled = rule.compiled
    test, scope_key = compiled.test, compiled.scope_key
    admitted: list[Admitted] = []
    for envelope in _candidates(rule, batch):
        try:
            if test is not None and not test(envelope, predicates):
                continue
        except Exception as error:
            admitted.append((envelope, "", ("predicate_failed", _describe(error))))
            continue
        try:
            admitted.append((envelope, scope_key(envelope.payload), None))
        except MissingScopeField as error:
            admitted.append((envelope, "", ("scope_missing", str(error))))
    return admitted


def _candidates(rule: Rule, batch: Batch) -> Sequence[Envelope]:
    """Returns the envelopes of types that can pass, but for facts about the rule itself, in the log's order."""
    types = rule.compiled.types
    groups: list[list[Envelope]] = []
    for event_type, group in batch.by_type.items():
        if event_type not in types:
            continue
        if event_type.startswith(f"{RESERVED_NAMESPACE}:"):
            groups.append([envelope for envelope in group if envelope.payload.get("rule") != rule.name])
        else:
            groups.append(group)
    if len(groups) == 1:
        return groups[0]
    return sorted(chain.from_iterable(groups), key=attrgetter("seq"))


def _describe(error: Exception) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__}, whose text cannot be had"
    return json_text(text[:MAX_ERROR])


class _Deciding:
    """The mutable working state of one evaluation."""

    def __init__(
        self, rule: Rule, progress: RuleProgress, states: Mapping[str, ScopeState], batch: Batch, max_depth: int
    ) -> None:
        self._rule = rule
        self._progress = progress
        self._states = states
        self._batch = batch
        self._max_depth = max_depth
        self._stages = rule.compiled.stages
        self._memories: dict[str, Memory] = {}
        self._queue: list[tuple[datetime, str]] = []
        self._firings: list[Firing] = []
        self._errors: list[DeadLetter] = []
        self._facts: list[Draft] = []

    def decide(self, admitted: Sequence[Admitted], predicates: Predicates) -> None:
        """Advances the rule by each envelope, in order, and by the deadlines that pass."""
        states, memories, queue, last = self._states, self._memories, self._queue, self._batch.last_ts
        stages = self._stages
        dedupe_key, dedupe_within, advance, throttle = (
            stages.dedupe_key,
            stages.dedupe_within,
            stages.advance,
            stages.throttle,
        )
        if stages.quiet is not None:
            self._queue_due()
        for envelope, key, failure in admitted:
            ts = envelope.ts
            if queue and queue[0][0] <= ts:
                self._fire_due(ts)
            if failure is not None:
                self._err(envelope, *failure)
                continue
            memory = memories.get(key)
            if memory is None:
                memory = memories[key] = Memory(key, states.get(key))
            seen_key = None
            if dedupe_key is not None:
                seen_key = dedupe_key(envelope.payload)
                passed = memory.seen.get(seen_key)
                if passed is not None and ts - passed < dedupe_within:
                    continue
            try:
                matched = advance(memory, envelope, predicates)
            except Exception as error:
                self._err(envelope, "predicate_failed", _describe(error))
                continue
            if seen_key is not None:
                memory.remember(seen_key, ts)
            if matched is not None:
                if throttle is None or throttle(memory, ts):
                    self._fire(memory, envelope, matched, envelope.correlation_id, envelope.depth)
            elif (armed := memory.armed) is not None and armed.due <= last and not memory.queued:
                # A scope that is queued already stays where it is: its turn comes no later than its deadline, which is
                # looked up then.
                memory.queued = True
                heappush(queue, (armed.due, key))
        self._fire_due(last)

    def evaluation(self) -> Evaluation:
        clock, freeze = self._batch.last_ts, self._stages.freeze
        states: dict[str, ScopeState] = {}
        dropped: list[str] = []
        for key, memory in self._memories.items():
            if not memory.dirty:
                continue
            state = freeze(memory, clock)
            if state is not None:
                states[key] = state
            elif memory.known:
                dropped.append(key)
        return Evaluation(
            progress=self._progress.moved(self._batch.last_seq),
            states=states,
            dropped=frozenset(dropped),
            clock=clock,
            firings=tuple(self._firings),
            errors=tuple(self._errors),
            facts=tuple(self._facts),
        )

    def _queue_due(self) -> None:
        """Queues the deadlines that pass during the batch."""
        last = self._batch.last_ts
        for key, state in self._states.items():
            if state.due is not None and state.due <= last:
                self._memories[key] = memory = Memory(key, state)
                memory.queued = True
                self._queue.append((state.due, key))
        heapify(self._queue)

    def _fire_due(self, ts: datetime) -> None:
        """Fires the deadlines that pass by this time, each at the first envelope that is at or past it."""
        queue, throttle = self._queue, self._stages.throttle
        while queue and queue[0][0] <= ts:
            due, key = heappop(queue)
            memory = self._memories[key]
            memory.queued = False
            armed = memory.armed
            if armed is not None and armed.due == due:
                envelope = self._batch.envelopes[bisect_left(self._batch.times, due)]
                memory.armed = None
                memory.dirty = True
                if throttle is None or throttle(memory, envelope.ts):
                    self._fire(memory, envelope, (armed.seq,), armed.correlation_id, armed.depth)
            elif armed is not None and armed.due <= self._batch.last_ts:
                memory.queued = True
                heappush(queue, (armed.due, key))

    def _fire(
        self, memory: Memory, envelope: Envelope, matched: tuple[int, ...], correlation_id: str, depth: int
    ) -> None:
        progress, rule = self._progress, self._rule
        firing = Firing(
            id=firing_id(rule.name, progress.generation, memory.key, envelope.seq),
            rule=rule.name,
            generation=progress.generation,
            scope=dict(zip(rule.scope.fields, from_json(memory.key), strict=True)),
            scope_key=memory.key,
            seq=envelope.seq,
            ts=envelope.ts,
            matched=matched,
            correlation_id=correlation_id,
            depth=depth + 1,
        )
        if envelope.seq <= progress.silent_through:
            return
        if firing.depth > self._max_depth:
            self._refuse(envelope, firing)
        else:
            self._firings.append(firing)
            self._facts.append(firing.fact)

    def _refuse(self, envelope: Envelope, firing: Firing) -> None:
        error = f"the firing would be {firing.depth} deep in its causal chain, past the limit of {self._max_depth}"
        depth = firing.depth - 1
        causation = Causation(firing_id=firing.id, run_id=firing.id, depth=depth) if depth else None
        dead_letter = self._dead_letter(envelope, "depth_exceeded", error, firing.scope_key)
        self._record(envelope, dead_letter, dead_letter.fact(firing.correlation_id, causation))

    def _err(self, envelope: Envelope, kind: DeadLetterKind, error: str) -> None:
        if envelope.seq > self._progress.silent_through:
            dead_letter = self._dead_letter(envelope, kind, error)
            self._record(envelope, dead_letter, dead_letter.fact(envelope.correlation_id, envelope.causation))

    def _dead_letter(
        self, envelope: Envelope, kind: DeadLetterKind, error: str, scope_key: str | None = None
    ) -> DeadLetter:
        return DeadLetter(
            rule=self._rule.name,
            generation=self._progress.generation,
            seq=envelope.seq,
            scope_key=scope_key,
            ts=envelope.ts,
            kind=kind,
            error=error,
        )

    def _record(self, envelope: Envelope, dead_letter: DeadLetter, fact: Draft) -> None:
        self._errors.append(dead_letter)
        # An error about an error becomes no new fact, or two rules could go on about each other for ever.
        if envelope.event_type != RuleErrored.event_type:
            self._facts.append(fact)
