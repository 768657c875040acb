import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from websockets.typing import Subprotocol

from reflexr.core import EventFrame, write_frame
from reflexr.fastapi import streams

from .ops import Deployed, ServiceError
from .staging import HELLO, Client, Stage, staged


@pytest.fixture
async def stage() -> AsyncGenerator[Stage]:
    async with staged() as stage:
        yield stage


async def publish(stage: Stage, number: int = 1) -> None:
    await stage.workspace.publish_many([ServiceError()] * number)


# --- What is sent


async def test_a_client_is_sent_the_past_and_then_what_happens(stage: Stage) -> None:
    await publish(stage, 3)
    async with stage.connected() as client:
        assert client.socket.subprotocol == "reflexr.v1"
        await client.say(HELLO)
        welcome = {"type": "welcome", "workspace_id": "prod", "head_seq": 3, "reset": False}
        past = [json.loads(write_frame(EventFrame(envelope=one))) for one in await stage.workspace.read()]
        assert [await client.hear() for _ in range(5)] == [welcome, *past, {"type": "replay_complete", "up_to_seq": 3}]

        for _ in range(2):
            await publish(stage)
        live = [json.loads(write_frame(EventFrame(envelope=one))) for one in await stage.workspace.read(last=2)]
        assert [await client.hear() for _ in range(2)] == live

    await stage.assert_nothing_is_left()


async def test_a_client_that_offers_no_protocol_is_served_too(stage: Stage) -> None:
    for offered in (None, [Subprotocol("chat")]):
        async with stage.connected(subprotocols=offered) as client:
            assert client.socket.subprotocol is None
            assert await client.begin() == []


@pytest.mark.parametrize(
    ("fields", "replayed", "reset"),
    [
        ({}, [1, 2, 3, 4, 5], False),
        ({"resume_after_seq": 0}, [1, 2, 3, 4, 5], False),
        ({"resume_after_seq": 2}, [3, 4, 5], False),
        ({"resume_after_seq": 5}, [], False),
        ({"resume_after_seq": 6}, [1, 2, 3, 4, 5], True),
        ({"resume_after_seq": 2**63 - 1}, [1, 2, 3, 4, 5], True),
        ({"from_head": True}, [], False),
        ({"types": ["ops:deployed"]}, [2, 4], False),
        ({"types": ["ops:deployed"], "resume_after_seq": 2}, [4], False),
        ({"types": ["ops:deployed"], "resume_after_seq": 9}, [2, 4], True),
        ({"types": ["ops:deployed", "ops:service.error"]}, [1, 2, 3, 4, 5], False),
        ({"types": ["ops:nothing"]}, [], False),
    ],
)
async def test_a_client_says_where_its_stream_begins_and_what_it_wants(
    stage: Stage, fields: Any, replayed: list[int], reset: bool
) -> None:
    for number in range(5):
        await stage.workspace.publish(Deployed(service="auth") if number % 2 else ServiceError())
    wanted = fields.get("types", ["ops:service.error", "ops:deployed"])

    async with stage.connected() as client:
        welcome = await client.hello(**fields)
        assert (welcome["head_seq"], welcome["reset"]) == (5, reset)
        assert await client.replay() == replayed

        await publish(stage)
        await stage.workspace.publish(Deployed(service="auth"))
        live = [seq for seq, name in ((6, "ops:service.error"), (7, "ops:deployed")) if name in wanted]
        assert await client.seqs(len(live)) == live


async def test_a_workspace_is_named_by_any_text(stage: Stage) -> None:
    for name in ("a/b", "ä ö", "a%2Fb", "/stream", "x" * 255):
        workspace = await stage.application.workspaces.open("acme", name, actor=stage.workspace.actor)
        await workspace.publish(ServiceError())
        async with stage.connected(name) as client:
            assert (await client.hello())["workspace_id"] == name
            assert await client.replay() == [1]


async def test_two_workspaces_and_two_tenants_are_streamed_apart(stage: Stage) -> None:
    async with (
        stage.connected() as ours,
        stage.connected("test") as other,
        stage.connected(token="eve") as theirs,
    ):
        for client in (ours, other, theirs):
            assert await client.begin() == []
        await publish(stage)
        assert await ours.seqs(1) == [1]
        for client in (other, theirs):
            await client.say("{")
            assert (await client.hear())["type"] == "error"


@pytest.mark.parametrize("number", [9, 10, 11, 20, 21, 35])
@pytest.mark.parametrize("types", [None, ["ops:deployed"]])
async def test_a_replay_of_several_pages_has_no_gap(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int, types: list[str] | None
) -> None:
    monkeypatch.setattr(streams, "PAGE", 10)
    for _ in range(number):
        await stage.workspace.publish_many([Deployed(service="auth"), ServiceError()])

    async with stage.connected() as client:
        replayed = await client.begin(types=types)
        assert replayed == list(range(1, 2 * number + 1, 1 if types is None else 2))
        await stage.workspace.publish(Deployed(service="auth"))
        assert await client.seqs(1) == [2 * number + 1]


async def test_what_is_published_during_the_replay_comes_after_it(stage: Stage) -> None:
    await publish(stage, 3)
    stage.storage.reading.shut()
    async with stage.connected() as client:
        await client.hello()
        await stage.storage.reading.reached.wait()
        await publish(stage, 2)
        stage.storage.reading.open()

        assert await client.replay() == [1, 2, 3]
        assert await client.seqs(2) == [4, 5]


async def test_who_joins_far_behind_what_is_live_catches_up_first(stage: Stage) -> None:
    async with stage.connected() as first, stage.connected() as second:
        assert await first.begin() == []
        stage.storage.reading.shut()
        await publish(stage, 1)
        await stage.storage.reading.reached.wait()
        await second.hello(from_head=False)
        await publish(stage, 2_000)
        stage.storage.reading.open()

        assert await first.until(2_001) == list(range(1, 2_002))
        assert await second.replay() == [1]
        assert await second.until(2_001) == list(range(2, 2_002))


@pytest.mark.parametrize("types", [None, ["ops:deployed"]])
async def test_nothing_is_lost_or_doubled_while_many_publish_and_many_join(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, types: list[str] | None
) -> None:
    monkeypatch.setattr(streams, "PAGE", 7)
    numbers = iter(range(1_000))
    stage.storage.hesitation = lambda: next(numbers, 0) % 5

    async def publish_many() -> None:
        for _ in range(30):
            await stage.workspace.publish_many([ServiceError(), Deployed(service="auth")])

    async def follow(resumes: int) -> list[int]:
        seqs = [0]
        for number in range(1, resumes + 1):
            async with stage.connected() as client:
                seqs += await client.begin(resume_after_seq=seqs[-1], types=types)
                last = 300 if number == resumes else min(seqs[-1] + 20, 300)
                while seqs[-1] < last:
                    seqs += await client.seqs(1)
        return seqs[1:]

    following = [asyncio.create_task(follow(1 + number % 3)) for number in range(15)]
    await asyncio.gather(*(publish_many() for _ in range(5)))
    followed = await asyncio.gather(*following)

    log = [envelope.seq for envelope in await stage.workspace.read(types=types)]
    assert followed == [log] * 15
    await stage.assert_nothing_is_left()


async def test_a_burst_larger_than_an_outbox_overflows_nobody_who_reads(stage: Stage) -> None:
    async with stage.connected() as client:
        await client.begin()
        await publish(stage, 3_000)
        assert await client.until(3_000) == list(range(1, 3_001))


# --- What is said


@pytest.mark.parametrize(
    "said",
    [
        "{",
        "",
        "[]",
        "null",
        b"{}",
        b"\xff",
        '{"type": "bye"}',
        '{"type": "command", "command_id": "", "command": {"type": "retry_run", "run_id": "fir_0123456789abcdef"}}',
        '{"type": "command", "command_id": "c", "command": {"type": "explode"}}',
        "[" * 10_000,
        json.dumps(HELLO),
        " " * 1_048_577,
        "é" * 524_289,
    ],
)
async def test_what_is_no_frame_after_hello_is_an_error_and_the_connection_stays(
    stage: Stage, said: str | bytes
) -> None:
    async with stage.connected() as client:
        await client.begin()
        for number in (1, 2):
            await client.say(said)
            frame = await client.hear()
            assert (frame["type"], bool(frame["rejection"]["message"])) == ("error", True)
            await publish(stage)
            assert await client.seqs(1) == [number]


async def test_errors_come_in_order_with_what_else_is_answered(stage: Stage) -> None:
    async with stage.connected() as client:
        await client.begin()
        for number in range(3):
            await client.say("{")
            await client.say(retry(f"c-{number}"))
        frames = [await client.hear() for _ in range(6)]

    assert [frame["type"] for frame in frames] == ["error", "command_result"] * 3
    assert [frame["command_id"] for frame in frames[1::2]] == ["c-0", "c-1", "c-2"]


async def test_a_command_is_answered_also_during_a_long_replay(stage: Stage) -> None:
    await stage.workspace.publish_many([ServiceError(details="x" * 100_000)] * 200)
    async with stage.connected(max_queue=1) as client:
        await client.hello()
        await client.say(retry("c"))
        seen = [(await client.hear())["type"] for _ in range(202)]

    assert seen.index("command_result") < 200
    assert seen[-1] == "replay_complete"


def retry(command_id: str) -> dict[str, Any]:
    command = {"type": "retry_run", "run_id": "fir_0123456789abcdef"}
    return {"type": "command", "command_id": command_id, "command": command}


async def test_a_client_may_say_its_commands_before_it_hears_anything(stage: Stage) -> None:
    async with stage.connected() as client:
        await client.say(HELLO)
        for number in range(20):
            await client.say(retry(f"c-{number}"))
        assert (await client.hear())["type"] == "welcome"
        frames = [await heard(client) for _ in range(20)]

    assert [frame["command_id"] for frame in frames] == [f"c-{number}" for number in range(20)]


async def heard(client: Client) -> dict[str, Any]:
    """Returns the next frame that is a command's result."""
    while (frame := await client.hear())["type"] != "command_result":
        assert frame["type"] == "replay_complete"
    return frame
