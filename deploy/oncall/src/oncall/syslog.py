"""Lines as syslog writes them: when, where, which program, what. What sshd's messages mean is in `oncall.sshd`.

Times come in three forms: `Dec 10 06:55:46`, with no year and no zone; the same with a year; and RFC 3339. One without
a zone is taken for UTC.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

_MONTHS: Final = {
    month: number
    for number, month in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}

_LINE: Final = re.compile(
    r"(?:<\d{1,3}>(?:1 )?)?"  # the priority, and the version of RFC 5424, where the line is as it travelled
    r"(?P<time>[A-Z][a-z]{2} {1,2}\d{1,2} (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d+)?"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?[Zz]| ?[+-]\d\d:?\d\d)?)"
    r" (?P<host>\S+) (?P<program>[^\s\[:]+)"
    r"(?:(?:\[\d+\])?: | (?:\d+|-) \S+ (?:-|(?:\[[^\]]*\])+) \ufeff?)"  # sshd[123]: or, in RFC 5424, sshd 123 - -
    r"(?P<message>.*)",
    re.ASCII | re.DOTALL,
)

_SHORT: Final = re.compile(r"([A-Z][a-z]{2}) +(\d+) (?:(\d{4}) )?(\d\d):(\d\d):(\d\d)(?:\.(\d+))?", re.ASCII)

YEARS: Final = range(1970, 2200)
"""The years that a line may be of. A time outside of them is a broken clock's."""


@dataclass(frozen=True, slots=True)
class Record:
    """A line's parts; `time` is in UTC."""

    time: datetime
    host: str
    program: str
    message: str


class Syslog:
    """Reads lines one after another, and remembers what it takes to complete a time that has no year.

    Such a time gets the year that brings it nearest to the line before, so a log may pass New Year's Eve, in either
    direction. The first one gets the year that is asked for, or else the latest that does not put it after `written`.
    """

    def __init__(self, *, written: datetime, year: int | None = None) -> None:
        """Begins at the first line.

        Args:
            written: When the log was last written to.
            year: The year of the first line, if it names none.
        """
        self._written = written
        self._year = year
        self._latest: datetime | None = None
        self._cached: tuple[str, datetime | None] = ("", None)

    def read(self, line: str) -> Record | None:
        """Returns the line's parts, or `None` if it is no line of syslog's or its time does not exist."""
        parts = _LINE.fullmatch(line)
        if parts is None:
            return None
        text, host, program, message = parts.groups()
        if text != self._cached[0]:
            self._cached = (text, self._time(text))
        time = self._cached[1]
        if time is None:
            return None
        self._latest = time
        return Record(time, host, program, message)

    def _time(self, text: str) -> datetime | None:
        short = _SHORT.fullmatch(text)
        if short is None:
            return _full(text)
        month, day, year, hour, minute, second, fraction = short.groups()
        number = _MONTHS.get(month)
        if number is None:
            return None
        clock = (int(hour), int(minute), int(second), int((fraction or "0")[:6].ljust(6, "0")))
        if year is not None:
            return _exact(int(year), number, int(day), clock)
        return self._nearest(number, int(day), clock)

    def _nearest(self, month: int, day: int, clock: tuple[int, int, int, int]) -> datetime | None:
        latest = self._latest
        if latest is not None:
            near = (_exact(latest.year + years, month, day, clock) for years in (-1, 0, 1))
            return min(filter(None, near), key=lambda time: abs(time - latest), default=None)
        if self._year is not None:
            return _exact(self._year, month, day, clock)
        # A day of grace, as the log may be in a zone ahead of UTC; eight years back there was a 29 February.
        until = self._written + timedelta(days=1)
        years = (_exact(until.year - back, month, day, clock) for back in range(9))
        return next((time for time in years if time is not None and time <= until), None)


def _exact(year: int, month: int, day: int, clock: tuple[int, int, int, int]) -> datetime | None:
    if year not in YEARS:
        return None
    try:
        return datetime(year, month, day, *clock, tzinfo=UTC)
    except ValueError:
        return None


def _full(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text[:19] + text[19:].replace(" ", "").upper())
        utc = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return utc if utc.year in YEARS else None
