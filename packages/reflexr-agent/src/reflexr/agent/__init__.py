"""Agents of pydantic-ai and graphs of pydantic-graph as the actions that rules run."""

from reflexr.agent.actions import AgentAction, Prompt, PromptFunction
from reflexr.agent.event_context import EventContext
from reflexr.agent.firing import envelope_text, firing_text
from reflexr.agent.graph_questions import StepQuestion, StepQuestions
from reflexr.agent.graphs import GraphAction
from reflexr.agent.live import LiveDeltas
from reflexr.agent.scripted import function_model
from reflexr.agent.step_reactions import StepReaction
from reflexr.agent.tool_requests import ToolDecision, ToolRequest, ToolRequests

__all__ = [
    # Agents
    "AgentAction",
    "Prompt",
    "PromptFunction",
    "EventContext",
    "LiveDeltas",
    "firing_text",
    "envelope_text",
    "ToolRequests",
    "ToolRequest",
    "ToolDecision",
    # Graphs
    "GraphAction",
    "StepReaction",
    "StepQuestions",
    "StepQuestion",
    # Tests
    "function_model",
]
