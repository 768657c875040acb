import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflexr.core import RetryPolicy, Rule, RuleError, RunSucceeded, evaluate, on, run
from reflexr.workspace import (
    EVALUATION_LEASE,
    LeaseKey,
    Reaction,
    Reactor,
    Schedule,
    WorkspaceRef,
    run_lease,
)
from reflexr.workspace.executing import Executor
from reflexr.workspace.recording import Recorder

from .hesitation import HesitantStorage, cancelled_after
from .plant import REF, SECOND, Alarm, Repaired, alarms
from .reacting import TTL, Bench, Gate, TouchyStorage, nothing
from .test_evaluating import each, expected_facts, logged_facts
from .test_executing import IMMEDIATELY, rule, until


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- Putting it together


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch_size": 0}, "batch_size: 0 is less than 1"),
        ({"concurrency": 0}, "concurrency: 0 is less than 1"),
        ({"lease_ttl": timedelta(0)}, "lease_ttl: .* is not longer than zero"),
        ({"lease_ttl": timedelta(days=2)}, "lease_ttl: .* is longer than a day"),
    ],
)
def test_a_number_out_of_range_is_refused(bench: Bench, options: Any, problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        bench.reactor(rule(), **options)


def test_every_problem_is_listed_together(bench: Bench) -> None:
    with pytest.raises(RuleError) as error:
        bench.reactor(rule(), rule("plant:b"), actions={}, batch_size=0, concurrency=0)

    assert len(error.value.problems) == 4


def test_a_reactor_that_comes_back_under_its_name_is_another_holder(bench: Bench) -> None:
    first, second = bench.reactor(rule(), holder="worker-1"), bench.reactor(rule(), holder="worker-1")

    assert first.holder.startswith("worker-1-")
    assert first.holder != second.holder
    assert Reactor(bench.workspaces()).holder


# --- Settling


async def test_settling_goes_through_chains_of_rules(bench: Bench) -> None:
    async def repair(reaction: Reaction[None]) -> None:
        await reaction.emit(Repaired(machine="press"))

    rules = [
        rule(then=run("repair")),
        each("plant:repaired", Repaired),
        each("plant:done", when=on(RunSucceeded).where(rule="plant:repaired")),
    ]
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(*rules, actions={"repair": repair, "page": nothing}).settle()

    assert [run.rule for run in await bench.runs()] == ["plant:a", "plant:repaired", "plant:done"]
    assert await bench.statuses() == ["succeeded"] * 3
    assert {envelope.correlation_id for envelope in await bench.log()} == {(await bench.log())[0].id}


async def test_runs_that_start_each_other_stop_at_the_depth_limit(bench: Bench) -> None:
    ping = each("plant:ping", when=on(RunSucceeded, Alarm))
    pong = each("plant:pong", when=on(RunSucceeded))
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(ping, pong, max_depth=3).settle()

    assert [run.rule for run in await bench.runs()] == ["plant:ping", "plant:pong", "plant:ping"]


async def test_settling_does_not_wait_for_what_time_alone_will_bring(bench: Bench) -> None:
    async def page(reaction: Reaction[None]) -> None:
        if reaction.attempt == 1:
            raise OSError

    reactor = bench.reactor(rule(), actions={"page": page}, schedules=[Schedule(name="s", every=timedelta(minutes=1))])
    await bench.publish(Alarm(machine="press"))

    await reactor.settle()
    before = await bench.statuses(), await bench.facts("reflexr:tick")
    bench.clock.advance(timedelta(minutes=1))
    await reactor.settle()

    assert before == (["retrying"], [])
    assert await bench.statuses() == ["succeeded"]
    assert len(await bench.facts("reflexr:tick")) == 1


async def test_settling_waits_briefly_for_a_workspace_that_another_reactor_evaluates(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = LeaseKey(REF, EVALUATION_LEASE)
    await bench.publish(Alarm(machine="press"))
    await bench.storage.acquire([key], "another", TTL)
    due_runs = bench.storage.due_runs
    left_alone = asyncio.Event()

    async def noted(*arguments: Any, **options: Any) -> Any:
        left_alone.set()
        return await due_runs(*arguments, **options)

    monkeypatch.setattr(bench.storage, "due_runs", noted)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.reactor(rule()).settle())
        await left_alone.wait()
        await bench.storage.release([key], "another")

    assert await bench.statuses() == ["succeeded"]


async def test_settling_waits_on_where_a_wake_up_says_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.publish(Alarm(machine="press"))
    key = LeaseKey(REF, EVALUATION_LEASE)
    await bench.storage.acquire([key], "another", TTL)
    listen = bench.storage.wakeups.listen
    waits = 0

    class Woken:
        async def wait(self, _: timedelta) -> frozenset[WorkspaceRef]:
            nonlocal waits
            waits += 1
            if waits == 3:
                await bench.storage.release([key], "another")
            return frozenset()

    @contextmanager
    def woken() -> Generator[Woken]:
        # Whoever listens while it settles listens as ever.
        monkeypatch.setattr(bench.storage.wakeups, "listen", listen)
        yield Woken()

    monkeypatch.setattr(bench.storage.wakeups, "listen", woken)
    await bench.reactor(rule()).settle()

    assert (await bench.statuses(), waits) == (["succeeded"], 3)


async def test_settling_does_not_wait_for_ever_for_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reflexr.workspace.reactor._BRIEFLY", timedelta(microseconds=1))
    await bench.publish(Alarm(machine="press"))
    await bench.storage.acquire([LeaseKey(REF, EVALUATION_LEASE)], "another", TTL)

    await bench.reactor(rule()).settle()

    assert await bench.types() == ["alarm"]


# --- Serving


async def test_serving_does_everything_as_soon_as_it_is_there(bench: Bench) -> None:
    reactor = bench.reactor(rule(), each("plant:done", when=on(RunSucceeded).where(rule="plant:a")))
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        for number in range(1, 4):
            await bench.publish(Alarm(machine="press"))
            await until(bench, "plant:done", number)
        stop.set()

    assert await bench.statuses() == ["succeeded"] * 6


async def test_serving_starts_a_retry_when_its_time_comes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def page(reaction: Reaction[None]) -> None:
        if reaction.attempt == 1:
            # The time that passes is the event loop's; the storage's clock is moved to what it will be then.
            bench.clock.advance(timedelta(milliseconds=5))
            raise OSError

    retry = RetryPolicy(backoff=timedelta(milliseconds=5))
    reactor = bench.reactor(rule(retry=retry), actions={"page": page})
    next_due = bench.storage.next_due
    stop = asyncio.Event()

    async def moving(policy: Any) -> timedelta | None:
        wait = await next_due(policy)
        if wait is not None:
            bench.clock.advance(wait)
        return wait

    monkeypatch.setattr(bench.storage, "next_due", moving)
    await bench.publish(Alarm(machine="press"))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        await until(bench, "plant:a", 1)
        stop.set()

    assert [(run.status, run.attempt) for run in await bench.runs()] == [("succeeded", 2)]


async def test_serving_publishes_ticks_when_they_are_due(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reactor = bench.reactor(schedules=[Schedule(name="s", every=timedelta(milliseconds=5))])
    now = bench.storage.now

    async def moving() -> Any:
        return await now() if bench.clock.advance(timedelta(milliseconds=5)) else None

    monkeypatch.setattr(bench.storage, "now", moving)
    await bench.publish(Alarm(machine="press"))
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        with bench.storage.wakeups.listen() as listener:
            tasks.create_task(reactor.serve(stop))
            while len(await bench.facts("reflexr:tick")) < 3:
                await listener.wait()
            stop.set()


async def test_between_two_ticks_no_workspace_is_looked_at(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reactor = bench.reactor(rule(), schedules=[Schedule(name="s", every=timedelta(hours=1))])
    due_schedules = bench.storage.due_schedules
    looked: list[Any] = []

    async def noted(*arguments: Any, **options: Any) -> Any:
        looked.append(bench.clock())
        return await due_schedules(*arguments, **options)

    monkeypatch.setattr(bench.storage, "due_schedules", noted)
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        await bench.publish(Alarm(machine="press"))
        await until(bench, "plant:a", 1)
        at_first = len(looked)
        for number in range(2, 5):
            await bench.publish(Alarm(machine="press"))
            await until(bench, "plant:a", number)
        between = len(looked) - at_first
        bench.clock.advance(timedelta(hours=1))
        with bench.storage.wakeups.listen() as listener:
            await bench.publish(Alarm(machine="press"))
            while not await bench.facts("reflexr:tick"):
                await listener.wait()
        stop.set()

    assert between == 0


async def test_a_tick_that_fails_while_serving_is_tried_again_after_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reflexr.workspace.rounds.FIRST_DELAY", timedelta(milliseconds=1))
    reactor = bench.reactor(schedules=[Schedule(name="s", every=timedelta(hours=1))])
    await bench.publish(Alarm(machine="press"))
    bench.clock.advance(timedelta(hours=1))
    read = bench.storage.read
    failures = [OSError("gone")]

    async def flaky(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await read(*arguments)

    monkeypatch.setattr(bench.storage, "read", flaky)
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        with bench.storage.wakeups.listen() as listener:
            tasks.create_task(reactor.serve(stop))
            while await bench.storage.schedule_ticks(REF) == {}:
                await listener.wait()
            stop.set()

    assert failures == []


async def test_with_nothing_to_do_it_does_nothing(bench: Bench) -> None:
    reactor = bench.reactor(rule())
    await bench.publish(Alarm(machine="press"))
    stop = asyncio.Event()
    asked: list[str] = []

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        await until(bench, "plant:a", 1)
        await reactor.settle()
        for _ in range(50):
            await asyncio.sleep(0)
        # What is still under way has to end, and says nothing of that.
        await asyncio.sleep(0.05)
        for name in ("behind", "due_runs", "next_due", "renew", "now"):
            method = getattr(bench.storage, name)

            async def noted(*arguments: Any, name: str = name, method: Any = method, **options: Any) -> Any:
                asked.append(name)
                return await method(*arguments, **options)

            setattr(bench.storage, name, noted)
        # Nothing is to happen, so there is nothing to wait for.
        await asyncio.sleep(0.05)
        idle = list(asked)
        stop.set()

    assert idle == []


async def test_a_rule_that_breaks_while_serving_is_tried_again_when_its_workspace_changes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reactor = bench.reactor(rule(), rule("plant:b"))
    failures = [RuntimeError("a fault of ours")]

    def flaky(rule: Rule, *arguments: Any, **options: Any) -> Any:
        if rule.name == "plant:b" and failures:
            raise failures.pop()
        return evaluate(rule, *arguments, **options)

    monkeypatch.setattr("reflexr.workspace.evaluating.evaluate", flaky)
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        await bench.publish(Alarm(machine="press"))
        await until(bench, "plant:a", 1)
        await bench.publish(Alarm(machine="saw"))
        await until(bench, "plant:b", 2)
        stop.set()


async def test_a_workspace_that_another_reactor_has_in_hand_is_looked_at_again_after_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reflexr.workspace.evaluating.FIRST_DELAY", timedelta(milliseconds=1))
    key = LeaseKey(REF, EVALUATION_LEASE)
    await bench.publish(Alarm(machine="press"))
    await bench.storage.acquire([key], "another", TTL)
    tries: asyncio.Queue[WorkspaceRef] = asyncio.Queue()
    stop = asyncio.Event()

    async def tried(ref: WorkspaceRef) -> None:
        tries.put_nowait(ref)

    bench.storage.before = tried
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.reactor(rule()).serve(stop))
        for _ in range(3):
            await tries.get()
        await bench.storage.release([key], "another")
        await until(bench, "plant:a", 1)
        stop.set()


async def test_stopping_lets_actions_end_within_the_grace_period_and_begins_nothing_new(bench: Bench) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate})
    await bench.publish(Alarm(machine="press"), Alarm(machine="press"))
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        await gate.begun.get()
        stop.set()
        for _ in range(20):
            await asyncio.sleep(0)
        gate.let_go()

    assert await bench.statuses() == ["succeeded", "pending"]
    assert gate.cancelled == []


async def test_after_the_grace_period_actions_are_cancelled_recorded_as_abandoned_and_their_leases_given_back(
    bench: Bench,
) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate})
    await bench.publish(Alarm(machine="press"))
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop, grace=timedelta(0)))
        await gate.begun.get()
        stop.set()

    (abandoned,) = await bench.runs()
    assert (abandoned.status, abandoned.reason) == ("retrying", "abandoned")
    async with bench.storage.transaction(REF) as transaction:
        assert await transaction.holders([run_lease(abandoned.id)]) == {}
    bench.clock.advance(SECOND)
    await bench.reactor(rule()).settle()
    assert await bench.statuses() == ["succeeded"]


async def test_a_draining_reactor_still_obeys_a_cancellation(bench: Bench) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate})
    await bench.publish(Alarm(machine="press"))
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        reaction = await gate.begun.get()
        stop.set()
        await (await bench.open()).cancel_run(reaction.run_id)

    assert (await bench.statuses(), gate.cancelled) == (["cancelled"], [reaction.run_id])


async def test_cancelling_it_records_what_was_at_work_as_abandoned(bench: Bench) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate})
    await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))
    serving = asyncio.ensure_future(reactor.serve())
    for _ in range(2):
        await gate.begun.get()

    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving

    assert [(run.status, run.reason) for run in await bench.runs()] == [("retrying", "abandoned")] * 2


async def test_an_attempt_that_is_stopped_before_its_action_began_is_abandoned_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate})
    await bench.publish(Alarm(machine="press"))
    await reactor.evaluate()
    take_up = Executor[Any].take_up

    def stopped_at_once(executor: Executor[Any], claim: Any, ticket: Any, session: Any) -> None:
        take_up(executor, claim, ticket, session)
        session.attempts[claim.key].stop()

    monkeypatch.setattr(Executor, "take_up", stopped_at_once)
    await reactor.execute()

    assert [(run.status, run.reason) for run in await bench.runs()] == [("retrying", "abandoned")]
    assert gate.begun.empty()


async def test_what_was_done_is_recorded_though_the_reactor_is_cancelled_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reactor = bench.reactor(rule())
    await bench.publish(Alarm(machine="press"))
    await reactor.evaluate()
    record = Recorder.record
    recording = asyncio.Event()

    async def slow(recorder: Recorder, workspace: WorkspaceRef, step: Any) -> Any:
        if not recording.is_set():
            recording.set()
            await asyncio.Event().wait()
        return await record(recorder, workspace, step)

    monkeypatch.setattr(Recorder, "record", slow)
    executing = asyncio.ensure_future(reactor.execute())
    await recording.wait()
    executing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await executing

    assert await bench.statuses() == ["succeeded"]


# --- Exactness, whatever is cancelled, and whoever shares the work


class HesitantBench(Bench):
    """A bench whose storage suspends wherever a database would."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = HesitantTouchyStorage(clock=self.clock)


class HesitantTouchyStorage(HesitantStorage, TouchyStorage):
    """Both at once."""


@given(st.integers(0, 400), st.integers(1, 3))
async def test_cancelled_at_any_moment_nothing_is_lost_done_twice_or_left_locked(moments: int, batch_size: int) -> None:
    bench = HesitantBench()
    rules = [
        rule(retry=IMMEDIATELY),
        each("plant:done", when=on(RunSucceeded).where(rule="plant:a"), retry=IMMEDIATELY),
    ]
    await bench.publish(*[Alarm(machine=machine) for machine in ("press", "press", "saw")])

    await cancelled_after(moments, bench.reactor(*rules, batch_size=batch_size).settle)
    bench.clock.advance(TTL)
    await bench.reactor(*rules, batch_size=batch_size).settle()

    assert set(await bench.statuses()) == {"succeeded"}
    log = await bench.log()
    assert logged_facts(rules, log) == expected_facts(rules, log)
    succeeded = [fact["run_id"] for fact in await bench.facts("reflexr:run_succeeded")]
    assert len(succeeded) == len(set(succeeded)) == 6


async def test_several_reactors_share_the_work_of_one_storage() -> None:
    bench = HesitantBench()
    done: list[str] = []

    async def page(reaction: Reaction[None]) -> None:
        await asyncio.sleep(0)
        done.append(reaction.run_id)

    reactors = [bench.reactor(alarms(), actions={"page": page}, batch_size=4, concurrency=2) for _ in range(3)]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for reactor in reactors:
            tasks.create_task(reactor.serve(stop))
        for number in range(30):
            await bench.publish(Alarm(machine=f"m{number % 4}", level=5))
        await until(bench, "plant:alarms", 30)
        stop.set()

    assert len(done) == len(set(done)) == 30
    assert logged_facts([alarms()], await bench.log()) == expected_facts([alarms()], await bench.log())
