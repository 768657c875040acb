"""Hypothesis strategies for JSON values, rich in those that look alike."""

from typing import Final

import pytest
from hypothesis import strategies as st
from pydantic import JsonValue

texts: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
"""Texts of Unicode characters."""

scalars: Final[st.SearchStrategy[JsonValue]] = st.one_of(
    st.sampled_from([None, True, False, 0, 1, 1.0, -0.0, 2**53, 2**53 + 1, float(2**53), 1e16, 1e22, 10**22, "", "1"]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
"""JSON values that hold no others."""


def _around(inner: st.SearchStrategy[JsonValue]) -> st.SearchStrategy[JsonValue]:
    return st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)


json_values: Final[st.SearchStrategy[JsonValue]] = st.recursive(scalars, _around, max_leaves=6)
"""Any JSON value."""


def nested(levels: int) -> JsonValue:
    """Returns a number inside so many lists."""
    value: JsonValue = 1
    for _ in range(levels):
        value = [value]
    return value


def alike(value: JsonValue) -> JsonValue:
    """Returns another form of the same JSON value: whole numbers as floats where they can be, keys in reverse order."""
    if isinstance(value, list):
        return [alike(item) for item in value]
    if isinstance(value, dict):
        return {key: alike(value[key]) for key in reversed(value)}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53:
        return float(value)
    return value


NOT_JSON: Final = [
    (float("nan"), "is nan, which JSON cannot hold: use None or a string instead"),
    (float("inf"), "is inf, which JSON cannot hold"),
    (float("-inf"), "is -inf, which JSON cannot hold"),
    ("\ud800", r"holds the lone surrogate '\\ud800'"),
    ({"\udfff": 1}, r"a key of .* holds the lone surrogate '\\udfff'"),
    (nested(101), "nests deeper than 100 levels"),
    pytest.param(10**5000, "is an integer of more than 4,300 digits", id="5,001 digits"),
    pytest.param(-(10**4300), "is an integer of more than 4,300 digits", id="4,301 digits"),
]
"""Values that JSON cannot hold, with what their refusal says."""
