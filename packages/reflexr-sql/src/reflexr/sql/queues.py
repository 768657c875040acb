"""Which of a scope's runs may start, and in which queue it is found: decided here, kept in columns of `reflexr_runs`.

A scope's unfinished runs stand in lines: those that are running, those that wait, those that are dead-lettered. Whose
turn it is depends on no more than the first of each line, so a million runs behind them cost nothing, neither to
whoever saves one run nor to whoever looks for work.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from reflexr.core import RunStatus
from reflexr.sql.rules import StoredRuleFlags
from reflexr.workspace import RunPolicy


class Line(IntEnum):
    """Which line of its scope a run stands in."""

    RUNNING = 0
    WAITING = 1
    DEAD = 2


class Turn(IntEnum):
    """Whose turn a run's is."""

    FREE = 0
    """Its own, whether or not dead-lettered runs hold back the later ones."""

    BLOCKED = 1
    """Its own where they do not."""

    BEHIND = 2
    """Another's."""


class Queues(NamedTuple):
    """In which queues a run is found.

    Attributes:
        of_rule: That of its rule and its turn; `None` for a run that is not to start.
        of_stored_rules: That of its rule's namespace, if its workspace stores the rule, and the rule lets it start.
    """

    of_rule: str | None = None
    of_stored_rules: str | None = None


NO_QUEUE: Final = Queues()
"""Those of a run that is not to start."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands.

    Attributes:
        run_id: The run, as an index holds its id.
        rule: Its rule.
        scope: Its scope, as an index holds its key.
        line: Its line, if it is not finished.
        place: Its place in the line.
        queues: The queues in which it is found so far.
    """

    run_id: str
    rule: str
    scope: str
    line: Line | None
    place: tuple[int, int, str]
    queues: Queues = NO_QUEUE


def line_of(status: RunStatus) -> Line | None:
    """Returns the line of a run in this status."""
    match status:
        case "running":
            return Line.RUNNING
        case "pending" | "retrying":
            return Line.WAITING
        case "dead_lettered":
            return Line.DEAD
        case _:
            return None


def queue_of_rule(rule: str, turn: Turn) -> str:
    """Returns the queue of a rule's runs whose turn it is or is not."""
    return f"{turn.value}:{rule}"


def queues_of_rules(policy: RunPolicy) -> list[str]:
    """Returns the queues of the rules that a policy names."""
    admitted: list[str] = []
    for rule in sorted(policy.unordered | policy.ordered):
        admitted.append(queue_of_rule(rule, Turn.FREE))
        if rule in policy.unordered or rule not in policy.blocking:
            admitted.append(queue_of_rule(rule, Turn.BLOCKED))
        if rule in policy.unordered:
            admitted.append(queue_of_rule(rule, Turn.BEHIND))
    return admitted


def whose_turn(firsts: Iterable[Standing], *, blocking: bool) -> Standing | None:
    """Returns the run whose turn it is in a scope, which may be a dead-lettered one, as `core.runnable` has it.

    Args:
        firsts: The first run of each of the scope's lines; others do no harm.
        blocking: Whether a dead-lettered run holds back the later ones.
    """
    lines = {Line.RUNNING, Line.WAITING, Line.DEAD} if blocking else {Line.RUNNING, Line.WAITING}
    candidates = [one for one in firsts if one.line in lines]
    return min(candidates, key=lambda one: (one.line is not Line.RUNNING, one.place), default=None)


def queued(
    standings: Sequence[Standing], firsts: Sequence[Standing], flags: Mapping[str, StoredRuleFlags]
) -> list[tuple[Standing, Queues]]:
    """Returns the queues of each of some runs of one scope.

    Args:
        standings: The runs.
        firsts: The first run of each of the scope's lines; others do no harm.
        flags: What is known of the workspace's stored rules.
    """
    free, unblocked = whose_turn(firsts, blocking=True), whose_turn(firsts, blocking=False)
    found: list[tuple[Standing, Queues]] = []
    for one in standings:
        if one.line not in (Line.RUNNING, Line.WAITING):
            found.append((one, NO_QUEUE))
            continue
        turn = Turn.FREE if _same(one, free) else Turn.BLOCKED if _same(one, unblocked) else Turn.BEHIND
        stored = flags.get(one.rule)
        starts = stored is not None and _starts(stored, turn)
        namespace = one.rule.partition(":")[0]
        found.append((one, Queues(queue_of_rule(one.rule, turn), namespace if starts else None)))
    return found


def _starts(stored: StoredRuleFlags, turn: Turn) -> bool:
    """Whether a stored rule lets a run start whose turn it is or is not."""
    return stored.enabled and (not stored.ordered or turn <= (Turn.FREE if stored.blocking else Turn.BLOCKED))


def _same(one: Standing, other: Standing | None) -> bool:
    return other is not None and one.run_id == other.run_id
