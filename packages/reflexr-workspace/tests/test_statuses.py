from datetime import timedelta

import pytest

from reflexr.core import DeadLetter, NotFound, RuleProgress, StoredRule
from reflexr.workspace import InMemoryStorage, ManualClock, RuleDescription, RuleStatus, ScheduleStatus
from reflexr.workspace.schedules import Schedule

from .plant import REF, SECOND, START, alarms, append, opened, stored, stored_rules


async def test_the_status_of_each_rule_says_where_it_comes_from_and_how_far_it_is() -> None:
    storage = InMemoryStorage()
    workspace = await opened(storage, rules=[alarms(), alarms("plant:off", enabled=False)], stored_rules=stored_rules())
    await append(storage, "a", "b")
    await workspace.install_rule(stored())
    letter = DeadLetter(
        rule="plant:alarms", generation=1, seq=1, scope_key=None, ts=START, kind="scope_missing", error="no"
    )
    async with storage.transaction(REF) as transaction:
        await transaction.save_progress([RuleProgress(rule="plant:alarms", generation=2, cursor=1, definition="d")])
        await transaction.add_dead_letters([letter])

    assert await workspace.rule_statuses() == [
        RuleStatus(
            rule="plant:alarms",
            origin="code",
            version=None,
            enabled=True,
            generation=2,
            cursor=1,
            lag=2,
            dead_letters=1,
        ),
        RuleStatus(
            rule="plant:off",
            origin="code",
            version=None,
            enabled=False,
            generation=None,
            cursor=None,
            lag=3,
            dead_letters=0,
        ),
        RuleStatus(
            rule="chat:alarms", origin="stored", version=1, enabled=True, generation=1, cursor=3, lag=0, dead_letters=0
        ),
    ]
    assert await workspace.dead_letters(rule="plant:alarms", limit=1) == [letter]
    assert await workspace.dead_letters() == [letter]


async def test_one_rule_is_described_with_its_version_and_provenance_also_once_it_is_archived() -> None:
    workspace = await opened(stored_rules=stored_rules())
    await workspace.install_rule(stored(), provenance={"from": "chat"})
    await workspace.archive_rule("chat:alarms")

    assert await workspace.get_rule("plant:alarms") == RuleDescription(rule=alarms(), origin="code")
    assert await workspace.get_rule("chat:alarms") == RuleDescription(
        rule=stored(), origin="stored", version=2, status="archived", provenance={"from": "chat"}
    )


@pytest.mark.parametrize("name", ["plant:unheard", "chat:unheard", "nonsense"])
async def test_a_rule_that_the_workspace_does_not_have_is_not_found(name: str) -> None:
    for workspace in (await opened(), await opened(stored_rules=stored_rules())):
        with pytest.raises(NotFound, match=name):
            await workspace.get_rule(name)


async def test_a_stored_rule_outside_the_configured_namespaces_is_none_of_the_workspaces() -> None:
    storage = InMemoryStorage()
    async with storage.transaction(REF) as transaction:
        await transaction.save_stored_rules([StoredRule(rule=stored("old:alarms"), version=1)])

    workspace = await opened(storage, stored_rules=stored_rules())

    assert [status.rule for status in await workspace.rule_statuses()] == ["plant:alarms"]
    with pytest.raises(NotFound):
        await workspace.get_rule("old:alarms")


async def test_the_status_of_each_schedule_that_targets_the_workspace_says_when_it_ticks() -> None:
    clock = ManualClock(START + SECOND)
    storage = InMemoryStorage(clock=clock)
    schedules = [
        Schedule(name="minutely", every=timedelta(minutes=1)),
        Schedule(name="hourly", every=timedelta(hours=1)),
        Schedule.model_validate({"name": "elsewhere", "every": "PT1M", "targets": [("acme", "test")]}),
    ]
    workspace = await opened(storage, schedules=schedules, clock=clock)
    async with storage.transaction(REF) as transaction:
        await transaction.save_schedule_ticks({"minutely": START + timedelta(minutes=1)})

    assert await workspace.schedule_statuses() == [
        ScheduleStatus(
            schedule="minutely",
            last_tick=START + timedelta(minutes=1),
            next_tick=START + timedelta(minutes=2),
        ),
        ScheduleStatus(schedule="hourly", last_tick=None, next_tick=START + timedelta(hours=1)),
    ]
    assert await workspace.schedule_ticks() == {"minutely": START + timedelta(minutes=1)}
