"""What a transaction knows of the first runs of a scope, against all of the scope's runs; and where they are found."""

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reflexr.core import Rule, Run, RunStatus, Waiting, on, overdue, runnable
from reflexr.core import run as action
from reflexr.sql.queues import (
    DEPTH,
    NO_QUEUE,
    Front,
    Fronts,
    Line,
    Queues,
    Standing,
    line_of,
    queued,
    queues_of_rules,
)
from reflexr.sql.rules import StoredRuleFlags
from reflexr.workspace import RunPolicy

from .shop import HOUR, START, Sold, run

LINES = st.sampled_from([*Line, None])
RUNS = st.integers(0, 9)
SAVES = st.lists(st.tuples(RUNS, LINES), min_size=1, max_size=4, unique_by=lambda save: save[0])


def standing(number: int, line: Line | None) -> Standing:
    return Standing(f"r{number}", "sqlshop:a", "[]", line, (1, number, f"r{number}"), paused=False, falls_due=True)


def firsts(runs: dict[int, Standing], depth: int, but: frozenset[str] = frozenset()) -> list[Standing]:
    """The first runs of each line, as a database finds them."""
    ordered = [runs[number] for number in sorted(runs) if runs[number].run_id not in but]
    return [one for line in Line for one in [one for one in ordered if one.line is line][:depth]]


@given(st.dictionaries(RUNS, LINES), st.lists(SAVES, max_size=6))
def test_what_is_known_after_any_saves_is_what_would_be_found(
    lines: dict[int, Line | None], saves: list[list[tuple[int, Line | None]]]
) -> None:
    runs = {number: standing(number, line) for number, line in lines.items()}
    front = Front(firsts(runs, DEPTH))
    for save in saves:
        saved = [standing(number, line) for number, line in save]
        but = frozenset(one.run_id for one in saved)
        others = front.firsts(but)
        if others is None:
            front = Front(firsts(runs, DEPTH, but))
        else:
            assert others == firsts(runs, 1, but)
        runs |= {number: one for (number, _), one in zip(save, saved, strict=True)}
        front.save(saved, ())
        known = front.firsts()
        assert known is None or known == firsts(runs, 1)


def test_one_run_that_leaves_its_line_leaves_the_next_one_known() -> None:
    waiting = [standing(number, Line.WAITING) for number in range(3)]
    front = Front(waiting[:DEPTH])

    front.save([standing(0, Line.RUNNING)], ())

    assert front.firsts() == [standing(0, Line.RUNNING), waiting[1]]
    assert front.firsts({"r1"}) is None


def test_a_run_that_comes_into_another_queue_is_known_to_be_there() -> None:
    moved = standing(1, Line.WAITING)._replace(queues=Queues("2:sqlshop:a"))
    front = Front([standing(1, Line.WAITING)])

    front.save([standing(0, Line.WAITING)], [moved])

    assert front.firsts({"r0"}) == [moved]
    assert moved.queues != NO_QUEUE


def test_of_a_scope_nothing_is_known_unless_all_are() -> None:
    fronts = Fronts()
    before = fronts.firsts(("sqlshop:a", "[]"), ())
    fronts.are_all()

    assert (before, fronts.firsts(("sqlshop:a", "[]"), ())) == (None, [])


# --- Where runs are found

NAME = "sqlshop:restock"
LATER = START + HOUR
STATUSES: st.SearchStrategy[RunStatus] = st.sampled_from(
    ("pending", "running", "retrying", "succeeded", "dead_lettered", "cancelled", "skipped")
)
PAUSES = st.builds(
    Waiting,
    request=st.just("go on?"),
    since=st.just(START),
    until=st.sampled_from((None, START, LATER)),
    blocks=st.booleans(),
)
RULES = st.fixed_dictionaries(
    {
        "ordering": st.sampled_from(("scope", "none")),
        "on_dead_letter": st.sampled_from(("continue", "block")),
        "enabled": st.booleans(),
    }
).map(lambda options: Rule.model_validate({"name": NAME, "when": on(Sold), "then": action("act"), **options}))


@st.composite
def scopes(draw: st.DrawFn) -> list[Run]:
    """The runs of one scope, in the order of their firings."""
    found: list[Run] = []
    for seq in range(1, draw(st.integers(0, 6)) + 1):
        what: dict[str, Any] = {"waiting": draw(st.none() | PAUSES)}
        what["status"] = "paused" if what["waiting"] else draw(STATUSES)
        if what["status"] == "retrying":
            what["next_attempt_at"] = LATER
        found.append(run(f"r{seq}", NAME, seq=seq, **what))
    return found


def queues_of(runs: list[Run], rule: Rule) -> dict[str, Queues]:
    """The queues of the runs of one scope, where their rule is a stored one too."""
    standings = [_standing(one) for one in runs]
    flags = StoredRuleFlags(1, rule.enabled, rule.ordering == "scope", rule.on_dead_letter == "block")
    return {one.run_id: queues for one, queues in queued(standings, standings, {NAME: flags})}


def _standing(run: Run) -> Standing:
    ends = run.waiting is None and run.status in ("pending", "running", "retrying")
    falls_due = ends or (run.waiting is not None and run.waiting.until is not None)
    place = (1, run.fired_seq, run.id)
    return Standing(run.id, NAME, "[]", line_of(run), place, run.status == "paused", falls_due)


def to_be_found(runs: list[Run], rule: Rule) -> set[str]:
    """The runs that are due by the time that all back-offs, leases and answers are over, as core has it."""
    if not rule.enabled:
        return set()
    now = LATER + timedelta(days=1)
    found = {one.id for one in runnable(runs, rule, now)}
    running = [one.id for one in runs if one.status == "running"]
    found.update(running if rule.ordering == "none" else running[:1])
    return found | {one.id for one in runs if overdue(one, now)}


@given(scopes(), RULES)
def test_the_runs_in_the_queues_that_a_policy_admits_are_those_that_core_has_be_due(
    runs: list[Run], rule: Rule
) -> None:
    admitted = queues_of_rules(_policy(rule))
    found = {run_id for run_id, queues in queues_of(runs, rule).items() if queues.of_rule in admitted}
    assert found == to_be_found(runs, rule)


@given(scopes(), RULES)
def test_the_runs_in_the_queue_of_stored_rules_are_those_that_core_has_be_due(runs: list[Run], rule: Rule) -> None:
    found = {run_id for run_id, queues in queues_of(runs, rule).items() if queues.of_stored_rules == "sqlshop"}
    assert found == to_be_found(runs, rule)


def _policy(rule: Rule) -> RunPolicy:
    """The policy of a process that knows one rule."""
    names = frozenset({NAME} if rule.enabled else ())
    if rule.ordering == "none":
        return RunPolicy(unordered=names)
    return RunPolicy(ordered=names, blocking=names if rule.on_dead_letter == "block" else frozenset())
