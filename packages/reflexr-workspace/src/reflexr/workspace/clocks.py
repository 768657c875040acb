"""Clocks: where a storage's time comes from, the system or a test's hand.

Rules read no clock: their time is the envelopes' `ts`.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from reflexr.workspace.errors import WorkspaceError


class Clock(Protocol):
    """Says what time it is."""

    def __call__(self) -> datetime:
        """Returns the time now, aware and in UTC."""
        ...


def system_clock() -> datetime:
    """Returns the system's time, in UTC."""
    return datetime.now(UTC)


class ManualClock:
    """A clock that stands still until it is moved, such as by a test or by a log that is read in."""

    def __init__(self, now: datetime | None = None) -> None:
        """Starts the clock.

        Args:
            now: The aware time it shows first; by default the start of 2026, in UTC.

        Raises:
            WorkspaceError: `now` is naive, or no time.
        """
        self._now = _EPOCH if now is None else _utc(now)

    def __call__(self) -> datetime:
        """Returns the time that the clock shows."""
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Moves the clock on, and returns what it shows then.

        Raises:
            WorkspaceError: `by` is no duration, or is negative: use `set` to show that a clock can go wrong.
        """
        if not _is(timedelta, by):
            raise WorkspaceError(f"a clock is advanced by a timedelta, such as timedelta(seconds=60), not by {by!r}")
        if by < timedelta():
            raise WorkspaceError(f"a clock is advanced by zero or more, not by {by!r}")
        self._now += by
        return self._now

    def set(self, now: datetime) -> datetime:
        """Moves the clock to a time, perhaps back, as a host's clock may go, and returns it.

        Raises:
            WorkspaceError: `now` is naive, or no time.
        """
        self._now = _utc(now)
        return self._now


_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


def _utc(now: datetime) -> datetime:
    if not _is(datetime, now):
        raise WorkspaceError(f"a clock's time is an aware datetime, such as datetime.now(UTC), not {now!r}")
    if now.tzinfo is None:
        raise WorkspaceError(f"a clock's time is aware, such as one with tzinfo=UTC, but {now!r} is naive")
    return now.astimezone(UTC)


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind)
