"""Calls of an agent's tools that wait for somebody: how they are asked for, and how an answer is understood.

pydantic-ai calls them deferred. An *approval* lets the agent's own tool run. Every other call is made elsewhere: its
result is the answer.
"""

from collections.abc import Iterable
from typing import Final, Literal, LiteralString, Self, cast

from pydantic import BaseModel, JsonValue, ValidationError, model_validator
from pydantic_ai import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.messages import ToolCallPart
from pydantic_core import PydanticCustomError, from_json, to_json

from reflexr.agent.answers import UnfittingAnswer, listed
from reflexr.core import NotJsonError, json_value, problems

_DEPTH: Final = 12
"""How many lists and objects are around a result at most, where it is stored among the messages of a checkpoint."""


class ToolRequest(BaseModel, frozen=True):
    """A call that waits.

    Attributes:
        tool_call_id: The call, by which it is answered.
        tool_name: The tool.
        kind: What it waits for: an `approval`, or the result of an `external` call or of a `question`.
        args: The arguments that the model gave.
        metadata: What the tool said about it, if anything.
    """

    tool_call_id: str
    tool_name: str
    kind: Literal["approval", "external", "question"]
    args: dict[str, JsonValue]
    metadata: dict[str, JsonValue] = {}


class ToolRequests(BaseModel, frozen=True):
    """What a run of an `AgentAction` asks while it is paused, as its `waiting.request`.

    The answer is JSON. `true` approves every call, and `false` refuses every one, if no results are asked for.
    Otherwise it is an object with each `tool_call_id`: for an approval `true`, `false` or a `ToolDecision`, for any
    other call its result.

    Attributes:
        approvals: The calls that run if they are approved.
        calls: The calls that somebody makes, and whose results are the answers.
        problem: What was wrong with the last answer, and what would be right; `None` at first.
    """

    approvals: tuple[ToolRequest, ...] = ()
    calls: tuple[ToolRequest, ...] = ()
    problem: str | None = None

    @classmethod
    def of(cls, requests: DeferredToolRequests) -> Self:
        """Writes pydantic-ai's requests. What of their metadata has no JSON is there as a text."""

        def written(calls: Iterable[ToolCallPart]) -> tuple[ToolRequest, ...]:
            return tuple(
                ToolRequest(
                    tool_call_id=call.tool_call_id,
                    tool_name=call.tool_name,
                    kind=requests.kind(call.tool_call_id),
                    args=_json(call.args_as_dict()),
                    metadata=_json(requests.metadata.get(call.tool_call_id, {})),
                )
                for call in calls
            )

        return cls(approvals=written(requests.approvals), calls=written(requests.calls))

    def results(self, answer: JsonValue) -> DeferredToolResults:
        """Returns an answer as pydantic-ai takes it. What a tool said as its request's metadata, it finds again.

        Raises:
            UnfittingAnswer: It does not answer these requests.
        """
        if isinstance(answer, bool):
            if self.calls:
                raise UnfittingAnswer(
                    f"{str(answer).lower()} answers approvals alone, and results are asked for: answer with an object "
                    f"that has {self._ids()}"
                )
            answer = {call.tool_call_id: answer for call in self.approvals}
        if not isinstance(answer, dict):
            raise UnfittingAnswer(f"answer with true, with false, or with an object that has {self._ids()}")
        asked = {call.tool_call_id for call in (*self.approvals, *self.calls)}
        if unknown := answer.keys() - asked:
            raise UnfittingAnswer(f"there are no such calls: {listed(unknown)}; those that are asked are {self._ids()}")
        if missing := asked - answer.keys():
            raise UnfittingAnswer(f"there are calls without an answer: {listed(missing)}")
        return DeferredToolResults(
            approvals={
                call.tool_call_id: _decision(call.tool_call_id, answer[call.tool_call_id]) for call in self.approvals
            },
            calls={call.tool_call_id: _result(call.tool_call_id, answer[call.tool_call_id]) for call in self.calls},
            metadata={call.tool_call_id: call.metadata for call in (*self.approvals, *self.calls) if call.metadata},
        )

    def _ids(self) -> str:
        return listed(call.tool_call_id for call in (*self.approvals, *self.calls))


class ToolDecision(BaseModel, extra="forbid", frozen=True, strict=True):
    """What becomes of one call that waits for approval.

    Attributes:
        approved: Whether it runs, which has to be said unless there are other arguments.
        message: What the model is told of a refusal; by default that the call was denied.
        override_args: What an approved call is given in place of the model's arguments.
    """

    approved: bool = True
    message: str | None = None
    override_args: dict[str, JsonValue] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "approved" not in self.model_fields_set and self.override_args is None:
            raise _unfitting("say whether the call is approved, as true or false")
        if self.approved and self.message is not None:
            raise _unfitting("only a refusal has a message")
        if not self.approved and self.override_args is not None:
            raise _unfitting("only an approved call has other arguments")
        return self


def _unfitting(text: LiteralString) -> PydanticCustomError:
    return PydanticCustomError("tool_decision", text)


def _decision(tool_call_id: str, answer: JsonValue) -> ToolApproved | ToolDenied:
    if isinstance(answer, bool):
        answer = {"approved": answer}
    if not isinstance(answer, dict):
        raise UnfittingAnswer(
            f"{listed([tool_call_id])} waits for approval: answer it with true, false, or an object with approved, "
            "message and override_args"
        )
    _check_depth(tool_call_id, answer)
    try:
        decision = ToolDecision.model_validate(answer)
    except ValidationError as error:
        raise UnfittingAnswer(f"{listed([tool_call_id])}: {'; '.join(problems(error))}") from error
    if decision.approved:
        return ToolApproved(override_args=decision.override_args)
    return ToolDenied() if decision.message is None else ToolDenied(decision.message)


def _result(tool_call_id: str, answer: JsonValue) -> JsonValue:
    _check_depth(tool_call_id, answer)
    return answer


def _check_depth(tool_call_id: str, answer: JsonValue) -> None:
    try:
        json_value(answer, f"the answer to {listed([tool_call_id])}", _DEPTH)
    except NotJsonError as error:
        raise UnfittingAnswer(str(error)) from error


def _json(value: object) -> dict[str, JsonValue]:
    text = to_json(value, by_alias=True, bytes_mode="base64", inf_nan_mode="strings", serialize_unknown=True)
    return cast("dict[str, JsonValue]", from_json(text))
