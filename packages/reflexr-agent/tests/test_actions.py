import asyncio
from collections.abc import AsyncIterable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, AgentStreamEvent, ModelResponse, RunContext, TextPart, UsageLimits
from pydantic_ai.capabilities import Instrumentation, ProcessEventStream
from pydantic_ai.exceptions import ContentFilterError, ModelContextWindowExceededError, ModelHTTPError
from pydantic_ai.models.instrumented import InstrumentationSettings

from reflexr.agent import AgentAction, EventContext, Prompt, firing_text
from reflexr.core import Rule, Run, on, run
from reflexr.workspace import Reaction, RunFailure

from .harbour import Arrived, Harbour, Script, attributes, call, rule


@dataclass
class Deps:
    """What the application gives its actions."""

    pilots: int = 3


class Berth(BaseModel):
    berth: int


@dataclass
class Plan:
    ship: str
    day: date


@pytest.fixture
async def harbour() -> Harbour:
    harbour = Harbour()
    await harbour.publish(Arrived(ship="Argo"))
    return harbour


async def wait() -> str:
    return "waited"


def agent_of(script: Script, **options: Any) -> Agent[Reaction[Deps], Any]:
    return Agent(script.model, deps_type=Reaction[Deps], **options)


async def run_of(harbour: Harbour, script: Script, *rules: Rule, **options: Any) -> Run:
    """What becomes of the run when an agent with this script carries it out."""
    given = {name: options.pop(name) for name in ("prompt", "params", "usage_limits") if name in options}
    return await harbour.act(AgentAction(agent_of(script, **options), name="pilot", **given), *rules, deps=Deps())


# --- What it is asked, and what it answers


async def test_an_agent_is_asked_about_the_firing_and_its_answer_is_the_runs_output(harbour: Harbour) -> None:
    script = Script("berth 4")
    told: list[str] = []

    def prompt(reaction: Reaction[Deps]) -> Prompt:
        told.append(firing_text(reaction))
        return told[-1]

    first = await run_of(harbour, script)
    await harbour.publish(Arrived(ship="Bounty"))
    await run_of(harbour, again := Script("berth 5"), prompt=prompt)

    assert (first.status, first.output) == ("succeeded", "berth 4")
    assert "<rule>" in script.prompt
    assert "Argo" in script.prompt
    assert again.prompt == told[0]


async def test_a_prompt_may_be_awaited_and_be_more_than_a_text(harbour: Harbour) -> None:
    async def prompt(reaction: Reaction[Deps]) -> Prompt:
        return [f"head {await reaction.workspace.head_seq() > 0}", "and more"]

    script = Script("yes")

    assert (await run_of(harbour, script, prompt=prompt)).output == "yes"
    assert script.parts(0)[0].content == ["head True", "and more"]


@pytest.mark.parametrize(
    ("output_type", "arguments", "recorded"),
    [
        (Berth, {"berth": 4}, {"berth": 4}),
        (Plan, {"ship": "Argo", "day": "2026-02-01"}, {"ship": "Argo", "day": "2026-02-01"}),
        (list[Berth], {"response": [{"berth": 1}, {"berth": 2}]}, [{"berth": 1}, {"berth": 2}]),
        (int, {"response": 7}, 7),
    ],
)
async def test_an_answer_of_any_type_is_recorded_as_its_json(
    harbour: Harbour, output_type: Any, arguments: dict[str, Any], recorded: Any
) -> None:
    run = await run_of(harbour, Script(call("final_result", **arguments)), output_type=output_type)

    assert (run.status, run.output) == ("succeeded", recorded)


async def test_an_answer_that_has_no_json_fails_the_attempt(harbour: Harbour) -> None:
    agent = agent_of(Script("odd"))

    @agent.output_validator
    def odd(_: str) -> Any:
        return {"odd": object()}

    run = await harbour.act(AgentAction(agent, name="pilot"), deps=Deps())

    assert (run.status, run.reason) == ("retrying", "invalid_output")


async def test_tools_have_the_reaction_with_its_deps_and_its_params(harbour: Harbour) -> None:
    script = Script(call("pilots"), "done")
    agent = agent_of(script)

    @agent.tool
    async def pilots(ctx: RunContext[Reaction[Deps]]) -> int:
        return ctx.deps.deps.pilots + ctx.deps.params_as(Berth).berth

    action = AgentAction(agent, name="pilot", params=Berth)
    with_params = rule(then=run("pilot", berth=2))
    finished = await harbour.act(action, with_params, deps=Deps())

    assert (action.name, action.params) == ("pilot", Berth)
    assert script.told(0) == 5
    assert finished.output == "done"


async def test_an_action_of_an_agent_is_referred_to_by_its_name() -> None:
    assert run(AgentAction(agent_of(Script()), name="triage")).action == "triage"


async def test_an_agent_that_is_streamed_answers_the_same(harbour: Harbour) -> None:
    seen: list[AgentStreamEvent] = []

    async def handler(_: RunContext[Reaction[Deps]], events: AsyncIterable[AgentStreamEvent]) -> None:
        seen.extend([event async for event in events])

    run = await run_of(harbour, Script("berth 4 it is"), capabilities=[ProcessEventStream(handler)])

    assert run.output == "berth 4 it is"
    assert len(seen) > 2


# --- Conversations and spans


@pytest.mark.parametrize(("chain", "conversation"), [("e-1", "e-1"), ("new", "chain_7d5741882b9b1ab5")])
async def test_each_attempt_is_in_the_conversation_of_its_causal_chain(chain: str, conversation: str) -> None:
    harbour = Harbour()
    await (await harbour.open()).publish(Arrived(ship="Argo"), id=chain)
    script = Script(OSError("down"), "done")
    action = AgentAction(agent_of(script), name="pilot")

    await harbour.act(action, deps=Deps())
    run = await harbour.act_again(action, deps=Deps())

    assert (run.status, run.attempt) == ("succeeded", 2)
    conversations = {message.conversation_id for asked in script.asked for message in asked}
    assert conversations == {conversation}


async def test_the_agents_span_says_whose_run_it_is(harbour: Harbour) -> None:
    settings = InstrumentationSettings(tracer_provider=harbour.tracer_provider)

    run = await run_of(
        harbour, Script("done"), name="pilot", capabilities=[Instrumentation(settings=settings), EventContext()]
    )

    [span] = harbour.spans("invoke_agent pilot")
    assert {name: value for name, value in attributes(span).items() if name.startswith(("reflexr", "session"))} == {
        "reflexr.tenant.id": "acme",
        "reflexr.workspace.id": "north",
        "reflexr.rule": "harbour:a",
        "reflexr.run.id": run.id,
        "reflexr.run.attempt": 1,
        "session.id": run.correlation_id,
    }
    assert attributes(span)["gen_ai.conversation.id"] == run.correlation_id
    assert span.context is not None
    assert run.trace_ids == (f"{span.context.trace_id:032x}",)


# --- Failures


async def test_an_attempt_that_uses_more_than_its_limits_fails_for_good(harbour: Harbour) -> None:
    script = Script(call("wait"), "done")
    agent = agent_of(script, tools=[wait])
    action = AgentAction(agent, name="pilot", usage_limits=UsageLimits(request_limit=1))

    run = await harbour.act(action, deps=Deps())

    assert (run.status, run.reason, run.attempt) == ("dead_lettered", "usage_limit_exceeded", 1)
    assert "request_limit of 1" in (run.error or "")
    assert len(script.asked) == 1


async def test_limits_are_counted_for_each_attempt_anew(harbour: Harbour) -> None:
    script = Script(call("wait"), OSError("down"), call("wait"), "done")
    agent = agent_of(script, tools=[wait])
    action = AgentAction(agent, name="pilot", usage_limits=UsageLimits(request_limit=2))

    await harbour.act(action, deps=Deps())

    assert (await harbour.act_again(action, deps=Deps())).status == "succeeded"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ContentFilterError("Content filter triggered.", body='{"why": "it"}'), "content_filtered"),
        (ModelResponse([TextPart("I ca")], finish_reason="content_filter"), "content_filtered"),
        (ModelResponse([], finish_reason="content_filter"), "content_filtered"),
        (ModelContextWindowExceededError("m", "the prompt is too long"), "context_window_exceeded"),
    ],
)
async def test_what_the_model_refuses_for_good_is_not_tried_again(harbour: Harbour, answer: Any, reason: str) -> None:
    run = await run_of(harbour, Script(answer))

    assert (run.status, run.reason, run.attempt) == ("dead_lettered", reason, 1)


@pytest.mark.parametrize("error", [ModelHTTPError(503, "m", None), OSError("down")])
async def test_what_may_pass_is_tried_again(harbour: Harbour, error: Exception) -> None:
    run = await run_of(harbour, Script(error))

    assert (run.status, run.reason) == ("retrying", None)


async def test_a_failure_that_a_tool_raises_is_the_runs(harbour: Harbour) -> None:
    agent = agent_of(Script(call("look"), "done"))

    @agent.tool_plain
    async def look() -> None:
        raise RunFailure("no such ship", reason="no_such_ship", permanent=True)

    run = await harbour.act(AgentAction(agent, name="pilot"), deps=Deps())

    assert (run.status, run.reason, run.error) == ("dead_lettered", "no_such_ship", "no such ship")


async def test_an_agent_that_is_cancelled_stops(harbour: Harbour) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()
    agent = agent_of(Script(call("wait"), "done"))

    @agent.tool_plain
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    settling = asyncio.create_task(harbour.act(AgentAction(agent, name="pilot"), deps=Deps()))
    await begun.wait()
    (running,) = await harbour.runs()
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling

    assert ended.is_set()
    assert (await harbour.runs())[0].reason == "abandoned"
    assert running.status == "running"


async def test_two_runs_of_one_agent_at_once_keep_to_themselves() -> None:
    harbour = Harbour()
    await harbour.publish(Arrived(ship="Argo"), Arrived(ship="Bounty"))
    both = asyncio.Barrier(2)
    agent = agent_of(Script(call("meet"), call("meet"), "a", "b"))

    @agent.tool
    async def meet(ctx: RunContext[Reaction[Deps]]) -> str:
        await both.wait()
        return str(ctx.deps.scope["ship"])

    await harbour.act(AgentAction(agent, name="pilot"), deps=Deps())

    assert [run.status for run in await harbour.runs()] == ["succeeded", "succeeded"]


async def test_a_rule_may_watch_what_an_agent_came_to(harbour: Harbour) -> None:
    watching = Rule(name="harbour:after", when=on("reflexr:run_succeeded").where(rule="harbour:a"), then=run("pilot"))

    await run_of(harbour, Script("one", "two"), rule(), watching)

    assert [run.output for run in await harbour.runs()] == ["one", "two"]
