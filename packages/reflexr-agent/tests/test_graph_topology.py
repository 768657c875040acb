from typing import Any

import pytest
from pydantic_graph import Graph, GraphBuilder, StepContext, reduce_list_append

from reflexr.agent.graph_topology import lone_steps
from reflexr.workspace import Reaction

from .routes import Builder, Fork, Loop, Map, Route


async def nothing(_: str, __: Reaction[Any]) -> None:
    """Does nothing."""


@pytest.mark.parametrize(
    ("route", "lone"),
    [
        (["a", "b"], {"a1.", "b1."}),
        (["a", Fork(("b", "c")), "d"], {"a1.", "gather1.", "d1."}),
        (["a", Map("b", 3), "c"], {"a1.", "spread1.", "gather1.", "c1."}),
        ([Fork(("a", "b")), "c", Fork(("d", "e"))], {"gather1.", "c1.", "gather2."}),
        (["a", Fork(("b", [Fork(("c", "d")), "e"])), "f"], {"a1.", "gather2.", "f1."}),
        (["a", Loop(["b", Fork(("c", "d")), "e"], 2), "f"], {"a1.", "(1.", "b1.", "gather1.", "e1.", ")1.", "f1."}),
        (["a", Fork(("b", Loop("c", 2))), "d"], {"a1.", "gather1.", "d1."}),
    ],
)
def test_a_step_is_alone_where_no_fork_is_open(route: Route, lone: set[str]) -> None:
    assert lone_steps(Builder(nothing).build(route)) == lone


def branching(**options: Any) -> tuple[Any, dict[str, Any]]:
    """A graph of some steps that are not connected yet."""
    graph: Any = GraphBuilder(deps_type=Reaction[Any], **options)

    async def run(ctx: StepContext[None, Reaction[Any], Any]) -> Any:
        return ctx.inputs

    return graph, {name: graph.step(run, node_id=name) for name in "abcd"}


def test_behind_a_branch_that_no_join_gathers_nothing_is_alone() -> None:
    graph, steps = branching()
    join = graph.join(reduce_list_append, initial_factory=list[Any])
    graph.add(
        graph.edge_from(graph.start_node).to(steps["a"]),
        graph.edge_from(steps["a"]).to(steps["b"], steps["c"]),
        graph.edge_from(steps["b"]).to(join),
        graph.edge_from(join).to(steps["d"]),
        graph.edge_from(steps["c"], steps["d"]).to(graph.end_node),
    )

    assert lone_steps(graph.build()) == {"a"}


def test_between_a_fork_and_a_later_join_that_names_it_nothing_is_alone() -> None:
    graph, steps = branching()
    near = graph.join(reduce_list_append, initial_factory=list[Any], parent_fork_id="fork", node_id="near")
    far = graph.join(reduce_list_append, initial_factory=list[Any], parent_fork_id="fork", node_id="far")
    graph.add(
        graph.edge_from(graph.start_node).to(steps["a"], steps["b"], fork_id="fork"),
        graph.edge_from(steps["a"], steps["b"]).to(near),
        graph.edge_from(near).to(steps["c"]),
        graph.edge_from(steps["c"]).to(far),
        graph.edge_from(far).to(steps["d"]),
        graph.edge_from(steps["d"]).to(graph.end_node),
    )
    built: Graph[Any, Any, Any, Any] = graph.build()

    assert lone_steps(built) == {"d"}
