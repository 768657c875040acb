"""Where in a graph nothing runs in parallel: a matter of its nodes and edges alone, found out once.

pydantic-graph's forks split a run into branches, and its joins gather them again. A join gathers what is between its
*parent fork* and itself.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_graph import Decision, EndNode, Fork, Graph, StartNode, Step
from pydantic_graph.id_types import NodeID
from pydantic_graph.node_types import AnyNode
from pydantic_graph.paths import DestinationMarker, Path

type AnyGraph = Graph[Any, Any, Any, Any]
"""A graph of any state, dependencies, inputs and output."""


def lone_steps(graph: AnyGraph) -> frozenset[NodeID]:
    """Returns the steps beside which nothing else of the run can be going on or be waiting for a join.

    From such a step on, its inputs and the graph's state are all there is to go on from.
    """
    following = {node_id: _following(graph, node) for node_id, node in graph.nodes.items()}
    beside: set[NodeID] = set()
    for node in graph.nodes.values():
        if isinstance(node, Fork):
            beside |= _branches(graph, following, node.id)
    for parent in graph.parent_forks.values():
        # To get to that join from here, the run has to remember by which fork it came.
        if parent.fork_id != StartNode.id:
            beside |= parent.intermediate_nodes
    return frozenset(
        node_id for node_id, node in graph.nodes.items() if isinstance(node, Step) and node_id not in beside
    )


def _branches(graph: AnyGraph, following: Mapping[NodeID, frozenset[NodeID]], fork: NodeID) -> set[NodeID]:
    """Returns the nodes between a fork and the nearest join that gathers all of it; if none does, all that follow."""
    gathered = [
        reached
        for join, parent in graph.parent_forks.items()
        if fork in {parent.fork_id, *parent.intermediate_nodes}
        and (reached := _reached(following, fork, join)) <= parent.intermediate_nodes
    ]
    return min(gathered, key=len, default=_reached(following, fork))


def _reached(following: Mapping[NodeID, frozenset[NodeID]], start: NodeID, stop: NodeID | None = None) -> set[NodeID]:
    """Returns the nodes that can be reached from one without going through another, without that other."""
    reached: set[NodeID] = set()
    ahead = set(following[start])
    while ahead:
        node_id = ahead.pop()
        if node_id != stop and node_id not in reached:
            reached.add(node_id)
            ahead |= following[node_id]
    return reached


def _following(graph: AnyGraph, node: AnyNode) -> frozenset[NodeID]:
    paths: list[Path] = []
    if isinstance(node, Decision):
        paths = [branch.path for branch in node.branches]
    elif not isinstance(node, EndNode):
        paths = graph.edges_by_source.get(node.id, [])
    return frozenset(
        item.destination_id for path in paths for item in path.items if isinstance(item, DestinationMarker)
    )
