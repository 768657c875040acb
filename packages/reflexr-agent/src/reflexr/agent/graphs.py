"""`GraphAction`: a graph of pydantic-graph as what a firing runs."""

from collections.abc import Callable
from typing import Any

from opentelemetry.trace import TracerProvider
from pydantic import BaseModel
from pydantic_graph import Graph

from reflexr.agent.answers import UnfittingAnswer
from reflexr.agent.failures import agent_failures
from reflexr.agent.graph_questions import GraphPaused, questions_of, timeout_of
from reflexr.agent.graph_runs import Blueprint, GraphAttempt
from reflexr.agent.outputs import output_of
from reflexr.agent.step_reactions import StepReaction
from reflexr.telemetry import Tracing
from reflexr.workspace import Output, Pause, Reaction


class GraphAction[Deps, State, Inputs]:
    """A graph as an action: each attempt goes on after the last step that was saved, in whatever process it is made.

    The graph is any that a `GraphBuilder` built with `deps_type=Reaction[...]`. Each step is a span
    `execute_step {node}`, and once it has ended it is not run again: the run's checkpoint says so before the next one
    begins. That holds in the branches of a fork too: those that had ended are not repeated. So an attempt that is cut
    short repeats the steps that were running, and no other.

    What a checkpoint holds is written by the types that the graph and its steps declare, and saved only if it reads
    back as it was; a step whose output does not, such as a stream's, is repeated with what follows it. A checkpoint
    that the types no longer accept is set aside, as the attempt's span says, and the graph begins anew.

    A step finds its reaction as `ctx.deps`, which is a `StepReaction`: with that as the `deps_type`, it can `ask` for
    something, and then the run pauses. What it emits has its id from the step, so repeated it emits nothing twice.
    Reducers, transformations and decisions run again when an attempt goes on, so they compute, and write nothing to the
    state. Branches share the state: one that is repeated finds in it what it wrote, unless it writes after its last
    `await`, or hands it on to its join instead.
    """

    def __init__(
        self,
        graph: Graph[State, Reaction[Deps], Inputs, Any] | Graph[State, StepReaction[Deps], Inputs, Any],
        *,
        name: str,
        state: Callable[[], State] | None = None,
        inputs: Callable[[Reaction[Deps]], Inputs] | None = None,
        params: type[BaseModel] | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        """Wraps a graph.

        Args:
            graph: The graph.
            name: The name under which `run(action)` refers to it.
            state: Makes the state that the graph begins with, such as its class; by default `None`.
            inputs: Makes the graph's inputs of the reaction, the same at each attempt; by default `None`.
            params: The model of the params that rules give it, which steps read by `ctx.deps.params_as(model)`.
            tracer_provider: What traces its steps; by default the process's.
        """
        self._blueprint = Blueprint(name, graph, Tracing(tracer_provider))
        self._state = state
        self._inputs = inputs
        self._params = params

    @property
    def name(self) -> str:
        """The name under which `run(action)` refers to it."""
        return self._blueprint.name

    @property
    def params(self) -> type[BaseModel] | None:
        """The model of its params."""
        return self._params

    async def run(self, reaction: Reaction[Deps], /) -> Output:
        """Runs the graph from where the run stands, and returns what it comes to, or a `Pause` if steps ask.

        Raises:
            RunFailure: A step raised it, or what an agent that a step ran raises where another try is pointless.
        """
        position = self._blueprint.position(reaction)
        if reaction.answer is not None and (asked := position.saved.asked):
            try:
                position.tell(reaction.answer)
            except UnfittingAnswer as error:
                questions = questions_of(asked).model_copy(update={"problem": str(error)})
                return Pause(questions, timeout=timeout_of(asked))
        if position.saved.fresh and self._state is not None:
            position.state = self._state()
        if position.at is None and self._inputs is not None:
            position.inputs = self._inputs(reaction)
        try:
            with agent_failures():
                return output_of(await GraphAttempt(self._blueprint, reaction, position).run())
        except GraphPaused as paused:
            return paused.pause
