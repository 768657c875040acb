import json
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from reflexr.core import (
    ActionRef,
    Condition,
    EventRegistry,
    F,
    On,
    RetryPolicy,
    Rule,
    RuleError,
    Scope,
    by,
    load_params,
    on,
    predicate,
    run,
    sequence,
)
from reflexr.core.type_sets import TypeSet

from .json_values import NOT_JSON, alike, json_values, nested
from .shop import COPIES, OrderPaid, OrderPlaced, ShopEvent
from .strategies import rules

MINUTE = timedelta(minutes=1)
DOCUMENT: dict[str, Any] = {
    "name": "shop:r",
    "when": {"filter": {"kind": "on", "types": ["shop:order.paid"]}},
    "then": {"action": "a"},
}


def rule(**changes: Any) -> Rule:
    return Rule.model_validate({**DOCUMENT, **changes})


def counting(within: str, at_least: float = 3, value: Any = 1) -> Rule:
    paid = {"kind": "on", "types": ["shop:order.paid"]}
    amount = {"kind": "where", "field": "amount", "op": "in", "value": [value]}
    pattern = {"kind": "count", "at_least": at_least, "within": within}
    return rule(when={"filter": {"kind": "all", "of": [paid, amount]}, "pattern": pattern})


@given(rules)
def test_a_rule_comes_back_from_json_with_the_same_definition(document: dict[str, Any]) -> None:
    written = Rule.model_validate(document)
    read = Rule.model_validate_json(written.model_dump_json())

    assert read == written
    assert read.model_dump_json() == written.model_dump_json()
    assert read.definition() == written.definition()
    assert Rule.model_validate(written.model_dump()).definition() == written.definition()


@given(rules)
def test_a_definition_is_the_same_whatever_form_its_json_has(document: dict[str, Any]) -> None:
    other = json.loads(json.dumps(alike(document)))

    assert Rule.model_validate(other).definition() == Rule.model_validate(document).definition()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other:r"},
        {"description": "why"},
        {"then": {"action": "b", "params": {"a": 1}}},
        {"retry": {"max_attempts": 1}},
        {"ordering": "none"},
        {"on_dead_letter": "block"},
        {"on_pause": "block"},
        {"start": "beginning"},
        {"timeout": "PT1M"},
        {"enabled": False},
    ],
)
def test_a_definition_is_of_the_condition_and_the_scope_alone(changes: dict[str, Any]) -> None:
    assert rule(**changes).definition() == rule().definition()
    assert rule().model_copy(update=changes).definition() == rule().definition()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (counting("PT60S"), counting("PT1M")),
        (counting("P7D"), counting("P1W")),
        (counting("PT1M", at_least=3.0), counting("PT1M", at_least=3)),
        (counting("PT1M", value=1.0), counting("PT1M", value=1)),
        (counting("PT1M", value={"a": 1, "b": 2}), counting("PT1M", value={"b": 2, "a": 1})),
        (rule(when={**DOCUMENT["when"], "dedupe": None, "throttle": None}), rule()),
        (rule(when={**DOCUMENT["when"], "pattern": {"kind": "each"}}), rule()),
        (rule(scope={}), rule(scope={"fields": []})),
    ],
)
def test_a_definition_is_the_same_for_the_same_meaning(left: Rule, right: Rule) -> None:
    assert left.definition() == right.definition()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (counting("PT60S"), counting("PT61S")),
        (counting("PT60S"), counting("PT60S", at_least=4)),
        (counting("PT60S", value=1), counting("PT60S", value=True)),
        (counting("PT60S", value="1"), counting("PT60S", value=1)),
        (counting("PT60S", value="\u00e9"), counting("PT60S", value="e\u0301")),
        (rule(), rule(scope={"fields": ["order"]})),
        (rule(scope={"fields": ["a", "b"]}), rule(scope={"fields": ["b", "a"]})),
        (rule(scope={"fields": ["a.b"]}), rule(scope={"fields": ["a", "b"]})),
    ],
)
def test_a_definition_differs_for_another_meaning(left: Rule, right: Rule) -> None:
    assert left.definition() != right.definition()


def test_a_definition_is_the_same_in_every_process() -> None:
    code = (
        "from reflexr.core import F, Rule, by, on, run\n"
        "rule = Rule(name='a:b', when=on('a:b').where(F.c.in_({'x', 'y', 'z'})), scope=by('d'), then=run('e'))\n"
        "print(rule.definition())"
    )
    definitions = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout
        for seed in ("1", "2")
    }

    assert len(definitions) == 1


@pytest.mark.parametrize("of", COPIES)
def test_a_copy_of_a_rule_decides_the_same(of: Any) -> None:
    fresh, used = counting("PT1M"), counting("PT1M")
    assert used.compiled.types == TypeSet(frozenset({"shop:order.paid"}))

    for original in (fresh, used):
        copied = of(original)

        assert copied == original
        assert copied.definition() == original.definition()
        assert copied.compiled.types == original.compiled.types


@pytest.mark.parametrize("deep", [False, True])
def test_a_copy_with_another_condition_decides_by_that(deep: bool) -> None:
    original = rule()
    definition = original.definition()
    assert original.compiled.types == TypeSet(frozenset({"shop:order.paid"}))

    changed = original.model_copy(update={"when": on(OrderPlaced)}, deep=deep)

    assert changed.compiled.types == TypeSet(frozenset({"shop:order_placed"}))
    assert changed.definition() != definition
    assert original.definition() == definition


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        *(
            ({"name": name}, r"name\n  A rule's name is")
            for name in ("r", "shop:", "shop:R", "shop:r\n", "\ud800:r", 3, None)
        ),
        ({"name": "shop:" + "r" * 96}, r"name\n  A rule's name is 'namespace:name' of at most 100 characters"),
        ({"name": "reflexr:r"}, r"name\n  The namespace 'reflexr' is reserved"),
        *(({"description": text}, r"description\n  Input should be a valid string") for text in ("\ud800", 3, b"")),
        *(({"when": when}, r"when\n  when is written on\(ServiceError\)") for when in (None, 3, "on")),
        ({"when": {}}, r"when\.filter\n  Field required"),
        ({"when": {**DOCUMENT["when"], "then": 1}}, r"when\.then\n  Extra inputs are not permitted"),
        *(({"scope": scope}, r"scope\n  scope is written by\(F\.service\)") for scope in (None, ["a"], "a")),
        *(({"scope": {"fields": fields}}, r"scope\.fields\n  Input should be") for fields in (None, "a", 3)),
        (
            {"scope": {"fields": {"a", "b"}}},
            r"scope\.fields\n  A list is wanted, whose order stays the same, not a set",
        ),
        *(
            ({"scope": {"fields": [field]}}, r"fields\.0\n  A field is its name")
            for field in ("", "a.", "a\0", "\ud800", 3)
        ),
        *(({"then": {"action": name}}, r"then\.action\n  An id is") for name in ("", "a" * 256, "a\0", "\ud800", 3)),
        ({"then": {}}, r"then\.action\n  Field required"),
        ({"then": {"action": "a", "params": [1]}}, r"then\.params\n  Input should be a valid dictionary"),
        ({"then": {"action": "a", "params": {1: 1}}}, r"then\.params\.1\.\[key\]\n  Input should be a valid string"),
        *(({"retry": {"max_attempts": n}}, r"retry\.max_attempts\n") for n in (0, -1, True, "3", 2.5, None, 2**63)),
        *(({"retry": {"multiplier": n}}, r"retry\.multiplier\n") for n in (0, 0.5, -2, True, "2", None, float("nan"))),
        *(({"retry": {"multiplier": n}}, r"retry\.multiplier\n") for n in (float("inf"), b"2")),
        *(({"retry": {"backoff": n}}, r"retry\.backoff\n") for n in (-MINUTE, 3, None, "1s", timedelta.max)),
        *(({"retry": {"max_backoff": n}}, r"retry\.max_backoff\n") for n in (-MINUTE, 3, None, "1s")),
        ({"retry": {"attempts": 1}}, r"retry\.attempts\n  Extra inputs are not permitted"),
        ({"ordering": "fifo"}, r"ordering\n  Input should be 'scope' or 'none'"),
        ({"on_dead_letter": True}, r"on_dead_letter\n  Input should be 'continue' or 'block'"),
        *(({"on_pause": n}, r"on_pause\n  Input should be 'continue' or 'block'") for n in ("wait", True, None)),
        ({"start": None}, r"start\n  Input should be 'now' or 'beginning'"),
        *(({"timeout": n}, r"timeout\n  A (window|duration) is") for n in ("PT0S", timedelta(), -MINUTE, 3)),
        *(({"enabled": n}, r"enabled\n  Input should be a valid boolean") for n in (1, "yes", None)),
        ({"version": 1}, r"version\n  Extra inputs are not permitted"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_place(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        rule(**changes)


def test_a_rule_that_was_written_before_there_were_pauses_lets_later_runs_go_on() -> None:
    written = rule(on_dead_letter="block", start="beginning", timeout="PT1M")
    earlier = Rule.model_validate_json(written.model_dump_json(exclude={"on_pause"}))

    assert earlier == written
    assert earlier.on_pause == "continue"
    assert earlier.definition() == rule(on_pause="block").definition()


@pytest.mark.parametrize("document", [None, 3, "rule", [DOCUMENT]])
def test_a_rule_is_an_object(document: Any) -> None:
    with pytest.raises(ValidationError, match="Input should be a valid dictionary or instance of Rule"):
        Rule.model_validate(document)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "\xff", '{"name": "\\ud800"}', '{"a": NaN', "[" * 10_000, "1" * 5000]
)
def test_text_that_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Rule.model_validate_json(text)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", pytest.param("1" * 4301, id="huge")])
def test_a_number_that_json_has_not_is_refused_in_the_text_of_a_rule(number: str) -> None:
    text = json.dumps({**DOCUMENT, "then": {"action": "a", "params": {"x": 77}}}).replace("77", number)

    with pytest.raises(ValidationError, match=r"params\.x is -?(nan|inf)|number out of range"):
        Rule.model_validate_json(text)


@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
def test_params_that_json_cannot_hold_are_refused_with_their_place(value: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=rf"then\.params\n.*({problem})"):
        rule(then={"action": "a", "params": {"x": value}})


def test_params_nest_up_to_the_limit_and_come_back() -> None:
    deep = rule(then={"action": "a", "params": {"x": nested(99)}})

    assert Rule.model_validate_json(deep.model_dump_json()) == deep


@given(st.dictionaries(st.sampled_from("abc"), json_values))
def test_params_are_any_json_object(params: dict[str, Any]) -> None:
    assert repr(ActionRef(action="a", params=params).params) == repr(params)


def test_a_rule_that_can_work_has_no_problem() -> None:
    checked = Rule(
        name="shop:r",
        when=on(OrderPaid).where(F.amount > 1, predicate("big")).distinct("order", within=MINUTE),
        scope=by("order", "type"),
        then=run("a"),
    )

    assert checked.check(EventRegistry(ShopEvent), {"big"}) == []
    assert rule().check() == []


def test_every_problem_of_a_rule_is_told_at_once() -> None:
    paid = {"kind": "on", "types": ["shop:order.paid", "shop:paid"]}
    lost = {"kind": "where", "field": "lost", "op": "exists", "value": False}
    checked = rule(
        when={
            "filter": {"kind": "all", "of": [paid, lost, {"kind": "predicate", "name": "big"}]},
            "dedupe": {"key": ["order", "gone"], "within": "PT1M"},
            "pattern": {"kind": "sequence", "steps": [paid, lost], "within": "PT1M"},
        },
        scope={"fields": ["order", "zone"]},
    )
    fields = "'shop:order.paid' has no field {!r}; the fields are 'amount', 'order'"
    unknown = "'shop:paid' is no event type here; did you mean 'shop:paid'?"

    assert checked.check(EventRegistry(ShopEvent)) == [
        "when.filter.of.0.types.1: " + unknown.partition(";")[0],
        "when.filter.of.1.field: " + fields.format("lost"),
        "when.filter.of.2.name: there is no predicate 'big': the predicates are none here",
        "when.dedupe.key.1: " + fields.format("gone"),
        "when.pattern.steps.0.types.1: " + unknown.partition(";")[0],
        "when.pattern.steps.1.field: " + fields.format("lost"),
        "scope.fields.1: " + fields.format("zone"),
    ]


@pytest.mark.parametrize(
    ("policy", "failed", "delay"),
    [
        (RetryPolicy(), 1, timedelta(seconds=1)),
        (RetryPolicy(), 2, timedelta(seconds=2)),
        (RetryPolicy(), 9, timedelta(seconds=256)),
        (RetryPolicy(), 10, timedelta(minutes=5)),
        (RetryPolicy(), 10**30, timedelta(minutes=5)),
        (RetryPolicy(multiplier=1), 10**30, timedelta(seconds=1)),
        (RetryPolicy(multiplier=1e300, backoff=timedelta(days=1)), 2, timedelta(minutes=5)),
        (RetryPolicy(backoff=timedelta()), 10**30, timedelta()),
        (RetryPolicy(backoff=timedelta()), 1, timedelta()),
        (RetryPolicy(max_backoff=timedelta()), 3, timedelta()),
    ],
)
def test_a_run_waits_longer_after_each_failure_up_to_the_longest_wait(
    policy: RetryPolicy, failed: int, delay: timedelta
) -> None:
    assert policy.delay(failed) == delay


@given(st.builds(RetryPolicy, multiplier=st.floats(1, 1e308)), st.integers(1, 100))
def test_a_wait_never_gets_shorter(policy: RetryPolicy, failed: int) -> None:
    assert timedelta() <= policy.delay(failed) <= policy.delay(failed + 1) <= policy.max_backoff


class Params(BaseModel):
    tone: str
    limit: timedelta = MINUTE


class StrictParams(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    tags: set[str]


def test_params_are_loaded_as_their_model() -> None:
    assert load_params(run("a", tone="warm", limit="PT1S"), Params) == Params(tone="warm", limit=timedelta(seconds=1))
    assert load_params(run("a", tags=["x"]), StrictParams) == StrictParams(tags={"x"})


def test_every_problem_of_params_is_told_with_its_place() -> None:
    with pytest.raises(RuleError) as caught:
        load_params(run("a", limit="soon", town="warm"), Params)

    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "then.params.tone",
        "then.params.limit",
        "then.params.town",
    ]


def test_a_scope_and_a_rule_have_their_defaults() -> None:
    plain = Rule(name="a:b", when=Condition(filter=On(types=("a:b",))), then=ActionRef(action="a"))

    assert (plain.scope, plain.retry, plain.timeout) == (Scope(), RetryPolicy(), None)
    assert sequence(on("a:b"), on("a:b"), within=MINUTE) != plain.when
