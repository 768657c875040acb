"""The streams of an application on a real socket, and clients of them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, override
from urllib.parse import quote

from fastapi import FastAPI, WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from reflexr.core import PROTOCOL
from reflexr.fastapi import ReflexrRouter
from reflexr.fastapi.callers import Callers
from reflexr.fastapi.connections import StreamLimits
from reflexr.fastapi.endpoints import Endpoints
from reflexr.fastapi.streams import Streams
from reflexr.workspace import Authorize, Workspace, Workspaces

from .members import TrialStorage
from .ops import ADA, PROD, Ops, bearer, ops, resolve_actor
from .serving import Served, served

LIMITS: Final = StreamLimits(hello_timeout=timedelta(hours=1), outbox_size=1_000, max_frame=1_048_576)

HELLO: Final = {"type": "hello", "protocol": PROTOCOL}

type Json = dict[str, Any]


class WatchedStreams(Streams):
    """Streams that can be waited for until nobody is connected any more."""

    def __init__(self, workspaces: Workspaces, callers: Callers, authorize: Authorize, limits: StreamLimits) -> None:
        super().__init__(workspaces, callers, authorize, limits)
        self._left = asyncio.Event()

    @override
    async def serve(self, websocket: WebSocket, workspace_id: str) -> None:
        try:
            await super().serve(websocket, workspace_id)
        finally:
            self._left.set()

    async def are_left(self, by_all_but: int = 0) -> None:
        """Waits until no more than so many are connected."""
        while len(self) > by_all_but:
            self._left.clear()
            await self._left.wait()


class Client:
    """A client of a stream."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, frame: Mapping[str, Any] | str | bytes) -> None:
        """Sends a frame, or what is none."""
        await self.socket.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))

    async def hear(self) -> Json:
        """Returns the next frame."""
        return json.loads(await self.socket.recv())

    async def hello(self, **fields: Any) -> Json:
        """Says hello, and returns the welcome."""
        await self.say({**HELLO, **fields})
        welcome = await self.hear()
        assert welcome["type"] == "welcome"
        return welcome

    async def replay(self) -> list[int]:
        """Returns the places of what is sent until the replay is complete."""
        seqs: list[int] = []
        while (frame := await self.hear())["type"] == "event":
            seqs.append(frame["envelope"]["seq"])
        assert frame["type"] == "replay_complete"
        return seqs

    async def begin(self, **fields: Any) -> list[int]:
        """Says hello, and returns the places of what is replayed."""
        await self.hello(**fields)
        return await self.replay()

    async def seqs(self, number: int) -> list[int]:
        """Returns the places of the next events."""
        frames = [await self.hear() for _ in range(number)]
        assert {frame["type"] for frame in frames} <= {"event"}
        return [frame["envelope"]["seq"] for frame in frames]

    async def until(self, seq: int) -> list[int]:
        """Returns the places of the events up to one."""
        seqs: list[int] = []
        while not seqs or seqs[-1] < seq:
            seqs += await self.seqs(1)
        return seqs

    async def end(self) -> tuple[int | None, list[Json]]:
        """Returns the close code, and the frames that came before it."""
        frames: list[Json] = []
        try:
            while True:
                frames.append(await self.hear())
        except ConnectionClosed as closed:
            return (None if closed.rcvd is None else closed.rcvd.code), frames

    async def cut_off(self) -> None:
        """Is gone without a word."""
        self.socket.transport.abort()
        await self.socket.wait_closed()


@dataclass(frozen=True)
class Stage:
    """An application whose streams are served.

    Attributes:
        application: The application.
        storage: Its storage.
        streams: Its streams.
        router: The router that serves them.
        at: Where.
    """

    application: Ops
    storage: TrialStorage
    streams: WatchedStreams
    router: ReflexrRouter
    at: Served

    @property
    def workspace(self) -> Workspace:
        """The workspace that is streamed, in process."""
        return self.application.workspaces.handle(PROD, actor=ADA)

    def url(self, workspace_id: str = "prod", query: str = "") -> str:
        """Returns where a workspace is streamed."""
        return f"{self.at.ws}/workspaces/{quote(workspace_id, safe='')}/stream{query}"

    @asynccontextmanager
    async def connected(
        self, workspace_id: str = "prod", *, query: str = "", token: str | None = "ada", **options: Any
    ) -> AsyncGenerator[Client]:
        """Connects a client, whom a token names, until the block ends."""
        settings: dict[str, Any] = {"subprotocols": [PROTOCOL], "compression": None, "proxy": None, **options}
        async with connect(self.url(workspace_id, query), additional_headers=bearer(token), **settings) as socket:
            yield Client(socket)

    async def assert_nothing_is_left(self) -> None:
        """Waits until nobody is connected, and asserts that no feed and no listener is left of who was."""
        await self.streams.are_left()
        await self.streams.close()
        configuration = self.application.workspaces.configuration
        assert len(configuration.feeds) == 0
        assert not configuration.settings.live_output.is_heard(PROD)
        assert len(self.storage.wakeups) == 0


@asynccontextmanager
async def staged(
    *, limits: StreamLimits = LIMITS, storage: TrialStorage | None = None, **options: Any
) -> AsyncGenerator[Stage]:
    """Serves the streams of an application of its own until the block ends, and asserts that no task is left then.

    Args:
        limits: What a connection may cost.
        storage: The application's storage.
        options: What uvicorn takes.
    """
    tasks = asyncio.all_tasks()
    storage = TrialStorage() if storage is None else storage
    application = ops(storage)
    workspaces, callers = application.workspaces, Callers(resolve_actor)
    streams = WatchedStreams(workspaces, callers, application.permissions, limits)
    endpoints = Endpoints(workspaces, application.permissions)
    router = ReflexrRouter(endpoints, streams, callers, max_body=limits.max_frame)
    app = FastAPI()
    app.include_router(router)
    async with served(app, **options) as at:
        yield Stage(application, storage, streams, router, at)
    # What a fixture begins, it may end in another task.
    assert asyncio.all_tasks() <= tasks | {asyncio.current_task()}
