"""A server that speaks the stream of `reflexr.v1` over a real socket, correctly or, on demand, in every wrong way."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from itertools import count
from ssl import SSLContext

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from reflexr.core import (
    PROTOCOL,
    EventFrame,
    Hello,
    ReplayComplete,
    ServerFrame,
    Welcome,
    read_client_frame,
    resume,
    write_frame,
)

from .logs import Log

type Script = Callable[["StreamServer", ServerConnection, Hello], Awaitable[None]]
"""What a server does with one connection, once it was greeted."""


class StreamServer:
    """Does with each connection what the next script says; without one it speaks the protocol."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.url = ""
        self.scripts: deque[Script] = deque()
        self.refusals: deque[Response] = deque()
        self.requests: list[Request] = []
        self.hellos: list[Hello] = []
        self.open = 0
        self.released = asyncio.Event()
        self._changed = asyncio.Condition()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds, which is asked whenever a connection comes, says hello or ends."""
        async with self._changed:
            await self._changed.wait_for(holds)

    async def frames(self, hello: Hello) -> AsyncGenerator[ServerFrame]:
        """Yields what a correct server sends."""
        resumption = resume(hello, self.log.head_seq)
        up_to_seq = resumption.up_to_seq
        yield Welcome(workspace_id=self.log.workspace_id, head_seq=up_to_seq, reset=resumption.reset)
        for envelope in self.log.envelopes[resumption.after_seq : up_to_seq]:
            if hello.types is None or envelope.event_type in hello.types:
                yield EventFrame(envelope=envelope)
        yield ReplayComplete(up_to_seq=up_to_seq)
        async with aclosing(self.log.after(up_to_seq, hello.types)) as envelopes:
            async for envelope in envelopes:
                yield EventFrame(envelope=envelope)

    async def handle(self, socket: ServerConnection) -> None:
        self.open += 1
        await self._notify()
        try:
            hello = read_client_frame(await socket.recv())
            assert isinstance(hello, Hello)
            self.hellos.append(hello)
            await self._notify()
            script = self.scripts.popleft() if self.scripts else speak()
            running = asyncio.ensure_future(script(self, socket, hello))
            gone = asyncio.ensure_future(socket.wait_closed())
            await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            gone.cancel()
            await asyncio.gather(running, gone, return_exceptions=True)
        except ConnectionClosed:
            pass
        finally:
            self.open -= 1
            await self._notify()

    def decide(self, socket: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        return self.refusals.popleft() if self.refusals else None

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serving(
    log: Log, *, subprotocol: str | None = PROTOCOL, tls: SSLContext | None = None
) -> AsyncGenerator[StreamServer]:
    server = StreamServer(log)
    async with serve(
        server.handle,
        "127.0.0.1",
        0,
        process_request=server.decide,
        select_subprotocol=lambda connection, offered: None if subprotocol is None else Subprotocol(subprotocol),
        compression=None,
        ping_interval=None,
        close_timeout=0.05,
        write_limit=1024,
        ssl=tls,
    ) as listening:
        host, port = listening.sockets[0].getsockname()
        server.url = f"{'http' if tls is None else 'https'}://{host}:{port}"
        yield server


def refusing(status: int, body: bytes = b"", **headers: str) -> Response:
    """An answer in place of a WebSocket."""
    sent = {"Content-Length": str(len(body)), "Connection": "close", **headers}
    return Response(status, "Refused", Headers(sent), body)


async def send_frames(server: StreamServer, socket: ServerConnection, hello: Hello, number: int | None = None) -> None:
    """Sends what a correct server does, all of it or the first so many frames."""
    counter = count()
    async with aclosing(server.frames(hello)) as frames:
        while number is None or next(counter) < number:
            await socket.send(write_frame(await anext(frames)))


def speak() -> Script:
    """Speaks the protocol, as long as the client stays."""
    return send_frames


def cut(after: int) -> Script:
    """Is gone without a word after so many frames."""

    async def script(server: StreamServer, socket: ServerConnection, hello: Hello) -> None:
        await send_frames(server, socket, hello, after)
        socket.transport.abort()

    return script


def cut_within_a_frame(after: int) -> Script:
    """Is gone in the middle of a frame."""

    async def script(server: StreamServer, socket: ServerConnection, hello: Hello) -> None:
        await send_frames(server, socket, hello, after)
        socket.transport.write(b'\x81\x7e\x01\x00{"type":"event","envel')
        socket.transport.close()

    return script


def close(code: int, reason: str = "", *, after: int = 0) -> Script:
    """Says why it closes, after so many frames."""

    async def script(server: StreamServer, socket: ServerConnection, hello: Hello) -> None:
        await send_frames(server, socket, hello, after)
        await socket.close(code, reason)

    return script


def say(*frames: ServerFrame | str | bytes, after: int = 0) -> Script:
    """Says something else after so many frames, and then nothing more."""

    async def script(server: StreamServer, socket: ServerConnection, hello: Hello) -> None:
        await send_frames(server, socket, hello, after)
        for frame in frames:
            await socket.send(frame if isinstance(frame, str | bytes) else write_frame(frame))
        await socket.wait_closed()

    return script


def growing(by: int, then: Script) -> Script:
    """Has the log grow before it does something else."""

    async def script(server: StreamServer, socket: ServerConnection, hello: Hello) -> None:
        server.log.grow(by)
        await then(server, socket, hello)

    return script


def repeat(by: int, number: int | None = None) -> Script:
    """Sends again what came up to so many places before the client's, and then each frame twice; so many, or all."""

    async def script(server: StreamServer, socket: ServerConnection, hello: Hello) -> None:
        async with aclosing(server.frames(hello)) as frames:
            await socket.send(write_frame(await anext(frames)))
            begin = max(0, hello.resume_after_seq - by)
            for envelope in server.log.envelopes[begin : hello.resume_after_seq]:
                await socket.send(write_frame(EventFrame(envelope=envelope)))
            counter = count()
            while number is None or next(counter) < number:
                frame = write_frame(await anext(frames))
                await socket.send(frame)
                await socket.send(frame)
        await socket.close(1001)

    return script


def skip(number: int) -> Script:
    """Leaves out the n-th frame, counted from 0."""

    async def script(server: StreamServer, socket: ServerConnection, hello: Hello) -> None:
        counter = count()
        async with aclosing(server.frames(hello)) as frames:
            async for frame in frames:
                if next(counter) != number:
                    await socket.send(write_frame(frame))

    return script


def hang(after: int) -> Script:
    """Reads nothing more after so many frames, not even pings, until it is released, as a host without network does."""

    async def script(server: StreamServer, socket: ServerConnection, hello: Hello) -> None:
        await send_frames(server, socket, hello, after)
        socket.transport.pause_reading()
        await server.released.wait()
        socket.transport.resume_reading()
        await socket.wait_closed()

    return script
