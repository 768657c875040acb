"""Applications served by uvicorn on real sockets, which can go away and come back, or have their connections cut."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import override

import uvicorn
from starlette.types import ASGIApp

type Close = Callable[[], Awaitable[None]]


class Server(uvicorn.Server):
    """A server in the event loop of the test, up until it is told to leave.

    Attributes:
        port: Where it listens, on 127.0.0.1.
    """

    def __init__(self, app: ASGIApp, port: int, close: Close | None) -> None:
        super().__init__(uvicorn.Config(app, log_config=None, lifespan="on"))
        self.port = port
        self._close = close
        self._up = asyncio.Event()
        self._leave = asyncio.Event()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Cuts every connection off, as a network does that fails: without a close frame, and what was sent is lost."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @override
    async def main_loop(self) -> None:
        self._up.set()
        await self._leave.wait()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._close is not None:
            await self._close()
        await super().shutdown(sockets)

    @asynccontextmanager
    async def listening(self, listener: socket.socket) -> AsyncGenerator[None]:
        # Not `serve`, which would take the signals of the process.
        running = asyncio.create_task(self._serve([listener]))
        running.add_done_callback(lambda _: self._up.set())
        try:
            await self._up.wait()
            yield
        finally:
            self._leave.set()
            await running


@asynccontextmanager
async def served(app: ASGIApp, port: int = 0, *, close: Close | None = None) -> AsyncGenerator[Server]:
    """Serves an application until the block ends.

    Args:
        app: The application.
        port: Where; 0 for any port that is free.
        close: Awaited before the server shuts down.
    """
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = Server(app, listener.getsockname()[1], close)
        async with server.listening(listener):
            yield server
