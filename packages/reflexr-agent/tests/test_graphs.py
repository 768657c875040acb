import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Any, override

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ToolCallPart, UsageLimits
from pydantic_graph import BaseNode, End, Graph, GraphBuilder, GraphRunContext, StepContext

from reflexr.agent import GraphAction
from reflexr.core import InvalidState, Run, run
from reflexr.workspace import Reaction, RunFailure

from .harbour import ADA, Arrived, Harbour, Moored, Script, attributes, rule
from .voyage import BRANCHES, RESULT, STEPS, Log, done, in_order, others_are_saved, voyage

type Ctx[Inputs] = StepContext[None, Reaction[Any], Inputs]


class Storm(Exception):
    """Breaks an attempt off."""


class Crew:
    """Does what steps do outside, and counts it; some of it goes wrong, once each."""

    def __init__(self, *failing: str) -> None:
        self.did: Counter[str] = Counter()
        self.failing = list(failing)
        self.logs: list[Log] = []

    async def __call__(self, step: str, reaction: Reaction[Any]) -> None:
        self.did[step] += 1
        if step in self.failing:
            if step in BRANCHES:
                await others_are_saved(reaction, step)
            self.failing.remove(step)
            raise Storm(step)

    def action(self, **options: Any) -> GraphAction[Any, Log, str]:
        def log() -> Log:
            self.logs.append(Log())
            return self.logs[-1]

        return GraphAction(voyage(self), name="voyage", state=log, inputs=ship, **options)


def ship(reaction: Reaction[Any]) -> str:
    return str(reaction.scope["ship"])


@pytest.fixture
async def harbour() -> Harbour:
    harbour = Harbour()
    await harbour.publish(Arrived(ship="Argo"))
    return harbour


async def steps_of(harbour: Harbour) -> list[str]:
    """The steps after which the run was saved, in order."""
    workspace = await harbour.open()
    return [envelope.payload["step"] for envelope in await workspace.read(types=["reflexr:run_progressed"])]


async def finish(harbour: Harbour, action: Any) -> Run:
    """Lets attempts be made until the run ends."""
    run = await harbour.act(action)
    while run.status == "retrying":
        run = await harbour.act_again(action)
    return run


def events_of(harbour: Harbour, name: str) -> list[Any]:
    """The attributes of the spans' events of this name."""
    return [
        dict(event.attributes or {})
        for span in harbour.exporter.get_finished_spans()
        for event in span.events
        if event.name == name
    ]


def chained(*steps: Callable[[Ctx[Any]], Any], **options: Any) -> Graph[Any, Reaction[Any], Any, Any]:
    """A graph of steps one after another."""
    graph: Any = GraphBuilder(deps_type=Reaction[Any], **options)
    nodes = [graph.start_node, *(graph.step(step) for step in steps), graph.end_node]
    for source, destination in pairwise(nodes):
        graph.add(graph.edge_from(source).to(destination))
    return graph.build()


def fails_once(did: Counter[str], name: str) -> None:
    """Counts a step, and fails the first time."""
    did[name] += 1
    if did[name] == 1:
        raise Storm(name)


# --- Carrying it out


async def test_a_graph_runs_to_its_end_and_is_saved_after_each_step(harbour: Harbour) -> None:
    crew = Crew()

    run = await harbour.act(crew.action())

    steps = await steps_of(harbour)
    assert (run.status, run.output) == ("succeeded", RESULT)
    assert crew.did == dict.fromkeys(STEPS, 1)
    assert in_order(crew.logs[0].entries)
    assert set(steps) <= set(STEPS)
    assert [step for step in steps if step not in BRANCHES] == ["plan", "load", "sail", *STEPS[7:]]


@pytest.mark.parametrize("step", STEPS)
async def test_an_attempt_that_fails_at_a_step_repeats_that_step_and_no_other(harbour: Harbour, step: str) -> None:
    crew = Crew(step)

    run = await finish(harbour, crew.action())

    assert (run.status, run.output, run.attempt) == ("succeeded", RESULT, 2)
    assert crew.did == {name: 2 if name == step else 1 for name in STEPS}
    assert len(crew.logs) == (2 if step == "plan" else 1)


async def test_a_graph_may_have_no_state_and_no_inputs_and_an_output_of_any_type(harbour: Harbour) -> None:
    @dataclass
    class Plan:
        day: date

    async def plan(ctx: Ctx[None]) -> Plan:
        return Plan(date(2026, 2, 1))

    action = GraphAction(chained(plan, output_type=Plan), name="plan")

    assert (await harbour.act(action)).output == {"day": "2026-02-01"}
    assert (action.name, action.params, run(action).action) == ("plan", None, "plan")


async def test_steps_have_the_reaction_with_its_deps_and_its_params(harbour: Harbour) -> None:
    class Berth(BaseModel):
        berth: int

    async def moor(ctx: Ctx[None]) -> list[Any]:
        reaction = ctx.deps
        return [reaction.deps, reaction.params_as(Berth).berth, reaction.attempt, reaction.scope["ship"]]

    action = GraphAction(chained(moor), name="pilot", params=Berth)

    finished = await harbour.act(action, rule(then=run("pilot", berth=4)), deps="deps")

    assert finished.output == ["deps", 4, 1, "Argo"]


async def test_each_step_is_a_span_within_the_attempts(harbour: Harbour) -> None:
    crew = Crew("land")
    action = crew.action(tracer_provider=harbour.tracer_provider)

    finished = await finish(harbour, action)

    spans = [span for span in harbour.exporter.get_finished_spans() if span.name.startswith("execute_step ")]
    assert Counter(span.name.partition(" ")[2] for span in spans) == crew.did
    for span in spans:
        assert attributes(span)["reflexr.graph"] == "voyage"
        assert attributes(span)["reflexr.graph.step"] == span.name.partition(" ")[2]
        assert span.context is not None
        assert span.parent is not None
    traces = {f"{span.context.trace_id:032x}" for span in spans if span.context is not None}
    assert traces == set(finished.trace_ids)
    assert [attributes(span).get("error.type") for span in harbour.spans("execute_step land")] == ["Storm", None]


async def test_two_runs_of_one_graph_at_once_keep_to_themselves() -> None:
    harbour = Harbour()
    await harbour.publish(Arrived(ship="Argo"), Arrived(ship="Bounty"))
    crew = Crew()

    await harbour.act(crew.action())

    outputs = {str(run.scope["ship"]): run.output for run in await harbour.runs()}
    assert outputs == {"Argo": RESULT, "Bounty": RESULT.replace("Argo", "Bounty")}
    assert crew.did == dict.fromkeys(STEPS, 2)


# --- Decisions, nodes and loops


def deciding(did: Counter[str]) -> Graph[None, Reaction[Any], int, str]:
    """A graph that counts down until it is at zero, in a loop."""
    graph = GraphBuilder(deps_type=Reaction[Any], input_type=int, output_type=str)

    @graph.step
    async def count(ctx: Ctx[int]) -> int:
        did[f"count {ctx.inputs}"] += 1
        return ctx.inputs - 1

    @graph.step
    async def end(ctx: Ctx[int]) -> str:
        fails_once(did, "end")
        return f"at {ctx.inputs}"

    graph.add(
        graph.edge_from(graph.start_node).to(count),
        graph.edge_from(count).to(
            graph.decision()
            .branch(graph.match(int, matches=lambda number: number > 0).to(count))
            .branch(graph.match(int).to(end))
        ),
        graph.edge_from(end).to(graph.end_node),
    )
    return graph.build()


async def test_a_loop_goes_on_where_it_was_and_its_checkpoint_does_not_grow(harbour: Harbour) -> None:
    did: Counter[str] = Counter()
    action = GraphAction(deciding(did), name="count", inputs=lambda _: 50)

    retrying = await harbour.act(action)
    finished = await harbour.act_again(action)

    assert (finished.status, finished.output) == ("succeeded", "at 0")
    assert did == {"end": 2} | {f"count {number}": 1 for number in range(1, 51)}
    assert done(retrying) == set()
    assert await steps_of(harbour) == ["count"] * 50 + ["end"]


class First(BaseNode[None, Reaction[Any], str]):
    @override
    async def run(self, ctx: GraphRunContext[None, Reaction[Any]]) -> "Second | End[str]":
        COUNTS["first"] += 1
        return Second("moored")


@dataclass
class Second(BaseNode[None, Reaction[Any], str]):
    what: str

    @override
    async def run(self, ctx: GraphRunContext[None, Reaction[Any]]) -> End[str]:
        fails_once(COUNTS, "second")
        return End(f"{ctx.deps.scope['ship']} {self.what}")


COUNTS: Counter[str] = Counter()


async def test_nodes_that_are_classes_go_on_with_their_fields(harbour: Harbour) -> None:
    COUNTS.clear()
    graph = GraphBuilder(deps_type=Reaction[Any], output_type=str)

    @graph.step
    async def begin(ctx: Ctx[None]) -> First:
        COUNTS["begin"] += 1
        return First()

    graph.add(graph.node(First), graph.node(Second), graph.edge_from(graph.start_node).to(begin))

    finished = await finish(harbour, GraphAction(graph.build(), name="nodes"))

    assert finished.output == "Argo moored"
    assert COUNTS == {"begin": 1, "first": 1, "second": 2}


async def test_a_graph_that_decides_to_end_is_saved_before_it_does(harbour: Harbour) -> None:
    graph = GraphBuilder(deps_type=Reaction[Any], output_type=int)

    @graph.step
    async def one(ctx: Ctx[None]) -> int:
        return 1

    graph.add(
        graph.edge_from(graph.start_node).to(one),
        graph.edge_from(one).to(graph.decision().branch(graph.match(int).to(graph.end_node))),
    )

    finished = await harbour.act(GraphAction(graph.build(), name="one"))

    assert (finished.output, done(finished)) == (1, {"one"})


# --- Going on


async def test_a_run_that_is_retried_by_hand_goes_on_where_it_was(harbour: Harbour) -> None:
    async def first(ctx: Ctx[None]) -> str:
        did["first"] += 1
        return "first"

    async def second(ctx: Ctx[str]) -> str:
        did["second"] += 1
        if did["second"] == 1:
            raise RunFailure("no pilot", reason="no_pilot", permanent=True)
        return f"{ctx.inputs}, second"

    did: Counter[str] = Counter()
    action = GraphAction(chained(first, second), name="two")

    dead = await harbour.act(action)
    await (await harbour.open()).retry_run(dead.id)
    finished = await harbour.act(action)

    assert (dead.status, dead.reason) == ("dead_lettered", "no_pilot")
    assert (finished.output, did) == ("first, second", {"first": 1, "second": 2})


async def test_a_checkpoint_that_is_not_the_graphs_is_set_aside(harbour: Harbour) -> None:
    async def pilot(reaction: Reaction[None]) -> None:
        await reaction.checkpoint("mine", {"at": "mine"})
        raise Storm

    crew = Crew()
    await harbour.act(pilot)

    finished = await harbour.act_again(crew.action())

    assert (finished.output, crew.did) == (RESULT, dict.fromkeys(STEPS, 1))
    ((reason,),) = [event.values() for event in events_of(harbour, "reflexr.checkpoint.discarded")]
    assert "ValidationError" in reason


class Wider(Log):
    """A state with a field more than the older one had."""

    captain: str


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": "another"}, "it is of the graph 'voyage', not of 'another'"),
        ({"state": Wider}, "captain"),
        ({"node": "other"}, "the graph cannot go on from 'load'"),
        ({"inputs": int}, "Input should be a valid integer"),
    ],
)
async def test_a_checkpoint_that_no_longer_validates_is_set_aside_and_the_graph_begins_anew(
    harbour: Harbour, changed: dict[str, Any], reason: str
) -> None:
    await harbour.act(Crew("load").action())
    did: list[Any] = []

    async def plan(ctx: Ctx[str]) -> int:
        did.append("plan")
        return 1

    async def load(ctx: Ctx[Any]) -> int:
        did.append(ctx.inputs)
        return 2

    load.__annotations__["ctx"] = StepContext[None, Reaction[Any], changed.get("inputs", str)]
    load.__name__ = changed.get("node", "load")
    state = changed.get("state", Log)
    action = GraphAction(
        chained(plan, load, state_type=state),
        name=changed.get("name", "voyage"),
        state=(lambda: Wider(captain="Ada")) if state is Wider else state,
    )

    finished = await harbour.act_again(action)

    assert (finished.output, did) == (2, ["plan", 1])
    ((told,),) = [event.values() for event in events_of(harbour, "reflexr.checkpoint.discarded")]
    assert reason in told


async def test_what_a_graph_emits_after_it_began_anew_takes_no_earlier_id(harbour: Harbour) -> None:
    async def moor(ctx: Ctx[None]) -> None:
        await ctx.deps.emit(Moored(ship="Argo", berth=ctx.deps.attempt))
        if ctx.deps.attempt == 1:
            await asyncio.sleep(0)

    async def leave(ctx: Ctx[None]) -> None:
        if ctx.deps.attempt == 1:
            raise Storm

    await harbour.act(GraphAction(chained(moor, leave), name="old"))
    await harbour.act_again(GraphAction(chained(moor, leave), name="new"))

    assert [event["berth"] for event in await harbour.log(Moored)] == [1, 2]


# --- What does not last


class Rope:
    """Has no JSON, and no pydantic type."""


async def test_a_step_whose_output_does_not_last_is_repeated_with_the_next(harbour: Harbour) -> None:
    async def first(ctx: Ctx[None]) -> int:
        did["first"] += 1
        return 1

    async def second(ctx: Ctx[int]) -> Rope:
        did["second"] += 1
        return Rope()

    async def third(ctx: Ctx[Rope]) -> str:
        fails_once(did, "third")
        return "done"

    did: Counter[str] = Counter()
    finished = await finish(
        harbour, GraphAction(chained(first, second, third), name="rope", tracer_provider=harbour.tracer_provider)
    )

    assert (finished.output, did) == ("done", {"first": 1, "second": 2, "third": 2})
    assert await steps_of(harbour) == ["first"]
    assert all("Rope" in event["reflexr.reason"] for event in events_of(harbour, "reflexr.checkpoint.unsaved"))


class Chest:
    """A state that pydantic does not know."""


async def test_a_graph_whose_state_does_not_last_begins_anew(harbour: Harbour) -> None:
    async def first(ctx: StepContext[Any, Any, None]) -> int:
        did["first"] += 1
        return 1

    async def second(ctx: StepContext[Any, Any, int]) -> int:
        fails_once(did, "second")
        return ctx.inputs + 1

    did: Counter[str] = Counter()
    finished = await finish(harbour, GraphAction(chained(first, second, state_type=Chest), name="chest", state=Chest))

    assert (finished.output, did) == (2, {"first": 2, "second": 2})
    assert await steps_of(harbour) == []
    assert events_of(harbour, "reflexr.checkpoint.discarded") == []


# --- Emitting, checkpoints and failures


async def test_a_step_that_is_repeated_emits_nothing_twice(harbour: Harbour) -> None:
    async def emit(ctx: Ctx[None]) -> None:
        for berth in range(3):
            await ctx.deps.emit(Moored(ship="Argo", berth=berth))
        fails_once(did, "emit")

    async def more(ctx: Ctx[None]) -> None:
        await ctx.deps.emit(Moored(ship="Argo", berth=3))

    did: Counter[str] = Counter()
    finished = await finish(harbour, GraphAction(chained(emit, more), name="emit"))

    assert (finished.status, finished.attempt) == ("succeeded", 2)
    assert [event["berth"] for event in await harbour.log(Moored)] == [0, 1, 2, 3]


async def test_branches_that_are_repeated_emit_nothing_twice_and_lose_nothing(harbour: Harbour) -> None:
    async def do(step: str, reaction: Reaction[Any]) -> None:
        for _ in range(reaction.attempt % 2):
            # They take their turns in another order at each attempt.
            await asyncio.sleep(0)
        publication = await reaction.emit(Moored(ship=step))
        assert publication.envelope.payload["ship"] == step
        await crew(step, reaction)

    crew = Crew("cook", "trade")
    finished = await finish(harbour, GraphAction(voyage(do), name="voyage", state=Log, inputs=ship))

    assert (finished.status, finished.attempt) == ("succeeded", 3)
    assert Counter(event["ship"] for event in await harbour.log(Moored)) == dict.fromkeys(STEPS, 1)


async def test_a_step_publishes_whoever_took_its_events_id(harbour: Harbour) -> None:
    ids: list[str] = []

    async def emit(ctx: Ctx[None]) -> None:
        ids.append((await ctx.deps.emit(Moored(ship="Argo"))).id)

    action = GraphAction(chained(emit), name="emit")
    await harbour.act(action)
    other = Harbour()
    taken = other.workspaces(emitted=[], events=[Arrived, Moored])
    await (await taken.open("acme", "north", actor=ADA)).publish_many([Arrived(ship="Argo")])
    await (await taken.open("acme", "north", actor=ADA)).publish(Moored(ship="Bounty"), id=ids[0])
    await other.act(action)

    assert [event["ship"] for event in await other.log(Moored)] == ["Bounty", "Argo"]


async def test_a_step_may_save_no_checkpoint_of_its_own(harbour: Harbour) -> None:
    async def save(ctx: Ctx[None]) -> None:
        await ctx.deps.checkpoint("mine", 1)

    failed = await harbour.act(GraphAction(chained(save), name="save"))

    assert (failed.status, failed.checkpoints) == ("retrying", 0)
    assert "a graph saves its own checkpoints" in (failed.error or "")


async def test_an_agent_in_a_step_fails_the_run_as_its_action_would(harbour: Harbour) -> None:
    async def wait() -> str:
        return "waited"

    agent = Agent(Script(ToolCallPart("wait"), "done").model, deps_type=Reaction[Any], tools=[wait])

    async def ask(ctx: Ctx[None]) -> str:
        answer = await agent.run("?", deps=ctx.deps, usage_limits=UsageLimits(request_limit=1))
        return answer.output

    failed = await harbour.act(GraphAction(chained(ask), name="ask"))

    assert (failed.status, failed.reason) == ("dead_lettered", "usage_limit_exceeded")


async def test_a_graph_that_is_cancelled_stops_all_its_branches(harbour: Harbour) -> None:
    both, stopped = asyncio.Barrier(3), list[str]()

    async def do(step: str, _: Reaction[Any]) -> None:
        if step in {"fish", "cook"}:
            await both.wait()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(step)

    settling = asyncio.create_task(harbour.act(GraphAction(voyage(do), name="voyage", state=Log, inputs=ship)))
    await both.wait()
    await (await harbour.open()).cancel_run((await harbour.runs())[0].id)
    finished = await settling

    assert (finished.status, sorted(stopped)) == ("cancelled", ["cook", "fish"])


async def test_once_the_attempt_is_over_no_further_step_begins(harbour: Harbour) -> None:
    async def first(ctx: Ctx[None]) -> int:
        reactions.append(ctx.deps)
        return 1

    async def second(ctx: Ctx[int]) -> None:
        did.append("second")

    reactions: list[Reaction[Any]] = []
    did: list[str] = []

    async def pilot(reaction: Reaction[Any]) -> None:
        reactions.append(reaction)

    await harbour.act(pilot)
    with pytest.raises(InvalidState, match="cannot checkpoint run"):
        await GraphAction(chained(first, second), name="late").run(reactions[0])

    assert (len(reactions), did) == (2, [])
