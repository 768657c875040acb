"""What a reactor promises of runs that are answered: each goes on where it stood, with its answer, and only once."""

import asyncio
from datetime import timedelta
from typing import Any, get_args

import pytest
from pydantic import JsonValue

from reflexr.contracts.adapters import Feature
from reflexr.contracts.cancellation import Moment, cancel_at_each_await
from reflexr.contracts.contract import guarantee
from reflexr.contracts.reacting_trials import (
    IMMEDIATELY,
    ONCE,
    SOMEBODY,
    TTL,
    Alarm,
    Answered,
    Asking,
    Gate,
    Hold,
    Process,
    ReactorGuarantees,
    ReactorTrial,
    Script,
    Tap,
    reaction_rule,
    told,
)
from reflexr.contracts.samples import HOUR, WORKSPACE
from reflexr.contracts.trials import together
from reflexr.core import (
    Actor,
    Answer,
    InvalidState,
    NotFound,
    Rejected,
    Rule,
    Run,
    RunPaused,
    RunResumed,
    UserActor,
    ValidationFailed,
    on,
    run,
)
from reflexr.workspace import Access, Pause, Reaction, ResumeAction, WorkspaceRef

DAY = timedelta(days=1)


class AnsweringContract(ReactorGuarantees):
    """A paused run that is answered goes on in its order, with that answer, wherever and however much later."""

    # --- What an answer is

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_run_that_is_answered_goes_on_with_its_answer(self, trial: ReactorTrial) -> None:
        """The attempt after an answer finds what was answered, who did it and when, and what was saved before."""
        value: JsonValue = {"go": True, "b": [1, 1.0], "a": 10**30}
        act = Asking(step="asked", state={"asked": 1})
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(Alarm())
        await process.settle()
        trial.clock.advance(HOUR)
        somebody = UserActor(id="\u00e9", name="Somebody Else")
        answered = await trial.open(actor=somebody).resume_run((await trial.one()).id, answer=value)
        expected = Answer(value=value, actor=somebody, at=trial.clock())
        assert (answered.status, answered.attempt, answered.waiting, answered.answer) == ("pending", 1, None, expected)
        assert await trial.one() == answered
        trial.clock.advance(HOUR)
        await process.settle()
        first, second = act.reactions
        assert (first.answer, first.attempt, second.answer, second.attempt) == (None, 1, expected, 2)
        assert (second.run.step, second.run.checkpoint) == ("asked", {"asked": 1})
        ended = await trial.one()
        assert (ended.status, ended.attempt, ended.output) == ("succeeded", 2, value)
        assert await trial.leases() == {}

    @guarantee()
    async def test_every_json_value_is_an_answer(self, trial: ReactorTrial) -> None:
        """Any JSON is an answer, null among it, and an answer of null is told apart from none."""
        answers: list[JsonValue] = [None, False, 0, "", [], {}, "a\x00b", 1.5, 10**400, [{"z": None, "a": [[]]}]]
        found: dict[str, Answer | None] = {}

        async def act(reaction: Reaction[None]) -> Any:
            if reaction.attempt == 1:
                return Pause("go on?")
            found[reaction.run_id] = reaction.answer
            return None

        process = trial.process(reaction_rule(), act=act)
        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(len(answers))))
        await process.settle()
        runs = await trial.runs()
        for paused, answer in zip(runs, answers, strict=True):
            await trial.open().resume_run(paused.id, answer=answer)
        await process.settle()
        assert await trial.statuses() == ["succeeded"] * len(answers)
        values = [answer.value for one in runs if (answer := found[one.id]) is not None]
        assert repr(values) == repr(answers)

    @guarantee()
    async def test_an_answer_says_so_in_the_log(self, trial: ReactorTrial) -> None:
        """Pauses and answers are facts in the order in which they happened, in the chain of their firing."""
        process = trial.process(reaction_rule(), act=Script(Pause("first"), Pause("second"), "done"))
        await trial.publish(Alarm())
        for answer in ("one", "two"):
            await process.settle()
            await trial.open().resume_run((await trial.one()).id, answer=answer)
        await process.settle()
        asked = ["run_started", "run_paused", "run_resumed"]
        assert await trial.types() == ["alarm", "rule_fired", *asked, *asked, "run_started", "run_succeeded"]
        ended = await trial.one()
        log = {one.seq: one for one in await trial.log()}
        assert {one.causation for one in log.values() if one.seq > 3} == {ended.causation}
        assert {one.correlation_id for one in log.values()} == {ended.correlation_id}
        assert [log[seq].actor for seq in (5, 8)] == [SOMEBODY] * 2
        assert [log[seq].actor for seq in (4, 6, 7, 9)] == [log[3].actor] * 4
        assert await trial.facts(RunResumed) == [
            {
                "type": "reflexr:run_resumed",
                "run_id": ended.id,
                "rule": ended.rule,
                "attempt": attempt,
                "answer": answer,
            }
            for attempt, answer in ((1, "one"), (2, "two"))
        ]
        await trial.recorded_once()

    @guarantee()
    async def test_an_answer_lasts_until_the_next_checkpoint(self, trial: ReactorTrial) -> None:
        """An attempt that crashes leaves the answer to the next one, until one of them saves a checkpoint."""
        act = _Remembering(
            Pause("go on?", step="asked"),
            OSError("lost its way"),
            OSError("again"),
            _Checkpoint("on the way"),
            OSError("once more"),
            "done",
        )
        process = trial.process(reaction_rule(retry=IMMEDIATELY.model_copy(update={"max_attempts": 9})), act=act)
        await trial.publish(Alarm())
        await process.settle()
        await trial.open().resume_run((await trial.one()).id, answer="yes")
        await process.settle()
        assert act.found == [None, "yes", "yes", "yes", None, None]
        # An attempt is told the same from its beginning to its end.
        assert act.found_at_the_end == [None, "yes", "yes", "yes", None, None]
        ended = await trial.one()
        assert (ended.status, ended.answer, ended.step) == ("succeeded", None, "on the way")

    @guarantee()
    async def test_a_run_that_is_retried_keeps_its_answer(self, trial: ReactorTrial) -> None:
        """A run that failed after it was answered is not asked again when somebody retries it."""
        act = _Remembering(Pause("go on?"), OSError("lost its way"), "done")
        process = trial.process(reaction_rule(retry=ONCE), act=act)
        await trial.publish(Alarm())
        await process.settle()
        await trial.open().resume_run((await trial.one()).id, answer="yes")
        await process.settle()
        assert await trial.statuses() == ["dead_lettered"]
        await trial.open().retry_run((await trial.one()).id)
        await process.settle()
        assert act.found == [None, "yes", "yes"]
        assert await trial.statuses() == ["succeeded"]

    @guarantee()
    async def test_each_question_has_its_own_answer(self, trial: ReactorTrial) -> None:
        """A run that asks again forgets the answer before, and finds the next one."""
        act = _Remembering(Pause("first"), Pause("second", step="first"), Pause("third"), "done")
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(Alarm())
        for answer in ("one", "two", "three"):
            await process.settle()
            paused = await trial.one()
            assert (paused.status, paused.answer) == ("paused", None)
            await trial.open().resume_run(paused.id, answer=answer)
        await process.settle()
        assert act.found == [None, "one", "two", "three"]
        assert [fact["request"] for fact in await trial.facts(RunPaused)] == ["first", "second", "third"]
        assert await trial.statuses() == ["succeeded"]

    # --- Where and when it goes on

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_run_outlives_every_process_that_knew_it(self, trial: ReactorTrial) -> None:
        """A paused run goes on after days in another process than those that began it, which have all been replaced."""
        rule = reaction_rule()
        dying = trial.process(rule, act=Asking(step="asked", state={"done": [1, 2]}))
        async with dying.serving() as _:
            await trial.publish(Alarm())
            await trial.until_paused(1)
        trial.clock.advance(10 * DAY)
        await trial.process(rule, act=Asking()).settle()
        assert await trial.statuses() == ["paused"]
        trial.clock.advance(20 * DAY)
        await trial.open().resume_run((await trial.one()).id, answer="at last")
        trial.clock.advance(30 * DAY)
        act = Asking()
        await trial.process(rule, act=act).settle()
        (reaction,) = act.reactions
        assert (reaction.attempt, reaction.run.checkpoint, told(reaction)) == (2, {"done": [1, 2]}, "at last")
        assert await trial.statuses() == ["succeeded"]

    @guarantee()
    async def test_an_answer_wakes_a_process(self, trial: ReactorTrial) -> None:
        """A process that serves begins a run that is answered at once, in one that has nothing else to do."""
        process = trial.process(reaction_rule(), act=Asking())
        async with process.serving():
            await trial.publish(Alarm())
            await trial.until_paused(1)
            await trial.open().resume_run((await trial.one()).id, answer="yes")
            await trial.until_ended(1)
        assert [(one.status, one.output) for one in await trial.runs()] == [("succeeded", "yes")]

    @guarantee()
    async def test_a_run_that_is_answered_goes_on_in_its_order(self, trial: ReactorTrial) -> None:
        """A run that is answered comes before the later ones of its scope that have not begun, blocking or not."""
        for pauses in ("continue", "block"):
            rule = reaction_rule(on_pause=pauses)
            place = WorkspaceRef(WORKSPACE.tenant_id, pauses)
            act = Asking(only=(1,))
            process = trial.process(rule, act=act)
            await trial.publish(Alarm(), workspace=place)
            await process.settle()
            await trial.publish(Alarm(), Alarm(), workspace=place)
            await process.reactor.evaluate()
            await trial.open(place).resume_run((await trial.runs(place))[0].id)
            await process.settle()
            assert await trial.statuses(place) == ["succeeded"] * 3
            firsts = [reaction.envelopes[0].seq for reaction in act.reactions]
            assert firsts[:2] == [1, 1]
            assert firsts == sorted(firsts)

    @guarantee()
    async def test_a_run_that_is_answered_waits_for_the_one_at_work(self, trial: ReactorTrial) -> None:
        """A run that is answered while a later one of its scope is at work begins when that has ended."""
        gate, asking = Gate(), Asking()

        async def act(reaction: Reaction[None]) -> Any:
            return await (asking if reaction.envelopes[0].seq == 1 else gate)(reaction)

        process = trial.process(reaction_rule(), act=act)
        async with process.serving():
            await trial.publish(Alarm(), Alarm(), Alarm(machine="saw"))
            for _ in range(2):
                await gate.begun.get()
            await trial.open().resume_run((await trial.runs())[0].id)
            await trial.publish(Alarm(machine="lathe"))
            await gate.begun.get()
            assert [one.status for one in await trial.runs(scope_key='["press"]')] == ["pending", "running"]
            gate.let_go()
            await trial.until_ended(4)
        assert await trial.statuses() == ["succeeded"] * 4
        await trial.recorded_once()

    @guarantee()
    async def test_an_answer_to_a_run_of_a_disabled_rule_waits_with_it(self, trial: ReactorTrial) -> None:
        """A run of a rule that is disabled, or gone, can be answered, and goes on once a process carries it out."""
        await trial.publish(Alarm())
        await trial.process(reaction_rule(), act=Asking()).settle()
        await trial.process(reaction_rule(enabled=False)).settle()
        await trial.open().resume_run((await trial.one()).id, answer="yes")
        for rules in ((reaction_rule(enabled=False),), ()):
            await trial.process(*rules).settle()
            assert await trial.statuses() == ["pending"]
        await trial.process(reaction_rule(), act=Asking()).settle()
        assert [(one.status, one.output) for one in await trial.runs()] == [("succeeded", "yes")]

    # --- What is refused

    @guarantee()
    async def test_of_two_answers_at_once_one_counts(self, trial: ReactorTrial) -> None:
        """Of many who answer at once one is heard, and the others are told that the run does not wait any more."""
        for number in range(5):
            process = trial.process(reaction_rule(), act=Asking())
            place = WorkspaceRef(WORKSPACE.tenant_id, f"asked {number}")
            await trial.publish(Alarm(), workspace=place)
            await process.settle()
            asked = (await trial.one(place)).id
            heard = await together(_answered(trial, place, asked, one) for one in range(4))
            assert [type(one) for one in heard].count(Run) == 1
            assert [type(one) for one in heard].count(InvalidState) == 3
            await process.settle()
            ended = await trial.one(place)
            assert (ended.status, ended.output) == (
                "succeeded",
                next(one for one in range(4) if isinstance(heard[one], Run)),
            )
            await trial.recorded_once(place)

    @guarantee()
    async def test_a_late_answer_is_fenced(self, trial: ReactorTrial) -> None:
        """An answer to a question that was asked before is refused where its attempt is named, and changes nothing."""
        process = trial.process(reaction_rule(), act=Script(Pause("first"), Pause("second"), "done"))
        await trial.publish(Alarm())
        await process.settle()
        workspace, first = trial.open(), await trial.one()
        await workspace.resume_run(first.id, answer="one", attempt=first.attempt)
        await process.settle()
        second, before = await trial.one(), await trial.log()
        for attempt in (first.attempt, second.attempt + 1, 2**62):
            with pytest.raises(InvalidState):
                await workspace.resume_run(first.id, answer="one", attempt=attempt)
        assert (await trial.one(), await trial.log()) == (second, before)
        await workspace.resume_run(first.id, answer="two", attempt=second.attempt)
        await process.settle()
        assert await trial.statuses() == ["succeeded"]

    @guarantee()
    async def test_who_does_not_ask_takes_no_answer(self, trial: ReactorTrial) -> None:
        """A run in any other status takes no answer, nor one that does not exist, and nothing changes by that."""
        act = Script("done", OSError(), None)
        process = trial.process(reaction_rule(retry=ONCE), act=act)
        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(2)))
        await process.settle()
        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(3)))
        await process.reactor.evaluate()
        cancelled, skipped, _ = (await trial.runs())[2:]
        await trial.open().cancel_run(cancelled.id)
        await trial.open().skip_run(skipped.id)
        statuses = ["succeeded", "dead_lettered", "cancelled", "skipped", "pending"]
        assert sorted(await trial.statuses()) == sorted(statuses)
        before, runs = await trial.log(), await trial.runs()
        for one in runs:
            for attempt in (None, one.attempt or 1):
                with pytest.raises(InvalidState):
                    await trial.open().resume_run(one.id, answer="unasked", attempt=attempt)
        with pytest.raises(NotFound):
            await trial.open().resume_run("nothing", answer="unasked")
        assert (await trial.log(), await trial.runs()) == (before, runs)

    @guarantee()
    async def test_a_run_at_work_takes_no_answer(self, trial: ReactorTrial) -> None:
        """A run takes no answer while it is at work or waits to be tried again, and its attempt hears nothing of it."""
        gate = Gate()

        async def act(reaction: Reaction[None]) -> Any:
            if reaction.scope["machine"] == "saw":
                raise OSError
            await gate(reaction)
            return told(reaction)

        process = trial.process(reaction_rule(), act=act)
        async with process.serving():
            await trial.publish(Alarm())
            await gate.begun.get()
            with pytest.raises(InvalidState):
                await trial.open().resume_run((await trial.one()).id, answer="unasked")
            gate.let_go()
            await trial.until_ended(1)
        assert (await trial.one()).output is None
        await trial.publish(Alarm(machine="saw"))
        await process.settle()
        retrying = (await trial.runs())[1]
        assert retrying.status == "retrying"
        with pytest.raises(InvalidState):
            await trial.open().resume_run(retrying.id, answer="unasked")

    @guarantee()
    async def test_an_answer_that_is_no_json_is_refused(self, trial: ReactorTrial) -> None:
        """An answer that is no JSON, or to no attempt that there can be, is refused, and the run still waits."""
        await trial.publish(Alarm())
        await trial.process(reaction_rule(), act=Asking()).settle()
        paused, before = await trial.one(), await trial.log()
        bad: list[Any] = [object(), float("nan"), {1: 2}, b"bytes", {"deep": {"set": {1}}}, "\ud800", _nested(2_000)]
        for answer in bad:
            with pytest.raises(ValidationFailed):
                await trial.open().resume_run(paused.id, answer=answer)
        attempts: list[Any] = [0, -1, 2**63, "1", True]
        for attempt in attempts:
            with pytest.raises(Rejected):
                await trial.open().resume_run(paused.id, answer="yes", attempt=attempt)
        assert (await trial.one(), await trial.log()) == (paused, before)

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_answer_and_the_end_of_its_time_exclude_each_other(self, trial: ReactorTrial) -> None:
        """Whoever answers when a run's time is over is heard before that is recorded, and refused from then on."""
        rule = reaction_rule()
        for call, status in (("transaction", "succeeded"), ("transaction.save_runs", "dead_lettered")):
            place = WorkspaceRef(WORKSPACE.tenant_id, status)
            process = trial.process(rule, act=Asking(timeout=HOUR))
            await trial.publish(Alarm(), workspace=place)
            await process.settle()
            trial.clock.advance(HOUR)
            hold = Hold(process.tap, call)
            async with process.doing(process.reactor.execute()):
                await hold.reached.wait()
                answering = asyncio.create_task(_answered(trial, place, (await trial.one(place)).id, "yes"))
                if status == "succeeded":
                    await answering
                await asyncio.sleep(0)
                hold.let_go()
            assert isinstance(await answering, Run if status == "succeeded" else InvalidState)
            await process.settle()
            ended = await trial.one(place)
            assert (ended.status, ended.output) == (status, "yes" if status == "succeeded" else None)
            await trial.recorded_once(place)

    # --- By rules

    @guarantee()
    async def test_rules_can_watch_pauses(self, trial: ReactorTrial) -> None:
        """A rule on the fact that a run paused fires, with what is asked, and so tells whoever is to answer."""
        told_of: list[Any] = []

        async def tell(reaction: Reaction[None]) -> None:
            told_of.append(reaction.envelopes[0].payload)

        process = trial.process(
            reaction_rule(), _watching(on(RunPaused), "tell"), actions={"act": Asking({"stop": "?"}), "tell": tell}
        )
        await trial.publish(Alarm())
        await process.settle()
        (asked,) = told_of
        await trial.open().resume_run(asked["run_id"], answer=asked["request"], attempt=asked["attempt"])
        await process.settle()
        assert [(one.status, one.output) for one in await trial.runs(rule="contract:alarms")] == [
            ("succeeded", {"stop": "?"})
        ]
        assert [one.depth for one in await trial.runs()] == [1, 2]

    @guarantee()
    async def test_an_event_can_answer(self, trial: ReactorTrial) -> None:
        """By `ResumeAction` an event answers a run, in its publisher's name; too late, it says so and no more."""
        process = _answering(trial)
        await trial.publish(Alarm())
        await process.settle()
        asked = await trial.one()
        somebody = trial.open(actor=UserActor(id="on call"))
        await somebody.publish(Answered(run_id=asked.id, answer=["yes"], attempt=1))
        await process.settle()
        await somebody.publish(Answered(run_id=asked.id, answer=["no"], attempt=1))
        await process.settle()
        ended, answer, late = await trial.runs()
        assert (ended.status, ended.output) == ("succeeded", ["yes"])
        assert [one.status for one in (answer, late)] == ["succeeded", "succeeded"]
        assert answer.output == {"run_id": asked.id, "status": "pending"}
        assert isinstance(late.output, dict)
        assert set(late.output) == {"run_id", "refused"}
        (resumed,) = await trial.open().read(types=[RunResumed])
        assert resumed.actor == somebody.actor
        assert len({one.id for one in await trial.runs()}) == 3

    @guarantee()
    async def test_an_event_that_answers_nobody_is_a_dead_letter(self, trial: ReactorTrial) -> None:
        """An event that names no run, or none that there is, dead-letters the run that should have answered by it."""
        process = _answering(trial)
        await trial.publish(Alarm())
        await process.settle()
        for bad in (Answered(run_id="nothing"), Answered(run_id=""), Answered(run_id="a\x00b"), Answered(attempt=0)):
            await trial.publish(bad)
            await process.settle()
        asked, *answers = await trial.runs()
        assert asked.status == "paused"
        assert [(one.status, one.attempt) for one in answers] == [("dead_lettered", 1)] * 4
        assert [one.reason for one in answers] == ["not_found", *["invalid_answer"] * 3]
        other = _answering(trial, ResumeAction(answer="reply"))
        await trial.publish(Answered(run_id=asked.id, answer="yes"))
        await other.settle()
        assert [(one.status, one.reason) for one in await trial.runs()][5:] == [("dead_lettered", "invalid_answer")]
        assert await trial.facts(RunResumed) == []

    @guarantee()
    async def test_an_event_of_somebody_who_may_not_answer_is_a_dead_letter(self, trial: ReactorTrial) -> None:
        """An event answers as far as its publisher may: where the application refuses, the run still waits."""

        def authorize(_tenant: str, _workspace: str | None, actor: Actor, access: Access) -> bool:
            return access.action != "reflexr:resume_run" or actor == SOMEBODY

        process = _answering(trial, authorize=authorize)
        await trial.publish(Alarm())
        await process.settle()
        asked = await trial.one()
        await trial.open(actor=UserActor(id="a passer-by")).publish(Answered(run_id=asked.id, answer="no"))
        await process.settle()
        assert [(one.status, one.reason) for one in await trial.runs()] == [
            ("paused", None),
            ("dead_lettered", "forbidden"),
        ]
        await trial.publish(Answered(run_id=asked.id, answer="yes"))
        await process.settle()
        ended, _, answer = await trial.runs()
        assert (ended.status, ended.output, answer.status) == ("succeeded", "yes", "succeeded")

    # --- Crashes

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_process_that_is_killed_at_any_call_loses_no_answer(self, trial: ReactorTrial) -> None:
        """Wherever a process dies that goes on with answered runs, another ends them with their answers, once each."""
        rule = reaction_rule(retry=IMMEDIATELY)
        killed, number = True, 0
        while killed:
            number += 1
            place = WorkspaceRef(WORKSPACE.tenant_id, f"killed at {number}")
            await trial.publish(Alarm(), Alarm(), workspace=place)
            await trial.process(rule, act=Asking()).settle()
            for paused in await trial.runs(place):
                await trial.open(place).resume_run(paused.id, answer=paused.fired_seq)
            killed = await trial.process(rule, act=Asking()).killed_at_call(number)
            trial.clock.advance(TTL)
            await trial.process(rule, act=Asking()).settle()
            ended = await trial.runs(place)
            assert [(one.status, one.output) for one in ended] == [("succeeded", one.fired_seq) for one in ended]
            assert (await trial.types(place)).count("run_resumed") == 2
            assert await trial.leases(place) == {}
            await trial.recorded_once(place)
        assert number > 10

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_answered_attempt_that_is_killed_is_made_again_with_its_answer(self, trial: ReactorTrial) -> None:
        """An attempt that dies with its process after an answer is made again with it, and saved steps are not."""
        rule = reaction_rule(retry=IMMEDIATELY)
        await trial.publish(Alarm())
        await trial.process(rule, act=Asking()).settle()
        await trial.open().resume_run((await trial.one()).id, answer="yes")
        found: list[tuple[JsonValue, str | None]] = []

        for saves in (False, True, False):
            act = Gate()
            dying = trial.process(rule, act=_Saving(act) if saves else act)
            async with dying.doing(dying.settle()) as settling:
                reaction = await act.begun.get()
                found.append((told(reaction), reaction.run.step))
                await dying.kill(settling)
            trial.clock.advance(TTL)
        assert found == [("yes", None), ("yes", "saved"), (None, "saved")]

    @guarantee()
    async def test_an_answer_that_is_cancelled_at_any_await_is_given_or_not(self, trial: ReactorTrial) -> None:
        """Whoever is cut off while answering has answered, or has not and can do so; the run ends as answered, once."""
        moments: tuple[Moment, ...] = get_args(Moment.__value__)
        for moment in moments:
            await _answers_are_whole(trial, moment)

    @guarantee()
    async def test_a_crowd_is_asked_and_answered_once_each(self, trial: ReactorTrial) -> None:
        """However many runs ask and are answered twice at once, or cancelled, while others go on, each ends once."""
        answering: list[asyncio.Task[Any]] = []

        async def act(reaction: Reaction[None]) -> Any:
            if reaction.answer is not None:
                return told(reaction)
            answering.extend(asyncio.create_task(answer(reaction.run_id, number)) for number in range(2))
            return Pause("go on?")

        async def answer(run_id: str, number: int) -> None:
            await trial.until(lambda: waits(run_id))
            await _answered(trial, WORKSPACE, run_id, number)

        async def waits(run_id: str) -> bool:
            return (await trial.open().run(run_id)).status != "running"

        crowd = self.crowd // 4
        processes = [trial.process(reaction_rule(), act=act, concurrency=4) for _ in range(2)]
        async with processes[0].serving(), processes[1].serving():
            await trial.publish(*(Alarm(machine=f"m{number % 7}") for number in range(crowd)))
            await trial.until_ended(crowd)
        await asyncio.gather(*answering)
        assert await trial.statuses() == ["succeeded"] * crowd
        assert len(await trial.facts(RunResumed)) == crowd
        assert await trial.leases() == {}
        await trial.recorded_once()


async def _answers_are_whole(trial: ReactorTrial, moment: Moment) -> None:
    """Asserts that an answer which is cut off at any await is given or not."""
    process, tap = trial.process(reaction_rule(), act=Asking()), Tap(trial.storage)
    tap.before = _giving_way
    application = trial.application(storage=tap.storage())

    def place_of(number: int) -> WorkspaceRef:
        return WorkspaceRef(WORKSPACE.tenant_id, f"{moment} {number}")

    async def answer(number: int) -> None:
        await application.handle(place_of(number), actor=SOMEBODY).resume_run(asked[number], answer="first")

    async def ask(number: int) -> None:
        await trial.publish(Alarm(), workspace=place_of(number))
        await process.settle()
        asked.append((await trial.one(place_of(number))).id)

    asked: list[str] = []
    await ask(0)
    async for number in cancel_at_each_await(lambda number: answer(number - 1), moment):
        place = place_of(number - 1)
        again = await _answered(trial, place, asked[-1], "second")
        await process.settle()
        ended = await trial.one(place)
        assert (ended.status, ended.output) == ("succeeded", "second" if isinstance(again, Run) else "first")
        await trial.recorded_once(place)
        await ask(number)
    assert len(asked) > 3


async def _giving_way(name: str, *_: Any) -> None:
    await asyncio.sleep(0)


class _Checkpoint:
    """Saves a checkpoint, and fails."""

    def __init__(self, step: str) -> None:
        self.step = step


class _Remembering:
    """An action whose attempts go as written, and that remembers what each was told.

    Attributes:
        found: What each attempt found at its beginning.
        found_at_the_end: What it found at its end.
    """

    def __init__(self, *steps: Any) -> None:
        self.found: list[JsonValue] = []
        self.found_at_the_end: list[JsonValue] = []
        self._steps = list(steps)

    async def __call__(self, reaction: Reaction[None]) -> Any:
        self.found.append(told(reaction))
        step = self._steps.pop(0)
        if isinstance(step, _Checkpoint):
            await reaction.checkpoint(step.step)
        self.found_at_the_end.append(told(reaction))
        if isinstance(step, _Checkpoint):
            raise OSError
        if isinstance(step, BaseException):
            raise step
        return step


class _Saving:
    """An action that saves a checkpoint before it does what another one does."""

    def __init__(self, inner: Gate) -> None:
        self._inner = inner

    async def __call__(self, reaction: Reaction[None]) -> Any:
        await reaction.checkpoint("saved")
        return await self._inner(reaction)


def _watching(when: Any, action: str) -> Rule:
    return Rule.model_validate({"name": f"contract:{action}", "when": when, "then": run(action)})


def _answering(trial: ReactorTrial, action: ResumeAction | None = None, **options: Any) -> Process:
    """A process whose runs ask, and in which events answer."""
    return trial.process(
        reaction_rule(),
        _watching(on(Answered), "answer"),
        actions={"act": Asking(), "answer": action or ResumeAction()},
        **options,
    )


async def _answered(trial: ReactorTrial, workspace: WorkspaceRef, run_id: str, answer: JsonValue) -> Run | InvalidState:
    """Answers a run, or returns the refusal."""
    try:
        return await trial.open(workspace).resume_run(run_id, answer=answer)
    except InvalidState as refused:
        return refused


def _nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value
