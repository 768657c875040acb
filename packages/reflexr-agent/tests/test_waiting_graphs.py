"""Graphs whose steps ask for something, and wait."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.trace import StatusCode
from pydantic import BaseModel, JsonValue
from pydantic_graph import (
    GraphBuilder,
    ReduceFirstValue,
    StepContext,
    reduce_list_append,
)

from reflexr.agent import GraphAction, StepReaction
from reflexr.core import Answer, RetryPolicy, Run, UserActor
from reflexr.workspace import Reaction

from .askers import Askers, Ctx, answer, answer_each, asked, chained, forked, gathered, keys
from .harbour import SECOND, Arrived, Harbour, Moored, rule
from .routes import Builder, Route
from .test_graph_resuming import ROUTES
from .test_graphs import Rope, Storm, events_of, harbour
from .voyage import RESULT, STEPS, Log, in_order

__all__ = ["harbour"]

HOUR = timedelta(hours=1)
BOB = UserActor(id="bob")


class Confirm(BaseModel):
    """What a step asks."""

    ship: str
    berth: int = 1


# --- Asking, and being answered


async def test_a_step_that_asks_pauses_the_run_and_goes_on_with_the_answer(harbour: Harbour) -> None:
    did: Counter[str] = Counter()
    told: list[Answer] = []

    async def plan(ctx: Ctx[None]) -> str:
        did["plan"] += 1
        return "Argo"

    async def confirm(ctx: Ctx[str]) -> str:
        did["confirm"] += 1
        told.append(await ctx.deps.ask(Confirm(ship=ctx.inputs)))
        return f"{ctx.inputs} {told[-1].value}"

    async def moor(ctx: Ctx[str]) -> str:
        did["moor"] += 1
        return ctx.inputs

    action = GraphAction(chained(plan, confirm, moor, output_type=str), name="moor")
    paused = await harbour.act(action)
    await answer(harbour, "granted", actor=BOB)
    run = await harbour.act(GraphAction(chained(plan, confirm, moor, output_type=str), name="moor"))

    assert (paused.status, paused.step, paused.spent) == ("paused", "plan", 1)
    assert paused.waiting is not None
    assert paused.waiting.request == {
        "questions": [
            {"key": asked(paused).questions[0].key, "step": "confirm", "request": {"ship": "Argo", "berth": 1}}
        ],
        "problem": None,
    }
    assert asked(paused).questions[0].key.startswith("confirm:")
    assert (run.status, run.output, run.attempt) == ("succeeded", "Argo granted", 2)
    assert did == {"plan": 1, "confirm": 2, "moor": 1}
    assert [(each.value, each.actor, each.at) for each in told] == [("granted", BOB, harbour.clock())]


async def test_a_graph_whose_first_step_asks_begins_again_with_the_answer(harbour: Harbour) -> None:
    made: list[Log] = []

    def log() -> Log:
        made.append(Log())
        return made[-1]

    async def ask(ctx: StepContext[Log, StepReaction[Any], str]) -> str:
        ctx.state.entries.append("asked")
        told = await ctx.deps.ask(None)
        return f"{ctx.inputs} {told.value} {ctx.state.entries}"

    graph: Any = chained(ask, state_type=Log, input_type=str, output_type=str)
    action = GraphAction(graph, name="first", state=log, inputs=lambda _: "Argo")
    paused = await harbour.act(action)
    await answer(harbour, value=None)

    assert (paused.status, paused.step) == ("paused", "ask")
    # What the step had written to the state before it asked is forgotten, as it writes it again.
    assert (await harbour.act(action)).output == "Argo None ['asked']"
    assert len(made) == 2


async def test_what_a_lone_step_wrote_to_the_state_before_it_asked_is_forgotten(harbour: Harbour) -> None:
    async def begin(ctx: StepContext[Log, StepReaction[Any], None]) -> None:
        ctx.state.entries.append("begun")

    async def ask(ctx: StepContext[Log, StepReaction[Any], None]) -> list[str]:
        ctx.state.entries.append("asked")
        await ctx.deps.ask(None)
        return ctx.state.entries

    graph: Any = chained(begin, ask, state_type=Log, output_type=list[str])
    action = GraphAction(graph, name="state", state=Log)
    await harbour.act(action)
    await answer(harbour, value=None)

    assert (await harbour.act(action)).output == ["begun", "asked"]


async def test_a_step_that_asks_twice_is_told_both_answers_in_order(harbour: Harbour) -> None:
    told: list[list[Any]] = []

    async def ask(ctx: Ctx[None]) -> list[Any]:
        told.append([])
        for number in range(3):
            told[-1].append((await ctx.deps.ask({"number": number})).value)
        return told[-1]

    action = GraphAction(chained(ask, output_type=list[Any]), name="twice")
    runs = [await harbour.act(action)]
    values: list[JsonValue] = ["a", {"b": 1}, ["c"]]
    for value in values:
        await answer(harbour, value)
        runs.append(await harbour.act(action))

    assert [asked(run).questions[0].request for run in runs[:3]] == [{"number": number} for number in range(3)]
    assert len({asked(run).questions[0].key for run in runs[:3]}) == 3
    assert runs[3].output == ["a", {"b": 1}, ["c"]]
    assert told == [[], ["a"], ["a", {"b": 1}], ["a", {"b": 1}, ["c"]]]


async def test_an_answer_is_to_what_was_asked_and_to_nothing_else(harbour: Harbour) -> None:
    plans: list[JsonValue] = [{"restart": True}, {"restart": 1}, {"restart": 1}]

    async def ask(ctx: Ctx[None]) -> list[Any]:
        plan = plans.pop(0)
        return [plan, (await ctx.deps.ask(plan)).value]

    action = GraphAction(chained(ask, output_type=list[Any]), name="plans")
    await harbour.act(action)
    await answer(harbour, "yes, restart")
    again = await harbour.act(action)
    await answer(harbour, "no")

    assert asked(again).questions[0].request == {"restart": 1}
    assert (await harbour.act(action)).output == [{"restart": 1}, "no"]


async def test_a_step_with_nothing_beside_it_is_answered_whatever_its_inputs_are(harbour: Harbour) -> None:
    class Handle:
        """Has an address, and no JSON."""

    did: Counter[str] = Counter()

    async def open_handle(ctx: Ctx[None]) -> Any:
        did["opened"] += 1
        return Handle()

    async def ask(ctx: Ctx[Any]) -> Any:
        return [type(ctx.inputs).__name__, (await ctx.deps.ask("use it?")).value]

    action = GraphAction(chained(open_handle, ask, output_type=Any), name="handles")
    await harbour.act(action)
    await answer(harbour, "yes")

    assert (await harbour.act(action)).output == ["Handle", "yes"]
    assert did["opened"] == 2


async def test_a_step_asks_again_for_an_answer_that_does_not_suit_it(harbour: Harbour) -> None:
    async def ask(ctx: Ctx[None]) -> Any:
        told = await ctx.deps.ask({"berth": "which?"})
        while not isinstance(told.value, int):
            told = await ctx.deps.ask({"berth": "which?", "not": told.value})
        return told.value

    action = GraphAction(chained(ask, output_type=Any), name="again")
    await harbour.act(action)
    await answer(harbour, "any")
    again = await harbour.act(action)
    await answer(harbour, 4)

    assert asked(again).questions[0].request == {"berth": "which?", "not": "any"}
    assert (await harbour.act(action)).output == 4


async def test_steps_find_the_runs_answer_throughout_the_attempt(harbour: Harbour) -> None:
    found: list[Any] = []

    async def ask(ctx: Ctx[None]) -> None:
        await ctx.deps.ask(None)

    async def after(ctx: Ctx[None]) -> None:
        found.append(ctx.deps.answer)

    async def last(ctx: Ctx[None]) -> None:
        found.append(ctx.deps.answer)

    action = GraphAction(chained(ask, after, last), name="answer")
    await harbour.act(action)
    await answer(harbour, "yes", actor=BOB)
    await harbour.act(action)

    assert [(each.value, each.actor) for each in found] == [("yes", BOB)] * 2


async def test_what_a_step_emits_before_it_asks_is_published_once(harbour: Harbour) -> None:
    async def ask(ctx: Ctx[None]) -> None:
        await ctx.deps.emit(Moored(ship="before"))
        await ctx.deps.ask(None)
        await ctx.deps.emit(Moored(ship="after"))

    action = GraphAction(chained(ask), name="emit")
    await harbour.act(action)
    await answer(harbour, value=None)
    await harbour.act(action)

    assert [moored["ship"] for moored in await harbour.log(Moored)] == ["before", "after"]


async def test_a_step_that_asks_has_not_failed(harbour: Harbour) -> None:
    async def ask(ctx: Ctx[None]) -> None:
        await ctx.deps.ask(None)

    graph = chained(ask)
    await harbour.act(GraphAction(graph, name="span", tracer_provider=harbour.tracer_provider))

    (span,) = harbour.spans("execute_step ask")
    assert span.status.status_code is StatusCode.UNSET
    assert not span.events


# --- Several branches


async def test_branches_beside_one_that_asks_go_on_to_their_ends_and_are_not_repeated(harbour: Harbour) -> None:
    crew = Askers("fish")

    paused = await harbour.act(crew.action())
    did = dict(crew.did)
    await answer(harbour, "yes")
    run = await harbour.act(crew.action())

    assert (paused.status, list(keys(paused))) == ("paused", ["fish"])
    assert did == dict.fromkeys(("plan", "load", "sail", "fish", "chart", "cook", "watch"), 1)
    assert (run.status, run.output) == ("succeeded", RESULT)
    assert crew.did == {step: 2 if step == "fish" else 1 for step in STEPS}
    assert crew.told == {"fish": "yes"}
    checkpoint: Any = run.checkpoint
    assert in_order(checkpoint["state"]["entries"])
    assert (checkpoint["given"], checkpoint["asked"]) == ({}, [])


async def test_branches_ask_at_once_and_one_answer_may_answer_some_of_them(harbour: Harbour) -> None:
    crew = Askers("fish", "cook", "watch")

    first = await harbour.act(crew.action())
    await answer_each(harbour, cook="fish soup", watch=1)
    second = await harbour.act(crew.action())
    await answer_each(harbour, fish=None)
    run = await harbour.act(crew.action())

    assert sorted(keys(first)) == ["cook", "fish", "watch"]
    assert keys(second) == {"fish": keys(first)["fish"]}
    assert (run.output, crew.told) == (RESULT, {"cook": "fish soup", "watch": 1, "fish": None})
    assert crew.did == dict.fromkeys(STEPS, 1) | {"fish": 3, "cook": 2, "watch": 2}


async def test_what_runs_longer_than_a_question_takes_to_be_asked_is_waited_for(harbour: Harbour) -> None:
    asking, released = asyncio.Event(), asyncio.Event()

    async def ask(ctx: Ctx[None]) -> Any:
        asking.set()
        return (await ctx.deps.ask(None)).value

    async def work(ctx: Ctx[None]) -> str:
        await released.wait()
        return "worked"

    action = GraphAction(forked(ask, work, output_type=list[Any]), name="longer")
    acting = asyncio.create_task(harbour.act(action))
    await asking.wait()
    for _ in range(1000):
        await asyncio.sleep(0)
    (running,) = await harbour.runs()
    released.set()
    paused = await acting
    await answer(harbour, "told")
    run = await harbour.act(action)

    assert (running.status, paused.status) == ("running", "paused")
    # What had ended first comes first to the join.
    assert run.output == ["worked", "told"]


async def test_a_branch_that_goes_on_after_its_answer_may_ask_again_beside_one_that_still_waits(
    harbour: Harbour,
) -> None:
    did: Counter[str] = Counter()

    async def ask(ctx: Ctx[str]) -> str:
        did[f"ask {ctx.inputs}"] += 1
        told = await ctx.deps.ask({"first": ctx.inputs})
        return f"{ctx.inputs}:{told.value}"

    async def again(ctx: Ctx[str]) -> str:
        did[f"again {ctx.inputs}"] += 1
        told = await ctx.deps.ask({"then": ctx.inputs})
        return f"{ctx.inputs}:{told.value}"

    graph: Any = GraphBuilder(deps_type=StepReaction[Any], input_type=list[str], output_type=list[str])
    first, second = graph.step(ask), graph.step(again)
    join = graph.join(reduce_list_append, initial_factory=list[str])
    graph.add(
        graph.edge_from(graph.start_node).map().to(first),
        graph.edge_from(first).to(second),
        graph.edge_from(second).to(join),
        graph.edge_from(join).to(graph.end_node),
    )
    action = GraphAction(graph.build(), name="map", inputs=lambda _: ["a", "b"])
    paused = await harbour.act(action)
    one, other = asked(paused).questions
    await answer(harbour, {"answers": {one.key: 1}})
    mixed = await harbour.act(action)
    by_request = {str(question.request): question.key for question in asked(mixed).questions}
    await answer(harbour, {"answers": {by_request["{'then': 'a:1'}"]: 2, other.key: 3}})
    last = await harbour.act(action)
    await answer(harbour, 4)
    run = await harbour.act(action)

    assert set(by_request) == {"{'then': 'a:1'}", "{'first': 'b'}"}
    assert [question.request for question in asked(last).questions] == [{"then": "b:3"}]
    assert gathered(run) == ["a:1:2", "b:3:4"]
    assert did == {"ask a": 2, "ask b": 3, "again a:1": 2, "again b:3": 2}


async def test_hundreds_of_branches_ask_at_once(harbour: Harbour) -> None:
    did: Counter[int] = Counter()

    async def ask(ctx: Ctx[int]) -> int:
        did[ctx.inputs] += 1
        told = (await ctx.deps.ask(ctx.inputs)).value
        assert isinstance(told, int)
        return told

    graph: Any = GraphBuilder(deps_type=StepReaction[Any], input_type=list[int], output_type=list[int])
    asking = graph.step(ask)
    join = graph.join(reduce_list_append, initial_factory=list[int])
    graph.add(
        graph.edge_from(graph.start_node).map().to(asking),
        graph.edge_from(asking).to(join),
        graph.edge_from(join).to(graph.end_node),
    )
    action = GraphAction(graph.build(), name="many", inputs=lambda _: list(range(400)))
    run = await harbour.act(action)
    while run.status == "paused":
        questions = asked(run).questions[:200]
        await answer(harbour, {"answers": {question.key: question.request for question in questions}})
        run = await harbour.act(action)

    assert (run.status, run.attempt) == ("succeeded", 3)
    assert gathered(run) == list(range(400))
    assert Counter(did.values()) == {2: 200, 3: 200}


async def test_branches_that_are_alike_are_each_answered(harbour: Harbour) -> None:
    graph: Any = GraphBuilder(deps_type=StepReaction[Any], input_type=list[str], output_type=list[Any])

    @graph.step
    async def ask(ctx: Ctx[str]) -> Any:
        return (await ctx.deps.ask(ctx.inputs)).value

    join = graph.join(reduce_list_append, initial_factory=list[Any])
    graph.add(
        graph.edge_from(graph.start_node).map().to(ask),
        graph.edge_from(ask).to(join),
        graph.edge_from(join).to(graph.end_node),
    )
    action = GraphAction(graph.build(), name="alike", inputs=lambda _: ["a", "a", "a"])
    paused = await harbour.act(action)
    questions = [question.key for question in asked(paused).questions]
    await answer(harbour, {"answers": {questions[1]: 1}})
    await harbour.act(action)
    await answer(harbour, {"answers": {questions[2]: 2, questions[0]: 0}})

    assert len(set(questions)) == 3
    assert gathered(await harbour.act(action)) == [0, 1, 2]


class Anyone:
    """Does what steps do; those of some numbers ask, counted over all that begin."""

    def __init__(self, *at: int) -> None:
        self.did: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.emitted: dict[int, str] = {}
        self._at = set(at)
        self._asking: set[str] = set()

    async def __call__(self, step: str, reaction: Reaction[Any]) -> None:
        self.did[step] += 1
        assert isinstance(reaction, StepReaction)
        publication = await reaction.emit(Moored(ship=step))
        self.emitted[publication.seq] = step
        if self.did.total() in self._at:
            self._asking.add(step)
        if step in self._asking:
            self.asked[step] += 1
            told = await reaction.ask({"may": step})
            self.asked[step] -= 1
            assert told.value == step
        # Branches overtake each other.
        for _ in range(len(step) % 3):
            await asyncio.sleep(0)


async def answered(route: Route, anyone: Anyone, some: int) -> Run:
    """Lets a graph run to its end, where so many questions are answered at a time."""
    sea = Harbour()
    await sea.publish(Arrived(ship="Argo"))
    action = GraphAction(Builder(anyone).build(["begin", route]), name="route", inputs=lambda _: "")
    run = await sea.act(action)
    while run.status == "paused":
        answers: dict[str, JsonValue] = {question.key: question.step for question in asked(run).questions[:some]}
        await answer(sea, {"answers": answers})
        run = await sea.act(action)
    return run


@given(ROUTES, st.sets(st.integers(1, 30), max_size=4), st.integers(1, 3))
@settings(max_examples=50)
async def test_whichever_steps_ask_no_step_is_repeated_but_those_that_asked(
    route: Route, at: set[int], some: int
) -> None:
    calm, anyone = Anyone(), Anyone(*at)

    expected, run = await answered(route, calm, some), await answered(route, anyone, some)

    assert (run.status, run.output) == ("succeeded", expected.output)
    assert anyone.did == calm.did + anyone.asked
    assert Counter(anyone.emitted.values()) == calm.did


# --- Attempts that fail, and answers that are remembered


async def test_an_attempt_that_fails_after_the_answer_is_told_it_again(harbour: Harbour) -> None:
    told: list[Any] = []

    async def begin(ctx: Ctx[None]) -> None: ...

    async def ask(ctx: Ctx[None]) -> None:
        told.append((await ctx.deps.ask(None)).value)
        if len(told) < 3:
            raise Storm

    action = GraphAction(chained(begin, ask), name="again")
    await harbour.act(action)
    await answer(harbour, "yes")
    run = await harbour.act(action)
    while run.status == "retrying":
        run = await harbour.act_again(action)

    assert (run.status, told) == ("succeeded", ["yes"] * 3)


async def test_an_answer_is_remembered_though_a_branch_beside_it_is_saved_before_its_step_has_ended(
    harbour: Harbour,
) -> None:
    told: list[Any] = []

    async def ask(ctx: Ctx[None]) -> None:
        told.append((await ctx.deps.ask(None)).value)
        if len(told) == 1:
            async for _ in ctx.deps.workspace.subscribe(types=["reflexr:run_progressed"]):
                break
            raise Storm

    async def work(ctx: Ctx[None]) -> None:
        if ctx.deps.attempt == 1:
            await ctx.deps.ask(None)

    action = GraphAction(forked(ask, work), name="beside")
    paused = await harbour.act(action)
    await answer(harbour, {"answers": {key: step for step, key in keys(paused).items()}})
    failed = await harbour.act(action)
    run = await harbour.act_again(action)

    assert (failed.status, failed.answer) == ("retrying", None)
    assert (run.status, told) == ("succeeded", ["ask", "ask"])


async def test_a_branch_that_fails_beside_one_that_asks_fails_the_attempt_and_nothing_is_asked(
    harbour: Harbour,
) -> None:
    asking = asyncio.Event()

    async def ask(ctx: Ctx[None]) -> Any:
        asking.set()
        return (await ctx.deps.ask(None)).value

    async def fail(ctx: Ctx[None]) -> str:
        await asking.wait()
        if ctx.deps.attempt == 1:
            raise Storm("gale")
        return "calm"

    action = GraphAction(forked(ask, fail, output_type=list[Any]), name="fails")
    failed = await harbour.act(action)
    paused = await harbour.act_again(action)
    await answer(harbour, 1)

    assert (failed.status, failed.error) == ("retrying", "Storm: gale")
    assert paused.status == "paused"
    assert (await harbour.act(action)).output == ["calm", 1]


async def test_a_graph_of_which_nothing_can_be_saved_remembers_all_answers(harbour: Harbour) -> None:
    did: Counter[str] = Counter()

    async def first(ctx: StepContext[Rope, StepReaction[Any], None]) -> Any:
        did["first"] += 1
        return (await ctx.deps.ask("first")).value

    async def second(ctx: StepContext[Rope, StepReaction[Any], Any]) -> list[Any]:
        did["second"] += 1
        return [ctx.inputs, (await ctx.deps.ask("second")).value, (await ctx.deps.ask("third")).value]

    graph: Any = chained(first, second, state_type=Rope, output_type=list[Any])
    action = GraphAction(graph, name="unsaved", state=Rope)
    runs = [await harbour.act(action)]
    for value in (1, 2, 3):
        await answer(harbour, value)
        runs.append(await harbour.act(action))

    assert [asked(run).questions[0].request for run in runs[:3]] == ["first", "second", "third"]
    assert runs[3].output == [1, 2, 3]
    assert did == {"first": 4, "second": 3}
    assert events_of(harbour, "reflexr.checkpoint.discarded") == []


async def test_a_branch_whose_output_does_not_last_is_repeated_and_told_its_answer_again(harbour: Harbour) -> None:
    did: Counter[str] = Counter()

    async def rope(ctx: Ctx[None]) -> Rope:
        did[f"rope {(await ctx.deps.ask('rope')).value}"] += 1
        return Rope()

    async def ask(ctx: Ctx[None]) -> Any:
        await ctx.deps.ask("one")
        return (await ctx.deps.ask("two")).value

    graph: Any = GraphBuilder(deps_type=StepReaction[Any], output_type=int)
    nodes = [graph.step(rope), graph.step(ask)]
    join = graph.join(reduce_list_append, initial_factory=list[Any])

    @graph.step
    async def count(ctx: Ctx[list[Any]]) -> int:
        return len(ctx.inputs)

    graph.add(
        graph.edge_from(graph.start_node).to(*nodes),
        graph.edge_from(*nodes).to(join),
        graph.edge_from(join).to(count),
        graph.edge_from(count).to(graph.end_node),
    )
    action = GraphAction(graph.build(), name="rope")
    paused = await harbour.act(action)
    await answer(harbour, {"answers": dict.fromkeys(keys(paused).values(), "told")})
    again = await harbour.act(action)
    await answer(harbour, "yes")
    run = await harbour.act(action)

    assert list(keys(again)) == ["ask"]
    assert (run.output, did) == (2, {"rope told": 2})


# --- Branches that are given up


async def test_what_a_branch_asks_that_a_join_does_not_wait_for_is_not_asked(harbour: Harbour) -> None:
    graph: Any = GraphBuilder(deps_type=StepReaction[Any], output_type=str)
    asking = asyncio.Event()

    @graph.step
    async def ask(ctx: Ctx[None]) -> str:
        asking.set()
        return str((await ctx.deps.ask("given up")).value)

    @graph.step
    async def fast(ctx: Ctx[None]) -> str:
        await asking.wait()
        return "fast"

    @graph.step
    async def after(ctx: Ctx[str]) -> str:
        return f"{ctx.inputs} {(await ctx.deps.ask('after')).value}"

    join = graph.join(ReduceFirstValue[str](), initial="none")
    graph.add(
        graph.edge_from(graph.start_node).to(ask, fast),
        graph.edge_from(ask, fast).to(join),
        graph.edge_from(join).to(after),
        graph.edge_from(after).to(graph.end_node),
    )
    action = GraphAction(graph.build(), name="first")
    paused = await harbour.act(action)
    await answer(harbour, "one")

    assert list(keys(paused)) == ["after"]
    assert (await harbour.act(action)).output == "fast one"


async def test_a_graph_that_ends_while_a_branch_asks_has_ended(harbour: Harbour) -> None:
    graph: Any = GraphBuilder(deps_type=StepReaction[Any], output_type=str)
    asking = asyncio.Event()

    @graph.step
    async def ask(ctx: Ctx[None]) -> str:
        asking.set()
        return str((await ctx.deps.ask("too late")).value)

    @graph.step
    async def fast(ctx: Ctx[None]) -> str:
        await asking.wait()
        return "fast"

    graph.add(
        graph.edge_from(graph.start_node).to(ask, fast),
        graph.edge_from(ask, fast).to(graph.end_node),
    )

    run = await harbour.act(GraphAction(graph.build(), name="ends"))

    assert (run.status, run.output) == ("succeeded", "fast")


@pytest.mark.parametrize("turns", range(0, 400, 20))
async def test_a_reactor_that_is_stopped_at_any_moment_leaves_a_graph_that_asks(harbour: Harbour, turns: int) -> None:
    crew = Askers("fish", "cook")
    acting = asyncio.create_task(harbour.act(crew.action(), rule(retry=RetryPolicy(max_attempts=9, backoff=SECOND))))
    for _ in range(turns):
        await asyncio.sleep(0)
    acting.cancel()
    await asyncio.wait([acting])

    await harbour.act(crew.action())
    paused = await harbour.act_again(crew.action())
    await answer_each(harbour, fish=1, cook=2)
    run = await harbour.act(crew.action())

    assert sorted(keys(paused)) == ["cook", "fish"]
    assert (run.status, run.output, crew.told) == ("succeeded", RESULT, {"fish": 1, "cook": 2})
    assert max(crew.did.values()) <= 3
