from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflexr.core import DeadLetter
from reflexr.sql import InvalidValueError, SqlStorageError
from reflexr.sql.values import (
    LONGEST_KEY,
    MAX_INTEGER,
    duration_micros,
    key,
    micros,
    micros_or_none,
    moment,
    read_all,
    within,
)

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_comes_back_to_the_microsecond(time: datetime) -> None:
    assert moment(micros(time)) == time


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_times_compare_as_their_microseconds(one: datetime, other: datetime) -> None:
    assert (micros(one) < micros(other)) == (one < other)


def test_a_time_of_any_zone_is_kept_in_utc() -> None:
    time = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert moment(micros(time)) == datetime(2026, 1, 1, tzinfo=UTC)
    assert moment(micros(time)).tzinfo is UTC
    assert micros_or_none(None) is None
    assert micros_or_none(time) == micros(time)


def test_a_duration_is_kept_in_microseconds() -> None:
    assert duration_micros(timedelta(days=1, microseconds=1)) == 86_400_000_001


@given(names, names)
def test_names_are_one_if_their_keys_are(one: str, other: str) -> None:
    assert (key(one) == key(other)) == (one == other)


@given(names)
def test_a_key_is_short_and_an_ordinary_name_is_its_own(name: str) -> None:
    assert len(key(name).encode()) <= LONGEST_KEY
    if len(name.encode()) <= LONGEST_KEY and not name.startswith("sha256:"):
        assert key(name) == name


def test_no_name_is_the_digest_of_another() -> None:
    digested = key("x" * (LONGEST_KEY + 1))
    assert digested.startswith("sha256:")
    assert key(digested) != digested


@pytest.mark.parametrize(("name", "problem"), [("a\0b", "holds a NUL"), ("a\ud800b", "holds a lone surrogate")])
def test_a_name_that_no_database_holds_is_refused(name: str, problem: str) -> None:
    with pytest.raises(InvalidValueError, match=problem):
        key(name)


def test_a_number_is_brought_within_what_a_column_holds() -> None:
    assert [within(number) for number in (2**80, -(2**80), 7)] == [MAX_INTEGER, -MAX_INTEGER, 7]


def test_a_document_that_is_none_is_reported_with_what_it_is() -> None:
    with pytest.raises(
        SqlStorageError, match=r"a DeadLetter in the database cannot be read: Field required; it .*'\{\}'"
    ):
        read_all(DeadLetter, [("{}",)])
