"""What deciding costs: core alone, over logs in memory."""

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta

from pydantic_core import from_json

from reflexr.core import (
    Batch,
    Envelope,
    Event,
    F,
    Rule,
    RuleProgress,
    RuleSet,
    ScopeState,
    SourceActor,
    begin,
    by,
    evaluate,
    needs,
    on,
    run,
)

from .harness import Sides, benchmark, timed

BATCH = 1_000
"""How many envelopes are evaluated together."""

EVENTS = 50_000
START = datetime(2026, 1, 1, tzinfo=UTC)
STEP = timedelta(milliseconds=100)


class BenchmarkEvent(Event, abstract=True, event_namespace="bench"):
    """The events of benchmarks."""


class ServiceError(BenchmarkEvent):
    """What most rules watch."""

    service: str
    severity: int
    message: str


class Deploy(BenchmarkEvent):
    """What other rules watch."""

    service: str


def log(events: int, scopes: int, *, after: int = 0) -> list[Envelope]:
    """Envelopes of about 400 bytes of JSON, of so many services in turn, from the place after `after` on."""
    envelopes: list[Envelope] = []
    for index in range(after, after + events):
        event = ServiceError(service=f"service-{index % scopes}", severity=8, message="x" * 110)
        envelopes.append(
            Envelope(
                seq=index + 1,
                id=f"evt_{index:016x}",
                ts=START + STEP * index,
                workspace_id="bench",
                actor=SourceActor(name="bench"),
                correlation_id=f"evt_{index:016x}",
                event=event.payload(),
            )
        )
    return envelopes


class Host:
    """The least that saves what evaluation decides: one dictionary of states for each rule."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = RuleSet(rules)
        self.progress = {rule.name: begin(rule, 0) for rule in rules}
        self.states: dict[str, dict[str, ScopeState]] = {rule.name: {} for rule in rules}
        self.firings = 0

    def evaluate(self, envelopes: Sequence[Envelope]) -> None:
        """Evaluates every rule over one batch."""
        batch = Batch(envelopes)
        for rule in self.rules.touched(batch):
            states = self.states[rule.name]
            needed = needs(rule, self.progress[rule.name], batch)
            loaded = {key: states[key] for key in needed.scope_keys if key in states}
            evaluation = evaluate(rule, self.progress[rule.name], loaded, batch, needs=needed)
            states.update(evaluation.states)
            for key in evaluation.dropped:
                del states[key]
            self.firings += len(evaluation.firings)
        self.progress = {name: progress.moved(batch.last_seq) for name, progress in self.progress.items()}


def decide(rules: Sequence[Rule], batches: Sequence[Sequence[Envelope]]) -> Host:
    """Evaluates a whole log from its beginning."""
    host = Host(rules)
    for envelopes in batches:
        host.evaluate(envelopes)
    return host


def in_batches(envelopes: Sequence[Envelope], size: int = BATCH) -> list[Sequence[Envelope]]:
    """The log in batches of one size."""
    return [envelopes[first : first + size] for first in range(0, len(envelopes), size)]


SPIKE = Rule(
    name="bench:spike",
    when=on(ServiceError).where(F.severity >= 7).count(at_least=50, within=timedelta(minutes=10)),
    scope=by(F.service),
    then=run("page"),
)


@benchmark("evaluate: a count rule over 100 scopes, to parsing the envelopes", at_least=0.5)
async def count_over_scopes() -> AsyncGenerator[Sides]:
    """Envelopes a second, to those that `from_json` parses."""
    envelopes = log(EVENTS, scopes=100)
    texts = [envelope.to_json() for envelope in envelopes]
    batches = in_batches(envelopes)
    if (firings := decide([SPIKE], batches).firings) != EVENTS // 50:
        raise ValueError(f"the rule fired {firings} times, not {EVENTS // 50}: this log measures something else")
    yield Sides(
        ours=timed(lambda: decide([SPIKE], batches), units=EVENTS),
        raw=timed(lambda: [from_json(text) for text in texts], units=EVENTS),
    )


@benchmark("evaluate: 100 rules of which 1 admits the type, to 1 rule", at_most=2)
async def rules_that_watch_other_types() -> AsyncGenerator[Sides]:
    """The time of the same log."""
    batches = in_batches(log(EVENTS, scopes=100))
    idle = [Rule(name=f"bench:idle-{number}", when=on(Deploy), then=run("page")) for number in range(99)]
    yield Sides(
        ours=timed(lambda: decide([*idle, SPIKE], batches), units=EVENTS),
        raw=timed(lambda: decide([SPIKE], batches), units=EVENTS),
    )


@benchmark("evaluate: absence with 5,000 armed scopes, to 100", at_most=1.3)
async def armed_scopes() -> AsyncGenerator[Sides]:
    """The time of a log of 100 services' events, by how many other services wait to fall silent."""
    quiet = Rule(
        name="bench:quiet",
        when=on(ServiceError).absent(within=timedelta(days=1)),
        scope=by(F.service),
        then=run("page"),
    )
    events = log(EVENTS, scopes=100)

    def armed(scopes: int) -> Host:
        host = Host([quiet])
        host.evaluate(log(scopes, scopes))
        host.progress = {quiet.name: RuleProgress(quiet.name, 1, 0, quiet.definition())}
        return host

    def pass_over(scopes: int) -> None:
        host = hosts[scopes]
        host.progress = {quiet.name: RuleProgress(quiet.name, 1, 0, quiet.definition())}
        for envelopes in batches:
            host.evaluate(envelopes)

    batches = in_batches(events)
    hosts = {scopes: armed(scopes) for scopes in (100, 5_000)}
    yield Sides(
        ours=timed(lambda: pass_over(5_000), units=EVENTS),
        raw=timed(lambda: pass_over(100), units=EVENTS),
    )


@benchmark("evaluate: dedupe with 2,000 live keys in a scope, to 20", at_most=1.5)
async def live_keys() -> AsyncGenerator[Sides]:
    """The time of two logs of one scope, in which an envelope in ten is new to the window."""

    def passing(keys: int) -> Rule:
        return Rule(
            name="bench:distinct",
            when=on(ServiceError)
            .distinct(F.service, within=STEP * keys * 10 - STEP)
            .count(at_least=EVENTS, within=timedelta(days=1)),
            then=run("page"),
        )

    def repeating(keys: int) -> list[Sequence[Envelope]]:
        return in_batches(log(EVENTS, scopes=keys))

    many, few = repeating(2_000), repeating(20)
    yield Sides(
        ours=timed(lambda: decide([passing(2_000)], many), units=EVENTS),
        raw=timed(lambda: decide([passing(20)], few), units=EVENTS),
    )
