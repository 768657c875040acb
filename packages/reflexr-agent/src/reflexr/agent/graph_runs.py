"""One attempt of a graph: its steps are watched, and what has to be known to go on is saved as they end.

pydantic-graph runs the graph. Between two steps with nothing beside them, the *place* is saved: the next step and its
inputs. In a fork there is no such place, so each branch's steps are saved as *done*, with what they returned, on top of
the last place. An attempt that goes on from there runs the graph from the place, and steps that are done return at once
what they returned. What is saved is always the whole: the place, what is done since, and the state.

A step that asks for something stays where it is, so that no join goes on without it. Once nothing else of the graph
goes on, the run pauses: what was saved last, with what is asked, is what the next attempt goes on from.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn, cast, override

from pydantic_core import to_json
from pydantic_graph import Decision, EndMarker, GraphTask, StartNode, Step, StepContext
from pydantic_graph.id_types import NodeID
from pydantic_graph.node_types import AnyNode
from pydantic_graph.paths import DestinationMarker, Path
from pydantic_graph.step import NodeStep, StepFunction

from reflexr.agent.discarding import discarded, unsaved
from reflexr.agent.graph_activity import PATIENCE, Activity
from reflexr.agent.graph_checkpoints import Done, GraphCheckpoint, Place, Position
from reflexr.agent.graph_questions import (
    Asked,
    GraphPaused,
    Inquiry,
    only_asks,
    questions_of,
    timeout_of,
)
from reflexr.agent.graph_topology import AnyGraph, lone_steps
from reflexr.agent.graph_values import NotLasting, Shape, StepShapes, fingerprint
from reflexr.agent.step_reactions import StepReaction
from reflexr.core import derived_id
from reflexr.telemetry import Tracing
from reflexr.workspace import Pause, Reaction

GRAPH: Final = "reflexr.graph"
"""The attribute of a step's span that names the action whose graph it is."""

STEP: Final = "reflexr.graph.step"
"""The attribute of a step's span that names the step."""


class Blueprint:
    """What every attempt of one graph has to know of it."""

    def __init__(self, name: str, graph: AnyGraph, tracing: Tracing) -> None:
        """Studies a graph.

        Args:
            name: What its action is called.
            graph: The graph.
            tracing: Starts the spans of its steps.
        """
        self.name = name
        self.graph = graph
        self.tracing = tracing
        self.lone = lone_steps(graph)
        self.state = Shape(graph.state_type)
        self.shapes = {node_id: StepShapes(node) for node_id, node in graph.nodes.items() if isinstance(node, Step)}

    def position(self, reaction: Reaction[Any]) -> Position:
        """Returns where a run's graph goes on from.

        A checkpoint that is not one of this graph, or that its types no longer accept, is set aside: the attempt's span
        says so.
        """
        if reaction.run.checkpoints:
            try:
                return self._position(GraphCheckpoint.model_validate_json(to_json(reaction.run.checkpoint)))
            except Exception as error:
                # Whatever a type of the application's raises where it refuses a value.
                discarded(error)
        return Position.start(self.name, reaction.run.checkpoints)

    def _position(self, saved: GraphCheckpoint) -> Position:
        if saved.graph != self.name:
            raise NotLasting(f"it is of the graph {saved.graph!r}, not of {self.name!r}")
        position = Position(saved)
        if saved.at is not None:
            if saved.at.node not in self.lone:
                raise NotLasting(f"the graph cannot go on from {saved.at.node!r}")
            position.inputs = self.shapes[NodeID(saved.at.node)].inputs.read(saved.at.inputs)
        if not saved.fresh:
            position.state = self.state.read(saved.state)
        for done in saved.done:
            position.outputs[done.execution] = self.shapes[NodeID(done.node)].output.read(done.output)
        return position


class GraphAttempt:
    """One attempt of a graph."""

    def __init__(self, blueprint: Blueprint, reaction: Reaction[Any], position: Position) -> None:
        """Begins an attempt.

        Args:
            blueprint: The graph.
            reaction: The attempt.
            position: Where the graph goes on from.
        """
        self._blueprint = blueprint
        self._reaction = reaction
        self._position = position
        self._executions: Counter[str] = Counter()
        self._activity = Activity()
        self._asking: dict[str, list[Asked]] = {}
        self._last = ""
        self._unsaved = False
        self._missing = False
        self._saving = asyncio.Lock()
        self._order = list(position.outputs)
        self._returned: set[str] = set()
        self._next = 0

    async def run(self) -> Any:
        """Runs the graph to its end, and returns what it comes to.

        Raises:
            GraphPaused: Steps ask for something, and nothing else goes on.
            Exception: What a step raised.
        """
        graph, at = self._blueprint.graph, self._position.at
        edges = graph.edges_by_source
        if at is not None:
            edges = edges | {StartNode.id: [Path([DestinationMarker(NodeID(at.node))])]}
        nodes: dict[NodeID, AnyNode] = {
            node_id: self._watched(node) if isinstance(node, Step) else node for node_id, node in graph.nodes.items()
        }
        watched = replace(graph, nodes=nodes, edges_by_source=edges, auto_instrument=False)
        async with watched.iter(
            state=self._position.state, deps=self._reaction, inputs=self._position.inputs, infer_name=False
        ) as graph_run:
            async for found in graph_run:
                self._activity.stir()
                if not isinstance(found, EndMarker):
                    await self._pass(found)
        return graph_run.output

    def _watched(self, step: Step[Any, Any, Any, Any]) -> Step[Any, Any, Any, Any]:
        async def call(ctx: StepContext[Any, Any, Any]) -> Any:
            return await self._step(step, ctx)

        if isinstance(step, NodeStep):
            return _WatchedNode(step, call)
        return Step(id=step.id, call=call, label=step.label)

    async def _step(self, step: Step[Any, Any, Any, Any], ctx: StepContext[Any, Any, Any]) -> Any:
        """Runs a step, unless it is done, and remembers what it returned."""
        execution = self._execution(step, ctx.inputs)
        inquiry = Inquiry(step.id, self._position.section, execution, self._position.given)
        with self._activity.at_work():
            if (done := self._position.outputs.get(execution, _NOT_DONE)) is not _NOT_DONE:
                await self._turn(self._order.index(execution))
                self._returned.add(execution)
                self._last = step.id
                return done
            await self._turn(len(self._order))
            output = await self._carry_out(step, ctx, inquiry)
            if output is not _ASKS and step.id not in self._blueprint.lone:
                await self._save()
        if output is _ASKS:
            await self._stay(inquiry)
        return output

    async def _carry_out(
        self, step: Step[Any, Any, Any, Any], ctx: StepContext[Any, Any, Any], inquiry: Inquiry
    ) -> Any:
        with self._blueprint.tracing.span(
            f"execute_step {step.id}", lambda: {GRAPH: self._blueprint.name, STEP: step.id}
        ):
            reaction = StepReaction(self._reaction, inquiry)
            try:
                output = await step.call(StepContext(state=ctx.state, deps=reaction, inputs=ctx.inputs))
            except BaseException as error:
                if only_asks(error):
                    return _ASKS
                raise
            # From here on to the next await nothing comes between what it wrote to the state and that it is done.
            return self._ended(step, inquiry, output)

    async def _stay(self, inquiry: Inquiry) -> NoReturn:
        """Keeps a step that asks where it is until nothing else goes on, and then pauses the run.

        Raises:
            GraphPaused: With what all the steps ask that stay where they are.
        """
        self._asking[inquiry.execution] = inquiry.open
        try:
            await self._activity.standstill()
            raise GraphPaused(self._pause())
        finally:
            # Its branch may have been given up.
            del self._asking[inquiry.execution]

    def _pause(self) -> Pause:
        asked = tuple(each for questions in self._asking.values() for each in questions)
        return Pause(
            questions_of(asked),
            timeout=timeout_of(asked),
            step=self._reaction.run.step or asked[0].question.step,
            # A step that asks is repeated, so whatever it has written to the state is not saved.
            state=self._position.saved.model_copy(update={"asked": asked, "given": self._position.given}),
        )

    async def _turn(self, place: int) -> None:
        """Waits until so many of the steps that are done have returned, in the order in which they had ended.

        So a join gets what it got then, in the same order, before anything new comes. One that does not come, as a join
        has cancelled its branch, or something outside the steps went otherwise, is not waited for.
        """
        returned, patience = self._returned_in_order(), PATIENCE
        while returned < place and patience:
            await asyncio.sleep(0)
            before, returned = returned, self._returned_in_order()
            patience = PATIENCE if returned > before else patience - 1

    def _returned_in_order(self) -> int:
        while self._next < len(self._order) and self._order[self._next] in self._returned:
            self._next += 1
        return self._next

    def _execution(self, step: Step[Any, Any, Any, Any], inputs: Any) -> str:
        """Returns what an execution of a step is known by, at every attempt.

        To a step there is nothing to an execution but its inputs: of those with the same it is all one which is which.
        One that has nothing beside it is known without them, so they need not be the same in another process.
        """
        position = self._position
        known_by = "" if step.id in self._blueprint.lone else fingerprint(inputs)
        key = derived_id("step", position.origin, position.section, step.id, known_by)
        number = self._executions[key]
        self._executions[key] += 1
        return f"{key}.{number}"

    def _ended(self, step: Step[Any, Any, Any, Any], inquiry: Inquiry, output: Any) -> Any:
        self._last = step.id
        if isinstance(output, AsyncIterable):
            # It has not ended before its last item, and cannot be had again.
            self._missing = True
            return self._followed(cast("AsyncIterable[Any]", output), inquiry)
        try:
            written = self._blueprint.shapes[step.id].output.write(output)
        except NotLasting as error:
            # The state holds what this step wrote, so nothing can be saved before a place that comes after it.
            self._missing = True
            unsaved(error)
        else:
            execution = inquiry.execution
            self._position.done[execution] = Done(node=step.id, execution=execution, output=written)
            self._unsaved = True
        return output

    async def _followed(self, items: AsyncIterable[Any], inquiry: Inquiry) -> AsyncIterator[Any]:
        with self._activity.at_work():
            try:
                async for item in items:
                    yield item
                return
            except BaseException as error:
                if not only_asks(error):
                    raise
        await self._stay(inquiry)

    async def _pass(self, tasks: Sequence[GraphTask]) -> None:
        """Saves where the graph is between two steps, if nothing runs beside them."""
        nodes = self._blueprint.graph.nodes
        if not self._last or any(isinstance(nodes[task.node_id], Decision) for task in tasks):
            # It has just begun, or is about to decide, which costs nothing to do again.
            return
        if len(tasks) == 1 and tasks[0].node_id in self._blueprint.lone and self._activity.idle:
            self._move(tasks[0])
        await self._save()

    def _move(self, task: GraphTask) -> None:
        try:
            inputs = self._blueprint.shapes[task.node_id].inputs.write(task.inputs)
        except NotLasting as error:
            unsaved(error)
            return
        self._position.move(Place(node=task.node_id, inputs=inputs))
        self._executions.clear()
        self._missing = False
        self._unsaved = True

    async def _save(self) -> None:
        """Saves what is known, if there is more than was saved. Steps that end meanwhile are saved together."""
        with self._activity.at_work():
            async with self._saving:
                await self._save_all()

    async def _save_all(self) -> None:
        if self._missing or not self._unsaved:
            return
        position = self._position
        try:
            state = self._blueprint.state.write(position.state)
        except NotLasting as error:
            unsaved(error)
            return
        checkpoint = GraphCheckpoint(
            graph=self._blueprint.name,
            origin=position.origin,
            section=position.section,
            at=position.at,
            done=tuple(position.done.values()),
            state=state,
            given={
                key: given
                for key, given in position.given.items()
                if given.section == position.section and given.execution not in position.done
            },
        )
        self._unsaved = False
        try:
            await self._reaction.checkpoint(self._last, checkpoint)
        except BaseException:
            # A join may cancel the branch that saves for the others too.
            self._unsaved = True
            raise
        position.saved, position.given = checkpoint, checkpoint.given


class _WatchedNode(NodeStep[Any, Any]):
    """A step that is a node of a class, watched."""

    def __init__(self, step: NodeStep[Any, Any], call: StepFunction[Any, Any, Any, Any]) -> None:
        super().__init__(step.node_type, id=step.id, label=step.label)
        self._watched = call

    @property
    @override
    def call(self) -> StepFunction[Any, Any, Any, Any]:
        return self._watched


_NOT_DONE: Final = object()
_ASKS: Final = object()
