import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest

from reflexr.workspace import LiveOutput, WorkspaceRef

from .lines import Line
from .ops import ADA, PROD, THEIRS, ServiceError
from .saying import delta, told
from .staging import HELLO, Client, Stage, staged

SEVERE: Final = ServiceError(severity=9)

LARGE: Final = "x" * 1_000


@pytest.fixture
async def stage() -> AsyncGenerator[Stage]:
    async with staged(ws_ping_interval=None) as stage:
        yield stage
        await stage.assert_nothing_is_left()


def live(stage: Stage) -> LiveOutput:
    return stage.application.workspaces.configuration.settings.live_output


def say(stage: Stage, *numbers: int, text: str = "", workspace: WorkspaceRef = PROD) -> None:
    for number in numbers:
        live(stage).send(workspace, delta(number, text=text))


async def frames(client: Client, number: int) -> list[dict[str, Any]]:
    return [await client.hear() for _ in range(number)]


async def until_succeeded(client: Client) -> list[dict[str, Any]]:
    """Everything that a client is sent up to the end of a run."""
    heard = await frames(client, 1)
    while heard[-1]["type"] != "event" or heard[-1]["envelope"]["event"]["type"] != "reflexr:run_succeeded":
        heard += await frames(client, 1)
    return heard


# --- Who is sent what


async def test_what_a_run_says_is_sent_to_those_who_asked_and_to_nobody_else_and_is_not_in_the_log(
    stage: Stage,
) -> None:
    stage.application.triage_says = ["Looking ", "into it"]
    async with stage.connected() as asking, stage.connected() as silent, stage.connected(token="eve") as elsewhere:
        await asking.begin(deltas=True)
        await silent.begin(deltas=False)
        await elsewhere.begin(deltas=True, types=["ops:deployed"])
        await stage.workspace.publish(SEVERE)
        await stage.application.reactor.settle()
        say(stage, 1, workspace=THEIRS)

        heard, unheard = await until_succeeded(asking), await until_succeeded(silent)
        assert told(await frames(elsewhere, 1)) == [(1, 0)]

    [run] = await stage.workspace.runs()
    deltas = [frame["delta"] for frame in heard if frame["type"] == "delta"]
    shared = {"run_id": run.id, "rule": run.rule, "attempt": 1, "kind": "text", "part": 0, "tool": None, "lost": 0}
    assert deltas == [
        {**shared, "number": 1, "text": "Looking "},
        {**shared, "number": 2, "text": "into it"},
    ]
    assert {frame["type"] for frame in unheard} == {"event"}
    events = [frame["envelope"] for frame in heard if frame["type"] == "event"]
    assert events == [frame["envelope"] for frame in unheard]
    log = [json.loads(envelope.to_json()) for envelope in await stage.workspace.read()]
    assert events == log
    assert not any("Looking" in json.dumps(envelope) for envelope in log)


async def test_everything_that_is_said_once_the_replay_is_complete_is_sent(stage: Stage) -> None:
    await stage.workspace.publish_many([ServiceError()] * 3)
    async with stage.connected() as client:
        assert await client.begin(deltas=True) == [1, 2, 3]
        say(stage, *range(1, 501))
        assert told(await frames(client, 500)) == [(number, 0) for number in range(1, 501)]


async def test_the_types_that_a_client_wants_are_of_events_alone(stage: Stage) -> None:
    async with stage.connected() as client:
        await client.begin(deltas=True, types=["ops:deployed"])
        await stage.workspace.publish(ServiceError())
        say(stage, 1)
        assert told(await frames(client, 1)) == [(1, 0)]


async def test_what_is_said_during_the_replay_is_not_sent(stage: Stage) -> None:
    await stage.workspace.publish(ServiceError())
    stage.storage.reading.shut()
    async with stage.connected() as client:
        await client.hello(deltas=True)
        await stage.storage.reading.reached.wait()
        assert not live(stage).is_heard(PROD)
        say(stage, 1)
        stage.storage.reading.open()
        assert await client.replay() == [1]
        say(stage, 2)
        assert told(await frames(client, 1)) == [(2, 0)]


async def test_who_may_not_read_the_events_is_sent_no_delta(stage: Stage) -> None:
    stage.application.permissions.refused.add("reflexr:read_events")
    async with stage.connected() as client:
        await client.say({**HELLO, "deltas": True})
        assert (await client.end())[0] == 4403
    assert not live(stage).is_heard(PROD)


async def test_a_client_that_is_gone_is_listened_for_no_more(stage: Stage) -> None:
    async with stage.connected() as staying:
        await staying.begin(deltas=True)
        async with stage.connected() as leaving:
            await leaving.begin(deltas=True)
        await stage.streams.are_left(by_all_but=1)
        say(stage, 1)
        assert told(await frames(staying, 1)) == [(1, 0)]
    await stage.streams.are_left()
    assert not live(stage).is_heard(PROD)


async def test_a_server_that_goes_away_closes_those_who_listen(stage: Stage) -> None:
    async with stage.connected() as client:
        await client.begin(deltas=True)
        say(stage, 1)
        await stage.router.close()
        code, heard = await client.end()
    assert code == 1001
    assert told(heard) in ([], [(1, 0)])


# --- Who stalls


@asynccontextmanager
async def stalled(stage: Stage, **fields: Any) -> AsyncGenerator[Client]:
    """A client that has said hello and reads nothing of itself, and whose socket holds little."""
    with socket.socket() as narrow:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        narrow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", stage.at.port))
        async with stage.connected(sock=narrow, max_queue=1, ping_interval=None) as client:
            await client.begin(**fields)
            try:
                yield client
            finally:
                await client.cut_off()


async def test_a_client_that_stalls_loses_deltas_and_no_event_and_holds_up_no_run(stage: Stage) -> None:
    """Some hundred deltas are more than the sockets hold, and some thousand more than wait for anybody."""
    number = 10_000
    stage.application.triage_says = [LARGE] * 100
    async with AsyncExitStack() as stack:
        slow = await stack.enter_async_context(stalled(stage, deltas=True))
        quick = await stack.enter_async_context(stage.connected(max_queue=None))
        await quick.begin(deltas=True)
        for first in range(1, number, 100):
            say(stage, *range(first, first + 100), text=LARGE)
            assert told(await frames(quick, 100)) == [(each, 0) for each in range(first, first + 100)]
        # Nobody reads of the one, and the other reads on.
        await stage.workspace.publish(SEVERE)
        await stage.application.reactor.settle()
        assert [run.status for run in await stage.workspace.runs()] == ["succeeded"]
        assert len(told(await until_succeeded(quick))) == 100

        heard = await until_succeeded(slow)
        log = [json.loads(envelope.to_json()) for envelope in await stage.workspace.read()]
        assert [frame["envelope"] for frame in heard if frame["type"] == "event"] == log
        deltas = told(heard)
        assert len(deltas) < number
        assert sum(1 + lost for _, lost in deltas) == number + 100
        assert len(stage.streams) == 2


async def test_a_client_that_stalls_and_loses_deltas_is_not_closed_for_them_and_hears_what_comes_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(query="token=ada")
    serving = asyncio.create_task(stage.streams.serve(line.websocket, "prod"))
    line.say(text=json.dumps({**HELLO, "deltas": True}))
    await line.told(3)
    line.is_open.clear()
    for first in range(1, 5_001, 50):
        say(stage, *range(first, first + 50))
        for _ in range(60):
            await asyncio.sleep(0)
    await stage.workspace.publish(ServiceError())
    line.is_open.set()
    # The one that was on its way, those that had room, and the event.
    await line.told(3 + 1 + 1_000 + 1)
    line.hang_up(code=1000)
    await serving

    sent = [json.loads(message["text"]) for message in line.sent[3:]]
    assert told(sent) == [(1, 0), (4_001, 3_999), *((number, 0) for number in range(4_002, 5_001))]
    assert sent[-1]["envelope"]["seq"] == 1


async def test_in_process_and_over_the_stream_the_same_is_heard(stage: Stage) -> None:
    workspace = await stage.application.open(actor=ADA)
    stage.application.triage_says = ["one", "two"]
    subscription = workspace.subscribe(deltas=True)
    async with stage.connected() as client:
        await client.begin(deltas=True)
        first = asyncio.ensure_future(anext(subscription))
        await stage.workspace.publish(SEVERE)
        taken = [await first]
        await stage.application.reactor.settle()
        heard = await until_succeeded(client)
        while len(taken) < len(heard):
            taken.append(await anext(subscription))
        await subscription.aclose()

    shown = [json.loads(one.model_dump_json()) for one in taken]
    assert [one for one in shown if "number" in one] == [frame["delta"] for frame in heard if frame["type"] == "delta"]
