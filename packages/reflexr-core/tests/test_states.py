from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from reflexr.core import Armed, RuleProgress, ScopeState

from .json_values import texts

STATE: TypeAdapter[ScopeState] = TypeAdapter(ScopeState)
PROGRESS: TypeAdapter[RuleProgress] = TypeAdapter(RuleProgress)
TS = datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)

times = st.datetimes(timezones=st.just(UTC))
places = st.integers(1, 2**63 - 1)
states = st.builds(
    ScopeState,
    st.lists(st.tuples(places, times), max_size=3).map(tuple),
    st.none() | st.builds(Armed, places, texts, st.integers(0, 8), times),
    st.dictionaries(texts, times, max_size=3),
    st.lists(times, max_size=3).map(tuple),
    st.none() | times,
)


@given(states)
def test_a_state_comes_back_from_json_as_it_was_with_its_keys_in_their_order(state: ScopeState) -> None:
    read = STATE.validate_json(STATE.dump_json(state))

    assert read == state
    assert list(read.seen) == list(state.seen)


@given(st.builds(RuleProgress, texts, places, places, texts, places))
def test_progress_comes_back_from_json_as_it_was(progress: RuleProgress) -> None:
    assert PROGRESS.validate_json(PROGRESS.dump_json(progress)) == progress


def test_progress_that_moves_changes_its_cursor_alone() -> None:
    progress = RuleProgress("a:b", 2, 3, "d", 9)

    assert progress.moved(7) == RuleProgress("a:b", 2, 7, "d", 9)
    assert progress.cursor == 3


def test_a_state_is_due_when_its_quiet_is_over() -> None:
    assert ScopeState().due is None
    assert ScopeState(armed=Armed(1, "e", 0, TS)).due == TS


@pytest.mark.parametrize("text", ["{}x", '[[[1,"soon"]]]', '[[],null,{"a":"2026-01-01T00:00:00"}]', "3"])
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        STATE.validate_json(text)


def frozen(state: Any) -> None:
    state.marks = ()


def test_states_are_immutable() -> None:
    with pytest.raises(AttributeError):
        frozen(ScopeState())
