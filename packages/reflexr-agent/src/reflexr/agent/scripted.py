"""`function_model`: a model for tests that a function plays."""

import re
from collections.abc import AsyncIterator, Iterator
from inspect import isawaitable
from typing import Final

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models.function import (
    AgentInfo,
    BuiltinToolCallsReturns,
    DeltaThinkingCalls,
    DeltaThinkingPart,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionDef,
    FunctionModel,
)
from pydantic_ai.profiles import ModelProfileSpec
from pydantic_ai.settings import ModelSettings

type _Delta = str | DeltaToolCalls | DeltaThinkingCalls | BuiltinToolCallsReturns


def function_model(
    function: FunctionDef,
    *,
    model_name: str | None = None,
    profile: ModelProfileSpec | None = None,
    settings: ModelSettings | None = None,
) -> FunctionModel:
    """Returns a model that answers plain and streamed requests alike from one function.

    A streamed answer is the plain one in pieces: a text word by word, anything else part by part.

    Args:
        function: Takes the messages and what the agent offers, and returns the answer: a function or an `async def`.
        model_name: What the model is called; by default after the function.
        profile: What the model can do.
        settings: Its settings, unless a request has others.
    """

    async def streamed(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[_Delta]:
        answer = function(messages, info)
        # A stream has at least one piece, also that of an answer with nothing in it.
        for delta in list(_deltas(await answer if isawaitable(answer) else answer)) or [""]:
            yield delta

    return FunctionModel(function, stream_function=streamed, model_name=model_name, profile=profile, settings=settings)


_WORDS: Final = re.compile(r"\S+\s*|\s+")


def _deltas(response: ModelResponse) -> Iterator[_Delta]:
    for index, part in enumerate(response.parts):
        if isinstance(part, TextPart):
            yield from _WORDS.findall(part.content)
        else:
            yield _delta(index, part)


def _delta(index: int, part: ModelResponsePart) -> DeltaToolCalls | DeltaThinkingCalls | BuiltinToolCallsReturns:
    match part:
        case ThinkingPart():
            return {index: DeltaThinkingPart(content=part.content, signature=part.signature)}
        case ToolCallPart():
            return {
                index: DeltaToolCall(
                    name=part.tool_name, json_args=part.args_as_json_str(), tool_call_id=part.tool_call_id
                )
            }
        case NativeToolCallPart() | NativeToolReturnPart():
            return {index: part}
        case _:
            raise UserError(f"a function model streams no {type(part).__name__}: answer with texts and calls")
