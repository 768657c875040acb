"""`ActionContract`: everything that `Action` promises, of whatever kind an action is."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, override

import pytest
from pydantic import BaseModel, JsonValue

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import Contract, guarantee
from reflexr.contracts.reacting_trials import IMMEDIATELY, ONCE, SOMEBODY, Alarm, PlantEvent, Repaired, reaction_rule
from reflexr.contracts.samples import START, WORKSPACE
from reflexr.core import UNANSWERED, Envelope, Event, EventRegistry, InvalidState, Rule, RuleError, Run, UserActor
from reflexr.core import run as running
from reflexr.workspace import (
    Action,
    ActionFunction,
    InMemoryStorage,
    ManualClock,
    Reaction,
    Reactor,
    RunFailure,
    Workspace,
    Workspaces,
)

type Work = Callable[[Reaction[Any]], Awaitable[JsonValue]]
"""What an action on trial does, and what it comes to."""

type MakeAction = Callable[[Work, type[BaseModel] | None], Action[Any] | ActionFunction[Any]]
"""Makes an action that does some work, with a model of its params or without."""

type MakeQuestion = Callable[[Work, timedelta | None], Action[Any] | ActionFunction[Any]]
"""Makes an action that asks before it does some work, and waits so long at most for the answer."""

MOMENT: Final = timedelta(milliseconds=10)
DAY: Final = timedelta(days=1)
DEPS: Final = {"what": "the application gives"}
BOSS: Final = UserActor(id="boss")


class Urgency(BaseModel):
    """The params of an action on trial."""

    minutes: int


class Broken(Exception):
    """Something that an action does not know what to do about."""


@dataclass(frozen=True, slots=True)
class ActionTrial:
    """An action on trial, carried out by an application of the contract's own.

    Attributes:
        make: Makes the action, each time another.
        question: Makes an action that asks, each time another.
        answer: What answers it.
        storage: Holds the application's data.
        clock: Its clock.
    """

    make: MakeAction
    question: MakeQuestion
    answer: JsonValue
    storage: InMemoryStorage
    clock: ManualClock

    def reactor(self, work: Work, rule: Rule | None = None, *, params: type[BaseModel] | None = None) -> Reactor[Any]:
        """Returns a reactor of a process of its own, which carries out the work at each alarm."""
        application = self.application(rule or reaction_rule())
        return Reactor(application, actions={"act": self.make(work, params)}, deps=DEPS)

    async def settle(
        self, work: Work, rule: Rule | None = None, *, answer_timeout: timedelta | None = None
    ) -> list[Run]:
        """Has a process of its own carry out what is due, with an action that asks, and returns the runs then."""
        application = self.application(rule or reaction_rule())
        await Reactor(application, actions={"act": self.question(work, answer_timeout)}, deps=DEPS).settle()
        return await self.runs()

    async def resume(self, run: Run) -> None:
        """Answers what a run asks."""
        await (await self.open()).as_actor(BOSS).resume_run(run.id, answer=self.answer)

    def application(self, *rules: Rule) -> Workspaces:
        """Returns the application as a process of its own has it."""
        registry = EventRegistry(PlantEvent)
        return Workspaces(self.storage, events=[Alarm], emitted=[Repaired], registry=registry, rules=rules)

    async def open(self) -> Workspace:
        """Opens the workspace in which everything happens."""
        return await self.application().open(WORKSPACE.tenant_id, WORKSPACE.workspace_id, actor=SOMEBODY)

    async def publish(self, *events: Event) -> None:
        """Publishes events."""
        await (await self.open()).publish_many(events)

    async def act(self, work: Work, rule: Rule | None = None, *, params: type[BaseModel] | None = None) -> Run:
        """Publishes an alarm, carries out the work, and returns what became of the run."""
        await self.publish(Alarm())
        await self.reactor(work, rule, params=params).settle()
        return (await self.runs())[-1]

    async def runs(self) -> list[Run]:
        """Returns the runs in the order of their creation."""
        return (await (await self.open()).runs())[::-1]

    async def repaired(self) -> list[Envelope]:
        """Returns what the runs published."""
        return await (await self.open()).read(types=[Repaired])


class ActionContract(Contract[ActionTrial]):
    """Everything that `Action` promises, one guarantee a test. Derive a class named `Test…` and override `action`.

    Attributes:
        answer: With `QUESTIONS`: what answers an action that asks, so that it does its work.
    """

    answer: ClassVar[JsonValue] = True

    def action(self, work: Work, params: type[BaseModel] | None) -> Action[Any] | ActionFunction[Any]:
        """Makes an action of the kind on trial. This is the factory to override.

        Args:
            work: What the action has to do, once in each attempt, with the reaction that it is given; what it returns
                is what the action comes to.
            params: The model of its params; `None` if it takes none.
        """
        raise self.missing("action")

    def question(self, work: Work, answer_timeout: timedelta | None) -> Action[Any] | ActionFunction[Any]:
        """Makes an action of the kind on trial that asks once, before its work. To be overridden with `QUESTIONS`.

        Args:
            work: What the action has to do, once in each attempt that finds the answer.
            answer_timeout: How long it waits at most; `None` for any time.
        """
        raise self.missing("question")

    @override
    @asynccontextmanager
    async def trial(self) -> AsyncGenerator[ActionTrial]:
        clock = ManualClock(START)
        yield ActionTrial(self.action, self.question, self.answer, InMemoryStorage(clock=clock), clock)

    @guarantee()
    async def test_what_it_comes_to_is_the_runs_output(self, trial: ActionTrial) -> None:
        """A run whose action ends has succeeded, with what the action came to as its output."""
        values: list[JsonValue] = ["done", 7, {"parts": [1, 2.5, None, True]}, None]
        to_come = iter(values)

        async def work(_: Reaction[Any]) -> JsonValue:
            return next(to_come)

        ended = [await trial.act(work) for _ in values]
        assert [(run.status, run.output) for run in ended] == [("succeeded", value) for value in values]

    @guarantee()
    async def test_it_is_given_its_attempt(self, trial: ActionTrial) -> None:
        """It does its work once in an attempt, with the run, the rule, the events and the application's own."""
        reactions: list[Reaction[Any]] = []

        async def work(reaction: Reaction[Any]) -> JsonValue:
            reactions.append(reaction)
            return None

        run = await trial.act(work)
        (reaction,) = reactions
        assert (reaction.run_id, reaction.rule.name, reaction.attempt) == (run.id, "contract:alarms", 1)
        assert (dict(reaction.scope), reaction.events) == ({"machine": "press"}, (Alarm(),))
        assert (reaction.deps, reaction.params) == (DEPS, None)

    @guarantee()
    async def test_it_is_given_its_params(self, trial: ActionTrial) -> None:
        """An action that declares params gets the rule's as its model, and says which model that is."""
        rule = reaction_rule(then=running("act", minutes=5))

        async def work(reaction: Reaction[Any]) -> JsonValue:
            return reaction.params_as(Urgency).minutes

        assert getattr(trial.make(work, Urgency), "params", None) is Urgency
        assert (await trial.act(work, rule, params=Urgency)).output == 5
        with pytest.raises(RuleError, match="minutes"):
            trial.reactor(work, reaction_rule(then=running("act", minutes="soon")), params=Urgency)

    @guarantee()
    async def test_what_it_raises_fails_the_attempt(self, trial: ActionTrial) -> None:
        """An attempt whose action raises has failed with what it raised, and another process makes the next one."""

        async def work(reaction: Reaction[Any]) -> JsonValue:
            if reaction.attempt == 1:
                raise Broken("the line is busy")
            return reaction.attempt

        retried = await trial.act(work, reaction_rule(retry=IMMEDIATELY))
        dead = await trial.act(work, reaction_rule(retry=ONCE))
        assert (retried.status, retried.output, retried.attempt) == ("succeeded", 2, 2)
        assert (dead.status, dead.reason, "the line is busy" in (dead.error or "")) == ("dead_lettered", None, True)

    @guarantee()
    async def test_a_failure_keeps_its_reason(self, trial: ActionTrial) -> None:
        """A failure with a reason is recorded with it, and one that is permanent is not tried again."""

        async def work(_: Reaction[Any]) -> JsonValue:
            raise RunFailure("no such machine", reason="no_such_machine", permanent=True)

        run = await trial.act(work, reaction_rule(retry=IMMEDIATELY))
        assert (run.status, run.attempt) == ("dead_lettered", 1)
        assert (run.error, run.reason) == ("no such machine", "no_such_machine")

    @guarantee()
    async def test_what_it_emits_is_the_runs_and_is_there_once(self, trial: ActionTrial) -> None:
        """What it emits names the run as its cause and joins its chain; another attempt emits none of it again."""

        async def work(reaction: Reaction[Any]) -> JsonValue:
            for part in range(3):
                await reaction.emit(Repaired(part=part))
            if reaction.attempt < 3:
                raise Broken
            return None

        run = await trial.act(work, reaction_rule(retry=IMMEDIATELY))
        emitted = await trial.repaired()
        assert (run.status, run.attempt) == ("succeeded", 3)
        assert [envelope.payload["part"] for envelope in emitted] == [0, 1, 2]
        assert {envelope.correlation_id for envelope in emitted} == {run.correlation_id}
        assert [envelope.causation for envelope in emitted] == [run.causation] * 3

    @guarantee()
    async def test_its_timeout_stops_it(self, trial: ActionTrial) -> None:
        """An action that takes longer than its rule allows is cancelled, and its attempt has failed."""
        told: list[str] = []

        async def work(_: Reaction[Any]) -> JsonValue:
            told.append("begun")
            try:
                return await asyncio.Event().wait()
            finally:
                told.append("stopped")

        run = await trial.act(work, reaction_rule(timeout=MOMENT, retry=ONCE))
        assert (run.status, run.reason) == ("dead_lettered", "timeout")
        # The time may be over before it gets to its work.
        assert told in ([], ["begun", "stopped"])

    @guarantee()
    async def test_cancelling_its_run_stops_it(self, trial: ActionTrial) -> None:
        """An action whose run is cancelled is stopped, and publishes nothing in its name from then on."""
        begun = asyncio.Event()
        told: list[str] = []

        async def work(reaction: Reaction[Any]) -> JsonValue:
            begun.set()
            try:
                return await asyncio.Event().wait()
            finally:
                told.append("stopped")
                with suppress(InvalidState):
                    await reaction.emit(Repaired())

        acting = asyncio.create_task(trial.act(work))
        await begun.wait()
        await (await trial.open()).cancel_run((await trial.runs())[0].id)
        run = await acting
        assert (run.status, told, await trial.repaired()) == ("cancelled", ["stopped"], [])

    @guarantee()
    async def test_two_at_once_keep_to_themselves(self, trial: ActionTrial) -> None:
        """One action carries out several runs at once, each with its own reaction."""
        both = asyncio.Barrier(2)

        async def work(reaction: Reaction[Any]) -> JsonValue:
            await both.wait()
            return reaction.scope["machine"]

        await trial.publish(Alarm(machine="press"), Alarm(machine="saw"))
        await trial.reactor(work).settle()
        assert sorted(str(run.output) for run in await trial.runs()) == ["press", "saw"]

    # --- Actions that ask

    @guarantee(Feature.QUESTIONS)
    async def test_it_asks_before_its_work(self, trial: ActionTrial) -> None:
        """A run whose action asks is paused: it says what is asked, and nothing of its work is done."""
        await trial.publish(Alarm())
        (run,) = await trial.settle(_refused)
        assert (run.status, run.attempt) == ("paused", 1)
        assert run.waiting is not None
        assert (run.waiting.request is not None, run.waiting.until) == (True, None)

    @guarantee(Feature.QUESTIONS)
    async def test_its_answer_has_another_process_do_its_work(self, trial: ActionTrial) -> None:
        """What is answered a day later lets another process do the work, once, and tells it who answered."""
        told: list[object] = []

        async def work(reaction: Reaction[Any]) -> JsonValue:
            told.append((reaction.attempt, reaction.answer and reaction.answer.actor))
            await reaction.emit(Repaired())
            return "repaired"

        await trial.publish(Alarm())
        (run,) = await trial.settle(_refused)
        trial.clock.advance(DAY)
        assert (await trial.settle(_refused))[0].status == "paused"
        await trial.resume(run)
        (run,) = await trial.settle(work)
        assert (run.status, run.output, told) == ("succeeded", "repaired", [(2, BOSS)])
        assert len(await trial.repaired()) == 1

    @guarantee(Feature.QUESTIONS)
    async def test_another_attempt_at_its_work_asks_nobody_again(self, trial: ActionTrial) -> None:
        """An attempt that fails after the answer is followed by one that finds it, in another process too."""
        rule = reaction_rule(retry=IMMEDIATELY)
        attempts: list[int] = []

        async def work(reaction: Reaction[Any]) -> JsonValue:
            attempts.append(reaction.attempt)
            await reaction.emit(Repaired())
            if len(attempts) == 1:
                raise Broken
            return None

        await trial.publish(Alarm())
        (run,) = await trial.settle(_refused, rule)
        await trial.resume(run)
        (run,) = await trial.settle(work, rule)
        assert (run.status, attempts) == ("succeeded", [2, 3])
        assert len(await trial.repaired()) == 1

    @guarantee(Feature.QUESTIONS)
    async def test_what_nobody_answers_in_time_is_dead_lettered(self, trial: ActionTrial) -> None:
        """A run that is not answered within the action's time is dead-lettered as unanswered, its work not done."""
        await trial.publish(Alarm())
        (run,) = await trial.settle(_refused, answer_timeout=DAY)
        assert run.waiting is not None
        assert run.waiting.until == run.waiting.since + DAY
        trial.clock.advance(DAY)
        (run,) = await trial.settle(_refused, answer_timeout=DAY)
        assert (run.status, run.reason) == ("dead_lettered", UNANSWERED)

    @guarantee(Feature.QUESTIONS)
    async def test_cancelling_its_run_ends_its_question(self, trial: ActionTrial) -> None:
        """A run that is cancelled while it waits takes no answer, and its work is not done."""
        await trial.publish(Alarm())
        (run,) = await trial.settle(_refused)
        assert run.status == "paused"
        await (await trial.open()).cancel_run(run.id)
        with pytest.raises(InvalidState):
            await trial.resume(run)
        (run,) = await trial.settle(_refused)
        assert (run.status, run.waiting) == ("cancelled", None)

    @guarantee(Feature.QUESTIONS)
    async def test_questions_at_once_keep_to_themselves(self, trial: ActionTrial) -> None:
        """Of two runs that wait, the one that is answered goes on, whichever asked first."""

        async def work(reaction: Reaction[Any]) -> JsonValue:
            return reaction.scope["machine"]

        await trial.publish(Alarm(machine="press"), Alarm(machine="saw"))
        runs = await trial.settle(_refused)
        assert [run.status for run in runs] == ["paused", "paused"]
        await trial.resume(runs[1])
        outcomes = [(run.status, run.output) for run in await trial.settle(work)]
        assert outcomes == [("paused", None), ("succeeded", "saw")]


async def _refused(_: Reaction[Any]) -> JsonValue:
    raise AssertionError("it did its work though nobody had answered")
