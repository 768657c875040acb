"""Pauses: what an action returns to wait for an answer, and what comes of it."""

import asyncio
from datetime import datetime, timedelta
from math import nan
from typing import Any, override

import pytest
from pydantic import BaseModel

from reflexr.core import Actor, Event, InvalidState, Run, ValidationFailed, on, run
from reflexr.workspace import Access, Pause, Reaction, ResumeAction, WorkspaceError

from .plant import BOB, START, Alarm, PlantEvent
from .reacting import ONCE, Bench, Gate, rule

HOUR = timedelta(hours=1)


class Told(PlantEvent):
    run_id: Any = None
    answer: Any = None


class ToldWhich(Told):
    attempt: Any = None


class Request(BaseModel):
    machine: str
    since: datetime


class Asking:
    """An action that asks, until it was told, and returns what it was told."""

    params = None

    def __init__(self, pause: Pause | None = None) -> None:
        self.pause = Pause("go on?") if pause is None else pause
        self.reactions: list[Reaction[Any]] = []

    async def run(self, reaction: Reaction[Any]) -> Any:
        self.reactions.append(reaction)
        return self.pause if reaction.answer is None else reaction.answer.value


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def paused(bench: Bench, action: Any = None, **changes: Any) -> Run:
    """Returns a run that has asked, if its action did not fail."""
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(**changes), actions={"page": Asking() if action is None else action}).settle()
    (found,) = await bench.runs()
    return found


async def test_a_run_whose_action_asks_is_paused_until_it_is_answered(bench: Bench) -> None:
    action = Asking(Pause({"start": "press"}, timeout=HOUR, step="asked", state=[1]))
    reactor = bench.reactor(rule(), actions={"page": action})
    asked = await paused(bench, action)

    assert (asked.status, asked.attempt, asked.checkpoint, asked.step) == ("paused", 1, [1], "asked")
    assert asked.waiting is not None
    assert (asked.waiting.request, asked.waiting.until) == ({"start": "press"}, START + HOUR)
    await reactor.settle()
    assert len(action.reactions) == 1

    resumed = await (await bench.open()).as_actor(BOB).resume_run(asked.id, answer={"ok": True})
    assert (resumed.status, resumed.waiting) == ("pending", None)
    await reactor.settle()

    (ended,) = await bench.runs()
    assert (ended.status, ended.output, ended.attempt) == ("succeeded", {"ok": True}, 2)
    answer = action.reactions[-1].answer
    assert answer is not None
    assert (answer.actor, answer.at) == (BOB, START)
    assert [name for name in await bench.types() if name.startswith("run_")] == [
        "run_started",
        "run_paused",
        "run_resumed",
        "run_started",
        "run_succeeded",
    ]


async def test_a_request_and_a_state_may_be_models(bench: Bench) -> None:
    request = Request(machine="press", since=START)

    asked = await paused(bench, Asking(Pause(request, step="s", state=request)))

    assert asked.waiting is not None
    assert asked.waiting.request == asked.checkpoint == {"machine": "press", "since": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("pause", [Pause({"load": nan}), Pause("?", step="s", state=[nan])])
async def test_what_is_no_json_fails_the_attempt(bench: Bench, pause: Pause) -> None:
    failed = await paused(bench, Asking(pause), retry=ONCE)

    assert (failed.status, failed.reason) == ("dead_lettered", "invalid_output")
    assert "Pause with JSON" in str(failed.error)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"timeout": timedelta()}, "timeout: .* is not more than 0"),
        ({"timeout": -HOUR}, "timeout: .* is not more than 0"),
        ({"state": {}}, "state: a state is saved after a step"),
        ({"step": 5}, "step: 5 is no text"),
    ],
)
def test_a_pause_that_makes_no_sense_is_refused_when_it_is_made(arguments: Any, problem: str) -> None:
    with pytest.raises(WorkspaceError, match=problem):
        Pause("?", **arguments)


async def test_a_timeout_beyond_all_times_is_none(bench: Bench) -> None:
    asked = await paused(bench, Asking(Pause("?", timeout=timedelta.max)))

    assert asked.waiting is not None
    assert asked.waiting.until is None


async def test_a_run_that_nobody_answers_in_time_is_dead_lettered(bench: Bench) -> None:
    action = Asking(Pause("?", timeout=HOUR))
    asked = await paused(bench, action)
    reactor = bench.reactor(rule(), actions={"page": action})
    bench.clock.advance(HOUR - timedelta.resolution)
    await reactor.settle()
    assert await bench.statuses() == ["paused"]

    bench.clock.advance(timedelta.resolution)
    await reactor.settle()

    (dead,) = await bench.runs()
    assert (dead.status, dead.reason, dead.waiting) == ("dead_lettered", "unanswered", None)
    with pytest.raises(InvalidState):
        await (await bench.open()).resume_run(asked.id)


@pytest.mark.parametrize(("on_pause", "statuses"), [("continue", "succeeded"), ("block", "pending")])
async def test_a_rule_says_whether_a_paused_run_keeps_its_place(bench: Bench, on_pause: str, statuses: str) -> None:
    class First(Asking):
        @override
        async def run(self, reaction: Reaction[Any]) -> Any:
            return await super().run(reaction) if reaction.envelopes[0].seq == 1 else None

    action = First()
    asked = await paused(bench, action, on_pause=on_pause)
    reactor = bench.reactor(rule(on_pause=on_pause), actions={"page": action})
    await bench.publish(Alarm(machine="press"))

    await reactor.settle()

    assert await bench.statuses() == ["paused", statuses]
    await (await bench.open()).resume_run(asked.id, answer=1)
    await reactor.settle()
    assert await bench.statuses() == ["succeeded", "succeeded"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"answer": nan}, "answer: answer is nan"),
        ({"answer": {1, 2}}, "answer: "),
        ({"attempt": 0}, "attempt: 0 is no whole number from 1"),
        ({"attempt": True}, "attempt: True"),
    ],
)
async def test_an_answer_that_is_none_is_refused(bench: Bench, arguments: Any, problem: str) -> None:
    asked = await paused(bench)
    workspace = await bench.open()

    with pytest.raises(ValidationFailed, match=problem):
        await workspace.resume_run(asked.id, **arguments)

    assert await bench.statuses() == ["paused"]


async def test_an_answer_to_an_earlier_question_is_refused(bench: Bench) -> None:
    class Twice(Asking):
        @override
        async def run(self, reaction: Reaction[Any]) -> Any:
            return Pause(reaction.attempt) if reaction.attempt < 3 else await super().run(reaction)

    action = Twice()
    asked = await paused(bench, action)
    workspace = await bench.open()
    await workspace.resume_run(asked.id, answer="first", attempt=1)
    await bench.reactor(rule(), actions={"page": action}).settle()

    with pytest.raises(InvalidState, match="what it asks now, its attempt 2 asked"):
        await workspace.resume_run(asked.id, answer="late", attempt=1)

    await workspace.resume_run(asked.id, answer="second", attempt=2)
    await bench.reactor(rule(), actions={"page": action}).settle()
    assert [(run.status, run.output) for run in await bench.runs()] == [("succeeded", "second")]


# --- Answers that are events


class Answering:
    """A bench where events answer, published by whoever is told."""

    def __init__(self, bench: Bench, action: ResumeAction, **options: Any) -> None:
        self.bench = bench
        self.rules = [
            rule("plant:answer", when=on(Told, ToldWhich), scope={}, then=run("answer"), retry=ONCE),
            rule(),
        ]
        self.actions = {"page": Asking(), "answer": action}
        self.options = {"events": [Alarm, Told, ToldWhich], **options}

    async def settle(self) -> None:
        await self.bench.reactor(*self.rules, actions=self.actions, **self.options).settle()

    async def asked(self) -> Run:
        await self.bench.publish(Alarm(machine="press"))
        await self.settle()
        return (await self.bench.runs())[0]

    async def tell(self, event: Event) -> Run:
        workspaces = self.bench.workspaces(*self.rules, **self.options)
        await (await workspaces.open("acme", "prod", actor=BOB)).publish(event)
        await self.settle()
        return (await self.bench.runs())[-1]


async def test_an_event_answers_in_the_name_of_who_published_it(bench: Bench) -> None:
    answering = Answering(bench, ResumeAction())
    asked = await answering.asked()

    answered = await answering.tell(Told(run_id=asked.id, answer={"ok": True}))

    assert (answered.status, answered.output) == ("succeeded", {"run_id": asked.id, "status": "pending"})
    ended = (await bench.runs())[0]
    assert (ended.status, ended.output) == ("succeeded", {"ok": True})
    assert ended.answer is not None
    assert ended.answer.actor == BOB


async def test_an_answer_that_comes_too_late_is_no_failure(bench: Bench) -> None:
    answering = Answering(bench, ResumeAction())
    asked = await answering.asked()
    await answering.tell(Told(run_id=asked.id))

    late = await answering.tell(Told(run_id=asked.id))

    assert late.status == "succeeded"
    assert isinstance(late.output, dict)
    assert (late.output["run_id"], late.output.keys()) == (asked.id, {"run_id", "refused"})
    assert "'succeeded'" in str(late.output["refused"])


async def test_an_event_may_tell_the_attempt_that_it_answers(bench: Bench) -> None:
    answering = Answering(bench, ResumeAction())
    asked = await answering.asked()

    other = await answering.tell(ToldWhich(run_id=asked.id, attempt=2))
    assert "attempt 2" in str(other.output)

    assert (await answering.tell(ToldWhich(run_id=asked.id, attempt=1))).output == {
        "run_id": asked.id,
        "status": "pending",
    }


async def test_an_event_answers_nothing_that_was_asked_after_it_was_published(bench: Bench) -> None:
    answering = Answering(bench, ResumeAction())
    asked = await answering.asked()
    workspaces = bench.workspaces(*answering.rules, **answering.options)
    prod = await workspaces.open("acme", "prod", actor=BOB)
    bench.clock.advance(HOUR)
    await prod.publish(Told(run_id=asked.id, answer="to the first"))
    bench.clock.advance(HOUR)
    # It is taken for what it is only once the run asks the next thing.
    await prod.cancel_run(asked.id)
    await prod.retry_run(asked.id)
    await bench.reactor(rule(), actions=answering.actions, **answering.options).settle()

    late = await answering.tell(ToldWhich(run_id=asked.id, attempt=7))

    (waits, first, _) = await bench.runs()
    assert (waits.status, first.status) == ("paused", "succeeded")
    assert "after the event" in str(first.output)
    assert "attempt 7" in str(late.output)


async def test_an_event_answers_nothing_that_is_asked_while_it_is_carried_out(bench: Bench) -> None:
    gate = Gate(lambda _: Pause("delete it?"))
    answers = rule("plant:answer", when=on(Told), scope={}, then=run("answer"), start="beginning")
    asking: list[asyncio.Task[None]] = []

    async def authorize(tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> bool:
        if access.action == "reflexr:resume_run":
            gate.let_go()
            await asyncio.wait(asking)
        return True

    options: dict[str, Any] = {"events": [Alarm, Told]}
    asker = bench.reactor(rule(), actions={"page": gate}, **options)
    answerer = bench.reactor(answers, actions={"answer": ResumeAction()}, authorize=authorize, **options)
    prod = await bench.open(**options)
    await bench.publish(Alarm(machine="press"))
    asking.append(asyncio.create_task(asker.settle()))
    reaction = await gate.begun.get()
    await prod.publish(Told(run_id=reaction.run_id, answer="yes"))
    bench.clock.advance(HOUR)
    await answerer.settle()
    gate.let_go()
    await asking[0]

    (answered,) = await prod.runs(rule="plant:answer")
    asked = await prod.run(reaction.run_id)
    assert (asked.status, asked.answer) == ("paused", None)
    assert answered.output == {"run_id": asked.id, "refused": f"run {asked.id!r} asks nothing now: it is 'running'"}


async def test_an_event_that_names_an_attempt_at_work_is_tried_again_until_that_has_asked(bench: Bench) -> None:
    gate = Gate(lambda reaction: Pause("?") if reaction.answer is None else reaction.answer.value)
    answers = rule("plant:answer", when=on(ToldWhich), scope={}, then=run("answer"), start="beginning")
    options: dict[str, Any] = {"events": [Alarm, ToldWhich]}
    asker = bench.reactor(rule(), actions={"page": gate}, **options)
    answerer = bench.reactor(answers, actions={"answer": ResumeAction()}, **options)
    prod = await bench.open(**options)
    await bench.publish(Alarm(machine="press"))
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(asker.settle())
        reaction = await gate.begun.get()
        await prod.publish(ToldWhich(run_id=reaction.run_id, answer="yes", attempt=1))
        await answerer.settle()
        (early,) = await prod.runs(rule="plant:answer")
        assert (early.status, early.reason) == ("retrying", "not_asked_yet")
        gate.let_go()
        await asking

    bench.clock.advance(HOUR)
    await answerer.settle()
    await asker.settle()

    assert [run.output for run in await bench.runs()] == ["yes", {"run_id": reaction.run_id, "status": "pending"}]


async def test_an_event_that_a_run_emitted_answers_only_where_it_may(bench: Bench) -> None:
    class Agreeing(Asking):
        @override
        async def run(self, reaction: Reaction[Any]) -> Any:
            if reaction.answer is None:
                await reaction.emit(Told(run_id=reaction.run_id, answer="I agree"))
            return await super().run(reaction)

    for action, status in ((ResumeAction(), "paused"), (ResumeAction(from_runs=True), "succeeded")):
        answering = Answering(Bench(), action)
        answering.actions["page"] = Agreeing()
        await answering.asked()
        asked, answerer = await answering.bench.runs()
        assert (asked.status, answerer.reason) == (status, None if status == "succeeded" else "not_from_runs")


async def test_the_fields_may_be_called_otherwise(bench: Bench) -> None:
    answering = Answering(bench, ResumeAction(run_id="answer", answer="run_id"))
    asked = await answering.asked()

    await answering.tell(Told(run_id="yes", answer=asked.id))

    assert (await bench.runs())[0].output == "yes"


@pytest.mark.parametrize(
    ("action", "event", "reason", "problem"),
    [
        (ResumeAction(run_id="run"), Told(), "invalid_answer", "'plant:told' has no field 'run'"),
        (ResumeAction(), Told(run_id=7), "invalid_answer", "run_id: "),
        (ResumeAction(), Told(run_id="fir_0"), "not_found", "there is no run 'fir_0'"),
    ],
)
async def test_an_event_that_answers_nothing_fails_for_good(
    bench: Bench, action: ResumeAction, event: Event, reason: str, problem: str
) -> None:
    answering = Answering(bench, action)
    await answering.asked()

    failed = await answering.tell(event)

    assert (failed.status, failed.reason) == ("dead_lettered", reason)
    assert problem in str(failed.error)


async def test_who_may_not_answer_may_not_by_an_event_either(bench: Bench) -> None:
    def authorize(_: str, __: str | None, actor: Any, access: Access) -> bool:
        return actor != BOB or access.action != "reflexr:resume_run"

    answering = Answering(bench, ResumeAction(), authorize=authorize)
    asked = await answering.asked()

    failed = await answering.tell(Told(run_id=asked.id))

    assert (failed.status, failed.reason) == ("dead_lettered", "forbidden")
    assert (await bench.runs())[0].status == "paused"
