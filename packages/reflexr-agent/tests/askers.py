"""What the tests of graphs that ask share: graphs of a few steps, and whoever answers."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from pydantic import JsonValue
from pydantic_graph import Graph, GraphBuilder, StepContext, reduce_list_append

from reflexr.agent import GraphAction, StepQuestions, StepReaction
from reflexr.core import Run, UserActor
from reflexr.workspace import Reaction

from .harbour import ADA, Harbour
from .voyage import BRANCHES, Log, voyage

type Ctx[Inputs] = StepContext[None, StepReaction[Any], Inputs]
type AnyCtx = StepContext[Any, StepReaction[Any], Any]


def chained(*steps: Callable[[AnyCtx], Any], **options: Any) -> Graph[Any, StepReaction[Any], Any, Any]:
    """A graph of steps one after another."""
    graph: Any = GraphBuilder(deps_type=StepReaction[Any], **options)
    last = graph.start_node
    for step in steps:
        node = graph.step(step)
        graph.add(graph.edge_from(last).to(node))
        last = node
    graph.add(graph.edge_from(last).to(graph.end_node))
    return graph.build()


def forked(*steps: Callable[[AnyCtx], Any], **options: Any) -> Graph[Any, StepReaction[Any], Any, Any]:
    """A graph of steps side by side, which comes to the list of what they return."""
    graph: Any = GraphBuilder(deps_type=StepReaction[Any], **options)
    nodes = [graph.step(step) for step in steps]
    join = graph.join(reduce_list_append, initial_factory=list[Any])
    graph.add(
        graph.edge_from(graph.start_node).to(*nodes),
        graph.edge_from(*nodes).to(join),
        graph.edge_from(join).to(graph.end_node),
    )
    return graph.build()


def asked(run: Run) -> StepQuestions:
    assert run.waiting is not None
    return StepQuestions.model_validate(run.waiting.request)


def keys(run: Run) -> dict[str, str]:
    """The key of each step's question."""
    return {question.step: question.key for question in asked(run).questions}


def gathered(run: Run) -> list[Any]:
    """What a join gathered, in an order that depends on no branch."""
    output: Any = run.output
    return sorted(output)


async def answer(harbour: Harbour, value: JsonValue, *, actor: UserActor = ADA) -> None:
    workspace = (await harbour.open()).as_actor(actor)
    (run,) = await workspace.runs()
    await workspace.resume_run(run.id, answer=value)


async def answer_each(harbour: Harbour, **values: JsonValue) -> None:
    """Answers the questions of these steps."""
    (run,) = await harbour.runs()
    await answer(harbour, {"answers": {keys(run)[step]: value for step, value in values.items()}})


class Askers:
    """Does what steps do, some of which ask. What runs beside them goes on only once they have asked."""

    def __init__(self, *asking: str) -> None:
        self.asking = frozenset(asking)
        self.did: Counter[str] = Counter()
        self.told: dict[str, Any] = {}
        self.all_asked = asyncio.Event()
        self._began: set[str] = set()

    async def __call__(self, step: str, reaction: Reaction[Any]) -> None:
        self.did[step] += 1
        if step not in self.asking:
            if step in BRANCHES:
                await self.all_asked.wait()
            return
        self._began.add(step)
        if self._began >= self.asking:
            self.all_asked.set()
        assert isinstance(reaction, StepReaction)
        self.told[step] = (await reaction.ask({"may": step})).value

    def action(self) -> GraphAction[Any, Log, str]:
        return GraphAction(voyage(self), name="voyage", state=Log, inputs=lambda _: "Argo")
