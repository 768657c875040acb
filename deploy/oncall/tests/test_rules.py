from oncall.actions import ACTIONS, BlockParams
from oncall.events import LogAdvanced
from oncall.rules import BRUTE_FORCE, GAVE_UP, GUESSED, RULES
from reflexr.core import Envelope, Rule, load_params

from .envelopes import ATTACKER, OTHER, acceptance, at, failure, fire, log


def firings(rule: Rule, envelopes: list[Envelope]) -> list[tuple[object, object]]:
    return [(run.scope["address"], run.fired_at) for run in fire(rule, envelopes)]


def test_every_rule_can_work_and_has_its_action() -> None:
    assert [rule.check() for rule in RULES] == [[], [], []]
    assert {rule.then.action for rule in RULES} == ACTIONS.keys()
    assert load_params(BRUTE_FORCE.then, BlockParams) == BlockParams(minutes=15)


def test_five_failures_inside_a_minute_are_brute_force() -> None:
    assert firings(BRUTE_FORCE, log(*((second, failure()) for second in (0, 10, 20, 30, 59)))) == [(ATTACKER, at(59))]


def test_five_failures_in_a_whole_minute_are_not() -> None:
    assert firings(BRUTE_FORCE, log(*((second, failure()) for second in (0, 10, 20, 30, 60)))) == []


def test_addresses_are_counted_apart() -> None:
    mixed = [(second, failure(address)) for second in range(4) for address in (ATTACKER, OTHER)]
    assert firings(BRUTE_FORCE, log(*mixed)) == []
    assert firings(BRUTE_FORCE, log(*mixed, (5, failure(OTHER)))) == [(OTHER, at(5))]


def test_brute_force_is_told_once_in_fifteen_minutes() -> None:
    attempts = [(second, failure()) for second in range(0, 1000, 5)]
    assert firings(BRUTE_FORCE, log(*attempts)) == [(ATTACKER, at(20)), (ATTACKER, at(920))]


def test_who_fails_and_then_gets_in_within_an_hour_guessed() -> None:
    (run,) = fire(GUESSED, log((0, failure()), (10, failure()), (3609, acceptance())))
    assert (run.scope, run.matched) == ({"address": ATTACKER}, (2, 3))


def test_who_gets_in_an_hour_later_or_from_elsewhere_or_at_once_did_not() -> None:
    assert fire(GUESSED, log((0, failure()), (3600, acceptance()))) == []
    assert fire(GUESSED, log((0, failure()), (10, acceptance(OTHER)))) == []
    assert fire(GUESSED, log((0, acceptance()), (10, acceptance()))) == []


def test_ten_silent_minutes_are_giving_up_once() -> None:
    later = [(seconds, LogAdvanced(line=1)) for seconds in (605, 610, 2000)]
    assert firings(GAVE_UP, log((0, failure()), (10, failure()), *later)) == [(ATTACKER, at(610))]


def test_an_acceptance_is_no_end_of_the_silence() -> None:
    assert firings(GAVE_UP, log((0, failure()), (300, acceptance()), (600, acceptance()))) == [(ATTACKER, at(600))]
