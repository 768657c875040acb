"""`reflexr_router`: the router that serves workspaces, with what its OpenAPI document says of each route."""

import re
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter, FastAPI, WebSocket

from reflexr.core import CommandSucceeded, DeadLetter, Envelope, Published, Rule, Run
from reflexr.fastapi import bodies
from reflexr.fastapi.answers import ETAG, IF_NONE_MATCH, LINK
from reflexr.fastapi.callers import DEFAULT_CREDENTIALS, Callers, ResolveActor
from reflexr.fastapi.connections import StreamLimits
from reflexr.fastapi.endpoints import Endpoints
from reflexr.fastapi.refusals import described
from reflexr.fastapi.routes import SLASHES, WORKSPACE, route_class, unknown, unknown_route_class
from reflexr.fastapi.streams import Streams
from reflexr.workspace import (
    Authorize,
    RuleDescription,
    RuleStatus,
    Schedule,
    ScheduleStatus,
    WorkspaceError,
    Workspaces,
)

DEFAULT_HELLO_TIMEOUT: Final = timedelta(seconds=10)
"""How long a stream's client has to say hello, by default."""

DEFAULT_OUTBOX_SIZE: Final = 1_000
"""How many frames a stream's client may be behind, by default."""

DEFAULT_MAX_BODY: Final = 1_048_576
"""How many bytes a body, or a frame, may have, by default: 1 MiB."""


class ReflexrRouter(APIRouter):
    """A router of FastAPI that serves workspaces. Include it under any prefix: `app.include_router(router)`."""

    def __init__(self, endpoints: Endpoints, streams: Streams, callers: Callers, *, max_body: int) -> None:
        super().__init__(
            tags=["reflexr"],
            route_class=route_class(callers, max_body),
            lifespan=_closing(streams),
        )
        self._streams = streams
        _add_writes(self, endpoints)
        for read in _READS:
            _add_read(self, endpoints, read)
        for read in _READS:
            # The name of a rule or a run that has slashes names none, and is told so if the path is no other's.
            if (path := _SLASHLESS.sub(r"{\1:reflexr_id}", read.path)) != read.path:
                _add_read(self, endpoints, replace(read, path=path), documented=False)

        async def stream(websocket: WebSocket, workspace_id: str) -> None:
            """A workspace's log as it grows, and commands: `reflexr.v1` over a WebSocket."""
            await streams.serve(websocket, workspace_id)

        async def unknown_stream(websocket: WebSocket) -> None:
            callers.redact(websocket.scope)
            await websocket.close()

        self.add_api_websocket_route(_STREAM, stream)
        self.add_api_websocket_route(f"{_STREAM}{SLASHES}", unknown_stream)
        # Starlette would send a client that adds a slash to the path without, along with the token in its URL; and a
        # server that has no WebSocket library asks for a stream over HTTP.
        slashed = [f"{path}{SLASHES}" for path in (_COMMANDS, _STREAM, *(read.path for read in _READS))]
        unserved = unknown_route_class(callers)
        for path in (_STREAM, *slashed):
            self.add_api_route(path, unknown, methods=["GET"], include_in_schema=False, route_class_override=unserved)

    async def close(self) -> None:
        """Closes every stream with 1001, as the server is going away, and refuses new ones.

        The router does so by itself when the application's lifespan ends. A server that cuts its connections off
        before that, as uvicorn does, is told to close them first: call it before the server's own shutdown.
        """
        await self._streams.close()


def reflexr_router(
    workspaces: Workspaces,
    *,
    resolve_actor: ResolveActor,
    authorize: Authorize | None = None,
    hello_timeout: timedelta = DEFAULT_HELLO_TIMEOUT,
    outbox_size: int = DEFAULT_OUTBOX_SIZE,
    max_body: int = DEFAULT_MAX_BODY,
    credentials: Collection[str] = DEFAULT_CREDENTIALS,
) -> ReflexrRouter:
    """Returns a router that serves an application's workspaces over HTTP and WebSocket, as `reflexr.v1` has it.

    Args:
        workspaces: The workspaces.
        resolve_actor: Says which tenant and actor a connection comes from, or raises `Unauthorized`. Asked once for
            each request and each WebSocket, before anything else of it is read.
        authorize: Permissions to ask besides those of `workspaces`, of what comes through this router. An event that
            answers a paused run does so in the reactor, which asks those of `workspaces` alone.
        hello_timeout: How long a stream's client has to say hello; longer than zero.
        outbox_size: How many frames a stream's client may be behind before it is closed with 4429; at least 1.
        max_body: How many bytes a request's body, or a stream's frame, may have; at least 1.
        credentials: The query parameters in which tokens travel. `resolve_actor` sees them, and nobody else: not the
            server's access log, not the traces. Any other query parameter that a route does not have is refused.

    Raises:
        WorkspaceError: A number is out of range, or a hook cannot be called.
    """
    problems = [
        f"{name}: {value!r} is less than 1"
        for name, value in (("outbox_size", outbox_size), ("max_body", max_body))
        if value < 1
    ]
    problems += (
        f"{name}: {hook!r} cannot be called: give a function"
        for name, hook in (("resolve_actor", resolve_actor), ("authorize", authorize))
        if not callable(hook) and (hook is not None or name == "resolve_actor")
    )
    if isinstance(credentials, str):
        problems.append(f"credentials: give a list of query parameters, such as [{credentials!r}]")
    if hello_timeout <= timedelta():
        problems.append(f"hello_timeout: {hello_timeout!r} is not longer than zero")
    if problems:
        raise WorkspaceError("; ".join(problems))
    callers = Callers(resolve_actor, credentials)
    limits = StreamLimits(hello_timeout, outbox_size, max_body)
    streams = Streams(workspaces, callers, authorize, limits)
    return ReflexrRouter(Endpoints(workspaces, authorize), streams, callers, max_body=max_body)


def _closing(streams: Streams) -> Any:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await streams.close()

    return lifespan


# --- What the OpenAPI document says


@dataclass(frozen=True, slots=True)
class _Read:
    """A route that reads.

    Attributes:
        path: Its path.
        name: Its endpoint, by which clients that are generated call it too.
        model: What it answers with.
        example: Such an answer.
        headers: Its headers.
    """

    path: str
    name: str
    model: Any
    example: Any
    headers: Mapping[str, Any] = field(default_factory=lambda: ETAG)


_COMMANDS: Final = f"{WORKSPACE}/commands"

_STREAM: Final = f"{WORKSPACE}/stream"

# Those that end in a name of their own come first, so that an id of a workspace that ends in `/rules` is read as one.
_READS: Final = (
    _Read(f"{WORKSPACE}/events", "read_events", list[Envelope], [bodies.ENVELOPE_EXAMPLE], {**ETAG, **LINK}),
    _Read("/rules", "list_rules", list[Rule], [bodies.RULE_EXAMPLE]),
    _Read("/schedules", "list_schedules", list[Schedule], [bodies.SCHEDULE_EXAMPLE]),
    _Read(f"{WORKSPACE}/dead-letters", "dead_letters", list[DeadLetter], [bodies.DEAD_LETTER_EXAMPLE]),
    _Read(f"{WORKSPACE}/schedules", "schedule_statuses", list[ScheduleStatus], [bodies.SCHEDULE_STATUS_EXAMPLE]),
    _Read(f"{WORKSPACE}/rules", "rule_statuses", list[RuleStatus], [bodies.RULE_STATUS_EXAMPLE]),
    _Read(f"{WORKSPACE}/runs", "list_runs", list[Run], [bodies.RUN_EXAMPLE]),
    _Read(f"{WORKSPACE}/rules/{{rule}}/history", "rule_history", list[Envelope], [bodies.INSTALLED_EXAMPLE]),
    _Read(f"{WORKSPACE}/rules/{{rule}}", "get_rule", RuleDescription, bodies.RULE_DESCRIPTION_EXAMPLE),
    _Read(f"{WORKSPACE}/runs/{{run_id}}", "get_run", Run, bodies.RUN_EXAMPLE),
)


def _add_writes(router: APIRouter, endpoints: Endpoints) -> None:
    refusals = described(401, 403, 404, 409, 413, 422, 503)
    result = {"type": "command_result", "command_id": "c-1", "ok": True, "outcome": bodies.PUBLISHED_EXAMPLE}
    router.add_api_route(
        _COMMANDS,
        endpoints.execute_command,
        methods=["POST"],
        operation_id="execute_command",
        response_model=CommandSucceeded,
        responses={**refusals, 200: _shown(result)},
    )
    router.add_api_route(
        f"{WORKSPACE}/events",
        endpoints.publish_events,
        methods=["POST"],
        operation_id="publish_events",
        response_model=list[Published],
        responses={**refusals, 200: _shown([bodies.PUBLISHED_EXAMPLE])},
    )


_SLASHLESS: Final = re.compile(r"\{(rule|run_id)\}")


def _add_read(router: APIRouter, endpoints: Endpoints, read: _Read, *, documented: bool = True) -> None:
    router.add_api_route(
        read.path,
        getattr(endpoints, read.name),
        methods=["GET"],
        operation_id=read.name,
        include_in_schema=documented,
        response_model=read.model,
        responses={
            **described(401, 403, 404, 422, 503),
            200: {**_shown(read.example), "headers": read.headers},
            304: {"description": "The client has it already, as its `If-None-Match` says.", "headers": read.headers},
        },
        openapi_extra={"parameters": [IF_NONE_MATCH]},
    )


def _shown(example: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"example": example}}}
