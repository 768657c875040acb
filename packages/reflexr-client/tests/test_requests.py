import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest

from reflexr.client import Client, Unauthorized, Unavailable, UnexpectedAnswer
from reflexr.core import (
    DepthExceeded,
    Forbidden,
    InvalidState,
    NotFound,
    Rejected,
    UnsupportedProtocol,
    ValidationFailed,
)

from .answering import Answering, Waits, answer, published, refused, result

EVENT = {"type": "ops:beat"}


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_command_is_repeated_under_one_id_until_it_is_answered(status: int) -> None:
    server = Answering(httpx.Response(status), httpx.Response(status), result(published(7)))
    async with server.client() as client:
        assert (await client.workspace("prod").publish(EVENT)).seq == 7
    assert len({request.content for request in server.requests}) == 1
    assert len(server.requests) == 3
    assert server.waits.seconds == [0.1, 0.2]


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.ReadTimeout("slow"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("closed in the middle"),
        httpx.DecodingError("no gzip"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_a_lost_connection_or_a_timeout_is_tried_again(failure: httpx.RequestError) -> None:
    server = Answering(failure, result(published(7)))
    async with server.client() as client:
        assert (await client.workspace("prod").publish(EVENT)).seq == 7
    assert server.bodies[0] == server.bodies[1]


async def test_publish_many_is_repeated_under_one_key_with_the_same_ids() -> None:
    server = Answering(httpx.ReadTimeout("slow"), answer([published(1, "a"), published(2, "b")]))
    async with server.client() as client:
        await client.workspace("prod").publish_many([EVENT, EVENT])
    first, second = server.requests
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.content == second.content


async def test_a_read_is_tried_again() -> None:
    server = Answering(httpx.ConnectError("refused"), httpx.Response(503), answer([]))
    async with server.client() as client:
        assert await client.workspace("prod").read() == []
    assert len(server.requests) == 3


async def test_it_gives_up_after_so_many_tries_and_says_of_what() -> None:
    failure = httpx.ConnectError("refused")
    server = Answering(failure)
    async with server.client() as client:
        with pytest.raises(Unavailable, match=r"POST /workspaces/prod/commands was tried 4 times, .*refused") as raised:
            await client.workspace("prod").publish(EVENT, command_id="c-1")
    assert (raised.value.attempts, raised.value.command_id) == (4, "c-1")
    assert raised.value.__cause__ is failure
    assert len(server.requests) == 4


async def test_it_gives_up_when_time_is_over() -> None:
    server = Answering(httpx.Response(503))
    backoff = server.waits.backoff(attempts=1_000, within=timedelta(seconds=1))
    async with server.client(backoff=backoff) as client:
        with pytest.raises(Unavailable, match="the last with status 503") as raised:
            await client.rules()
    assert raised.value.command_id is None
    assert sum(server.waits.seconds) <= 1


@pytest.mark.parametrize(("retry_after", "wait"), [("7", 7.0), ("0", 0.1), ("soon", 0.1), ("-1", 0.1), ("²", 0.1)])
async def test_a_server_that_says_when_to_come_back_is_heard(retry_after: str, wait: float) -> None:
    server = Answering(httpx.Response(503, headers=[(b"Retry-After", retry_after.encode())]), answer([]))
    async with server.client() as client:
        await client.rules()
    assert server.waits.seconds == [wait]


async def test_what_is_tried_again_is_logged_once_with_what_will_happen_and_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Answering(httpx.Response(503), answer([]))
    with caplog.at_level(logging.WARNING, "reflexr.client"):
        async with server.client(token="secret") as client:
            await client.rules()
    assert [record.getMessage() for record in caplog.records] == [
        "GET /rules failed with status 503: trying again in 0.100 s"
    ]


REJECTIONS = [
    (refused("not_found", 404), NotFound("no")),
    (refused("invalid_state", 409), InvalidState("no")),
    (
        refused("validation_failed", 422, errors=["events.1: a", "events.2: b"]),
        ValidationFailed("no", ["events.1: a", "events.2: b"]),
    ),
    (refused("validation_failed", 413, errors=["no"]), ValidationFailed("no", ["no"])),
    (refused("forbidden", 403), Forbidden("no")),
    (
        refused(
            "depth_exceeded",
            422,
            "the event would be 6 deep in its causal chain, and the workspace's limit is 5",
            depth=6,
            limit=5,
        ),
        DepthExceeded(6, 5),
    ),
    (refused("unsupported_protocol", 400), UnsupportedProtocol("no")),
    (refused("not_found", 404, of_a_newer_server=True), NotFound("no")),
]


@pytest.mark.parametrize(("response", "rejection"), REJECTIONS)
async def test_a_rejection_is_raised_as_in_process_and_not_tried_again(
    response: httpx.Response, rejection: Rejected
) -> None:
    server = Answering(response)
    async with server.client() as client:
        with pytest.raises(type(rejection)) as raised:
            await client.workspace("prod").publish(EVENT)
    assert raised.value.rejection == rejection.rejection
    assert raised.value.args == rejection.args
    assert len(server.requests) == 1


async def test_a_result_that_says_it_was_refused_is_a_rejection_too() -> None:
    rejection = {"type": "forbidden", "message": "no"}
    server = Answering(answer({"type": "command_result", "command_id": "c", "ok": False, "rejection": rejection}))
    async with server.client() as client:
        with pytest.raises(Forbidden, match=r"^no$"):
            await client.workspace("prod").publish(EVENT)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (refused("forbidden", 401, "say who you are"), "say who you are"),
        (answer({"detail": "over"}, 401), "over"),
        (answer({}, 401), "the server does not know who asks: give a token that it accepts"),
        (httpx.Response(401, content=b"\xff"), "the server does not know who asks: give a token that it accepts"),
    ],
)
async def test_who_is_not_known_is_told_so_and_does_not_try_again(response: httpx.Response, message: str) -> None:
    server = Answering(response)
    async with server.client() as client:
        with pytest.raises(Unauthorized) as raised:
            await client.rules()
    assert str(raised.value) == message
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(404, text="Not Found"),
        answer({"detail": "Not Found"}, 404),
        answer({"detail": {"type": "of_a_newer_server", "message": "no"}}, 409),
        answer(["detail"], 422),
        httpx.Response(500, text="x" * 10_000),
        httpx.Response(307, headers={"Location": "/elsewhere"}),
    ],
)
async def test_what_no_such_server_answers_is_shown_with_its_status(response: httpx.Response) -> None:
    server = Answering(response)
    async with server.client() as client:
        with pytest.raises(
            UnexpectedAnswer, match=f"GET /rules was answered with status {response.status_code}: "
        ) as raised:
            await client.rules()
    assert raised.value.status_code == response.status_code
    assert len(str(raised.value)) < 300
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "content", [b"", b"[", b"{}", b"<html>", b"\xff\xfe", b'[{"name": 1}]', b"[" * 10_000, b"null"]
)
async def test_an_answer_that_cannot_be_read_is_unexpected(content: bytes) -> None:
    server = Answering(httpx.Response(200, content=content))
    async with server.client() as client:
        with pytest.raises(UnexpectedAnswer, match=r"the answer to GET /rules is none of reflexr\.v1") as raised:
            await client.rules()
    assert raised.value.status_code is None


async def test_the_result_of_another_command_is_unexpected() -> None:
    server = Answering(result({"type": "recorded", "seq": 1, "id": "a"}))
    async with server.client() as client:
        with pytest.raises(UnexpectedAnswer, match="the outcome of another command"):
            await client.workspace("prod").publish(EVENT)


async def test_results_for_more_events_than_were_published_are_unexpected() -> None:
    server = Answering(answer([published(1), published(2)]))
    async with server.client() as client:
        with pytest.raises(UnexpectedAnswer, match="with 1 events is for 2"):
            await client.workspace("prod").publish_many([EVENT])


async def test_credentials_travel_in_headers_and_never_in_the_url() -> None:
    server = Answering(answer([]))
    async with server.client(token="secret", headers={"X-Tenant": "acme"}) as client:
        await client.rules()
    assert server.request.headers["Authorization"] == "Bearer secret"
    assert server.request.headers["X-Tenant"] == "acme"
    assert "secret" not in str(server.request.url)


async def test_a_token_is_fetched_again_for_each_try() -> None:
    tokens = iter(("old", "new"))

    async def token() -> str:
        return next(tokens)

    server = Answering(httpx.Response(503), answer([]))
    async with server.client(token=token) as client:
        await client.rules()
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer old", "Bearer new"]


async def test_what_is_too_long_for_a_url_is_refused() -> None:
    server = Answering(answer([]))
    async with server.client() as client:
        with pytest.raises(ValidationFailed, match="too long for a URL"):
            await client.workspace("prod").run("x" * 70_000)
    assert server.requests == []


# --- Over a real socket

type Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

GOOD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]"


@asynccontextmanager
async def listening(*behaviours: Behaviour) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """A server that does with each connection what comes next, and keeps what it was sent."""
    requests: list[bytes] = []
    following = iter(behaviours)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        await next(following)(reader, writer)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}", requests


def saying(content: bytes) -> Behaviour:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(content)

    return behave


async def stalling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def aborting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize(
    "fault",
    [
        saying(b""),
        saying(b"garbage\r\n\r\n"),
        saying(GOOD[:20]),
        saying(GOOD[:-1]),
        saying(GOOD.replace(b"200 OK", b"503 Service Unavailable")),
        stalling,
        aborting,
    ],
    ids=["closes", "garbage", "half-a-head", "half-a-body", "503", "stalls", "aborts"],
)
async def test_whatever_a_server_does_it_is_asked_again(fault: Behaviour) -> None:
    waits = Waits()
    async with (
        listening(fault, saying(GOOD)) as (base_url, requests),
        Client(base_url, backoff=waits.backoff(), timeout=timedelta(seconds=1)) as client,
    ):
        assert await client.rules() == []
    assert len(requests) == 2
    assert waits.seconds == [0.1]


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with listening() as (base_url, _):
        pass
    waits = Waits()
    async with Client(base_url, backoff=waits.backoff(attempts=2)) as client:
        with pytest.raises(Unavailable, match="tried 2 times") as raised:
            await client.rules()
    assert isinstance(raised.value.__cause__, httpx.ConnectError)


async def test_a_request_that_is_cancelled_ends_at_once_and_the_next_one_works() -> None:
    asked = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()

    async with listening(stall, saying(GOOD)) as (base_url, _), Client(base_url) as client:
        task = asyncio.create_task(client.rules())
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.rules() == []
