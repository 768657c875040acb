from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncall.phrases import LONGEST_NAME, count, names, places, shown, span


def test_numbers_agree_with_their_nouns() -> None:
    assert [count(number, "failure") for number in (0, 1, 2_000)] == ["0 failures", "1 failure", "2,000 failures"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.9, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (190, "3 min 10 s"),
        (3600, "1 h"),
        (14_940, "4 h 9 min"),
        (90_000, "1 d 1 h"),
        (172_800_000, "2,000 d"),
    ],
)
def test_a_duration_reads_as_its_two_largest_units(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_a_long_list_is_cut_and_says_how_much_is_missing() -> None:
    assert names(["a", "b", "c", "d"]) == "a, b, c, d"
    assert names(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d +2"


@pytest.mark.parametrize(
    ("name", "text"), [("root", "root"), ("", '""'), (" 0101", '" 0101"'), ("a,b", '"a,b"'), ("\n", "\\n")]
)
def test_a_name_cannot_be_mistaken_for_the_words_around_it(name: str, text: str) -> None:
    assert shown(name) == text


@given(st.text())
def test_a_name_is_never_long_and_always_visible(name: str) -> None:
    assert len(shown(name)) <= LONGEST_NAME + 2
    assert shown(name).isprintable()


@pytest.mark.parametrize(
    ("seqs", "text"), [([12], "#12"), ([12, 13, 14], "#12..14"), ([12, 14, 15, 17], "#12 #14..15 #17"), ([], "")]
)
def test_neighbouring_places_are_told_together(seqs: list[int], text: str) -> None:
    assert places(seqs) == text
