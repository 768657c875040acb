from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from reflexr.workspace import ManualClock, WorkspaceError, system_clock


def test_the_system_clock_is_in_utc() -> None:
    assert system_clock().tzinfo is UTC


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))

    assert clock() == clock() == datetime(2026, 3, 1, tzinfo=UTC)
    assert clock.advance(timedelta(seconds=2)) == clock() == datetime(2026, 3, 1, 0, 0, 2, tzinfo=UTC)


def test_a_manual_clock_can_be_set_back_and_shows_utc() -> None:
    clock = ManualClock()

    clock.set(datetime(2020, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))

    assert clock() == datetime(2020, 1, 1, tzinfo=UTC)
    assert clock().tzinfo is UTC


def test_a_naive_time_and_a_negative_advance_are_refused() -> None:
    clock = ManualClock()

    with pytest.raises(WorkspaceError, match="is naive"):
        clock.set(datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None))
    with pytest.raises(WorkspaceError, match="zero or more"):
        clock.advance(timedelta(seconds=-1))


@pytest.mark.parametrize("by", [60, 1.5, None, "PT1M"])
def test_what_is_no_duration_advances_no_clock(by: Any) -> None:
    clock = ManualClock()

    with pytest.raises(WorkspaceError, match=r"by a timedelta, such as timedelta\(seconds=60\), not by "):
        clock.advance(by)
    assert clock() == ManualClock()()


def test_what_is_no_time_is_shown_by_no_clock() -> None:
    time: Any = "2026-01-01"

    with pytest.raises(WorkspaceError, match="is an aware datetime"):
        ManualClock(time)
    with pytest.raises(WorkspaceError, match="not '2026-01-01'"):
        ManualClock().set(time)
