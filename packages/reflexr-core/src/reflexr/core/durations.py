"""Lengths of time: `timedelta` in Python, ISO 8601 durations of weeks, or days to microseconds, in JSON.

Calendar units (years, months) have no fixed length and are refused.
"""

import re
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

DURATION_PATTERN: Final = (
    r"^P([0-9]{1,6}W|[0-9]{1,8}D|([0-9]{1,8}D)?T("
    r"[0-9]{1,9}H([0-9]{1,9}M)?([0-9]{1,9}(\.[0-9]{1,6})?S)?"
    r"|[0-9]{1,9}M([0-9]{1,9}(\.[0-9]{1,6})?S)?"
    r"|[0-9]{1,9}(\.[0-9]{1,6})?S))$"
)
"""The durations that are read; every one of them fits a `timedelta`."""

MAX_DURATION: Final = timedelta(days=100_000_000) - timedelta.resolution
"""The longest duration: what is longer could not be read back, as its days have too many digits."""

_PARTS: Final = re.compile(
    r"P(?:(?P<weeks>\d+)W|(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:\.(?P<fraction>\d+))?S)?)?)",
    re.ASCII,
)
_SHAPE: Final = re.compile(DURATION_PATTERN[1:-1], re.ASCII)
_ZERO: Final = timedelta()


def parse_duration(text: str) -> timedelta:
    """Returns the length of an ISO 8601 duration such as `PT1M30S`, `P1DT12H` or `P2W`.

    Raises:
        ValueError: The text is no such duration.
    """
    parts = _PARTS.fullmatch(text)
    if parts is None or _SHAPE.fullmatch(text) is None:
        raise ValueError(
            f"{text!r} is not an ISO 8601 duration of weeks, or of days, hours, minutes and seconds, such as 'PT1M30S'"
        )
    found = {unit: int(number) for unit, number in parts.groupdict(default="0").items() if unit != "fraction"}
    fraction = (parts["fraction"] or "").ljust(6, "0")
    return timedelta(**found, microseconds=int(fraction))


def format_duration(value: timedelta) -> str:
    """Returns the shortest ISO 8601 duration of days, hours, minutes and seconds: 90 seconds are `PT1M30S`."""
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{value.microseconds:06d}".rstrip("0") if value.microseconds else ""
    time = "".join(
        (
            f"{hours}H" if hours else "",
            f"{minutes}M" if minutes else "",
            f"{seconds}{fraction}S" if seconds or fraction else "",
        )
    )
    days = f"{value.days}D" if value.days else ""
    return f"P{days}{f'T{time}' if time else ''}" if days or time else "PT0S"


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        duration = value
    elif isinstance(value, str):
        try:
            duration = parse_duration(value)
        except ValueError as error:
            raise PydanticCustomError("duration", "{problem}", {"problem": str(error)}) from error
    else:
        raise PydanticCustomError(
            "duration", "A duration is a timedelta, or text in ISO 8601 such as 'PT1M30S'", {"value": value}
        )
    if not _ZERO <= duration <= MAX_DURATION:
        raise PydanticCustomError(
            "duration", "A duration is not negative, and at most 99,999,999 whole days", {"value": value}
        )
    return duration


def _window(value: Any) -> timedelta:
    window = _duration(value)
    if window == _ZERO:
        raise PydanticCustomError("window", "A window is longer than nothing, such as 'PT1M'", {"value": value})
    return window


# Without "format": "duration", which knows no fractions of a second.
_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "pattern": DURATION_PATTERN,
    "not": {"pattern": r"\n"},
    "examples": ["PT1M", "PT1H30M", "P7D"],
}

type Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema(_SCHEMA),
]
"""A length of time, at least nothing."""

type Window = Annotated[
    timedelta,
    BeforeValidator(_window),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema({**_SCHEMA, "allOf": [{"pattern": "[1-9]"}]}),
]
"""A length of time, longer than nothing: half-open, so what comes exactly a window later is outside."""
