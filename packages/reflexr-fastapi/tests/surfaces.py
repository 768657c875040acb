"""The two surfaces that the router serves, as `SurfaceContract` speaks to them: in JSON, over real sockets."""

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, override
from urllib.parse import quote

import httpx
from fastapi import FastAPI
from pydantic import TypeAdapter
from starlette.requests import HTTPConnection
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from reflexr.contracts import JsonObject, StreamClosed, Surface, SurfaceRejected, SurfaceStream
from reflexr.core import PROTOCOL, Actor
from reflexr.fastapi import Unauthorized, reflexr_router
from reflexr.workspace import Workspaces

from .serving import Served, served

_CALLER: Final[TypeAdapter[tuple[str, Actor]]] = TypeAdapter(tuple[str, Actor])

PATHS: Final = {
    "events": "/workspaces/{workspace_id}/events",
    "rules": "/rules",
    "schedules": "/schedules",
    "rule_statuses": "/workspaces/{workspace_id}/rules",
    "rule": "/workspaces/{workspace_id}/rules/{rule}",
    "rule_history": "/workspaces/{workspace_id}/rules/{rule}/history",
    "runs": "/workspaces/{workspace_id}/runs",
    "run": "/workspaces/{workspace_id}/runs/{run_id}",
    "dead_letters": "/workspaces/{workspace_id}/dead-letters",
    "schedule_statuses": "/workspaces/{workspace_id}/schedules",
}


def token_of(tenant_id: str, actor: Actor) -> str:
    """Whoever it is, as a token that a header and a URL can hold."""
    return base64.urlsafe_b64encode(_CALLER.dump_json((tenant_id, actor))).decode()


def resolve_actor(connection: HTTPConnection) -> tuple[str, Actor]:
    token = connection.query_params.get("token") or connection.headers.get("authorization", "").removeprefix("Bearer ")
    if not token:
        raise Unauthorized
    return _CALLER.validate_json(base64.urlsafe_b64decode(token))


@asynccontextmanager
async def serving(application: Workspaces) -> AsyncGenerator[Served]:
    app = FastAPI()
    app.include_router(reflexr_router(application, resolve_actor=resolve_actor))
    async with served(app) as server:
        yield server


class RestSurface(Surface):
    """Commands and reads, over HTTP."""

    def __init__(self, http: httpx.AsyncClient, tenant_id: str, workspace_id: str, actor: Actor) -> None:
        self._http = http
        self._workspace_id = workspace_id
        self._headers = {"authorization": f"Bearer {token_of(tenant_id, actor)}"}

    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        frame = {"type": "command", "command_id": command_id, "command": command}
        path = f"/workspaces/{quote(self._workspace_id, safe='')}/commands"
        headers = {**self._headers, "content-type": "application/json"}
        return answer(await self._http.post(path, content=json.dumps(frame), headers=headers))

    @override
    async def read(self, name: str, **arguments: Any) -> Any:
        named = {"workspace_id": self._workspace_id, **arguments}
        path = PATHS[name].format_map({key: quote(str(value), safe="") for key, value in named.items()})
        query = {
            "type" if key == "types" else key: value
            for key, value in arguments.items()
            if f"{{{key}}}" not in PATHS[name]
        }
        return answer(await self._http.get(path, params=query, headers=self._headers))


def answer(response: httpx.Response) -> Any:
    body = response.json()
    if response.is_success:
        return body
    raise SurfaceRejected(body["detail"])


class WebSocketSurface(Surface):
    """Commands and a stream, over a WebSocket."""

    def __init__(self, server: Served, tenant_id: str, workspace_id: str, actor: Actor) -> None:
        token = token_of(tenant_id, actor)
        self._url = f"{server.ws}/workspaces/{quote(workspace_id, safe='')}/stream?token={quote(token)}"

    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        async with self.stream({"type": "hello", "protocol": PROTOCOL, "from_head": True}) as stream:
            await stream.send(json.dumps({"type": "command", "command_id": command_id, "command": command}))
            while True:
                try:
                    frame = await stream.receive()
                except StreamClosed as closed:
                    raise SurfaceRejected({"type": "forbidden", "message": str(closed)}) from closed
                if frame["type"] == "command_result":
                    return frame
                if frame["type"] == "error":
                    raise SurfaceRejected(frame["rejection"])

    @override
    @asynccontextmanager
    async def stream(self, hello: JsonObject) -> AsyncGenerator[SurfaceStream]:
        async with connect(self._url, subprotocols=[Subprotocol(PROTOCOL)], max_size=None) as connection:
            stream = WebSocketStream(connection)
            await stream.send(json.dumps(hello))
            yield stream


class WebSocketStream(SurfaceStream):
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @override
    async def send(self, text: str) -> None:
        await self._connection.send(text)

    @override
    async def receive(self) -> JsonObject:
        try:
            return json.loads(await self._connection.recv())
        except ConnectionClosed as closed:
            raise StreamClosed(0 if closed.rcvd is None else closed.rcvd.code) from closed
