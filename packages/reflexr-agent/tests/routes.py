"""Graphs of any make, written as routes: a text is a step, and a list is one after another."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic_graph import Graph, GraphBuilder, StepContext, reduce_list_append

from reflexr.workspace import Reaction

type Route = str | list[Route] | Fork | Map | Loop


@dataclass(frozen=True)
class Fork:
    """Branches side by side, which a join gathers."""

    branches: tuple[Route, ...]


@dataclass(frozen=True)
class Map:
    """The same branch side by side for each of so many items, some of which are equal."""

    branch: Route
    items: int


@dataclass(frozen=True)
class Loop:
    """A route that is gone so many times, as a decision has it."""

    body: Route
    times: int


type Do = Callable[[str, Reaction[Any]], Awaitable[None]]


class Builder:
    """Builds the graph of a route. Each step returns its inputs with its name, so the output says which way it came."""

    def __init__(self, do: Do) -> None:
        self._do = do
        self._graph: Any = GraphBuilder(deps_type=Reaction[Any], input_type=str, output_type=str)
        self._names: Counter[str] = Counter()

    def build(self, route: Route) -> Graph[None, Reaction[Any], str, str]:
        last = self._add(route, self._graph.start_node)
        self._graph.add(self._graph.edge_from(last).to(self._graph.end_node))
        return self._graph.build()

    def _add(self, route: Route, source: Any) -> Any:
        """Adds a route after a node, and returns its last node."""
        match route:
            case str():
                step = self._step(route)
                self._graph.add(self._graph.edge_from(source).to(step))
                return step
            case list():
                for part in route:
                    source = self._add(part, source)
                return source
            case Fork():
                return self._fork(route, source)
            case Map():
                return self._map(route, source)
            case Loop():
                return self._loop(route, source)

    def _fork(self, fork: Fork, source: Any) -> Any:
        heads = [self._step("head") for _ in fork.branches]
        self._graph.add(self._graph.edge_from(source).to(*heads))
        join = self._join()
        for head, branch in zip(heads, fork.branches, strict=True):
            self._graph.add(self._graph.edge_from(self._add(branch, head)).to(join))
        return self._gathered(join)

    def _map(self, route: Map, source: Any) -> Any:
        async def spread(ctx: StepContext[None, Reaction[Any], str]) -> list[str]:
            await self._do(name, ctx.deps)
            return [f"{ctx.inputs}{number // 2}" for number in range(route.items)]

        name = self._name("spread")
        spreading = self._graph.step(spread, node_id=name)
        head, join = self._step("head"), self._join()
        self._graph.add(self._graph.edge_from(source).to(spreading), self._graph.edge_from(spreading).map().to(head))
        self._graph.add(self._graph.edge_from(self._add(route.branch, head)).to(join))
        return self._gathered(join)

    def _loop(self, loop: Loop, source: Any) -> Any:
        turn, after = self._step("("), self._step(")")
        self._graph.add(self._graph.edge_from(source).to(turn))
        last = self._add(loop.body, turn)

        def again(text: str) -> bool:
            # A fork repeats what came before it in each branch, so only the last one's text is looked at.
            return text.rpartition("&")[2].count(str(turn.id)) < loop.times

        self._graph.add(
            self._graph.edge_from(last).to(
                self._graph.decision()
                .branch(self._graph.match(str, matches=again).to(turn))
                .branch(self._graph.match(str).to(after))
            )
        )
        return after

    def _step(self, name: str) -> Any:
        async def run(ctx: StepContext[None, Reaction[Any], str]) -> str:
            await self._do(node_id, ctx.deps)
            return f"{ctx.inputs}{node_id}"

        node_id = self._name(name)
        return self._graph.step(run, node_id=node_id)

    def _join(self) -> Any:
        return self._graph.join(reduce_list_append, initial_factory=list[str], node_id=self._name("join"))

    def _gathered(self, join: Any) -> Any:
        async def gather(ctx: StepContext[None, Reaction[Any], list[str]]) -> str:
            await self._do(name, ctx.deps)
            return "[" + "&".join(sorted(ctx.inputs)) + "]"

        name = self._name("gather")
        gathering = self._graph.step(gather, node_id=name)
        self._graph.add(self._graph.edge_from(join).to(gathering))
        return gathering

    def _name(self, name: str) -> str:
        self._names[name] += 1
        return f"{name}{self._names[name]}."
