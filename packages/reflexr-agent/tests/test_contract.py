"""Agents and graphs keep the contract of actions."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, override

from pydantic import BaseModel
from pydantic_ai import Agent, ModelResponse, RunContext, ToolCallPart, ToolOutput
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo
from pydantic_graph import Graph, GraphBuilder, StepContext

from reflexr.agent import AgentAction, GraphAction, StepReaction, function_model
from reflexr.contracts import ActionContract, Feature, Work
from reflexr.workspace import Action, Reaction


def answers(_: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([ToolCallPart(info.output_tools[0].name, {})])


def calls_and_answers(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Calls the tool, and answers with what it returned."""
    for part in messages[-1].parts:
        if isinstance(part, ToolReturnPart):
            return ModelResponse([ToolCallPart(info.output_tools[0].name, {"result": part.content})])
    return ModelResponse([ToolCallPart("repair", {})])


class TestAgentAction(ActionContract):
    """What it asks is an approval."""

    features = frozenset({Feature.QUESTIONS})

    @override
    def action(self, work: Work, params: type[BaseModel] | None) -> Action[Any]:
        async def answer(ctx: RunContext[Reaction[Any]]) -> Any:
            return await work(ctx.deps)

        agent = Agent(function_model(answers), deps_type=Reaction[Any], output_type=ToolOutput(answer, name="answer"))
        return AgentAction(agent, name="act", params=params)

    @override
    def question(self, work: Work, answer_timeout: timedelta | None) -> Action[Any]:
        def answer(result: Any) -> Any:
            return result

        agent = Agent(
            function_model(calls_and_answers),
            deps_type=Reaction[Any],
            output_type=ToolOutput(answer, name="answer"),
        )

        @agent.tool(requires_approval=True)
        async def repair(ctx: RunContext[Reaction[Any]]) -> Any:
            return await work(ctx.deps)

        return AgentAction(agent, name="act", answer_timeout=answer_timeout)


type Step = Callable[[StepContext[None, StepReaction[Any], None]], Awaitable[Any]]


class TestGraphAction(ActionContract):
    features = frozenset({Feature.QUESTIONS})

    def graph(self, do: Step) -> Graph[Any, Any, Any, Any]:
        """A graph of one step."""
        graph: Any = GraphBuilder(deps_type=StepReaction[Any])
        step = graph.step(do)
        graph.add(graph.edge_from(graph.start_node).to(step), graph.edge_from(step).to(graph.end_node))
        return graph.build()

    @override
    def action(self, work: Work, params: type[BaseModel] | None) -> Action[Any]:
        async def do(ctx: StepContext[None, StepReaction[Any], None]) -> Any:
            return await work(ctx.deps)

        return GraphAction(self.graph(do), name="act", params=params)

    @override
    def question(self, work: Work, answer_timeout: timedelta | None) -> Action[Any]:
        async def do(ctx: StepContext[None, StepReaction[Any], None]) -> Any:
            await ctx.deps.ask("may it be repaired?", answer_timeout=answer_timeout)
            return await work(ctx.deps)

        return GraphAction(self.graph(do), name="act")


class TestGraphActionOfBranches(TestGraphAction):
    """The work is a branch's."""

    @override
    def graph(self, do: Step) -> Graph[Any, Any, Any, Any]:
        graph: Any = GraphBuilder(deps_type=StepReaction[Any])

        async def wait(ctx: StepContext[None, StepReaction[Any], None]) -> Any:
            return None

        def either(current: Any, value: Any) -> Any:
            return current if value is None else value

        branches = graph.step(do), graph.step(wait)
        join = graph.join(either, initial=None)
        graph.add(
            graph.edge_from(graph.start_node).to(*branches),
            graph.edge_from(*branches).to(join),
            graph.edge_from(join).to(graph.end_node),
        )
        return graph.build()
