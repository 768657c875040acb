"""Callers: who is at the other end of a connection, as the application says, and what of them is kept out of records.

Authentication is the application's: reflexr asks it before it reads anything else that a client sent.
"""

from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from inspect import isawaitable
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlencode

from opentelemetry import trace
from pydantic import TypeAdapter, ValidationError
from starlette.requests import HTTPConnection
from starlette.types import Scope

from reflexr.core import Actor, Id, ReflexrError, problems
from reflexr.workspace import WorkspaceError

DEFAULT_CREDENTIALS: Final = ("token", "access_token")
"""The query parameters in which tokens travel by default, for browsers, whose WebSockets can send no header."""

_URL_ATTRIBUTES: Final = ("http.target", "http.url", "url.full", "url.query")

_CALLER: Final[TypeAdapter[tuple[str, Actor]]] = TypeAdapter(tuple[Id, Actor])


class Unauthorized(ReflexrError):
    """The application does not know who is calling: answered with 401, or with the close code 4401."""

    def __init__(self, message: str = "say who you are: the credentials are missing, or are none") -> None:
        super().__init__(message)


class ResolveActor(Protocol):
    """The application's authentication. It may be a plain function or a coroutine function."""

    def __call__(self, connection: HTTPConnection, /) -> tuple[str, Actor] | Awaitable[tuple[str, Actor]]:
        """Returns the tenant and the actor that a request, or a WebSocket, comes from.

        Args:
            connection: What the client sent, but for its body.

        Raises:
            Unauthorized: It is not known who that is.
        """
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls.

    Attributes:
        tenant_id: Their tenant.
        actor: Whom everything that they do is attributed to.
    """

    tenant_id: str
    actor: Actor


class Callers:
    """Finds out who calls, and keeps their credentials out of what servers and tracers record of a connection."""

    def __init__(self, resolve_actor: ResolveActor, credentials: Collection[str] = DEFAULT_CREDENTIALS) -> None:
        """Prepares to ask the application.

        Args:
            resolve_actor: The application's authentication.
            credentials: The query parameters in which credentials travel.
        """
        self._resolve_actor = resolve_actor
        self.credentials: Final = frozenset(credentials)

    async def identify(self, scope: Scope) -> Caller:
        """Returns who is at the other end.

        The credentials in its URL are the application's to see, once: they are taken out of the connection's scope,
        of which a server writes its access log, and out of the current span.

        Raises:
            Unauthorized: It is not known who that is.
            WorkspaceError: What the application answers names nobody.
        """
        connection = HTTPConnection(dict(scope))
        self.redact(scope)
        resolved = self._resolve_actor(connection)
        answer: object = await resolved if isawaitable(resolved) else resolved
        try:
            tenant_id, actor = _CALLER.validate_python(answer)
        except ValidationError as error:
            # Without the answer itself, in which may be what nobody is to read in a log.
            shown = "; ".join(problems(error))
            raise WorkspaceError(f"resolve_actor returns a tenant's id and an actor, and did not: {shown}") from None
        return Caller(tenant_id, actor)

    def redact(self, scope: Scope) -> None:
        """Takes the credentials out of a connection's URL, and out of the current span."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, encoding="latin-1")
        kept = [(name, value) for name, value in query if name not in self.credentials]
        if len(kept) == len(query):
            return
        scope["query_string"] = urlencode(kept, encoding="latin-1").encode("ascii")
        span = trace.get_current_span()
        for name in _URL_ATTRIBUTES:
            # What a span has is not to be read through the API, so each form is written anew, of what is left.
            span.set_attribute(name, _described(scope, name))


def _described(scope: Scope, attribute: str) -> str:
    query = scope["query_string"].decode("ascii")
    target = f"{scope['path']}?{query}" if query else scope["path"]
    match attribute:
        case "url.query":
            return query
        case "http.target":
            return target
        case _:
            host, port = scope.get("server") or ("", None)
            return f"{scope.get('scheme', 'http')}://{host}{'' if port is None else f':{port}'}{target}"
