"""What an episode of chaos is going to do, all of it from its seed: the rules, the events, the attempts and the killer.

The plan is the same for the same seed. When what of it happens, and in the middle of what, is the machine's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, Final, Literal

from reflexr.core import (
    Condition,
    F,
    RetryPolicy,
    Rule,
    Run,
    RunDeadLettered,
    RunSucceeded,
    by,
    on,
    predicate,
    sequence,
)
from reflexr.core import run as running
from reflexr.workspace import WorkspaceRef

from .events import Loose, Ping, Pong

WORKSPACES: Final = (WorkspaceRef("acme", "north"), WorkspaceRef("acme", "south"), WorkspaceRef("globex", "north"))
"""Two tenants have a workspace of one name."""

LEASE_TTL: Final = timedelta(milliseconds=500)
FOREVER: Final = timedelta(hours=1)
"""A back-off that no episode outlasts."""

NEWBORN: Final = 0.5
"""For how many seconds nothing is done to a process that begins."""

STUBBORN: Final = "odd"
"""The rule whose action holds up its process now and then, until others have taken over, and takes long besides: so a
process comes back in the middle of the next attempt of what it had in hand."""

type Deed = Literal["start", "kill", "pause", "resume", "end", "drop", "restart", "crash", "lock"]
"""What is done: to a process, or to the database: drop its connections, restart or crash it, or lock it for a while."""

type Card = Literal[
    "kill reactor", "pause reactor", "drain reactor", "kill publisher", "pause publisher", "drop", "restart", "lock"
]

PROCESSES: Final[tuple[Card, ...]] = (
    "kill reactor",
    "pause reactor",
    "drain reactor",
    "kill publisher",
    "pause publisher",
)


@dataclass(frozen=True, slots=True)
class Act:
    """What the killer does, after so many seconds, of which those do not count that it needs for something itself.

    Attributes:
        name: The process: its part, and which of those who played it, such as `reactor-0.3`.
    """

    at: float
    deed: Deed
    name: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """An episode.

    Attributes:
        seed: What all of it comes from.
        rules: The rules of every workspace.
        acts: What the killer does, in order.
        publishers: The parts of those who publish.
    """

    seed: int
    rules: tuple[Rule, ...]
    acts: tuple[Act, ...]
    publishers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lot:
    """Events that are published together.

    Attributes:
        events: By the ids that they are published under.
    """

    workspace: WorkspaceRef
    events: Mapping[str, Ping | Loose]


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a run's work: whether it emits an event, and whether it saves a checkpoint after that."""

    emits: bool
    saves: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """How one attempt ends before its work is done: at this step, or the first one after it that it makes.

    Attributes:
        place: Before the step, or after it emitted, or after it saved.
    """

    kind: Literal["fails", "is doomed", "hangs", "blocks"]
    step: int
    place: Literal["before", "emitted", "saved"]


@dataclass(frozen=True, slots=True)
class Question:
    """What one attempt asks: before this step, or the first one after it that it makes, or once that has saved.

    Attributes:
        timeout: For how long it waits for an answer at most; `None` for any time.
    """

    step: int
    timeout: timedelta | None


def chance(*words: object) -> Random:
    """Returns chance that is the same for the same words, in every process."""
    return Random(":".join(map(str, words)))


def planned(seed: int, seconds: float, *, deck: tuple[Card, ...], reactors: int, publishers: int) -> Plan:
    """Returns the plan of an episode.

    Args:
        seed: What it comes from.
        seconds: How long the killer is at work.
        deck: What the killer does, shuffled, again and again.
        reactors: How many reactors there are when all are well.
        publishers: How many publishers.
    """
    parts = tuple(f"publisher-{number}" for number in range(publishers))
    acts = _Acts(seed, [*(f"reactor-{number}" for number in range(reactors)), *parts], seconds).drawn(deck)
    return Plan(seed, rules_of(seed), acts, parts)


# --- Rules


def rules_of(seed: int) -> tuple[Rule, ...]:
    """Returns rules of every kind, each different with each seed."""
    draw = chance(seed, "rules")
    conditions = _conditions(draw)
    blocking, waiting = draw.sample(sorted(conditions), 2)
    rules = [
        _rule(draw, name, condition, blocks=name == blocking, waits=name == waiting)
        for name, condition in conditions.items()
    ]
    asking = chance(seed, "pauses").sample(rules, 6)
    return tuple(_asking(rule, holds=rule in asking[:3]) if rule in asking else rule for rule in rules)


def _conditions(draw: Random) -> dict[str, Condition]:
    def within(least: int, most: int) -> timedelta:
        return timedelta(milliseconds=draw.randint(least, most))

    return {
        "each": on(Ping).where(F.value >= draw.randint(3, 7)),
        "throttled": on(Ping, Loose).at_most(draw.randint(1, 3), per=within(100, 900)),
        "counted": on(Ping).count(at_least=draw.randint(2, 4), within=within(300, 3_000)),
        "sequence": sequence(
            on(Ping).where(F.value < draw.randint(4, 6)), on(Ping, Pong).where(F.value >= 3), within=within(200, 3_000)
        ),
        "quiet": on(Ping).absent(within=within(150, 800)),
        "distinct": on(Ping).distinct(F.value, within=within(100, 2_000)),
        "echo": on(Pong),
        "echoes": on(Pong).count(at_least=draw.randint(2, 3), within=within(500, 5_000)),
        "odd": on(Ping).where(predicate("odd")),
        "loose": on(Loose),
        "given-up": on(RunDeadLettered),
        "well-done": on(RunSucceeded).where(rule="chaos:each").count(at_least=draw.randint(1, 3), within=FOREVER),
    }


def _rule(draw: Random, name: str, condition: Condition, *, blocks: bool, waits: bool) -> Rule:
    """Returns a rule. One that blocks, or that waits for ever, does so where its action fails."""
    hasty = name != STUBBORN and draw.random() < 0.5
    timeout = timedelta(milliseconds=draw.randint(60, 250)) if hasty else None
    own_scope = name in ("given-up", "well-done") or draw.random() < 0.2
    kept = blocks or waits or draw.random() < 0.6
    return Rule(
        name=f"chaos:{name}",
        when=condition,
        scope=by() if own_scope else by("key"),
        then=running(
            "work",
            fails=draw.choice([0.05, 0.1, 0.3]),
            doomed=0.15 if blocks else 0.02,
            hangs=0.0 if timeout is None else draw.choice([0.05, 0.15]),
            blocks=0.15 if name == STUBBORN else 0.0,
            slow=0.0 if timeout is not None else 0.6 if name == STUBBORN else 0.05,
            slowest=draw.choice([0.005, 0.02, 0.06]),
        ),
        retry=RetryPolicy(
            max_attempts=draw.randint(2, 4),
            backoff=FOREVER if waits else timedelta(milliseconds=draw.randint(0, 80)),
            max_backoff=FOREVER if waits else timedelta(milliseconds=150),
            multiplier=draw.choice([1.0, 1.5, 3.0]),
        ),
        ordering="scope" if kept else "none",
        on_dead_letter="block" if blocks else "continue",
        timeout=timeout,
    )


def _asking(rule: Rule, *, holds: bool) -> Rule:
    """Returns a rule whose action asks for something now and then, so that its scope waits too or does not."""
    params = {**rule.then.params, "asks": 0.3}
    return rule.model_copy(
        update={
            "then": rule.then.model_copy(update={"params": params}),
            "on_pause": "block" if holds else "continue",
        }
    )


# --- What is published


def lot_of(seed: int, publisher: str, number: int) -> Lot:
    """Returns what a publisher publishes for the so-manieth time."""
    draw = chance(seed, publisher, number)
    events = [_event(draw) for _ in range(draw.choice([1, 1, 2, 3]))]
    return Lot(draw.choice(WORKSPACES), {f"{publisher}:{number}:{place}": event for place, event in enumerate(events)})


def _event(draw: Random) -> Ping | Loose:
    key, value = draw.randrange(3), draw.randrange(10)
    if draw.random() < 0.8:
        return Ping(key=key, value=value)
    fields: dict[str, Any] = {"key": key} if draw.random() < 0.7 else {}
    return Loose(value=value, **fields)


# --- What an attempt does


def stages_of(seed: int, workspace: WorkspaceRef, run: Run) -> tuple[Stage, ...]:
    """Returns the work of a run, which is the same at every attempt.

    The deeper it is in its causal chain, the less it emits: each event may start several runs.
    """
    draw = chance(seed, workspace, run.id)
    emits = 0.3 / run.depth
    return tuple(Stage(draw.random() < emits, draw.random() < 0.5) for _ in range(draw.randint(1, 3)))


def fault_of(draw: Random, steps: int, *, fails: float, doomed: float, hangs: float, blocks: float) -> Fault | None:
    """Returns how an attempt ends before its work is done, if it does, given how likely each kind of fault is."""
    kinds = {"fails": fails, "is doomed": doomed, "hangs": hangs, "blocks": blocks, "": 1 - fails - doomed - hangs}
    (kind,) = draw.choices(list(kinds), list(kinds.values()))
    place = draw.choice(["before", "emitted", "saved"])
    step = draw.randrange(steps)
    match kind, place:
        case (("fails" | "is doomed" | "hangs" | "blocks"), ("before" | "emitted" | "saved")):
            return Fault(kind, step, place)
        case _:
            return None


def question_of(draw: Random, steps: int, *, asks: float) -> Question | None:
    """Returns what an attempt asks, if it does, given how likely that is."""
    timeout = draw.choice([None, timedelta(milliseconds=draw.randint(1, 1_500))])
    question = Question(draw.randrange(steps), timeout)
    return question if draw.random() < asks else None


# --- What the killer does


class _Acts:
    """Draws what the killer does, and knows who lives meanwhile."""

    def __init__(self, seed: int, parts: list[str], seconds: float) -> None:
        self._draw = chance(seed, "acts")
        self._seconds = seconds
        self._now = 0.0
        self._acts: list[Act] = []
        self._played = dict.fromkeys(parts, 0)
        self._free_from = dict.fromkeys(parts, 0.0)
        for part in parts:
            self._begin(part, 0.0)

    def drawn(self, deck: tuple[Card, ...]) -> tuple[Act, ...]:
        for card in self._cards(deck):
            self._now += self._draw.uniform(0.2, 0.6)
            if self._now >= self._seconds:
                break
            self._play(card)
        acts = sorted(self._acts, key=lambda act: act.at)
        return tuple(act for act in acts if act.at < self._seconds)

    def _cards(self, deck: tuple[Card, ...]) -> Iterator[Card]:
        while True:
            yield from self._draw.sample(deck, len(deck))

    def _play(self, card: Card) -> None:
        match card.split():
            case ["kill", kind] if part := self._part(kind):
                self._add("kill", part)
                self._begin(part, self._now + self._draw.uniform(0, 0.4))
            case ["drain", kind] if part := self._part(kind):
                self._add("end", part)
                self._begin(part, self._now)
            case ["pause", kind] if part := self._part(kind):
                until = self._now + self._draw.uniform(0.5, 3.0) * LEASE_TTL.total_seconds()
                self._add("pause", part)
                self._add("resume", part, until)
                self._free_from[part] = until
            case ["drop"]:
                self._acts.append(Act(self._now, "drop"))
            case ["restart"]:
                self._acts.append(Act(self._now, self._draw.choice(["restart", "crash"])))
            case ["lock"]:
                self._acts.append(Act(self._now, "lock"))
            case _:
                # Nobody is free for it.
                pass

    def _part(self, kind: str) -> str | None:
        free = [part for part, since in self._free_from.items() if part.startswith(kind) and since <= self._now]
        return self._draw.choice(free) if free else None

    def _begin(self, part: str, at: float) -> None:
        self._played[part] += 1
        self._add("start", part, at)
        self._free_from[part] = at + NEWBORN

    def _add(self, deed: Deed, part: str, at: float | None = None) -> None:
        self._acts.append(Act(self._now if at is None else at, deed, f"{part}.{self._played[part]}"))
