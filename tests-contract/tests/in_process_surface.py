"""A surface with nothing between: what travels is written and read, and the handle is called."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any, Final, override

from pydantic import TypeAdapter

from reflexr.contracts import JsonObject, StreamClosed, Surface, SurfaceRejected, SurfaceStream
from reflexr.core import (
    Actor,
    CommandFrame,
    CommandResult,
    DeltaFrame,
    Envelope,
    ErrorFrame,
    EventFrame,
    Forbidden,
    Hello,
    Rejected,
    ReplayComplete,
    Resumption,
    ServerFrame,
    ValidationFailed,
    Welcome,
    read_client_frame,
    resume,
    write_frame,
)
from reflexr.workspace import DeltaListener, Workspace, WorkspaceRef, Workspaces

BAD_HELLO: Final = 4400
MAY_NOT: Final = 4403
TENANT_READS: Final = frozenset({"rules", "schedules"})
METHODS: Final = {"events": "read", "rule": "get_rule"}

_JSON: Final[TypeAdapter[Any]] = TypeAdapter(Any)


def travelled(value: object) -> Any:
    """What arrives of a value that is sent as JSON."""
    return json.loads(_JSON.dump_json(value, by_alias=True))


class InProcessSurface(Surface):
    """One actor's way to a workspace."""

    def __init__(self, application: Workspaces, tenant_id: str, workspace_id: str, actor: Actor) -> None:
        self.application = application
        self.tenant_id = tenant_id
        self.workspace_id = workspace_id
        self.actor = actor

    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        try:
            frame = self.frame(json.dumps({"type": "command", "command_id": command_id, "command": command}))
            return travelled(await self.result(frame))
        except Rejected as rejected:
            raise SurfaceRejected(travelled(rejected.rejection)) from rejected

    @override
    async def read(self, name: str, **arguments: Any) -> Any:
        try:
            return travelled(await self.answer(name, arguments))
        except Rejected as rejected:
            raise SurfaceRejected(travelled(rejected.rejection)) from rejected

    @override
    @asynccontextmanager
    async def stream(self, hello: JsonObject) -> AsyncGenerator[SurfaceStream]:
        stream = self.new_stream()
        serving = asyncio.create_task(stream.serve(json.dumps(hello)))
        try:
            yield stream
        finally:
            serving.cancel()
            await asyncio.wait([serving])

    async def open(self) -> Workspace:
        return await self.application.open(self.tenant_id, self.workspace_id, actor=self.actor)

    def frame(self, text: str) -> CommandFrame:
        frame = read_client_frame(text)
        if not isinstance(frame, CommandFrame):
            raise ValidationFailed("a hello was said already")
        return frame

    async def result(self, frame: CommandFrame) -> CommandResult:
        return await self.application.execute(await self.open(), frame.command, command_id=frame.command_id)

    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        if name in TENANT_READS:
            listing: Callable[..., Awaitable[Any]] = getattr(self.application, f"list_{name}")
            return await listing(self.tenant_id, actor=self.actor)
        method: Callable[..., Awaitable[Any]] = getattr(await self.open(), METHODS.get(name, name))
        return await method(**arguments)

    def new_stream(self) -> "InProcessStream":
        return InProcessStream(self)


class InProcessStream(SurfaceStream):
    """A stream whose frames are handed over in queues."""

    def __init__(self, surface: InProcessSurface) -> None:
        self.surface = surface
        self.received: asyncio.Queue[str] = asyncio.Queue()
        self.sent: asyncio.Queue[str | int] = asyncio.Queue()

    @override
    async def send(self, text: str) -> None:
        self.received.put_nowait(text)

    @override
    async def receive(self) -> JsonObject:
        frame = await self.sent.get()
        if isinstance(frame, int):
            raise StreamClosed(frame)
        return json.loads(frame)

    async def serve(self, text: str) -> None:
        try:
            hello = self.hello(text)
            workspace = await self.surface.open()
            head = await workspace.head_seq()
            resumption = self.resume(hello, head)
        except Rejected as rejected:
            self.refuse(rejected)
            return
        self.answer(Welcome(workspace_id=workspace.workspace_id, head_seq=head, reset=resumption.reset))
        async with asyncio.TaskGroup() as group:
            if self.wants_deltas(hello):
                group.create_task(self.pass_on(self.heard(workspace)))
            group.create_task(self.tell(workspace, resumption, hello.types))
            group.create_task(self.listen())

    def hello(self, text: str) -> Hello:
        hello = read_client_frame(text)
        if not isinstance(hello, Hello):
            raise ValidationFailed("the first frame is no hello")
        return hello

    def resume(self, hello: Hello, head: int) -> Resumption:
        return resume(hello, head)

    def refuse(self, rejected: Rejected) -> None:
        self.answer(ErrorFrame(rejection=rejected.rejection))
        self.sent.put_nowait(MAY_NOT if isinstance(rejected, Forbidden) else BAD_HELLO)

    def answer(self, frame: ServerFrame) -> None:
        self.sent.put_nowait(write_frame(frame))

    async def tell(self, workspace: Workspace, resumption: Resumption, types: tuple[str, ...] | None) -> None:
        head = resumption.up_to_seq
        for envelope in await workspace.read(after_seq=resumption.after_seq, before_seq=head + 1, types=types):
            self.replay(envelope)
        self.answer(ReplayComplete(up_to_seq=head))
        async with aclosing(workspace.subscribe(after_seq=head, types=types)) as envelopes:
            async for envelope in envelopes:
                self.live(envelope)

    def wants_deltas(self, hello: Hello) -> bool:
        return hello.deltas

    def heard(self, workspace: Workspace) -> list[WorkspaceRef]:
        return [workspace.ref]

    async def pass_on(self, workspaces: Iterable[WorkspaceRef]) -> None:
        live_output = self.surface.application.configuration.settings.live_output

        async def listen(listener: DeltaListener) -> None:
            while True:
                for delta in await listener.take():
                    self.answer(DeltaFrame(delta=delta))

        with ExitStack() as stack:
            listeners = [stack.enter_context(live_output.listen(workspace)) for workspace in workspaces]
            await asyncio.gather(*map(listen, listeners))

    def replay(self, envelope: Envelope) -> None:
        self.answer(EventFrame(envelope=envelope))

    def live(self, envelope: Envelope) -> None:
        self.answer(EventFrame(envelope=envelope))

    async def listen(self) -> None:
        while True:
            await self.take(await self.received.get())

    async def take(self, text: str) -> None:
        try:
            frame = self.surface.frame(text)
            # What was begun is finished, whoever hangs up.
            self.answer(await asyncio.shield(asyncio.create_task(self.surface.result(frame))))
        except Rejected as rejected:
            self.unreadable(rejected)

    def unreadable(self, rejected: Rejected) -> None:
        self.answer(ErrorFrame(rejection=rejected.rejection))
