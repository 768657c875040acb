from decimal import Decimal
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import JsonValue
from pydantic_core import from_json

from reflexr.core.canonical import canonical, canonical_list, check_json, derived_id, digest, equal
from reflexr.core.errors import NotJsonError

from .json_values import NOT_JSON, alike, json_values, nested


@given(json_values)
def test_the_canonical_text_is_ascii_json_of_the_same_value(value: JsonValue) -> None:
    text = canonical(value)

    assert text.isascii()
    assert equal(from_json(text), value)


@given(json_values, json_values)
def test_two_values_have_one_text_exactly_when_they_are_equal(left: JsonValue, right: JsonValue) -> None:
    assert (canonical(left) == canonical(right)) is equal(left, right)


@given(json_values)
def test_another_form_of_a_value_is_equal_and_has_the_same_text_and_digest(value: JsonValue) -> None:
    other = alike(value)

    assert equal(value, other)
    assert equal(other, value)
    assert canonical(other) == canonical(value)
    assert digest(other) == digest(value)


@given(json_values, json_values, json_values)
def test_equality_is_an_equivalence(first: JsonValue, second: JsonValue, third: JsonValue) -> None:
    assert equal(first, first)
    assert equal(first, second) is equal(second, first)
    if equal(first, second) and equal(second, third):
        assert equal(first, third)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.0, "0"),
        (1e16, "10000000000000000"),
        (1e22, "10000000000000000000000"),
        (2**53 + 1, "9007199254740993"),
        (0.1, "0.1"),
        (1e-7, "1e-07"),
        (5e-324, "5e-324"),
        (True, "true"),
        (None, "null"),
        ("\u00e9\U0001f600", '"\\u00e9\\ud83d\\ude00"'),
        ({"b": [], "a": {}}, '{"a":{},"b":[]}'),
        ({"\U0001f600": 1, "\uffff": 2}, '{"\\uffff":2,"\\ud83d\\ude00":1}'),
    ],
)
def test_the_text_of_a_value_is_the_same_on_every_machine(value: JsonValue, text: str) -> None:
    assert canonical(value) == text


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (True, 1),
        (False, 0),
        (None, False),
        ("1", 1),
        ("\u00e9", "e\u0301"),
        (2**53 + 1, float(2**53)),
        ([], {}),
        ([1], 1),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"b": 1}),
        ({}, None),
    ],
)
def test_values_that_only_look_alike_differ(left: JsonValue, right: JsonValue) -> None:
    assert not equal(left, right)
    assert not equal(right, left)
    assert canonical(left) != canonical(right)


def endless() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        [float("inf")],
        object(),
        [b"x"],
        {"a": {1}},
        {1: 1},
        {1: 1, "a": 2},
        pytest.param(10**5000, id="huge"),
        pytest.param(endless(), id="endless"),
    ],
)
def test_what_is_not_json_has_no_canonical_text(value: Any) -> None:
    with pytest.raises(NotJsonError):
        canonical(value)


@given(st.lists(json_values, max_size=3), st.lists(json_values, max_size=3))
def test_ids_derived_from_different_parts_differ(left: list[JsonValue], right: list[JsonValue]) -> None:
    assume(not equal(left, right))

    assert derived_id("evt", *left) != derived_id("evt", *right)


def test_a_derived_id_is_its_prefix_and_16_hex_digits_and_never_changes() -> None:
    assert derived_id("evt", "fired", "fir_0") == "evt_c52c2afa8e40c9ee"
    assert derived_id("evt", "a|b", "c") != derived_id("evt", "a", "b|c")


def test_a_list_and_a_tuple_of_values_have_the_text_of_the_list() -> None:
    assert canonical_list(["a", 1.0]) == canonical(("a", 1)) == '["a",1]'


@given(json_values)
def test_every_json_value_passes_the_check(value: JsonValue) -> None:
    check_json(value, "it")


@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
def test_the_check_names_the_place_of_what_json_cannot_hold(value: Any, problem: str) -> None:
    with pytest.raises(NotJsonError, match=f"(it.*|^){problem}"):
        check_json(value, "it")


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, float("nan")]}, r"it\.a\.1 is nan"),
        ({float("nan"): 1}, "a key of it is nan"),
        ({("a", float("inf")): 1}, r"a key of it\.1 is inf"),
        pytest.param({10**5000: 1}, "a key of it is an integer", id="huge"),
        ([Decimal("NaN")], r"it\.0 is Decimal\('NaN'\)"),
        ([Decimal("sNaN")], r"it\.0 is Decimal\('sNaN'\)"),
        ({"a": (Decimal("-Infinity"),)}, r"it\.a\.0 is Decimal\('-Infinity'\)"),
        ({float("inf")}, r"it\.0 is inf"),
        (frozenset({float("inf")}), r"it\.0 is inf"),
        (endless(), "it.* nests deeper than 100 levels"),
    ],
)
def test_the_check_looks_into_keys_and_into_what_python_has_besides_json(value: Any, place: str) -> None:
    with pytest.raises(NotJsonError, match=f"^{place}"):
        check_json(value, "it")


@pytest.mark.parametrize("value", ["é", {"é": 1, 2: Decimal("1e400")}, [True, None], nested(100)])
def test_the_check_lets_pass_what_json_can_hold(value: Any) -> None:
    check_json(value, "it")


def test_an_integer_of_4300_digits_passes_the_check() -> None:
    check_json([10**4300 - 1, 1 - 10**4300], "it")


def test_what_is_around_a_value_counts_for_its_depth() -> None:
    check_json(nested(60), "it", depth=40)
    with pytest.raises(NotJsonError, match="deeper than 100 levels"):
        check_json(cast("Any", nested(61)), "it", depth=40)
