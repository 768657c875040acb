"""What the tests of the reactor share: a plant with a clock that is moved by hand, and reactors that watch it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, override

from reflexr.core import Envelope, Event, RetryPolicy, Rule, Run, by, on, run
from reflexr.workspace import (
    InMemoryStorage,
    ManualClock,
    Reaction,
    Reactor,
    Transaction,
    Workspace,
    WorkspaceRef,
    Workspaces,
)

from .plant import ADA, START, Alarm, Opened, Repaired, Stopped

TTL = timedelta(seconds=30)
IMMEDIATELY = RetryPolicy(backoff=timedelta(0))
ONCE = RetryPolicy(max_attempts=1)


def rule(name: str = "plant:a", **changes: Any) -> Rule:
    """A rule that pages somebody at each alarm of a machine."""
    return Rule.model_validate({"name": name, "when": on(Alarm), "scope": by("machine"), "then": run("page")} | changes)


class TouchyStorage(InMemoryStorage):
    """Does something of a test's before each transaction begins, and before each commits, such as to fail."""

    before: Callable[[WorkspaceRef], Awaitable[None]] | None = None
    at_commit: Callable[[Transaction], Awaitable[None]] | None = None

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        if self.before is not None:
            await self.before(workspace)
        async with super().transaction(workspace) as transaction:
            yield transaction
            if self.at_commit is not None:
                await self.at_commit(transaction)


class Bench:
    """One storage, and as many applications and reactors over it as a test wants."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.storage = TouchyStorage(clock=self.clock)

    def workspaces(self, *rules: Rule, **options: Any) -> Workspaces:
        settings: dict[str, Any] = {"events": [Alarm, Stopped, Opened], "emitted": [Repaired], **options}
        return Workspaces(self.storage, rules=rules, **settings)

    def reactor(self, *rules: Rule, actions: Mapping[str, Any] | None = None, **options: Any) -> Reactor[None]:
        given = {"page": nothing} if actions is None else actions
        reactor: dict[str, Any] = {
            name: options.pop(name)
            for name in (
                "holder",
                "batch_size",
                "lease_ttl",
                "concurrency",
                "rule_concurrency",
                "workspace_concurrency",
                "run_context",
            )
            if name in options
        }
        return Reactor(self.workspaces(*rules, **options), actions=given, **reactor)

    async def open(self, workspace_id: str = "prod", **options: Any) -> Workspace:
        return await self.workspaces(**options).open("acme", workspace_id, actor=ADA)

    async def publish(self, *events: Event, workspace_id: str = "prod") -> None:
        await (await self.open(workspace_id)).publish_many(list(events))

    async def log(self, workspace_id: str = "prod") -> list[Envelope]:
        return await (await self.open(workspace_id)).read()

    async def types(self, workspace_id: str = "prod") -> list[str]:
        return [envelope.event_type.partition(":")[2] for envelope in await self.log(workspace_id)]

    async def facts(self, event_type: str, workspace_id: str = "prod") -> list[dict[str, Any]]:
        return [envelope.payload for envelope in await self.log(workspace_id) if envelope.event_type == event_type]

    async def runs(self, workspace_id: str = "prod") -> list[Run]:
        """The runs in the order in which they were created."""
        return (await (await self.open(workspace_id)).runs())[::-1]

    async def statuses(self, workspace_id: str = "prod") -> list[str]:
        return [run.status for run in await self.runs(workspace_id)]


async def nothing(reaction: Reaction[Any]) -> None:
    """An action that does nothing."""


class Gate:
    """An action that says when it is at work, and works until it is let go."""

    def __init__(self, result: Callable[[Reaction[Any]], Any] = lambda _: None) -> None:
        self.begun: asyncio.Queue[Reaction[Any]] = asyncio.Queue()
        self.at_work = 0
        self.most = 0
        self.cancelled: list[str] = []
        self._open = asyncio.Event()
        self._result = result

    def let_go(self) -> None:
        self._open.set()

    @property
    def params(self) -> None:
        return None

    async def run(self, reaction: Reaction[Any], /) -> Any:
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        self.begun.put_nowait(reaction)
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(reaction.run_id)
            raise
        finally:
            self.at_work -= 1
        return self._result(reaction)


class Script:
    """An action whose attempts go as written: each raises an exception, or returns a value; the last goes on."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.reactions: list[Reaction[Any]] = []

    async def __call__(self, reaction: Reaction[Any]) -> Any:
        self.reactions.append(reaction)
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, BaseException):
            raise step
        return step

    @property
    def attempts(self) -> list[int]:
        return [reaction.attempt for reaction in self.reactions]
