import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from reflexr.core.durations import (
    DURATION_PATTERN,
    MAX_DURATION,
    Duration,
    Window,
    format_duration,
    parse_duration,
)

DURATION: TypeAdapter[timedelta] = TypeAdapter(Duration)
WINDOW: TypeAdapter[timedelta] = TypeAdapter(Window)

durations = st.timedeltas(timedelta(), MAX_DURATION) | st.timedeltas(timedelta(), timedelta(days=2))
numbers = st.sampled_from(["0", "00", "1", "9", "60", "24", "123456789", "1234567890"])
written = st.builds(
    "".join,
    st.lists(st.sampled_from(["P", "T", "W", "D", "H", "M", "S", "Y", ".", ".5", "-", "\n", ""]) | numbers, max_size=8),
) | st.from_regex(DURATION_PATTERN)


@given(durations)
def test_a_duration_that_is_written_is_read_back_as_it_was(duration: timedelta) -> None:
    text = format_duration(duration)

    assert parse_duration(text) == duration
    assert DURATION.validate_json(DURATION.dump_json(duration)) == duration
    assert re.search(DURATION_PATTERN, text)


@given(written)
def test_what_can_be_read_is_exactly_what_the_schema_describes(text: str) -> None:
    schema = DURATION.json_schema()
    described = re.search(schema["pattern"], text) is not None and re.search(schema["not"]["pattern"], text) is None

    if described:
        assert isinstance(parse_duration(text), timedelta)
    else:
        with pytest.raises(ValueError, match="is not an ISO 8601 duration"):
            parse_duration(text)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("PT0S", timedelta()),
        ("PT1M30S", timedelta(seconds=90)),
        ("P1DT12H", timedelta(days=1.5)),
        ("PT0.000001S", timedelta(microseconds=1)),
        ("PT1H0.5S", timedelta(hours=1, milliseconds=500)),
        ("P99999999DT23H59M59.999999S", MAX_DURATION),
    ],
)
def test_a_duration_is_written_in_its_shortest_form(text: str, duration: timedelta) -> None:
    assert format_duration(duration) == text
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    ("text", "duration"),
    [("P2W", timedelta(days=14)), ("PT90M", timedelta(hours=1.5)), ("PT007S", timedelta(seconds=7))],
)
def test_other_forms_of_a_duration_are_read(text: str, duration: timedelta) -> None:
    assert WINDOW.validate_python(text) == WINDOW.validate_json(f'"{text}"') == duration


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "P", "PT", "P1DT", "P1W1D", "PT1H1S1M"),
        *("P1Y", "P1M", "-PT1M", "PT1,5S", "PT0.0000001S", "P999999999D"),
        *("pt1s", "PT1S\n", "PT\uff11S", "\ud800"),
    ],
)
def test_what_is_no_duration_is_refused_with_an_example_of_one(text: str) -> None:
    with pytest.raises(ValidationError, match=r"is not an ISO 8601 duration of weeks, or .* such as 'PT1M30S'"):
        DURATION.validate_python(text)


@pytest.mark.parametrize("value", [60, 1.5, float("nan"), True, None, [], b"PT1S", {}])
def test_a_number_is_no_duration_since_it_has_no_unit(value: Any) -> None:
    with pytest.raises(ValidationError, match="A duration is a timedelta, or text in ISO 8601 such as 'PT1M30S'"):
        DURATION.validate_python(value)


@pytest.mark.parametrize("adapter", [DURATION, WINDOW])
@pytest.mark.parametrize(
    "value", [timedelta(microseconds=-1), timedelta.min, timedelta.max, "P99999999DT24H", "P99999999DT999999999H"]
)
def test_a_duration_that_is_negative_or_cannot_be_written_is_refused(adapter: Any, value: Any) -> None:
    with pytest.raises(ValidationError, match="A duration is not negative, and at most 99,999,999 whole days"):
        adapter.validate_python(value)


@pytest.mark.parametrize("value", ["PT0S", "P0W", timedelta()])
def test_a_window_is_longer_than_nothing_but_a_duration_need_not_be(value: Any) -> None:
    assert DURATION.validate_python(value) == timedelta()
    with pytest.raises(ValidationError, match="A window is longer than nothing, such as 'PT1M'"):
        WINDOW.validate_python(value)


def test_a_duration_is_a_timedelta_in_python_and_text_in_json() -> None:
    assert WINDOW.dump_python(timedelta(seconds=60)) == timedelta(seconds=60)
    assert WINDOW.dump_python(timedelta(seconds=60), mode="json") == "PT1M"
