from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from reflexr.core.compiled import compile_filter
from reflexr.core.filters import Filter
from reflexr.core.type_sets import EVERY, NONE, TypeSet, admitted

from .hosts import PREDICATES
from .shop import envelope
from .strategies import TYPES, filters, values

FILTER: TypeAdapter[Filter] = TypeAdapter(Filter)

types = st.sampled_from([*TYPES, "ops:never_named"])
type_sets = st.builds(TypeSet, st.frozensets(types), st.booleans())
payloads = st.fixed_dictionaries(
    {"type": types}, optional={"x": values, "service": values, "severity": values, "key": values}
)


@given(type_sets, type_sets, types)
def test_type_sets_are_sets_of_types(left: TypeSet, right: TypeSet, event_type: str) -> None:
    assert (event_type in left & right) is (event_type in left and event_type in right)
    assert (event_type in left | right) is (event_type in left or event_type in right)
    assert (event_type in ~left) is (event_type not in left)
    if left <= right and event_type in left:
        assert event_type in right


@given(type_sets, type_sets, type_sets)
def test_type_sets_are_a_boolean_algebra(first: TypeSet, second: TypeSet, third: TypeSet) -> None:
    assert first & second == second & first
    assert first | second == second | first
    assert first & (second & third) == (first & second) & third
    assert first & (second | third) == (first & second) | (first & third)
    assert first | (second & third) == (first | second) & (first | third)
    assert first & EVERY == first | NONE == ~~first == first
    assert first & ~first == NONE
    assert first | ~first == EVERY
    assert ~(first & second) == ~first | ~second
    assert (first <= second) is (first & second == first)


@given(type_sets)
def test_a_type_set_is_true_unless_it_is_empty(types: TypeSet) -> None:
    assert bool(types) is (types != NONE)


@given(type_sets, st.lists(types))
def test_the_types_among_others_keep_their_order(types: TypeSet, others: list[str]) -> None:
    assert types.among(others) == [event_type for event_type in others if event_type in types]


def admits(condition: Filter, given: TypeSet, payload: dict[str, Any]) -> bool | str:
    """Returns what the compiled filter decides, or the name of what it raises."""
    test = compile_filter(condition, given)
    try:
        return test is None or test(envelope(payload), PREDICATES)
    except Exception as error:
        return type(error).__name__


@given(filters.map(FILTER.validate_python), payloads)
def test_a_filter_admits_no_envelope_of_a_type_outside_those_it_can_admit(
    condition: Filter, payload: dict[str, Any]
) -> None:
    decided = admits(condition, EVERY, payload)

    if payload["type"] not in admitted(condition):
        assert decided is not True


@given(filters.map(FILTER.validate_python), type_sets, payloads)
def test_a_filter_compiled_for_some_types_decides_on_those_as_it_does_for_all(
    condition: Filter, given_types: TypeSet, payload: dict[str, Any]
) -> None:
    if payload["type"] in given_types:
        assert admits(condition, given_types, payload) == admits(condition, EVERY, payload)


@given(filters.map(FILTER.validate_python), payloads)
def test_a_filter_that_needs_no_test_admits_every_envelope(condition: Filter, payload: dict[str, Any]) -> None:
    if compile_filter(condition) is None:
        assert payload["type"] in admitted(condition)
