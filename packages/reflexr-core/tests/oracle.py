"""What a rule decides, written down as naively as it is said: the oracle that the compiled evaluation is held against.

One rule, the whole log at once, no batches and nothing forgotten until it is over. Nothing of the evaluation is
imported, only the models, the equality of JSON values and the way ids are derived.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, cast

from pydantic import StringConstraints, TypeAdapter, ValidationError

from reflexr.core.canonical import canonical_list, derived_id, equal
from reflexr.core.conditions import Absence, Count, Each
from reflexr.core.conditions import Sequence as Steps
from reflexr.core.envelopes import Envelope
from reflexr.core.filters import AllOf, AnyOf, Filter, Not, On, Predicate, Where
from reflexr.core.rules import Rule

MISSING: Final = object()

type Predicates = Mapping[str, Callable[[Envelope], bool]]


@dataclass(frozen=True)
class Fired:
    """A firing: at which envelope, in which scope, on which envelopes, and in which chain it goes on."""

    seq: int
    scope_key: str
    matched: tuple[int, ...]
    id: str
    correlation_id: str
    depth: int


@dataclass(frozen=True)
class Errored:
    """An envelope that was not decided on, or a firing that was refused."""

    seq: int
    scope_key: str | None
    kind: str
    is_fact: bool


type Decision = Fired | Errored


@dataclass
class Scope:
    """All that ever happened in a scope; what is over is only ever left out when it is looked at."""

    key: str
    passed: list[tuple[str, datetime]] = field(default_factory=list[tuple[str, datetime]])
    counted: list[Envelope] = field(default_factory=list[Envelope])
    steps: list[Envelope] = field(default_factory=list[Envelope])
    last: Envelope | None = None
    admitted: list[datetime] = field(default_factory=list[datetime])


@dataclass
class Verdict:
    """Everything that was decided, in order, and the scopes whose state is still worth something at the end."""

    decisions: list[Decision] = field(default_factory=list[Decision])
    live_scopes: set[str] = field(default_factory=set[str])


def decide(
    rule: Rule,
    log: Sequence[Envelope],
    predicates: Predicates,
    *,
    generation: int = 1,
    after_seq: int = 0,
    silent_through: int = 0,
    max_depth: int = 8,
) -> Verdict:
    """Says what the rule decides on the envelopes of the log behind `after_seq`."""
    return _Oracle(rule, predicates, generation, silent_through, max_depth).run([e for e in log if e.seq > after_seq])


class _Oracle:
    def __init__(
        self, rule: Rule, predicates: Predicates, generation: int, silent_through: int, max_depth: int
    ) -> None:
        self.rule, self.when = rule, rule.when
        self.predicates = predicates
        self.generation = generation
        self.silent_through = silent_through
        self.max_depth = max_depth
        self.scopes: dict[str, Scope] = {}
        self.verdict = Verdict()

    def run(self, log: list[Envelope]) -> Verdict:
        for envelope in log:
            self.deadlines(envelope)
            self.consider(envelope)
        if log:
            self.verdict.live_scopes = {key for key, scope in self.scopes.items() if self.is_live(scope, log[-1].ts)}
        return self.verdict

    def deadlines(self, now: Envelope) -> None:
        pattern = self.when.pattern
        if not isinstance(pattern, Absence):
            return
        waiting = [(scope.last.ts, key) for key, scope in self.scopes.items() if scope.last is not None]
        for since, key in sorted(waiting):
            last = self.scopes[key].last
            if last is not None and now.ts - since >= pattern.within:
                self.scopes[key].last = None
                self.fire(self.scopes[key], now, [last])

    def consider(self, envelope: Envelope) -> None:
        payload = envelope.payload
        if payload["type"].startswith("reflexr:") and payload.get("rule") == self.rule.name:
            return
        try:
            if _by_type(self.when.filter, payload["type"]) is False or not self.admits(self.when.filter, envelope):
                return
        except Exception:
            self.error(envelope, None, "predicate_failed")
            return
        values = [_at(payload, path) for path in self.rule.scope.fields]
        if any(value is MISSING for value in values):
            self.error(envelope, None, "scope_missing")
            return
        key = canonical_list(values)
        scope = self.scopes.setdefault(key, Scope(key))
        try:
            matched = self.advance(scope, envelope)
        except Exception:
            self.error(envelope, None, "predicate_failed")
            return
        if matched:
            self.fire(scope, envelope, matched)

    def advance(self, scope: Scope, envelope: Envelope) -> list[Envelope]:
        """Takes the envelope through dedupe and pattern; nothing of it is kept if a predicate raises on the way."""
        dedupe, pattern = self.when.dedupe, self.when.pattern
        matched: list[Envelope] = []
        passing: list[tuple[str, datetime]] = []
        if dedupe is not None:
            values = [_at(envelope.payload, path) for path in dedupe.key]
            identity = canonical_list([None if value is MISSING else value for value in values])
            if any(identity == other and envelope.ts - ts < dedupe.within for other, ts in scope.passed):
                return []
            passing = [(identity, envelope.ts)]
        match pattern:
            case Each():
                matched = [envelope]
            case Count():
                inside = [e for e in [*scope.counted, envelope] if envelope.ts - e.ts < pattern.within]
                fires = len(inside) >= pattern.at_least
                scope.counted = [] if fires else inside
                matched = inside if fires else []
            case Steps():
                steps = scope.steps if scope.steps and envelope.ts - scope.steps[0].ts < pattern.within else []
                if steps and self.admits(pattern.steps[len(steps)], envelope):
                    steps = [*steps, envelope]
                elif self.admits(pattern.steps[0], envelope):
                    steps = [envelope]
                fires = len(steps) == len(pattern.steps)
                scope.steps = [] if fires else steps
                matched = steps if fires else []
            case Absence():
                scope.last = envelope
        scope.passed += passing
        return matched

    def fire(self, scope: Scope, now: Envelope, matched: list[Envelope]) -> None:
        throttle = self.when.throttle
        if throttle is not None:
            if sum(now.ts - ts < throttle.per for ts in scope.admitted) >= throttle.at_most:
                return
            scope.admitted.append(now.ts)
        latest = matched[-1]
        depth = latest.depth + 1
        if depth > self.max_depth:
            self.error(now, scope.key, "depth_exceeded")
        elif now.seq > self.silent_through:
            firing_id = derived_id("fir", self.rule.name, self.generation, scope.key, now.seq)
            places = tuple(envelope.seq for envelope in matched)
            self.verdict.decisions.append(Fired(now.seq, scope.key, places, firing_id, latest.correlation_id, depth))

    def error(self, envelope: Envelope, scope_key: str | None, kind: str) -> None:
        if envelope.seq > self.silent_through:
            is_fact = envelope.payload["type"] != "reflexr:rule_errored"
            self.verdict.decisions.append(Errored(envelope.seq, scope_key, kind, is_fact))

    def admits(self, condition: Filter, envelope: Envelope) -> bool:
        match condition:
            case On():
                return envelope.payload["type"] in condition.types
            case Where():
                return compares(_at(envelope.payload, condition.field), condition.op, condition.value)
            case AllOf():
                return all(self.admits(part, envelope) for part in condition.of)
            case AnyOf():
                return any(self.admits(part, envelope) for part in condition.of)
            case Not():
                return not self.admits(condition.filter, envelope)
            case Predicate():
                return self.predicates[condition.name](envelope)

    def is_live(self, scope: Scope, now: datetime) -> bool:
        pattern, dedupe, throttle = self.when.pattern, self.when.dedupe, self.when.throttle

        def runs(ts: datetime, window: timedelta) -> bool:
            return now - ts < window

        return (
            scope.last is not None
            or (isinstance(pattern, Count) and any(runs(envelope.ts, pattern.within) for envelope in scope.counted))
            or (isinstance(pattern, Steps) and any(runs(envelope.ts, pattern.within) for envelope in scope.steps[:1]))
            or (dedupe is not None and any(runs(ts, dedupe.within) for _, ts in scope.passed))
            or (throttle is not None and any(runs(ts, throttle.per) for ts in scope.admitted))
        )


def compares(found: Any, op: str, value: Any) -> bool:
    """Whether the value found in an event compares so with the rule's; `MISSING` stands for none."""
    if op == "exists":
        return (found is not MISSING) is value
    if found is MISSING:
        return False
    match op:
        case "eq":
            return equal(found, value)
        case "ne":
            return not equal(found, value)
        case "in":
            return any(equal(found, element) for element in value)
        case "contains" if isinstance(found, str):
            return isinstance(value, str) and value in found
        case "contains":
            return isinstance(found, list) and any(equal(element, value) for element in cast("list[Any]", found))
        case "matches":
            return isinstance(found, str) and _is_found(value, found)
        case _:
            return _kind(found) is not None and _kind(found) == _kind(value) and _ordered(found, op, value)


def _is_found(pattern: str, text: str) -> bool:
    try:
        TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)]).validate_python(text)
    except ValidationError:
        return False
    return True


def _ordered(found: Any, op: str, value: Any) -> bool:
    return {"lt": found < value, "le": found <= value, "gt": found > value, "ge": found >= value}[op]


def _kind(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    return "number" if isinstance(value, int | float) else "text" if isinstance(value, str) else None


def _at(payload: Mapping[str, Any], path: str) -> Any:
    value: Any = payload
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = cast("dict[str, Any]", value)[key]
    return value


def _by_type(condition: Filter, event_type: str) -> bool | None:
    """Whether the filter admits an envelope of this type, as far as the type alone can tell: `None` where it cannot.

    An envelope of a type that is not admitted whatever is in it gets no further, so no predicate is asked about it.
    """
    match condition:
        case On():
            return event_type in condition.types
        case Where() | Predicate():
            return None
        case Not():
            inner = _by_type(condition.filter, event_type)
            return None if inner is None else not inner
        case AllOf() | AnyOf():
            decisive = isinstance(condition, AnyOf)
            answers = [_by_type(part, event_type) for part in condition.of]
            return decisive if decisive in answers else None if None in answers else not decisive
