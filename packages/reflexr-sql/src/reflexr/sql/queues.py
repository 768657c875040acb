"""Which of a scope's runs may start, and in which queue it is found: decided here, kept in columns of `reflexr_runs`.

A scope's unfinished runs stand in lines: those that are running, those that wait, those that are dead-lettered. Whose
turn it is depends on no more than the first of each line, so a million runs behind them cost nothing, neither to
whoever saves one run nor to whoever looks for work.

Of paused runs those that block wait in line too. The others stand in none, and a million of them cost nothing either.
Each is found once nobody has answered it in time, whosever turn it is.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from reflexr.core import Run
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
    """Its own, whether or not dead-lettered runs hold back the later ones, or nobody's, as it is paused."""

    BLOCKED = 1
    """Its own where they do not."""

    BEHIND = 2
    """Another's."""


class Queues(NamedTuple):
    """In which queues a run is found.

    Attributes:
        of_rule: That of its rule and its turn; `None` for a run that is never due.
        of_stored_rules: That of its rule's namespace, if its workspace stores the rule, and the rule lets it start.
    """

    of_rule: str | None = None
    of_stored_rules: str | None = None


NO_QUEUE: Final = Queues()
"""Those of a run that is never due."""


class Standing(NamedTuple):
    """Where a run stands.

    Attributes:
        run_id: The run, as an index holds its id.
        rule: Its rule.
        scope: Its scope, as an index holds its key.
        line: Its line, if it stands in one.
        place: Its place in the line.
        paused: Whether it is paused.
        falls_due: Whether it is due at some time: not if it is finished, or waits for an answer for any time.
        queues: The queues in which it is found so far.
    """

    run_id: str
    rule: str
    scope: str
    line: Line | None
    place: tuple[int, int, str]
    paused: bool
    falls_due: bool
    queues: Queues = NO_QUEUE


DEPTH: Final = 2
"""How many runs of each line are looked up: one that leaves its line, as it is finished, leaves the next one known."""


class Front:
    """The first runs of each line of a scope, as far as a transaction has seen them, and what it has made of them."""

    def __init__(self, found: Iterable[Standing]) -> None:
        """Begins with what was looked up.

        Args:
            found: The first runs of each line, `DEPTH` at most.
        """
        standings = sorted(found, key=lambda one: one.place)
        self._lines = {line: [one for one in standings if one.line is line] for line in Line}
        self._complete = {line for line, known in self._lines.items() if len(known) < DEPTH}

    def firsts(self, but: Collection[str] = ()) -> list[Standing] | None:
        """Returns the first run of each line that has one, but for some, or `None` if that is not known."""
        firsts: list[Standing] = []
        for line, known in self._lines.items():
            first = next((one for one in known if one.run_id not in but), None)
            if first is not None:
                firsts.append(first)
            elif line not in self._complete:
                return None
        return firsts

    def save(self, saved: Collection[Standing], moved: Collection[Standing]) -> None:
        """Takes note of runs that stand elsewhere now, and of others that are in other queues."""
        gone = {one.run_id for one in saved}
        queues = {one.run_id: one for one in moved}
        for line, known in self._lines.items():
            self._lines[line] = [queues.get(one.run_id, one) for one in known if one.run_id not in gone]
        for one in saved:
            if one.line is None:
                continue
            known = self._lines[one.line]
            if one.line in self._complete or (known and one.place < known[-1].place):
                insort(known, one, key=lambda other: other.place)


type Scope = tuple[str, str]
"""A rule and the key of one of its scopes, as an index holds them."""


class Fronts:
    """What a transaction knows of scopes."""

    def __init__(self) -> None:
        self._fronts: dict[Scope, Front] = {}
        self._are_all = False

    def are_all(self) -> None:
        """Takes note that scopes of which nothing is known have no run in a line."""
        self._are_all = True

    def add(self, scope: Scope, found: Iterable[Standing]) -> None:
        """Takes note of what was looked up of a scope."""
        self._fronts[scope] = Front(found)

    def firsts(self, scope: Scope, but: Collection[str]) -> list[Standing] | None:
        """Returns the first run of each line of a scope that has one, but for some, or `None` if that is not known."""
        front = self._fronts.get(scope)
        if front is None and self._are_all:
            front = self._fronts[scope] = Front(())
        return None if front is None else front.firsts(but)

    def save(self, scope: Scope, saved: Collection[Standing], moved: Collection[Standing]) -> None:
        """Takes note of runs of a known scope that stand elsewhere now, and of others that are in other queues."""
        self._fronts[scope].save(saved, moved)


def line_of(run: Run) -> Line | None:
    """Returns the line in which a run stands: none if it has ended, or is paused and does not block."""
    if run.waiting is not None:
        return Line.WAITING if run.waiting.blocks else None
    match run.status:
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
    """Returns the queues of the rules that a policy names, but for those that it withholds."""
    admitted: list[str] = []
    for rule in sorted((policy.unordered | policy.ordered) - policy.withheld):
        admitted.append(queue_of_rule(rule, Turn.FREE))
        if rule in policy.unordered or rule not in policy.blocking:
            admitted.append(queue_of_rule(rule, Turn.BLOCKED))
        if rule in policy.unordered:
            admitted.append(queue_of_rule(rule, Turn.BEHIND))
    return admitted


def whose_turn(firsts: Iterable[Standing], *, blocking: bool) -> Standing | None:
    """Returns the run whose turn it is in a scope, which may be a dead-lettered or a paused one.

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
        if not one.falls_due:
            found.append((one, NO_QUEUE))
            continue
        is_free = one.paused or _same(one, free)
        turn = Turn.FREE if is_free else Turn.BLOCKED if _same(one, unblocked) else Turn.BEHIND
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
