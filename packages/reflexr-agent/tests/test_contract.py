"""Agents and graphs keep the contract of actions."""

from typing import Any, override

from pydantic import BaseModel
from pydantic_ai import Agent, ModelResponse, RunContext, ToolCallPart, ToolOutput
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo
from pydantic_graph import GraphBuilder, StepContext

from reflexr.agent import AgentAction, GraphAction, function_model
from reflexr.contracts import ActionContract, Work
from reflexr.workspace import Action, Reaction


def answers(_: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([ToolCallPart(info.output_tools[0].name, {})])


class TestAgentAction(ActionContract):
    @override
    def action(self, work: Work, params: type[BaseModel] | None) -> Action[Any]:
        async def answer(ctx: RunContext[Reaction[Any]]) -> Any:
            return await work(ctx.deps)

        agent = Agent(function_model(answers), deps_type=Reaction[Any], output_type=ToolOutput(answer, name="answer"))
        return AgentAction(agent, name="act", params=params)


class TestGraphAction(ActionContract):
    @override
    def action(self, work: Work, params: type[BaseModel] | None) -> Action[Any]:
        graph: Any = GraphBuilder(deps_type=Reaction[Any])

        async def do(ctx: StepContext[None, Reaction[Any], None]) -> Any:
            return await work(ctx.deps)

        step = graph.step(do)
        graph.add(graph.edge_from(graph.start_node).to(step), graph.edge_from(step).to(graph.end_node))
        return GraphAction(graph.build(), name="act", params=params)


class TestGraphActionOfBranches(ActionContract):
    """The work is a branch's."""

    @override
    def action(self, work: Work, params: type[BaseModel] | None) -> Action[Any]:
        graph: Any = GraphBuilder(deps_type=Reaction[Any])

        async def do(ctx: StepContext[None, Reaction[Any], None]) -> Any:
            return await work(ctx.deps)

        async def wait(ctx: StepContext[None, Reaction[Any], None]) -> Any:
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
        return GraphAction(graph.build(), name="act", params=params)
