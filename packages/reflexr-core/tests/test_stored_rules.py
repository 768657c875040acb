from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue

from reflexr.core.actors import Actor, UserActor
from reflexr.core.envelopes import Envelope
from reflexr.core.errors import RuleError
from reflexr.core.facts import Fact, RuleArchived, RuleErrored, RuleInstalled
from reflexr.core.rules import Rule
from reflexr.core.stored_rules import (
    MAX_FIRINGS_PER_HOUR,
    MAX_PROVENANCE,
    RuleChange,
    StoredRule,
    StoredRules,
    check_provenance,
    check_stored,
    stored_rule_of,
)


class NotifyParams(BaseModel):
    thread: str


def allow(tenant_id: str, workspace_id: str, actor: Actor, change: RuleChange) -> bool:
    return change.kind != "archive"


CONFIG: Final = StoredRules(
    allow=allow, actions={"notify": NotifyParams, "page": None}, namespaces=frozenset({"chat", "bots"})
)
ON: Final[dict[str, Any]] = {"kind": "on", "types": ["ops:error"]}
MATCHES: Final[dict[str, Any]] = {"kind": "where", "field": "message", "op": "matches", "value": "a+"}
PREDICATE: Final[dict[str, Any]] = {"kind": "predicate", "name": "night"}
THROTTLE: Final[dict[str, Any]] = {"at_most": 1, "per": "PT1M"}


def a_rule(when: Mapping[str, Any] | None = None, **fields: Any) -> Rule:
    return Rule.model_validate(
        {
            "name": "chat:spike",
            "when": {"filter": ON, "throttle": THROTTLE, **(when or {})},
            "then": {"action": "page"},
            **fields,
        }
    )


@pytest.mark.parametrize(
    "rule",
    [
        a_rule(),
        a_rule(name="bots:spike", then={"action": "notify", "params": {"thread": "t"}}),
        a_rule({"throttle": {"at_most": 60, "per": "PT1H"}}),
        a_rule({"dedupe": {"key": ["id"], "within": "P31D"}, "pattern": {"kind": "absence", "within": "P31D"}}),
        a_rule({"pattern": {"kind": "count", "at_least": 1000, "within": "PT1H"}}),
        a_rule({"pattern": {"kind": "sequence", "steps": [ON, ON], "within": "PT1H"}}),
        a_rule({"filter": {"kind": "any", "of": [ON, {"kind": "not", "filter": ON}]}}),
        a_rule(retry={"max_attempts": 10, "backoff": "PT1H", "max_backoff": "PT1H"}, timeout="PT1H"),
        a_rule(description="é" * 1000),
    ],
)
def test_a_rule_inside_every_limit_may_be_stored(rule: Rule) -> None:
    assert check_stored(rule, CONFIG) == []


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (
            a_rule(name="ops:spike"),
            "name: 'ops:spike' is in no namespace of stored rules: name it 'bots:…' or 'chat:…'",
        ),
        (a_rule(name="chatter:spike"), "name: 'chatter:spike' is in no namespace"),
        (
            a_rule(then={"action": "rm"}),
            "then.action: a stored rule cannot run 'rm': the actions it can run are 'notify', 'page'",
        ),
        (a_rule(then={"action": "page", "params": {"a": 1}}), "then.params: the action 'page' takes none"),
        (a_rule(then={"action": "notify"}), "then.params.thread: Field required"),
        (a_rule({"throttle": None}), "when.throttle: a stored rule fires at most 60 times in any hour"),
        (a_rule({"throttle": {"at_most": 61, "per": "P7D"}}), "when.throttle: it lets 61 firings through in an hour"),
        (a_rule({"throttle": {"at_most": 1, "per": "PT59S"}}), "when.throttle: it lets 62 firings through in an hour"),
        (a_rule({"throttle": {"at_most": 40, "per": "PT50M"}}), "when.throttle: it lets 80 firings through in an hour"),
        (a_rule(scope={"fields": ["service"]}), "scope.fields: a stored rule has no scope fields"),
        (a_rule({"filter": PREDICATE}), "when.filter: a stored rule has no predicate"),
        (
            a_rule({"filter": {"kind": "all", "of": [ON, PREDICATE]}}),
            "when.filter.of.1: a stored rule has no predicate",
        ),
        (a_rule({"filter": {"kind": "any", "of": [MATCHES]}}), "when.filter.of.0.op: a stored rule has no 'matches'"),
        (
            a_rule({"filter": {"kind": "not", "filter": MATCHES}}),
            "when.filter.filter.op: a stored rule has no 'matches'",
        ),
        (
            a_rule({"pattern": {"kind": "sequence", "steps": [ON, MATCHES], "within": "PT1M"}}),
            "when.pattern.steps.1.op: a stored rule has no 'matches'",
        ),
        (
            a_rule({"dedupe": {"key": ["id"], "within": "P31DT0.1S"}}),
            "when.dedupe.within: 31 days, 0:00:00.100000 is longer",
        ),
        (a_rule({"pattern": {"kind": "count", "at_least": 2, "within": "P32D"}}), "when.pattern.within: 32 days"),
        (a_rule({"throttle": {"at_most": 1, "per": "P32D"}}), "when.throttle.per: 32 days"),
        (
            a_rule({"pattern": {"kind": "count", "at_least": 1001, "within": "PT1M"}}),
            "when.pattern.at_least: 1001 is more than 1000",
        ),
        (a_rule(retry={"max_attempts": 11}), "retry.max_attempts: 11 is more than 10"),
        (a_rule(retry={"backoff": "PT2H"}), "retry.backoff: 2:00:00 is longer than 1:00:00"),
        (a_rule(retry={"max_backoff": "PT2H"}), "retry.max_backoff: 2:00:00 is longer than 1:00:00"),
        (a_rule(timeout="PT2H"), "timeout: 2:00:00 is longer than 1:00:00"),
        (a_rule(description="a" * 1001), "description: 1001 characters, and 1000 are the most"),
        (a_rule({"filter": {"kind": "on", "types": ["ops:error"] * 2000}}), "the rule is "),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "rule",
)
def test_a_rule_outside_one_limit_is_told_that_one(rule: Rule, problem: str) -> None:
    (found,) = check_stored(rule, CONFIG)

    assert found.startswith(problem)


def test_a_rule_is_told_of_every_limit_it_breaks() -> None:
    rule = a_rule({"throttle": None, "filter": PREDICATE}, name="ops:spike", timeout="P1D", scope={"fields": ["a"]})

    assert [problem.partition(":")[0] for problem in check_stored(rule, CONFIG)] == [
        "name",
        "scope.fields",
        "when.filter",
        "when.throttle",
        "timeout",
    ]


def test_where_no_action_is_allowed_none_is_named() -> None:
    config = StoredRules(allow=allow, actions={}, namespaces=frozenset({"chat"}))

    assert check_stored(a_rule(), config) == [
        "then.action: a stored rule cannot run 'page': the actions it can run are none"
    ]


@given(at_most=st.integers(1, 70), seconds=st.integers(1, 7200))
def test_a_throttle_is_admitted_exactly_when_no_hour_can_hold_more_firings_than_the_limit(
    at_most: int, seconds: int
) -> None:
    rule = a_rule({"throttle": {"at_most": at_most, "per": f"PT{seconds}S"}})
    # The most that the throttle lets through: all at once, as often as a window begins.
    firings = sum(at_most for begin in range(0, 3600, seconds) if begin < 3600)

    assert (check_stored(rule, CONFIG) == []) is (firings <= MAX_FIRINGS_PER_HOUR)


def test_a_change_of_the_configuration_afterwards_changes_nothing() -> None:
    actions: dict[str, type[BaseModel] | None] = {"page": None}
    config = StoredRules(allow=allow, actions=actions, namespaces=frozenset({"chat"}))
    actions["rm"] = None

    assert len(check_stored(a_rule(then={"action": "rm"}), config)) == 1


@pytest.mark.parametrize("namespace", ["reflexr", "", "Chat", "chat:", "a-b", "chat\n"])
def test_a_namespace_that_stored_rules_cannot_have_is_refused(namespace: str) -> None:
    with pytest.raises(RuleError, match="is reserved or no namespace"):
        StoredRules(allow=allow, actions={}, namespaces=frozenset({namespace}))


def test_stored_rules_need_a_namespace() -> None:
    with pytest.raises(RuleError, match="need a namespace of their own"):
        StoredRules(allow=allow, actions={}, namespaces=frozenset())


def test_the_hook_sees_who_asks_for_which_change() -> None:
    change = RuleChange("install", "chat:spike", rule=a_rule(), provenance={"thread": "t"})

    assert CONFIG.allow("acme", "prod", UserActor(id="ada"), change) is True
    assert CONFIG.allow("acme", "prod", UserActor(id="ada"), RuleChange("archive", "chat:spike")) is False


def test_a_stored_rule_comes_back_as_it_was() -> None:
    stored = StoredRule(rule=a_rule(), version=3, status="archived", provenance={"thread": "t"})

    assert StoredRule.model_validate_json(stored.model_dump_json()) == stored
    assert (stored.name, stored.active) == ("chat:spike", False)
    assert StoredRule(rule=a_rule(), version=1).active


def test_provenance_is_held_to_4_kib_of_json() -> None:
    room = MAX_PROVENANCE - len('{"a":""}')

    assert check_provenance({}) == []
    assert check_provenance({"a": "b" * room}) == []
    assert check_provenance({"a": "b" * (room + 1)}) == ["provenance: 4097 bytes of JSON, and 4096 are the most"]
    assert check_provenance({"a": "é" * (room // 2)}) == []
    assert len(check_provenance({"a": "é" * (room // 2 + 1)})) == 1


@pytest.mark.parametrize("value", [float("nan"), "\ud800", [object()]])
def test_provenance_that_is_no_json_is_refused(value: Any) -> None:
    (problem,) = check_provenance({"a": value})

    assert "provenance" in problem


def test_provenance_nests_no_deeper_than_its_fact_can_hold() -> None:
    deep: JsonValue = 1
    for _ in range(98):
        deep = [deep]

    assert check_provenance({"a": deep}) == []
    assert "nests deeper" in check_provenance({"a": [deep]})[0]
    assert RuleInstalled(rule="chat:a", version=1, spec={}, provenance={"a": deep}).payload()


@pytest.mark.parametrize(
    ("fact", "name"),
    [
        (RuleInstalled(rule="chat:a", version=1, spec={}), "chat:a"),
        (RuleArchived(rule="chat:b", version=2, cancelled=0), "chat:b"),
        (RuleErrored(rule="chat:c", seq=1, error="boom"), None),
    ],
)
def test_an_envelope_is_a_version_of_the_rule_it_installs_or_archives(fact: Fact, name: str | None) -> None:
    envelope = Envelope.model_validate(
        {
            "seq": 1,
            "id": "evt_1",
            "ts": "2026-01-01T00:00:00Z",
            "workspace_id": "prod",
            "actor": {"kind": "system", "name": "reactor"},
            "correlation_id": "evt_1",
            "event": fact.payload(),
        }
    )

    assert stored_rule_of(envelope) == name


def test_windows_are_told_apart_to_the_microsecond() -> None:
    rule = a_rule({"pattern": {"kind": "absence", "within": timedelta(days=31, microseconds=1)}})

    assert len(check_stored(rule, CONFIG)) == 1
