import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from reflexr.fastapi import streams

from .lines import Line
from .ops import ServiceError
from .staging import HELLO, LIMITS, Client, Stage, staged


@pytest.fixture
async def stage() -> AsyncGenerator[Stage]:
    async with staged() as stage:
        yield stage
        await stage.assert_nothing_is_left()


async def publish(stage: Stage, number: int = 1) -> None:
    await stage.workspace.publish_many([ServiceError()] * number)


# --- Whom it refuses


@pytest.mark.parametrize(
    ("said", "rejection"),
    [
        ({"type": "hello", "protocol": "reflexr.v2"}, "unsupported_protocol"),
        ({"type": "hello", "protocol": "reflexr.v1", "resume_after_seq": 1, "from_head": True}, "validation_failed"),
        ({"type": "hello", "protocol": "reflexr.v1", "resume_after_seq": 2**63}, "validation_failed"),
        ({"type": "hello", "protocol": "reflexr.v1", "types": ["deployed"]}, "validation_failed"),
        ({"type": "command", "command_id": "c", "command": {"type": "archive_rule", "rule": "a:b"}}, None),
        ("{", "validation_failed"),
        (json.dumps(HELLO).encode(), "validation_failed"),
        (" " * 1_048_577, "validation_failed"),
    ],
)
async def test_a_bad_hello_is_told_what_is_wrong_and_closed(stage: Stage, said: Any, rejection: str | None) -> None:
    async with stage.connected() as client:
        await client.say(said)
        code, frames = await client.end()

    assert (code, [frame["type"] for frame in frames]) == (4400, ["error"])
    assert rejection in (None, frames[0]["rejection"]["type"])


async def test_a_workspace_whose_id_is_none_is_refused_as_a_bad_hello_is(stage: Stage) -> None:
    for name in ("x" * 256, "a\0b"):
        async with stage.connected(name) as client:
            code, frames = await client.end()

        assert (code, [frame["type"] for frame in frames]) == (4400, ["error"])


@pytest.mark.parametrize("options", [{"token": None}, {"token": "nobody"}, {"token": None, "query": "?token=nobody"}])
async def test_who_is_not_known_is_told_so_before_anything_else(stage: Stage, options: Any) -> None:
    async with stage.connected("x" * 256, **options) as client:
        await client.say("{")
        assert await client.end() == (4401, [])
        assert "say who you are" in str(client.socket.close_reason)


@pytest.mark.parametrize("action", ["reflexr:open", "reflexr:read_events"])
async def test_who_may_not_open_or_read_is_closed(stage: Stage, action: str) -> None:
    stage.application.permissions.refused.add(action)
    async with stage.connected() as client:
        await client.say(HELLO)
        assert await client.end() == (4403, [])
        assert action in str(client.socket.close_reason)


async def test_who_loses_the_permission_during_the_replay_is_closed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "PAGE", 10)
    await publish(stage, 25)
    stage.storage.reading.shut()
    async with stage.connected() as client:
        await client.hello()
        await stage.storage.reading.reached.wait()
        stage.application.permissions.refused.add("reflexr:read_events")
        stage.storage.reading.open()
        code, frames = await client.end()

    assert (code, [frame["envelope"]["seq"] for frame in frames]) in [(4403, list(range(1, n + 1))) for n in range(11)]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_who_says_no_hello_in_time_is_closed() -> None:
    async with (
        staged(limits=replace(LIMITS, hello_timeout=timedelta(milliseconds=1))) as stage,
        stage.connected() as client,
    ):
        assert await client.end() == (4408, [])


async def test_authentication_that_breaks_closes_the_connection_so_that_its_client_comes_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(self: object, scope: object) -> None:
        raise LookupError("the directory is down")

    monkeypatch.setattr("reflexr.fastapi.callers.Callers.identify", break_down)
    async with stage.connected() as client:
        assert await client.end() == (1011, [])
    assert "the directory is down" in caplog.text


# --- Where the storage fails


@pytest.mark.parametrize("phase", ["replay", "live"])
async def test_a_storage_that_fails_closes_the_connection_and_its_client_resumes_after_it(
    stage: Stage, phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stage, 2)
    seen: list[int] = []
    async with stage.connected() as client:
        if phase == "live":
            seen += await client.begin()
            await publish(stage)
            seen += await client.seqs(1)
        stage.storage.is_broken = True
        if phase == "live":
            await publish(stage)
        else:
            await client.say(HELLO)
        code, frames = await client.end()
    assert (code, len(frames)) == (1011, phase == "replay")
    assert [record.levelno for record in caplog.records if record.name == "reflexr.fastapi"] == [logging.ERROR]
    await stage.streams.are_left()

    stage.storage.is_broken = False
    async with stage.connected() as client:
        seen += await client.begin(resume_after_seq=len(seen))
        await publish(stage)
        seen += await client.seqs(1)

    assert seen == [envelope.seq for envelope in await stage.workspace.read()]


async def test_what_breaks_as_a_connection_ends_does_not_change_how_it_ends(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stage, 2)
    stage.storage.fails_when_cancelled = True
    stage.storage.reading.shut()
    async with stage.connected() as client:
        await client.hello()
        await stage.storage.reading.reached.wait()
        await stage.router.close()
        assert (await client.end())[0] == 1001
    assert "the connection broke" in caplog.text


# --- Where the client disappears


async def begin(stage: Stage, client: Client, phase: str) -> None:
    """Brings a client to a phase of its connection."""
    if phase == "replay":
        stage.storage.reading.shut()
    if phase != "before hello":
        await client.hello(from_head=phase != "replay")
    if phase == "replay":
        await stage.storage.reading.reached.wait()
    elif phase != "before hello":
        await client.replay()
    if phase == "live":
        await publish(stage)
        await client.seqs(1)


@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize("phase", ["before hello", "replay", "caught up", "live"])
async def test_a_client_that_disappears_leaves_nothing_behind(
    stage: Stage, phase: str, abruptly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stage, 3)
    async with stage.connected() as stays:
        await stays.begin()
        async with stage.connected() as client:
            await begin(stage, client, phase)
            await (client.cut_off() if abruptly else client.socket.close())
        await stage.streams.are_left(by_all_but=1)
        stage.storage.reading.open()
        await publish(stage)
        head_seq = await stage.workspace.head_seq()
        assert await stays.until(head_seq) == list(range(4, head_seq + 1))

    await stage.assert_nothing_is_left()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("token", ["ada", "nobody"])
async def test_a_client_that_disappears_while_it_is_identified_leaves_nothing_behind(
    stage: Stage, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    line = Line(query=f"token={token}")
    line.fails = OSError
    await stage.streams.serve(line.websocket, "prod")

    assert line.sent == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_hundred_clients_that_come_and_go_leave_nothing_behind(stage: Stage) -> None:
    phases = ("before hello", "caught up", "live")

    async def come_and_go(number: int) -> None:
        async with stage.connected() as client:
            await begin(stage, client, phases[number % 3])
            if number % 2:
                await client.cut_off()

    await asyncio.gather(*(come_and_go(number) for number in range(100)))
    await stage.assert_nothing_is_left()


async def test_clients_that_leave_while_the_storage_reads_leave_nothing_behind(stage: Stage) -> None:
    stage.storage.hesitation = lambda: 50
    for _ in range(5):
        async with stage.connected() as client:
            await client.begin()
            await publish(stage)
    await stage.assert_nothing_is_left()
