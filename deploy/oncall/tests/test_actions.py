from datetime import timedelta

from oncall.actions import Firewall, Pager

from .envelopes import ATTACKER, OTHER, at


def test_a_block_lasts_until_its_latest_end() -> None:
    firewall = Firewall()
    firewall.block(ATTACKER, at(60))
    firewall.block(ATTACKER, at(60) - timedelta(seconds=1))
    assert firewall.blocked_until(ATTACKER) == at(60)
    firewall.block(ATTACKER, at(90))
    assert firewall.blocked_until(ATTACKER) == at(90)


def test_who_never_was_blocked_has_no_end() -> None:
    assert Firewall().blocked_until(OTHER) is None


def test_a_page_is_sent_once_however_often_it_is_asked_for() -> None:
    pager = Pager()
    assert [pager.page(key, "wake up") for key in ("run-1", "run-2", "run-1")] == [1, 2, 1]
