import pytest

from reflexr.core import EventRegistry, Rule, RuleReset, UserActor, on, reset, run
from reflexr.core.decisions import REACTOR
from reflexr.core.rejections import ValidationFailed
from reflexr.core.resets import ReplayMode
from reflexr.core.states import RuleProgress

RULE = Rule(name="ops:r", when=on("ops:a"), then=run("act"))
BEFORE = RuleProgress("ops:r", 3, 8, "old", 2)


def test_a_rule_that_changed_starts_after_the_head_with_its_new_definition() -> None:
    after = reset(RULE, BEFORE, head_seq=10)

    assert after.progress == RuleProgress("ops:r", 4, 10, RULE.definition(), 0)
    assert EventRegistry().parse(after.fact.payload) == RuleReset(
        rule="ops:r", generation=4, reason="changed", from_seq=11, silent_through=0
    )
    assert (after.fact.actor, after.fact.correlation_id, after.fact.causation) == (REACTOR, after.fact.id, None)


@pytest.mark.parametrize(("mode", "silent_through"), [("rebuild", 10), ("refire", 0)])
@pytest.mark.parametrize("from_seq", [1, 5, 11])
def test_a_rule_that_is_replayed_starts_where_it_is_told(mode: ReplayMode, silent_through: int, from_seq: int) -> None:
    after = reset(RULE, BEFORE, head_seq=10, from_seq=from_seq, mode=mode, actor=UserActor(id="ada"))

    assert after.progress == RuleProgress("ops:r", 4, from_seq - 1, RULE.definition(), silent_through)
    assert EventRegistry().parse(after.fact.payload) == RuleReset(
        rule="ops:r", generation=4, reason="replayed", from_seq=from_seq, silent_through=silent_through
    )
    assert after.fact.actor == UserActor(id="ada")


def test_a_replay_without_a_place_starts_after_the_head() -> None:
    assert reset(RULE, BEFORE, head_seq=0, mode="refire").progress.cursor == 0


@pytest.mark.parametrize("from_seq", [0, -1, 12, 2**70])
def test_a_place_outside_the_log_is_refused_with_those_inside(from_seq: int) -> None:
    with pytest.raises(ValidationFailed, match=rf"from_seq is 1 to 11, the place after the log's last, not {from_seq}"):
        reset(RULE, BEFORE, head_seq=10, from_seq=from_seq, mode="refire")


def test_each_reset_has_a_fact_of_its_own() -> None:
    first = reset(RULE, BEFORE, head_seq=10)
    second = reset(RULE, first.progress, head_seq=10)

    assert first.fact.id != second.fact.id
    assert first == reset(RULE, BEFORE, head_seq=10)
