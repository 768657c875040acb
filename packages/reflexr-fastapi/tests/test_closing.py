import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from websockets.asyncio.client import connect

from reflexr.fastapi import reflexr_router
from reflexr.fastapi.callers import Callers

from .lines import Line
from .ops import ServiceError, ops, resolve_actor
from .serving import served
from .staging import HELLO, Client, Stage, staged


@pytest.fixture
async def stage() -> AsyncGenerator[Stage]:
    async with staged() as stage:
        yield stage
        await stage.assert_nothing_is_left()


async def test_a_server_that_goes_away_closes_every_client_and_refuses_new_ones(stage: Stage) -> None:
    await stage.workspace.publish_many([ServiceError()] * 3)
    async with stage.connected() as silent, stage.connected() as live, stage.connected() as behind:
        await live.begin()
        stage.storage.reading.shut()
        await behind.hello()
        await stage.storage.reading.reached.wait()

        await stage.router.close()

        assert [await client.end() for client in (silent, live, behind)] == [(1001, [])] * 3
    assert len(stage.streams) == 0
    for _ in range(2):
        async with stage.connected() as late:
            await late.say(HELLO)
            assert await late.end() == (1001, [])
        await stage.router.close()


async def test_a_client_that_is_being_identified_when_the_server_goes_away_is_told_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def hesitate(self: Callers, scope: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Callers, "identify", hesitate)
    line = Line()
    serving = asyncio.create_task(stage.streams.serve(line.websocket, "prod"))
    await asked.wait()
    await stage.router.close()
    await serving

    assert [message["type"] for message in line.sent] == ["websocket.accept", "websocket.close"]
    assert line.sent[1]["code"] == 1001


async def test_a_server_that_cancels_a_stream_leaves_nothing_behind(stage: Stage) -> None:
    line = Line(query="token=ada")
    serving = asyncio.create_task(stage.streams.serve(line.websocket, "prod"))
    line.say(text='{"type": "hello", "protocol": "reflexr.v1"}')
    await line.told(3)

    serving.cancel()

    with pytest.raises(asyncio.CancelledError):
        await serving
    await stage.assert_nothing_is_left()


async def test_the_lifespan_of_the_application_closes_its_streams_before_what_they_need_ends() -> None:
    ended: list[int] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            ended.append(len(application.workspaces.configuration.feeds))

    @asynccontextmanager
    async def failing(_: FastAPI) -> AsyncGenerator[None]:
        yield
        raise LookupError("something else breaks")

    application = ops()
    app = FastAPI(lifespan=lifespan)
    app.include_router(reflexr_router(application.workspaces, resolve_actor=resolve_actor), prefix="/api")
    app.include_router(APIRouter(lifespan=failing))

    async with served(app, lifespan="off") as at:
        url = f"{at.ws}/api/workspaces/prod/stream?token=ada"
        async with connect(url, proxy=None) as socket:
            lifespan_of_app = app.router.lifespan_context(app)
            await lifespan_of_app.__aenter__()
            await Client(socket).begin()
            assert len(application.workspaces.configuration.feeds) == 1
            with pytest.raises(LookupError):
                await lifespan_of_app.__aexit__(None, None, None)
            assert await Client(socket).end() == (1001, [])

    assert ended == [0]


async def test_a_server_that_cuts_its_connections_off_leaves_nothing_behind() -> None:
    async with AsyncExitStack() as stack:
        async with staged() as stage:
            client = await stack.enter_async_context(stage.connected())
            await client.begin()
        assert (await client.end())[0] == 1012
        await stage.assert_nothing_is_left()


@pytest.mark.parametrize(("token", "code"), [("ada", 1001), ("s3cret", 4401)])
async def test_credentials_in_the_query_are_in_no_log(
    stage: Stage, caplog: pytest.LogCaptureFixture, token: str, code: int
) -> None:
    caplog.set_level(logging.INFO)
    async with stage.connected(token=None, query=f"?token={token}&access_token=s3cret2&trace=7") as client:
        if code == 1001:
            await client.begin()
            await stage.router.close()
        assert (await client.end())[0] == code

    accepted = [record.getMessage() for record in caplog.records if "[accepted]" in record.getMessage()]
    assert len(accepted) == 1
    assert '"WebSocket /workspaces/prod/stream?trace=7" [accepted]' in accepted[0]
    assert not any(secret in caplog.text for secret in (f"token={token}", "s3cret"))
