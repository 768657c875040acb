"""Who calls is the application's to say, and what of them is in a URL is in no record."""

import logging
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from reflexr.core import Actor
from reflexr.fastapi import Unauthorized
from reflexr.fastapi.callers import Callers
from reflexr.workspace import WorkspaceError

from .ops import (
    ADA,
    COMMANDS,
    DEAD_LETTERS,
    EVENTS,
    RULES,
    RUNS,
    SCHEDULES,
    TOKENS,
    Ops,
    bearer,
    client_of,
    ops,
    serving,
)
from .serving import served


def scope_of(query: bytes = b"", **more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": "/rules",
        "query_string": query,
        "headers": [],
        "server": ("127.0.0.1", 80),
        **more,
    }


def client_in_process(application: Ops, *, raises: bool = True) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(application.app, raise_app_exceptions=raises)
    return httpx.AsyncClient(transport=transport, base_url="http://ops")


async def test_an_application_that_knows_who_calls_at_once_is_asked_as_one_that_has_to_wait() -> None:
    async def resolve(connection: HTTPConnection) -> tuple[str, Actor]:
        return TOKENS[connection.headers["token"]]

    async with client_in_process(ops(resolve_actor=resolve)) as client:
        assert (await client.get("/rules", headers={"token": "ada"})).status_code == 200
    async with client_in_process(ops()) as client:
        assert (await client.get("/rules", headers=bearer("ada"))).status_code == 200


@pytest.mark.parametrize("token", [None, "nobody"])
async def test_whoever_is_not_known_is_told_how_to_say_who_they_are(token: str | None) -> None:
    async with serving() as site, client_of(site.at, token) as client:
        for answer in (await client.get("/rules"), await client.post(EVENTS, json={})):
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["detail"]["type"] == "forbidden"


async def test_nothing_else_of_a_request_is_looked_at_before_it_is_known_who_calls() -> None:
    async with client_in_process(ops()) as client:
        answer = await client.post(f"{EVENTS}?nonsense=1", content=b"x" * 2_000_000)
        assert answer.status_code == 401


async def test_an_application_words_its_own_refusal() -> None:
    async def resolve(_: HTTPConnection) -> tuple[str, Actor]:
        raise Unauthorized("the token has expired")

    async with client_in_process(ops(resolve_actor=resolve)) as client:
        assert (await client.get("/rules")).json() == {
            "detail": {"type": "forbidden", "message": "the token has expired"}
        }


@pytest.mark.parametrize(
    "answer", [None, "acme", ("acme",), ("", ADA), ("a" * 256, ADA), ("acme", None), ("acme", "ada"), (ADA, "acme")]
)
async def test_an_application_that_names_nobody_is_to_blame_itself(answer: Any) -> None:
    async def later(_: HTTPConnection) -> Any:
        return answer

    with pytest.raises(WorkspaceError, match="resolve_actor"):
        await Callers(lambda _: answer).identify(scope_of())
    with pytest.raises(WorkspaceError, match="resolve_actor"):
        await Callers(later).identify(scope_of())


async def test_what_names_nobody_is_in_no_message() -> None:
    answer: Any = ("acme", "secret")
    with pytest.raises(WorkspaceError) as raised:
        await Callers(lambda _: answer).identify(scope_of())
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("broken", ["raises", "names nobody"])
async def test_an_application_that_breaks_is_an_error_of_the_server_that_tells_nothing(broken: str) -> None:
    def resolve(_: HTTPConnection) -> Any:
        if broken == "raises":
            raise LookupError("the secret database is down")
        return "secret"

    async with serving(ops(resolve_actor=resolve)) as site:
        answer = await site.client.get("/rules")
        assert answer.status_code == 500
        assert answer.text == "Internal Server Error"


# --- Credentials in a URL


async def test_credentials_in_a_url_reach_the_application_alone() -> None:
    seen: list[str] = []

    def resolve(connection: HTTPConnection) -> tuple[str, Actor]:
        seen.append(connection.url.query)
        return "acme", ADA

    scope = scope_of(b"a=1&token=secret&%74oken=secret&access_token=secret&b=%E2%82%AC&c=&d=%2B+")
    await Callers(resolve).identify(scope)
    assert seen == ["a=1&token=secret&%74oken=secret&access_token=secret&b=%E2%82%AC&c=&d=%2B+"]
    assert scope["query_string"] == b"a=1&b=%E2%82%AC&c=&d=%2B+"


@pytest.mark.parametrize("query", [b"", b"a=1&a=2", b"b=%E2%82%AC&&c", b"tokens=1"])
async def test_a_url_with_no_credentials_is_left_as_it_is(query: bytes) -> None:
    scope = scope_of(query)
    await Callers(lambda _: ("acme", ADA)).identify(scope)
    assert scope["query_string"] == query


async def test_an_application_says_in_which_parameters_its_credentials_are() -> None:
    scope = scope_of(b"token=1&key=secret")
    await Callers(lambda _: ("acme", ADA), ["key"]).identify(scope)
    assert scope["query_string"] == b"token=1"


async def test_credentials_in_a_url_are_no_parameters_of_a_route() -> None:
    async with serving() as site, client_of(site.at, None) as client:
        assert (await client.get(f"{EVENTS}?token=ada&limit=1")).status_code == 200
        assert (await client.get(f"{EVENTS}?token=nobody")).status_code == 401


_REQUESTS = (
    ("GET", f"{EVENTS}?limit=1&token=ada", 200),
    ("GET", f"{EVENTS}?%74oken=ada", 200),
    ("GET", f"{EVENTS}?token=secret", 401),
    ("GET", f"{EVENTS}?token=ada&access_token=secret&nonsense=1", 422),
    ("POST", f"{EVENTS}?token=ada", 422),
    ("PUT", f"{RUNS}?token=secret", 405),
    ("GET", f"{RUNS}/fir_0?token=ada", 404),
)


@pytest.mark.parametrize(("method", "url", "status"), _REQUESTS)
async def test_credentials_in_a_url_are_in_no_access_log(
    method: str, url: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "uvicorn.access")
    async with serving(access_log=True) as site, client_of(site.at, None) as client:
        assert (await client.request(method, url)).status_code == status
    (line,) = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
    assert line.count(url.partition("?")[0]) == 1
    assert "ada" not in line
    assert "secret" not in line


_STREAM = "/workspaces/prod/stream"

_UNKNOWN = [
    *(
        (method, f"{path}{slashes}")
        for path in ("/rules", "/schedules", EVENTS, COMMANDS, DEAD_LETTERS, SCHEDULES, _STREAM)
        for slashes in ("/", "//")
        for method in ("GET", "POST")
    ),
    ("GET", _STREAM),
    ("POST", _STREAM),
    ("DELETE", _STREAM),
    ("GET", "/workspaces/a%0Ab/stream"),
]


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
@pytest.mark.parametrize(("method", "path"), _UNKNOWN)
async def test_credentials_sent_to_what_is_but_almost_a_path_are_in_no_record(
    method: str, path: str, prefix: str
) -> None:
    application = ops(prefix=prefix)
    scopes: list[Scope] = []

    async def recording(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await application.app(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(recording), base_url="http://ops") as client:
        answer = await client.request(method, f"{prefix}{path}?a=1&token=secret")
    assert answer.status_code == 404
    assert answer.json() == {"detail": "Not Found"}
    assert answer.headers.keys() == {"content-length", "content-type"}
    (scope,) = scopes
    assert scope["query_string"] == b"a=1"


@pytest.mark.parametrize("path", [f"{RULES}/", f"{RUNS}//", f"{RULES}/a/history/", f"{RUNS}/a/"])
async def test_a_name_that_ends_in_a_slash_is_asked_for_as_any_other(path: str) -> None:
    async with client_in_process(ops()) as client:
        answer = await client.get(f"{path}?token=secret")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await client.get(path, headers=bearer("ada"))).json()["detail"]["type"] in {"not_found", "invalid"}


async def test_what_is_named_as_the_stream_keeps_its_methods() -> None:
    async with client_in_process(ops()) as client:
        answer = await client.post(f"{RUNS}/stream")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


async def test_other_paths_of_an_application_are_left_to_it() -> None:
    application = ops(prefix="/api")

    @application.app.get("/rules/")
    @application.app.get("/feed/stream")
    def answered(token: str) -> str:
        return token

    async with client_in_process(application) as client:
        assert (await client.get("/rules/?token=theirs")).json() == "theirs"
        assert (await client.get("/feed/stream?token=theirs")).json() == "theirs"
        assert (await client.get("/rules?token=theirs")).headers["location"] == "http://ops/rules/?token=theirs"


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        (_STREAM, {"ws": "none"}, 404),
        (f"{_STREAM}/", {"ws": "none"}, 404),
        (f"{_STREAM}/", {}, 403),
        (f"{_STREAM}//", {}, 403),
    ],
)
async def test_credentials_sent_for_a_stream_that_is_not_served_are_in_no_log(
    path: str, options: dict[str, Any], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "uvicorn")
    async with serving(access_log=True, **options) as site:
        with pytest.raises(InvalidStatus) as raised:
            await connect(f"{site.at.ws}{path}?token=secret", proxy=None)
    assert raised.value.response.status_code == status
    assert path in caplog.text
    assert "secret" not in caplog.text


class Traced:
    """An application around which a tracer puts a span for each request, with its URL in every form there is."""

    def __init__(self, app: ASGIApp, provider: TracerProvider) -> None:
        self._app = app
        self._tracer = provider.get_tracer("test")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        attributes = {
            "http.url": str(connection.url),
            "url.full": str(connection.url),
            "http.target": f"{connection.url.path}?{connection.url.query}",
            "url.query": connection.url.query,
        }
        with self._tracer.start_as_current_span("request", attributes=attributes):
            await self._app(scope, receive, send)


def recorded() -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


@pytest.mark.parametrize(("method", "url", "status"), _REQUESTS)
async def test_credentials_in_a_url_are_in_no_trace(method: str, url: str, status: int) -> None:
    provider, exporter = recorded()
    async with served(Traced(ops().app, provider)) as at, client_of(at, None) as client:
        assert (await client.request(method, url)).status_code == status
    (span,) = exporter.get_finished_spans()
    attributes = dict(span.attributes or {})
    assert "ada" not in str(attributes)
    assert "secret" not in str(attributes)
    path, _, query = url.partition("?")
    kept = "&".join(part for part in query.split("&") if "oken" not in part)
    target = f"{path}?{kept}" if kept else path
    assert attributes == {
        "http.url": f"{at.http}{target}",
        "url.full": f"{at.http}{target}",
        "http.target": target,
        "url.query": kept,
    }


async def test_credentials_in_a_url_are_in_no_trace_of_fastapi_itself() -> None:
    provider, exporter = recorded()
    app = FastAPI(telemetry={"tracer_provider": provider})
    app.include_router(ops().router)
    async with served(app) as at, client_of(at, None) as client:
        assert (await client.get(f"{EVENTS}?limit=1&token=ada")).status_code == 200
    (span,) = [span for span in exporter.get_finished_spans() if span.kind is trace.SpanKind.SERVER]
    attributes = dict(span.attributes or {})
    assert attributes["url.query"] == "limit=1"
    assert "ada" not in str((span.name, attributes, span.events, span.status.description))


async def test_a_span_of_a_request_with_no_credentials_is_left_as_it_is() -> None:
    provider, exporter = recorded()
    with provider.get_tracer("test").start_as_current_span("request", attributes={"url.query": "a"}):
        await Callers(lambda _: ("acme", ADA)).identify(scope_of(b"b=1"))
    (span,) = exporter.get_finished_spans()
    assert span.attributes == {"url.query": "a"}


async def test_a_server_that_has_no_port_or_no_address_is_described_without() -> None:
    for server, shown in ((("/run/ops.sock", None), "http:///run/ops.sock/rules?b=1"), (None, "http:///rules?b=1")):
        provider, exporter = recorded()
        with provider.get_tracer("test").start_as_current_span("request"):
            await Callers(lambda _: ("acme", ADA)).identify(scope_of(b"token=1&b=1", server=server))
        (span,) = exporter.get_finished_spans()
        assert dict(span.attributes or {})["url.full"] == shown
