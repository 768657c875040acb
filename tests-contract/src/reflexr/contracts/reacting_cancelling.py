"""What a reactor promises of cancelled runs: whenever it happens, the action is stopped and nothing comes after."""

import asyncio
from contextlib import nullcontext, suppress
from typing import Any, override

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.reacting_trials import (
    IMMEDIATELY,
    LATER,
    Alarm,
    Gate,
    Hold,
    ReactorGuarantees,
    ReactorTrial,
    Repaired,
    Script,
    reaction_rule,
    stored_rule,
    stubbornly,
)
from reflexr.contracts.samples import HOUR
from reflexr.core import InvalidState, Rejected
from reflexr.workspace import Reaction


class CancellingContract(ReactorGuarantees):
    """A run that is cancelled has ended by then: what its action does after that has no effect."""

    # --- At each stage of a run

    @guarantee()
    async def test_cancelled_before_its_claim_a_run_never_starts(self, trial: ReactorTrial) -> None:
        """A run that is cancelled when it was found and before it was claimed does not begin."""
        act = Script(None)
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(Alarm())
        await process.reactor.evaluate()
        hold = Hold(process.tap, "transaction")
        async with process.doing(process.reactor.execute()):
            await hold.reached.wait()
            await _cancel(trial)
            hold.let_go()
        assert act.reactions == []
        await _nothing_after(trial, "rule_fired")

    @guarantee()
    async def test_cancelled_while_it_starts_a_run_does_not_act(self, trial: ReactorTrial) -> None:
        """A run that is cancelled between its claim and its action ends without the action."""
        starting = asyncio.Event()

        def preparing(_: Reaction[Any]) -> _Preparing:
            return _Preparing(starting)

        act = Script(None)
        process = trial.process(reaction_rule(), act=act, run_context=preparing)
        await trial.publish(Alarm())
        async with process.serving():
            await starting.wait()
            await _cancel(trial)
        assert act.reactions == []
        await _nothing_after(trial, "run_started")

    @guarantee()
    async def test_cancelled_while_it_waits_an_action_is_stopped(self, trial: ReactorTrial) -> None:
        """An action that waits for something when its run is cancelled is stopped where it waits."""
        act = Gate()
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(Alarm())
        async with process.serving():
            await act.begun.get()
            cancelled = await _cancel(trial)
        assert act.cancelled == [cancelled]
        await _nothing_after(trial, "run_started")

    @guarantee()
    async def test_cancelled_while_it_saves_a_checkpoint_nothing_is_saved(self, trial: ReactorTrial) -> None:
        """A checkpoint that is on its way when its run is cancelled is not recorded, and the action goes no further."""
        stopped: list[BaseException] = []

        async def act(reaction: Reaction[None]) -> None:
            holds.append(Hold(process.tap, "transaction"))
            saving.set()
            try:
                await reaction.checkpoint("half", {"done": 1})
            except BaseException as error:
                stopped.append(error)
                raise

        holds: list[Hold] = []
        saving = asyncio.Event()
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(Alarm())
        async with process.serving():
            await saving.wait()
            await holds[0].reached.wait()
            await _cancel(trial)
            holds[0].let_go()
        assert len(stopped) == 1
        (ended,) = await trial.runs()
        assert (ended.checkpoint, ended.checkpoints) == (None, 0)
        await _nothing_after(trial, "run_started")

    @guarantee()
    async def test_cancelled_while_it_emits_nothing_is_published(self, trial: ReactorTrial) -> None:
        """An event that is on its way when its run is cancelled is not published, and the action goes no further."""
        stopped: list[BaseException] = []

        async def act(reaction: Reaction[None]) -> None:
            holds.append(Hold(process.tap, "append", "transaction"))
            emitting.set()
            try:
                await reaction.emit(Repaired())
            except BaseException as error:
                stopped.append(error)
                raise

        holds: list[Hold] = []
        emitting = asyncio.Event()
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(Alarm())
        async with process.serving():
            await emitting.wait()
            await holds[0].reached.wait()
            await _cancel(trial)
            holds[0].let_go()
        assert len(stopped) == 1
        await _nothing_after(trial, "run_started")

    @guarantee()
    async def test_what_a_cancelled_run_emits_is_refused(self, trial: ReactorTrial) -> None:
        """A run that is cancelled publishes nothing more, though its process did not hear of that yet."""
        refusals: list[type[BaseException]] = []

        async def act(reaction: Reaction[None]) -> None:
            await gate(reaction)
            with pytest.raises(Rejected) as refused:
                await reaction.emit(Repaired())
            refusals.append(refused.type)

        async def deaf(name: str, *_: Any) -> None:
            if name == "renew":
                await asyncio.Event().wait()

        gate = Gate()
        process = trial.process(reaction_rule(), act=act)
        process.tap.before = deaf
        await trial.publish(Alarm())
        async with process.serving():
            await gate.begun.get()
            await _cancel(trial)
            gate.let_go()
        await _nothing_after(trial, "run_started")
        assert refusals == [InvalidState]

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_cancelled_during_its_back_off_a_run_is_not_tried_again(self, trial: ReactorTrial) -> None:
        """A run that is cancelled while it waits for its next attempt has none, and frees those behind it."""
        act = Script(OSError(), None)
        process = trial.process(reaction_rule(retry=LATER), act=act)
        await trial.publish(Alarm(), Alarm())
        await process.settle()
        await trial.open().cancel_run((await trial.runs())[0].id)
        trial.clock.advance(HOUR)
        await process.settle()
        assert await trial.statuses() == ["cancelled", "succeeded"]
        assert act.seqs == [1, 2]

    @guarantee()
    async def test_cancelled_before_its_outcome_is_recorded_a_run_has_none(self, trial: ReactorTrial) -> None:
        """A run that is cancelled when its action has ended and before that is recorded stays cancelled."""
        process = trial.process(reaction_rule(), act=Script("done"))
        await trial.publish(Alarm())
        await process.reactor.evaluate()
        finishing = Hold(process.tap, "transaction", after=1)
        async with process.doing(process.reactor.execute()):
            await finishing.reached.wait()
            await _cancel(trial)
            finishing.let_go()
        (ended,) = await trial.runs()
        assert (ended.status, ended.output) == ("cancelled", None)
        await _nothing_after(trial, "run_started")

    @guarantee()
    async def test_a_cancellation_behind_the_outcome_is_refused(self, trial: ReactorTrial) -> None:
        """A run whose outcome is being recorded when somebody cancels it keeps that outcome."""
        process = trial.process(reaction_rule(), act=Script("done"))
        await trial.publish(Alarm())
        await process.reactor.evaluate()
        committing = Hold(process.tap, "transaction.save_runs", after=1)
        async with process.doing(process.reactor.execute()):
            await committing.reached.wait()
            (running,) = await trial.runs()
            cancelling = asyncio.create_task(trial.open().cancel_run(running.id))
            await asyncio.sleep(0)
            committing.let_go()
            with pytest.raises(InvalidState):
                await cancelling
        assert [(one.status, one.output) for one in await trial.runs()] == [("succeeded", "done")]
        assert await trial.leases() == {}

    # --- What follows

    @guarantee()
    async def test_an_action_that_is_stopped_can_clean_up(self, trial: ReactorTrial) -> None:
        """An action is cancelled once, so that what it does to clean up is not broken off by whatever happens next."""
        cleaned: list[str] = []

        async def act(reaction: Reaction[None]) -> None:
            if reaction.scope["machine"] == "press":
                try:
                    await gate(reaction)
                finally:
                    cleaning.set()
                    await clean.wait()
                    cleaned.append(reaction.run_id)

        gate, cleaning, clean = Gate(), asyncio.Event(), asyncio.Event()
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(Alarm())
        async with process.serving():
            await gate.begun.get()
            cancelled = await _cancel(trial)
            await cleaning.wait()
            for number in range(1, 4):
                await trial.publish(Alarm(machine="saw"))
                await trial.until_ended(1 + number)
            clean.set()
        assert cleaned == [cancelled]

    @guarantee()
    async def test_a_run_that_is_retried_while_it_is_stopped_begins_again_after_that(self, trial: ReactorTrial) -> None:
        """A run that is cancelled and retried at once begins anew when its stopped action has ended, and not before."""
        at_work: list[int] = []

        async def act(reaction: Reaction[None]) -> str:
            at_work.append(reaction.attempt)
            if reaction.attempt == 1:
                begun.set()
                await stubbornly(ended.wait())
            at_work.remove(reaction.attempt)
            assert at_work == []
            return f"attempt {reaction.attempt}"

        begun, ended = asyncio.Event(), asyncio.Event()
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(Alarm())
        async with process.serving():
            await begun.wait()
            cancelled = await _cancel(trial)
            await trial.open().retry_run(cancelled)
            ended.set()
            await trial.until_ended(1)
        assert [(one.status, one.output) for one in await trial.runs()] == [("succeeded", "attempt 2")]

    @guarantee()
    async def test_archiving_a_rule_stops_its_actions(self, trial: ReactorTrial) -> None:
        """A stored rule that is archived while its action is at work cancels it."""
        act = Gate()
        workspace, process = trial.open(), trial.process(act=act)
        await workspace.install_rule(stored_rule())
        await trial.publish(Alarm())
        async with process.serving():
            reaction = await act.begun.get()
            await workspace.archive_rule(stored_rule().name)
        assert (await trial.statuses(), act.cancelled) == (["cancelled"], [reaction.run_id])
        assert await trial.leases() == {}

    @guarantee()
    async def test_a_crowd_of_cancellations_that_race_completion_leaves_full_capacity(
        self, trial: ReactorTrial
    ) -> None:
        """However many runs are cancelled while they end, each has ended once, and every place is free again."""
        at_work: list[int] = [0]
        cancelling: list[asyncio.Task[None]] = []

        async def act(reaction: Reaction[None]) -> None:
            at_work[0] += 1
            cancelling.append(asyncio.create_task(cancel(reaction.run_id)))
            try:
                for _ in range(reaction.envelopes[0].seq % 7):
                    await asyncio.sleep(0)
            finally:
                at_work[0] -= 1

        async def cancel(run_id: str) -> None:
            with suppress(InvalidState):
                await workspace.cancel_run(run_id)

        rule, workspace = reaction_rule(ordering="none", retry=IMMEDIATELY), trial.open()
        process = trial.process(rule, act=act, concurrency=8)
        await trial.publish(*[Alarm()] * self.crowd)
        await process.settle()
        await asyncio.gather(*cancelling)
        assert set(await trial.statuses()) <= {"cancelled", "succeeded"}
        assert at_work == [0]
        await trial.recorded_once()
        assert await trial.leases() == {}
        gate = Gate()
        full = trial.process(rule, act=gate, concurrency=8)
        await trial.publish(*[Alarm()] * 8)
        async with full.serving():
            for _ in range(8):
                await gate.begun.get()
            gate.let_go()

    @guarantee()
    async def test_the_process_that_obeyed_cancellations_has_its_full_capacity(self, trial: ReactorTrial) -> None:
        """Every place of a cancelled action is free for another run of the same process."""
        gates = [Gate(), Gate()]

        async def act(reaction: Reaction[None]) -> None:
            await gates[reaction.envelopes[0].event == Alarm(level=2)](reaction)

        process = trial.process(reaction_rule(ordering="none"), act=act, concurrency=4)
        async with process.serving():
            await trial.publish(*[Alarm()] * 4)
            for _ in range(4):
                await trial.open().cancel_run((await gates[0].begun.get()).run_id)
            await trial.publish(*[Alarm(level=2)] * 4)
            for _ in range(4):
                await gates[1].begun.get()
            gates[1].let_go()
        assert await trial.statuses() == ["cancelled"] * 4 + ["succeeded"] * 4


class _Preparing(nullcontext[None]):
    """What surrounds an attempt, and never comes to its action."""

    def __init__(self, starting: asyncio.Event) -> None:
        super().__init__()
        self._starting = starting

    @override
    async def __aenter__(self) -> None:
        self._starting.set()
        await asyncio.Event().wait()


async def _cancel(trial: ReactorTrial) -> str:
    """Cancels the one run, and returns its id."""
    (found,) = await trial.runs()
    await trial.open().cancel_run(found.id)
    return found.id


async def _nothing_after(trial: ReactorTrial, last: str) -> None:
    """Asserts that a run was cancelled after a fact, and that nothing happened then."""
    assert (await trial.types())[-2:] == [last, "run_cancelled"]
    assert await trial.statuses() == ["cancelled"]
    assert await trial.leases() == {}
