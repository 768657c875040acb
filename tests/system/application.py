"""An application whose workspaces are used from pages of another origin."""

from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection

from reflexr.core import Event, UserActor
from reflexr.fastapi import ReflexrRouter, Unauthorized, reflexr_router
from reflexr.workspace import InMemoryStorage, Workspaces

TOKENS = {"adas-token": UserActor(id="ada", name="Ada")}


class MonitorEvent(Event, abstract=True, event_namespace="monitor"): ...


class ServiceError(MonitorEvent):
    service: str
    severity: int


def resolve_actor(connection: HTTPConnection) -> tuple[str, UserActor]:
    """Who it is by a token: in a header, or, from a browser's WebSocket, in the URL."""
    header = connection.headers.get("authorization", "").removeprefix("Bearer ")
    actor = TOKENS.get(connection.query_params.get("token", header))
    if actor is None:
        raise Unauthorized("the token is not known")
    return "acme", actor


def workspaces() -> Workspaces:
    return Workspaces(InMemoryStorage(), events=[ServiceError])


def application(served: Workspaces, origins: Sequence[str]) -> tuple[FastAPI, ReflexrRouter]:
    """The workspaces under `/api`, for pages of these origins, and the router to close before the server is."""
    app = FastAPI()
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type", "if-none-match", "idempotency-key"],
        expose_headers=["etag", "link"],
    )
    router = reflexr_router(served, resolve_actor=resolve_actor)
    app.include_router(router, prefix="/api")
    return app, router
