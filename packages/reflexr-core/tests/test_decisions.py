from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reflexr.core import Causation, DeadLetter, EventRegistry, Firing, RuleErrored, RuleFired, firing_id
from reflexr.core.decisions import REACTOR

TS = datetime(2026, 1, 1, tzinfo=UTC)
FIRING = Firing(
    id="fir_1",
    rule="ops:r",
    generation=2,
    scope={"a": [None]},
    scope_key="[[null]]",
    seq=9,
    ts=TS,
    matched=(7, 9),
    correlation_id="evt_0",
    depth=3,
)

identities = st.tuples(
    st.sampled_from(["a:b", "a:b1", "a:b|1"]),
    st.sampled_from([1, 2, 11]),
    st.sampled_from(["[]", "[1]", '["1"]', '["a|b","c"]', '["a","b|c"]']),
    st.sampled_from([1, 11, 2**63 - 1]),
)


@given(identities, identities)
def test_firings_have_one_id_exactly_when_they_are_one(left: Any, right: Any) -> None:
    assert (firing_id(*left) == firing_id(*right)) is (left == right)


def test_a_firing_has_the_same_id_in_every_process() -> None:
    assert firing_id("ops:r", 1, "[]", 1) == "fir_244a5d3f574bf5af"


def test_a_firing_is_recorded_in_its_chain() -> None:
    fact = FIRING.fact

    assert EventRegistry().parse(fact.payload) == RuleFired(
        rule="ops:r", scope={"a": [None]}, scope_key="[[null]]", firing_id="fir_1", matched=[7, 9]
    )
    assert (fact.actor, fact.correlation_id) == (REACTOR, "evt_0")
    assert fact.causation == Causation(firing_id="fir_1", run_id="fir_1", depth=3)
    assert fact.id == FIRING.fact.id != FIRING.id


def letter(**changes: Any) -> DeadLetter:
    document = {"rule": "ops:r", "generation": 1, "seq": 4, "scope_key": None, "ts": TS, "kind": "scope_missing"}
    return DeadLetter.model_validate({**document, "error": "no field", **changes})


def test_a_dead_letter_is_recorded_in_the_chain_of_what_went_wrong() -> None:
    causation = Causation(firing_id="f", run_id="r", depth=1)
    fact = letter().fact("evt_0", causation)

    assert EventRegistry().parse(fact.payload) == RuleErrored(rule="ops:r", seq=4, error="no field")
    assert (fact.actor, fact.correlation_id, fact.causation) == (REACTOR, "evt_0", causation)


def test_the_facts_of_different_dead_letters_have_different_ids() -> None:
    letters = [letter(), letter(seq=5), letter(generation=2), letter(rule="ops:q"), letter(scope_key="[]")]

    assert len({each.fact("evt_0", None).id for each in letters}) == len(letters)


@pytest.mark.parametrize(
    "changes", [{"kind": "lost"}, {"seq": -1}, {"generation": 0}, {"rule": "r"}, {"ts": "2026-01-01T00:00:00"}]
)
def test_what_is_no_dead_letter_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        letter(**changes)
