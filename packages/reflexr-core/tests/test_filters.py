import json
from typing import Any

import pytest
from hypothesis import given
from pydantic import TypeAdapter, ValidationError

from reflexr.core import AllOf, AnyOf, F, Filter, Not, On, Predicate, RuleError, Where, on, predicate
from reflexr.core.filters import MAX_FILTER_DEPTH, Operator

from .json_values import NOT_JSON, json_values, nested
from .strategies import filters

FILTER: TypeAdapter[Filter] = TypeAdapter(Filter)
PAID = On(types=("shop:order.paid",))


def where(op: Operator, value: Any) -> Where:
    return Where(field="a", op=op, value=value)


@given(filters)
def test_a_filter_comes_back_from_json_as_it_was(document: dict[str, Any]) -> None:
    condition = FILTER.validate_python(document)

    assert FILTER.validate_json(FILTER.dump_json(condition)).model_dump_json() == condition.model_dump_json()
    assert FILTER.validate_python(condition.model_dump()) == condition


@given(json_values)
def test_a_field_can_be_compared_with_any_json_value(value: Any) -> None:
    assert repr(where("eq", value).value) == repr(value)


def test_filters_combine_and_stay_flat() -> None:
    a, b, c = F.a.eq(1), F.b.eq(2), predicate("c")

    assert a & b & c == AllOf(of=(a, b, c))
    assert a & (b & c) == AllOf(of=(a, b, c))
    assert a | b | c == AnyOf(of=(a, b, c))
    assert (a & b) | c == AnyOf(of=(AllOf(of=(a, b)), c))
    assert ~a == Not(filter=a)
    assert ~~a == Not(filter=Not(filter=a))


@pytest.mark.parametrize("other", [3, None, F.b, "b", True, PAID.types])
def test_only_filters_combine(other: Any) -> None:
    for combine in (lambda: F.a.eq(1) & other, lambda: F.a.eq(1) | other):
        with pytest.raises(TypeError, match=r"is not a filter: write F\.level >= 5, or predicate\('name'\)"):
            combine()


def test_a_filter_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match=r"combine filters with &, \| and ~, and write 5 <= F\.level <= 9 as"):
        _ = 5 <= F.level <= 9
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(F.a.eq(1))


@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
@pytest.mark.parametrize("op", ["eq", "ne", "contains", "in"])
def test_a_value_that_json_cannot_hold_is_refused_with_its_place(op: Operator, value: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=f"value.*{problem}|{problem}"):
        where(op, [value] if op == "in" else value)


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize("value", [object(), b"a", {1, 2}, (1,), {1: 1}, LOOP, nested(10_000)])
def test_a_value_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="value"):
        where("eq", value)


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("value", [True, None, [1], {}])
def test_only_numbers_and_strings_have_an_order(op: Operator, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"op '{op}' compares with a number or a string, not"):
        where(op, value)


@pytest.mark.parametrize("value", [[], "abc", {"a": 1}, None, 3])
def test_membership_needs_a_list_that_is_not_empty(value: Any) -> None:
    with pytest.raises(ValidationError, match="op 'in' needs a list of at least one value, not"):
        where("in", value)


@pytest.mark.parametrize("value", [1, 0, None, "true", []])
def test_existence_is_true_or_false(value: Any) -> None:
    with pytest.raises(ValidationError, match="op 'exists' needs true or false, not"):
        where("exists", value)


@pytest.mark.parametrize("value", [1, None, ["a"], True])
def test_a_regular_expression_is_a_string(value: Any) -> None:
    with pytest.raises(ValidationError, match="op 'matches' needs a regular expression, a string, not"):
        where("matches", value)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)", "look-around, including look-ahead and look-behind, is not supported"),
        ("(?<!a)b", "look-around, including look-ahead and look-behind, is not supported"),
        (r"(a)\1", "backreferences are not supported"),
        ("(a", "unclosed group"),
        ("a)", "unopened group"),
        ("[a", "unclosed character class"),
        ("a{2,1}", "invalid repetition count range"),
        ("*", "repetition operator missing expression"),
        (r"\p{Nope}", "Unicode property not found"),
        (r"(\w{1000}){1000}", "Compiled regex exceeds size limit of 10485760 bytes"),
        ("(" * 1000 + ")" * 1000, "exceed the maximum number of nested parentheses"),
    ],
)
def test_a_pattern_that_the_engine_cannot_compile_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(RuleError, match="field 'a': op 'matches' needs a regular expression that runs") as caught:
        F.a.matches(pattern)

    (problem,) = caught.value.problems
    assert repr(pattern[:100]) in problem
    assert reason in problem
    assert len(problem) < 500


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"kind": "and", "of": []}, "'on', 'where', 'all', 'any', 'not', 'predicate'"),
        ({"types": ["a:b"]}, "Unable to extract tag using discriminator 'kind'"),
        ({"kind": ["on"]}, "does not match any of the expected tags"),
        ({"kind": "on"}, r"types\n  Field required"),
        ({"kind": "on", "types": []}, r"types\n  A list of at least 1 is wanted, not of 0"),
        ({"kind": "on", "types": "a:b"}, r"types\n  Input should be a valid tuple"),
        ({"kind": "on", "types": {"a:b"}}, r"types\n  A list is wanted, whose order stays the same, not a set"),
        ({"kind": "on", "types": frozenset({"a:b"})}, "not a set"),
        ({"kind": "on", "types": ["a:b", "b"]}, r"types\.1\n  An event type is 'namespace:local'"),
        ({"kind": "on", "types": ["a:b"], "more": 1}, r"more\n  Extra inputs are not permitted"),
        ({"kind": "all", "of": []}, r"of\n  A list of at least 1 is wanted, not of 0"),
        ({"kind": "any", "of": None}, r"of\n  Input should be a valid tuple"),
        ({"kind": "any", "of": [{"kind": "not"}]}, r"any\.of\.0\.not\.filter\n  Field required"),
        ({"kind": "not", "filter": None}, r"filter\n"),
        ({"kind": "predicate", "name": ""}, "An id is 1 to 255 characters"),
        ({"kind": "where", "field": "a", "op": "=", "value": 1}, "Input should be 'eq', 'ne', 'lt'"),
        ({"kind": "where", "field": "a", "op": "eq"}, r"value\n  Field required"),
        ({"kind": "where", "field": "", "op": "eq", "value": 1}, r"field\n  A field is its name"),
        (3, "valid dictionary"),
        (None, "valid dictionary"),
    ],
)
def test_what_is_no_filter_is_refused_with_its_place(document: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        FILTER.validate_python(document)


def test_one_problem_of_a_list_is_told_once() -> None:
    with pytest.raises(ValidationError) as caught:
        On(types=("nowhere",))

    assert caught.value.error_count() == 1


def deep(levels: int, kind: str) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": "on", "types": ["a:b"]}
    for _ in range(levels - 1):
        document = {"kind": "not", "filter": document} if kind == "not" else {"kind": kind, "of": [document]}
    return document


def deep_text(levels: int, kind: str) -> str:
    opening, closing = ('{"kind":"not","filter":', "}") if kind == "not" else (f'{{"kind":"{kind}","of":[', "]}")
    return opening * (levels - 1) + '{"kind":"on","types":["a:b"]}' + closing * (levels - 1)


@pytest.mark.parametrize("kind", ["not", "all", "any"])
def test_filters_nest_up_to_the_limit(kind: str) -> None:
    condition = FILTER.validate_python(deep(MAX_FILTER_DEPTH, kind))

    assert FILTER.validate_json(deep_text(MAX_FILTER_DEPTH, kind)) == condition
    assert hash(condition) == hash(FILTER.validate_python(json.loads(FILTER.dump_json(condition))))


@pytest.mark.parametrize("kind", ["not", "all", "any"])
@pytest.mark.parametrize("levels", [MAX_FILTER_DEPTH + 1, 100, 300, 10_000])
def test_filters_that_nest_deeper_are_refused(levels: int, kind: str) -> None:
    with pytest.raises(ValidationError, match=r"Filters nest at most 32 deep|Recursion error"):
        FILTER.validate_python(deep(levels, kind))
    with pytest.raises(ValidationError, match=r"Filters nest at most 32 deep|recursion limit exceeded"):
        FILTER.validate_json(deep_text(levels, kind))


def test_filters_that_are_nested_in_python_are_refused_at_the_limit() -> None:
    condition: Filter = PAID
    for _ in range(MAX_FILTER_DEPTH - 1):
        condition = ~condition

    with pytest.raises(ValidationError, match="Filters nest at most 32 deep: write a flatter one"):
        _ = ~condition
    with pytest.raises(RuleError, match="Filters nest at most 32 deep"):
        on("shop:order.paid").where(condition)


def test_a_filter_inside_itself_is_refused() -> None:
    document: dict[str, Any] = {"kind": "not"}
    document["filter"] = document

    with pytest.raises(ValidationError, match="cyclic reference"):
        FILTER.validate_python(document)


def test_filters_are_immutable() -> None:
    condition = F.a.eq(1)

    with pytest.raises(ValidationError, match="frozen"):
        condition.value = 2


def test_a_predicate_is_named() -> None:
    assert predicate("is-office-hours") == Predicate(name="is-office-hours")
    for name in ("", "a" * 256, "a\0", "\ud800"):
        with pytest.raises(RuleError, match="name: An id is 1 to 255 characters"):
            predicate(name)
