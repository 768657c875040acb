"""What a guarantee of a surface is tried on: an application behind the surface, and what can be seen of it from within.

Everything that goes through a surface is JSON as it travels, so that a guarantee reads the same of all of them.
"""

import json
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Final, Protocol, override

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import Contract
from reflexr.contracts.reacting_trials import Tap
from reflexr.contracts.samples import HOUR, START, WORKSPACE
from reflexr.contracts.surface_application import ORDERS, SOMEBODY, Ordered, Permissions, Returned, Ship, shop
from reflexr.core import PROTOCOL, Actor, RunStatus
from reflexr.workspace import InMemoryStorage, LogWindow, ManualClock, Pause, Reactor, RunQuery, Storage, WorkspaceRef
from reflexr.workspace import Workspaces as Application

ASKED: Final = Pause({"question": "ship it?", "choices": ["yes", "no"]}, timeout=HOUR)
"""What a run that is to pause asks."""

type JsonObject = dict[str, Any]
"""A JSON object as it travels."""

type Connect = Callable[[str, str, Actor], "Surface"]
"""Returns a surface for a tenant, a workspace and who acts there; each time as another connection would be."""


class SurfaceRejected(Exception):
    """A surface refused something that has no other answer.

    Attributes:
        rejection: What was refused and why, as it travels.
    """

    def __init__(self, rejection: JsonObject) -> None:
        super().__init__(f"{rejection}")
        self.rejection = rejection


class StreamClosed(Exception):
    """The surface has closed a stream.

    Attributes:
        code: The close code.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


class SurfaceStream(Protocol):
    """One stream of a log, from its hello on."""

    async def send(self, text: str) -> None:
        """Sends a frame's text, whatever is in it."""
        ...

    async def receive(self) -> JsonObject:
        """Returns the next frame, waiting for it.

        Raises:
            StreamClosed: There is none, since the surface has closed the stream.
        """
        ...


class Surface:
    """A way to one workspace, for one actor; to be derived. What it does not declare it need not have."""

    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        """Sends a command, and returns its `command_result`.

        Raises:
            SurfaceRejected: It was refused, on a surface that tells so in another way than by a `command_result`, or
                could not even be read as a command. A typed client that sends no such thing raises this too.
        """
        raise NotImplementedError(f"{type(self).__name__} carries out nothing: override execute()")

    async def read(self, name: str, **arguments: Any) -> Any:
        """Reads something, and returns it as it travels. For surfaces with `Feature.READS` or `Feature.TENANT_READS`.

        | `name` | `arguments` | Answer |
        |---|---|---|
        | `events` | `after_seq`, `before_seq`, `types`, `limit`, `last` | envelopes |
        | `rule_statuses`, `schedule_statuses` | | statuses |
        | `rule` | `rule` | the rule, with its origin |
        | `rule_history` | `rule` | envelopes |
        | `runs` | `rule`, `scope_key`, `status`, `limit` | runs |
        | `run` | `run_id` | the run |
        | `dead_letters` | `rule` | dead letters |
        | `rules`, `schedules` | | the code rules, the schedules: of the tenant |

        Raises:
            SurfaceRejected: It was refused.
        """
        raise NotImplementedError(f"{type(self).__name__} reads nothing: override read(), or declare no reads")

    def stream(self, hello: JsonObject) -> AbstractAsyncContextManager[SurfaceStream]:
        """Opens a stream and sends its hello, whatever is in it. For surfaces with `Feature.STREAM`.

        Raises:
            StreamClosed: It was refused before anything could be sent.
        """
        raise NotImplementedError(
            f"{type(self).__name__} streams nothing: override stream(), or do not declare {Feature.STREAM!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceTrial:
    """A surface on trial, and the application behind it.

    Attributes:
        application: The application.
        permissions: What it asks for permission.
        act: What its rules do.
        reactor: Its reactor.
        storage: Its storage, past every permission.
        tap: What it does with the storage.
        clock: The time of all of them.
        connect: The surface.
    """

    application: Application
    permissions: Permissions
    act: Ship
    reactor: Reactor[None]
    storage: Storage
    tap: Tap
    clock: ManualClock
    connect: Connect
    _ids: "count[int]" = field(default_factory=lambda: count(1))

    def surface(self, actor: Actor = SOMEBODY, workspace: WorkspaceRef = WORKSPACE) -> Surface:
        """Returns a new connection of somebody to a workspace."""
        return self.connect(workspace.tenant_id, workspace.workspace_id, actor)

    # --- Commands

    def next_id(self) -> str:
        """Returns a command's id that was not used yet."""
        return f"command-{next(self._ids)}"

    async def execute(self, surface: Surface, command: JsonObject, command_id: str | None = None) -> JsonObject:
        """Sends a command, and returns its result, however the surface tells a refusal."""
        name = self.next_id() if command_id is None else command_id
        try:
            result = await surface.execute(command, command_id=name)
        except SurfaceRejected as rejected:
            return {"type": "command_result", "command_id": name, "ok": False, "rejection": rejected.rejection}
        assert result["type"] == "command_result"
        assert result["ok"] is ("outcome" in result) is not ("rejection" in result)
        return result

    async def done(self, command: JsonObject, surface: Surface | None = None, command_id: str | None = None) -> Any:
        """Sends a command that is carried out, and returns its outcome."""
        name = self.next_id() if command_id is None else command_id
        result = await self.execute(surface or self.surface(), command, name)
        assert (result["ok"], result["command_id"]) == (True, name), result
        return result["outcome"]

    async def refused(self, command: JsonObject, surface: Surface | None = None, command_id: str | None = None) -> Any:
        """Sends a command that is refused, and returns the rejection; nothing has changed by then."""
        before = await self.everything()
        name = self.next_id() if command_id is None else command_id
        result = await self.execute(surface or self.surface(), command, name)
        assert await self.everything() == before
        assert result["ok"] is False, result
        # What is no id is none to answer under.
        assert result["command_id"] == name or command_id is not None
        return told(result["rejection"])

    async def no_read(self, name: str, surface: Surface | None = None, **arguments: Any) -> Any:
        """Reads what is refused, and returns the rejection."""
        with pytest.raises(SurfaceRejected) as rejected:
            await (surface or self.surface()).read(name, **arguments)
        return told(rejected.value.rejection)

    # --- Streams

    def hello(self, **fields: Any) -> JsonObject:
        """Returns a stream's hello."""
        return {"type": "hello", "protocol": PROTOCOL, **fields}

    @asynccontextmanager
    async def streamed(
        self, actor: Actor = SOMEBODY, workspace: WorkspaceRef = WORKSPACE, **fields: Any
    ) -> AsyncGenerator["StreamTrial"]:
        """Opens a stream, and takes what comes up to the end of its replay."""
        async with self.surface(actor, workspace).stream(self.hello(**fields)) as stream:
            trial = StreamTrial(stream, hears_deltas=fields.get("deltas") is True)
            await trial.begin()
            yield trial

    # --- The application

    async def publish(self, *events: Ordered, workspace: WorkspaceRef = WORKSPACE) -> None:
        """Publishes events from within, by default one order."""
        await self.application.handle(workspace, actor=SOMEBODY).publish_many(list(events or (Ordered(),)))

    async def publish_returned(self, workspace: WorkspaceRef = WORKSPACE) -> None:
        """Publishes from within what two rules cannot decide on, and lets them try."""
        await self.application.handle(workspace, actor=SOMEBODY).publish(Returned())
        await self.reactor.evaluate()

    async def run_id(self, status: RunStatus = "pending", workspace: WorkspaceRef = WORKSPACE) -> str:
        """Returns the id of a run of a new order, which has come to a status."""
        await self.publish(workspace=workspace)
        await self.reactor.evaluate()
        if status != "pending":
            self.act.fails = status == "dead_lettered"
            self.act.asks = ASKED if status == "paused" else None
            await self.settle()
            self.act.fails, self.act.asks = False, None
        (newest, *_) = await self.storage.runs(workspace, RunQuery(rules=frozenset((ORDERS,)), limit=1))
        assert newest.status == status
        return newest.id

    async def settle(self) -> None:
        """Lets the rules decide, and their runs end."""
        await self.reactor.settle()

    async def log(self, workspace: WorkspaceRef = WORKSPACE) -> list[JsonObject]:
        """Returns the log as it travels."""
        return [json.loads(envelope.to_json()) for envelope in await self.storage.read(workspace, LogWindow())]

    async def runs(self, workspace: WorkspaceRef = WORKSPACE) -> list[JsonObject]:
        """Returns the runs as they travel, newest first."""
        return [each.model_dump(mode="json") for each in await self.storage.runs(workspace, RunQuery())]

    async def run(self, run_id: str) -> JsonObject:
        """Returns one run as it travels."""
        (found,) = (each for each in await self.runs() if each["id"] == run_id)
        return found

    async def everything(self) -> dict[WorkspaceRef, Any]:
        """Returns what there is, in whatever workspace."""
        return {
            workspace: (
                await self.log(workspace),
                await self.runs(workspace),
                await self.storage.progress(workspace),
                await self.storage.schedule_ticks(workspace),
            )
            for workspace in sorted(await self.storage.workspaces())
        }


class StreamTrial:
    """A stream on trial, whose frames come in the order of the protocol.

    Attributes:
        welcome: The answer to the hello.
        replayed: The envelopes of the replay.
        up_to_seq: The end of the replay.
    """

    def __init__(self, stream: SurfaceStream, *, hears_deltas: bool = False) -> None:
        self.welcome: JsonObject = {}
        self.replayed: list[JsonObject] = []
        self.up_to_seq = 0
        self._stream = stream
        self._hears_deltas = hears_deltas
        self._events: deque[JsonObject] = deque()
        self._deltas: deque[JsonObject] = deque()

    async def begin(self) -> None:
        """Takes what comes up to the end of the replay."""
        self.welcome = await self._stream.receive()
        assert self.welcome["type"] == "welcome"
        complete = await self._next("replay_complete")
        self.up_to_seq = complete["up_to_seq"]
        self.replayed = list(self._events)
        self._events.clear()

    async def live(self, number: int) -> list[JsonObject]:
        """Returns the next so many envelopes."""
        while len(self._events) < number:
            assert (frame := await self._receive()) is None, frame
        return [self._events.popleft() for _ in range(number)]

    async def deltas(self, number: int) -> list[JsonObject]:
        """Returns the next so many deltas."""
        while len(self._deltas) < number:
            assert (frame := await self._receive()) is None, frame
        return [self._deltas.popleft() for _ in range(number)]

    async def command(self, command: JsonObject, command_id: str) -> None:
        """Sends a command."""
        await self._stream.send(json.dumps({"type": "command", "command_id": command_id, "command": command}))

    async def results(self, number: int) -> dict[str, JsonObject]:
        """Returns the next so many results of commands, by their ids."""
        results = [await self._next("command_result") for _ in range(number)]
        return {result["command_id"]: result for result in results}

    async def result(self, command: JsonObject, command_id: str) -> JsonObject:
        """Sends a command, and returns its result."""
        await self.command(command, command_id)
        return (await self.results(1))[command_id]

    async def error(self, text: str) -> Any:
        """Sends what cannot be read, and returns the rejection."""
        await self._stream.send(text)
        return told((await self._next("error"))["rejection"])

    async def _next(self, kind: str) -> JsonObject:
        """Returns the next frame that is no event and no delta, and keeps those for whoever wants them."""
        while (frame := await self._receive()) is None:
            pass
        assert frame["type"] == kind, frame
        return frame

    async def _receive(self) -> JsonObject | None:
        """Takes the next frame, and returns it if it is no event and no delta that was asked for."""
        frame = await self._stream.receive()
        if frame["type"] == "event":
            self._events.append(frame["envelope"])
        elif frame["type"] == "delta" and self._hears_deltas:
            self._deltas.append(frame["delta"])
        else:
            return frame
        return None


def told(rejection: JsonObject) -> JsonObject:
    """Returns a rejection that says what was refused, and each problem where there are problems to be told."""
    assert isinstance(rejection["message"], str)
    assert rejection["message"]
    if rejection["type"] == "validation_failed":
        assert rejection["errors"]
        assert all(isinstance(error, str) and error for error in rejection["errors"])
    return rejection


class SurfaceGuarantees(Contract[SurfaceTrial]):
    """Some of the promises of a surface, over the one factory that they all share.

    Attributes:
        large: How many envelopes a long log has.
    """

    large: ClassVar[int] = 1_200

    def surface(self, application: Application) -> AbstractAsyncContextManager[Connect]:
        """Serves an application through a surface, and opens the way to it. This is the factory to override.

        Args:
            application: What is served. It has its own permissions, so the surface needs none besides, but that it
                has to know who is who.
        """
        raise self.missing("surface")

    @override
    @asynccontextmanager
    async def trial(self) -> AsyncGenerator[SurfaceTrial]:
        clock, permissions, act = ManualClock(START), Permissions(), Ship()
        storage = InMemoryStorage(clock=clock)
        tap = Tap(storage)
        application = shop(tap.storage(), clock, permissions)
        async with self.surface(application) as connect:
            yield SurfaceTrial(
                application=application,
                permissions=permissions,
                act=act,
                reactor=Reactor(application, actions={"act": act}),
                storage=storage,
                tap=tap,
                clock=clock,
                connect=connect,
            )
