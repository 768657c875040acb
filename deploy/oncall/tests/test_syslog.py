from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncall.syslog import Record, Syslog

WRITTEN = datetime(2025, 6, 1, tzinfo=UTC)
EARLIEST = datetime(1971, 1, 1, tzinfo=UTC)


def read(*lines: str, written: datetime = WRITTEN, year: int | None = None) -> list[Record | None]:
    syslog = Syslog(written=written, year=year)
    return [syslog.read(line) for line in lines]


def times(*texts: str, written: datetime = WRITTEN, year: int | None = None) -> list[str | None]:
    records = read(*(f"{text} gate sshd[1]: hello" for text in texts), written=written, year=year)
    return [None if record is None else record.time.isoformat() for record in records]


def test_a_line_has_a_time_a_host_a_program_and_a_message() -> None:
    assert read("Mar  3 09:02:13 gate sshd[4130]: Connection closed by 192.0.2.1") == [
        Record(datetime(2025, 3, 3, 9, 2, 13, tzinfo=UTC), "gate", "sshd", "Connection closed by 192.0.2.1")
    ]


@pytest.mark.parametrize(
    "line",
    [
        "2025-03-03T09:02:13Z gate sshd[41]: hello",
        "<38>Mar  3 09:02:13 gate sshd[41]: hello",
        "<38>1 2025-03-03T09:02:13Z gate sshd 41 - - hello",
        '<38>1 2025-03-03T09:02:13Z gate sshd 41 ID7 [a@1 b="c"][d@2] \ufeffhello',
        "Mar 3 09:02:13 gate sshd: hello",
        "Mar  3 2025 09:02:13 gate sshd[41]: hello",
    ],
)
def test_every_dialect_of_syslog_is_read(line: str) -> None:
    assert read(line) == [Record(datetime(2025, 3, 3, 9, 2, 13, tzinfo=UTC), "gate", "sshd", "hello")]


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2025-03-03T09:02:13+02:00", "2025-03-03T07:02:13+00:00"),
        ("2025-03-03T09:02:13.123456789-0530", "2025-03-03T14:32:13.123456+00:00"),
        ("2025-03-03 09:02:13,5", "2025-03-03T09:02:13.500000+00:00"),
        ("2025-03-03 09:02:13 +0100", "2025-03-03T08:02:13+00:00"),
        ("2025-03-03t09:02:13z", None),
        ("Mar  3 09:02:13.25", "2025-03-03T09:02:13.250000+00:00"),
        ("Mar 03 2019 09:02:13", "2019-03-03T09:02:13+00:00"),
        ("Mar  3 0001 09:02:13", None),
        ("Mär  3 09:02:13", None),
        ("Mai  3 09:02:13", None),
        ("Feb 30 09:02:13", None),
        ("Mar  3 25:02:13", None),
        ("2025-02-30T09:02:13Z", None),
        ("0001-01-01T00:00:00+10:00", None),
        ("9999-12-31T23:59:59Z", None),
    ],
)
def test_a_time_is_read_in_utc_or_not_at_all(text: str, time: str | None) -> None:
    assert times(text) == [time]


@pytest.mark.parametrize(
    "line", ["", "hello", "Mar  3 09:02:13", "Mar  3 09:02:13 gate sshd[1]", "\0\ud800", "-" * 70_000]
)
def test_what_is_no_line_of_syslog_is_none(line: str) -> None:
    assert read(line) == [None]


def test_the_first_line_is_of_the_latest_year_that_is_not_after_the_last_change() -> None:
    assert times("May 31 10:00:00") == ["2025-05-31T10:00:00+00:00"]
    assert times("Jun  1 20:00:00") == ["2025-06-01T20:00:00+00:00"]
    assert times("Jun  3 10:00:00") == ["2024-06-03T10:00:00+00:00"]
    assert times("Feb 29 10:00:00") == ["2024-02-29T10:00:00+00:00"]


def test_the_first_year_can_be_given() -> None:
    assert times("Dec 10 10:00:00", year=2017) == ["2017-12-10T10:00:00+00:00"]
    assert times("Feb 29 10:00:00", year=2017) == [None]


def test_the_year_turns_with_the_log_and_back_for_a_line_out_of_order() -> None:
    assert times("Dec 31 23:59:59", "Jan  1 00:00:01", "Dec 31 23:59:58", "Jan  1 00:00:02", year=2017) == [
        "2017-12-31T23:59:59+00:00",
        "2018-01-01T00:00:01+00:00",
        "2017-12-31T23:59:58+00:00",
        "2018-01-01T00:00:02+00:00",
    ]


def test_a_day_that_no_near_year_has_is_none() -> None:
    assert times("Mar  1 10:00:00", "Feb 29 10:00:00", "Mar  1 10:00:01", year=2018) == [
        "2018-03-01T10:00:00+00:00",
        None,
        "2018-03-01T10:00:01+00:00",
    ]


@given(
    start=st.timedeltas(timedelta(), timedelta(days=80_000)).map(
        lambda since: datetime(1971, 1, 1, tzinfo=UTC) + since
    ),
    steps=st.lists(st.timedeltas(timedelta(), timedelta(days=150)), max_size=20),
)
def test_a_log_without_years_has_the_times_it_was_written_at(start: datetime, steps: list[timedelta]) -> None:
    written = [start.replace(microsecond=0)]
    for step in steps:
        written.append((written[-1] + step).replace(microsecond=0))
    lines = (f"{time:%b} {time.day:2} {time:%H:%M:%S} gate sshd[1]: hello" for time in written)
    assert [record and record.time for record in read(*lines, year=start.year)] == written


@given(
    lines=st.lists(st.text() | st.from_regex(r"[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \S+ \S+: .*", fullmatch=True))
)
def test_no_text_is_too_much(lines: list[str]) -> None:
    for record in read(*lines):
        assert record is None or record.time.tzinfo is UTC


@given(
    st.from_regex(
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?(Z| ?[+-]\d\d:?\d\d)? gate sshd\[1\]: hi", fullmatch=True
    )
)
def test_no_full_time_is_too_much(line: str) -> None:
    for record in read(line):
        assert record is None or 1970 <= record.time.year < 2200
