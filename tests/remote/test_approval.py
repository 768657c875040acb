"""An agent that waits for a person, while every process ends and a day goes by, and is answered over REST."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from pydantic import JsonValue
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo

from reflexr.agent import AgentAction, function_model
from reflexr.core import Actor, Event, F, Rule, SourceActor, UserActor, by, on, run
from reflexr.sql import SqlStorage, create_schema, create_sqlite_engine
from reflexr.workspace import ManualClock, Reaction, Reactor, Workspaces

from .served import served, token_of

ADA: Final = UserActor(id="ada")
SHOP: Final = SourceActor(name="shop")
DAY: Final = timedelta(days=1)


class RefundEvent(Event, abstract=True, event_namespace="refunds"):
    """What is asked for and what is paid."""


class Asked(RefundEvent):
    order: str


class Paid(RefundEvent):
    order: str


class Outside:
    """What outlives every process: the disk, the clock, the model's provider and the bank."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite+aiosqlite:///{folder / 'reflexr.db'}"
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.asked: list[Sequence[ModelMessage]] = []
        self.refunds: list[tuple[str, int, Actor | None]] = []

    def model(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Looks an order up, refunds it, and says what came of it."""
        self.asked.append(list(messages))
        match len(self.asked):
            case 1:
                return ModelResponse([ToolCallPart("look_up", {"order": "o-1"}, "c1")])
            case 2:
                return ModelResponse([ToolCallPart("refund", {"order": "o-1", "cents": 1999}, "c2")])
            case _:
                (told,) = [part for part in self.told() if part.tool_name == "refund"]
                return ModelResponse([TextPart(f"Then: {told.content}")])

    def told(self) -> list["ToolReturnPart[Any]"]:
        """What the model was told last."""
        message = self.asked[-1][-1]
        assert isinstance(message, ModelRequest)
        return [part for part in message.parts if isinstance(part, ToolReturnPart)]


class Process:
    """One process: everything in it is made anew."""

    def __init__(self, outside: Outside, storage: SqlStorage) -> None:
        agent = Agent(function_model(outside.model), deps_type=Reaction[None], instructions="Refund what is due.")

        @agent.tool_plain
        async def look_up(order: str) -> str:
            return f"{order} is due"

        @agent.tool(requires_approval=True)
        async def refund(ctx: RunContext[Reaction[None]], order: str, cents: int) -> str:
            answer = ctx.deps.answer
            outside.refunds.append((order, cents, answer and answer.actor))
            await ctx.deps.emit(Paid(order=order))
            return f"refunded {cents}"

        action = AgentAction(agent, name="refund", answer_timeout=3 * DAY)
        rule = Rule(name="refunds:refund", when=on(Asked), scope=by(F.order), then=run(action))
        self.workspaces = Workspaces(storage, events=[Asked], emitted=[Paid], rules=[rule])
        self.reactor = Reactor(self.workspaces, actions={"refund": action}, deps=None)


@asynccontextmanager
async def process(outside: Outside) -> AsyncGenerator[Process]:
    """Starts a process, which has ended with the block."""
    engine = create_sqlite_engine(outside.url)
    try:
        async with SqlStorage(engine, clock=outside.clock) as storage:
            yield Process(outside, storage)
    finally:
        await engine.dispose()


class Caller:
    """Somebody who knows no more than HTTP."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def get(self, path: str) -> Any:
        answered = await self._http.get(f"/workspaces/desk/{path}")
        assert answered.status_code == 200
        return answered.json()

    async def command(self, **command: JsonValue) -> httpx.Response:
        return await self._http.post(
            "/workspaces/desk/commands", json={"type": "command", "command_id": str(command), "command": command}
        )


@asynccontextmanager
async def calling(running: Process, actor: Actor) -> AsyncGenerator[Caller]:
    """Serves a process's workspaces, and calls them as somebody."""
    headers = {"authorization": f"Bearer {token_of('acme', actor)}"}
    async with (
        served(running.workspaces) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as http,
    ):
        yield Caller(http)


@pytest.mark.parametrize(
    ("answer", "refunds", "output"),
    [
        (True, [("o-1", 1999, ADA)], "Then: refunded 1999"),
        ({"c2": {"override_args": {"order": "o-1", "cents": 500}}}, [("o-1", 500, ADA)], "Then: refunded 500"),
        ({"c2": {"approved": False, "message": "not again"}}, [], "Then: not again"),
    ],
)
async def test_an_agent_waits_for_approval_while_all_processes_end_and_goes_on_a_day_later_where_it_was(
    tmp_path: Path, answer: JsonValue, refunds: list[tuple[str, int, Actor]], output: str
) -> None:
    outside = Outside(tmp_path)
    engine = create_sqlite_engine(outside.url)
    await create_schema(engine)
    await engine.dispose()

    async with process(outside) as first:
        await first.workspaces.open("acme", "desk", actor=ADA)
        async with calling(first, SHOP) as shop:
            await shop.command(type="publish", event={"type": "refunds:asked", "order": "o-1"})
        await first.reactor.settle()
    assert (len(outside.asked), outside.refunds) == (2, [])

    outside.clock.advance(DAY)
    async with process(outside) as second, calling(second, ADA) as ada:
        (waiting,) = await ada.get("runs?status=paused")
        run_id, attempt = waiting["id"], waiting["attempt"]
        refused = await ada.command(type="resume_run", run_id=run_id, answer=answer, attempt=attempt + 1)
        resumed = await ada.command(type="resume_run", run_id=run_id, answer=answer, attempt=attempt)
        again = await ada.command(type="resume_run", run_id=run_id, answer=False)
    assert waiting["waiting"]["request"] == {
        "approvals": [
            {
                "tool_call_id": "c2",
                "tool_name": "refund",
                "kind": "approval",
                "args": {"order": "o-1", "cents": 1999},
                "metadata": {},
            }
        ],
        "calls": [],
        "problem": None,
    }
    assert waiting["waiting"]["until"] == "2026-01-04T00:00:00Z"
    assert (refused.status_code, resumed.status_code, again.status_code) == (409, 200, 409)
    assert outside.refunds == []

    outside.clock.advance(DAY)
    async with process(outside) as third:
        await third.reactor.settle()
    async with process(outside) as last, calling(last, ADA) as ada:
        await last.reactor.settle()
        ended = await ada.get(f"runs/{run_id}")
        paid = await ada.get("events?type=refunds:paid")

    assert (ended["status"], ended["output"], ended["attempt"]) == ("succeeded", output, 2)
    assert outside.refunds == refunds
    assert len(paid) == len(refunds)
    _, before, after = outside.asked
    assert list(after[: len(before)]) == list(before)
    calls = [part for message in after for part in message.parts if isinstance(part, ToolCallPart)]
    assert [call.tool_name for call in calls] == ["look_up", "refund"]
    assert [(part.tool_call_id, part.outcome) for part in outside.told()] == [
        ("c2", "success" if refunds else "denied")
    ]
