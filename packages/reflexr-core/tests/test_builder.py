import functools
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from reflexr.core import (
    ActionRef,
    Condition,
    Event,
    F,
    ReflexrEvent,
    Rule,
    RuleError,
    Scope,
    UnknownEvent,
    by,
    field,
    on,
    predicate,
    run,
    sequence,
)

from .json_values import NOT_JSON, nested
from .shop import OrderPaid, OrderPlaced, ShopEvent

MINUTE = timedelta(minutes=1)
PLACED: dict[str, Any] = {"kind": "on", "types": ["shop:order_placed"]}
PAID: dict[str, Any] = {"kind": "on", "types": ["shop:order.paid"]}


def where(name: str, op: str, value: Any) -> dict[str, Any]:
    return {"kind": "where", "field": name, "op": op, "value": value}


@pytest.mark.parametrize(
    ("condition", "document"),
    [
        (on(OrderPlaced), {"filter": PLACED, "pattern": {"kind": "each"}}),
        (
            on(OrderPlaced, "shop:order.paid"),
            {"filter": {"kind": "on", "types": ["shop:order_placed", "shop:order.paid"]}, "pattern": {"kind": "each"}},
        ),
        (
            on(OrderPlaced).where(F.total > 10).where(order="o1"),
            {
                "filter": {"kind": "all", "of": [PLACED, where("total", "gt", 10), where("order", "eq", "o1")]},
                "pattern": {"kind": "each"},
            },
        ),
        (
            on(OrderPlaced).where(~F.labels.env.eq("dev") | predicate("big")).count(at_least=3, within=MINUTE),
            {
                "filter": {
                    "kind": "all",
                    "of": [
                        PLACED,
                        {
                            "kind": "any",
                            "of": [
                                {"kind": "not", "filter": where("labels.env", "eq", "dev")},
                                {"kind": "predicate", "name": "big"},
                            ],
                        },
                    ],
                },
                "pattern": {"kind": "count", "at_least": 3, "within": "PT1M"},
            },
        ),
        (
            on(OrderPlaced).distinct(F.order, "total", within=MINUTE).absent(within=2 * MINUTE).at_most(1, per=MINUTE),
            {
                "filter": PLACED,
                "dedupe": {"key": ["order", "total"], "within": "PT1M"},
                "pattern": {"kind": "absence", "within": "PT2M"},
                "throttle": {"at_most": 1, "per": "PT1M"},
            },
        ),
        (
            sequence(on(OrderPlaced), on(OrderPaid).where(F.amount >= 1), within=MINUTE),
            {
                "filter": {"kind": "any", "of": [PLACED, {"kind": "all", "of": [PAID, where("amount", "ge", 1)]}]},
                "pattern": {
                    "kind": "sequence",
                    "steps": [PLACED, {"kind": "all", "of": [PAID, where("amount", "ge", 1)]}],
                    "within": "PT1M",
                },
            },
        ),
        (
            sequence(on(OrderPlaced), on(OrderPlaced), within=MINUTE),
            {"filter": PLACED, "pattern": {"kind": "sequence", "steps": [PLACED, PLACED], "within": "PT1M"}},
        ),
    ],
)
def test_a_condition_written_in_python_is_the_json_that_travels(condition: Condition, document: dict[str, Any]) -> None:
    assert json.loads(condition.model_dump_json()) == document
    assert Condition.model_validate(document) == condition


def test_a_rule_written_in_python_is_the_json_that_travels() -> None:
    rule = Rule(name="shop:paid", when=on(OrderPaid), scope=by(F.order, "type"), then=run("thank", tone="warm"))

    assert json.loads(rule.model_dump_json()) == {
        "name": "shop:paid",
        "description": None,
        "when": {"filter": PAID, "pattern": {"kind": "each"}},
        "scope": {"fields": ["order", "type"]},
        "then": {"action": "thank", "params": {"tone": "warm"}},
        "retry": {"max_attempts": 5, "backoff": "PT1S", "multiplier": 2.0, "max_backoff": "PT5M"},
        "ordering": "scope",
        "on_dead_letter": "continue",
        "on_pause": "continue",
        "start": "now",
        "timeout": None,
        "enabled": True,
    }


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ((), "types: A list of at least 1 is wanted, not of 0"),
        (("order.paid",), r"^types\.0: An event type is 'namespace:local'; did you mean 'shop:order\.paid'\?$"),
        (("nowhere",), r"^types\.0: An event type is 'namespace:local' in lower-case .* such as 'ops:service\.error'$"),
        (("\ud800:a",), r"types\.0: An event type is"),
        ((OrderPlaced, "a:b\n"), r"types\.1: An event type is"),
        ((ShopEvent,), "ShopEvent is an abstract base and no event type: name its subclasses"),
        ((ReflexrEvent,), "ReflexrEvent is an abstract base and no event type"),
        ((Event,), "Event is an abstract base and no event type"),
        ((UnknownEvent,), "UnknownEvent is an abstract base and no event type"),
        ((3,), "3 is no event type: name a subclass of Event, or its qualified type"),
        ((None,), "None is no event type"),
        ((int,), "<class 'int'> is no event type"),
        ((OrderPaid(order="o"),), "is no event type: name a subclass of Event"),
        ((["shop:order_placed"],), "is no event type"),
    ],
)
def test_what_is_no_event_type_is_refused(events: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        on(*events)


@pytest.mark.parametrize(
    ("steps", "within", "problem"),
    [
        ((), MINUTE, "steps: A list of at least 2 is wanted, not of 0"),
        ((on(OrderPaid),), MINUTE, "steps: A list of at least 2 is wanted, not of 1"),
        ((on(OrderPaid), OrderPaid), MINUTE, r"step 2 of the sequence is no condition but <class .*>: write on\(…\)"),
        ((F.a.eq(1), on(OrderPaid)), MINUTE, "step 1 of the sequence is no condition"),
        (
            (on(OrderPaid).count(at_least=1, within=MINUTE), on(OrderPaid)),
            MINUTE,
            r"step 1 of the sequence has more than a filter: add distinct\(\) and at_most\(\) to the sequence",
        ),
        (
            (on(OrderPaid), on(OrderPaid).at_most(1, per=MINUTE)),
            MINUTE,
            "step 2 of the sequence has more than a filter",
        ),
        ((on(OrderPaid), on(OrderPaid)), timedelta(), "within: A window is longer than nothing"),
        ((on(OrderPaid), on(OrderPaid)), None, "within: A duration is a timedelta"),
    ],
)
def test_what_is_no_sequence_is_refused(steps: tuple[Any, ...], within: Any, problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        sequence(*steps, within=within)


def test_a_scope_is_a_list_of_fields() -> None:
    assert by() == Scope()
    assert by(F.labels.env, "order", field("a")) == Scope(fields=("labels.env", "order", "a"))
    with pytest.raises(RuleError, match=r"fields\.1: A field is its name"):
        by("order", "")


def notify() -> None:
    """An action."""


class Notifier:
    name = "notifier"


@pytest.mark.parametrize(("action", "name"), [("a b", "a b"), (notify, "notify"), (Notifier(), "notifier")])
def test_an_action_is_named_by_itself(action: Any, name: str) -> None:
    assert run(action, a=1) == ActionRef(action=name, params={"a": 1})


@pytest.mark.parametrize("action", [lambda: None, functools.partial(notify), object(), None, 3, [notify]])
def test_an_action_without_a_name_is_refused(action: Any) -> None:
    with pytest.raises(RuleError, match="has no name to refer to it by: pass a function, or the name it is registered"):
        run(action)


@pytest.mark.parametrize("name", ["", "a" * 256, "a\0", "\ud800"])
def test_an_action_has_a_name_that_can_be_stored(name: str) -> None:
    with pytest.raises(RuleError, match="action: An id is 1 to 255 characters, with no NUL and no lone surrogate"):
        run(name)


@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
def test_a_param_that_json_cannot_hold_is_refused_with_its_place(value: Any, problem: str) -> None:
    with pytest.raises(RuleError, match=rf"params\.x.*{problem}|params: {problem}"):
        run("a", x=value)


@pytest.mark.parametrize(
    "value", [object(), b"a", {1}, (1,), {1: 1}, pytest.param(nested(10_000), id="deep"), notify, timedelta()]
)
def test_a_param_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(RuleError, match=r"params\.x"):
        run("a", x=value)


type Build = Callable[[Any], Condition]

COUNTED: list[tuple[Build, str]] = [
    (lambda number: on(OrderPaid).count(at_least=number, within=MINUTE), "at_least"),
    (lambda number: on(OrderPaid).at_most(number, per=MINUTE), "at_most"),
]
WINDOWED: list[tuple[Build, str]] = [
    (lambda window: on(OrderPaid).count(at_least=1, within=window), "within"),
    (lambda window: on(OrderPaid).absent(within=window), "within"),
    (lambda window: on(OrderPaid).distinct("order", within=window), "within"),
    (lambda window: on(OrderPaid).at_most(1, per=window), "per"),
]


@pytest.mark.parametrize("number", [0, -1, True, False, "3", 2.5, None, float("nan"), float("inf"), [1], 2**63])
@pytest.mark.parametrize(("build", "name"), COUNTED)
def test_what_is_counted_is_a_whole_number_from_1(build: Build, name: str, number: Any) -> None:
    with pytest.raises(
        RuleError, match=f"^{name}: (Input should be (greater|less) than or equal to|A whole number is)"
    ):
        build(number)


@pytest.mark.parametrize("window", [timedelta(), -MINUTE, timedelta.max, None, 60, "PT0S", "1 minute", "\ud800"])
@pytest.mark.parametrize(("build", "name"), WINDOWED, ids=["count", "absent", "distinct", "at_most"])
def test_a_window_is_longer_than_nothing(build: Build, name: str, window: Any) -> None:
    with pytest.raises(RuleError, match=f"^{name}: (A window is|A duration is|.* is not an ISO 8601 duration)"):
        build(window)
