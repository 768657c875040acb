import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reflexr.client import Client, LogReset, Unauthorized, Unavailable, UnexpectedAnswer
from reflexr.core import (
    PROTOCOL,
    Delta,
    DeltaFrame,
    Envelope,
    ErrorFrame,
    EventFrame,
    Forbidden,
    NotFound,
    NotFoundRejection,
    ReplayComplete,
    UnsupportedProtocol,
    UnsupportedProtocolRejection,
    ValidationFailed,
)

from .answering import Waits, no_http
from .certificates import client_context, server_context
from .logs import Log, envelope
from .servers import (
    Script,
    StreamServer,
    close,
    cut,
    cut_within_a_frame,
    growing,
    hang,
    refusing,
    repeat,
    say,
    serving,
    skip,
    speak,
)


def client_of(server: StreamServer, waits: Waits | None = None, attempts: int = 4, **options: Any) -> Client:
    options = {"http": no_http()} | options
    return Client(server.url, backoff=(waits or Waits()).backoff(attempts=attempts), **options)


async def take(stream: AsyncGenerator[Envelope], number: int) -> list[int]:
    """The places of the next so many envelopes."""
    return [(await anext(stream)).seq for _ in range(number)]


async def read_all(server: StreamServer, waits: Waits | None = None, **options: Any) -> list[int]:
    """The places of the whole log, as a subscriber gets them."""
    async with (
        client_of(server, waits, **options) as client,
        aclosing(client.workspace("prod").subscribe()) as stream,
    ):
        return await take(stream, server.log.head_seq)


async def test_the_past_comes_first_and_then_what_happens() -> None:
    async with (
        serving(Log(3)) as server,
        client_of(server) as client,
        aclosing(client.workspace("prod").subscribe()) as stream,
    ):
        assert await take(stream, 3) == [1, 2, 3]
        server.log.grow(2)
        assert await take(stream, 2) == [4, 5]
    assert [hello.resume_after_seq for hello in server.hellos] == [0]


async def test_a_stream_begins_after_a_place_with_the_types_that_it_names() -> None:
    log = Log(3)
    log.grow(2, "ops:other")
    log.grow()
    async with (
        serving(log) as server,
        client_of(server) as client,
        aclosing(client.workspace("prod").subscribe(after_seq=1, types=["ops:beat"])) as stream,
    ):
        assert await take(stream, 3) == [2, 3, 6]
    assert server.hellos[0].types == ("ops:beat",)


async def test_from_the_head_comes_what_is_next_also_if_the_connection_is_lost_before_it() -> None:
    waits = Waits()
    async with serving(Log(3)) as server, client_of(server, waits) as client:
        server.scripts += [cut(0), cut(1), speak()]
        async with aclosing(client.workspace("prod").subscribe(from_head=True)) as stream:
            following = asyncio.ensure_future(anext(stream))
            await server.until(lambda: len(server.hellos) == 3)
            server.log.grow(2)
            assert (await following).seq == 4
            assert await take(stream, 1) == [5]
    assert [(hello.from_head, hello.resume_after_seq) for hello in server.hellos] == [(True, 0), (True, 0), (False, 3)]


FAULTS = {
    "gone-at-hello": cut(0),
    "gone-at-welcome": cut(1),
    "gone": cut(3),
    "gone-within-a-frame": cut_within_a_frame(3),
    "closed-1000": close(1000, after=3),
    "closed-1001": close(1001, after=3),
    "closed-1011": close(1011, after=3),
    "closed-1012": close(1012, after=2),
    "closed-4408": close(4408),
    "closed-4429": close(4429, "too slow", after=3),
    "garbage": say("garbage", after=3),
    "binary": say(b"\xff\xfe", after=3),
    "no-object": say("[]", after=3),
    "no-envelope": say('{"type": "event", "envelope": {"seq": 3}}', after=3),
    "half-an-envelope": say('{"type": "event", "envel', after=3),
    "gap": say(EventFrame(envelope=envelope(9)), after=3),
    "gap-at-the-end-of-the-replay": say(ReplayComplete(up_to_seq=5), after=3),
    "no-welcome": say(EventFrame(envelope=envelope(1))),
    "welcome-left-out": skip(0),
    "one-left-out": skip(2),
    "another-left-out": skip(5),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_whatever_ends_a_connection_each_envelope_comes_once_and_in_order(fault: Script) -> None:
    waits = Waits()
    async with serving(Log(8)) as server:
        server.scripts += [fault]
        assert await read_all(server, waits) == list(range(1, 9))
    assert len(server.hellos) == 2
    assert waits.seconds == [0.1]


async def test_what_is_sent_again_is_passed_over() -> None:
    async with serving(Log(8)) as server:
        server.scripts += [cut(6), repeat(4)]
        assert await read_all(server) == list(range(1, 9))
    assert [hello.resume_after_seq for hello in server.hellos] == [0, 5]


async def test_frames_of_a_newer_server_are_passed_over() -> None:
    newer = ['{"type": "of_a_newer_server"}', ErrorFrame(rejection=NotFoundRejection(message="no"))]
    newer_event = EventFrame(envelope=envelope(1)).model_dump_json(by_alias=True).replace('"seq"', '"new":[1],"seq"', 1)
    async with serving(Log(1)) as server:
        server.scripts += [say(*newer, newer_event, after=1)]
        assert await read_all(server) == [1]
    assert len(server.hellos) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_server_that_cannot_open_a_stream_now_is_asked_again(status: int) -> None:
    waits = Waits()
    async with serving(Log(2)) as server:
        server.refusals += [refusing(status), refusing(status)]
        assert await read_all(server, waits) == [1, 2]
    assert waits.seconds == [0.1, 0.2]


async def test_a_server_that_says_no_welcome_is_given_up_and_asked_again() -> None:
    async with serving(Log(2)) as server:
        server.scripts += [say()]
        assert await read_all(server, timeout=timedelta(seconds=1)) == [1, 2]
    assert len(server.hellos) > 1


async def test_a_connection_over_which_nothing_comes_any_more_is_noticed() -> None:
    async with serving(Log(2)) as server:
        server.scripts += [hang(2)]
        assert await read_all(server, keepalive=timedelta(milliseconds=50)) == [1, 2]
        server.released.set()
    assert [hello.resume_after_seq for hello in server.hellos[:2]] == [0, 1]


async def test_waits_grow_until_something_comes() -> None:
    waits = Waits()
    async with serving(Log(4)) as server:
        server.scripts += [cut(0), cut(1), cut(1), cut(2), cut(1)]
        assert await read_all(server, waits) == [1, 2, 3, 4]
    assert waits.seconds == [0.1, 0.2, 0.4, 0.1, 0.2]


async def test_a_quiet_stream_that_was_caught_up_begins_with_the_shortest_wait_again() -> None:
    waits = Waits()
    async with serving(Log(0)) as server, client_of(server, waits) as client:
        server.scripts += [cut(2)] * 6
        async with aclosing(client.workspace("prod").subscribe()) as stream:
            following = asyncio.ensure_future(anext(stream))
            await server.until(lambda: len(server.hellos) == 7)
            server.log.grow()
            assert (await following).seq == 1
    assert waits.seconds == [0.1] * 6


async def test_a_stream_that_was_once_open_is_opened_again_without_end() -> None:
    waits = Waits()
    async with serving(Log(2)) as server:
        server.scripts += [cut(2)] + [cut(0)] * 40
        assert await read_all(server, waits) == [1, 2]
    assert len(waits.seconds) == 41
    assert max(waits.seconds) == 10


async def test_a_stream_that_never_opened_is_given_up() -> None:
    waits = Waits()
    async with serving(Log(2)) as server:
        server.scripts += [cut(0)] * 4
        with pytest.raises(Unavailable, match="failed 4 times after 0: the connection ended") as raised:
            await read_all(server, waits)
    assert raised.value.attempts == 4
    with pytest.raises(Unavailable, match="failed 2 times at its head: the stream cannot be opened"):
        async with Client(server.url, http=no_http(), backoff=waits.backoff(attempts=2)) as client:
            await anext(client.workspace("prod").subscribe(from_head=True))


async def test_a_server_that_breaks_the_protocol_each_time_at_one_place_is_given_up() -> None:
    async with serving(Log(8)) as server:
        server.scripts += [skip(4), *[skip(1)] * 4]
        async with client_of(server) as client, aclosing(client.workspace("prod").subscribe()) as stream:
            assert await take(stream, 3) == [1, 2, 3]
            with pytest.raises(UnexpectedAnswer, match="failed 4 times after 3: the envelope 5 came right after 3"):
                await anext(stream)
    assert [hello.resume_after_seq for hello in server.hellos] == [0, 3, 3, 3]


async def test_an_envelope_that_is_larger_than_any_that_is_read_is_not_asked_for_without_end() -> None:
    log = Log(1)
    log.grow(text="x" * (16 * 1024 * 1024))
    async with (
        serving(log) as server,
        client_of(server) as client,
        aclosing(client.workspace("prod").subscribe()) as stream,
    ):
        assert await take(stream, 1) == [1]
        with pytest.raises(UnexpectedAnswer, match=r"failed 4 times after 1: .*1009"):
            await anext(stream)


async def test_an_outage_does_not_use_up_the_chances_of_a_server_that_breaks_the_protocol() -> None:
    async with serving(Log(2)) as server:
        server.scripts += [cut(2), *[cut(0)] * 10, say("garbage"), say("garbage")]
        assert await read_all(server) == [1, 2]


CLOSED: dict[str, tuple[Script, type[Exception], str]] = {
    "4401-why": (close(4401, "the token is over"), Unauthorized, "the token is over"),
    "4401": (close(4401), Unauthorized, "the server does not know who asks: give a token that it accepts"),
    "4403-why": (close(4403, "you may not"), Forbidden, "you may not"),
    "4403": (close(4403), Forbidden, "the server does not let you follow this workspace"),
    "4403-not-found": (close(4403, "not_found: there is no such workspace"), NotFound, "there is no such workspace"),
    "4400-why": (close(4400, "this: is no hello"), ValidationFailed, "this: is no hello"),
    "4400": (close(4400), ValidationFailed, "the server refuses the hello"),
    "4400-protocol": (close(4400, "unsupported_protocol: speak another"), UnsupportedProtocol, "speak another"),
}


@pytest.mark.parametrize(("script", "error", "message"), CLOSED.values(), ids=CLOSED)
async def test_a_close_code_that_refuses_is_raised_and_not_tried_again(
    script: Script, error: type[Exception], message: str
) -> None:
    async with serving(Log(2)) as server:
        server.scripts += [script]
        with pytest.raises(error) as raised:
            await read_all(server)
    assert str(raised.value) == message
    assert len(server.hellos) == 1


@pytest.mark.parametrize("code", [4400, 4403])
async def test_a_refusal_that_came_as_a_frame_is_raised_as_it_is(code: int) -> None:
    rejection = UnsupportedProtocolRejection(message="speak 'reflexr.v2'")

    async def script(server: StreamServer, socket: Any, hello: Any) -> None:
        await socket.send(ErrorFrame(rejection=rejection).model_dump_json())
        await socket.close(code, "bad hello")

    async with serving(Log(2)) as server:
        server.scripts += [script]
        with pytest.raises(UnsupportedProtocol) as raised:
            await read_all(server)
    assert raised.value.rejection == rejection


async def test_a_token_that_runs_out_ends_the_stream() -> None:
    async with serving(Log(2)) as server, client_of(server) as client:
        server.scripts += [close(4401, "over", after=3)]
        async with aclosing(client.workspace("prod").subscribe()) as stream:
            assert await take(stream, 2) == [1, 2]
            with pytest.raises(Unauthorized, match="over"):
                await anext(stream)


REFUSED: list[tuple[int, bytes, type[Exception]]] = [
    (401, b"", Unauthorized),
    (403, b'{"detail": {"type": "forbidden", "message": "no"}}', Forbidden),
    (403, b"", UnexpectedAnswer),
    (404, b"Not Found", UnexpectedAnswer),
]


@pytest.mark.parametrize(("status", "body", "error"), REFUSED)
async def test_an_answer_in_place_of_a_stream_is_raised_and_not_tried_again(
    status: int, body: bytes, error: type[Exception]
) -> None:
    async with serving(Log(2)) as server:
        server.refusals += [refusing(status, body)]
        with pytest.raises(error):
            await read_all(server)
    assert len(server.requests) == 1


@pytest.mark.parametrize("subprotocol", [None, "reflexr.v2"])
async def test_a_server_that_does_not_speak_the_protocol_is_refused(subprotocol: str | None) -> None:
    async with serving(Log(2), subprotocol=subprotocol) as server:
        with pytest.raises(UnsupportedProtocol, match=r"does not speak 'reflexr\.v1'"):
            await read_all(server)
    assert server.hellos == []


async def test_credentials_are_led_nowhere_else() -> None:
    async with serving(Log(2)) as server, serving(Log(2)) as elsewhere:
        server.refusals += [refusing(307, Location=f"{elsewhere.url}/workspaces/prod/stream".replace("http", "ws"))]
        with pytest.raises(UnexpectedAnswer, match="status 307"):
            await read_all(server, headers={"X-Api-Key": "secret"})
    assert elsewhere.requests == []


async def test_a_server_whose_certificate_is_trusted_is_followed_and_asked(tmp_path: Path) -> None:
    async with serving(Log(2), tls=server_context(tmp_path)) as server:
        assert await read_all(server, tls=client_context()) == [1, 2]
        server.refusals += [refusing(200, b"[]")]
        async with client_of(server, tls=client_context(), http=None) as client:
            assert await client.rules() == []
        with pytest.raises(Unavailable, match="certificate"):
            await read_all(server, attempts=1)


async def test_without_tls_there_is_no_certificate_to_check() -> None:
    async with serving(Log(2)) as server:
        assert await read_all(server, tls=client_context()) == [1, 2]


def answering(head: bytes) -> Any:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        writer.close()

    return asyncio.start_server(handle, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: tls\r\nConnection: Upgrade\r\n\r\n", UnexpectedAnswer),
        (b"HTTP/1.1 101 Switch", Unavailable),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Unavailable),
    ],
    ids=["another-upgrade", "half-a-head", "another-protocol"],
)
async def test_what_speaks_another_protocol_is_given_up(head: bytes, error: type[Exception]) -> None:
    async with await answering(head) as server:
        host, port = server.sockets[0].getsockname()
        async with Client(f"http://{host}:{port}", http=no_http(), backoff=Waits().backoff()) as client:
            with pytest.raises(error, match="failed 4 times after 0: the stream cannot be opened"):
                await anext(client.workspace("prod").subscribe())


async def test_a_log_that_begins_anew_is_told_and_nothing_of_it_is_given() -> None:
    async with serving(Log(5)) as server, client_of(server) as client:
        server.scripts += [cut(6)]
        async with aclosing(client.workspace("prod").subscribe()) as stream:
            assert await take(stream, 4) == [1, 2, 3, 4]
            server.log.envelopes[2:] = []
            with pytest.raises(LogReset) as raised:
                await take(stream, 2)
    assert (raised.value.after_seq, raised.value.head_seq) == (5, 2)


async def test_credentials_travel_in_headers_of_each_connection_and_never_in_the_url() -> None:
    tokens = iter(("old", "new"))

    async def token() -> str:
        return next(tokens)

    async with serving(Log(2)) as server:
        server.scripts += [cut(2)]
        assert await read_all(server, token=token, headers={"X-Tenant": "acme"}) == [1, 2]
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer old", "Bearer new"]
    assert {request.path for request in server.requests} == {"/workspaces/prod/stream"}
    assert {request.headers["Sec-WebSocket-Protocol"] for request in server.requests} == {PROTOCOL}
    assert {request.headers["X-Tenant"] for request in server.requests} == {"acme"}


@pytest.mark.parametrize("workspace_id", ["a/b", "..", "a?b#c%2F", "köln ✓"])
async def test_the_stream_of_a_workspace_is_found_whatever_its_id_holds(workspace_id: str) -> None:
    async with (
        serving(Log(1, workspace_id=workspace_id)) as server,
        client_of(server) as client,
        aclosing(client.workspace(workspace_id).subscribe()) as stream,
    ):
        assert await take(stream, 1) == [1]
    assert server.requests[0].path.count("/") == 3


async def test_a_lost_connection_is_logged_once_with_what_will_happen(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Log(2)) as server:
        server.scripts += [close(1001, "restarting", after=2)]
        with caplog.at_level(logging.WARNING, "reflexr.client"):
            await read_all(server, token="secret")
    (record,) = caplog.records
    assert "/workspaces/prod/stream broke after 1: the connection ended: received 1001" in record.getMessage()
    assert record.getMessage().endswith("opening it again in 0.100 s")
    assert "secret" not in caplog.text


async def test_a_subscriber_that_is_slow_holds_the_server_back_and_goes_on_where_it_was() -> None:
    log = Log()
    log.grow(1_000, text="x" * 64 * 1024)
    sent: list[int] = []

    async def close_when_slow(server: StreamServer, socket: Any, hello: Any) -> None:
        async with aclosing(server.frames(hello)) as frames:
            async for frame in frames:
                try:
                    async with asyncio.timeout(0.2):
                        await socket.send(frame.model_dump_json(by_alias=True))
                except TimeoutError:
                    # What says so would wait behind what is not read.
                    socket.transport.abort()
                    return
                sent.append(1)

    async with serving(log) as server, client_of(server) as client:
        server.scripts += [close_when_slow]
        async with aclosing(client.workspace("prod").subscribe()) as stream:
            assert await take(stream, 1) == [1]
            await server.until(lambda: server.open == 0)
            assert len(sent) < 500
            assert await take(stream, 999) == list(range(2, 1_001))
    assert len(server.hellos) > 1


async def test_a_subscriber_that_is_slower_than_pings_are_answered_goes_on_where_it_was() -> None:
    log = Log()
    log.grow(200, text="x" * 64 * 1024)
    async with (
        serving(log) as server,
        client_of(server, keepalive=timedelta(milliseconds=50)) as client,
        aclosing(client.workspace("prod").subscribe()) as stream,
    ):
        assert await take(stream, 1) == [1]
        await server.until(lambda: server.open == 0)
        assert await take(stream, 199) == list(range(2, 201))


async def test_a_subscriber_that_is_cut_off_again_and_again_gets_each_envelope_once_and_in_order() -> None:
    dice = random.Random(7)

    def fault() -> Script:
        after = dice.randrange(10)
        return dice.choice(
            [
                cut(after),
                cut_within_a_frame(after),
                close(1001, after=after),
                close(4429, after=after + 2),
                say("garbage", after=after + 2),
                say(EventFrame(envelope=envelope(4_000)), after=after + 2),
                skip(after + 1),
                repeat(after, after),
            ]
        )

    async with serving(Log(1_000)) as server:
        server.scripts += [growing(10, fault()) for _ in range(200)]
        async with (
            client_of(server, attempts=50) as client,
            aclosing(client.workspace("prod").subscribe()) as stream,
        ):
            assert await take(stream, 3_000) == list(range(1, 3_001))
    assert len(server.hellos) > 200


# --- Deltas


def delta(number: int, *, lost: int = 0) -> DeltaFrame:
    return DeltaFrame(
        delta=Delta(
            run_id="fir_1", rule="ops:a", attempt=1, number=number, kind="text", part=0, text=f"{number}", lost=lost
        )
    )


async def shown(stream: AsyncGenerator[Envelope | Delta], number: int) -> list[str]:
    taken = [await anext(stream) for _ in range(number)]
    return [f"seq {one.seq}" if isinstance(one, Envelope) else f"{one.number} after {one.lost}" for one in taken]


async def test_a_subscriber_that_asks_for_deltas_gets_them_among_the_envelopes() -> None:
    async with serving(Log(2)) as server, client_of(server) as client:
        server.scripts.append(
            say(
                delta(1),
                delta(2, lost=3),
                EventFrame(envelope=envelope(3)),
                delta(9),
                EventFrame(envelope=envelope(4)),
                after=4,
            )
        )
        async with aclosing(client.workspace("prod").subscribe(deltas=True)) as stream:
            said = ["1 after 0", "2 after 3", "seq 3", "9 after 0", "seq 4"]
            assert await shown(stream, 7) == ["seq 1", "seq 2", *said]
    assert [hello.deltas for hello in server.hellos] == [True]


async def test_a_subscriber_that_asks_for_none_gets_none_also_of_a_server_that_sends_them() -> None:
    async with serving(Log(2)) as server, client_of(server) as client:
        server.scripts.append(say(delta(1), EventFrame(envelope=envelope(3)), after=4))
        async with aclosing(client.workspace("prod").subscribe(deltas=False)) as stream:
            assert await take(stream, 3) == [1, 2, 3]
    assert [hello.deltas for hello in server.hellos] == [False]


async def test_a_delta_that_cannot_be_read_is_a_newer_servers_and_is_lost() -> None:
    async with serving(Log(1)) as server, client_of(server) as client:
        newer = delta(1).model_dump_json().replace('"kind":"text"', '"kind":"sound"')
        server.scripts.append(say(newer, '{"type": "delta"}', delta(2), after=3))
        async with aclosing(client.workspace("prod").subscribe(deltas=True)) as stream:
            assert await shown(stream, 2) == ["seq 1", "2 after 0"]
    assert len(server.hellos) == 1


async def test_deltas_are_asked_for_again_where_the_connection_was_lost() -> None:
    async with serving(Log(2)) as server, client_of(server, Waits()) as client:
        server.scripts += [cut(2), say(delta(5), after=3)]
        async with aclosing(client.workspace("prod").subscribe(deltas=True)) as stream:
            assert await shown(stream, 3) == ["seq 1", "seq 2", "5 after 0"]
    assert [(hello.deltas, hello.resume_after_seq) for hello in server.hellos] == [(True, 0), (True, 1)]


async def test_deltas_alone_make_no_server_that_breaks_the_protocol_a_good_one() -> None:
    """It is given up at one place as often as without them."""
    breaking = say(delta(1), EventFrame(envelope=envelope(9)), after=2)
    async with serving(Log(1)) as server, client_of(server, attempts=3) as client:
        server.scripts += [breaking, *[say(delta(1), "garbage", after=1)] * 3]
        async with aclosing(client.workspace("prod").subscribe(deltas=True)) as stream:
            assert (await shown(stream, 1)) == ["seq 1"]
            with pytest.raises(UnexpectedAnswer):
                await shown(stream, 100)
