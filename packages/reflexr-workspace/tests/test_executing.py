import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from reflexr.core import Rule, Run, Transition, run, succeed
from reflexr.workspace import (
    LeaseKey,
    Reaction,
    Transaction,
    WorkspaceRef,
    run_lease,
)
from reflexr.workspace.claiming import Claimer
from reflexr.workspace.recording import Recorder, Step

from .plant import REF, SECOND, Alarm, a_run, save, stored, stored_rules
from .reacting import IMMEDIATELY, ONCE, TTL, Bench, Gate, Script, nothing, rule


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- Order


async def test_runs_of_a_scope_go_one_after_another_in_firing_order_and_scopes_side_by_side(bench: Bench) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate})
    await bench.publish(Alarm(machine="press"), Alarm(machine="press"), Alarm(machine="saw"), Alarm(machine="press"))
    await reactor.evaluate()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.execute())
        first = {(await gate.begun.get()).envelopes[0].seq for _ in range(2)}
        gate.let_go()

    rest = [gate.begun.get_nowait().envelopes[0].seq for _ in range(2)]
    assert (first, rest) == ({1, 3}, [2, 4])


async def test_a_run_that_waits_to_retry_holds_back_its_scope_and_nothing_else(bench: Bench) -> None:
    async def page(reaction: Reaction[None]) -> None:
        if reaction.envelopes[0].seq == 1 and reaction.attempt == 1:
            raise OSError

    reactor = bench.reactor(rule(), actions={"page": page})
    await bench.publish(Alarm(machine="press"), Alarm(machine="press"), Alarm(machine="saw"))

    await reactor.settle()
    held = await bench.statuses()
    bench.clock.advance(SECOND)
    await reactor.settle()

    assert held == ["retrying", "pending", "succeeded"]
    started = [fact["run_id"] for fact in await bench.facts("reflexr:run_started")]
    ids = [run.id for run in await bench.runs()]
    assert started == [ids[0], ids[2], ids[0], ids[1]]


async def test_without_order_each_run_goes_for_itself(bench: Bench) -> None:
    async def page(reaction: Reaction[None]) -> None:
        if reaction.envelopes[0].seq == 1:
            raise OSError

    await bench.publish(Alarm(machine="press"), Alarm(machine="press"))

    await bench.reactor(rule(ordering="none"), actions={"page": page}).settle()

    assert await bench.statuses() == ["retrying", "succeeded"]


@pytest.mark.parametrize(("policy", "later"), [("continue", "succeeded"), ("block", "pending")])
async def test_later_runs_go_on_after_a_dead_letter_or_wait_for_somebody(bench: Bench, policy: str, later: str) -> None:
    reactor = bench.reactor(rule(retry=ONCE, on_dead_letter=policy), actions={"page": Script(OSError(), None)})
    await bench.publish(Alarm(machine="press"), Alarm(machine="press"))

    await reactor.settle()

    assert await bench.statuses() == ["dead_lettered", later]


@pytest.mark.parametrize("operation", ["retry_run", "skip_run"])
async def test_a_blocked_scope_goes_on_once_its_dead_letter_is_retried_or_skipped(bench: Bench, operation: str) -> None:
    reactor = bench.reactor(rule(retry=ONCE, on_dead_letter="block"), actions={"page": Script(OSError(), None)})
    await bench.publish(Alarm(machine="press"), Alarm(machine="press"))
    await reactor.settle()

    await getattr(await bench.open(), operation)((await bench.runs())[0].id)
    await reactor.settle()

    assert await bench.statuses() == ["succeeded" if operation == "retry_run" else "skipped", "succeeded"]


async def test_runs_of_disabled_and_of_unknown_rules_wait(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(), rule("plant:gone")).evaluate()

    await bench.reactor(rule(enabled=False)).settle()
    waiting = await bench.statuses()
    await bench.reactor(rule()).settle()

    assert waiting == ["pending", "pending"]
    assert await bench.statuses() == ["succeeded", "pending"]


async def test_a_run_that_was_cancelled_before_it_started_never_does(bench: Bench) -> None:
    script = Script(None)
    reactor = bench.reactor(rule(), actions={"page": script})
    await bench.publish(Alarm(machine="press"), Alarm(machine="press"))
    await reactor.evaluate()

    await (await bench.open()).cancel_run((await bench.runs())[0].id)
    await reactor.settle()

    assert await bench.statuses() == ["cancelled", "succeeded"]


async def test_no_more_actions_are_at_work_than_the_concurrency_also_of_two_callers(bench: Bench) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate}, concurrency=3)
    await bench.publish(*[Alarm(machine=f"m{number}") for number in range(10)])
    await reactor.evaluate()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.execute())
        tasks.create_task(reactor.execute())
        for _ in range(3):
            await gate.begun.get()
        gate.let_go()

    assert gate.most == 3
    assert await bench.statuses() == ["succeeded"] * 10


async def test_one_slow_action_holds_up_no_other_scope_rule_or_workspace(bench: Bench) -> None:
    gate = Gate()
    others = rule("plant:b", then=run("other"))
    reactor = bench.reactor(rule(), others, actions={"page": gate, "other": nothing})
    await bench.publish(Alarm(machine="press"))
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        await gate.begun.get()
        await bench.publish(Alarm(machine="press"))
        await bench.publish(Alarm(machine="saw"), workspace_id="test")
        await gate.begun.get()
        await until(bench, "plant:b", 2)
        await until(bench, "plant:b", 1, "test")
        running = [run.status for run in await bench.runs() if run.rule == "plant:a"]
        gate.let_go()
        stop.set()

    assert running == ["running", "pending"]


async def until(bench: Bench, name: str, succeeded: int, workspace_id: str = "prod") -> None:
    """Waits, commit after commit, until so many runs of a rule have succeeded."""
    with bench.storage.wakeups.listen(WorkspaceRef("acme", workspace_id)) as listener:
        while True:
            runs = await bench.runs(workspace_id)
            if sum(run.rule == name and run.status == "succeeded" for run in runs) >= succeeded:
                return
            await listener.wait()


# --- Leases


async def test_a_run_whose_executor_died_is_abandoned_when_its_lease_lapses_and_begun_again(bench: Bench) -> None:
    script = Script(None)
    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule(retry=IMMEDIATELY), actions={"page": script})
    await reactor.evaluate()
    (pending,) = await bench.runs()
    await claimed_by_the_dead(bench, rule())

    await reactor.settle()
    meanwhile = await bench.statuses()
    bench.clock.advance(TTL)
    await reactor.settle()

    assert meanwhile == ["running"]
    assert script.attempts == [2]
    (retrying,) = await bench.facts("reflexr:run_retrying")
    assert (retrying["run_id"], retrying["attempt"], retrying["reason"]) == (pending.id, 1, "abandoned")


async def claimed_by_the_dead(bench: Bench, *rules: Rule) -> None:
    """Has a reactor that then dies claim every run that is due."""
    claimer = Claimer(bench.workspaces(*rules).configuration, holder="the dead", lease_ttl=TTL)
    await claimer.claim(REF, [run.id for run in await bench.runs()])


async def test_an_abandoned_attempt_counts_as_a_failed_one(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule(retry=ONCE))
    await reactor.evaluate()
    await claimed_by_the_dead(bench, rule())
    bench.clock.advance(TTL)

    await reactor.settle()

    assert [(run.status, run.reason) for run in await bench.runs()] == [("dead_lettered", "abandoned")]


async def test_the_outcome_of_an_attempt_that_was_taken_over_is_not_recorded(bench: Bench) -> None:
    gate = Gate(lambda reaction: "too late")
    slow = bench.reactor(rule(retry=IMMEDIATELY), actions={"page": gate})
    await bench.publish(Alarm(machine="press"))
    await slow.evaluate()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(slow.execute())
        await gate.begun.get()
        bench.clock.advance(TTL)
        await bench.reactor(rule(retry=IMMEDIATELY), actions={"page": Script("taken over")}).settle()
        gate.let_go()

    (done,) = await bench.runs()
    assert (done.status, done.attempt, done.output) == ("succeeded", 2, "taken over")
    assert len(await bench.facts("reflexr:run_succeeded")) == 1


async def test_an_executor_that_lost_its_lease_stops_its_action(bench: Bench) -> None:
    gate = Gate()
    slow = bench.reactor(rule(retry=IMMEDIATELY), actions={"page": gate})
    await bench.publish(Alarm(machine="press"))
    await slow.evaluate()

    async with asyncio.TaskGroup() as tasks:
        executing = tasks.create_task(slow.execute())
        reaction = await gate.begun.get()
        bench.clock.advance(TTL)
        second = await bench.reactor(rule(retry=IMMEDIATELY), actions={"page": Script("taken over")}).execute()
        await executing

    assert (second, gate.cancelled) == (2, [reaction.run_id])


async def test_leases_are_renewed_while_the_action_works(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate}, lease_ttl=timedelta(milliseconds=60))
    await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))
    await reactor.evaluate()
    renewed: asyncio.Queue[frozenset[LeaseKey]] = asyncio.Queue()
    renew = bench.storage.renew

    async def noted(keys: Any, holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        bench.clock.advance(timedelta(milliseconds=20))
        kept = await renew(keys, holder, ttl)
        renewed.put_nowait(kept)
        return kept

    monkeypatch.setattr(bench.storage, "renew", noted)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.execute())
        for _ in range(5):
            assert len(await renewed.get()) == 2
        gate.let_go()

    assert await bench.statuses() == ["succeeded", "succeeded"]


async def test_a_renewal_that_fails_is_tried_again_soon_and_stops_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate}, lease_ttl=timedelta(milliseconds=60))
    await bench.publish(Alarm(machine="press"))
    await reactor.evaluate()
    again = asyncio.Event()
    renew = bench.storage.renew
    failures = [OSError("gone")]

    async def flaky(keys: Any, holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        if failures:
            raise failures.pop()
        again.set()
        return await renew(keys, holder, ttl)

    monkeypatch.setattr(bench.storage, "renew", flaky)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.execute())
        await again.wait()
        gate.let_go()

    assert await bench.statuses() == ["succeeded"]
    assert "could not be renewed" in caplog.text


async def test_cancelling_a_running_run_stops_its_action(bench: Bench) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate})
    await bench.publish(Alarm(machine="press"))
    await reactor.evaluate()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.execute())
        reaction = await gate.begun.get()
        await (await bench.open()).cancel_run(reaction.run_id, reason="false alarm")

    assert gate.cancelled == [reaction.run_id]
    assert await bench.statuses() == ["cancelled"]
    assert await bench.types() == ["alarm", "rule_fired", "run_started", "run_cancelled"]


async def test_archiving_a_stored_rule_stops_its_actions(bench: Bench) -> None:
    gate = Gate()
    workspace = await bench.open(stored_rules=stored_rules())
    await workspace.install_rule(stored())
    await workspace.publish(Alarm(machine="press"))
    reactor = bench.reactor(stored_rules=stored_rules(), actions={"page": gate})
    await reactor.evaluate()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.execute())
        reaction = await gate.begun.get()
        await workspace.archive_rule("chat:alarms")

    assert (await bench.statuses(), gate.cancelled) == (["cancelled"], [reaction.run_id])


async def test_a_run_that_is_cancelled_and_retried_while_its_action_ends_begins_again_after_that(bench: Bench) -> None:
    ended = asyncio.Event()

    async def page(reaction: Reaction[None]) -> str:
        if reaction.attempt == 1:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await ended.wait()
        return f"attempt {reaction.attempt}"

    begun = asyncio.Event()
    reactor = bench.reactor(rule(), actions={"page": page})
    await bench.publish(Alarm(machine="press"))
    workspace = await bench.open()
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        await begun.wait()
        (run,) = await bench.runs()
        await workspace.cancel_run(run.id)
        await workspace.retry_run(run.id)
        ended.set()
        await until(bench, "plant:a", 1)
        stop.set()

    assert [(run.output, run.attempt) for run in await bench.runs()] == [("attempt 2", 2)]


async def test_a_lease_that_somebody_still_has_keeps_a_pending_run_from_being_begun(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule())
    await reactor.evaluate()
    (run,) = await bench.runs()
    await bench.storage.acquire([LeaseKey(REF, run_lease(run.id))], "another", TTL)

    assert await reactor.execute() == 0
    bench.clock.advance(TTL)
    assert await reactor.execute() == 1


async def test_leases_are_given_back_with_the_outcome(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule()).settle()
    (run,) = await bench.runs()

    async with bench.storage.transaction(REF) as transaction:
        assert await transaction.holders([run_lease(run.id)]) == {}


# --- Storages that fail


async def test_one_run_that_cannot_be_claimed_keeps_back_none_of_those_claimed_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.publish(*[Alarm(machine=f"m{number}") for number in range(4)])
    reactor = bench.reactor(rule())
    await reactor.evaluate()
    bad = (await bench.runs())[1].id
    claim = Claimer.claim

    async def failing(claimer: Claimer, workspace: WorkspaceRef, run_ids: list[str]) -> Any:
        if bad in run_ids:
            raise OSError("a row that cannot be read")
        return await claim(claimer, workspace, run_ids)

    monkeypatch.setattr(Claimer, "claim", failing)

    with pytest.raises(OSError, match="cannot be read"):
        await reactor.execute()
    assert await bench.statuses() == ["succeeded", "pending", "succeeded", "succeeded"]

    with pytest.raises(OSError, match="cannot be read"):
        await reactor.execute()


async def test_runs_that_cannot_be_claimed_together_are_claimed_one_by_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))
    reactor = bench.reactor(rule())
    await reactor.evaluate()
    claim = Claimer.claim

    async def too_much(claimer: Claimer, workspace: WorkspaceRef, run_ids: list[str]) -> Any:
        if len(run_ids) > 1:
            raise OSError("too much at once")
        return await claim(claimer, workspace, run_ids)

    monkeypatch.setattr(Claimer, "claim", too_much)

    assert await reactor.execute() == 2


async def test_a_claim_that_does_not_commit_claims_nothing(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule())
    await reactor.evaluate()
    bench.storage.at_commit = refuse(OSError("disk full"))

    with pytest.raises(OSError, match="disk full"):
        await reactor.execute()

    bench.storage.at_commit = None
    assert await bench.statuses() == ["pending"]
    assert await reactor.execute() == 1


def refuse(*errors: Exception) -> Callable[[Transaction], Awaitable[None]]:
    """Has the next commits fail."""
    left = list(errors)

    async def refusing(transaction: Transaction) -> None:
        if left:
            raise left.pop(0)

    return refusing


async def test_an_outcome_is_recorded_as_soon_as_the_storage_works_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def page(reaction: Reaction[None]) -> str:
        bench.storage.at_commit = refuse(OSError("one"), OSError("two"))
        return "paged"

    monkeypatch.setattr("reflexr.workspace.recording.FIRST_DELAY", timedelta(microseconds=1))
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(rule(), actions={"page": page}).settle()

    assert [run.output for run in await bench.runs()] == ["paged"]
    assert caplog.text.count("could not be recorded; next try") == 2


async def test_an_outcome_that_cannot_be_recorded_for_as_long_as_a_lease_lasts_is_given_up(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def page(reaction: Reaction[None]) -> None:
        if reaction.attempt == 1:
            bench.storage.at_commit = refuse(OSError("gone"))

    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule(retry=IMMEDIATELY), actions={"page": page}, lease_ttl=timedelta(microseconds=10))
    await reactor.evaluate()
    await reactor.execute()

    assert await bench.statuses() == ["running"]
    assert "given up" in caplog.text
    bench.clock.advance(SECOND)
    await reactor.settle()
    assert [(run.status, run.attempt) for run in await bench.runs()] == [("succeeded", 2)]


# --- Claims and outcomes


async def test_an_outcome_of_a_run_that_is_gone_is_dropped(bench: Bench) -> None:
    recorder = Recorder(bench.storage, holder="somebody", patience=TTL)

    def succeeded(run: Run, now: datetime) -> Transition:
        return succeed(run, attempt=1, now=now)

    assert await recorder.insist(REF, Step("fir_1", succeeded, None, ends=True)) is None


async def test_runs_that_another_was_faster_with_are_left_alone(bench: Bench) -> None:
    await save(bench.storage, a_run("fir_1", rule="plant:a", status="succeeded", attempt=1))
    claimer = Claimer(bench.workspaces(rule()).configuration, holder="somebody", lease_ttl=TTL)

    claimed = await claimer.claim(REF, ["fir_1", "fir_2"])

    assert (claimed.claims, claimed.failed) == ((), ())


async def test_a_claim_looks_again_whose_turn_it_is(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"), Alarm(machine="press"), Alarm(machine="saw"))
    await bench.reactor(rule(), rule("plant:off")).evaluate()
    runs = await bench.runs()
    now = [rule(), rule("plant:off", enabled=False)]
    claimer = Claimer(bench.workspaces(*now).configuration, holder="somebody", lease_ttl=TTL)

    first = await claimer.claim(REF, [run.id for run in reversed(runs)])
    second = await claimer.claim(REF, [run.id for run in runs])

    of_rule = [run.id for run in runs if run.rule == "plant:a"]
    assert {claim.run.id for claim in first.claims} == {of_rule[0], of_rule[2]}
    assert second.claims == ()
