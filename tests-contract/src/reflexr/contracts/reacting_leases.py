"""What a reactor promises when processes die, hang, are replaced or disagree: nothing is lost or done over."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.reacting_trials import (
    IMMEDIATELY,
    ONCE,
    TTL,
    Alarm,
    Gate,
    Hold,
    Process,
    ReactorGuarantees,
    ReactorTrial,
    Repaired,
    Script,
    reaction_rule,
    stubbornly,
)
from reflexr.contracts.samples import HOUR, SECOND, START, WORKSPACE
from reflexr.core import InvalidState, RetryPolicy, Rule, RunRetrying
from reflexr.workspace import ManualClock, Reaction, StorageError, WorkspaceRef, run_lease

SHORT = timedelta(milliseconds=60)
"""How long a lease lasts where it is to be renewed while a test waits."""


class TakingOverContract(ReactorGuarantees):
    """What one process began, another takes over once its lease has lapsed, and never before."""

    # --- Processes that die

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_what_a_killed_process_was_at_is_taken_over_when_its_lease_lapses(self, trial: ReactorTrial) -> None:
        """A run whose process died is left alone while its lease is live, then counted as failed and made again."""
        rule = reaction_rule(retry=IMMEDIATELY)
        await _killed_at_work(trial, rule)
        act = Script("done")
        process = trial.process(rule, act=act)
        trial.clock.set(START + TTL - trial.clock_precision)
        await process.settle()
        assert await trial.statuses() == ["running"]
        trial.clock.set(START + TTL)
        await process.settle()
        assert act.attempts == [2]
        assert [(fact["attempt"], fact["reason"]) for fact in await trial.facts(RunRetrying)] == [(1, "abandoned")]
        await trial.recorded_once()

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_attempts_that_kill_their_process_use_up_the_policy(self, trial: ReactorTrial) -> None:
        """A run whose every attempt kills its process is dead-lettered as abandoned, and the next of its scope goes."""
        rule = reaction_rule(retry=IMMEDIATELY.model_copy(update={"max_attempts": 2}))
        await _killed_at_work(trial, rule)
        trial.clock.advance(TTL)
        await trial.publish(Alarm())
        await _killed_at_work(trial, rule, publish=False)
        trial.clock.advance(TTL)
        act = Script(None)
        await trial.process(rule, act=act).settle()
        assert [(one.status, one.attempt, one.reason) for one in await trial.runs()] == [
            ("dead_lettered", 2, "abandoned"),
            ("succeeded", 1, None),
        ]

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_process_that_comes_back_under_its_name_resumes_within_one_lease(self, trial: ReactorTrial) -> None:
        """A process that died and is started again under its name is another: it resumes once the lease has lapsed."""
        rule = reaction_rule(retry=IMMEDIATELY)
        await _killed_at_work(trial, rule, holder="host-1")
        act = Script(None)
        reborn = trial.process(rule, act=act, holder="host-1")
        async with reborn.serving():
            await trial.publish(Alarm(machine="saw"))
            await trial.until_ended(1)
            assert [one.status for one in await trial.runs()] == ["running", "succeeded"]
            trial.clock.advance(TTL)
            await trial.publish(Alarm(machine="lathe"))
            await trial.until_ended(3)
        assert sorted(act.attempts) == [1, 1, 2]
        await trial.recorded_once()

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_process_that_is_killed_at_any_call_loses_and_repeats_nothing(self, trial: ReactorTrial) -> None:
        """Wherever in its work a process dies, another ends that work: every decision once, and every run once."""
        rule = reaction_rule(retry=IMMEDIATELY)
        lived, number = False, 0
        while not lived:
            number += 1
            workspace = WorkspaceRef(WORKSPACE.tenant_id, f"killed at {number}")
            await trial.publish(Alarm(), Alarm(), workspace=workspace)
            dying = trial.process(rule, act=_emitting, batch_size=2)
            lived = not await dying.killed_at_call(number)
            trial.clock.advance(TTL)
            await trial.process(rule, act=_emitting, batch_size=2).settle()
            assert await trial.statuses(workspace) == ["succeeded", "succeeded"]
            assert len(await trial.decided(rule, workspace=workspace)) == 2
            assert (await trial.types(workspace)).count("repaired") == 2
            await trial.recorded_once(workspace)
        assert number > 20

    @guarantee()
    async def test_a_storage_that_fails_at_any_call_costs_no_work(self, trial: ReactorTrial) -> None:
        """A call that fails, whichever it is, is raised or tried again, and once the storage works all gets done."""
        rule = reaction_rule(retry=IMMEDIATELY)
        failed, number = True, 0
        while failed:
            number += 1
            workspace = WorkspaceRef(WORKSPACE.tenant_id, f"failed at {number}")
            await trial.publish(Alarm(), Alarm(machine="saw"), workspace=workspace)
            process = trial.process(rule)
            failed = await process.failed_at_call(number)
            await process.settle()
            assert await trial.statuses(workspace) == ["succeeded", "succeeded"]
            await trial.decided(rule, workspace=workspace)
            await trial.recorded_once(workspace)
        assert number > 10

    # --- Processes that hang, and go on

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_executor_that_lost_its_lease_records_nothing(self, trial: ReactorTrial) -> None:
        """An attempt that was taken over records neither its outcome nor a checkpoint over the newer attempt's."""
        taken_over = asyncio.Event()

        async def too_late(reaction: Reaction[None]) -> str:
            with pytest.raises(asyncio.CancelledError):
                await gate(reaction)
            await stubbornly(taken_over.wait())
            with pytest.raises(InvalidState):
                await stubbornly(reaction.checkpoint("late", "late"))
            refused.append(reaction.attempt)
            return "too late"

        refused: list[int] = []
        gate = Gate()
        rule = reaction_rule(retry=IMMEDIATELY)
        slow = trial.process(rule, act=too_late)
        await trial.publish(Alarm())
        await slow.reactor.evaluate()
        async with slow.doing(slow.reactor.execute()):
            await gate.begun.get()
            trial.clock.advance(TTL)
            await trial.process(rule, act=Script("in time")).settle()
            taken_over.set()
        (ended,) = await trial.runs()
        assert (ended.status, ended.attempt, ended.output, ended.checkpoint) == ("succeeded", 2, "in time", None)
        assert refused == [1]
        await trial.recorded_once()

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_what_is_emitted_by_two_attempts_at_once_is_there_once(self, trial: ReactorTrial) -> None:
        """An attempt that goes on though it was taken over publishes nothing that the newer one has published."""
        taken_over = asyncio.Event()

        async def hangs(reaction: Reaction[None]) -> None:
            with pytest.raises(asyncio.CancelledError):
                await gate(reaction)
            await stubbornly(taken_over.wait())
            await stubbornly(_emitting(reaction))

        gate = Gate()
        rule = reaction_rule(retry=IMMEDIATELY)
        slow = trial.process(rule, act=hangs)
        await trial.publish(Alarm())
        await slow.reactor.evaluate()
        async with slow.doing(slow.reactor.execute()):
            await gate.begun.get()
            trial.clock.advance(TTL)
            await trial.process(rule, act=_emitting).settle()
            taken_over.set()
        assert (await trial.types()).count("repaired") == 1
        assert await trial.statuses() == ["succeeded"]

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_sweeper_that_is_paused_before_it_writes_unfinishes_nothing(self, trial: ReactorTrial) -> None:
        """Whoever found an abandoned run and was then paused leaves it as it is by then: finished by another."""
        rule = reaction_rule(retry=IMMEDIATELY)
        await _killed_at_work(trial, rule)
        trial.clock.advance(TTL)
        act = Script("the sweeper's")
        sweeper = trial.process(rule, act=act)
        hold = Hold(sweeper.tap, "transaction")
        async with sweeper.doing(sweeper.reactor.execute()):
            await hold.reached.wait()
            await trial.process(rule, act=Script("another's")).settle()
            finished, log = await trial.runs(), await trial.log()
            hold.let_go()
        assert (finished[0].status, finished[0].output) == ("succeeded", "another's")
        assert await trial.runs() == finished
        assert await trial.log() == log
        assert act.reactions == []

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_outcome_that_comes_while_its_run_is_swept_unfinishes_nothing(self, trial: ReactorTrial) -> None:
        """An executor that comes back while a sweeper reads and writes its run waits for that, and records nothing."""
        rule = reaction_rule(retry=IMMEDIATELY)
        gate = Gate()

        async def act(reaction: Reaction[None]) -> str:
            await gate(reaction)
            return f"attempt {reaction.attempt}"

        slow, sweeper = (trial.process(rule, act=act) for _ in range(2))
        await trial.publish(Alarm())
        await slow.reactor.evaluate()
        hold = Hold(sweeper.tap, "transaction.save_runs")
        async with slow.doing(slow.reactor.execute()):
            await gate.begun.get()
            trial.clock.advance(TTL)
            async with sweeper.doing(sweeper.reactor.execute()):
                await hold.reached.wait()
                returning = Hold(slow.tap, "transaction")
                gate.let_go()
                await returning.reached.wait()
                returning.let_go()
                hold.let_go()
        (ended,) = await trial.runs()
        assert (ended.status, ended.attempt, ended.output) == ("succeeded", 2, "attempt 2")
        await trial.recorded_once()

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_leases_are_kept_while_an_action_is_at_work(self, trial: ReactorTrial) -> None:
        """An action that works longer than a lease lasts keeps its run: its lease is renewed in time."""
        act = Gate("done")
        slow = trial.process(reaction_rule(), act=act, lease_ttl=SHORT)
        other = trial.process(reaction_rule(), act=Script("another's"))
        await trial.publish(Alarm())
        async with slow.serving():
            await act.begun.get()
            await _renewed(trial, slow, times=6)
            await other.settle()
            act.let_go()
            await trial.until_ended(1)
        assert [(one.status, one.attempt, one.output) for one in await trial.runs()] == [("succeeded", 1, "done")]

    # --- Processes that are replaced

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_drain_longer_than_the_lease_keeps_what_is_in_hand(self, trial: ReactorTrial) -> None:
        """A process that drains keeps the leases of what it has in hand for as long as that takes."""
        act = Gate("the old one's")
        old = trial.process(reaction_rule(), act=act, lease_ttl=SHORT)
        new = trial.process(reaction_rule(), act=Script("the new one's"))
        await trial.publish(Alarm())
        async with old.serving(grace=HOUR) as stop:
            await act.begun.get()
            stop.set()
            async with new.serving():
                await _renewed(trial, old, times=6)
                await trial.publish(Alarm(machine="saw"))
                await trial.until_ended(1)
                act.let_go()
                await trial.until_ended(2)
        assert [(one.attempt, one.output) for one in await trial.runs()] == [(1, "the old one's"), (1, "the new one's")]
        await trial.recorded_once()

    @guarantee()
    async def test_old_and_new_processes_that_overlap_strand_nothing(self, trial: ReactorTrial) -> None:
        """While old processes drain and new ones begin, every run is carried out, and a draining one claims none."""
        claimed: list[tuple[str, int]] = []
        gates = {"old": Gate(), "new": Gate()}

        def acting(name: str) -> Any:
            async def act(reaction: Reaction[None]) -> None:
                claimed.append((name, reaction.envelopes[0].seq))
                await gates[name](reaction)

            return act

        rule = reaction_rule(ordering="none", retry=ONCE)
        old = trial.process(rule, act=acting("old"), concurrency=4)
        new = trial.process(rule, act=acting("new"), concurrency=4)
        async with AsyncExitStack() as stack:
            stop = await stack.enter_async_context(old.serving())
            await trial.publish(*[Alarm()] * 10)
            for _ in range(4):
                await gates["old"].begun.get()
            stop.set()
            await stack.enter_async_context(new.serving())
            for _ in range(4):
                await gates["new"].begun.get()
            gates["old"].let_go()
            await trial.until_ended(4)
            gates["new"].let_go()
            await trial.publish(*[Alarm()] * 5)
            await trial.until_ended(15)
        assert [name for name, _ in claimed].count("old") == 4
        assert len({seq for _, seq in claimed}) == len(claimed) == 15
        assert await trial.statuses() == ["succeeded"] * 15
        await trial.recorded_once()

    @guarantee()
    async def test_what_outlasts_the_grace_period_is_given_back(self, trial: ReactorTrial) -> None:
        """An action that is at work when the grace period is over is cancelled, and another process goes on at once."""
        act = Gate()
        rule = reaction_rule(retry=IMMEDIATELY)
        await trial.publish(Alarm())
        async with trial.process(rule, act=act).serving(grace=timedelta()) as stop:
            await act.begun.get()
            stop.set()
        (left,) = await trial.runs()
        assert (left.status, left.reason, act.cancelled) == ("retrying", "abandoned", [left.id])
        async with trial.transaction() as transaction:
            assert await transaction.holders([run_lease(left.id)]) == {}
        await trial.process(rule).settle()
        assert [(one.status, one.attempt) for one in await trial.runs()] == [("succeeded", 2)]

    @guarantee()
    async def test_a_draining_process_obeys_a_cancellation(self, trial: ReactorTrial) -> None:
        """A run that is cancelled while its process drains is stopped."""
        act = Gate()
        await trial.publish(Alarm())
        async with trial.process(reaction_rule(), act=act).serving() as stop:
            reaction = await act.begun.get()
            stop.set()
            await trial.open().cancel_run(reaction.run_id)
        assert (await trial.statuses(), act.cancelled) == (["cancelled"], [reaction.run_id])

    # --- Processes that disagree about the time

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_hosts_an_hour_ahead_and_behind_go_by_the_storages_clock(self, trial: ReactorTrial) -> None:
        """A host whose own clock is an hour off takes no lease before its time, and begins no attempt early or late."""
        rule = reaction_rule(retry=RetryPolicy(backoff=SECOND))
        act = Gate()
        slow = trial.process(rule, act=act)
        hosts = [
            trial.process(rule, act=Script(OSError(), "done"), clock=ManualClock(START + shift))
            for shift in (HOUR, -HOUR)
        ]
        await trial.publish(Alarm())
        await slow.reactor.evaluate()
        async with slow.doing(slow.reactor.execute()):
            await act.begun.get()
            await trial.publish(Alarm(machine="saw"))
            for host in hosts:
                await host.settle()
            assert await trial.statuses() == ["running", "retrying"]
            trial.clock.advance(SECOND)
            for host in reversed(hosts):
                await host.settle()
            act.let_go()
        assert (await trial.runs())[0].status == "succeeded"
        assert all(START <= envelope.ts <= START + SECOND for envelope in await trial.log())
        await trial.recorded_once()

    @guarantee(Feature.MOVABLE_CLOCK, Feature.SHARED_DATA)
    async def test_hosts_whose_storages_disagree_on_the_time_record_one_outcome(self, trial: ReactorTrial) -> None:
        """Where a storage goes by its host's clock, one an hour ahead begins an attempt anew, and only that counts."""
        rule = reaction_rule(retry=IMMEDIATELY)
        act = Gate("the first one's")
        first = trial.process(rule, act=act)
        await trial.publish(Alarm())
        await first.reactor.evaluate()
        ahead, behind = ManualClock(START + HOUR), ManualClock(START - HOUR)
        async with trial.open_beside_at(ahead) as early, trial.open_beside_at(behind) as late:
            async with first.doing(first.reactor.execute()):
                await act.begun.get()
                await trial.process(rule, act=Script("the late one's"), over=late).settle()
                assert await trial.statuses() == ["running"]
                await trial.process(rule, act=Script("the early one's"), over=early).settle()
                act.let_go()
            await trial.process(rule, over=late).settle()
        assert [(one.attempt, one.output) for one in await trial.runs()] == [(2, "the early one's")]
        times = [envelope.ts for envelope in await trial.log()]
        assert times == sorted(times)
        await trial.recorded_once()

    # --- What cannot be read

    @guarantee()
    async def test_a_run_that_cannot_be_read_keeps_back_none_of_ten(self, trial: ReactorTrial) -> None:
        """One run that its storage cannot read is reported, and the nine that were found with it are carried out."""
        process = trial.process(reaction_rule())
        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(10)))
        await process.reactor.evaluate()
        bad = (await trial.runs())[4].id

        async def spoiled(name: str, *arguments: Any) -> None:
            if name == "transaction.runs" and bad in arguments[0]:
                raise StorageError("a row that cannot be read")

        process.tap.before = spoiled
        with pytest.raises(StorageError, match="cannot be read"):
            await process.reactor.execute()
        assert [one.status for one in await trial.runs()] == ["succeeded"] * 4 + ["pending"] + ["succeeded"] * 5
        async with process.serving():
            await trial.publish(Alarm(machine="another"))
            await trial.until_ended(10)


async def _emitting(reaction: Reaction[None]) -> None:
    await reaction.emit(Repaired(part=reaction.envelopes[0].seq))


async def _killed_at_work(trial: ReactorTrial, rule: Rule, *, publish: bool = True, **options: Any) -> None:
    """Has a process begin a run, and kills it while the action is at work."""
    if publish:
        await trial.publish(Alarm())
    act = Gate()
    dying = trial.process(rule, act=act, **options)
    await dying.reactor.evaluate()
    async with dying.doing(dying.reactor.execute()) as executing:
        await act.begun.get()
        await dying.kill(executing)
    assert "running" in await trial.statuses()


async def _renewed(trial: ReactorTrial, process: Process, times: int) -> None:
    """Waits until a process has renewed its leases so many times, at each of which a third of one has passed."""
    renewals = asyncio.Semaphore(0)

    async def pass_time(name: str, *_: Any) -> None:
        if name == "renew":
            trial.clock.advance(SHORT / 3)
            renewals.release()

    process.tap.before = pass_time
    for _ in range(times):
        await renewals.acquire()
