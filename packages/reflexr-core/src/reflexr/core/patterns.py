"""How a condition's stages advance: dedupe, pattern and throttle over the memory of one scope.

The memory is mutable and lives inside one evaluation; what outlives it is a `ScopeState`. Windows are half-open: what
comes exactly a window later is outside.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from reflexr.core.compiled import Predicates, Test, compile_dedupe, compile_filter
from reflexr.core.conditions import Absence, Condition, Count, Each, Pattern, Sequence, Throttle
from reflexr.core.envelopes import Envelope
from reflexr.core.states import NOTHING_SEEN, Armed, ScopeState
from reflexr.core.type_sets import TypeSet

FAR: Final = datetime.max.replace(tzinfo=UTC)
"""Stands for every time that is too far ahead for a `datetime`."""


class Memory:
    """The working memory of one scope during an evaluation: a `ScopeState` that can change.

    What only some rules have, dedupe keys and firings, is copied at its first change, so that it costs the others
    nothing.

    Attributes:
        key: The scope's key.
        known: Whether a state was stored before.
        dirty: Whether it changed since.
        queued: Whether the scope waits in the evaluation's queue of deadlines.
    """

    __slots__ = ("_own_seen", "armed", "dirty", "fired", "key", "known", "marks", "queued", "seen")

    def __init__(self, key: str, state: ScopeState | None) -> None:
        self.key = key
        self.known = state is not None
        self.dirty = False
        self.queued = False
        if state is None:
            self.marks: list[tuple[int, datetime]] = []
            self.armed: Armed | None = None
            self.seen: Mapping[str, datetime] = NOTHING_SEEN
            self.fired: tuple[datetime, ...] = ()
        else:
            marks, self.armed, self.seen, self.fired, _ = state
            self.marks = list(marks)
        self._own_seen: dict[str, datetime] | None = None

    def remember(self, dedupe_key: str, ts: datetime) -> None:
        """Notes that a dedupe key passes now, after every other."""
        seen = self._own_seen
        if seen is None:
            self.seen = self._own_seen = seen = dict(self.seen)
        seen.pop(dedupe_key, None)
        seen[dedupe_key] = ts
        self.dirty = True


type Advance = Callable[[Memory, Envelope, Predicates], tuple[int, ...] | None]
"""Advances a pattern by an envelope and gives the places that a firing matched, or `None`.

If it raises, nothing changed.
"""


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a condition after its filter, compiled.

    Attributes:
        dedupe_key: The dedupe key of a payload; `None` if there is no dedupe.
        dedupe_within: The dedupe's window.
        advance: The pattern. An absence arms the memory, and fires by the clock.
        quiet: How long an absence waits; `None` for any other pattern.
        throttle: Whether a firing of a scope passes at a time, and notes that it did; `None` if every one passes.
        freeze: What a memory is worth keeping at a time; `None` if nothing.
        stateful: Whether there is anything to remember: not so where each envelope fires by itself.
    """

    dedupe_key: Callable[[dict[str, Any]], str] | None
    dedupe_within: timedelta
    advance: Advance
    quiet: timedelta | None
    throttle: Callable[[Memory, datetime], bool] | None
    freeze: Callable[[Memory, datetime], ScopeState | None]
    stateful: bool


def compile_stages(condition: Condition, given: TypeSet) -> Stages:
    """Returns the condition's stages after its filter, over envelopes of the types given."""
    pattern, dedupe = condition.pattern, condition.dedupe
    return Stages(
        dedupe_key=None if dedupe is None else compile_dedupe(dedupe.key),
        dedupe_within=timedelta() if dedupe is None else dedupe.within,
        advance=_advance(pattern, given),
        quiet=pattern.within if isinstance(pattern, Absence) else None,
        throttle=None if condition.throttle is None else _throttle(condition.throttle),
        freeze=_freeze(condition),
        stateful=not isinstance(pattern, Each) or dedupe is not None or condition.throttle is not None,
    )


def later(ts: datetime, by: timedelta) -> datetime:
    """Returns the time so much later, or `FAR`."""
    try:
        return ts + by
    except OverflowError:
        return FAR


def _advance(pattern: Pattern, given: TypeSet) -> Advance:
    match pattern:
        case Each():
            return lambda memory, envelope, predicates: (envelope.seq,)
        case Count():
            return _count(pattern.at_least, pattern.within)
        case Sequence():
            return _sequence([compile_filter(step, given) or _certain for step in pattern.steps], pattern.within)
        case _:
            return _absence(pattern.within)


def _certain(envelope: Envelope, predicates: Predicates) -> bool:
    return True


def _count(at_least: int, within: timedelta) -> Advance:
    def advance(memory: Memory, envelope: Envelope, predicates: Predicates) -> tuple[int, ...] | None:
        marks, ts = memory.marks, envelope.ts
        memory.dirty = True
        marks.append((envelope.seq, ts))
        expired = 0
        while ts - marks[expired][1] >= within:
            expired += 1
        if expired:
            del marks[:expired]
        if len(marks) < at_least:
            return None
        matched = tuple([seq for seq, _ in marks])
        marks.clear()
        return matched

    return advance


def _sequence(steps: list[Test], within: timedelta) -> Advance:
    def advance(memory: Memory, envelope: Envelope, predicates: Predicates) -> tuple[int, ...] | None:
        marks, ts = memory.marks, envelope.ts
        alive = bool(marks) and ts - marks[0][1] < within
        if alive and steps[len(marks)](envelope, predicates):
            marks.append((envelope.seq, ts))
        elif steps[0](envelope, predicates):
            marks.clear()
            marks.append((envelope.seq, ts))
        elif alive or not marks:
            return None
        else:
            marks.clear()
        memory.dirty = True
        if len(marks) < len(steps):
            return None
        matched = tuple([seq for seq, _ in marks])
        marks.clear()
        return matched

    return advance


def _absence(within: timedelta) -> Advance:
    def advance(memory: Memory, envelope: Envelope, predicates: Predicates) -> None:
        memory.armed = Armed(envelope.seq, envelope.correlation_id, envelope.depth, later(envelope.ts, within))
        memory.dirty = True

    return advance


def _throttle(throttle: Throttle) -> Callable[[Memory, datetime], bool]:
    at_most, per = throttle.at_most, throttle.per

    def passes(memory: Memory, ts: datetime) -> bool:
        fired = memory.fired
        if fired and ts - fired[0] >= per:
            fired = tuple([time for time in fired if ts - time < per])
        if len(fired) >= at_most:
            return False
        memory.fired = (*fired, ts)
        memory.dirty = True
        return True

    return passes


def _freeze(condition: Condition) -> Callable[[Memory, datetime], ScopeState | None]:
    match condition.pattern:
        case Each() | Absence():
            window, decisive = timedelta(), -1
        case Count():
            window, decisive = condition.pattern.within, -1
        case _:
            window, decisive = condition.pattern.within, 0
    within = None if condition.dedupe is None else condition.dedupe.within
    per = None if condition.throttle is None else condition.throttle.per

    def freeze(memory: Memory, clock: datetime) -> ScopeState | None:
        marks, seen, fired = memory.marks, memory.seen, memory.fired
        expires = later(marks[decisive][1], window) if marks else clock
        if within is not None and (seen := _live(seen, clock, within)):
            expires = max(expires, later(next(reversed(seen.values())), within))
        if per is not None and fired:
            expires = max(expires, later(fired[-1], per))
        if memory.armed is not None:
            return ScopeState(tuple(marks), memory.armed, seen, fired, None)
        return ScopeState(tuple(marks), None, seen, fired, expires) if expires > clock else None

    return freeze


def _live(seen: Mapping[str, datetime], clock: datetime, within: timedelta) -> dict[str, datetime]:
    """Returns the keys whose window is not over; those whose is come first, since keys are in the order they passed."""
    expired = 0
    for ts in seen.values():
        if clock - ts < within:
            break
        expired += 1
    return dict(islice(seen.items(), expired, None)) if expired or not isinstance(seen, dict) else seen
