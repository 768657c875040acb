"""How steps ask, which answers fit, and what becomes of a run that nobody answers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, override

import pytest
from pydantic import JsonValue
from pydantic_ai import Agent, RunContext
from pydantic_graph import (
    BaseNode,
    End,
    GraphBuilder,
    GraphRunContext,
    reduce_list_append,
)

from reflexr.agent import GraphAction, StepReaction
from reflexr.core import NotJsonError, UserActor
from reflexr.workspace import WorkspaceError

from .askers import Askers, Ctx, answer, answer_each, asked, chained, forked, gathered, keys
from .harbour import Harbour, Script, call
from .test_graphs import Storm, harbour

__all__ = ["harbour"]

HOUR = timedelta(hours=1)
BOB = UserActor(id="bob")


# --- Answers that do not fit


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (True, 'answer with {"answers": {…}}, by the key of each question: '),
        (None, 'answer with {"answers": {…}}, by the key of each question: '),
        ({"fish": 1}, 'answer with {"answers": {…}}, by the key of each question: '),
        ({"answers": 1}, 'answer with {"answers": {…}}, by the key of each question: '),
        ({"answers": {"fish": 1}, "more": 1}, 'answer with {"answers": {…}}, by the key of each question: '),
        ({"answers": {"fish": 1, "cook": 2}}, "there are no such questions: 'cook', 'fish'; asked are 'cook:"),
        ({"answers": {}}, "nothing is answered; asked are 'cook:"),
    ],
)
async def test_an_answer_that_does_not_fit_is_asked_for_again_and_no_step_runs(
    harbour: Harbour, value: JsonValue, problem: str
) -> None:
    crew = Askers("fish", "cook")
    first = await harbour.act(crew.action())
    did = dict(crew.did)

    await answer(harbour, value)
    again = await harbour.act(crew.action())
    assert dict(crew.did) == did
    await answer_each(harbour, fish=1, cook=2)
    run = await harbour.act(crew.action())

    assert (again.status, again.checkpoint) == ("paused", first.checkpoint)
    assert (asked(again).problem or "").startswith(problem)
    assert asked(again).questions == asked(first).questions
    assert (run.status, crew.told) == ("succeeded", {"fish": 1, "cook": 2})


async def test_an_answer_by_a_key_that_is_no_more_asked_is_no_answer_to_the_question_that_is(harbour: Harbour) -> None:
    crew = Askers("fish", "cook")
    first = await harbour.act(crew.action())
    await answer_each(harbour, fish=1)
    await harbour.act(crew.action())

    await answer(harbour, {"answers": {keys(first)["fish"]: 2}})
    again = await harbour.act(crew.action())

    assert (again.status, list(keys(again))) == ("paused", ["cook"])
    assert crew.told == {"fish": 1}


@pytest.mark.parametrize("value", [{"answers": 1}, {"answers": {}, "more": 1}, {"answer": {}}])
async def test_any_other_answer_is_that_to_the_only_question(harbour: Harbour, value: JsonValue) -> None:
    async def ask(ctx: Ctx[None]) -> Any:
        return (await ctx.deps.ask(None)).value

    action = GraphAction(chained(ask, output_type=Any), name="any")
    await harbour.act(action)
    await answer(harbour, value)

    assert (await harbour.act(action)).output == value


def nested(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


async def test_what_nests_too_deep_to_be_saved_is_neither_asked_nor_an_answer(harbour: Harbour) -> None:
    refused: list[str] = []

    async def ask(ctx: Ctx[None]) -> str:
        with pytest.raises(NotJsonError) as error:
            await ctx.deps.ask(nested(96))
        refused.append(str(error.value))
        told = await ctx.deps.ask(nested(95))
        await ctx.deps.ask("again")
        return str(told.value)

    action = GraphAction(chained(ask, output_type=str), name="deep")
    await harbour.act(action)
    await answer(harbour, nested(96))
    again = await harbour.act(action)
    await answer(harbour, nested(95))
    fits = await harbour.act(action)
    await answer(harbour, value=None)

    assert "what step 'ask' asks" in refused[0]
    assert "nests deeper" in (asked(again).problem or "")
    assert asked(fits).questions[0].request == "again"
    assert (await harbour.act(action)).output == str(nested(95))


async def test_what_cannot_be_asked_is_the_steps_to_handle(harbour: Harbour) -> None:
    async def ask(ctx: Ctx[None]) -> str:
        odd: Any = object()
        with pytest.raises(NotJsonError):
            await ctx.deps.ask(odd)
        with pytest.raises(WorkspaceError, match="not more than 0"):
            await ctx.deps.ask("berth?", answer_timeout=timedelta())
        return "handled"

    assert (await harbour.act(GraphAction(chained(ask, output_type=str), name="odd"))).output == "handled"


# --- Nobody answers


async def test_of_several_questions_the_first_whose_time_is_over_fails_the_run(harbour: Harbour) -> None:
    async def patient(ctx: Ctx[None]) -> Any:
        return (await ctx.deps.ask("patient", answer_timeout=3 * HOUR)).value

    async def hasty(ctx: Ctx[None]) -> Any:
        return (await ctx.deps.ask("hasty", answer_timeout=HOUR)).value

    async def idle(ctx: Ctx[None]) -> Any:
        return (await ctx.deps.ask("idle")).value

    action = GraphAction(forked(patient, hasty, idle, output_type=list[Any]), name="timeout")
    first = await harbour.act(action)
    await answer_each(harbour, hasty=1)
    second = await harbour.act(action)
    await answer(harbour, "wrong")
    third = await harbour.act(action)
    harbour.clock.advance(3 * HOUR)
    expired = await harbour.act(action)
    await (await harbour.open()).retry_run(expired.id)
    again = await harbour.act(action)
    await answer_each(harbour, patient=2, idle=3)
    run = await harbour.act(action)

    untils = [each.waiting and each.waiting.until for each in (first, second, third)]
    start = harbour.clock() - 3 * HOUR
    assert untils == [start + HOUR, start + 3 * HOUR, start + 3 * HOUR]
    assert (expired.status, expired.reason) == ("dead_lettered", "unanswered")
    assert keys(again) == keys(second)
    assert gathered(run) == [1, 2, 3]


async def test_without_a_time_a_run_waits_for_any(harbour: Harbour) -> None:
    async def ask(ctx: Ctx[None]) -> None:
        await ctx.deps.ask(None)

    action = GraphAction(chained(ask), name="any")
    await harbour.act(action)
    harbour.clock.advance(timedelta(days=1000))

    assert (await harbour.act(action)).status == "paused"


# --- How steps ask


async def test_tasks_of_one_step_ask_at_once(harbour: Harbour) -> None:
    async def ask(ctx: Ctx[None]) -> list[Any]:
        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(ctx.deps.ask(number)) for number in range(2)]
        more = await asyncio.gather(ctx.deps.ask(2), ctx.deps.ask(3))
        return [answer.value for answer in (*(task.result() for task in asking), *more)]

    action = GraphAction(chained(ask, output_type=list[Any]), name="tasks")
    run = await harbour.act(action)
    requests: list[list[JsonValue]] = []
    while run.status == "paused":
        requests.append([question.request for question in asked(run).questions])
        await answer(harbour, {"answers": {question.key: question.request for question in asked(run).questions}})
        run = await harbour.act(action)

    assert (run.output, requests) == ([0, 1, 2, 3], [[0, 1], [2, 3]])


async def test_a_task_that_fails_beside_one_that_asks_fails_the_step(harbour: Harbour) -> None:
    async def fail() -> None:
        raise Storm

    async def ask(ctx: Ctx[None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.deps.ask(1))
            tasks.create_task(fail())

    run = await harbour.act(GraphAction(chained(ask), name="tasks"))

    assert (run.status, "Group" in (run.error or "")) == ("retrying", True)


async def test_a_step_that_handles_exceptions_asks_all_the_same(harbour: Harbour) -> None:
    async def ask(ctx: Ctx[None]) -> Any:
        try:
            return (await ctx.deps.ask(None)).value
        except Exception:
            raise AssertionError from None

    action = GraphAction(chained(ask, output_type=Any), name="handles")
    paused = await harbour.act(action)
    await answer(harbour, 1)

    assert (paused.status, (await harbour.act(action)).output) == ("paused", 1)


async def test_a_step_that_goes_on_without_the_answer_has_ended(harbour: Harbour) -> None:
    async def ask(ctx: Ctx[None]) -> str:
        try:
            return str((await ctx.deps.ask(None)).value)
        except BaseException:
            return "without"

    async def also(ctx: Ctx[str]) -> Any:
        return [ctx.inputs, (await ctx.deps.ask("also")).value]

    action = GraphAction(chained(ask, also, output_type=list[Any]), name="without")
    paused = await harbour.act(action)
    await answer(harbour, 1)

    assert list(keys(paused)) == ["also"]
    assert (await harbour.act(action)).output == ["without", 1]


async def test_a_stream_asks_between_its_items(harbour: Harbour) -> None:
    graph: Any = GraphBuilder(deps_type=StepReaction[Any], output_type=list[int])
    did: Counter[int] = Counter()

    @graph.stream
    async def numbers(ctx: Ctx[None]) -> AsyncIterator[int]:
        yield 1
        told = await ctx.deps.ask("more?")
        yield int(str(told.value))

    @graph.step
    async def double(ctx: Ctx[int]) -> int:
        did[ctx.inputs] += 1
        return 2 * ctx.inputs

    join = graph.join(reduce_list_append, initial_factory=list[int])
    graph.add(
        graph.edge_from(graph.start_node).to(numbers),
        graph.edge_from(numbers).map().to(double),
        graph.edge_from(double).to(join),
        graph.edge_from(join).to(graph.end_node),
    )
    action = GraphAction(graph.build(), name="stream")
    paused = await harbour.act(action)
    await answer(harbour, 7)
    run = await harbour.act(action)

    assert (paused.status, list(keys(paused))) == ("paused", ["numbers"])
    assert (run.output, did) == ([2, 14], {1: 2, 7: 1})


async def test_a_stream_that_fails_after_it_was_answered_fails_the_attempt(harbour: Harbour) -> None:
    graph: Any = GraphBuilder(deps_type=StepReaction[Any], output_type=list[int])

    @graph.stream
    async def numbers(ctx: Ctx[None]) -> AsyncIterator[int]:
        await ctx.deps.ask("more?")
        yield 1
        if ctx.deps.attempt == 2:
            raise Storm("gale")

    join = graph.join(reduce_list_append, initial_factory=list[int])
    graph.add(
        graph.edge_from(graph.start_node).to(numbers),
        graph.edge_from(numbers).map().to(join),
        graph.edge_from(join).to(graph.end_node),
    )
    action = GraphAction(graph.build(), name="stream")
    await harbour.act(action)
    await answer(harbour, 7)
    failed = await harbour.act(action)

    assert (failed.status, failed.error) == ("retrying", "Storm: gale")
    assert (await harbour.act_again(action)).output == [1]


@dataclass
class AskNode(BaseNode[None, StepReaction[Any], str]):
    """A step that is a class."""

    ship: str

    @override
    async def run(self, ctx: GraphRunContext[None, StepReaction[Any]]) -> End[str]:
        return End(f"{self.ship} {(await ctx.deps.ask(self.ship)).value}")


async def test_a_step_that_is_a_class_asks(harbour: Harbour) -> None:
    graph: Any = GraphBuilder(deps_type=StepReaction[Any], input_type=str, output_type=str)

    @graph.step
    async def begin(ctx: Ctx[str]) -> AskNode:
        return AskNode(ctx.inputs)

    graph.add(graph.node(AskNode), graph.edge_from(graph.start_node).to(begin))
    action = GraphAction(graph.build(), name="node", inputs=lambda _: "Argo")
    paused = await harbour.act(action)
    await answer(harbour, "moored")

    assert list(keys(paused)) == ["AskNode"]
    assert (await harbour.act(action)).output == "Argo moored"


async def test_a_tool_of_an_agent_within_a_step_asks(harbour: Harbour) -> None:
    script = Script(call("confirm"), call("confirm"), "done")
    agent = Agent(script.model, deps_type=StepReaction[Any])
    told: list[Any] = []

    @agent.tool
    async def confirm(ctx: RunContext[StepReaction[Any]]) -> None:
        told.append((await ctx.deps.ask("may I?")).value)

    async def pilot(ctx: Ctx[None]) -> str:
        return (await agent.run("go", deps=ctx.deps)).output

    action = GraphAction(chained(pilot, output_type=str), name="agent")
    paused = await harbour.act(action)
    await answer(harbour, "yes")
    run = await harbour.act(action)

    assert (paused.status, keys(paused).keys()) == ("paused", {"pilot"})
    # The step ran again from its beginning, and with it the agent.
    assert (run.output, told, len(script.asked)) == ("done", ["yes"], 3)
