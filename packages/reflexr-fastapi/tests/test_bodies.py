"""A body is read within limits, and what is wrong with one is said."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, Final

import pytest
from starlette.types import Message

from .ops import COMMANDS, EVENTS, Site, bearer, command, error, ops, serving

_LIMIT: Final = 2_000
_JSON: Final = {"content-type": "application/json"}


async def refused(site: Site, body: bytes | str, *, path: str = EVENTS, status: int = 422) -> dict[str, Any]:
    """Sends a body, and returns the rejection."""
    answer = await site.client.post(path, content=body, headers=_JSON)
    assert answer.status_code == status, answer.text
    detail = answer.json()["detail"]
    assert detail["type"] == "validation_failed"
    return detail


def with_details(details: str) -> str:
    return f'{{"event": {{"type": "ops:service.error", "details": {details}}}}}'


# --- Its size


async def test_a_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    async with serving(ops(max_body=_LIMIT)) as site:
        body = json.dumps({"event": error(details="")})
        full = json.dumps({"event": error(details="x" * (_LIMIT - len(body)))})
        assert (await site.client.post(EVENTS, content=full, headers=_JSON)).status_code == 200
        refusal = await refused(site, full + " ", status=413)
        assert refusal["message"] == "the body is larger than 2000 bytes: send less at a time"


async def test_a_body_that_is_announced_as_too_large_is_refused_before_any_of_it_is_there() -> None:
    async with serving(ops(max_body=_LIMIT)) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.at.port)
        writer.write(
            f"POST {EVENTS} HTTP/1.1\r\nHost: ops\r\nAuthorization: Bearer ada\r\nContent-Type: application/json\r\n"
            f"Content-Length: {10**12}\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("path", [EVENTS, COMMANDS])
async def test_no_more_than_the_limit_is_read_of_a_body_that_does_not_end(path: str) -> None:
    read = 0

    async def receive() -> Message:
        nonlocal read
        read += 100
        return {"type": "http.request", "body": b" " * 100, "more_body": True}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in {**bearer("ada"), **_JSON}.items()]
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": headers,
        "scheme": "http",
        "server": ("ops", 80),
    }
    await ops(max_body=_LIMIT).app(scope, receive, send)
    assert sent[0]["status"] == 413
    # The last piece is that which goes over it.
    assert read == _LIMIT + 100


async def test_a_body_in_pieces_that_grows_too_large_is_refused_while_it_is_sent() -> None:
    async with serving(ops(max_body=_LIMIT)) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.at.port)
        writer.write(
            f"POST {EVENTS} HTTP/1.1\r\nHost: ops\r\nAuthorization: Bearer ada\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        writer.write(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        await writer.drain()
        writer.write(b"7d0\r\n" + b" " * 2000 + b"\r\n")
        # There is no last piece.
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()
        await writer.wait_closed()


async def test_a_body_in_pieces_is_one_body() -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for character in json.dumps({"event": error(), "id": "1"}):
            yield character.encode()

    async with serving() as site:
        answer = await site.client.post(EVENTS, content=pieces(), headers=_JSON)
        assert answer.json() == [{"type": "published", "seq": 1, "id": "1", "duplicate": False}]


async def test_a_client_that_goes_away_in_the_middle_of_its_body_leaves_nothing_behind() -> None:
    async with serving() as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.at.port)
        body = json.dumps({"event": error()}).encode()
        writer.write(
            f"POST {EVENTS} HTTP/1.1\r\nHost: ops\r\nAuthorization: Bearer ada\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body[:-1]
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert await reader.read() == b""
        assert (await site.client.get(EVENTS)).json() == []


# --- Its form


@pytest.mark.parametrize("path", [EVENTS, COMMANDS])
@pytest.mark.parametrize(
    "content_type",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", "json"],
)
async def test_a_body_of_another_type_is_refused_by_its_type(path: str, content_type: str | None) -> None:
    async with serving() as site:
        headers = {} if content_type is None else {"content-type": content_type}
        answer = await site.client.post(path, content=json.dumps({"event": error()}), headers=headers)
        assert answer.status_code == 422
        shown = "is missing" if content_type is None else f"is {content_type!r}"
        assert answer.json()["detail"]["errors"] == [f"content-type: it {shown}: send application/json"]


@pytest.mark.parametrize("content_type", ["application/a/b+json", "application/+json", "application/ json", "/json"])
async def test_a_type_that_is_none_is_not_json(content_type: str) -> None:
    async with serving() as site:
        answer = await site.client.post(EVENTS, content=b"{}", headers={"content-type": content_type})
        assert answer.status_code == 422


@pytest.mark.parametrize(
    "content_type", ["application/json", "APPLICATION/JSON; charset=utf-8", "application/cloudevents+json"]
)
async def test_every_type_of_json_is_read(content_type: str) -> None:
    async with serving() as site:
        body = json.dumps({"event": error(details="é")}, ensure_ascii=False).encode()
        answer = await site.client.post(EVENTS, content=body, headers={"content-type": content_type})
        assert answer.status_code == 200


@pytest.mark.parametrize("path", [EVENTS, COMMANDS])
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "body: Field required"),
        (b"[]", "body: write {…}"),
        (b"null", "body: write {…}"),
        (b'"{}"', "body: write {…}"),
        (b"{", "body: EOF while parsing an object"),
        (b"{} {}", "body: trailing characters"),
        (b'{"a": 1', "body: EOF while parsing an object"),
        (b'{"a": "\xff"}', "body: it is not UTF-8: invalid start byte at byte 7"),
        ('{"é": 1}'.encode("latin-1"), "body: it is not UTF-8: invalid continuation byte at byte 2"),
        ("{}".encode("utf-16"), "body: it is not UTF-8: invalid start byte at byte 0"),
        (b'{"a": ' + b"[" * 500, "body: recursion limit exceeded"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body: recursion limit exceeded"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "body: number out of range"),
        (
            rb'{"a": "\ud800"}',
            "body: unexpected end of hex escape",
        ),
        (
            rb'{"\udfff": 1}',
            "body: lone leading surrogate in hex escape",
        ),
        (b'{"a": "\x00"}', "body: control character (\\u0000-\\u001F) found while parsing a string"),
        (b'{"a": 1, "b": 2, "a": 1}', "body: an object has more than one member 'a'"),
        (b'{"b": [{"a": 1, "\\u0061": 1}]}', "body: an object has more than one member 'a'"),
    ],
)
async def test_what_is_no_json_object_is_refused_and_says_why(path: str, body: bytes, problem: str) -> None:
    async with serving() as site:
        (found,) = (await refused(site, body, path=path))["errors"]
        assert found.startswith(problem)
        assert ("hex escape" in problem) == found.endswith(": a surrogate is written with its other half")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
async def test_a_number_that_json_does_not_have_is_refused_wherever_it_is(number: str) -> None:
    async with serving() as site:
        (problem,) = (await refused(site, with_details(f'[{{"a": {number}}}]')))["errors"]
        assert problem.startswith("event: value.details.0.a is ")
        await refused(site, f'{{"event": {{"type": "ops:service.error"}}, "id": {number}}}')
        await refused(site, f'{{"type": "command", "command_id": "1", "command": {number}}}', path=COMMANDS)


async def test_an_event_that_nests_deeper_than_a_log_can_hold_is_refused() -> None:
    async with serving() as site:
        assert "nests deeper" in (await refused(site, with_details("[" * 150 + "]" * 150)))["errors"][0]
        answer = await site.client.post(EVENTS, content=with_details("[" * 90 + "]" * 90), headers=_JSON)
        assert answer.status_code == 200


async def test_a_huge_integer_is_kept_to_the_last_digit() -> None:
    async with serving() as site:
        number = "9" * 4_000
        assert (await site.client.post(EVENTS, content=with_details(number), headers=_JSON)).status_code == 200
        assert number in (await site.client.get(EVENTS)).text


async def test_many_members_of_one_name_are_refused_as_soon_as_few() -> None:
    async with serving() as site:
        members = ",".join(f'"{number}":1,"{number}":2' for number in range(50_000))
        assert (await refused(site, f"{{{members}}}"))["errors"] == ["body: an object has more than one member '0'"]


# --- What is in it


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        ({}, ["event: Field required"]),
        ({"events": 1}, ["events: Input should be a valid tuple"]),
        ({"event": 1}, ["event: Input should be a valid dictionary"]),
        ({"event": error(), "events": []}, ["event: Extra inputs are not permitted"]),
        (
            {"event": error(), "nonsense": 1, "more": 2},
            ["nonsense: Extra inputs are not permitted", "more: Extra inputs are not permitted"],
        ),
        (
            {"events": [{"event": error()}, {"id": "1"}, 3]},
            [
                "events.1.event: Field required",
                "events.2: Input should be a valid dictionary or object to extract fields from",
            ],
        ),
        ({"event": error(), "id": ""}, ["id: An id is 1 to 255 characters, with no NUL and no lone surrogate"]),
        ({"event": error(), "id": "a\0"}, ["id: An id is 1 to 255 characters, with no NUL and no lone surrogate"]),
        ({"event": error(), "id": "a" * 256}, ["id: An id is 1 to 255 characters, with no NUL and no lone surrogate"]),
        (
            {"event": {"type": "ops:service.error", "severity": "high"}},
            ["severity: Input should be a valid integer, unable to parse string as an integer"],
        ),
        ({"event": error(nonsense=1)}, ["nonsense: Extra inputs are not permitted"]),
    ],
)
async def test_every_problem_of_what_is_published_is_told_with_its_place(body: Any, problems: list[str]) -> None:
    async with serving() as site:
        assert (await refused(site, json.dumps(body)))["errors"] == problems


async def test_a_command_comes_in_a_frame() -> None:
    async with serving() as site:
        frame = command("retry_run", run_id="fir_0")
        for body, problem in (
            ({**frame, "type": "hello"}, "type: Input should be 'command'"),
            ({name: frame[name] for name in ("command_id", "command")}, "body: A command comes in a frame"),
            ({name: frame[name] for name in ("type", "command")}, "command_id: Field required"),
            ({**frame, "nonsense": 1}, "nonsense: Extra inputs are not permitted"),
            ({**frame, "command": {"type": "retry"}}, "command: Input tag 'retry'"),
            ({**frame, "command": {"type": "retry_run"}}, "command.retry_run.run_id: Field required"),
        ):
            (found,) = (await refused(site, json.dumps(body), path=COMMANDS))["errors"]
            assert found.startswith(problem)


async def test_of_very_many_problems_the_first_are_told_and_the_rest_counted() -> None:
    async with serving() as site:
        problems = (await refused(site, json.dumps({"events": [1] * 5_000})))["errors"]
        assert len(problems) == 100
        assert problems[98].startswith("events.98: ")
        assert problems[99] == "and 4901 more"
        assert len((await refused(site, json.dumps({"events": [1] * 100})))["errors"]) == 100
