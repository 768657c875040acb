"""The operations of a company: an application of its own, served to users that a token names.

It has events, one of them only for runs, code rules, stored rules, schedules, also for another tenant, and feedback.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import httpx
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from reflexr.core import (
    Actor,
    Envelope,
    EvaluatorActor,
    Event,
    EventRegistry,
    ExternalAgentActor,
    F,
    Feedback,
    RetryPolicy,
    Rule,
    SourceActor,
    StoredRules,
    SystemActor,
    UserActor,
    by,
    on,
    predicate,
    run,
)
from reflexr.fastapi import ReflexrRouter, Unauthorized, reflexr_router
from reflexr.workspace import (
    Access,
    InMemoryStorage,
    ManualClock,
    Reaction,
    Reactor,
    Schedule,
    Storage,
    Workspace,
    WorkspaceRef,
    Workspaces,
)

from .serving import Served, served

START: Final = datetime(2026, 1, 1, tzinfo=UTC)

PROD: Final = WorkspaceRef("acme", "prod")
THEIRS: Final = WorkspaceRef("globex", "prod")
"""Another tenant's workspace of the same name."""

ADA: Final = UserActor(id="ada", name="Ada")
BEN: Final = UserActor(id="ben")
EVE: Final = UserActor(id="eve")

TOKENS: Final[dict[str, tuple[str, Actor]]] = {
    "ada": ("acme", ADA),
    "ben": ("acme", BEN),
    "eve": ("globex", EVE),
    "monitor": ("acme", SourceActor(name="monitor")),
    "assistant": ("acme", ExternalAgentActor(client_id="assistant", name="Assistant", on_behalf_of="ada")),
    "judge": ("acme", EvaluatorActor(name="judge", version="1")),
    "backfill": ("acme", SystemActor(name="backfill")),
}
"""Whom each token names: their tenant, and the actor. Eve is of another tenant than the rest."""

EVENTS: Final = "/workspaces/prod/events"
COMMANDS: Final = "/workspaces/prod/commands"
RUNS: Final = "/workspaces/prod/runs"
RULES: Final = "/workspaces/prod/rules"
DEAD_LETTERS: Final = "/workspaces/prod/dead-letters"
SCHEDULES: Final = "/workspaces/prod/schedules"

SPIKES: Final = "ops:error-spike"
"""The rule that runs `triage` at each severe error, for each service in order."""

CHECKS: Final = "ops:checks"
"""The rule that can decide on nothing."""

REGISTRY: Final = EventRegistry()


class OpsEvent(Event, abstract=True, event_namespace="ops", registry=REGISTRY):
    """The events of operations."""


class ServiceError(OpsEvent, name="service.error"):
    """A service failed; from a severity of 5 on, `ops:error-spike` fires."""

    service: str = "auth"
    severity: int = 1
    details: Any = None


class Deployed(OpsEvent):
    """Something was put into production; nothing fires."""

    service: str
    version: str = "1"


class Checked(OpsEvent):
    """Something was looked at, on which `ops:checks` cannot decide."""

    service: str = "auth"


class Triaged(OpsEvent):
    """What only runs publish."""

    service: str
    severity: Literal["low", "high"] = "high"


class Verdict(Feedback, name="ops_verdict", targets={"run", "firing", "chain"}):
    """Whether something was right."""

    correct: bool
    note: str | None = None


class Permissions:
    """The router's permissions: whatever was not refused is permitted.

    Attributes:
        refused: The actions that nobody may do.
        asked: What they were asked, in order: the tenant, the workspace, who, and what.
    """

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.asked: list[tuple[str, str | None, Actor, Access]] = []

    def __call__(self, tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> bool:
        self.asked.append((tenant_id, workspace_id, actor, access))
        return access.action not in self.refused


@dataclass
class Ops:
    """The application.

    Attributes:
        workspaces: Its workspaces.
        reactor: What carries out its runs; a test settles it.
        clock: The clock of its storage, if that is its own.
        permissions: What the router asks besides the application.
        router: The router.
        app: The application of FastAPI that includes the router.
        triage_fails: Whether the action fails.
        triage_says: What the action says while it is at work.
    """

    workspaces: Workspaces
    clock: ManualClock
    permissions: Permissions
    router: ReflexrRouter
    app: FastAPI
    triage_fails: bool = False
    triage_says: Sequence[str] = ()
    reactor: Reactor[None] = field(init=False)

    def __post_init__(self) -> None:
        self.reactor = Reactor(self.workspaces, actions={"triage": self._triage})

    async def open(self, ref: WorkspaceRef = PROD, actor: Actor = ADA) -> Workspace:
        """Returns a workspace in process."""
        return await self.workspaces.open(ref.tenant_id, ref.workspace_id, actor=actor)

    async def _triage(self, reaction: Reaction[None]) -> dict[str, Any]:
        for text in self.triage_says:
            reaction.live.send(text)
        if self.triage_fails:
            raise ValueError("the runbook is missing")
        service = reaction.scope["service"]
        await reaction.emit(Triaged(service=str(service)))
        return {"severity": "high"}


@dataclass(frozen=True)
class Site:
    """The application, served on a real socket.

    Attributes:
        ops: The application.
        at: Where it is served.
        client: Ada's client.
    """

    ops: Ops
    at: Served
    client: httpx.AsyncClient


def resolve_actor(connection: HTTPConnection) -> tuple[str, Actor]:
    """Returns whom a bearer token names, or a token in the query where there is none."""
    authorization = connection.headers.get("authorization", "")
    token = authorization.removeprefix("Bearer ") or connection.query_params.get("token", "")
    if token not in TOKENS:
        raise Unauthorized
    return TOKENS[token]


def ops(storage: Storage | None = None, *, prefix: str = "", **options: Any) -> Ops:
    """Returns the application.

    Args:
        storage: Where its workspaces are; by default in memory.
        prefix: What the router is included under.
        options: What else `reflexr_router` takes.
    """
    clock = ManualClock(START)
    permissions = Permissions()
    workspaces = Workspaces(
        InMemoryStorage(clock=clock) if storage is None else storage,
        events=[ServiceError, Deployed, Checked],
        emitted=[Triaged],
        rules=_RULES,
        predicates={"is_known": _is_known},
        stored_rules=StoredRules(allow=_allow, actions={"triage": None}, namespaces=frozenset({"chat"})),
        schedules=_SCHEDULES,
        registry=REGISTRY,
        clock=clock,
    )
    settings: dict[str, Any] = {"resolve_actor": resolve_actor, "authorize": permissions, **options}
    router = reflexr_router(workspaces, **settings)
    app = FastAPI(title="ops")
    app.include_router(router, prefix=prefix)
    return Ops(workspaces, clock, permissions, router, app)


@asynccontextmanager
async def serving(application: Ops | None = None, **options: Any) -> AsyncGenerator[Site]:
    """Serves the application, by default one of its own, on a real socket until the block ends.

    Args:
        application: The application.
        options: What uvicorn takes.
    """
    application = ops() if application is None else application
    async with served(application.app, **options) as at, client_of(at) as client:
        yield Site(application, at, client)


def client_of(at: Served, token: str | None = "ada") -> httpx.AsyncClient:
    """Returns a client of a served application, of whom a token names; without one, of nobody."""
    return httpx.AsyncClient(base_url=at.http, headers=bearer(token), trust_env=False)


def bearer(token: str | None) -> dict[str, str]:
    """Returns the headers that say who calls."""
    return {} if token is None else {"authorization": f"Bearer {token}"}


def error(severity: int = 1, service: str = "auth", **fields: Any) -> dict[str, Any]:
    """Returns an event as it travels."""
    return {"type": "ops:service.error", "service": service, "severity": severity, **fields}


def command(type: str, *, command_id: str = "c-1", **fields: Any) -> dict[str, Any]:
    """Returns a command's frame as it travels."""
    return {"type": "command", "command_id": command_id, "command": {"type": type, **fields}}


def stored_rule(name: str = "chat:errors", **changes: Any) -> dict[str, Any]:
    """Returns a rule as it can be stored and as it travels."""
    return {
        "name": name,
        "when": {
            "filter": {"kind": "on", "types": ["ops:deployed"]},
            "throttle": {"at_most": 5, "per": "PT5M"},
        },
        "then": {"action": "triage"},
        **changes,
    }


def _allow(*_: object) -> bool:
    return True


def _is_known(_: Envelope) -> bool:
    raise LookupError("nobody knows")


_ONCE: Final = RetryPolicy(max_attempts=1)

_RULES: Final = (
    Rule(
        name=SPIKES,
        when=on(ServiceError).where(F.severity >= 5),
        scope=by("service"),
        then=run("triage"),
        retry=_ONCE,
    ),
    Rule(name=CHECKS, when=on(Checked).where(predicate("is_known")), then=run("triage")),
)

_SCHEDULES: Final = (
    Schedule(name="hourly", every=timedelta(hours=1)),
    Schedule(name="ours", cron="0 9 * * mon-fri", timezone="Europe/Oslo", targets=frozenset({PROD})),
    Schedule(name="theirs", every=timedelta(days=1), targets=frozenset({THEIRS})),
    Schedule(name="shared", every=timedelta(days=7), targets=frozenset({PROD, THEIRS})),
)
