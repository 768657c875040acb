"""`AgentAction`: an agent of pydantic-ai as what a firing runs."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from inspect import isawaitable
from typing import Any

from pydantic import BaseModel
from pydantic_ai import (
    AgentRunResult,
    DeferredToolRequests,
    DeferredToolResults,
    UsageLimits,
    UserContent,
    UserError,
    capture_run_messages,
)
from pydantic_ai.agent import AbstractAgent

from reflexr.agent.agent_checkpoints import STEP, SavedAgent, checkpoint_of, saved_agent
from reflexr.agent.answers import UnfittingAnswer
from reflexr.agent.failures import CONTENT_FILTERED, agent_failures
from reflexr.agent.firing import firing_text
from reflexr.agent.outputs import output_of
from reflexr.core import derived_id
from reflexr.workspace import Output, Pause, Reaction, RunFailure

type Prompt = str | Sequence[UserContent]
"""What an agent is asked: a text, or texts, images and files as pydantic-ai takes them."""

type PromptFunction[Deps] = Callable[[Reaction[Deps]], Prompt | Awaitable[Prompt]]
"""Makes the prompt of an attempt, as a function or an `async def`."""


class AgentAction[Deps]:
    """An agent as an action: it is asked about the firing, and what it answers is the run's output.

    The agent is any of pydantic-ai's with `deps_type=Reaction[...]`, so its tools and instructions have the reaction as
    `ctx.deps`. Each attempt is an agent run of its own, in the conversation that has the causal chain's id.

    Where a tool needs an approval, or its result comes from elsewhere, the run pauses: its `waiting.request` is a
    `ToolRequests`, which says how it is answered. Then the agent goes on with its messages, in whatever process. An
    answer that does not fit fails nothing: the run asks again, and says what was wrong. Tools find who answered as
    `ctx.deps.answer`. An agent that has output validators, and tools that wait, names `DeferredToolRequests` in its
    output type; any other need not.
    """

    def __init__(
        self,
        agent: AbstractAgent[Reaction[Deps], Any],
        *,
        name: str,
        params: type[BaseModel] | None = None,
        usage_limits: UsageLimits | None = None,
        prompt: PromptFunction[Deps] = firing_text,
        answer_timeout: timedelta | None = None,
    ) -> None:
        """Wraps an agent.

        Args:
            agent: The agent.
            name: The name under which `run(action)` refers to it.
            params: The model of the params that rules give it, which tools read by `ctx.deps.params_as(model)`.
            usage_limits: What one attempt may use at most, in requests, tool calls and tokens; by default
                pydantic-ai's own limits.
            prompt: Makes what the agent is asked; by default `firing_text`. What others wrote is data to a model only
                in frames, such as those of `firing_text` and `envelope_text`.
            answer_timeout: How long a run waits at most each time that it asks for something, more than 0; then it is
                dead-lettered as `unanswered`. By default it waits for any time.

        Raises:
            WorkspaceError: The timeout is not more than 0.
        """
        self._pause = Pause(None, timeout=answer_timeout)
        self._agent = agent
        self._name = name
        self._params = params
        self._usage_limits = usage_limits
        self._prompt = prompt
        self._extends = True

    @property
    def name(self) -> str:
        """The name under which `run(action)` refers to it."""
        return self._name

    @property
    def params(self) -> type[BaseModel] | None:
        """The model of its params."""
        return self._params

    async def run(self, reaction: Reaction[Deps], /) -> Output:
        """Runs the agent, from where the run stands, and returns its output, or a `Pause` if calls have to wait.

        Raises:
            RunFailure: The agent used more than its limits allow, or the content was refused or is more than the model
                takes: for good, with the reason `usage_limit_exceeded`, `content_filtered` or
                `context_window_exceeded`.
        """
        saved = saved_agent(self._name, reaction)
        if saved is None:
            asked = self._prompt(reaction)
            result = await self._ask(reaction, await asked if isawaitable(asked) else asked)
        elif reaction.answer is None:
            # It was retried, as nobody had answered it.
            return replace(self._pause, request=saved.requests)
        else:
            try:
                results = saved.requests.results(reaction.answer.value)
            except UnfittingAnswer as error:
                return replace(self._pause, request=saved.requests.model_copy(update={"problem": str(error)}))
            result = await self._ask(reaction, None, saved, results)
        if result.response.finish_reason == "content_filter":
            raise RunFailure("the model's answer was filtered", reason=CONTENT_FILTERED, permanent=True)
        if isinstance(result.output, DeferredToolRequests):
            checkpoint = checkpoint_of(self._name, result.all_messages(), result.output)
            return replace(self._pause, request=checkpoint.requests, step=STEP, state=checkpoint)
        return output_of(result.output)

    async def _ask(
        self,
        reaction: Reaction[Deps],
        prompt: Prompt | None,
        saved: SavedAgent | None = None,
        results: DeferredToolResults | None = None,
    ) -> AgentRunResult[Any]:
        """Runs the agent so that its calls may wait, whether or not its output type says so."""
        if not self._extends:
            return await self._run_agent(reaction, prompt, saved, results, None)
        with capture_run_messages() as messages:
            try:
                output_type = [self._agent.output_type, DeferredToolRequests]
                return await self._run_agent(reaction, prompt, saved, results, output_type)
            except UserError:
                if messages:
                    raise
        # It did not begin: an agent that validates its outputs refuses to have any other output type.
        result = await self._run_agent(reaction, prompt, saved, results, None)
        self._extends = False
        return result

    async def _run_agent(
        self,
        reaction: Reaction[Deps],
        prompt: Prompt | None,
        saved: SavedAgent | None,
        results: DeferredToolResults | None,
        output_type: Any,
    ) -> AgentRunResult[Any]:
        with agent_failures():
            return await self._agent.run(
                prompt,
                output_type=output_type,
                message_history=None if saved is None else saved.messages,
                deferred_tool_results=results,
                deps=reaction,
                conversation_id=_conversation_id(reaction.run.correlation_id),
                usage_limits=self._usage_limits,
                infer_name=False,
            )


def _conversation_id(correlation_id: str) -> str:
    # To pydantic-ai the word "new" asks for an id of its own making, at each attempt another.
    return derived_id("chain", correlation_id) if correlation_id == "new" else correlation_id
