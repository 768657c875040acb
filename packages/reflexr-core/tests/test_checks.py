from typing import Any

import pytest
from hypothesis import given
from pydantic import TypeAdapter

from reflexr.core import DEFAULT_REGISTRY, Event, EventRegistry, F, Filter, On, field, predicate
from reflexr.core.checks import Vocabulary
from reflexr.core.type_sets import EVERY, TypeSet, admitted

from .shop import OrderPaid, OrderPlaced, ShopEvent
from .strategies import filters

FILTER: TypeAdapter[Filter] = TypeAdapter(Filter)
REGISTRY = EventRegistry(ShopEvent)
SHOP = Vocabulary(REGISTRY, predicates=("big", "small"))

PLACED = On(types=(OrderPlaced.event_type,))
PAID = On(types=(OrderPaid.event_type,))
EITHER = On(types=(OrderPlaced.event_type, OrderPaid.event_type))


class AlarmEvent(Event, abstract=True, event_namespace="alarms", registry=EventRegistry()):
    pass


class Raised(AlarmEvent):
    pass


class Cleared(AlarmEvent, name="raised.cleared"):
    pass


class Muted(AlarmEvent, name="order_placed"):
    pass


class Empty(AlarmEvent):
    pass


def found(condition: Filter, vocabulary: Vocabulary = SHOP) -> list[str]:
    return list(vocabulary.filter_problems(condition, "at"))


@pytest.mark.parametrize(
    "condition",
    [
        PLACED,
        EITHER & F.order.eq("o"),
        EITHER & F.amount.eq(3),
        EITHER & (F.amount.eq(3) | F.total.eq(3)),
        PLACED & F.labels.env.eq("x") & F.address.city.exists(),
        F.order.eq("o"),
        F.amount.eq(1) & F.rule.eq("ops:r"),
        ~PLACED,
        ~PLACED & F.amount.eq(3),
        PLACED & ~PAID,
        PLACED & ~~PLACED,
        PLACED & ~(PAID & F.amount.eq(3)),
        ~(PLACED & PAID),
        predicate("big") & ~predicate("small"),
    ],
)
def test_a_filter_that_can_work_has_no_problem(condition: Filter) -> None:
    assert found(condition) == []


@pytest.mark.parametrize(
    ("condition", "problems"),
    [
        (On(types=("shop:lost",)), ["at.types.0: 'shop:lost' is no event type here"]),
        (
            On(types=("shop:order_placed", "other:order_placed")),
            ["at.types.1: 'other:order_placed' is no event type here; did you mean 'shop:order_placed'?"],
        ),
        (PAID & F.amuont.eq(1), ["at.of.1.field: 'shop:order.paid' has no field 'amuont'; did you mean 'amount'?"]),
        (PAID & F.zzz.eq(1), ["at.of.1.field: 'shop:order.paid' has no field 'zzz'; the fields are 'amount', 'order'"]),
        (PAID & F.order.id.eq(1), ["at.of.1.field: 'shop:order.paid' has no field 'order.id'; did you mean 'order'?"]),
        (
            EITHER & F.zzz.eq(1),
            [
                (
                    "at.of.1.field: none of 'shop:order_placed', 'shop:order.paid' has no field 'zzz'; "
                    "the fields are 'address', 'amount', 'labels', 'order', 'total'"
                )
            ],
        ),
        (
            PAID & (~F.lost.eq(1) | F.amount.eq(1)) & F.gone.eq(1),
            [
                "at.of.1.of.0.filter.field: 'shop:order.paid' has no field 'lost'; the fields are 'amount', 'order'",
                "at.of.2.field: 'shop:order.paid' has no field 'gone'; the fields are 'amount', 'order'",
            ],
        ),
        (
            PAID & ~(PAID & F.total.eq(1)),
            ["at.of.1.filter.of.1.field: 'shop:order.paid' has no field 'total'; the fields are 'amount', 'order'"],
        ),
        (PLACED & PAID, ["at: no event type can pass: its parts exclude each other"]),
        (PLACED & ~EITHER, ["at: no event type can pass: its parts exclude each other"]),
        (PLACED & (PAID | F.total.eq(1)), ["at.of.1.of.0: no event type can pass: its parts exclude each other"]),
        (predicate("huge"), ["at.name: there is no predicate 'huge': the predicates are one of 'big', 'small'"]),
    ],
)
def test_every_problem_of_a_filter_is_told_with_its_place_and_its_remedy(
    condition: Filter, problems: list[str]
) -> None:
    assert found(condition) == problems


def test_without_predicates_none_can_be_named() -> None:
    assert found(predicate("big"), Vocabulary(REGISTRY, predicates=())) == [
        "at.name: there is no predicate 'big': the predicates are none here"
    ]


def test_predicates_that_are_not_known_yet_may_have_any_name() -> None:
    assert found(predicate("big"), Vocabulary(REGISTRY)) == []


def test_types_that_are_not_known_yet_may_be_any_and_have_any_field() -> None:
    open_vocabulary = Vocabulary(REGISTRY, complete=False)

    assert found(On(types=("later:event",)) & F.zzz.eq(1), open_vocabulary) == []
    assert found(On(types=("later:event", "shop:order.paid")) & F.zzz.eq(1), open_vocabulary) == []
    assert found(~PAID & F.zzz.eq(1), open_vocabulary) == []
    assert found(PAID & F.zzz.eq(1), open_vocabulary) != []


def test_a_field_of_many_types_is_told_with_three_of_them() -> None:
    vocabulary = Vocabulary(EventRegistry(AlarmEvent))
    context = TypeSet(frozenset(name for name in vocabulary.types if name.startswith("alarms:")))

    assert list(vocabulary.field_problems("level", "at", context)) == [
        (
            "at: none of 'alarms:raised', 'alarms:raised.cleared', 'alarms:order_placed', … has no field 'level'; "
            "the fields are none"
        )
    ]


def test_a_field_with_a_dot_in_its_name_is_no_remedy() -> None:
    assert found(PAID & field("a.b").eq(1)) == [
        "at.of.1.field: 'shop:order.paid' has no field 'a.b'; the fields are 'amount', 'order'"
    ]


@given(filters)
def test_a_filter_that_no_type_can_pass_has_a_problem(document: dict[str, Any]) -> None:
    condition = FILTER.validate_python(document)
    told = list(Vocabulary(DEFAULT_REGISTRY, complete=False).filter_problems(condition, "at", EVERY))

    if not admitted(condition):
        assert told == ["at: no event type can pass: its parts exclude each other"]
