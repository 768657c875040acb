from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from oncall.events import LogAdvanced, LoginAccepted, LoginFailed
from oncall.rules import BRUTE_FORCE, GAVE_UP, GUESSED, RULES
from oncall.timeline import Acceptance, Burst, Decision, Entry, Timeline
from reflexr.core import Envelope, Event

from .envelopes import ATTACKER, OTHER, acceptance, at, decide, failure, log


def told(envelopes: list[Envelope], decisions: Iterable[Decision] = ()) -> list[Entry]:
    timeline = Timeline()
    return [*timeline.add(envelopes, decisions), *timeline.finish()]


def test_failures_soon_after_one_another_are_one_burst() -> None:
    events = log((0, failure()), (59, failure(user="bob", exists=False)), (118, failure(user="bob", exists=False)))
    assert told(events) == [Burst(ATTACKER, at(0), at(118), 3, {"root": True, "bob": False})]


def test_what_is_no_login_tells_what_time_it_is_and_no_more() -> None:
    timeline = Timeline()
    entries = list(timeline.add(log((0, failure()), (60, LogAdvanced(line=7))), ()))
    assert entries == [Burst(ATTACKER, at(0), at(0), 1, {"root": True})]


def test_after_a_minute_another_begins() -> None:
    assert told(log((0, failure()), (60, failure()))) == [
        Burst(ATTACKER, at(0), at(0), 1, {"root": True}),
        Burst(ATTACKER, at(60), at(60), 1, {"root": True}),
    ]


def test_a_burst_without_a_pause_is_told_after_a_quarter_of_an_hour() -> None:
    timeline = Timeline()
    entries = list(timeline.add(log(*((second, failure()) for second in range(0, 1000, 10))), ()))
    assert entries == [Burst(ATTACKER, at(0), at(890), 90, {"root": True})]
    assert list(timeline.finish()) == [Burst(ATTACKER, at(900), at(990), 10, {"root": True})]


def test_bursts_of_two_addresses_stay_apart_and_come_as_they_began() -> None:
    entries = told(log((0, failure()), (1, failure(OTHER)), (2, failure()), (70, failure(OTHER))))
    assert [(entry.address, entry.failures) for entry in entries if isinstance(entry, Burst)] == [
        (ATTACKER, 2),
        (OTHER, 1),
        (OTHER, 1),
    ]


def test_an_acceptance_ends_a_burst() -> None:
    entered = acceptance()
    assert told(log((0, failure()), (1, entered), (2, failure()))) == [
        Burst(ATTACKER, at(0), at(0), 1, {"root": True}),
        Acceptance(at(1), entered),
        Burst(ATTACKER, at(2), at(2), 1, {"root": True}),
    ]


def test_a_decision_comes_after_the_envelope_that_brought_it_about() -> None:
    events = log(*((second, failure()) for second in range(8)))
    (decision,) = decide(BRUTE_FORCE, events)
    assert told(events, [decision]) == [
        Burst(ATTACKER, at(0), at(4), 5, {"root": True}),
        decision,
        Burst(ATTACKER, at(5), at(7), 3, {"root": True}),
    ]


def test_a_decision_about_silence_comes_before_the_envelope_that_ended_it() -> None:
    events = log((0, failure()), (600, failure()))
    (decision,) = decide(GAVE_UP, events)
    assert decision.is_of_silence
    assert told(events, [decision]) == [
        Burst(ATTACKER, at(0), at(0), 1, {"root": True}),
        decision,
        Burst(ATTACKER, at(600), at(600), 1, {"root": True}),
    ]


def test_a_decision_at_a_place_that_no_login_has_comes_in_its_order() -> None:
    events = log((0, failure()), (600, acceptance(OTHER)), (601, acceptance(OTHER)))
    (decision,) = decide(GAVE_UP, events)
    assert told([events[0], events[2]], [decision])[1:] == [decision, Acceptance(at(601), acceptance(OTHER))]


def test_a_burst_holds_back_what_began_after_it_until_it_is_over() -> None:
    timeline = Timeline()
    events = log((0, failure()), (1, acceptance(OTHER)), (61, acceptance(OTHER)))
    assert list(timeline.add(events[:2], ())) == []
    assert len(list(timeline.add(events[2:], ()))) == 3


steps = st.tuples(
    st.sampled_from([0, 1, 5, 30, 59, 60, 300, 600, 901]),
    st.sampled_from([failure(), failure(OTHER), failure(user="bob", exists=False), acceptance(), acceptance(OTHER)]),
)


def spread(parts: list[tuple[int, Event]]) -> list[Envelope]:
    events: list[tuple[float, Event]] = []
    seconds = 0
    for step, event in parts:
        seconds += step
        events.append((seconds, event))
    return log(*events)


@given(st.lists(steps, min_size=1, max_size=60), st.sets(st.integers(0, 60)))
def test_the_story_is_whole_in_order_and_the_same_however_the_log_is_cut(
    parts: list[tuple[int, Event]], cuts: set[int]
) -> None:
    envelopes = spread(parts)
    decisions = [decision for rule in RULES for decision in decide(rule, envelopes)]
    whole = told(envelopes, decisions)

    timeline = Timeline()
    pieces: list[Entry] = []
    start = 0
    for end in [*sorted(cut for cut in cuts if cut < len(envelopes)), len(envelopes)]:
        seen = [one for one in decisions if start < one.run.fired_seq <= end]
        pieces += timeline.add(envelopes[start:end], seen)
        start = end
    pieces += timeline.finish()

    assert pieces == whole
    begun = [
        entry.first if isinstance(entry, Burst) else entry.time if isinstance(entry, Acceptance) else entry.run.fired_at
        for entry in whole
    ]
    assert begun == sorted(begun)
    assert sum(entry.failures for entry in whole if isinstance(entry, Burst)) == sum(
        isinstance(envelope.event, LoginFailed) for envelope in envelopes
    )
    assert sum(isinstance(entry, Acceptance) for entry in whole) == sum(
        isinstance(envelope.event, LoginAccepted) for envelope in envelopes
    )
    assert sum(isinstance(entry, Decision) for entry in whole) == len(decisions)


def test_a_guess_is_told_after_the_login_it_is_about() -> None:
    events = log((0, failure()), (1, acceptance()))
    (decision,) = decide(GUESSED, events)
    assert told(events, [decision])[1:] == [Acceptance(at(1), acceptance()), decision]
