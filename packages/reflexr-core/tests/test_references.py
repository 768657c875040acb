from typing import Any

import pytest

from reflexr.core import F, RuleError, Where, by, field
from reflexr.core.references import path_of

from .shop import pickled


@pytest.mark.parametrize(
    ("condition", "op", "value"),
    [
        (F.a < 1, "lt", 1),
        (F.a <= 1.5, "le", 1.5),
        (F.a > "x", "gt", "x"),
        (F.a >= 1, "ge", 1),
        (F.a > 1, "gt", 1),
        (F.a.eq(None), "eq", None),
        (F.a.ne([1]), "ne", [1]),
        (F.a.in_([1, "b"]), "in", [1, "b"]),
        (F.a.in_((1, "b")), "in", [1, "b"]),
        (F.a.in_({"c", "b", "a"}), "in", ["a", "b", "c"]),
        (F.a.in_(frozenset({2, 1})), "in", [1, 2]),
        (F.a.contains("x"), "contains", "x"),
        (F.a.matches("^x"), "matches", "^x"),
        (F.a.exists(), "exists", True),
        (F.a.exists(False), "exists", False),
    ],
)
def test_a_comparison_with_a_field_is_a_filter(condition: Where, op: Any, value: Any) -> None:
    assert condition == Where(field="a", op=op, value=value)


def test_a_reference_is_written_with_attributes_or_as_a_path() -> None:
    assert path_of(F.labels.env) == path_of(field("labels.env")) == path_of(field("labels").env) == "labels.env"
    assert repr(F.labels.env) == "field('labels.env')"
    assert path_of("labels.matches") == "labels.matches"


def test_a_reference_that_is_compared_with_not_equals_says_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"write F\.a\.ne\(…\): != has to return a bool"):
        _ = F.a != 1


def test_a_reference_that_is_compared_with_equals_says_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"write F\.a\.eq\(…\) for ==, which has to return a bool"):
        _ = F.a == 1


def test_a_reference_can_be_a_key() -> None:
    assert hash(F.a.b) == hash(field("a.b"))


@pytest.mark.parametrize("of", [F, F.a])
def test_a_reference_has_no_attributes_that_python_looks_for(of: Any) -> None:
    assert not hasattr(of, "__wrapped__")
    assert not hasattr(of, "__len__")


def test_a_reference_survives_the_way_from_another_process() -> None:
    assert repr(pickled(F.a.b)) == "field('a.b')"


@pytest.mark.parametrize("values", ["abc", {"a": 1}, None, 3, [], (), frozenset[Any](), range(3)])
def test_membership_needs_values(values: Any) -> None:
    with pytest.raises(
        RuleError, match=r"op 'in' needs a list of at least one value|value: input was not a valid JSON"
    ):
        F.a.in_(values)


@pytest.mark.parametrize("reference", [3, None, F, object, ["a"], b"a"])
def test_what_is_no_reference_is_refused_with_an_example_of_one(reference: Any) -> None:
    with pytest.raises(RuleError, match=r"is no field: write F\.severity, or 'severity'"):
        by(reference)


@pytest.mark.parametrize("path", ["", "a..b", "a\0", "\ud800", "a" * 256])
def test_a_reference_to_no_field_is_refused_where_it_is_used(path: str) -> None:
    with pytest.raises(RuleError, match="field: A field is its name"):
        field(path).eq(1)
