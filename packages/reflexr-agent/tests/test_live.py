import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, AgentStreamEvent, BinaryContent, ModelResponse, RunContext, TextPart, ToolCallPart
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.messages import (
    FilePart,
    ModelMessage,
    NativeToolCallPart,
    NativeToolReturnPart,
    PartDeltaEvent,
    PartStartEvent,
    SpeechPartDelta,
    ThinkingPart,
    ToolCallPartDelta,
)
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_graph import GraphBuilder, StepContext

from reflexr.agent import AgentAction, GraphAction, LiveDeltas
from reflexr.core import MAX_DELTA, Delta, Run
from reflexr.workspace import InProcessLiveOutput, Reaction, WorkspaceRef

from .harbour import Arrived, Harbour, Script, call

NORTH = WorkspaceRef("acme", "north")

type Heard = list[tuple[str, int, str, str | None]]
"""Of each delta the kind, the part, the text and the tool."""


class Berth(BaseModel):
    berth: int


@pytest.fixture
async def harbour() -> Harbour:
    harbour = Harbour()
    await harbour.publish(Arrived(ship="Argo"))
    return harbour


async def heard(harbour: Harbour, agent: Agent[Reaction[None], Any]) -> tuple[Heard, Run]:
    """What is heard of an agent's run, and what becomes of it."""
    output = InProcessLiveOutput()
    with output.listen(NORTH) as listener:
        run = await harbour.act(AgentAction(agent, name="pilot"), live_output=output)
        output.send(NORTH, LAST)
        *deltas, last = await listener.take()
    assert last is LAST
    assert [delta.number for delta in deltas] == [*range(1, len(deltas) + 1)]
    return [(delta.kind, delta.part, delta.text, delta.tool) for delta in deltas], run


LAST = Delta(run_id="last", rule="harbour:a", attempt=1, number=1, kind="text", part=0, text="")


def agent_of(model: FunctionModel, **options: Any) -> Agent[Reaction[None], Any]:
    return Agent(model, deps_type=Reaction[None], capabilities=[LiveDeltas(), *options.pop("also", ())], **options)


def streaming(*answers: Sequence[Any]) -> FunctionModel:
    """A model that streams these pieces."""
    left = list(answers)

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for piece in left.pop(0):
            yield piece

    return FunctionModel(stream_function=stream)


def together(said: Heard) -> list[tuple[str, int, str]]:
    """Each part with all of its text."""
    texts: dict[tuple[str, int], str] = {}
    for kind, part, text, _ in said:
        texts[kind, part] = texts.get((kind, part), "") + text
    return [(kind, part, text) for (kind, part), text in texts.items()]


# --- What is told


async def test_a_text_is_told_as_the_model_gives_it(harbour: Harbour) -> None:
    said, run = await heard(harbour, agent_of(streaming(["Berth", "", " 4", "."])))

    assert said == [("text", 1, "Berth", None), ("text", 1, " 4", None), ("text", 1, ".", None)]
    assert run.output == "Berth 4."


async def test_a_piece_is_there_before_the_model_gives_the_next(harbour: Harbour) -> None:
    output = InProcessLiveOutput()
    told: list[str] = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for piece in ("one ", "two ", "three"):
            yield piece
            told.extend(delta.text for delta in await listener.take())

    with output.listen(NORTH) as listener:
        run = await harbour.act(
            AgentAction(agent_of(FunctionModel(stream_function=stream)), name="pilot"), live_output=output
        )

    assert (told, run.output) == (["one ", "two ", "three"], "one two three")


async def test_thinking_calls_and_results_are_told_as_parts_of_their_own(harbour: Harbour) -> None:
    model = streaming(
        [
            {0: DeltaThinkingPart(content="Who ")},
            {0: DeltaThinkingPart(content="comes?", signature="s")},
            {1: DeltaToolCall(name="look", json_args='{"sh', tool_call_id="c1")},
            {1: DeltaToolCall(json_args='ip": "Argo"}')},
        ],
        ["She", " may."],
    )
    agent = agent_of(model)

    @agent.tool_plain
    async def look(ship: str) -> dict[str, Any]:
        return {"ship": ship, "length": 40}

    said, run = await heard(harbour, agent)

    assert said == [
        ("thinking", 1, "Who ", None),
        ("thinking", 1, "comes?", None),
        ("tool_call", 2, '{"sh', "look"),
        ("tool_call", 2, 'ip": "Argo"}', "look"),
        ("tool_result", 2, '{"ship":"Argo","length":40}', "look"),
        ("text", 3, "She", None),
        ("text", 3, " may.", None),
    ]
    assert run.output == "She may."


async def test_a_call_is_told_when_it_begins_and_each_result_belongs_to_its_own(harbour: Harbour) -> None:
    script = Script(ModelResponse([call("first"), ToolCallPart("second", {}), ToolCallPart("second", None)]), "done")
    agent = agent_of(script.model)
    is_second = asyncio.Event()

    @agent.tool_plain
    async def first() -> str:
        await is_second.wait()
        return "one"

    @agent.tool_plain
    async def second() -> str:
        is_second.set()
        return "two"

    said, _ = await heard(harbour, agent)

    assert [(part, tool) for kind, part, _, tool in said if kind == "tool_call"] == [
        (1, "first"),
        (2, "second"),
        (3, "second"),
    ]
    results = {part: (text, tool) for kind, part, text, tool in said if kind == "tool_result"}
    assert results == {1: ("one", "first"), 2: ("two", "second"), 3: ("two", "second")}


async def test_the_answer_of_an_agent_with_a_type_is_told_as_the_call_that_gives_it(harbour: Harbour) -> None:
    script = Script(call("final_result", berth=4))
    said, run = await heard(harbour, agent_of(script.model, output_type=Berth))

    assert together(said) == [("tool_call", 1, '{"berth":4}')]
    assert run.output == {"berth": 4}


async def test_what_the_model_has_done_by_itself_is_told(harbour: Harbour) -> None:
    model = streaming(
        [
            {0: NativeToolCallPart("web_search", {"query": "tides"}, tool_call_id="n1")},
            {1: NativeToolReturnPart("web_search", {"hours": 6}, tool_call_id="n1")},
            "High at six.",
        ]
    )
    said, _ = await heard(harbour, agent_of(model))

    assert said == [
        ("tool_call", 1, '{"query":"tides"}', "web_search"),
        ("tool_result", 1, '{"hours":6}', "web_search"),
        ("text", 2, "High at six.", None),
    ]


async def test_of_a_result_no_more_than_its_beginning_is_told(harbour: Harbour) -> None:
    script = Script(call("look"), "done")
    agent = agent_of(script.model)

    @agent.tool_plain
    async def look() -> str:
        return "x" * 5_000

    said, _ = await heard(harbour, agent)

    assert [(text, tool) for kind, _, text, tool in said if kind == "tool_result"] == [("x" * MAX_DELTA, "look")]


async def test_agents_of_one_run_speak_in_parts_of_their_own(harbour: Harbour) -> None:
    mate = agent_of(streaming(["Aye", " aye."]))
    script = Script(call("ask"), "She may.")
    pilot = agent_of(script.model)

    @pilot.tool
    async def ask(ctx: RunContext[Reaction[None]]) -> str:
        return (await mate.run("?", deps=ctx.deps)).output

    said, _ = await heard(harbour, pilot)

    assert together(said) == [
        ("tool_call", 1, "{}"),
        ("text", 2, "Aye aye."),
        ("tool_result", 1, "Aye aye."),
        ("text", 3, "She may."),
    ]


# --- What it leaves as it is


async def test_other_handlers_of_the_agents_events_are_called_all_the_same(harbour: Harbour) -> None:
    seen: list[str] = []

    async def keep(ctx: RunContext[Reaction[None]], events: AsyncIterable[AgentStreamEvent]) -> None:
        seen.extend([event.event_kind async for event in events])

    said, run = await heard(harbour, agent_of(streaming(["a", "b"]), also=[ProcessEventStream(keep)]))

    assert together(said) == [("text", 1, "ab")]
    assert {"part_start", "part_delta", "part_end"} <= set(seen)
    assert run.output == "ab"


async def test_a_run_that_nobody_hears_is_the_same_and_nothing_is_recorded(harbour: Harbour) -> None:
    def again() -> Agent[Reaction[None], Any]:
        agent = agent_of(Script(call("look"), "done with secrets").model)

        @agent.tool_plain
        async def look() -> str:
            return "a secret"

        return agent

    run = await harbour.act(AgentAction(again(), name="pilot"))
    unheard = [payload["type"] for payload in await harbour.log()]
    other = Harbour()
    await other.publish(Arrived(ship="Argo"))
    said, heard_run = await heard(other, again())

    assert len(said) > 3
    assert unheard == [payload["type"] for payload in await other.log()]
    assert (run.output, run.status) == (heard_run.output, heard_run.status)
    assert not any("a secret" in f"{payload}" for payload in await other.log())


async def test_each_attempt_begins_anew(harbour: Harbour) -> None:
    output = InProcessLiveOutput()
    script = Script(ModelResponse([TextPart("I")]), "again")
    agent = agent_of(script.model)

    @agent.output_validator
    async def checked(ctx: RunContext[Reaction[None]], text: str) -> str:
        if text == "I":
            raise OSError("the mast broke")
        return text

    with output.listen(NORTH) as listener:
        await harbour.act(AgentAction(agent, name="pilot"), live_output=output)
        await harbour.act_again(AgentAction(agent, name="pilot"), live_output=output)
        deltas = await listener.take()

    told = [(delta.attempt, delta.number, delta.part, delta.text) for delta in deltas]
    assert told == [(1, 1, 1, "I"), (2, 1, 1, "again")]


async def test_what_an_approved_tool_returns_is_told_by_the_attempt_that_calls_it(harbour: Harbour) -> None:
    output = InProcessLiveOutput()
    agent = agent_of(Script(call("moor"), "She is moored.").model)

    @agent.tool_plain(requires_approval=True)
    async def moor() -> str:
        return "done"

    action = AgentAction(agent, name="pilot")
    with output.listen(NORTH) as listener:
        paused = await harbour.act(action, live_output=output)
        await (await harbour.open()).resume_run(paused.id, answer=True)
        resumed = await harbour.act(action, live_output=output)
        deltas = await listener.take()

    assert (paused.status, resumed.status) == ("paused", "succeeded")
    told = [(delta.attempt, delta.kind, delta.part, delta.tool) for delta in deltas]
    assert told[:2] == [(1, "tool_call", 1, "moor"), (2, "tool_result", 1, "moor")]
    assert {(attempt, kind, part) for attempt, kind, part, _ in told[2:]} == {(2, "text", 2)}
    assert "".join(delta.text for delta in deltas[2:]) == "She is moored."


async def test_a_run_that_is_cancelled_in_the_middle_of_an_answer_ends_at_once(harbour: Harbour) -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        try:
            yield "She"
            begun.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    output = InProcessLiveOutput()
    reactor = harbour.reactor(
        AgentAction(agent_of(FunctionModel(stream_function=stream)), name="pilot"), live_output=output
    )
    stop = asyncio.Event()
    with output.listen(NORTH) as listener:
        serving = asyncio.create_task(reactor.serve(stop=stop, grace=timedelta(0)))
        await begun.wait()
        assert [delta.text for delta in await listener.take()] == ["She"]
        stop.set()
        await serving

    assert closed.is_set()
    assert [run.status for run in await harbour.runs()] == ["retrying"]


# --- What is strange


class Unreadable:
    """What has no JSON."""


async def test_what_has_no_text_is_no_delta_and_fails_nothing(harbour: Harbour) -> None:
    """Files, results that have no JSON, events that another capability changed: the run is as it is without."""
    file = FilePart(BinaryContent(b"\xff", media_type="image/png"))
    events: list[AgentStreamEvent] = [
        PartDeltaEvent(index=9, delta=ToolCallPartDelta(args_delta="{")),
        PartStartEvent(index=9, part=ToolCallPart("strange", None)),
        PartDeltaEvent(index=9, delta=ToolCallPartDelta(args_delta={"n": 1})),
        PartDeltaEvent(index=9, delta=SpeechPartDelta()),
        PartStartEvent(index=9, part=file),
        PartDeltaEvent(index=9, delta=ToolCallPartDelta(args_delta="lost")),
        PartStartEvent(index=9, part=NativeToolReturnPart("strange", Unreadable(), tool_call_id="unknown")),
        PartStartEvent(index=9, part=ThinkingPart("")),
    ]

    async def change(
        ctx: RunContext[Reaction[None]], stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterator[AgentStreamEvent]:
        while events:
            yield events.pop(0)
        async for event in stream:
            if not isinstance(event, PartStartEvent):
                yield event

    model = streaming([{0: DeltaToolCall("look", "{}", tool_call_id="c1")}], ["do", "ne"])
    # The first of the capabilities is given what the others have made of the events.
    agent = agent_of(model, also=[ProcessEventStream(change)])

    @agent.tool_plain
    async def look() -> str:
        return "seen"

    said, run = await heard(harbour, agent)

    assert said == [
        ("tool_call", 1, "", "strange"),
        ("tool_call", 1, '{"n":1}', "strange"),
        ("tool_result", 2, "", "strange"),
        ("tool_result", 4, "seen", "look"),
    ]
    assert run.output == "done"


# --- Graphs


async def test_a_step_of_a_graph_speaks_for_its_run(harbour: Harbour) -> None:
    graph = GraphBuilder(deps_type=Reaction[None], input_type=str, output_type=str)
    pilot = agent_of(streaming(["Berth", " 4"]))

    @graph.step
    async def greet(ctx: StepContext[None, Reaction[None], str]) -> str:
        ctx.deps.live.send(f"Hello {ctx.inputs}")
        return (await pilot.run("?", deps=ctx.deps)).output

    graph.add(graph.edge_from(graph.start_node).to(greet), graph.edge_from(greet).to(graph.end_node))
    action = GraphAction(graph.build(), name="pilot", inputs=lambda reaction: "Argo")
    output = InProcessLiveOutput()
    with output.listen(NORTH) as listener:
        run = await harbour.act(action, live_output=output)
        deltas = await listener.take()

    assert [(delta.part, delta.text) for delta in deltas] == [(0, "Hello Argo"), (1, "Berth"), (1, " 4")]
    assert (run.output, {delta.run_id for delta in deltas}) == ("Berth 4", {run.id})
