"""Checkpoints of agents: the messages and the requests of a run that waits for somebody."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, JsonValue
from pydantic_ai import DeferredToolRequests, ModelMessagesTypeAdapter
from pydantic_ai.messages import ModelMessage
from pydantic_core import from_json, to_json

from reflexr.agent.discarding import discarded
from reflexr.agent.tool_requests import ToolRequests
from reflexr.workspace import Reaction

STEP: Final = "deferred_tools"
"""The step after which an agent's messages are saved: the model has answered with calls that wait."""


class AgentCheckpoint(BaseModel, extra="forbid"):
    """Where an agent stands while it waits.

    Attributes:
        version: The version of this form.
        agent: The action whose agent it is.
        messages: The messages so far, as pydantic-ai writes them.
        requests: What is asked.
    """

    version: Literal[1] = 1
    agent: str
    messages: JsonValue
    requests: ToolRequests


@dataclass(frozen=True, slots=True)
class SavedAgent:
    """What an attempt goes on from.

    Attributes:
        messages: The messages so far.
        requests: What was asked.
    """

    messages: Sequence[ModelMessage]
    requests: ToolRequests


def checkpoint_of(agent: str, messages: Sequence[ModelMessage], requests: DeferredToolRequests) -> AgentCheckpoint:
    """Returns what is saved of an agent that waits. What of its messages has no JSON is saved as a text, or as null."""
    written = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json", fallback=str)
    return AgentCheckpoint(
        agent=agent,
        messages=from_json(to_json(written, inf_nan_mode="null")),
        requests=ToolRequests.of(requests),
    )


def saved_agent(agent: str, reaction: Reaction[Any]) -> SavedAgent | None:
    """Returns where a run's agent goes on from; `None` if it begins.

    A checkpoint that is not of this action, or that pydantic-ai no longer reads, is set aside: the attempt's span says
    so.
    """
    if not reaction.run.checkpoints:
        return None
    try:
        saved = AgentCheckpoint.model_validate_json(to_json(reaction.run.checkpoint))
        if saved.agent != agent:
            raise ValueError(f"it is of the agent {saved.agent!r}, not of {agent!r}")
        return SavedAgent(ModelMessagesTypeAdapter.validate_json(to_json(saved.messages)), saved.requests)
    except ValueError as error:
        discarded(error)
        return None
