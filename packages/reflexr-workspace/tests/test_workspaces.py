import asyncio
from datetime import timedelta
from typing import Any

import pytest

from reflexr.core import DEFAULT_REGISTRY, Event, EventRegistry, F, RuleError, Tick, ValidationFailed, on
from reflexr.workspace import InMemoryStorage, WorkspaceRef, Workspaces
from reflexr.workspace.schedules import Schedule

from .plant import ADA, REF, Alarm, Opened, PlantEvent, Repaired, alarms, opened, stored, stored_rules, workspaces


class Unwritten(PlantEvent, abstract=True):
    """No event type."""


class Foreign(Event, abstract=True, event_namespace="plant_foreign", registry=EventRegistry()):
    """In a registry of its own."""


class Landed(Foreign):
    pass


def test_every_problem_is_listed_in_one_error() -> None:
    wrong: dict[str, Any] = {
        "events": [Alarm, Alarm, Opened, Unwritten, Tick, Landed],
        "emitted": [Alarm],
        "rules": [
            alarms(),
            alarms(),
            alarms("plant:typo", when=on("plant:alarm").where(F.machine.eq("m")), scope={"fields": ["machin"]}),
            alarms("plant:late", when=on("plant:late_type")),
            stored(),
            alarms("plant:copy").model_copy(update={"retry": None}),
            alarms("plant:unwritable").model_copy(update={"description": "\ud800"}),
        ],
        "predicates": {"late": asyncio.sleep, "none": None},
        "stored_rules": stored_rules(),
        "schedules": [Schedule.model_validate({"name": "s", "every": "PT1M"})] * 2,
        "max_depth": 0,
    }

    with pytest.raises(RuleError) as refused:
        Workspaces(InMemoryStorage(), **wrong)

    expected = [
        "events: Alarm is there twice",
        "events: Unwritten is an abstract base",
        "events: 'reflexr:tick' is reflexr's own",
        "events: 'plant_foreign:landed' is in no namespace of the registry",
        "emitted: 'plant:alarm' is in events= too",
        "rules: two rules are named 'plant:alarms'",
        "rule 'plant:typo': scope.fields.0",
        "rule 'plant:late': when.filter.types.0",
        "rule 'chat:alarms': its namespace is one of stored rules'",
        "rule 'plant:copy': retry: ",
        "rule 'plant:unwritable': it cannot be written as JSON",
        "predicates: 'late' is",
        "predicates: 'none' is",
        "schedules: two schedules are named 's'",
        "max_depth: 0",
    ]
    problems = refused.value.problems
    assert [any(problem.startswith(start) for problem in problems) for start in expected] == [True] * len(expected)
    assert len(problems) == len(expected)


def test_rules_are_checked_against_the_registry_that_was_given() -> None:
    with pytest.raises(RuleError, match="plant_foreign:landed"):
        workspaces(rules=[alarms(when=on(Landed), scope={})])

    registry = EventRegistry(PlantEvent, Foreign)
    host = workspaces(
        events=[Landed, Alarm], emitted=[Repaired], rules=[alarms(when=on(Landed), scope={})], registry=registry
    )
    assert list(host.rules) == ["plant:alarms"]
    assert host.configuration.settings.registry is registry
    assert "plant_foreign:landed" not in DEFAULT_REGISTRY


@pytest.mark.parametrize("bad", ["", "x" * 256, "a\0b", "\ud800"])
async def test_a_workspace_is_named_by_ids(bad: str) -> None:
    host = workspaces()

    with pytest.raises(ValidationFailed, match="tenant_id"):
        await host.open(bad, "prod", actor=ADA)
    with pytest.raises(ValidationFailed, match="workspace_id"):
        await host.open("acme", bad, actor=ADA)


async def test_a_handle_says_whose_it_is() -> None:
    workspace = await opened()

    assert (workspace.tenant_id, workspace.workspace_id, workspace.ref) == ("acme", "prod", REF)
    assert (workspace.actor, workspace.causation) == (ADA, None)


async def test_a_workspaces_rules_are_the_code_rules_then_its_active_stored_rules() -> None:
    storage = InMemoryStorage()
    host = workspaces(storage, stored_rules=stored_rules())
    workspace = await host.open("acme", "prod", actor=ADA)
    await workspace.install_rule(stored())
    await workspace.install_rule(stored("chat:gone"))
    await workspace.archive_rule("chat:gone")

    assert await host.rules_in(workspace) == {"plant:alarms": alarms(), "chat:alarms": stored()}
    assert list(await host.rules_in(WorkspaceRef("acme", "test"))) == ["plant:alarms"]
    assert list(await workspaces(storage).rules_in(workspace)) == ["plant:alarms"]
    async with storage.transaction(REF) as transaction:
        assert list(await host.rules_in(transaction)) == ["plant:alarms", "chat:alarms"]
        archived = (await transaction.stored_rules())["chat:alarms"].model_copy(
            update={"version": 2, "status": "archived"}
        )
        await transaction.save_stored_rules([archived])
        assert list(await host.rules_in(transaction)) == ["plant:alarms"]


def test_metrics_call_a_stored_rule_by_its_namespace() -> None:
    configuration = workspaces(stored_rules=stored_rules()).configuration

    assert configuration.rule_label("plant:alarms") == "plant:alarms"
    assert configuration.rule_label("chat:alarms") == "chat:*"


async def test_the_rules_of_a_tenant_are_the_code_rules() -> None:
    made = workspaces(rules=[alarms(), alarms("plant:more")])

    assert [rule.name for rule in await made.list_rules("acme", actor=ADA)] == ["plant:alarms", "plant:more"]


async def test_the_schedules_of_a_tenant_are_those_that_tick_in_it_and_name_no_other_tenant() -> None:
    every = timedelta(minutes=1)
    everywhere = Schedule(name="everywhere", every=every)
    shared = Schedule(
        name="shared", every=every, targets=frozenset((WorkspaceRef("acme", "prod"), WorkspaceRef("zeta", "prod")))
    )
    elsewhere = Schedule(name="elsewhere", every=every, targets=frozenset((WorkspaceRef("zeta", "prod"),)))
    made = workspaces(schedules=[everywhere, shared, elsewhere])

    found = await made.list_schedules("acme", actor=ADA)

    assert [(schedule.name, schedule.targets) for schedule in found] == [
        ("everywhere", None),
        ("shared", frozenset((WorkspaceRef("acme", "prod"),))),
    ]
