"""What the tests of workspaces share: a plant's events, its rules, and workspaces of it in memory."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from reflexr.core import (
    Causation,
    Draft,
    Event,
    F,
    Feedback,
    Rule,
    Run,
    RunStatus,
    StoredRules,
    UserActor,
    by,
    on,
    run,
)
from reflexr.workspace import InMemoryStorage, ManualClock, Workspace, WorkspaceRef, Workspaces

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ADA = UserActor(id="ada")
BOB = UserActor(id="bob")
REF = WorkspaceRef("acme", "prod")


class PlantEvent(Event, abstract=True, event_namespace="plant"):
    """The plant's events."""


class Alarm(PlantEvent):
    machine: str
    level: int = 1


class Stopped(PlantEvent, name="machine.stopped"):
    machine: str
    minutes: float = 0.0
    details: Any = None


class Opened(PlantEvent, extra="allow"):
    """Open for fields of any name."""


class Repaired(PlantEvent):
    """What only runs publish."""

    machine: str


class Verdict(Feedback, name="plant_verdict", targets={"run", "chain"}):
    correct: bool
    severity: Literal["low", "high"] = "low"


class Missed(Feedback, name="plant_missed", targets={"firing"}):
    should_fire: bool


def alarms(name: str = "plant:alarms", **changes: Any) -> Rule:
    return Rule.model_validate(
        {"name": name, "when": on(Alarm).where(F.level >= 3), "scope": by(F.machine), "then": run("page")} | changes
    )


def stored(name: str = "chat:alarms", **changes: Any) -> Rule:
    when = on(Alarm).at_most(1, per=timedelta(minutes=5))
    return Rule.model_validate({"name": name, "when": when, "then": run("page")} | changes)


def stored_rules(allow: Callable[..., Any] = lambda *_: True) -> StoredRules:
    return StoredRules(allow=allow, actions={"page": None}, namespaces=frozenset({"chat"}))


def workspaces(storage: InMemoryStorage | None = None, **options: Any) -> Workspaces:
    settings: dict[str, Any] = {
        "events": [Alarm, Stopped, Opened],
        "emitted": [Repaired],
        "rules": [alarms()],
        **options,
    }
    return Workspaces(InMemoryStorage(clock=ManualClock(START)) if storage is None else storage, **settings)


async def opened(storage: InMemoryStorage | None = None, **options: Any) -> Workspace:
    return await workspaces(storage, **options).open("acme", "prod", actor=ADA)


def draft(event_id: str, *, machine: str = "press", chain: str | None = None, kind: str = "plant:alarm") -> Draft:
    return Draft(
        id=event_id,
        payload={"type": kind, "machine": machine},
        actor=ADA,
        correlation_id=event_id if chain is None else chain,
    )


def a_run(
    run_id: str = "fir_1",
    *,
    rule: str = "plant:alarms",
    scope_key: str = '["press"]',
    status: RunStatus = "pending",
    seq: int = 1,
    chain: str = "first",
    **changes: Any,
) -> Run:
    return Run(
        id=run_id,
        rule=rule,
        generation=1,
        scope={"machine": "press"},
        scope_key=scope_key,
        fired_seq=seq,
        fired_at=START,
        matched=(seq,),
        correlation_id=chain,
        depth=1,
        status=status,
        **changes,
    )


def cause(run_id: str = "fir_1", depth: int = 1) -> Causation:
    return Causation(firing_id=run_id, run_id=run_id, depth=depth)


async def save(storage: InMemoryStorage, *runs: Run, ref: WorkspaceRef = REF) -> None:
    async with storage.transaction(ref) as transaction:
        await transaction.save_runs(runs)


async def append(storage: InMemoryStorage, *ids: str, ref: WorkspaceRef = REF) -> None:
    async with storage.transaction(ref) as transaction:
        await transaction.append([draft(event_id) for event_id in ids])
