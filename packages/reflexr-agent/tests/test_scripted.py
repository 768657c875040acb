from typing import Any

import pytest
from pydantic_ai import Agent, ModelResponse, TextPart
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo

from reflexr.agent import function_model

PARTS = [
    [TextPart("berth  4,\n it is ")],
    [ThinkingPart("hm", signature="s", provider_name="function"), TextPart("berth 4")],
    [
        NativeToolCallPart("web_search", {"query": "Argo"}, tool_call_id="n"),
        NativeToolReturnPart("web_search", "found", tool_call_id="n"),
        TextPart("found"),
    ],
]


def of(parts: list[ModelResponsePart]) -> list[tuple[Any, ...]]:
    return [(type(part), getattr(part, "content", None), getattr(part, "tool_name", None)) for part in parts]


@pytest.mark.parametrize("parts", PARTS)
async def test_a_streamed_answer_is_the_plain_one_in_pieces(parts: list[ModelResponsePart]) -> None:
    agent = Agent(function_model(lambda _, __: ModelResponse(parts)))

    plain = await agent.run("?")
    async with agent.run_stream("?") as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]
        last = streamed.response

    assert plain.output == "".join(pieces) == parts[-1].content if isinstance(parts[-1], TextPart) else None
    assert of(list(last.parts)) == of(list(plain.response.parts))


async def test_a_text_is_streamed_word_by_word() -> None:
    async def answer(_: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart("one two  three")])

    async with Agent(function_model(answer)).run_stream("?") as streamed:
        assert [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)] == [
            "one ",
            "two  ",
            "three",
        ]


async def test_calls_of_tools_are_streamed_too() -> None:
    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("add", {"a": 1}, "x"), ToolCallPart("add", '{"a": 2}', "y")])
        return ModelResponse([TextPart("added")])

    agent = Agent(function_model(answer, model_name="adder"))
    added: list[int] = []

    @agent.tool_plain
    def add(a: int) -> None:
        added.append(a)

    async with agent.run_stream("?") as streamed:
        assert await streamed.get_output() == "added"

    assert (await agent.run("?")).response.model_name == "adder"
    assert sorted(added) == [1, 1, 2, 2]


async def test_an_answer_with_nothing_in_it_can_be_streamed() -> None:
    answers = [ModelResponse([]), ModelResponse([TextPart("")]), ModelResponse([TextPart("something")])]
    agent = Agent(function_model(lambda _, __: answers.pop(0)), retries=2)

    async with agent.run_stream("?") as streamed:
        assert await streamed.get_output() in {"", "something"}


async def test_what_cannot_be_streamed_is_refused() -> None:
    image = ModelResponse([FilePart(BinaryContent(b"x", media_type="image/png"))])

    with pytest.raises(UserError, match="streams no FilePart"):
        async with Agent(function_model(lambda _, __: image)).run_stream("?"):
            pass
