from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflexr.client import Backoff, ClientError
from reflexr.client.backoff import Tries

from .answering import Waits


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(
        first=timedelta(seconds=1), longest=timedelta(seconds=5), attempts=6, random=lambda: 1.0, clock=lambda: 0.0
    )
    tries = Tries(backoff)
    assert [tries.next_wait() for _ in range(6)] == [1, 2, 4, 5, 5, None]
    assert tries.failed == 6


@given(st.floats(0, 1), st.integers(0, 2_000))
def test_a_wait_is_a_part_of_the_longest_that_it_may_be_however_often_it_failed(part: float, failed: int) -> None:
    tries = Tries(Backoff(random=lambda: part))
    tries.failed = failed
    wait = tries.next_wait(endless=True)
    assert wait == part * min(0.1 * 2.0 ** min(failed, 64), 10)


def test_waits_are_not_all_the_same() -> None:
    assert len({Tries(Backoff()).next_wait() for _ in range(20)}) > 1


def test_it_gives_up_when_the_next_try_would_come_too_late() -> None:
    waits = Waits()
    tries = Tries(waits.backoff(attempts=100, within=timedelta(seconds=1)))
    waits.now = 1_000.0
    assert tries.next_wait() == 0.1
    waits.now += 0.9
    assert tries.next_wait() is None


def test_a_server_that_wants_to_be_left_alone_is() -> None:
    assert Tries(Waits().backoff()).next_wait(at_least=30) == 30
    assert Tries(Waits().backoff(within=timedelta(seconds=20))).next_wait(at_least=30) is None


def test_what_is_endless_is_not_given_up() -> None:
    tries = Tries(Waits().backoff(attempts=1, within=timedelta()))
    assert None not in {tries.next_wait(endless=True) for _ in range(1_000)}
    assert tries.next_wait() is None


def test_what_worked_begins_anew() -> None:
    tries = Tries(Waits().backoff())
    first = tries.next_wait()
    tries.next_wait()
    tries.restart()
    assert tries.next_wait() == first


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": timedelta(seconds=-1)},
        {"longest": timedelta(seconds=-1)},
        {"within": timedelta(seconds=-1)},
        {"attempts": 0},
    ],
)
def test_a_back_off_that_can_never_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match=next(iter(wrong))):
        Backoff(**wrong)
