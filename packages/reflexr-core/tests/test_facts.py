from datetime import UTC, datetime
from typing import Any, assert_never, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from reflexr.core import (
    EventRegistry,
    Fact,
    FeedbackGiven,
    ReflexrEvent,
    RuleArchived,
    RuleErrored,
    RuleFired,
    RuleInstalled,
    RuleReset,
    RunCancelled,
    RunDeadLettered,
    RunPaused,
    RunProgressed,
    RunRequeued,
    RunResumed,
    RunRetrying,
    RunSkipped,
    RunStarted,
    RunSucceeded,
    RunTarget,
    Tick,
)

FACT: TypeAdapter[Fact] = TypeAdapter(Fact)
NOW = datetime(2026, 1, 1, tzinfo=UTC)

FACTS: list[ReflexrEvent] = [
    RuleFired(rule="ops:r", scope={"a": [1, None]}, scope_key="[[1,null]]", firing_id="fir_1", matched=[1, 2]),
    RuleErrored(rule="ops:r", seq=3, error="no"),
    RuleReset(rule="ops:r", generation=2, reason="changed", from_seq=4),
    RuleInstalled(rule="ops:r", version=1, spec={"name": "ops:r"}),
    RuleArchived(rule="ops:r", version=2, cancelled=0),
    RunStarted(run_id="fir_1", rule="ops:r", scope={}, scope_key="[]", attempt=1),
    RunProgressed(run_id="fir_1", rule="ops:r", step="triage"),
    RunPaused(run_id="fir_1", rule="ops:r", attempt=1, request={"delete": [1, None]}, until=NOW, step="ask"),
    RunResumed(run_id="fir_1", rule="ops:r", attempt=1, answer={"ok": True}),
    RunRetrying(run_id="fir_1", rule="ops:r", attempt=1, error="no", next_attempt_at=NOW),
    RunSucceeded(run_id="fir_1", rule="ops:r", output={"a": 1}),
    RunDeadLettered(run_id="fir_1", rule="ops:r", attempts=5, error="no"),
    RunCancelled(run_id="fir_1", rule="ops:r"),
    RunSkipped(run_id="fir_1", rule="ops:r", reason="known"),
    RunRequeued(run_id="fir_1", rule="ops:r"),
    FeedbackGiven(feedback_type="triage", target=RunTarget(run_id="fir_1"), value={}),
    Tick(schedule="hourly", at=NOW),
]


def subject(fact: Fact) -> str:
    """What a fact is about. The type checker refuses this function if a kind of fact is missing from it."""
    match fact:
        case RuleFired() | RuleErrored() | RuleReset() | RuleInstalled() | RuleArchived():
            return fact.rule
        case RunStarted() | RunProgressed() | RunRetrying() | RunSucceeded() | RunDeadLettered():
            return fact.run_id
        case RunCancelled() | RunSkipped() | RunRequeued() | RunPaused() | RunResumed():
            return fact.run_id
        case FeedbackGiven():
            return fact.feedback_type
        case Tick():
            return fact.schedule
        case _:
            assert_never(fact)


def test_the_union_of_facts_is_every_event_of_reflexr() -> None:
    members = get_args(get_args(Fact.__value__)[0])

    assert {*EventRegistry().values()} == {*members} == {type(fact) for fact in FACTS}


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_is_told_from_the_others_by_its_type(fact: ReflexrEvent) -> None:
    read = FACT.validate_python(fact.payload())

    assert read == fact
    assert subject(read) in {"ops:r", "fir_1", "triage", "hourly"}


def test_a_pause_says_neither_until_when_nor_a_step_if_there_is_none() -> None:
    fact = {"type": "reflexr:run_paused", "run_id": "fir_1", "rule": "ops:r", "attempt": 1, "request": None}

    assert FACT.validate_python(fact) == RunPaused(run_id="fir_1", rule="ops:r", attempt=1, request=None)


@pytest.mark.parametrize("until", ["2026-01-01T00:00:00", "soon", 10**20])
def test_a_pause_ends_at_no_time_that_is_none(until: object) -> None:
    with pytest.raises(ValidationError, match="until"):
        FACT.validate_python(RunPaused(run_id="r", rule="a:r", attempt=1, request=None).payload() | {"until": until})


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_comes_back_from_a_log_as_it_was(fact: ReflexrEvent) -> None:
    assert EventRegistry().parse(fact.payload()) == fact


@pytest.mark.parametrize(
    ("fact", "problem"),
    [
        ({"type": "reflexr:rule_fired"}, "rule_fired"),
        ({"type": "reflexr:tick", "schedule": "s", "at": "2026-01-01T00:00:00"}, "timezone"),
        ({"type": "reflexr:rule_errored", "rule": "r", "seq": 1, "error": ""}, "A rule's name is 'namespace:name'"),
        ({"type": "reflexr:rule_errored", "rule": "a:r", "seq": 2**63, "error": ""}, "less than or equal"),
        ({"type": "reflexr:rule_reset", "rule": "a:r", "generation": 0}, "greater than or equal to 1"),
        ({"type": "reflexr:run_requeued", "run_id": "", "rule": "a:r"}, "An id is 1 to 255 characters"),
        ({"type": "reflexr:run_paused", "run_id": "r", "rule": "a:r", "attempt": 1}, r"request\n  Field required"),
        ({"type": "reflexr:run_resumed", "run_id": "r", "rule": "a:r", "answer": 1, "attempt": 0}, r"greater than or"),
        ({"type": "reflexr:run_resumed", "run_id": "r", "rule": "a:r", "attempt": 1}, r"answer\n  Field required"),
        ({"type": "shop:order_placed"}, "does not match any of the expected tags"),
        ({}, "Unable to extract tag"),
    ],
)
def test_what_is_no_fact_is_refused(fact: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        FACT.validate_python(fact)
