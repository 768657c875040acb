from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, override

import pytest

from reflexr.core import (
    Batch,
    Envelope,
    Firing,
    Rule,
    RuleProgress,
    RuleSet,
    begin,
    by,
    evaluate,
    needs,
    on,
    predicate,
    run,
)
from reflexr.core.evaluation import MAX_ERROR

from .shop import envelope

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def log(*event_types: str, first: int = 1, **fields: Any) -> list[Envelope]:
    """The envelopes of these types, a second from one to the next."""
    return [
        envelope({"type": event_type, **fields}, seq=seq, id=f"evt_{seq}", ts=START + seq * SECOND)
        for seq, event_type in enumerate(event_types, start=first)
    ]


def rule(when: Any, **fields: Any) -> Rule:
    return Rule.model_validate({"name": "ops:r", "when": when, "then": run("act"), **fields})


EACH = rule(on("ops:a"))


def test_a_batch_groups_the_envelopes_by_type_in_the_logs_order() -> None:
    a, b, c = log("ops:a", "ops:b", "ops:a", first=5)
    batch = Batch([a, b, c])

    assert batch.envelopes == [a, b, c]
    assert batch.by_type == {"ops:a": [a, c], "ops:b": [b]}
    assert (batch.first_seq, batch.last_seq, batch.last_ts) == (5, 7, START + 7 * SECOND)
    assert batch.times == [a.ts, b.ts, c.ts]
    assert Batch.of(batch) is batch
    assert Batch.of(iter([a])).envelopes == [a]


def test_a_batch_is_not_empty() -> None:
    with pytest.raises(ValueError, match="a batch holds at least one envelope"):
        Batch([])


@pytest.mark.parametrize("places", [[1, 3], [2, 1], [1, 1]])
def test_a_batch_is_consecutive(places: list[int]) -> None:
    envelopes = log("ops:a", "ops:a", "ops:a")

    with pytest.raises(ValueError, match="a batch holds consecutive envelopes of one log"):
        Batch([envelopes[place - 1] for place in places])


def test_the_time_of_a_batch_never_goes_back() -> None:
    first, second = log("ops:a", "ops:a")

    with pytest.raises(ValueError, match="is where 2 is due, at 2026-01-01 00:00:01"):
        Batch([first, second.model_copy(update={"ts": first.ts - timedelta(microseconds=1)})])
    assert Batch([first, second.model_copy(update={"ts": first.ts})]).last_ts == first.ts


@pytest.mark.parametrize("cursor", [0, 1, 3])
def test_a_batch_begins_right_after_the_rules_cursor(cursor: int) -> None:
    progress = RuleProgress("ops:r", 1, cursor, EACH.definition())
    batch = log("ops:a", first=3)

    for function in (lambda: needs(EACH, progress, batch), lambda: evaluate(EACH, progress, {}, batch)):
        with pytest.raises(
            ValueError, match=f"'ops:r' has evaluated through seq {cursor}: its next batch begins at {cursor + 1}"
        ):
            function()


@pytest.mark.parametrize(("start", "cursor"), [("now", 7), ("beginning", 0)])
def test_a_rule_begins_at_the_head_or_at_the_beginning(start: str, cursor: int) -> None:
    begun = rule(on("ops:a"), start=start)

    assert begin(begun, 7) == RuleProgress("ops:r", 1, cursor, begun.definition(), 0)


def test_what_an_evaluation_needs_are_the_scopes_of_what_passed() -> None:
    scoped = rule(on("ops:a").count(at_least=2, within=SECOND), scope=by("x"))
    wanted = needs(scoped, begin(scoped, 0), [*log("ops:a", x=1), *log("ops:b", first=2, x=2), *log("ops:a", first=3)])

    assert (wanted.scope_keys, wanted.due_through) == (frozenset({"[1]"}), None)


@pytest.mark.parametrize(
    ("when", "scopes"),
    [
        (on("ops:a"), []),
        (on("ops:a").distinct("x", within=SECOND), ["[1]"]),
        (on("ops:a").at_most(1, per=SECOND), ["[1]"]),
    ],
)
def test_a_rule_that_remembers_nothing_needs_no_scope(when: Any, scopes: list[str]) -> None:
    scoped = rule(when, scope=by("x"))

    assert needs(scoped, begin(scoped, 0), log("ops:a", x=1)).scope_keys == frozenset(scopes)


def test_a_rule_that_waits_for_quiet_needs_the_scopes_that_are_due() -> None:
    quiet = rule(on("ops:a").absent(within=SECOND))

    assert needs(quiet, begin(quiet, 0), log("ops:b", "ops:b")).due_through == START + 2 * SECOND


def test_the_rules_that_a_batch_touches_are_found_in_their_order() -> None:
    rules = [
        rule(on("ops:b"), name="ops:b"),
        rule(on("ops:a"), name="ops:a"),
        rule(on("ops:c").absent(within=SECOND), name="ops:quiet"),
        rule(on("ops:a", "ops:b"), name="ops:both"),
        rule({"filter": {"kind": "predicate", "name": "p"}}, name="ops:any"),
        rule(on("ops:c"), name="ops:c"),
    ]
    touched = RuleSet(rules).touched(Batch(log("ops:a", "ops:a", "ops:b")))

    assert [each.name for each in touched] == ["ops:b", "ops:a", "ops:quiet", "ops:both", "ops:any"]


def decided(judge: Callable[[Envelope], Any]) -> tuple[tuple[Firing, ...], list[str]]:
    judged = rule(on("ops:a").where(predicate("judge")))
    evaluation = evaluate(judged, begin(judged, 0), {}, log("ops:a"), predicates={"judge": judge})
    return evaluation.firings, [error.error for error in evaluation.errors]


class Unspeakable(Exception):
    @override
    def __str__(self) -> str:
        raise RuntimeError


def raising(error: Exception) -> Callable[[Envelope], Any]:
    def judge(envelope: Envelope) -> bool:
        raise error

    return judge


type Judge = Callable[[Envelope], Any]

FAILURES: list[tuple[Judge, str]] = [
    (raising(LookupError("no such key")), "LookupError: no such key"),
    (raising(Unspeakable()), "Unspeakable, whose text cannot be had"),
    (raising(ValueError("\ud800")), "ValueError: \\ud800"),
    (raising(ValueError("x" * 5000)), "ValueError: " + "x" * (MAX_ERROR - 12)),
    (lambda _: 1, "TypeError: the predicate 'judge' returned 1: return True or False"),
]


@pytest.mark.parametrize(("judge", "error"), FAILURES, ids=["raises", "unspeakable", "surrogate", "long", "truthy"])
def test_a_predicate_that_fails_is_an_error_that_can_be_stored(judge: Judge, error: str) -> None:
    assert decided(judge) == ((), [error])


def test_a_predicate_that_is_not_there_is_an_error() -> None:
    judged = rule(on("ops:a").where(predicate("judge")))

    (error,) = evaluate(judged, begin(judged, 0), {}, log("ops:a")).errors

    assert (error.kind, error.error) == ("predicate_failed", "KeyError: 'judge'")


@pytest.mark.parametrize("value", [{"b": [1, None], "a": 0.5}, [], None, 1e16, 1e22, "é", True, 10**4000])
def test_a_firing_has_the_values_of_its_scope(value: Any) -> None:
    scoped = rule(on("ops:a"), scope=by("x", "n.y"))

    (firing,) = evaluate(scoped, begin(scoped, 0), {}, log("ops:a", x=value, n={"y": 1})).firings

    assert firing.scope == {"x": value, "n.y": 1}
