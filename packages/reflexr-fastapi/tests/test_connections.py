import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from fastapi import WebSocketDisconnect

from reflexr.core import CommandFrame, Hello, NotFound, ReplayComplete, ValidationFailed
from reflexr.fastapi import connections
from reflexr.fastapi.connections import Closed, Connection, StreamLimits

from .lines import Line
from .saying import delta, told, written

HELLO = '{"type": "hello", "protocol": "reflexr.v1"}'
COMMAND = '{"type": "command", "command_id": "c", "command": {"type": "retry_run", "run_id": "fir_0123456789abcdef"}}'

SOON = timedelta(milliseconds=1)
LATE = timedelta(hours=1)


async def accepted(
    line: Line, *, hello_timeout: timedelta = LATE, outbox_size: int = 10, max_frame: int = 1_000
) -> Connection:
    connection = Connection(line.websocket, StreamLimits(hello_timeout, outbox_size, max_frame))
    await connection.accept()
    return connection


def errors(line: Line) -> list[str]:
    """The types of the rejections that the client was told of."""
    texts = [json.loads(message["text"]) for message in line.sent if message["type"] == "websocket.send"]
    return [frame["rejection"]["type"] for frame in texts if frame["type"] == "error"]


# --- How it begins


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [((), None), (("reflexr.v1",), "reflexr.v1"), (("chat", "reflexr.v1"), "reflexr.v1"), (("reflexr.v0",), None)],
)
async def test_it_is_accepted_in_the_protocol_if_that_is_offered(offered: tuple[str, ...], chosen: str | None) -> None:
    line = Line(offered)
    await accepted(line)

    assert line.sent == [{"type": "websocket.accept", "subprotocol": chosen, "headers": []}]


async def test_a_client_that_is_gone_before_it_is_accepted_is_gone() -> None:
    line = Line()
    line.fails = OSError

    with pytest.raises(WebSocketDisconnect):
        await accepted(line)


async def test_hello_is_the_first_frame() -> None:
    line = Line()
    connection = await accepted(line)
    line.say(text=HELLO)

    assert await connection.hello() == Hello(protocol="reflexr.v1")


@pytest.mark.parametrize(
    ("message", "rejection"),
    [
        ({"text": COMMAND}, "validation_failed"),
        ({"text": "{"}, "validation_failed"),
        ({"text": "[]"}, "validation_failed"),
        ({"text": ""}, "validation_failed"),
        ({"text": '{"type": "hello"}'}, "validation_failed"),
        ({"text": '{"type": "hello", "protocol": "reflexr.v1", "since": 5}'}, "validation_failed"),
        ({"text": '{"type": "hello", "protocol": "reflexr.v1", "resume_after_seq": -1}'}, "validation_failed"),
        ({"text": '{"type": "hello", "protocol": "reflexr.v1", "types": []}'}, "validation_failed"),
        ({"text": '{"type": "hello", "protocol": "reflexr.v1", "types": ["error"]}'}, "validation_failed"),
        ({"bytes": HELLO.encode()}, "validation_failed"),
        ({"text": " " * 1_001}, "validation_failed"),
    ],
)
async def test_a_bad_hello_is_told_what_is_wrong_with_it_and_closed(message: Any, rejection: str) -> None:
    line = Line()
    connection = await accepted(line)
    line.say(**message)

    with pytest.raises(Closed) as raised:
        await connection.hello()

    assert (raised.value.code, errors(line)) == (4400, [rejection])
    assert raised.value.reason


async def test_a_client_that_says_no_hello_in_time_is_closed() -> None:
    connection = await accepted(Line(), hello_timeout=SOON)

    with pytest.raises(Closed) as raised:
        await connection.hello()

    assert raised.value.code == 4408


@pytest.mark.parametrize("message", [{}, {"code": 1005}, {"code": 1000, "reason": "bye"}])
async def test_a_client_that_hangs_up_before_hello_is_gone(message: Any) -> None:
    line = Line()
    connection = await accepted(line)
    line.hang_up(**message)

    with pytest.raises(WebSocketDisconnect):
        await connection.hello()


# --- What it reads


async def test_frames_are_read_one_after_another() -> None:
    line = Line()
    connection = await accepted(line)
    line.say(text=HELLO)
    line.say(text=COMMAND, bytes=None)

    assert isinstance(await connection.receive(), Hello)
    assert isinstance(await connection.receive(), CommandFrame)


@pytest.mark.parametrize(("text", "size"), [("x" * 1_001, 1_001), ("é" * 501, 1_002), ("𝄞" * 251, 1_004)])
async def test_a_frame_is_measured_in_bytes(text: str, size: int) -> None:
    line = Line()
    connection = await accepted(line, max_frame=size - 1)
    line.say(text=text)
    with pytest.raises(ValidationFailed, match=f"larger than {size - 1} bytes"):
        await connection.receive()

    line = Line()
    connection = await accepted(line, max_frame=size)
    line.say(text=text)
    with pytest.raises(ValidationFailed, match="none that a client sends"):
        await connection.receive()


@pytest.mark.parametrize("message", [{"bytes": b"{}"}, {"bytes": b"{}", "text": None}])
async def test_a_frame_is_text(message: Any) -> None:
    line = Line()
    connection = await accepted(line)
    line.say(**message)

    with pytest.raises(ValidationFailed, match="binary"):
        await connection.receive()


# --- What it sends


async def test_what_is_put_and_offered_is_sent_in_order() -> None:
    line = Line()
    connection = await accepted(line)
    await connection.put(ReplayComplete(up_to_seq=1))
    connection.offer("a")
    sending = asyncio.create_task(connection.send_all())
    await line.told(3)
    connection.offer("b")
    await line.told(4)
    await connection.drained()
    sending.cancel()

    texts = [message["text"] for message in line.sent[1:]]
    assert texts == ['{"type":"replay_complete","up_to_seq":1}', "a", "b"]


async def test_a_client_that_does_not_accept_a_frame_in_time_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PATIENCE", SOON)
    line = Line()
    connection = await accepted(line)
    line.is_open.clear()
    connection.offer("a")

    with pytest.raises(Closed) as raised:
        await connection.send_all()

    assert raised.value.code == 4429


@pytest.mark.parametrize("failure", [OSError, RuntimeError, ConnectionResetError])
async def test_a_client_that_is_gone_or_was_closed_by_the_server_is_gone(failure: type[Exception]) -> None:
    line = Line()
    connection = await accepted(line)
    line.fails = failure
    connection.offer("a")

    with pytest.raises(WebSocketDisconnect):
        await connection.send_all()


async def test_a_client_that_is_too_far_behind_is_to_be_closed_once_and_is_offered_nothing_more() -> None:
    connection = await accepted(Line(), outbox_size=2)
    for frame in "abc":
        connection.offer(frame)
    connection.offer("d")
    connection.lose()

    with pytest.raises(Closed) as raised:
        await connection.watch()

    assert raised.value.code == 4429


# --- Deltas


async def test_deltas_are_sent_among_what_is_live_and_never_close_a_client() -> None:
    line = Line()
    connection = await accepted(line, outbox_size=2)
    for number in range(1, 3_001):
        connection.offer_delta(delta(number), written(delta(number)))
    connection.offer("a")
    sending = asyncio.create_task(connection.send_all())
    await line.told(1 + 1_000 + 1)
    sending.cancel()

    texts = [message["text"] for message in line.sent[1:]]
    assert texts[-1] == "a"
    assert told(texts[:-1]) == [(2_001, 2_000), *((number, 0) for number in range(2_002, 3_001))]


async def test_a_client_has_any_time_for_a_delta_until_more_than_deltas_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "PATIENCE", timedelta(0))
    line = Line()
    connection = await accepted(line)
    line.is_open.clear()
    connection.offer_delta(delta(1), written(delta(1)))
    sending = asyncio.create_task(connection.send_all())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not sending.done()

    connection.offer("a")

    with pytest.raises(Closed) as raised:
        await sending
    assert raised.value.code == 4429


async def test_a_client_has_its_time_from_when_the_first_frame_was_there() -> None:
    line = Line()
    connection = await accepted(line)
    line.is_open.clear()
    connection.offer_delta(delta(1), written(delta(1)))
    sending = asyncio.create_task(connection.send_all())
    await asyncio.sleep(0)
    await connection.put(ReplayComplete(up_to_seq=1))
    connection.offer("a")
    line.is_open.set()
    await line.told(4)
    sending.cancel()

    assert [message["text"] for message in line.sent[1:]] == [
        written(delta(1)),
        '{"type":"replay_complete","up_to_seq":1}',
        "a",
    ]


async def test_a_client_that_is_to_be_closed_is_offered_no_delta() -> None:
    line = Line()
    connection = await accepted(line)
    connection.end(1001, "bye")
    connection.offer_delta(delta(1), written(delta(1)))
    connection.offer("a")
    sending = asyncio.create_task(connection.send_all())
    await asyncio.sleep(0)
    sending.cancel()

    assert len(line.sent) == 1


# --- How it ends


async def test_who_watches_is_told_how_it_ends() -> None:
    connection = await accepted(Line())
    watching = [asyncio.create_task(connection.watch()) for _ in range(2)]
    await asyncio.sleep(0)

    connection.lose()
    connection.end(1001, "bye")

    results = await asyncio.gather(*watching, return_exceptions=True)
    assert [result.code for result in results if isinstance(result, Closed)] == [1011] * 2


async def test_one_who_no_longer_watches_takes_nothing_from_the_others() -> None:
    connection = await accepted(Line())
    watching = [asyncio.create_task(connection.watch()) for _ in range(2)]
    await asyncio.sleep(0)
    watching[0].cancel()
    await asyncio.sleep(0)

    connection.end(1001, "bye")

    with pytest.raises(Closed):
        await watching[1]


async def test_closing_tells_the_code_and_the_reason() -> None:
    line = Line()
    connection = await accepted(line)
    await connection.close(Closed(4403, "no"))

    assert line.sent[1:] == [{"type": "websocket.close", "code": 4403, "reason": "no"}]


@pytest.mark.parametrize(
    ("reason", "told"), [("x" * 200, "x" * 123), ("é" * 100, "é" * 61), ("𝄞" * 31, "𝄞" * 30), ("x" * 123, "x" * 123)]
)
async def test_a_reason_is_cut_to_what_a_close_frame_holds(reason: str, told: str) -> None:
    line = Line()
    connection = await accepted(line)
    await connection.close(Closed(4400, reason))

    assert line.sent[1]["reason"] == told


async def test_what_waited_to_be_sent_is_forgotten_when_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PATIENCE", SOON)
    line = Line()
    connection = await accepted(line, outbox_size=2)
    for frame in "abc":
        connection.offer(frame)
    line.is_open.clear()

    await connection.close(Closed(4429, "too slow"))

    await connection.drained()
    assert len(line.sent) == 1


@pytest.mark.parametrize(
    ("name", "code"), [("PATIENCE", 4429), ("FAREWELL", 1001), ("FAREWELL", 1011), ("FAREWELL", 4403)]
)
async def test_a_client_that_does_not_accept_the_close_is_given_up(
    name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("PATIENCE", "FAREWELL"):
        monkeypatch.setattr(connections, other, SOON if other == name else LATE)
    line = Line()
    connection = await accepted(line)
    line.is_open.clear()

    await connection.close(Closed(code, "bye"))

    assert len(line.sent) == 1


async def test_a_client_that_reads_again_in_time_is_told() -> None:
    line = Line()
    connection = await accepted(line)
    line.is_open.clear()
    closing = asyncio.create_task(connection.close(Closed(4429, "too slow")))
    await asyncio.sleep(0)
    line.is_open.set()
    await closing

    assert line.sent[1]["code"] == 4429


@pytest.mark.parametrize("failure", [OSError, RuntimeError])
async def test_closing_a_client_that_is_gone_does_nothing(failure: type[Exception]) -> None:
    line = Line()
    connection = await accepted(line)
    line.fails = failure

    await connection.close(Closed(1001, "bye"))

    assert len(line.sent) == 1


async def test_a_connection_that_is_closed_twice_is_told_once() -> None:
    line = Line()
    connection = await accepted(line)
    await connection.close(Closed(4403, "no"))
    await connection.close(Closed(1001, "bye"))

    assert [message.get("code") for message in line.sent[1:]] == [4403]


async def test_a_connection_that_was_not_accepted_yet_is_told_the_code_all_the_same() -> None:
    line = Line(["reflexr.v1"])
    connection = Connection(line.websocket, StreamLimits(LATE, 10, 1_000))

    await connection.close(Closed(1001, "bye"))

    assert [message["type"] for message in line.sent] == ["websocket.accept", "websocket.close"]
    assert line.sent[1]["code"] == 1001


async def test_a_refused_hello_says_what_was_refused() -> None:
    line = Line()
    connection = await accepted(line)

    closed = await connection.refuse_hello(NotFound("there is none"))

    assert (closed.code, closed.reason, errors(line)) == (4400, "there is none", ["not_found"])
