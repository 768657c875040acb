"""A graph of ten steps with a fork of four branches, whose steps count what they do outside."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydantic import BaseModel, Field
from pydantic_graph import Graph, GraphBuilder, Step, StepContext, reduce_list_append

from reflexr.core import Run
from reflexr.workspace import Reaction

STEPS: Final[tuple[str, ...]] = ("plan", "load", "sail", "fish", "chart", "cook", "watch", "land", "trade", "report")
BRANCHES: Final[frozenset[str]] = frozenset({"fish", "chart", "cook", "watch"})
ASKING: Final[frozenset[str]] = frozenset({"fish", "cook"})
"""Those that ask, on a ship whose steps do."""


class Log(BaseModel):
    """The voyage's state."""

    entries: list[str] = Field(default_factory=list)


type Do = Callable[[str, Reaction[Any]], Awaitable[None]]
"""What a step does outside."""


def voyage(do: Do) -> Graph[Log, Reaction[Any], str, str]:
    """Builds the graph: three steps, four side by side, and three more."""
    graph = GraphBuilder(state_type=Log, deps_type=Reaction[Any], input_type=str, output_type=str)

    def step(name: str) -> Step[Log, Reaction[Any], str, str]:
        async def run(ctx: StepContext[Log, Reaction[Any], str]) -> str:
            await do(name, ctx.deps)
            ctx.state.entries.append(name)
            return f"{ctx.inputs}-{name}"

        return graph.step(run, node_id=name)

    async def land(ctx: StepContext[Log, Reaction[Any], list[str]]) -> str:
        await do("land", ctx.deps)
        ctx.state.entries.append("land")
        return "+".join(sorted(ctx.inputs))

    plan, load, sail, fish, chart, cook, watch, trade, report = (step(name) for name in STEPS if name != "land")
    landing = graph.step(land, node_id="land")
    gathered = graph.join(reduce_list_append, initial_factory=list[str], node_id="gathered")
    graph.add(
        graph.edge_from(graph.start_node).to(plan),
        graph.edge_from(plan).to(load),
        graph.edge_from(load).to(sail),
        graph.edge_from(sail).to(fish, chart, cook, watch),
        graph.edge_from(fish, chart, cook, watch).to(gathered),
        graph.edge_from(gathered).to(landing),
        graph.edge_from(landing).to(trade),
        graph.edge_from(trade).to(report),
        graph.edge_from(report).to(graph.end_node),
    )
    return graph.build()


RESULT: Final = "+".join(sorted(f"Argo-plan-load-sail-{name}" for name in BRANCHES)) + "-trade-report"


def in_order(entries: list[str]) -> bool:
    """Whether each step wrote once to the state, each after those before it."""
    return Counter(entries) == Counter(STEPS) and (
        entries[:3] == list(STEPS[:3]) and frozenset(entries[3:7]) == BRANCHES and entries[7:] == list(STEPS[7:])
    )


def done(run: Run) -> set[str]:
    """The steps that a run's checkpoint says are done since its last place."""
    assert isinstance(run.checkpoint, dict)
    steps: Any = run.checkpoint["done"]
    return {step["node"] for step in steps}


async def others_are_saved(reaction: Reaction[Any], *branches: str) -> None:
    """Waits, in a branch, until all others than these are saved."""
    async for _ in reaction.workspace.subscribe(types=["reflexr:run_progressed"]):
        if done(await reaction.workspace.run(reaction.run_id)) >= BRANCHES - set(branches):
            return
