from datetime import timedelta

from oncall.actions import Deps, Firewall, Pager
from oncall.rules import BRUTE_FORCE
from reflexr.core import Run

from .envelopes import ATTACKER, OTHER, at, failure, fire, log


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


def succeeded(output: dict[str, object]) -> Run:
    (run,) = fire(BRUTE_FORCE, log(*((second, failure()) for second in range(5))))
    return run.model_copy(update={"status": "succeeded", "output": output})


def test_what_an_earlier_process_did_is_known() -> None:
    deps = Deps()
    deps.remember("block", succeeded({"said": "blocked", "address": ATTACKER, "until": at(60).isoformat()}))
    deps.remember("page", succeeded({"said": "page 1: wake up", "page": 1}))
    deps.remember("close", succeeded({"said": "closed", "address": OTHER, "blocked_until": at(90).isoformat()}))
    assert deps.firewall.blocked_until(ATTACKER) == at(60)
    assert deps.firewall.blocked_until(OTHER) is None
    assert deps.pager.page("another run", "wake up") == 2
