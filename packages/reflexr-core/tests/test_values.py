from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, JsonValue

from reflexr.core.errors import NotJsonError
from reflexr.core.values import json_text, json_value, model_value

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def nested(levels: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(levels):
        value = [value]
    return value


@given(JSON)
def test_a_json_value_comes_back_as_it_is(value: JsonValue) -> None:
    assert repr(json_value(value, "it")) == repr(value)


def test_a_value_is_copied_so_that_no_one_changes_it_later() -> None:
    inner: list[JsonValue] = [1]
    copied = json_value({"inner": inner}, "it")
    inner.append(2)

    assert copied == {"inner": [1]}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "it is nan, which JSON cannot hold"),
        ({"a": [float("inf")]}, r"it\.a\.0 is inf"),
        (object(), "it is not JSON"),
        (b"bytes", "it is not JSON"),
        ((1, 2), "it is not JSON"),
        ([{1, 2}], "it is not JSON"),
        ({1: 2}, "it is not JSON"),
        ("\ud800", "it holds the lone surrogate"),
        ({"\udfff": 1}, "a key of it holds the lone surrogate"),
        pytest.param(10**4300, "it is an integer of more than 4,300 digits", id="an integer of 4,301 digits"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(value: object, problem: str) -> None:
    with pytest.raises(NotJsonError, match=problem):
        json_value(value, "it")


def test_an_integer_of_4300_digits_is_kept_exactly() -> None:
    assert json_value(10**4299, "it") == 10**4299


def test_a_value_nests_100_levels_and_not_101() -> None:
    assert json_value(nested(100), "it") == nested(100)
    with pytest.raises(NotJsonError, match="nests deeper than 100 levels"):
        json_value(nested(101), "it")


def test_the_levels_around_a_value_count() -> None:
    assert json_value(nested(99), "it", depth=1) == nested(99)
    with pytest.raises(NotJsonError, match="nests deeper than 100 levels"):
        json_value(nested(100), "it", depth=1)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)

    with pytest.raises(NotJsonError, match="nests deeper"):
        json_value(loop, "it")


class Report(BaseModel):
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    anything: Any = Field(default=None, alias="any thing")


def report(anything: object) -> Report:
    return Report.model_validate({"any thing": anything})


def test_a_model_becomes_the_json_that_it_is_read_back_from() -> None:
    value = model_value(report({"a": [1, None]}), "it")

    assert value == {"at": "2026-01-01T00:00:00Z", "any thing": {"a": [1, None]}}
    assert Report.model_validate(value) == report({"a": [1, None]})


@pytest.mark.parametrize(
    ("anything", "problem"),
    [
        (float("nan"), r"it\.any thing is nan"),
        (report(float("inf")), r"it\.any thing\.any thing is inf"),
        (object(), "it cannot be written as JSON"),
        ("\ud800", "it cannot be written as JSON"),
        (nested(100), "nests deeper than 100 levels"),
    ],
    ids=["nan", "nested infinity", "object", "surrogate", "deep"],
)
def test_a_model_that_json_cannot_hold_is_refused(anything: object, problem: str) -> None:
    with pytest.raises(NotJsonError, match=problem):
        model_value(report(anything), "it")


def test_the_levels_around_a_model_count() -> None:
    assert model_value(report(nested(98)), "it", depth=1)
    with pytest.raises(NotJsonError, match="nests deeper"):
        model_value(report(nested(99)), "it", depth=1)


@given(st.text())
def test_any_text_becomes_one_that_json_can_hold(text: str) -> None:
    escaped = json_text(text)

    assert json_value(escaped, "it") == escaped
    assert json_text(escaped) == escaped


def test_only_lone_surrogates_are_escaped() -> None:
    assert json_text("\x00 é \ud800 😀") == "\x00 é \\ud800 😀"
