from typing import Any

import pytest

from reflexr.core import MAX_SEQ, Feedback, RunTarget, ValidationFailed
from reflexr.workspace import NewEvent

from .plant import Alarm, Opened, Verdict, opened, stored_rules


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit": 1, "last": 1}, "not both"),
        ({"after_seq": -1}, "after_seq: -1"),
        ({"before_seq": MAX_SEQ + 1}, "before_seq"),
        ({"limit": True}, "limit: True"),
        ({"last": 1.5}, "last: 1.5"),
        ({"types": "plant:alarm"}, "types: give a list"),
        ({"types": ["alarm"]}, "did you mean 'plant:alarm'"),
        ({"types": [7]}, "types: 7"),
        ({"types": 7}, "types: 7"),
        ({"types": [["plant:alarm"]]}, "types: ['plant:alarm']"),
        ({"types": [int]}, "types: <class 'int'>"),
        ({"limit": 10**5_000}, "limit: what was given is no whole number"),
        ({"types": [None, "a:b\n"]}, "types: 'a:b\\n'"),
    ],
)
async def test_a_window_that_is_none_is_refused(arguments: Any, error: str) -> None:
    workspace = await opened()

    with pytest.raises(ValidationFailed) as refused:
        await workspace.read(**arguments)

    assert any(error in problem for problem in refused.value.errors)


async def test_a_window_takes_types_as_classes_and_as_names_also_those_nobody_knows() -> None:
    workspace = await opened()
    await workspace.publish_many([Alarm(machine="press"), Opened(), Alarm(machine="saw")])

    envelopes = await workspace.read(types=[Alarm, "newer:type"], last=1, before_seq=MAX_SEQ)

    assert [envelope.seq for envelope in envelopes] == [3]
    assert await workspace.read(types=[]) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"limit": -1}, "limit: -1"), ({"status": "lost"}, "'dead_lettered'"), ({"status": ["pending"]}, "status: [")],
)
async def test_a_query_for_runs_that_is_none_is_refused(arguments: Any, error: str) -> None:
    workspace = await opened()

    with pytest.raises(ValidationFailed) as refused:
        await workspace.runs(**arguments)

    assert error in refused.value.errors[0]


@pytest.mark.parametrize("bad", ["a\0b", "\ud800", 7, ["x"]])
async def test_a_text_that_no_storage_can_hold_names_nothing(bad: Any) -> None:
    workspace = await opened(stored_rules=stored_rules())

    for request in (
        workspace.run(bad),
        workspace.skip_run(bad),
        workspace.runs(rule=bad),
        workspace.runs(scope_key=bad),
        workspace.get_rule(bad),
        workspace.rule_history(bad),
        workspace.dead_letters(rule=bad),
        workspace.replay_rule(bad, from_seq=1, mode="rebuild"),
        workspace.archive_rule(bad),
        workspace.cursor(bad),
    ):
        with pytest.raises(ValidationFailed):
            await request


async def test_numbers_and_names_of_other_requests_are_checked_too() -> None:
    workspace = await opened()

    for request in (
        workspace.dead_letters(limit=-1),
        workspace.save_cursor("mirror", -1),
        workspace.save_cursor("", 1),
        workspace.replay_rule("plant:alarms", from_seq=MAX_SEQ + 1, mode="rebuild"),
        workspace.archive_rule("chat:alarms", expected_version=-1),
    ):
        with pytest.raises(ValidationFailed):
            await request


@pytest.mark.parametrize("events", [Alarm(machine="press"), {"type": "plant:alarm"}, NewEvent(Opened()), "plant:alarm"])
async def test_what_is_published_together_is_a_list(events: Any) -> None:
    workspace = await opened()

    with pytest.raises(ValidationFailed, match=r"is no list of events: publish it alone, or write \[event\]"):
        await workspace.publish_many(events)
    assert await workspace.head_seq() == 0


@pytest.mark.parametrize(
    ("feedback", "target", "error"),
    [
        (Verdict(correct=True), "fir_1", "target: 'fir_1' is no target: write RunTarget(run_id='fir_1'), or a Firing"),
        (Verdict(correct=True), {"kind": "run", "run_id": "fir_1"}, "is no target: write RunTarget(run_id=...)"),
        (Verdict(correct=True), RunTarget.model_construct(), "is no target"),
        ({"correct": True}, RunTarget(run_id="fir_1"), "feedback: {'correct': True} is no feedback"),
        (Feedback(), RunTarget(run_id="fir_1"), "is no feedback: give one of a class of yours, a subclass of Feedback"),
    ],
)
async def test_feedback_is_given_on_a_target_and_both_are_models(feedback: Any, target: Any, error: str) -> None:
    workspace = await opened()

    with pytest.raises(ValidationFailed) as refused:
        await workspace.give_feedback(feedback, on=target)

    assert error in str(refused.value)
