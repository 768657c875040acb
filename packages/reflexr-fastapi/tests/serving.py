"""An application served by uvicorn on a real socket, in the test's own event loop."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, override

import uvicorn
from starlette.types import ASGIApp


class _Server(uvicorn.Server):
    """A server that says when it is up, and goes down when it is told to, at once."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self.leave = asyncio.Event()

    @override
    async def main_loop(self) -> None:
        self.up.set()
        await self.leave.wait()

    async def serve_on(self, listener: socket.socket) -> None:
        # Not `serve`, which would take the signals of the process.
        try:
            await self._serve([listener])
        finally:
            self.up.set()


@dataclass(frozen=True)
class Served:
    """Where an application is served: its address without the scheme."""

    port: int

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}"


@asynccontextmanager
async def served(app: ASGIApp, **options: Any) -> AsyncGenerator[Served]:
    """Serves an application until the block ends."""
    settings: dict[str, Any] = {"log_config": None, "lifespan": "on", **options}
    server = _Server(uvicorn.Config(app, **settings))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # As uvicorn's own sockets have it; without it every second answer waits for the client's kernel.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = listener.getsockname()[1]
        running = asyncio.create_task(server.serve_on(listener))
        try:
            await server.up.wait()
            yield Served(port)
        finally:
            server.leave.set()
            await running
