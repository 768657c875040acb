from datetime import timedelta
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError

from reflexr.core import Condition, Count, Dedupe, Each, F, RuleError, Sequence, Throttle, on, sequence
from reflexr.core.type_sets import TypeSet

from .shop import COPIES, OrderPaid, OrderPlaced
from .strategies import rules

MINUTE = timedelta(minutes=1)
ON: dict[str, Any] = {"kind": "on", "types": ["shop:order.paid"]}


@given(rules.map(itemgetter("when")))
def test_a_condition_comes_back_from_json_as_it_was(document: dict[str, Any]) -> None:
    condition = Condition.model_validate(document)
    read = Condition.model_validate_json(condition.model_dump_json())

    assert read == condition
    assert read.model_dump_json() == condition.model_dump_json()


@given(rules.map(itemgetter("when")))
def test_the_stages_that_are_not_there_are_not_written(document: dict[str, Any]) -> None:
    condition = Condition.model_validate(document)

    assert {"filter", "pattern"} <= condition.model_dump().keys()
    assert None not in condition.model_dump().values()


@pytest.mark.parametrize("of", COPIES)
def test_a_copy_of_a_condition_is_equal(of: Any) -> None:
    condition = on(OrderPaid).where(F.amount > 1).count(at_least=2, within=MINUTE)

    assert of(condition) == condition


def test_each_stage_is_added_to_a_new_condition() -> None:
    first = on(OrderPaid)
    second = first.where(F.amount > 1)
    third = second.distinct("order", within=MINUTE)
    fourth = third.count(at_least=2, within=MINUTE)
    fifth = fourth.at_most(1, per=MINUTE)

    assert (first.dedupe, first.pattern, first.throttle) == (None, Each(), None)
    assert third.filter == second.filter
    assert fifth.dedupe == Dedupe(key=("order",), within=MINUTE)
    assert fifth.pattern == Count(at_least=2, within=MINUTE)
    assert fifth.throttle == Throttle(at_most=1, per=MINUTE)


def test_a_condition_admits_the_types_that_its_filter_can_admit() -> None:
    assert on(OrderPaid, OrderPlaced).where(~on(OrderPaid).filter).admitted == TypeSet(frozenset({"shop:order_placed"}))


COUNTED = on(OrderPaid).count(at_least=1, within=MINUTE)
DISTINCT = on(OrderPaid).distinct("order", within=MINUTE)
THROTTLED = on(OrderPaid).at_most(1, per=MINUTE)
STEPS = sequence(on(OrderPaid), on(OrderPlaced), within=MINUTE)


@pytest.mark.parametrize(
    ("method", "there", "add"),
    [
        ("where", "count", lambda: COUNTED.where(F.amount > 1)),
        ("where", "dedupe", lambda: DISTINCT.where(F.amount > 1)),
        ("where", "throttle", lambda: THROTTLED.where(F.amount > 1)),
        ("where", "sequence", lambda: STEPS.where(F.order.eq("a"))),
        ("distinct", "dedupe", lambda: DISTINCT.distinct("order", within=MINUTE)),
        ("distinct", "count", lambda: COUNTED.distinct("order", within=MINUTE)),
        ("distinct", "throttle", lambda: THROTTLED.distinct("order", within=MINUTE)),
        ("count", "count", lambda: COUNTED.count(at_least=1, within=MINUTE)),
        ("count", "sequence", lambda: STEPS.count(at_least=1, within=MINUTE)),
        ("count", "throttle", lambda: THROTTLED.count(at_least=1, within=MINUTE)),
        ("absent", "count", lambda: COUNTED.absent(within=MINUTE)),
        ("absent", "throttle", lambda: THROTTLED.absent(within=MINUTE)),
        ("at_most", "throttle", lambda: THROTTLED.at_most(1, per=MINUTE)),
    ],
)
def test_a_stage_that_comes_too_late_is_refused_with_the_order(method: str, there: str, add: Any) -> None:
    with pytest.raises(RuleError, match=rf"^{method}\(\) comes before {there}, which is there: write the stages in"):
        add()


@pytest.mark.parametrize(
    "filters", [(True,), ("amount",), (F.amount,), (on(OrderPaid),), (OrderPaid,), (F.a.eq(1), None)]
)
def test_where_takes_filters_alone(filters: tuple[Any, ...]) -> None:
    with pytest.raises(RuleError, match=r"where\(\) takes filters, such as F\.severity >= 7, not"):
        on(OrderPaid).where(*filters)


def test_where_takes_at_least_one_filter() -> None:
    with pytest.raises(RuleError, match=r"where\(\) needs at least one filter, such as F\.severity >= 7"):
        on(OrderPaid).where()


@pytest.mark.parametrize("value", [object(), float("nan"), "\ud800", {1: 2}])
def test_where_takes_values_that_are_json(value: Any) -> None:
    with pytest.raises(RuleError, match="value"):
        on(OrderPaid).where(amount=value)


@pytest.mark.parametrize(
    ("add", "place"),
    [
        (lambda: on(OrderPaid).where(F.amuont > 1), r"when\.filter\.of\.1\.field"),
        (lambda: on(OrderPaid).where(amuont=1), r"when\.filter\.of\.1\.field"),
        (lambda: on(OrderPaid).where(~(F.amount.eq(1) | F.amuont.eq(1))), r"when\.filter\.of\.1\.filter\.of\.1\.field"),
        (lambda: on(OrderPaid).where(F.amount.eq(1) | F.amuont.eq(1)), r"when\.filter\.of\.1\.of\.1\.field"),
        (lambda: on(OrderPaid).distinct("order", F.amuont, within=MINUTE), r"when\.dedupe\.key\.1"),
        (
            lambda: sequence(
                on(OrderPaid), Condition(filter=on(OrderPaid).filter & F.amuont.eq(1)), within=MINUTE
            ).at_most(1, per=MINUTE),
            r"when\.filter\.of\.1\.of\.1\.field",
        ),
    ],
    ids=["ordering", "keyword", "inside not", "inside any", "distinct", "sequence"],
)
def test_a_field_that_no_type_has_is_refused_when_it_is_written(add: Any, place: str) -> None:
    with pytest.raises(RuleError, match=f"{place}: 'shop:order.paid' has no field 'amuont'; did you mean 'amount'"):
        add()


def test_a_step_that_the_filter_never_admits_is_refused() -> None:
    condition = Condition(
        filter=on(OrderPaid).filter,
        pattern=Sequence(steps=(on(OrderPaid).filter, on(OrderPlaced).filter), within=MINUTE),
    )

    with pytest.raises(
        RuleError, match=r"^when\.pattern\.steps\.1: no event type can pass: its parts exclude each other"
    ):
        condition.at_most(1, per=MINUTE)


def test_a_step_with_a_field_that_no_type_has_is_refused() -> None:
    steps = (on(OrderPaid).filter, on(OrderPaid).filter & F.amuont.eq(1))
    condition = Condition(filter=on(OrderPaid).filter, pattern=Sequence(steps=steps, within=MINUTE))

    with pytest.raises(
        RuleError, match=r"^when\.pattern\.steps\.1\.of\.1\.field: 'shop:order\.paid' has no field 'amuont'"
    ):
        condition.at_most(1, per=MINUTE)


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ({"filter": None}, "filter"),
        ({"dedupe": {"key": [], "within": "PT1S"}}, r"dedupe\.key\n  A list of at least 1 is wanted, not of 0"),
        (
            {"dedupe": {"key": {"order"}, "within": "PT1S"}},
            r"dedupe\.key\n  A list is wanted, whose order stays the same",
        ),
        ({"dedupe": {"key": ["a."], "within": "PT1S"}}, r"dedupe\.key\.0\n  A field is its name"),
        ({"pattern": {"kind": "all"}}, "'each', 'count', 'sequence', 'absence'"),
        ({"pattern": {"kind": "count", "at_least": 0, "within": "PT1S"}}, r"at_least\n  Input should be greater than"),
        ({"pattern": {"kind": "count", "at_least": 1, "within": "PT0S"}}, r"within\n  A window is longer than nothing"),
        (
            {"pattern": {"kind": "sequence", "steps": [ON], "within": "PT1S"}},
            r"steps\n  A list of at least 2 is wanted",
        ),
        ({"pattern": {"kind": "absence"}}, r"within\n  Field required"),
        ({"throttle": {"at_most": 0, "per": "PT1S"}}, r"at_most\n  Input should be greater than"),
        ({"throttle": {"at_most": 1, "per": 3}}, r"per\n  A duration is a timedelta"),
        ({"window": "PT1S"}, r"window\n  Extra inputs are not permitted"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(stages: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Condition.model_validate({"filter": ON, **stages})


def test_an_event_that_is_defined_later_may_have_any_field() -> None:
    condition = on("shop:defined_later").where(F.anything > 1)

    assert condition.admitted == TypeSet(frozenset({"shop:defined_later"}))


def test_a_condition_that_is_negated_says_what_to_write() -> None:
    with pytest.raises(TypeError, match="negate a filter"):
        _ = ~on(OrderPaid)
