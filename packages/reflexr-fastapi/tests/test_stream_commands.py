import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from .ops import ServiceError, command, error
from .staging import HELLO, LIMITS, Client, Json, Stage, staged


@pytest.fixture
async def stage() -> AsyncGenerator[Stage]:
    async with staged() as stage:
        yield stage


def publish(command_id: str, **fields: Any) -> Json:
    return command("publish", command_id=command_id, event=error(**fields))


async def result(client: Client) -> Json:
    """Returns the next frame that is no event."""
    while (frame := await client.hear())["type"] == "event":
        pass
    assert frame["type"] == "command_result"
    return frame


async def severities(stage: Stage) -> list[int]:
    envelopes = await stage.workspace.read()
    return [envelope.event.severity for envelope in envelopes if isinstance(envelope.event, ServiceError)]


async def test_a_command_is_answered_and_what_it_publishes_is_streamed_as_its_senders(stage: Stage) -> None:
    async with stage.connected() as client:
        await client.begin()
        await client.say(publish("c", severity=3))
        frames = {frame["type"]: frame for frame in [await client.hear() for _ in range(2)]}

    answer, envelope = frames["command_result"], frames["event"]["envelope"]
    assert (answer["command_id"], answer["ok"]) == ("c", True)
    assert answer["outcome"] == {"type": "published", "seq": 1, "id": envelope["id"], "duplicate": False}
    assert (envelope["actor"]["id"], envelope["event"]["severity"]) == ("ada", 3)
    await stage.assert_nothing_is_left()


async def test_commands_are_carried_out_and_answered_in_the_order_in_which_they_come(stage: Stage) -> None:
    async with stage.connected() as client:
        await client.begin()
        for number in range(50):
            await client.say(publish(f"c-{number}", severity=number))
        answers = [await result(client) for _ in range(50)]

    assert [answer["command_id"] for answer in answers] == [f"c-{number}" for number in range(50)]
    assert await severities(stage) == list(range(50))


async def test_a_command_that_is_refused_is_answered_and_the_connection_stays(stage: Stage) -> None:
    async with stage.connected() as client:
        await client.begin()
        stage.application.permissions.refused.add("reflexr:publish")
        await client.say(publish("c"))
        refused = await client.hear()
        stage.application.permissions.refused.clear()
        await client.say(command("publish", command_id="d", event={"type": "ops:unknown"}))
        unknown = await client.hear()
        await client.say(publish("e"))
        assert (await result(client))["ok"] is True

    assert (refused["type"], refused["command_id"], refused["ok"]) == ("command_result", "c", False)
    assert refused["rejection"]["type"] == "forbidden"
    assert (unknown["command_id"], unknown["rejection"]["type"]) == ("d", "not_found")
    assert await severities(stage) == [1]


async def test_a_command_repeated_on_two_connections_at_once_is_carried_out_once(stage: Stage) -> None:
    stage.storage.writing.shut()
    async with stage.connected() as one, stage.connected() as other:
        for client in (one, other):
            await client.begin(types=["ops:deployed"])
            await client.say(publish("c"))
        await stage.storage.writing.reached.wait()
        stage.storage.writing.open()
        answers = [await client.hear() for client in (one, other)]

    assert answers[0] == answers[1]
    assert answers[0]["ok"] is True
    assert await severities(stage) == [1]


async def test_the_same_id_of_two_participants_names_two_commands(stage: Stage) -> None:
    async with stage.connected() as ada, stage.connected(token="ben") as ben:
        for client in (ada, ben):
            await client.begin(types=["ops:deployed"])
            await client.say(publish("c"))
        outcomes = [(await client.hear())["outcome"] for client in (ada, ben)]

    assert outcomes[0]["id"] != outcomes[1]["id"]
    assert await severities(stage) == [1, 1]


@pytest.mark.parametrize("abruptly", [False, True])
async def test_a_command_under_way_when_its_client_disappears_is_carried_out_once_and_its_repetition_answered(
    stage: Stage, abruptly: bool
) -> None:
    stage.storage.writing.shut()
    async with stage.connected() as client:
        await client.begin()
        await client.say(publish("c"))
        await stage.storage.writing.reached.wait()
        await (client.cut_off() if abruptly else client.socket.close())
    async with stage.connected() as client:
        await client.begin(types=["ops:deployed"])
        await client.say(publish("c"))
        stage.storage.writing.open()
        answer = await client.hear()

    assert (answer["command_id"], answer["ok"], answer["outcome"]["duplicate"]) == ("c", True, False)
    await stage.assert_nothing_is_left()
    assert [envelope.id for envelope in await stage.workspace.read()] == [answer["outcome"]["id"]]


async def test_a_command_under_way_is_finished_before_the_server_is_gone(stage: Stage) -> None:
    stage.storage.writing.shut()
    async with stage.connected() as client:
        await client.begin()
        await client.say(publish("c"))
        await stage.storage.writing.reached.wait()
        closing = asyncio.create_task(stage.router.close())
        assert await client.end() == (1001, [])
        await stage.streams.are_left()
        assert not closing.done()

        stage.storage.writing.open()
        await closing

    assert await severities(stage) == [1]


async def test_a_command_that_the_storage_fails_is_answered_and_can_be_repeated(stage: Stage) -> None:
    async with stage.connected() as client:
        await client.begin(types=["ops:deployed"])
        stage.storage.writes_fail = True
        await client.say(command("publish_many", command_id="c", events=[{"event": error()}]))
        assert (await client.hear())["ok"] is False
        stage.storage.writes_fail = False
        await client.say(command("publish_many", command_id="c", events=[{"event": error()}]))
        assert (await client.hear())["ok"] is True


async def test_who_says_more_commands_than_an_outbox_has_room_for_answers_gets_every_answer() -> None:
    async with staged(limits=replace(LIMITS, outbox_size=2)) as stage, stage.connected(max_queue=1) as client:
        await client.say({**HELLO, "types": ["ops:deployed"]})
        for number in range(300):
            await client.say(publish(f"c-{number}", severity=number))
        assert (await client.hear())["type"] == "welcome"
        answers = [frame for frame in [await client.hear() for _ in range(301)] if frame["type"] == "command_result"]

    assert [answer["outcome"]["seq"] for answer in answers] == list(range(1, 301))
