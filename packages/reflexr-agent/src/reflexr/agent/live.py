"""`LiveDeltas`: the capability with which an agent says what it is at, to who listens, while its run goes on."""

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast, override

from pydantic_ai import AgentStreamEvent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    BaseToolCallPart,
    BaseToolReturnPart,
    FunctionToolResultEvent,
    ModelResponsePart,
    ModelResponsePartDelta,
    NativeToolReturnPart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPartDelta,
)
from pydantic_core import to_json

from reflexr.core import MAX_DELTA, DeltaKind
from reflexr.workspace import LiveAttempt, Reaction


@dataclass
class LiveDeltas(AbstractCapability[Reaction[Any]]):
    """Tells subscribers that ask for deltas what an agent's model says, as it says it.

    They are told the model's texts, its thinking, the arguments of its calls, and the beginning of what each tool
    returned. Nothing of it is recorded, and the run waits for nobody.

    The agent's requests are streamed whether or not somebody listens, so that whether somebody does changes nothing
    about the run. Its model has to be one that streams.
    """

    _parts: "dict[int, _Part]" = field(default_factory=dict[int, "_Part"], init=False, repr=False)
    _calls: "dict[str, _Part | None]" = field(default_factory=dict[str, "_Part | None"], init=False, repr=False)

    @override
    async def for_run(self, ctx: RunContext[Reaction[Any]]) -> "LiveDeltas":
        """Returns a capability of the run's own."""
        return replace(self)

    @override
    async def wrap_run_event_stream(
        self, ctx: RunContext[Reaction[Any]], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        """Passes the events on as they are."""
        events = cast("AsyncGenerator[AgentStreamEvent]", super().wrap_run_event_stream(ctx, stream=stream))
        async with aclosing(events):
            async for event in events:
                self._tell(ctx.deps.live, event)
                yield event

    def _tell(self, live: LiveAttempt, event: AgentStreamEvent) -> None:
        match event:
            case PartStartEvent(index=index, part=NativeToolReturnPart() as part):
                self._parts.pop(index, None)
                self._tell_result(live, part)
            case PartStartEvent(index=index, part=part):
                self._begin(live, index, part)
            case PartDeltaEvent(index=index, delta=delta) if index in self._parts:
                self._parts[index].tell(live, _piece(delta))
            case PartEndEvent(index=index, part=BaseToolCallPart() as call):
                self._calls[call.tool_call_id] = self._parts.get(index)
            case FunctionToolResultEvent(part=part):
                self._tell_result(live, part)
            case _:
                pass

    def _begin(self, live: LiveAttempt, index: int, part: ModelResponsePart) -> None:
        # Parts are counted anew in each answer of the model.
        self._parts.pop(index, None)
        match part:
            case TextPart(content=text):
                self._parts[index] = _Part(live.new_part(), "text")
                self._parts[index].tell(live, text)
            case ThinkingPart(content=text):
                self._parts[index] = _Part(live.new_part(), "thinking")
                self._parts[index].tell(live, text)
            case BaseToolCallPart(tool_name=tool, args=arguments):
                number = live.new_part()
                self._parts[index] = _Part(number, "tool_call", tool)
                # Also where there are no arguments yet, as it says which tool is called.
                live.send(_json(arguments), kind="tool_call", part=number, tool=tool)
            case _:
                pass

    def _tell_result(self, live: LiveAttempt, result: BaseToolReturnPart[Any]) -> None:
        call = self._calls.get(result.tool_call_id)
        number = live.new_part() if call is None else call.number
        text = _shown(result) if live.is_heard else ""
        live.send(text, kind="tool_result", part=number, tool=result.tool_name)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of what is said.

    Attributes:
        number: Its number in the attempt.
        kind: What its pieces are.
        tool: The tool that it calls, if it calls one.
    """

    number: int
    kind: DeltaKind
    tool: str | None = None

    def tell(self, live: LiveAttempt, text: str) -> None:
        if text:
            live.send(text, kind=self.kind, part=self.number, tool=self.tool)


def _piece(delta: ModelResponsePartDelta) -> str:
    match delta:
        case TextPartDelta(content_delta=text) | ThinkingPartDelta(content_delta=text):
            return text or ""
        case ToolCallPartDelta(args_delta=arguments):
            return _json(arguments)
        case _:
            return ""


def _json(arguments: Any) -> str:
    """Returns the JSON of arguments, or the piece of it that is there already."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return to_json(arguments, serialize_unknown=True).decode()


def _shown(result: BaseToolReturnPart[Any]) -> str:
    """Returns the beginning of what a tool returned, as the model reads it."""
    try:
        return result.model_response_str()[:MAX_DELTA]
    except (ValueError, RecursionError):
        # What has no JSON is the agent's to fail by, with or without somebody who listens.
        return ""
