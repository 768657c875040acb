"""What a reactor promises of runs that pause: they hold nothing while they wait, and end if nobody answers in time."""

import asyncio
from datetime import timedelta
from typing import Any, Final

import pytest
from pydantic import BaseModel

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.reacting_trials import (
    IMMEDIATELY,
    ONCE,
    TTL,
    Alarm,
    Asking,
    Gate,
    Hold,
    ReactorGuarantees,
    ReactorTrial,
    Repaired,
    Script,
    reaction_rule,
    stored_rule,
)
from reflexr.contracts.samples import HOUR, SECOND, WORKSPACE
from reflexr.contracts.trials import together
from reflexr.core import InvalidState, RunDeadLettered, RunPaused, RunRetrying
from reflexr.workspace import Pause, Reaction, WorkspaceRef

SOON: Final = timedelta(milliseconds=50)
"""How long a run waits for an answer where a test waits for the end of that."""


class PausingContract(ReactorGuarantees):
    """A run that asks for something holds nothing until it is answered, and fails if nobody answers in time."""

    # --- What a pause is

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_attempt_that_asks_ends_with_its_run_paused(self, trial: ReactorTrial) -> None:
        """A run whose action asks is paused, says what it asks, since when and until when, and has no lease."""
        asked = {"question": "stop the line?", "choices": ["yes", "no"], "b": 1, "a": 10**30}
        await trial.publish(Alarm())
        await trial.process(reaction_rule(), act=Asking(asked, timeout=HOUR)).settle()
        paused = await trial.one()
        assert (paused.status, paused.attempt, paused.output, paused.error) == ("paused", 1, None, None)
        assert paused.waiting is not None
        assert paused.waiting.model_dump() == {
            "request": asked,
            "since": trial.clock(),
            "until": trial.clock() + HOUR,
            "blocks": False,
        }
        assert (paused.answer, paused.finished_at, paused.unfinished) == (None, None, True)
        assert await trial.types() == ["alarm", "rule_fired", "run_started", "run_paused"]
        assert await trial.leases() == {}

    @guarantee()
    async def test_a_pause_says_so_in_the_log(self, trial: ReactorTrial) -> None:
        """The fact of a pause tells its run, its attempt and what is asked, as the effect of the firing that it is."""
        await trial.publish(Alarm())
        await trial.process(reaction_rule(), act=Asking({"go": "on?"}, step="asked", state=[1])).settle()
        paused = await trial.one()
        (fact,) = await trial.open().read(types=[RunPaused])
        assert fact.payload == {
            "type": "reflexr:run_paused",
            "run_id": paused.id,
            "rule": "contract:alarms",
            "attempt": 1,
            "request": {"go": "on?"},
            "until": None,
            "step": "asked",
        }
        assert (fact.causation, fact.correlation_id) == (paused.causation, paused.correlation_id)
        (started,) = [one for one in await trial.log() if one.event_type == "reflexr:run_started"]
        assert fact.actor == started.actor

    @guarantee()
    async def test_a_pause_can_save_a_checkpoint(self, trial: ReactorTrial) -> None:
        """A pause that names a step saves its state with it, and one that names none keeps what was saved."""

        async def act(reaction: Reaction[None]) -> Any:
            await reaction.checkpoint("begun", {"begun": True})
            if reaction.scope["machine"] == "press":
                return Pause("go on?", step="asked", state=_Request(question="how?", options=(1, 2)))
            return Pause(_Request(question="how?"))

        await trial.publish(Alarm(), Alarm(machine="saw"))
        await trial.process(reaction_rule(), act=act).settle()
        saved, kept = await trial.runs()
        assert (saved.step, saved.checkpoint, saved.checkpoints) == (
            "asked",
            {"question": "how?", "options": [1, 2]},
            2,
        )
        assert (kept.step, kept.checkpoint, kept.checkpoints) == ("begun", {"begun": True}, 1)
        assert kept.waiting is not None
        assert kept.waiting.request == {"question": "how?", "options": []}

    @guarantee()
    async def test_what_cannot_be_asked_fails_its_attempt(self, trial: ReactorTrial) -> None:
        """A request or a state that is no JSON fails its attempt with a reason and saves nothing; others go on."""
        bad: list[Any] = [object(), float("nan"), {1: 2}, b"bytes", {"deep": {"set": {1}}}, "\ud800", _nested(2_000)]
        pauses = [Pause(value) for value in bad] + [Pause("go on?", step="asked", state=value) for value in bad]

        async def act(reaction: Reaction[None]) -> Any:
            number = reaction.envelopes[0].seq - 1
            return pauses[number] if number < len(pauses) else None

        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(len(pauses) + 1)))
        await trial.process(reaction_rule(retry=ONCE), act=act).settle()
        *failed, ended = await trial.runs()
        assert [(one.status, one.reason) for one in failed] == [("dead_lettered", "invalid_output")] * len(pauses)
        assert [(one.waiting, one.checkpoints) for one in failed] == [(None, 0)] * len(pauses)
        assert ended.status == "succeeded"
        assert "run_paused" not in await trial.types()

    @guarantee()
    async def test_what_is_emitted_before_a_pause_is_not_emitted_again_after_it(self, trial: ReactorTrial) -> None:
        """What an action emits before it asks is there once, whether or not the next attempt begins from the start."""

        async def act(reaction: Reaction[None]) -> Any:
            step = "asked" if reaction.scope["machine"] == "saw" else None
            if reaction.run.step is None:
                await reaction.emit(Repaired(part=1))
                if reaction.answer is None:
                    return Pause("go on?", step=step)
            await reaction.emit(Repaired(part=2))
            return None

        process = trial.process(reaction_rule(), act=act)
        await trial.publish(Alarm(), Alarm(machine="saw"))
        await process.settle()
        for paused in await trial.runs():
            await trial.open().resume_run(paused.id)
        await process.settle()
        assert await trial.statuses() == ["succeeded", "succeeded"]
        for ended in await trial.runs():
            repaired = [one for one in await trial.open().read(types=[Repaired]) if one.causation == ended.causation]
            assert [one.payload["part"] for one in repaired] == [1, 2]

    @guarantee()
    async def test_pauses_do_not_use_up_the_policy(self, trial: ReactorTrial) -> None:
        """However often a run asks, it has as many attempts that may fail as its policy says, and no more."""
        script = Script(Pause(1), Pause(2), Pause(3), OSError("one"), Pause(4), OSError("two"), "one too many")
        policy = IMMEDIATELY.model_copy(update={"max_attempts": 2})
        process = trial.process(reaction_rule(retry=policy), act=script)
        await trial.publish(Alarm())
        for _ in range(4):
            await process.settle()
            await trial.open().resume_run((await trial.one()).id)
        await process.settle()
        dead = await trial.one()
        assert (dead.status, dead.attempt, dead.error) == ("dead_lettered", 6, "OSError: two")
        assert len(await trial.facts(RunRetrying)) == 1
        await trial.recorded_once()

    # --- What it holds

    @guarantee()
    async def test_a_paused_run_keeps_no_place_of_its_process(self, trial: ReactorTrial) -> None:
        """A process with one place carries out others while a run is paused, however many are, and can end."""
        process = trial.process(reaction_rule(), act=Asking(only=range(1, 6)), concurrency=1)
        async with process.serving(grace=HOUR):
            await trial.publish(*(Alarm(machine=f"m{number}") for number in range(5)))
            await trial.until_paused(5)
            await trial.publish(Alarm(machine="m5"), Alarm(machine="m0"))
            await trial.until_ended(2)
        assert await trial.statuses() == ["paused"] * 5 + ["succeeded"] * 2
        assert await trial.leases() == {}

    @guarantee()
    async def test_a_paused_run_counts_in_no_limit(self, trial: ReactorTrial) -> None:
        """Where one run of a rule or of a workspace is carried out at once, a paused one is none."""
        limits: list[dict[str, Any]] = [{"rule_concurrency": 1}, {"workspace_concurrency": 1}]
        for number, limit in enumerate(limits):
            place = WorkspaceRef(WORKSPACE.tenant_id, f"limited {number}")
            await trial.publish(*(Alarm(machine=f"m{number}") for number in range(3)), workspace=place)
            act = Asking(only=(1, 2))
            process = trial.process(reaction_rule(), act=act, **limit)
            await process.settle()
            assert await trial.statuses(place) == ["paused", "paused", "succeeded"]
            for paused in await trial.runs(place, status="paused"):
                await trial.open(place).resume_run(paused.id)
            await process.settle()
            assert await trial.statuses(place) == ["succeeded"] * 3

    @guarantee()
    async def test_later_runs_go_on_while_one_is_paused(self, trial: ReactorTrial) -> None:
        """Under `continue` the runs behind a paused one are carried out, in their order, those that pause too."""
        act = Asking(only=(1, 3))
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(*[Alarm()] * 5)
        await process.settle()
        assert await trial.statuses() == ["paused", "succeeded", "paused", "succeeded", "succeeded"]
        assert [reaction.envelopes[0].seq for reaction in act.reactions] == [1, 2, 3, 4, 5]

    @guarantee()
    async def test_later_runs_wait_where_a_pause_blocks(self, trial: ReactorTrial) -> None:
        """Under `block` the runs behind a paused one wait until it has ended, and those of other scopes do not."""
        act = Asking(only=(1, 2, 3))
        process = trial.process(reaction_rule(on_pause="block"), act=act)
        await trial.publish(*[Alarm()] * 4, Alarm(machine="saw"))
        await process.settle()
        for ended in range(3):
            assert await trial.statuses() == [
                *["succeeded"] * ended,
                "paused",
                *["pending"] * (3 - ended),
                "succeeded",
            ]
            await trial.open().resume_run((await trial.runs(status="paused"))[0].id)
            await process.settle()
        assert await trial.statuses() == ["succeeded"] * 5
        seqs = [reaction.envelopes[0].seq for reaction in act.reactions]
        assert [seq for seq in seqs if seq != 5] == [1, 1, 2, 2, 3, 3, 4]

    @guarantee()
    async def test_without_order_no_pause_blocks(self, trial: ReactorTrial) -> None:
        """Under a rule without order no run waits for a paused one, whatever the rule says of pauses."""
        await trial.publish(*[Alarm()] * 3)
        await trial.process(reaction_rule(ordering="none", on_pause="block"), act=Asking(only=(1,))).settle()
        assert await trial.statuses() == ["paused", "succeeded", "succeeded"]

    # --- Nobody answers

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_run_that_nobody_answers_is_a_dead_letter_at_that_moment(self, trial: ReactorTrial) -> None:
        """A paused run is dead-lettered as unanswered at the very moment its time is over, once, and never before."""
        process = trial.process(reaction_rule(retry=IMMEDIATELY), act=Asking(timeout=HOUR))
        await trial.publish(Alarm())
        await process.settle()
        trial.clock.advance(HOUR - trial.clock_precision)
        await process.settle()
        assert await trial.statuses() == ["paused"]
        trial.clock.advance(trial.clock_precision)
        await process.settle()
        dead = await trial.one()
        assert (dead.status, dead.reason, dead.attempt, dead.waiting) == ("dead_lettered", "unanswered", 1, None)
        assert (dead.finished_at, dead.answer) == (trial.clock(), None)
        assert dead.error
        (fact,) = await trial.facts(RunDeadLettered)
        assert (fact["run_id"], fact["attempts"], fact["reason"]) == (dead.id, 1, "unanswered")
        trial.clock.advance(HOUR)
        await process.settle()
        await trial.recorded_once()

    @guarantee()
    async def test_a_process_with_nothing_else_to_do_wakes_for_it(self, trial: ReactorTrial) -> None:
        """A process that has nothing else to do finds by itself that a paused run's time is over."""
        process = trial.process(reaction_rule(), act=Asking(timeout=SOON))
        async with process.serving():
            await trial.publish(Alarm())
            await trial.until_paused(1)
            await trial.pass_time(SOON)
            await trial.until_ended(1)
        assert [(one.status, one.reason) for one in await trial.runs()] == [("dead_lettered", "unanswered")]
        assert await trial.leases() == {}

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_of_many_processes_one_records_that_nobody_answered(self, trial: ReactorTrial) -> None:
        """However many processes find a run that nobody answered, it is dead-lettered once."""
        processes = [trial.process(reaction_rule(), act=Asking(timeout=HOUR)) for _ in range(4)]
        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(5)))
        await processes[0].settle()
        trial.clock.advance(HOUR)
        await together(process.settle() for process in processes)
        assert await trial.statuses() == ["dead_lettered"] * 5
        assert len(await trial.facts(RunDeadLettered)) == 5
        await trial.recorded_once()

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_pause_ends_in_time_whoever_else_is_at_work(self, trial: ReactorTrial) -> None:
        """A paused run ends in time while another run of its scope is at work, in a process that has no place left."""
        gate = Gate()
        asking = Asking(timeout=HOUR)

        async def act(reaction: Reaction[None]) -> Any:
            return await (asking if reaction.envelopes[0].seq == 1 else gate)(reaction)

        process = trial.process(reaction_rule(), act=act, concurrency=1, lease_ttl=10 * HOUR)
        other = trial.process(reaction_rule(), act=act)
        async with process.serving():
            await trial.publish(Alarm(), Alarm())
            await gate.begun.get()
            trial.clock.advance(HOUR)
            await other.settle()
            assert await trial.statuses() == ["dead_lettered", "running"]
            gate.let_go()
        assert await trial.statuses() == ["dead_lettered", "succeeded"]

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_pause_that_blocks_ends_in_time_behind_an_earlier_run(self, trial: ReactorTrial) -> None:
        """A paused run that blocks ends in time also where an earlier run of its scope is tried again before it."""
        gate = Gate()
        asking = Asking(timeout=HOUR)

        async def act(reaction: Reaction[None]) -> Any:
            if reaction.envelopes[0].seq == 2:
                return await asking(reaction)
            if reaction.attempt == 1:
                raise OSError
            return await gate(reaction)

        rule = reaction_rule(retry=ONCE, on_pause="block")
        process = trial.process(rule, act=act, lease_ttl=10 * HOUR)
        await trial.publish(Alarm(), Alarm(), Alarm())
        await process.settle()
        assert await trial.statuses() == ["dead_lettered", "paused", "pending"]
        await trial.open().retry_run((await trial.runs())[0].id)
        async with process.serving():
            await gate.begun.get()
            trial.clock.advance(HOUR)
            await trial.process(rule, act=act).settle()
            assert await trial.statuses() == ["running", "dead_lettered", "pending"]
            gate.let_go()

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_end_without_an_answer_frees_those_behind_it(self, trial: ReactorTrial) -> None:
        """When the time of a pause that blocked is over the next run goes on, unless the rule's dead letters block."""
        rules = [
            reaction_rule("contract:continue", on_pause="block"),
            reaction_rule("contract:block", on_pause="block", on_dead_letter="block"),
        ]
        process = trial.process(*rules, act=Asking(timeout=HOUR, only=(1,)))
        await trial.publish(Alarm(), Alarm())
        await process.settle()
        trial.clock.advance(HOUR)
        await process.settle()
        statuses = {each.name: [one.status for one in await trial.runs(rule=each.name)] for each in rules}
        assert statuses == {
            "contract:continue": ["dead_lettered", "succeeded"],
            "contract:block": ["dead_lettered", "pending"],
        }

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_run_that_nobody_answered_can_be_asked_again(self, trial: ReactorTrial) -> None:
        """Retried, a run that nobody answered asks again, for as long as before, and goes on with that answer."""
        process = trial.process(reaction_rule(retry=ONCE), act=Asking(timeout=HOUR))
        await trial.publish(Alarm())
        await process.settle()
        trial.clock.advance(HOUR)
        await process.settle()
        await trial.open().retry_run((await trial.one()).id)
        await process.settle()
        paused = await trial.one()
        assert paused.waiting is not None
        assert (paused.attempt, paused.waiting.until) == (2, trial.clock() + HOUR)
        await trial.open().resume_run(paused.id, answer="yes", attempt=2)
        trial.clock.advance(2 * HOUR)
        await process.settle()
        ended = await trial.one()
        assert (ended.status, ended.attempt, ended.output, ended.reason) == ("succeeded", 3, "yes", None)

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_pause_for_any_time_outlasts_all(self, trial: ReactorTrial) -> None:
        """A run that paused for any time, or for longer than there are times, waits for years, and then goes on."""

        async def act(reaction: Reaction[None]) -> Any:
            timeout = None if reaction.scope["machine"] == "press" else timedelta.max
            return Pause("go on?", timeout=timeout) if reaction.answer is None else reaction.answer.value

        await trial.publish(Alarm(), Alarm(machine="saw"))
        await trial.process(reaction_rule(), act=act).settle()
        for _ in range(3):
            trial.clock.advance(10_000 * HOUR)
            await trial.process(reaction_rule(), act=act).settle()
            assert await trial.statuses() == ["paused", "paused"]
        for paused in await trial.runs():
            await trial.open().resume_run(paused.id, answer="at last")
        await trial.process(reaction_rule(), act=act).settle()
        assert [(one.status, one.output) for one in await trial.runs()] == [("succeeded", "at last")] * 2

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_pause_of_a_rule_that_is_disabled_or_gone_waits(self, trial: ReactorTrial) -> None:
        """A paused run of a rule that is disabled, or that no process knows, waits until there is one that does."""
        act, rule = Asking(timeout=HOUR), reaction_rule()
        workspace = trial.open()
        await workspace.install_rule(stored_rule())
        await trial.publish(Alarm())
        await trial.process(rule, act=act).settle()
        await workspace.update_rule(stored_rule(enabled=False))
        trial.clock.advance(2 * HOUR)
        for process in (trial.process(reaction_rule(enabled=False)), trial.process(reaction_rule("contract:other"))):
            await process.settle()
        assert await trial.statuses() == ["paused", "paused"]
        await workspace.update_rule(stored_rule())
        await trial.process(rule, act=act).settle()
        assert [(one.status, one.reason) for one in await trial.runs()] == [("dead_lettered", "unanswered")] * 2

    # --- Cancelled, skipped, archived, lost

    @guarantee()
    async def test_a_paused_run_that_is_cancelled_or_skipped_has_ended(self, trial: ReactorTrial) -> None:
        """A paused run can be cancelled or skipped: it waits no more, no answer is taken, and it frees those behind."""
        workspace = trial.open()
        for end, status in ((workspace.cancel_run, "cancelled"), (workspace.skip_run, "skipped")):
            place = await trial.publish(Alarm(machine=status), Alarm(machine=status))
            act = Asking(only=(place[0].seq,))
            process = trial.process(reaction_rule(on_pause="block"), act=act)
            await process.settle()
            (paused,) = await trial.runs(status="paused")
            ended = await end(paused.id, reason="a drill")
            assert (ended.status, ended.reason, ended.waiting) == (status, "a drill", None)
            with pytest.raises(InvalidState):
                await workspace.resume_run(paused.id, answer="too late")
            await process.settle()
            found = await trial.runs(scope_key=f'["{status}"]')
            assert [one.status for one in found] == [status, "succeeded"]
            assert await workspace.retry_run(paused.id)
            await process.settle()
            (paused,) = await trial.runs(status="paused")
            assert (paused.id, paused.attempt, paused.reason) == (found[0].id, 2, None)
            await workspace.resume_run(paused.id)
            await process.settle()
        assert await trial.statuses() == ["succeeded"] * 4
        await trial.recorded_once()

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_archiving_a_rule_cancels_its_paused_runs(self, trial: ReactorTrial) -> None:
        """A stored rule that is archived cancels its paused runs, which no time ends and no answer resumes then."""
        workspace = trial.open()
        await workspace.install_rule(stored_rule())
        await trial.publish(Alarm())
        process = trial.process(act=Asking(timeout=HOUR))
        await process.settle()
        await workspace.archive_rule(stored_rule().name)
        trial.clock.advance(2 * HOUR)
        await process.settle()
        ended = await trial.one()
        assert (ended.status, ended.waiting) == ("cancelled", None)
        with pytest.raises(InvalidState):
            await workspace.resume_run(ended.id)
        assert sorted((await trial.types())[-2:]) == ["rule_archived", "run_cancelled"]

    @guarantee()
    async def test_cancelled_before_its_pause_is_recorded_a_run_does_not_pause(self, trial: ReactorTrial) -> None:
        """A run that is cancelled when its action has asked and before that is recorded stays cancelled."""
        process = trial.process(reaction_rule(), act=Asking(step="asked", state=1))
        await trial.publish(Alarm())
        await process.reactor.evaluate()
        finishing = Hold(process.tap, "transaction", after=1)
        async with process.doing(process.reactor.execute()):
            await finishing.reached.wait()
            await trial.open().cancel_run((await trial.one()).id)
            finishing.let_go()
        ended = await trial.one()
        assert (ended.status, ended.waiting, ended.checkpoints) == ("cancelled", None, 0)
        assert (await trial.types())[-2:] == ["run_started", "run_cancelled"]
        assert await trial.leases() == {}

    @guarantee()
    async def test_cancelled_behind_its_pause_a_run_has_paused_and_is_cancelled(self, trial: ReactorTrial) -> None:
        """A run whose pause is being recorded when somebody cancels it has paused first and is cancelled then."""
        process = trial.process(reaction_rule(), act=Asking())
        await trial.publish(Alarm())
        await process.reactor.evaluate()
        committing = Hold(process.tap, "transaction.save_runs", after=1)
        async with process.doing(process.reactor.execute()):
            await committing.reached.wait()
            cancelling = asyncio.create_task(trial.open().cancel_run((await trial.one()).id))
            await asyncio.sleep(0)
            committing.let_go()
            await cancelling
        assert (await trial.types())[-2:] == ["run_paused", "run_cancelled"]
        assert await trial.statuses() == ["cancelled"]
        assert await trial.leases() == {}

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_executor_that_lost_its_lease_pauses_nothing(self, trial: ReactorTrial) -> None:
        """An attempt that was taken over does not pause its run, whatever the newer attempt has come to."""
        rule = reaction_rule(retry=IMMEDIATELY)
        late = trial.process(rule, act=Asking("the late one's"))
        await trial.publish(Alarm(), Alarm(machine="saw"))
        await late.reactor.evaluate()
        finishing = Hold(late.tap, "transaction", after=1)
        async with late.doing(late.reactor.execute()):
            await finishing.reached.wait()
            trial.clock.advance(TTL)
            act = _AsksOf("press")
            await trial.process(rule, act=act).settle()
            finishing.let_go()
        first, second = await trial.runs()
        assert first.waiting is not None
        assert (first.status, first.attempt, first.waiting.request) == ("paused", 2, "the newer one's")
        assert (second.status, second.attempt) == ("succeeded", 2)
        await trial.recorded_once()

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_process_that_is_killed_at_any_call_loses_no_pause(self, trial: ReactorTrial) -> None:
        """Wherever in its work a process dies whose actions ask, another has each run ask, and once at a time."""
        rule = reaction_rule(retry=IMMEDIATELY)
        killed, number = True, 0
        while killed:
            number += 1
            place = WorkspaceRef(WORKSPACE.tenant_id, f"killed at {number}")
            await trial.publish(Alarm(), Alarm(), workspace=place)
            killed = await trial.process(rule, act=Asking()).killed_at_call(number)
            trial.clock.advance(TTL)
            await trial.process(rule, act=Asking()).settle()
            assert await trial.statuses(place) == ["paused", "paused"]
            assert await trial.leases(place) == {}
            await trial.recorded_once(place)
        assert number > 10

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_process_that_is_killed_at_any_call_ends_each_pause_once(self, trial: ReactorTrial) -> None:
        """Wherever a process dies that finds runs which nobody answered, each of them is dead-lettered once."""
        rule = reaction_rule()
        killed, number = True, 0
        while killed:
            number += 1
            place = WorkspaceRef(WORKSPACE.tenant_id, f"killed at {number}")
            await trial.publish(Alarm(), Alarm(), workspace=place)
            await trial.process(rule, act=Asking(timeout=SECOND)).settle()
            trial.clock.advance(SECOND)
            killed = await trial.process(rule).killed_at_call(number)
            trial.clock.advance(TTL)
            await trial.process(rule).settle()
            assert [(one.status, one.reason) for one in await trial.runs(place)] == [
                ("dead_lettered", "unanswered")
            ] * 2
            await trial.recorded_once(place)
        assert number > 5

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_storage_that_fails_at_any_call_costs_no_pause(self, trial: ReactorTrial) -> None:
        """A call that fails while a run pauses, or its time ends, is tried again: it asks, and is ended, once."""
        rule = reaction_rule(retry=IMMEDIATELY)
        for ending in (False, True):
            failed, number = True, 0
            while failed:
                number += 1
                place = WorkspaceRef(WORKSPACE.tenant_id, f"failed at {number} {ending}")
                await trial.publish(Alarm(), workspace=place)
                process = trial.process(rule, act=Asking(timeout=SECOND))
                if ending:
                    await process.settle()
                    trial.clock.advance(SECOND)
                process.tap.calls.clear()
                failed = await process.failed_at_call(number)
                await process.settle()
                assert await trial.statuses(place) == ["dead_lettered" if ending else "paused"]
                await trial.recorded_once(place)
            assert number > 3


class _Request(BaseModel):
    question: str
    options: tuple[int, ...] = ()


class _AsksOf:
    """An action that asks in one machine's runs."""

    def __init__(self, machine: str) -> None:
        self._machine = machine

    async def __call__(self, reaction: Reaction[None]) -> Any:
        return Pause("the newer one's") if reaction.scope["machine"] == self._machine else None


def _nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value
