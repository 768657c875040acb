from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import JsonValue

from reflexr.core import Envelope, F, Filter, Where, field, on, predicate
from reflexr.core.canonical import canonical_list, equal
from reflexr.core.compiled import (
    MAX_KEY,
    MissingScopeField,
    compile_dedupe,
    compile_filter,
    compile_scope,
    compile_where,
)
from reflexr.core.filters import AllOf, AnyOf, On, Operator
from reflexr.core.type_sets import TypeSet

from .json_values import alike, json_values, scalars, texts
from .shop import envelope

A = On(types=("a:a",))
B = On(types=("a:b",))


def holds(condition: Where, payload: dict[str, Any]) -> bool:
    return compile_where(condition)(payload)


def compared(found: Any, op: Operator, value: Any) -> bool:
    return holds(Where(field="x", op=op, value=value), {"x": found})


@given(json_values, json_values)
def test_eq_and_ne_are_the_equality_of_json(found: JsonValue, value: JsonValue) -> None:
    assert compared(found, "eq", value) is equal(found, value)
    assert compared(found, "ne", value) is not equal(found, value)


@given(json_values)
def test_another_form_of_a_value_is_equal_to_it(value: JsonValue) -> None:
    assert compared(alike(value), "eq", value)
    assert compared(value, "eq", alike(value))
    assert compared(alike(value), "in", [value])


@given(json_values, st.lists(json_values, min_size=1, max_size=4) | st.lists(texts, min_size=1, max_size=4))
def test_in_is_equality_with_one_of_the_values(found: JsonValue, values: list[JsonValue]) -> None:
    assert compared(found, "in", values) is any(equal(found, value) for value in values)
    assert compared(values[-1], "in", values)


@given(st.lists(json_values, max_size=4), json_values)
def test_contains_is_equality_with_an_element(found: list[JsonValue], value: JsonValue) -> None:
    assert compared(found, "contains", value) is any(equal(element, value) for element in found)


@given(st.text(alphabet="ab", max_size=5), st.text(alphabet="ab", max_size=2))
def test_contains_is_a_substring_of_a_string(found: str, value: str) -> None:
    assert compared(found, "contains", value) is (value in found)


@given(scalars, scalars)
def test_order_is_between_numbers_or_between_strings(found: Any, value: Any) -> None:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (found, value))
    assume(isinstance(value, str) or numbers)
    ordered = numbers or (isinstance(found, str) and isinstance(value, str))

    assert compared(found, "lt", value) is (ordered and found < value)
    assert compared(found, "le", value) is (ordered and found <= value)
    assert compared(found, "gt", value) is (ordered and found > value)
    assert compared(found, "ge", value) is (ordered and found >= value)


@pytest.mark.parametrize(
    ("found", "op", "value", "expected"),
    [
        (2**53 + 1, "eq", float(2**53), False),
        (2**53 + 1, "gt", float(2**53), True),
        (10**400, "gt", 1.5, True),
        (-(10**400), "lt", 1e308, True),
        (-0.0, "eq", 0, True),
        (-0.0, "lt", 0, False),
        (10**22, "eq", 1e22, True),
        (True, "eq", 1, False),
        (1, "eq", True, False),
        (True, "ge", 0, False),
        (None, "eq", None, True),
        (None, "eq", False, False),
        (0, "eq", None, False),
        (None, "lt", 1, False),
        ("10", "lt", "9", True),
        ("10", "lt", 9, False),
        ("\u00e9", "eq", "e\u0301", False),
        ("\uffff", "lt", "\U0001f600", True),
        ([1, 2], "eq", [2, 1], False),
        ({"a": 1, "b": 2}, "eq", {"b": 2.0, "a": 1}, True),
        ({"a": 1}, "contains", "a", False),
        (["ab"], "contains", "a", False),
        ("1", "contains", 1, False),
        ([True], "contains", 1, False),
        ("abc", "matches", "b", True),
        ("abc", "matches", "^b", False),
        ("a\nb", "matches", "^b", False),
        (3, "matches", "3", False),
        (None, "matches", "", False),
        (["a"], "matches", "a", False),
    ],
)
def test_values_that_only_look_alike_are_told_apart(found: Any, op: Operator, value: Any, expected: bool) -> None:
    assert compared(found, op, value) is expected


@pytest.mark.parametrize("path", ["y", "x.y", "x.y.z", "l.0"])
@pytest.mark.parametrize(
    ("op", "value"),
    [
        *(
            ("eq", None),
            ("ne", None),
            ("ne", 1),
            ("lt", 1),
            ("ge", ""),
            ("in", [None]),
            ("contains", ""),
            ("matches", ""),
        ),
        ("exists", True),
    ],
)
def test_a_missing_field_matches_nothing(path: str, op: Operator, value: Any) -> None:
    assert not holds(Where(field=path, op=op, value=value), {"x": 1, "l": ["a"], "n": None})


def test_a_field_that_is_null_exists() -> None:
    assert holds(F.x.exists(), {"x": None})
    assert not holds(F.x.exists(False), {"x": None})
    assert holds(F.x.exists(False), {})
    assert holds(F.x.y.exists(False), {"x": None})
    assert holds(F.x.y.exists(), {"x": {"y": None}})
    assert holds(F.x.ne(1), {"x": None})


def test_a_pattern_takes_linear_time() -> None:
    assert not holds(F.x.matches("(a+)+$"), {"x": "a" * 40_000 + "b"})


@given(st.lists(st.booleans(), min_size=1, max_size=4), st.booleans())
def test_all_any_and_not_combine_what_their_parts_decide(parts: list[bool], negated: bool) -> None:
    payload = {"type": "a:a", "yes": True}
    filters: list[Filter] = [F.yes.eq(part) for part in parts]
    both, either = compile_filter(AllOf(of=tuple(filters))), compile_filter(AnyOf(of=tuple(filters)))
    neither = compile_filter(~AnyOf(of=tuple(filters)))
    assert both is not None
    assert either is not None
    assert neither is not None

    assert both(envelope(payload), {}) is all(parts)
    assert either(envelope(payload), {}) is any(parts)
    assert neither(envelope(payload), {}) is not any(parts)


@pytest.mark.parametrize(
    ("condition", "given_types"),
    [
        (A, {"a:a"}),
        (A | B, {"a:a"}),
        (A & A, {"a:a"}),
        (A | F.x.eq(1), {"a:a"}),
        (F.x.eq(1) | A, {"a:a"}),
        (A | predicate("p"), {"a:a"}),
        (A, set[str]()),
    ],
)
def test_a_filter_that_admits_every_envelope_of_the_types_given_needs_no_test(
    condition: Filter, given_types: set[str]
) -> None:
    assert compile_filter(condition, TypeSet(frozenset(given_types))) is None


def test_a_predicate_ahead_of_a_certain_part_is_asked() -> None:
    asked: list[str] = []

    def ask(name: str) -> bool:
        asked.append(name)
        return False

    predicates: dict[str, Callable[[Envelope], bool]] = {"p": lambda _: ask("p"), "q": lambda _: ask("q")}
    conditions: list[Filter] = [
        predicate("p") | A,
        ~predicate("p") | A,
        (predicate("p") & A) | A,
        (F.x.eq(1) | predicate("p")) | A | predicate("q"),
    ]
    for condition in conditions:
        test = compile_filter(condition, TypeSet(frozenset({"a:a"})))
        assert test is not None
        assert test(envelope({"type": "a:a"}), predicates)

    assert asked == ["p"] * 4


@pytest.mark.parametrize("answer", [1, 0, None, "yes", [], {}])
def test_a_predicate_returns_true_or_false(answer: Any) -> None:
    test = compile_filter(predicate("p"))
    assert test is not None

    with pytest.raises(TypeError, match=r"the predicate 'p' returned .*: return True or False"):
        test(envelope({"type": "a:a"}), {"p": lambda _: answer})


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), json_values), st.lists(st.sampled_from(["a", "b"]), max_size=3)
)
def test_a_scope_key_is_the_canonical_json_of_the_values(payload: dict[str, Any], fields: list[str]) -> None:
    key_of = compile_scope(tuple(fields))
    missing = [name for name in fields if name not in payload]

    if missing:
        with pytest.raises(
            MissingScopeField, match=f"the event has no field '{missing[0]}', which is in the rule's scope"
        ):
            key_of(payload)
    else:
        assert key_of(payload) == canonical_list([payload[name] for name in fields])


@given(json_values, json_values)
def test_two_values_are_one_scope_and_one_dedupe_key_exactly_when_they_are_equal(left: Any, right: Any) -> None:
    for key_of in (
        compile_scope(("x",)),
        compile_scope(("x", "type")),
        compile_dedupe(("x",)),
        compile_dedupe(("n.x",)),
    ):
        keys = [key_of({"x": value, "n": {"x": value}, "type": "a:a"}) for value in (left, right)]

        assert (keys[0] == keys[1]) is equal(left, right)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("1", '["1"]'),
        (1, "[1]"),
        (1.0, "[1]"),
        (1e16, "[10000000000000000]"),
        (1e22, "[10000000000000000000000]"),
        (None, "[null]"),
        ("", '[""]'),
        (True, "[true]"),
        ({"b": [None], "a": 1.5}, '[{"a":1.5,"b":[null]}]'),
        ("\u00e9\n", '["\\u00e9\\n"]'),
    ],
)
def test_a_scope_key_is_the_same_text_on_every_machine(value: Any, key: str) -> None:
    assert compile_scope(("x",))({"x": value}) == compile_scope(("n.x",))({"n": {"x": value}}) == key


def test_a_scope_of_no_field_is_the_whole_workspace() -> None:
    assert compile_scope(())({"type": "a:a"}) == "[]"


def test_scopes_that_look_alike_differ() -> None:
    key_of = compile_scope(("x", "y"))

    assert key_of({"x": "a|b", "y": "c"}) != key_of({"x": "a", "y": "b|c"})
    assert key_of({"x": 'a","b', "y": "c"}) != key_of({"x": "a", "y": 'b","c'})


def test_a_missing_field_of_a_dedupe_key_counts_as_null() -> None:
    key_of = compile_dedupe(("x", "y.z"))

    assert key_of({}) == key_of({"x": None, "y": 3}) == "[null,null]"


@given(st.integers(MAX_KEY - 8, MAX_KEY + 8), st.integers(MAX_KEY - 8, MAX_KEY + 8))
def test_a_long_dedupe_key_is_kept_as_its_hash(left: int, right: int) -> None:
    key_of = compile_dedupe(("x",))
    keys = [key_of({"x": "a" * length}) for length in (left, right)]

    assert max(map(len, keys)) <= MAX_KEY
    assert (keys[0] == keys[1]) is (left == right)


def test_a_field_named_type_is_the_events_type() -> None:
    assert holds(F.type.eq("a:a"), {"type": "a:a"})
    assert holds(field("type").matches("^a:"), {"type": "a:a"})
    assert on("a:a").where(F.type.eq("a:a")).admitted == TypeSet(frozenset({"a:a"}))
