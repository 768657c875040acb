from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from reflexr.workspace.timers import Timers

from .plant import SECOND, START


def at(seconds: int) -> datetime:
    return START + seconds * SECOND


def test_the_keys_that_are_due_come_earliest_first_and_stay() -> None:
    timers = Timers[str]()
    for key, seconds in (("c", 3), ("a", 1), ("b", 2)):
        timers.set(key, at(seconds))

    assert timers.through(at(2)) == [(at(1), "a"), (at(2), "b")]
    assert timers.through(at(9), limit=1) == [(at(1), "a")]
    assert len(timers) == 3


def test_a_key_whose_time_is_taken_away_is_forgotten() -> None:
    timers = Timers[str]()
    timers.set("a", at(1))

    timers.set("a", None)
    timers.set("never", None)

    assert "a" not in timers
    assert timers.first() is None


def test_moving_a_timer_many_times_keeps_the_index_in_proportion_to_the_keys() -> None:
    timers = Timers[str]()

    for seconds in range(10_000):
        timers.set("a", at(seconds))

    assert timers.entries <= 2 * 1 + 65
    assert timers.first() == at(9_999)


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "discard", "expire"]), st.integers(0, 4), st.integers(0, 9)), max_size=200
    )
)
def test_timers_agree_with_a_plain_dictionary(steps: list[tuple[str, int, int]]) -> None:
    timers, model = Timers[int](), dict[int, datetime]()
    for step, key, seconds in steps:
        match step:
            case "set":
                timers.set(key, at(seconds))
                model[key] = at(seconds)
            case "discard":
                timers.discard(key)
                model.pop(key, None)
            case _:
                expired = timers.expire(at(seconds))
                assert set(expired) == {key for key, time in model.items() if time <= at(seconds)}
                model = {key: time for key, time in model.items() if time > at(seconds)}
        assert timers.first() == min(model.values(), default=None)
        assert {key: time for time, key in timers.through(at(9) + timedelta.max.resolution)} == model
        assert all(timers.get(key) == model.get(key) for key in range(5))
