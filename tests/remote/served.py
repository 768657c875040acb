"""Workspaces on a real uvicorn socket, for clients that know no more than where that is."""

import asyncio
import base64
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, override

import uvicorn
from fastapi import FastAPI
from pydantic import TypeAdapter
from starlette.requests import HTTPConnection

from reflexr.core import Actor
from reflexr.fastapi import Unauthorized, reflexr_router
from reflexr.workspace import Workspaces

_CALLER: Final[TypeAdapter[tuple[str, Actor]]] = TypeAdapter(tuple[str, Actor])


def token_of(tenant_id: str, actor: Actor) -> str:
    """Whoever it is, as a token."""
    return base64.urlsafe_b64encode(_CALLER.dump_json((tenant_id, actor))).decode()


def resolve_actor(connection: HTTPConnection) -> tuple[str, Actor]:
    token = connection.headers.get("authorization", "").removeprefix("Bearer ")
    if not token:
        raise Unauthorized
    return _CALLER.validate_json(base64.urlsafe_b64decode(token))


class _Server(uvicorn.Server):
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
        await self._serve([listener])


@asynccontextmanager
async def served(workspaces: Workspaces) -> AsyncGenerator[int]:
    """Serves workspaces until the block ends; the value is the port on the loopback."""
    app = FastAPI()
    router = reflexr_router(workspaces, resolve_actor=resolve_actor)
    app.include_router(router)
    server = _Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve_on(listener))
            await server.up.wait()
            try:
                yield port
            finally:
                await router.close()
                server.leave.set()
