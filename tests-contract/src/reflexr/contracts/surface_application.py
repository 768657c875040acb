"""The application that surfaces are tried with: a shop's events, rules, schedules and permissions."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pydantic import Field

from reflexr.contracts.reacting_trials import ONCE
from reflexr.contracts.samples import HOUR, WORKSPACE
from reflexr.core import (
    Actor,
    Envelope,
    Event,
    EventRegistry,
    Feedback,
    Rule,
    RuleChange,
    StoredRules,
    UserActor,
    by,
    on,
    predicate,
    run,
)
from reflexr.workspace import Access, ManualClock, Pause, Reaction, Schedule, Storage, WorkspaceRef, Workspaces

ELSEWHERE: Final = WorkspaceRef("another-tenant", WORKSPACE.workspace_id)
"""Another tenant's workspace of the same name."""

BESIDE: Final = WorkspaceRef(WORKSPACE.tenant_id, "another-workspace")
"""Another workspace of the same tenant."""

SOMEBODY: Final = UserActor(id="somebody", name="Some Body")
ANOTHER: Final = UserActor(id="another")

ORDERS: Final = "contract_shop:orders"
CHECKS: Final = "contract_shop:checks"
AUDITS: Final = "contract_shop:audits"
STORED: Final = "contract_stored:orders"

_REGISTRY: Final = EventRegistry()


class ShopEvent(Event, abstract=True, event_namespace="contract_shop", registry=_REGISTRY):
    """The events of the shop that surfaces are tried with."""


class Ordered(ShopEvent):
    """Something was ordered, and the rule `contract_shop:orders` acts."""

    shop: str = "north"
    amount: int = 1
    details: dict[str, Any] = Field(default_factory=dict)


class Returned(ShopEvent):
    """Something came back, on which two rules cannot decide."""

    shop: str = "north"


class Shipped(ShopEvent):
    """Something was sent; what only runs publish."""

    shop: str = "north"


class Judgement(Feedback, name="contract_judgement", targets={"run", "firing", "chain"}):
    """Whether something was right."""

    correct: bool
    note: str | None = None


class Review(Feedback, name="contract_review", targets={"run"}):
    """What somebody says of a run alone."""

    stars: int


class Ship:
    """The action: it sends what was ordered, fails while it is told to, or asks first.

    Attributes:
        fails: Whether it fails.
        asks: What it asks, where it was not answered yet.
        says: What it says while it is at work.
    """

    def __init__(self) -> None:
        self.fails = False
        self.asks: Pause | None = None
        self.says: Sequence[str] = ()

    async def __call__(self, reaction: Reaction[None]) -> Any:
        """Makes an attempt."""
        for text in self.says:
            reaction.live.send(text)
        if self.fails:
            raise ValueError("out of stock")
        if self.asks is not None and reaction.answer is None:
            return self.asks
        await reaction.emit(Shipped())
        return {"parcels": len(reaction.envelopes)} if reaction.answer is None else {"told": reaction.answer.value}


@dataclass(frozen=True, slots=True)
class Question:
    """What the permissions were asked.

    Attributes:
        tenant_id: In which tenant.
        workspace_id: In which workspace, if in one.
        actor: Who.
        access: What.
    """

    tenant_id: str
    workspace_id: str | None
    actor: Actor
    access: Access


class Permissions:
    """The application's permissions: whatever was not refused is permitted.

    Attributes:
        asked: What they were asked, in order.
        refused: The actions that nobody may do.
        raised: What is raised when somebody is about to do an action.
    """

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.refused: set[str] = set()
        self.raised: dict[str, Exception] = {}
        self._holds: dict[str, PermissionHold] = {}

    def hold(self, action: str) -> "PermissionHold":
        """Holds up whoever is about to do an action, until they are let go."""
        self._holds[action] = hold = PermissionHold()
        return hold

    def questions(self, action: str) -> list[Question]:
        """Returns what was asked about an action."""
        return [question for question in self.asked if question.access.action == action]

    async def __call__(self, tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> bool:
        """Says whether the actor may do this."""
        self.asked.append(Question(tenant_id, workspace_id, actor, access))
        if access.action in self._holds:
            await self._holds[access.action].pass_through()
        if access.action in self.raised:
            raise self.raised[access.action]
        return access.action not in self.refused


class PermissionHold:
    """Holds up those who ask for permission.

    Attributes:
        reached: Whether somebody is held up, or was.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()

    def let_go(self) -> None:
        """Lets all who are held up go on, and those who come."""
        self._open.set()

    async def pass_through(self) -> None:
        """Waits until everybody is let go."""
        self.reached.set()
        await self._open.wait()


def shop(storage: Storage, clock: ManualClock, permissions: Permissions) -> Workspaces:
    """Returns the application."""
    return Workspaces(
        storage,
        events=[Ordered, Returned],
        emitted=[Shipped],
        rules=_RULES,
        predicates={"is_known": _is_known},
        stored_rules=StoredRules(allow=_allow, actions={"act": None}, namespaces=frozenset({"contract_stored"})),
        schedules=_SCHEDULES,
        registry=_REGISTRY,
        authorize=permissions,
        clock=clock,
    )


def stored_rule(name: str = STORED, **changes: Any) -> dict[str, Any]:
    """Returns a rule as it can be stored and as it travels."""
    return {
        "name": name,
        "when": {
            "filter": {"kind": "on", "types": [Ordered.event_type]},
            "throttle": {"at_most": 5, "per": "PT5M"},
        },
        "then": {"action": "act"},
        **changes,
    }


def _allow(_tenant: str, _workspace: str, _actor: Actor, change: RuleChange) -> bool:
    return change.name != "contract_stored:forbidden"


def _is_known(_: Envelope) -> bool:
    raise LookupError("nobody knows")


def _checked(name: str) -> Rule:
    return Rule(name=name, when=on(Returned).where(predicate("is_known")), then=run("act"))


_RULES: Final[Sequence[Rule]] = (
    Rule(name=ORDERS, when=on(Ordered), scope=by("shop"), then=run("act"), retry=ONCE),
    _checked(CHECKS),
    _checked(AUDITS),
)

_SCHEDULES: Final[Sequence[Schedule]] = (
    Schedule(name="hourly", every=HOUR),
    Schedule(
        name="mornings",
        cron="0 9 * * mon-fri",
        timezone="Europe/Oslo",
        targets=frozenset({WORKSPACE}),
    ),
    Schedule(name="theirs", every=timedelta(days=1), targets=frozenset({ELSEWHERE})),
    Schedule(name="shared", every=timedelta(days=7), targets=frozenset({WORKSPACE, ELSEWHERE})),
)
