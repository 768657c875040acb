"""What a reactor promises of carrying out runs: their order, their attempts, and what somebody may do about them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.reacting_trials import (
    IMMEDIATELY,
    LATER,
    ONCE,
    SOMEBODY,
    STORED_RULES,
    Alarm,
    Gate,
    ReactorGuarantees,
    ReactorTrial,
    Repaired,
    Script,
    reaction_rule,
    stored_rule,
)
from reflexr.contracts.samples import HOUR, SECOND, WORKSPACE
from reflexr.core import (
    InvalidState,
    NotFound,
    RetryPolicy,
    RunDeadLettered,
    RunRequeued,
    RunRetrying,
    RunSkipped,
    by,
    run,
)
from reflexr.workspace import Reaction, RunFailure, WorkspaceRef


class RunningContract(ReactorGuarantees):
    """Every run is carried out in its turn, attempt after attempt, until it has ended."""

    # --- Attempts

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_failed_attempt_is_made_again_when_its_back_off_is_over(self, trial: ReactorTrial) -> None:
        """A run whose attempt failed starts again at the very moment its back-off ends, each time a longer one."""
        act = Script(OSError("one"), OSError("two"), "done")
        policy = RetryPolicy(backoff=10 * SECOND, multiplier=3)
        process = trial.process(reaction_rule(retry=policy), act=act)
        await trial.publish(Alarm())
        await process.settle()
        for wait in (10 * SECOND, 30 * SECOND):
            (waiting,) = await trial.runs()
            assert (waiting.status, waiting.next_attempt_at) == ("retrying", trial.clock() + wait)
            trial.clock.advance(wait - trial.clock_precision)
            await process.settle()
            assert await trial.statuses() == ["retrying"]
            trial.clock.advance(trial.clock_precision)
            await process.settle()
        assert act.attempts == [1, 2, 3]
        (ended,) = await trial.runs()
        assert (ended.status, ended.output, ended.error) == ("succeeded", "done", None)
        assert [fact["attempt"] for fact in await trial.facts(RunRetrying)] == [1, 2]

    @guarantee()
    async def test_a_run_whose_attempts_are_used_up_is_a_dead_letter(self, trial: ReactorTrial) -> None:
        """A run that fails as often as its policy allows is dead-lettered, with what its last attempt said."""
        policy = IMMEDIATELY.model_copy(update={"max_attempts": 3})
        act = Script(OSError("one"), OSError("two"), OSError("three"))
        await trial.publish(Alarm())
        await trial.process(reaction_rule(retry=policy), act=act).settle()
        (dead,) = await trial.runs()
        assert (dead.status, dead.attempt, dead.error) == ("dead_lettered", 3, "OSError: three")
        assert [(fact["attempts"], fact["error"]) for fact in await trial.facts(RunDeadLettered)] == [
            (3, "OSError: three")
        ]

    @guarantee()
    async def test_a_permanent_failure_is_a_dead_letter_at_once(self, trial: ReactorTrial) -> None:
        """An attempt that fails for good dead-letters its run with its reason, however many attempts were left."""
        await trial.publish(Alarm())
        act = Script(RunFailure("no such site", reason="no_such_site", permanent=True))
        await trial.process(reaction_rule(), act=act).settle()
        (dead,) = await trial.runs()
        assert (dead.status, dead.attempt, dead.reason) == ("dead_lettered", 1, "no_such_site")

    @guarantee()
    async def test_an_attempt_that_takes_too_long_has_failed(self, trial: ReactorTrial) -> None:
        """An action that is at work when its rule's timeout is over is cancelled, and its attempt has failed so."""
        act = Gate()
        await trial.publish(Alarm())
        await trial.process(reaction_rule(timeout=SECOND / 100, retry=ONCE), act=act).settle()
        (dead,) = await trial.runs()
        assert (dead.status, dead.reason, act.cancelled) == ("dead_lettered", "timeout", [dead.id])

    @guarantee()
    async def test_an_attempt_goes_on_from_the_last_checkpoint(self, trial: ReactorTrial) -> None:
        """What an attempt saved before it failed is what the next one begins with, and is in the log."""
        found: list[Any] = []

        async def act(reaction: Reaction[None]) -> None:
            found.append((reaction.run.step, reaction.run.checkpoint))
            await reaction.checkpoint(f"step {reaction.attempt}", {"done": reaction.attempt})
            if reaction.attempt < 3:
                raise OSError

        await trial.publish(Alarm())
        await trial.process(reaction_rule(retry=IMMEDIATELY), act=act).settle()
        assert found == [(None, None), ("step 1", {"done": 1}), ("step 2", {"done": 2})]
        assert (await trial.types()).count("run_progressed") == 3
        assert [(one.status, one.checkpoints) for one in await trial.runs()] == [("succeeded", 3)]

    @guarantee()
    async def test_an_attempt_that_is_made_again_emits_nothing_twice(self, trial: ReactorTrial) -> None:
        """Events that an action emits are there once, however often it is tried, before a checkpoint and after it."""

        async def act(reaction: Reaction[None]) -> None:
            if reaction.run.step is None:
                for part in (1, 2):
                    await reaction.emit(Repaired(part=part))
                if reaction.attempt > 2:
                    await reaction.checkpoint("half")
            else:
                await reaction.emit(Repaired(part=3))
            if reaction.attempt < 5:
                raise OSError

        await trial.publish(Alarm())
        await trial.process(reaction_rule(retry=IMMEDIATELY), act=act).settle()
        repaired = await trial.open().read(types=[Repaired])
        assert [envelope.payload["part"] for envelope in repaired] == [1, 2, 3]
        (ended,) = await trial.runs()
        assert {envelope.causation for envelope in repaired} == {ended.causation}
        assert {envelope.correlation_id for envelope in repaired} == {ended.correlation_id}

    @guarantee()
    async def test_a_stored_rule_whose_action_is_gone_is_a_dead_letter(self, trial: ReactorTrial) -> None:
        """A run whose action its process does not have any more fails for good, and says why."""
        await trial.open().install_rule(stored_rule())
        await trial.publish(Alarm())
        stored_rules = replace(STORED_RULES, actions={})
        await trial.process(stored_rules=stored_rules, actions={}).settle()
        assert [(one.status, one.reason) for one in await trial.runs()] == [("dead_lettered", "unknown_action")]

    # --- Order

    @guarantee()
    async def test_runs_of_a_scope_go_in_firing_order_and_scopes_side_by_side(self, trial: ReactorTrial) -> None:
        """In each scope the next run starts when the one before has ended, while other scopes go their own way."""
        act = Gate()
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(*(Alarm(machine=machine) for machine in ("press", "press", "saw", "press", "saw")))
        await process.reactor.evaluate()
        async with process.doing(process.reactor.execute()):
            first = {(await act.begun.get()).envelopes[0].seq for _ in range(2)}
            act.let_go()
        rest = [act.begun.get_nowait().envelopes[0].seq for _ in range(3)]
        assert first == {1, 3}
        assert [seq for seq in rest if seq != 5] == [2, 4]
        assert await trial.statuses() == ["succeeded"] * 5
        await trial.recorded_once()

    @guarantee()
    async def test_a_failure_holds_back_its_scope_alone(self, trial: ReactorTrial) -> None:
        """A run that waits to be tried again holds back the later ones of its scope, and none of another."""
        process = trial.process(reaction_rule(retry=LATER), act=_fails_at(1))
        await trial.publish(Alarm(machine="press"), Alarm(machine="press"), Alarm(machine="saw"))
        await process.settle()
        assert await trial.statuses() == ["retrying", "pending", "succeeded"]

    @guarantee()
    async def test_without_order_no_run_waits_for_another(self, trial: ReactorTrial) -> None:
        """Under a rule without order a run that fails, or is at work, holds back no other."""
        act = Gate()

        async def fail_first(reaction: Reaction[None]) -> None:
            if reaction.envelopes[0].seq == 1:
                raise OSError
            await act(reaction)

        process = trial.process(reaction_rule(ordering="none", retry=LATER), act=fail_first)
        await trial.publish(*[Alarm()] * 4)
        async with process.serving():
            for _ in range(3):
                await act.begun.get()
            act.let_go()
            await trial.until_ended(3)
        assert await trial.statuses() == ["retrying", "succeeded", "succeeded", "succeeded"]

    @guarantee()
    async def test_after_a_dead_letter_its_scope_goes_on(self, trial: ReactorTrial) -> None:
        """Under `continue` the runs behind a dead letter are carried out."""
        await trial.publish(Alarm(), Alarm())
        await trial.process(reaction_rule(retry=ONCE), act=Script(OSError(), None)).settle()
        assert await trial.statuses() == ["dead_lettered", "succeeded"]

    @guarantee()
    async def test_a_dead_letter_that_blocks_keeps_its_scope_until_it_is_retried(self, trial: ReactorTrial) -> None:
        """Under `block` the runs behind a dead letter wait until it was retried and has ended well."""
        process = trial.process(reaction_rule(retry=ONCE, on_dead_letter="block"), act=Script(OSError(), None))
        await trial.publish(Alarm(), Alarm(), Alarm(machine="saw"))
        await process.settle()
        assert await trial.statuses() == ["dead_lettered", "pending", "succeeded"]
        dead = (await trial.runs())[0]
        assert (await trial.open().retry_run(dead.id)).status == "pending"
        await process.settle()
        assert await trial.statuses() == ["succeeded"] * 3
        assert [(one.attempt, one.requeues) for one in await trial.runs()] == [(2, 1), (1, 0), (1, 0)]
        assert [fact["run_id"] for fact in await trial.facts(RunRequeued)] == [dead.id]

    @guarantee()
    async def test_the_head_of_a_scope_in_a_long_back_off_is_seen_and_skipped(self, trial: ReactorTrial) -> None:
        """Whoever looks sees which run holds back its scope and until when; skipping it frees those behind it."""
        process = trial.process(reaction_rule(retry=LATER), act=_fails_at(1))
        await trial.publish(*[Alarm()] * 20, Alarm(machine="saw"))
        await process.settle()
        (blocker,) = await trial.open().runs(scope_key='["press"]', status="retrying")
        assert (blocker.attempt, blocker.error, blocker.matched) == (1, "OSError", (1,))
        assert blocker.next_attempt_at is not None
        assert blocker.next_attempt_at >= blocker.fired_at + HOUR
        assert len(await trial.open().runs(scope_key='["press"]', status="pending")) == 19
        await trial.open().skip_run(blocker.id, reason="a drill")
        await process.settle()
        assert await trial.statuses() == ["skipped", *["succeeded"] * 20]
        assert [(fact["run_id"], fact["reason"]) for fact in await trial.facts(RunSkipped)] == [(blocker.id, "a drill")]
        await trial.recorded_once()

    @guarantee()
    async def test_a_slow_action_holds_up_no_other_scope_rule_or_workspace(self, trial: ReactorTrial) -> None:
        """While one action is at work, the runs of other scopes, rules and workspaces go on."""
        act, other = Gate(), WorkspaceRef(WORKSPACE.tenant_id, "another")
        quick = reaction_rule("contract:quick", then=run("quick"))
        process = trial.process(reaction_rule(), quick, actions={"act": act, "quick": Script(None)})
        async with process.serving():
            await trial.publish(Alarm())
            await act.begun.get()
            await trial.publish(Alarm(), Alarm(machine="saw"))
            await trial.publish(Alarm(), workspace=other)
            assert {(await act.begun.get()).run.scope_key for _ in range(2)} == {'["press"]', '["saw"]'}
            await trial.until_ended(3)
            await trial.until_ended(1, other)
            assert {one.rule for one in await trial.runs(status="succeeded")} == {"contract:quick"}
            act.let_go()
        assert act.cancelled == []

    @guarantee()
    async def test_no_more_actions_are_at_work_than_the_concurrency(self, trial: ReactorTrial) -> None:
        """One process has as many actions at work as its concurrency says and no more, and uses all of it."""
        at_work: list[int] = [0]
        most: list[int] = [0]

        async def act(_: Reaction[None]) -> None:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
            await asyncio.sleep(0)
            at_work[0] -= 1

        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(12)))
        await trial.process(reaction_rule(), act=act, concurrency=3).settle()
        assert most == [3]
        assert await trial.statuses() == ["succeeded"] * 12

    @guarantee()
    async def test_runs_of_rules_that_are_disabled_or_gone_wait(self, trial: ReactorTrial) -> None:
        """Runs of a rule that is disabled, or that a process does not know, wait for one that carries them out."""
        rules = (reaction_rule(), reaction_rule("contract:other", scope=by()))
        await trial.publish(Alarm())
        await trial.process(*rules).reactor.evaluate()
        await trial.process(reaction_rule(enabled=False)).settle()
        assert await trial.statuses() == ["pending", "pending"]
        await trial.process(*rules).settle()
        assert await trial.statuses() == ["succeeded", "succeeded"]

    @guarantee()
    async def test_many_runs_of_many_scopes_are_carried_out_once_each(self, trial: ReactorTrial) -> None:
        """A crowd of runs in many scopes is carried out by two processes, each once and in firing order."""
        done: list[tuple[Any, int]] = []

        async def act(reaction: Reaction[None]) -> None:
            await asyncio.sleep(0)
            done.append((reaction.scope["machine"], reaction.envelopes[0].seq))

        processes = [trial.process(reaction_rule(), act=act, batch_size=7, concurrency=4) for _ in range(2)]
        async with processes[0].serving(), processes[1].serving():
            for _ in range(4):
                await trial.publish(*(Alarm(machine=f"m{number % 6}") for number in range(15)))
            await trial.until_ended(60)
        assert len(done) == len(set(done)) == 60
        for machine in {scope for scope, _ in done}:
            seqs = [seq for scope, seq in done if scope == machine]
            assert seqs == sorted(seqs)
        await trial.recorded_once()

    # --- What somebody may do

    @guarantee()
    async def test_a_run_that_was_cancelled_before_it_began_never_does(self, trial: ReactorTrial) -> None:
        """A pending run that is cancelled is not carried out, and holds back no other of its scope."""
        act = Script(None)
        process = trial.process(reaction_rule(), act=act)
        await trial.publish(Alarm(), Alarm())
        await process.reactor.evaluate()
        await trial.open().cancel_run((await trial.runs())[0].id, reason="false alarm")
        await process.settle()
        assert await trial.statuses() == ["cancelled", "succeeded"]
        assert act.seqs == [2]

    @guarantee()
    async def test_a_run_that_is_retried_has_all_its_attempts_again(self, trial: ReactorTrial) -> None:
        """A run that ended without success can be retried, by anybody's name, with a fresh count of attempts."""
        policy = IMMEDIATELY.model_copy(update={"max_attempts": 2})
        act = Script(OSError(), OSError(), OSError(), "done")
        process = trial.process(reaction_rule(retry=policy), act=act)
        await trial.publish(Alarm())
        await process.settle()
        (dead,) = await trial.runs()
        await trial.open().retry_run(dead.id)
        await process.settle()
        (ended,) = await trial.runs()
        assert (ended.status, ended.attempt, ended.requeues) == ("succeeded", 4, 1)
        (requeued,) = await trial.open().read(types=[RunRequeued])
        assert requeued.actor == SOMEBODY

    @guarantee()
    async def test_an_operation_that_the_run_does_not_allow_changes_nothing(self, trial: ReactorTrial) -> None:
        """A run that succeeded can be neither retried, skipped nor cancelled, and none that does not exist."""
        await trial.publish(Alarm())
        await trial.process(reaction_rule()).settle()
        (ended,) = await trial.runs()
        workspace, before = trial.open(), await trial.log()
        for operation in (workspace.retry_run, workspace.skip_run, workspace.cancel_run):
            with pytest.raises(InvalidState):
                await operation(ended.id)
            with pytest.raises(NotFound):
                await operation("nothing")
        assert await trial.log() == before
        assert await trial.runs() == [ended]

    @guarantee()
    async def test_a_run_that_has_ended_leaves_no_lease(self, trial: ReactorTrial) -> None:
        """Whatever became of a run, nobody holds its lease, nor that of the evaluation."""
        act = Script(None, OSError(), OSError())
        process = trial.process(reaction_rule(retry=ONCE), act=act)
        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(3)))
        await process.settle()
        assert sorted(await trial.statuses()) == ["dead_lettered", "dead_lettered", "succeeded"]
        assert await trial.leases() == {}


def _fails_at(seq: int) -> Any:
    """An action that fails for the firing at one place."""

    async def act(reaction: Reaction[None]) -> None:
        if reaction.envelopes[0].seq == seq:
            raise OSError

    return act
