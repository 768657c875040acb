from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflexr.core import Condition, Envelope, ScopeState, on, predicate, sequence
from reflexr.core.patterns import FAR, Memory, Stages, compile_stages, later
from reflexr.core.states import Armed
from reflexr.core.type_sets import EVERY

from .shop import envelope

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
CENTURIES = timedelta(days=99_999_999)


def at(seconds: float, seq: int = 1, event_type: str = "a:a", **fields: Any) -> Envelope:
    return envelope({"type": event_type, **fields}, seq=seq, ts=START + seconds * SECOND)


def stages(condition: Condition) -> Stages:
    return compile_stages(condition, EVERY)


@given(st.datetimes(timezones=st.just(UTC)), st.timedeltas(timedelta(), CENTURIES))
def test_a_later_time_is_exact_or_too_far_ahead_for_any(ts: datetime, by: timedelta) -> None:
    found = later(ts, by)

    assert found == FAR if by > FAR - ts else found - ts == by


def test_a_count_keeps_what_is_in_the_window_that_ends_now() -> None:
    advance = stages(on("a:a").count(at_least=3, within=10 * SECOND)).advance
    memory = Memory("[]", None)

    assert [advance(memory, at(ts, seq), {}) for seq, ts in enumerate((0, 5, 9.999999, 10, 10), start=1)] == [
        None,
        None,
        (1, 2, 3),
        None,
        None,
    ]
    assert [seq for seq, _ in memory.marks] == [4, 5]


def test_a_count_of_one_fires_at_each_envelope_also_with_a_window_of_centuries() -> None:
    advance = stages(on("a:a").count(at_least=1, within=CENTURIES)).advance
    memory = Memory("[]", None)

    assert [advance(memory, at(0, seq), {}) for seq in (1, 2)] == [(1,), (2,)]


def test_envelopes_of_one_time_are_in_one_window_however_short() -> None:
    advance = stages(on("a:a").count(at_least=2, within=timedelta(microseconds=1))).advance
    memory = Memory("[]", None)

    assert advance(memory, at(0, 1), {}) is None
    assert advance(memory, at(0, 2), {}) == (1, 2)
    assert advance(memory, at(0, 3), {}) is None
    assert advance(memory, at(0.000001, 4), {}) is None


def test_a_sequence_whose_step_raises_is_as_it_was() -> None:
    def fails(envelope: Envelope) -> bool:
        raise LookupError

    condition = sequence(on("a:a"), on("a:b").where(predicate("fails")), within=10 * SECOND)
    predicates: dict[str, Callable[[Envelope], bool]] = {"fails": fails}
    advance = stages(condition).advance
    memory = Memory("[]", None)
    advance(memory, at(0), predicates)
    before = list(memory.marks)
    memory.dirty = False

    with pytest.raises(LookupError):
        advance(memory, at(1, 2, "a:b"), predicates)

    assert (memory.marks, memory.dirty) == (before, False)


def test_a_sequence_that_ignores_an_envelope_changes_nothing() -> None:
    advance = stages(sequence(on("a:a"), on("a:b"), within=10 * SECOND)).advance
    memory = Memory("[]", None)

    assert advance(memory, at(0, 1, "a:b"), {}) is None
    assert (memory.marks, memory.dirty) == ([], False)


def test_a_sequence_whose_window_is_over_is_forgotten() -> None:
    advance = stages(sequence(on("a:a"), on("a:b"), within=10 * SECOND)).advance
    memory = Memory("[]", None)
    advance(memory, at(0), {})
    memory.dirty = False

    assert advance(memory, at(10, 2, "a:b"), {}) is None
    assert (memory.marks, memory.dirty) == ([], True)


def test_an_absence_waits_for_the_window_after_its_last_envelope() -> None:
    compiled = stages(on("a:a").absent(within=10 * SECOND))
    memory = Memory("[]", None)

    assert compiled.advance(memory, at(3, 7), {}) is None
    assert compiled.quiet == 10 * SECOND
    assert memory.armed == Armed(7, "evt_1", 0, START + 13 * SECOND)


def test_an_absence_of_centuries_is_due_at_the_end_of_time() -> None:
    memory = Memory("[]", None)
    stages(on("a:a").absent(within=CENTURIES)).advance(memory, at(0), {})

    assert memory.armed is not None
    assert memory.armed.due == FAR


def test_a_throttle_counts_the_firings_in_any_window() -> None:
    throttle = stages(on("a:a").at_most(2, per=10 * SECOND)).throttle
    memory = Memory("[]", None)
    assert throttle is not None

    passed = [throttle(memory, START + ts * SECOND) for ts in (0, 5, 5, 9.999999, 10, 14, 15, 15)]

    assert passed == [True, True, False, False, True, False, True, False]


@pytest.mark.parametrize(
    ("condition", "marks", "expires"),
    [
        (on("a:a").count(at_least=3, within=10 * SECOND), ((1, START), (2, START + SECOND)), START + 11 * SECOND),
        (
            sequence(on("a:a"), on("a:a"), on("a:a"), within=10 * SECOND),
            ((1, START), (2, START + SECOND)),
            START + 10 * SECOND,
        ),
        (on("a:a").count(at_least=3, within=CENTURIES), ((1, START),), FAR),
    ],
)
def test_a_state_is_kept_until_its_window_is_over(condition: Condition, marks: Any, expires: datetime) -> None:
    freeze = stages(condition).freeze
    memory = Memory("[]", ScopeState(marks=marks))

    assert freeze(memory, START + SECOND) == ScopeState(marks=marks, expires=expires)
    assert freeze(memory, expires) is None


def test_a_state_is_kept_until_its_last_window_is_over() -> None:
    condition = (
        on("a:a").distinct("x", within=10 * SECOND).count(at_least=2, within=5 * SECOND).at_most(1, per=20 * SECOND)
    )
    freeze = stages(condition).freeze
    state = ScopeState(
        marks=((3, START + 9 * SECOND),), seen={"[1]": START, "[2]": START + 9 * SECOND}, fired=(START + SECOND,)
    )
    memory = Memory("[]", state)

    assert freeze(memory, START + 9 * SECOND) == state._replace(expires=START + 21 * SECOND)
    assert freeze(memory, START + 10 * SECOND) == state._replace(
        seen={"[2]": START + 9 * SECOND}, expires=START + 21 * SECOND
    )
    assert freeze(memory, START + 21 * SECOND) is None


def test_a_state_that_waits_for_quiet_never_expires() -> None:
    freeze = stages(on("a:a").absent(within=10 * SECOND)).freeze
    armed = ScopeState(armed=Armed(1, "e", 0, START))

    assert freeze(Memory("[]", armed), FAR) == armed


def test_a_memory_changes_no_state_it_was_made_of() -> None:
    seen = {"[1]": START}
    state = ScopeState(marks=((1, START),), seen=seen, fired=(START,))
    memory = Memory("[]", state)

    memory.remember("[1]", START + SECOND)
    memory.remember("[2]", START + SECOND)
    memory.marks.clear()

    assert memory.seen == {"[1]": START + SECOND, "[2]": START + SECOND}
    assert memory.dirty
    assert state == ScopeState(marks=((1, START),), seen={"[1]": START}, fired=(START,))
    assert seen == {"[1]": START}


def test_a_key_that_passes_again_is_the_last_to_be_forgotten() -> None:
    memory = Memory("[]", ScopeState(seen={"[1]": START, "[2]": START}))

    memory.remember("[1]", START + SECOND)

    assert list(memory.seen) == ["[2]", "[1]"]
