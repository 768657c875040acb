from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflexr.client import LogReset
from reflexr.client.cursors import StreamBrokenError, StreamCursor
from reflexr.core import (
    MAX_SEQ,
    ErrorFrame,
    Event,
    EventFrame,
    InvalidStateRejection,
    ReplayComplete,
    ServerFrame,
    ValidationFailed,
    Welcome,
)

from .logs import envelope


def cursor(after_seq: int = 0, *, from_head: bool = False, types: Any = None) -> StreamCursor:
    return StreamCursor("prod", after_seq=after_seq, from_head=from_head, types=types)


def welcome(head_seq: int, *, reset: bool = False, workspace_id: str = "prod") -> Welcome:
    return Welcome(workspace_id=workspace_id, head_seq=head_seq, reset=reset)


def event(seq: int) -> EventFrame:
    return EventFrame(envelope=envelope(seq))


def begun(after_seq: int = 0, **more: Any) -> StreamCursor:
    one = cursor(after_seq, **more)
    one.begin(welcome(1_000))
    return one


FRAMES = st.one_of(st.integers(1, 12).map(event), st.integers(0, 12).map(lambda seq: ReplayComplete(up_to_seq=seq)))


@given(st.integers(0, 6), st.lists(st.one_of(FRAMES, st.just("reconnect"))))
def test_whatever_comes_no_envelope_is_missing_and_none_comes_twice(after_seq: int, frames: list[ServerFrame]) -> None:
    one = begun(after_seq)
    through: list[int] = []
    for frame in frames:
        try:
            if isinstance(frame, str):
                one.begin(welcome(1_000))
            elif (taken := one.take(frame)) is not None:
                through.append(taken.seq)
        except StreamBrokenError:
            one.begin(welcome(1_000))
        assert one.after_seq == after_seq + len(through)
    assert through == list(range(after_seq + 1, after_seq + 1 + len(through)))


@given(st.lists(FRAMES))
def test_with_types_places_may_be_missing_and_grow_all_the_same(frames: list[ServerFrame]) -> None:
    one = begun(types=["ops:beat"])
    through = [taken.seq for frame in frames if (taken := one.take(frame)) is not None]
    assert through == sorted(set(through))
    assert one.after_seq == max((*through, *(f.up_to_seq for f in frames if isinstance(f, ReplayComplete)), 0))


def test_it_asks_for_what_comes_after_what_it_has() -> None:
    one = begun(41)
    assert one.take(event(42)) is not None
    hello = one.hello()
    assert (hello.protocol, hello.resume_after_seq, hello.from_head, hello.types) == ("reflexr.v1", 42, False, None)


def test_from_the_head_it_goes_on_from_where_the_head_was() -> None:
    one = cursor(from_head=True)
    assert one.hello().from_head
    assert one.after_seq is None
    one.begin(welcome(7))
    assert (one.hello().from_head, one.hello().resume_after_seq) == (False, 7)
    one.begin(welcome(9))
    assert one.after_seq == 7


def test_a_gap_is_noticed_before_and_after_the_replay() -> None:
    with pytest.raises(StreamBrokenError, match="the envelope 3 came right after 1"):
        begun(1).take(event(3))
    with pytest.raises(StreamBrokenError, match="the end of the replay, 3, came right after 1"):
        begun(1).take(ReplayComplete(up_to_seq=3))


def test_a_log_that_ends_before_the_cursor_is_another_one() -> None:
    with pytest.raises(LogReset) as raised:
        cursor(41).begin(welcome(7, reset=True))
    assert (raised.value.after_seq, raised.value.head_seq) == (41, 7)


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (event(1), "a 'event' frame came where 'welcome' was due"),
        (welcome(50, workspace_id="other"), "the stream of the workspace 'other'"),
        (welcome(40), "the log ends at 40 and was not reset"),
    ],
)
def test_what_is_no_answer_to_hello_breaks_the_protocol(frame: ServerFrame, complaint: str) -> None:
    with pytest.raises(StreamBrokenError, match=complaint) as raised:
        cursor(41).begin(frame)
    assert raised.value.violation


def test_a_second_welcome_breaks_the_protocol() -> None:
    with pytest.raises(StreamBrokenError, match="second 'welcome'"):
        begun().take(welcome(1))


def test_frames_that_are_not_for_a_subscriber_are_passed_over() -> None:
    one = begun(3)
    assert one.take(ErrorFrame(rejection=InvalidStateRejection(message="no"))) is None
    assert one.after_seq == 3


class ClientTestEvent(Event, abstract=True, event_namespace="cursortests"):
    pass


class Beat(ClientTestEvent):
    pass


def test_types_are_named_or_given_as_classes() -> None:
    assert cursor(types=[Beat, "ops:beat"]).hello().types == ("cursortests:beat", "ops:beat")


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"after_seq": -1}, "after_seq: -1 is no whole number"),
        ({"after_seq": True}, "after_seq: True is no whole number"),
        ({"after_seq": 1.5}, "after_seq: 1.5 is no whole number"),
        ({"after_seq": MAX_SEQ + 1}, "after_seq: 9223372036854775808 is no whole number"),
        ({"after_seq": 10**5_000}, "after_seq: what was given is no whole number"),
        ({"after_seq": 1, "from_head": True}, "resume_after_seq is 1 and from_head is true"),
        ({"types": []}, "types: "),
        ({"types": "ops:beat"}, r"types: give a list of event types, such as \['ops:beat'\]"),
        ({"types": ["beat"]}, "did you mean 'cursortests:beat'"),
        ({"types": [int]}, "types: "),
        ({"types": [ClientTestEvent]}, "types: "),
    ],
)
def test_a_subscription_that_is_none_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationFailed, match=complaint):
        cursor(**wrong)
