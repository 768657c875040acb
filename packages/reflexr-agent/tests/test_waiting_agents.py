"""Agents whose calls wait for somebody."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from pydantic import BaseModel, JsonValue
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    ModelRequest,
    ModelResponse,
    RunContext,
)
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.tools import DeferredToolResults
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import UsageLimits

from reflexr.agent import AgentAction, ToolDecision, ToolRequests
from reflexr.core import Answer, RetryPolicy, Run, UserActor
from reflexr.workspace import Pause, Reaction, WorkspaceError

from .harbour import ADA, Arrived, Harbour, Moored, Script, call, rule

HOUR = timedelta(hours=1)
BOB = UserActor(id="bob", name="Bob")


def sink(call_id: str = "c1", **arguments: Any) -> ToolCallPart:
    return ToolCallPart("sink", {"ship": "Argo", **arguments}, tool_call_id=call_id)


def fetch(call_id: str = "c2") -> ToolCallPart:
    return ToolCallPart("fetch", {"what": "rope"}, tool_call_id=call_id)


class Pilot:
    """An agent with one tool that waits for approval, one whose result comes from elsewhere, and one that just runs."""

    def __init__(self, *answers: ModelResponse | ToolCallPart | str | BaseException, **options: Any) -> None:
        self.script = Script(*answers)
        self.sunk: list[tuple[str, int]] = []
        self.answers: list[Answer | None] = []
        self.conversations: list[str | None] = []
        self.looked = 0
        self.agent = Agent(self.script.model, deps_type=Reaction[Any], **options)
        self.harbour = Harbour()
        self.given: dict[str, Any] = {}
        self.agent.tool(requires_approval=True)(self.sink)
        self.agent.tool_plain(self.fetch)
        self.agent.tool_plain(self.look)

    async def sink(self, ctx: RunContext[Reaction[Any]], ship: str, depth: int = 1) -> str:
        self.sunk.append((ship, depth))
        self.answers.append(ctx.deps.answer)
        self.conversations.append(ctx.conversation_id)
        await ctx.deps.emit(Moored(ship=ship))
        return f"{ship} sunk"

    async def fetch(self, what: str) -> str:
        raise CallDeferred({"from": what})

    async def look(self) -> str:
        self.looked += 1
        return "fog"

    async def arrive(self) -> Run:
        """Lets a ship arrive, and returns the run as it is then."""
        await self.harbour.publish(Arrived(ship="Argo"))
        return await self.act()

    async def act(self) -> Run:
        """Lets another process act."""
        return await self.harbour.act(AgentAction(self.agent, name="pilot", **self.given))

    async def answer(self, answer: JsonValue, *, actor: UserActor = ADA) -> Run:
        """Answers the run, and lets another process act."""
        workspace = (await self.harbour.open()).as_actor(actor)
        (run,) = await workspace.runs()
        await workspace.resume_run(run.id, answer=answer)
        return await self.act()

    def returned(self, number: int = 0) -> dict[str, Any]:
        """What the model was told last of the calls of its last answer, or of one so many answers before."""
        (*_, message) = [one for one in self.script.asked[-1] if isinstance(one, ModelRequest)][: -number or None]
        return {part.tool_call_id: part.content for part in message.parts if isinstance(part, ToolReturnPart)}


def both() -> ModelResponse:
    return ModelResponse([sink(), fetch()])


def asked(run: Run) -> ToolRequests:
    assert run.waiting is not None
    return ToolRequests.model_validate(run.waiting.request)


# --- What is asked


async def test_a_run_whose_agent_calls_a_tool_that_needs_approval_waits() -> None:
    pilot = Pilot(sink())

    run = await pilot.arrive()

    assert (run.status, run.step, run.output, run.spent) == ("paused", "deferred_tools", None, 1)
    assert run.waiting is not None
    assert run.waiting.until is None
    assert run.waiting.request == {
        "approvals": [
            {
                "tool_call_id": "c1",
                "tool_name": "sink",
                "kind": "approval",
                "args": {"ship": "Argo"},
                "metadata": {},
            }
        ],
        "calls": [],
        "problem": None,
    }
    assert pilot.sunk == []


@pytest.mark.parametrize("output_type", [str, [str, DeferredToolRequests], str | DeferredToolRequests])
async def test_an_agent_need_not_name_the_requests_in_its_output_type(output_type: Any) -> None:
    pilot = Pilot(sink(), "done", output_type=output_type)

    await pilot.arrive()
    run = await pilot.answer(answer=True)

    assert (run.status, run.output, pilot.sunk) == ("succeeded", "done", [("Argo", 1)])


class Report(BaseModel):
    ships: int


async def test_an_agent_with_another_output_type_answers_by_it_after_it_waited() -> None:
    pilot = Pilot(sink(), call("final_result", ships=1), output_type=Report)

    await pilot.arrive()

    assert (await pilot.answer(answer=True)).output == {"ships": 1}


async def test_an_agent_that_validates_its_outputs_waits_if_it_names_the_requests_in_its_output_type() -> None:
    pilot = Pilot("fine", sink(), "done", output_type=[str, DeferredToolRequests])
    pilot.agent.output_validator(shout)

    # One action for all its runs: after the first it knows that the agent takes no other output type.
    action = AgentAction(pilot.agent, name="pilot")
    await pilot.harbour.publish(Arrived(ship="Bounty"), Arrived(ship="Argo"))
    await pilot.harbour.act(action)
    first, second = await pilot.harbour.runs()
    await (await pilot.harbour.open()).resume_run(second.id, answer=True)

    assert (first.output, second.status) == ("FINE", "paused")
    assert (await pilot.harbour.act(action)).output == "DONE"


async def test_an_agent_that_validates_its_outputs_and_does_not_name_them_fails_with_what_to_name() -> None:
    pilot = Pilot(sink(), "done")
    pilot.agent.output_validator(shout)

    run = await pilot.arrive()

    assert run.status == "retrying"
    assert "add `DeferredToolRequests` to the list of output types" in (run.error or "")
    assert len(pilot.script.asked) == 1


def shout(output: Any) -> Any:
    return output if isinstance(output, DeferredToolRequests) else output.upper()


async def test_a_misused_agent_is_asked_no_second_time() -> None:
    pilot = Pilot(UserError("not like this"), "done")

    run = await pilot.arrive()

    assert (run.status, run.error) == ("retrying", "UserError: not like this")
    assert len(pilot.script.asked) == 1


async def test_what_it_asks_tells_approvals_external_calls_and_questions_with_what_the_tools_say_of_them() -> None:
    pilot = Pilot(ModelResponse([sink(), fetch(), ToolCallPart("ask", None, "c3"), ToolCallPart("burn", "{}", "c4")]))

    @pilot.agent.tool_plain
    async def ask() -> None:
        raise CallDeferred({"odd": {1, 2}, "nan": float("nan"), "raw": b"\xff", "own": pilot}, kind="question")

    @pilot.agent.tool_plain
    async def burn() -> None:
        raise ApprovalRequired({"cost": 12})

    requests = asked(await pilot.arrive())

    assert {one.tool_call_id: (one.kind, one.metadata) for one in requests.approvals} == {
        "c1": ("approval", {}),
        "c4": ("approval", {"cost": 12}),
    }
    assert [(one.tool_call_id, one.kind, one.args) for one in requests.calls] == [
        ("c2", "external", {"what": "rope"}),
        ("c3", "question", {}),
    ]
    assert requests.calls[0].metadata == {"from": "rope"}
    metadata = requests.calls[1].metadata
    assert (metadata["odd"], metadata["nan"], metadata["raw"]) == ([1, 2], "NaN", "_w==")
    assert "Pilot object" in str(metadata["own"])


async def test_calls_that_the_agent_itself_decides_on_are_not_asked() -> None:
    def approve(ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults:
        return requests.build_results(approve_all=True)

    pilot = Pilot(both(), "done", capabilities=[HandleDeferredToolCalls(handler=approve)])

    run = await pilot.arrive()

    assert [one.tool_call_id for one in asked(run).calls] == ["c2"]
    assert asked(run).approvals == ()
    assert (await pilot.answer({"c2": "rope"})).output == "done"
    assert pilot.sunk == [("Argo", 1)]


# --- Answers


@pytest.mark.parametrize(
    ("answer", "sunk", "told"),
    [
        (True, [("Argo", 1)], "Argo sunk"),
        (False, [], "The tool call was denied."),
        ({"c1": True}, [("Argo", 1)], "Argo sunk"),
        ({"c1": False}, [], "The tool call was denied."),
        ({"c1": {"approved": True}}, [("Argo", 1)], "Argo sunk"),
        ({"c1": {"approved": False}}, [], "The tool call was denied."),
        ({"c1": {"approved": False, "message": "it is mine"}}, [], "it is mine"),
        ({"c1": {"override_args": {"ship": "Bounty"}}}, [("Bounty", 1)], "Bounty sunk"),
        ({"c1": {"approved": True, "override_args": {"ship": "Bounty", "depth": 9}}}, [("Bounty", 9)], "Bounty sunk"),
        ({"c1": ToolDecision(approved=True).model_dump()}, [("Argo", 1)], "Argo sunk"),
        ({"c1": ToolDecision(approved=False, message="no").model_dump()}, [], "no"),
        ({"c1": ToolDecision(override_args={"ship": "Bounty"}).model_dump()}, [("Bounty", 1)], "Bounty sunk"),
    ],
)
async def test_an_answer_decides_what_becomes_of_a_call(
    answer: JsonValue, sunk: list[tuple[str, int]], told: str
) -> None:
    pilot = Pilot(sink(), "done")
    await pilot.arrive()

    run = await pilot.answer(answer)

    assert (run.status, run.output, run.attempt) == ("succeeded", "done", 2)
    assert pilot.sunk == sunk
    assert pilot.returned() == {"c1": told}


@pytest.mark.parametrize("result", [None, "rope", 7, False, ["a"], {"approved": "?"}, {"kind": "tool-denied"}])
async def test_the_result_of_an_external_call_is_any_json(result: JsonValue) -> None:
    pilot = Pilot(both(), "done")
    await pilot.arrive()

    run = await pilot.answer({"c1": False, "c2": result})

    assert run.output == "done"
    assert pilot.returned()["c2"] == result


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "answer with true, with false, or with an object that has 'c1', 'c2'"),
        ("yes", "answer with true, with false, or with an object that has 'c1', 'c2'"),
        (["c1"], "answer with true, with false, or with an object that has 'c1', 'c2'"),
        (True, "true answers approvals alone, and results are asked for: answer with an object that has 'c1', 'c2'"),
        (False, "false answers approvals alone, and results are asked for: answer with an object that has 'c1', 'c2'"),
        ({"c1": True}, "there are calls without an answer: 'c2'"),
        ({"c2": True}, "there are calls without an answer: 'c1'"),
        ({}, "there are calls without an answer: 'c1', 'c2'"),
        (
            {"c1": True, "c2": 1, "c3": True},
            "there are no such calls: 'c3'; those that are asked are 'c1', 'c2'",
        ),
        (
            {"x" * 1000: 1} | {f"y{number}": 1 for number in range(9)},
            f"there are no such calls: '{'x' * 80}…', 'y0', 'y1', 'y2', 'y3' and 5 more; those that are asked are 'c1'",
        ),
        (
            {"c1": "yes", "c2": 1},
            "'c1' waits for approval: answer it with true, false, or an object with approved, message and",
        ),
        ({"c1": 1, "c2": 1}, "'c1' waits for approval"),
        ({"c1": {}, "c2": 1}, "'c1': say whether the call is approved, as true or false"),
        ({"c1": {"approved": 1}, "c2": 1}, "'c1': approved: Input should be a valid boolean"),
        ({"c1": {"approved": None}, "c2": 1}, "'c1': approved: Input should be a valid boolean"),
        ({"c1": {"approved": True, "message": "go"}, "c2": 1}, "'c1': only a refusal has a message"),
        (
            {"c1": {"approved": False, "override_args": {}}, "c2": 1},
            "'c1': only an approved call has other arguments",
        ),
        ({"c1": {"approved": True, "args": {}}, "c2": 1}, "'c1': args: Extra inputs are not permitted"),
        ({"c1": {"override_args": ["Bounty"]}, "c2": 1}, "'c1': override_args: Input should be a valid dictionary"),
    ],
)
async def test_an_answer_that_does_not_fit_is_asked_for_again_with_what_is_wrong(
    answer: JsonValue, problem: str
) -> None:
    pilot = Pilot(both(), "done")
    first = await pilot.arrive()

    run = await pilot.answer(answer)

    assert (run.status, run.attempt, run.spent, run.checkpoints) == ("paused", 2, 2, 1)
    assert (asked(run).problem or "").startswith(problem)
    assert asked(run).model_copy(update={"problem": None}) == asked(first)
    assert (await pilot.answer({"c1": True, "c2": "rope"})).output == "done"
    assert (pilot.sunk, len(pilot.script.asked)) == ([("Argo", 1)], 2)


def nested(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


async def test_an_answer_that_nests_too_deep_to_be_saved_once_more_is_asked_for_again() -> None:
    pilot = Pilot(both(), fetch("c3"), "done")
    await pilot.arrive()

    deep = await pilot.answer({"c1": {"override_args": {"ship": nested(90)}}, "c2": 1})
    deeper = await pilot.answer({"c1": True, "c2": nested(90)})
    # As deep as it gets, it is saved with the messages when the run waits again.
    fits = await pilot.answer({"c1": True, "c2": nested(88)})

    assert "the answer to 'c1'" in (asked(deep).problem or "")
    assert "the answer to 'c2'" in (asked(deeper).problem or "")
    assert (fits.status, asked(fits).problem) == ("paused", None)
    assert (await pilot.answer({"c3": 1})).output == "done"


async def test_a_call_whose_other_arguments_the_tool_refuses_goes_back_to_the_model() -> None:
    pilot = Pilot(sink(), sink("c9"), "done")
    await pilot.arrive()

    run = await pilot.answer({"c1": {"override_args": {"boat": 1}}})

    assert (run.status, [one.tool_call_id for one in asked(run).approvals]) == ("paused", ["c9"])
    assert "ship" in str(pilot.returned()["c1"])
    assert (await pilot.answer(answer=True)).output == "done"
    assert pilot.sunk == [("Argo", 1)]


async def test_tools_find_who_answered_and_what() -> None:
    pilot = Pilot(sink(), "done")
    await pilot.arrive()

    await pilot.answer({"c1": True}, actor=BOB)

    (answer,) = pilot.answers
    assert answer is not None
    assert (answer.actor, answer.value) == (BOB, {"c1": True})


async def test_a_tool_finds_again_what_it_said_when_it_asked() -> None:
    found: list[Any] = []
    pilot = Pilot(call("burn"), "done")

    @pilot.agent.tool
    async def burn(ctx: RunContext[Reaction[Any]]) -> None:
        if not ctx.tool_call_approved:
            raise ApprovalRequired({"cost": 12})
        found.append(ctx.tool_call_metadata)

    await pilot.arrive()
    await pilot.answer(answer=True)

    assert found == [{"cost": 12}]


# --- Going on


async def test_the_agent_goes_on_with_its_messages_in_the_same_conversation() -> None:
    pilot = Pilot(call("look"), ModelResponse([sink(), ToolCallPart("look", {}, "c3")]), "done", instructions="be kind")
    await pilot.arrive()

    await pilot.answer(answer=True)

    before, after = pilot.script.asked[1:]
    # The times of what was said are saved as they are.
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2
    assert pilot.returned() == {"c1": "Argo sunk", "c3": "fog"}
    assert pilot.conversations == [before[0].conversation_id]
    # What ran beside the call that waited is not run again.
    assert pilot.looked == 2


async def test_a_run_waits_as_often_as_its_agent_asks() -> None:
    pilot = Pilot(sink("c1"), fetch("c2"), ModelResponse([sink("c3"), sink("c4")]), "done")

    runs = [
        await pilot.arrive(),
        await pilot.answer({"c1": True}),
        await pilot.answer({"c2": "rope"}),
        await pilot.answer({"c3": False, "c4": True}),
    ]

    assert [run.status for run in runs] == ["paused", "paused", "paused", "succeeded"]
    assert (runs[-1].attempt, runs[-1].spent, runs[-1].checkpoints) == (4, 3, 3)
    assert pilot.sunk == [("Argo", 1), ("Argo", 1)]
    assert len(await pilot.harbour.log(Moored)) == 2
    # Each attempt's usage is its own, as are its requests.
    assert [len(messages) for messages in pilot.script.asked] == [1, 3, 5, 7]


async def test_a_tool_that_is_approved_may_wait_again() -> None:
    pilot = Pilot(call("burn"), "done")
    burnt: list[Any] = []

    @pilot.agent.tool
    async def burn(ctx: RunContext[Reaction[Any]]) -> None:
        steps = (ctx.tool_call_metadata or {"step": 0})["step"]
        if steps < 2:
            raise ApprovalRequired({"step": steps + 1})
        burnt.append(steps)

    first = await pilot.arrive()
    second = await pilot.answer(answer=True)
    run = await pilot.answer(answer=True)

    assert [asked(each).approvals[0].metadata for each in (first, second)] == [{"step": 1}, {"step": 2}]
    assert (run.status, burnt) == ("succeeded", [2])


async def test_what_one_attempt_may_use_is_counted_anew_after_an_answer() -> None:
    pilot = Pilot(call("look"), sink(), call("look"), "done")
    pilot.given["usage_limits"] = UsageLimits(request_limit=2)

    await pilot.arrive()

    assert (await pilot.answer(answer=True)).output == "done"


async def test_an_attempt_that_is_cut_off_after_the_answer_goes_on_from_it_again() -> None:
    pilot = Pilot(sink(), ConnectionError("gone"), "done")
    await pilot.arrive()

    failed = await pilot.answer(answer=True)
    pilot.harbour.clock.advance(HOUR)
    run = await pilot.act()

    assert (failed.status, failed.answer is not None) == ("retrying", True)
    assert (run.status, run.output) == ("succeeded", "done")
    assert pilot.script.asked[1] != pilot.script.asked[0]
    assert [len(messages) for messages in pilot.script.asked] == [1, 3, 3]
    # What it emits has the same id again.
    assert len(await pilot.harbour.log(Moored)) == 1


async def test_a_run_that_failed_for_good_after_the_answer_goes_on_from_it_if_it_is_retried() -> None:
    pilot = Pilot(sink(), ConnectionError("gone"), "done")
    once = rule(retry=RetryPolicy(max_attempts=1))
    action = AgentAction(pilot.agent, name="pilot")
    await pilot.harbour.publish(Arrived(ship="Argo"))
    paused = await pilot.harbour.act(action, once)
    workspace = await pilot.harbour.open()
    await workspace.resume_run(paused.id, answer=True)
    failed = await pilot.harbour.act(action, once)
    await workspace.retry_run(failed.id)

    run = await pilot.harbour.act(action, once)

    assert (failed.status, run.status, run.output) == ("dead_lettered", "succeeded", "done")
    assert len(pilot.script.asked) == 3


async def test_an_attempt_that_is_cancelled_while_an_approved_tool_runs_is_made_again() -> None:
    pilot = Pilot(call("burn"), "done")
    begun, approved = asyncio.Event(), asyncio.Event()

    @pilot.agent.tool_plain(requires_approval=True)
    async def burn() -> str:
        begun.set()
        await approved.wait()
        return "burnt"

    await pilot.arrive()
    answering = asyncio.create_task(pilot.answer(answer=True))
    await begun.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    approved.set()
    pilot.harbour.clock.advance(HOUR)

    run = await pilot.act()

    assert (run.status, run.output, run.attempt) == ("succeeded", "done", 3)


# --- Nobody answers


async def test_a_run_that_nobody_answers_in_time_has_failed_and_asks_the_same_if_it_is_retried() -> None:
    pilot = Pilot(sink(), "done")
    pilot.given["answer_timeout"] = 2 * HOUR
    first = await pilot.arrive()
    pilot.harbour.clock.advance(2 * HOUR)

    expired = await pilot.act()
    await (await pilot.harbour.open()).retry_run(expired.id)
    again = await pilot.act()

    assert (expired.status, expired.reason) == ("dead_lettered", "unanswered")
    assert (again.status, asked(again)) == ("paused", asked(first))
    assert again.waiting is not None
    assert again.waiting.until == pilot.harbour.clock() + 2 * HOUR
    assert len(pilot.script.asked) == 1
    assert (await pilot.answer(answer=True)).output == "done"


async def test_the_time_counts_anew_after_an_answer_that_does_not_fit() -> None:
    pilot = Pilot(sink(), "done")
    pilot.given["answer_timeout"] = 2 * HOUR
    await pilot.arrive()
    pilot.harbour.clock.advance(HOUR)

    run = await pilot.answer("yes")

    assert run.waiting is not None
    assert run.waiting.until == pilot.harbour.clock() + 2 * HOUR


def test_a_time_that_is_over_at_once_is_refused() -> None:
    with pytest.raises(WorkspaceError, match="is not more than 0"):
        AgentAction(Pilot().agent, name="pilot", answer_timeout=timedelta())


# --- What is saved


def discarded(spans: Sequence[ReadableSpan]) -> list[str]:
    return [
        str(event.attributes["reflexr.reason"])
        for span in spans
        for event in span.events
        if event.name == "reflexr.checkpoint.discarded" and event.attributes
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"agent": "cook"}, "it is of the agent 'cook', not of 'pilot'"),
        ({"version": 2}, "version"),
        ({"messages": [{"kind": "telegram"}]}, "telegram"),
        ({"requests": None}, "requests"),
    ],
)
async def test_what_cannot_be_read_back_is_set_aside_and_the_agent_begins_anew(
    changes: dict[str, Any], reason: str
) -> None:
    pilot = Pilot("done")

    async def another(reaction: Reaction[Any]) -> None:
        paused = await AgentAction(Pilot(sink()).agent, name="pilot").run(reaction)
        assert isinstance(paused, Pause)
        assert isinstance(paused.state, BaseModel)
        await reaction.checkpoint("deferred_tools", paused.state.model_dump(mode="json") | changes)
        raise ConnectionError

    await pilot.harbour.publish(Arrived(ship="Argo"))
    await pilot.harbour.act(another)
    run = await pilot.harbour.act_again(AgentAction(pilot.agent, name="pilot"))

    assert (run.status, run.output) == ("succeeded", "done")
    (told,) = discarded(pilot.harbour.exporter.get_finished_spans())
    assert reason in told


async def test_what_the_messages_hold_that_has_no_json_is_saved_as_a_text_or_as_null() -> None:
    pilot = Pilot(ToolCallPart("weigh", {}, "c0"), sink(), "done")

    @pilot.agent.tool_plain
    async def weigh() -> dict[str, Any]:
        return {"tons": float("nan"), "raw": b"\xff\x00"}

    await pilot.arrive()
    run = await pilot.answer(answer=True)

    assert run.status == "succeeded"
    assert pilot.returned(1) == {"c0": {"tons": None, "raw": "_wA="}}


async def test_a_toolset_given_to_the_agent_waits_as_its_own_tools_do() -> None:
    toolset = FunctionToolset[Reaction[Any]]()
    rung: list[str] = []

    @toolset.tool_plain
    async def ring(bell: str) -> None:
        rung.append(bell)

    pilot = Pilot(call("ring", bell="b"), "done", toolsets=[toolset.approval_required()])
    await pilot.arrive()

    run = await pilot.answer(answer=True)

    assert (run.status, rung) == ("succeeded", ["b"])


async def test_many_calls_wait_and_are_answered_at_once() -> None:
    calls = [sink(f"c{number}") for number in range(200)]
    pilot = Pilot(ModelResponse(calls), "done")
    await pilot.arrive()

    run = await pilot.answer({part.tool_call_id: index % 2 == 0 for index, part in enumerate(calls)})

    assert (run.status, len(pilot.sunk)) == ("succeeded", 100)
