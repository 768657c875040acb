"""Starting runs in the transaction that fires them, and going to a workspace because it changed."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from reflexr.workspace import EVALUATION_LEASE, LeaseKey, Reactor, Transaction, WorkspaceRef, run_lease
from reflexr.workspace.claiming import Claimer
from reflexr.workspace.executing import Executor

from .plant import REF, Alarm, stored, stored_rules
from .reacting import ONCE, TTL, Bench, Gate, Script, rule


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Commits:
    """What each commit that fired something left of the runs it fired, and the types of what it appended."""

    def __init__(self, bench: Bench) -> None:
        self.statuses: list[list[str]] = []
        self.types: list[list[str]] = []
        self.fired = asyncio.Event()
        self._storage = bench.storage
        bench.storage.at_commit = self._look

    async def _look(self, transaction: Transaction) -> None:
        before = (await self._storage.head(transaction.workspace)).seq
        appended = await transaction.read_seqs(range(before + 1, transaction.head.seq + 1))
        types = [envelope.event_type.partition(":")[2] for envelope in appended.values()]
        if "rule_fired" not in types:
            return
        fired = [one.payload["firing_id"] for one in appended.values() if one.event_type == "reflexr:rule_fired"]
        runs = await transaction.runs(fired)
        self.statuses.append([runs[run_id].status for run_id in fired])
        self.types.append(types)
        self.fired.set()


@asynccontextmanager
async def serving(reactor: Reactor[Any], bench: Bench, **options: Any) -> AsyncGenerator[asyncio.Event]:
    """A reactor that serves, once it has found nothing to do."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop, **options))
        await found_nothing(bench)
        yield stop
        stop.set()


async def found_nothing(bench: Bench) -> None:
    """Waits until a reactor asks when there will be something to do, as there is nothing now."""
    next_due, idle = bench.storage.next_due, asyncio.Event()

    async def looked(*arguments: Any, **options: Any) -> Any:
        due = await next_due(*arguments, **options)
        idle.set()
        return due

    bench.storage.next_due = looked
    await idle.wait()
    bench.storage.next_due = next_due


async def test_a_reactor_that_serves_starts_runs_in_the_transaction_that_fires_them(bench: Bench) -> None:
    gate = Gate()
    async with serving(bench.reactor(rule(), actions={"page": gate}), bench):
        commits = Commits(bench)
        await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))
        for _ in range(2):
            await gate.begun.get()
        gate.let_go()

    assert commits.statuses == [["running", "running"]]
    assert commits.types == [["rule_fired", "rule_fired", "run_started", "run_started"]]
    assert await bench.statuses() == ["succeeded", "succeeded"]


async def test_evaluating_alone_starts_nothing(bench: Bench) -> None:
    commits = Commits(bench)
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(rule()).evaluate()

    assert commits.statuses == [["pending"]]


async def test_a_run_that_is_started_with_its_firing_is_leased(bench: Bench) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate})
    async with serving(reactor, bench):
        await bench.publish(Alarm(machine="press"))
        reaction = await gate.begun.get()
        async with bench.storage.transaction(REF) as transaction:
            name = run_lease(reaction.run_id)
            holders = await transaction.holders([name])
        gate.let_go()

    assert holders == {name: reactor.holder}
    assert [envelope.payload["machine"] for envelope in reaction.envelopes] == ["press"]


async def test_only_the_first_of_a_scope_starts_with_its_firing(bench: Bench) -> None:
    gate = Gate()
    async with serving(bench.reactor(rule(), actions={"page": gate}), bench):
        commits = Commits(bench)
        await bench.publish(Alarm(machine="press"), Alarm(machine="press"))
        await gate.begun.get()
        commits.fired.clear()
        await bench.publish(Alarm(machine="press"))
        await commits.fired.wait()
        gate.let_go()
        for _ in range(2):
            await gate.begun.get()

    assert commits.statuses == [["running", "pending"], ["pending"]]


async def test_without_order_every_run_starts_with_its_firing(bench: Bench) -> None:
    gate = Gate()
    async with serving(bench.reactor(rule(ordering="none"), actions={"page": gate}), bench):
        commits = Commits(bench)
        await bench.publish(Alarm(machine="press"), Alarm(machine="press"))
        for _ in range(2):
            await gate.begun.get()
        gate.let_go()

    assert commits.statuses == [["running", "running"]]


async def test_a_dead_letter_that_blocks_its_scope_keeps_a_run_from_starting_with_its_firing(bench: Bench) -> None:
    blocking = rule(on_dead_letter="block", retry=ONCE)
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(blocking, actions={"page": Script(OSError("gone"))}).settle()
    async with serving(bench.reactor(blocking), bench):
        commits = Commits(bench)
        await bench.publish(Alarm(machine="press"))
        await commits.fired.wait()

    assert commits.statuses == [["pending"]]
    assert await bench.statuses() == ["dead_lettered", "pending"]


async def test_a_stored_rule_starts_its_runs_with_their_firing_too(bench: Bench) -> None:
    options: dict[str, Any] = {"stored_rules": stored_rules()}
    await bench.publish(Alarm(machine="press"))
    await (await bench.open(**options)).install_rule(stored())
    gate = Gate()
    async with serving(bench.reactor(actions={"page": gate}, **options), bench):
        commits = Commits(bench)
        await bench.publish(Alarm(machine="press"))
        await gate.begun.get()
        gate.let_go()

    assert commits.statuses == [["running"]]


async def test_more_runs_than_there_is_room_for_take_turns(bench: Bench) -> None:
    gate = Gate()
    async with serving(bench.reactor(rule(), actions={"page": gate}, concurrency=2), bench):
        commits = Commits(bench)
        await bench.publish(*(Alarm(machine=f"m{number}") for number in range(3)))
        await gate.begun.get()
        gate.let_go()
        for _ in range(2):
            await gate.begun.get()

    assert commits.statuses == [["pending"] * 3]
    assert gate.most == 2


async def test_while_others_wait_for_room_nobody_starts_with_his_firing(bench: Bench) -> None:
    gate = Gate()
    begun: list[str] = []

    async def page(reaction: Any) -> None:
        begun.append(reaction.workspace.workspace_id)
        await gate.run(reaction)

    async with serving(bench.reactor(rule(), actions={"page": page}, concurrency=1), bench):
        await bench.publish(Alarm(machine="press"))
        await gate.begun.get()
        await bench.publish(Alarm(machine="press"), workspace_id="waits")
        commits = Commits(bench)
        await bench.publish(Alarm(machine="saw"))
        await commits.fired.wait()
        gate.let_go()
        for _ in range(2):
            await gate.begun.get()

    assert "running" not in commits.statuses[-1]
    assert begun[0] == "prod"
    assert gate.most == 1


@pytest.mark.parametrize("options", [{"rule_concurrency": 1}, {"workspace_concurrency": 1}])
async def test_a_run_under_a_limit_is_claimed_once_it_has_its_slot(bench: Bench, options: dict[str, int]) -> None:
    gate = Gate()
    async with serving(bench.reactor(rule(), actions={"page": gate}, **options), bench):
        commits = Commits(bench)
        await bench.publish(Alarm(machine="press"))
        await gate.begun.get()
        gate.let_go()

    assert commits.statuses == [["pending"]]


async def test_a_run_that_cannot_be_started_with_its_firing_is_fired_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Claimer.begin

    async def broken(self: Claimer, transaction: Transaction, *arguments: Any) -> Any:
        if transaction.head.seq == 1:
            raise OSError("gone")
        return await begin(self, transaction, *arguments)

    monkeypatch.setattr(Claimer, "begin", broken)
    gate = Gate()
    async with serving(bench.reactor(rule(), actions={"page": gate}), bench):
        commits = Commits(bench)
        await bench.publish(Alarm(machine="press"))
        await gate.begun.get()
        gate.let_go()

    assert commits.statuses == [["pending"]]
    assert await bench.statuses() == ["succeeded"]


async def test_a_run_that_somebody_has_the_lease_of_is_left_to_them(bench: Bench) -> None:
    """Nobody can have it but by a name that was foretold."""
    foretold = Bench()
    await foretold.publish(Alarm(machine="press"))
    await foretold.reactor(rule()).evaluate()
    (run,) = await foretold.runs()
    await bench.storage.acquire([LeaseKey(REF, run_lease(run.id))], "another", TTL)
    async with serving(bench.reactor(rule()), bench):
        commits = Commits(bench)
        await bench.publish(Alarm(machine="press"))
        await commits.fired.wait()

    assert commits.statuses == [["pending"]]


async def test_a_reactor_that_was_told_to_stop_starts_nothing_with_its_firing(bench: Bench) -> None:
    async with serving(bench.reactor(rule()), bench) as stop:
        commits = Commits(bench)

        async def before(_: WorkspaceRef) -> None:
            if (await bench.storage.head(REF)).seq == 1:
                stop.set()

        bench.storage.before = before
        await bench.publish(Alarm(machine="press"))
        await commits.fired.wait()

    assert await bench.statuses() == ["pending"]


async def test_a_start_that_commits_as_the_reactor_is_told_to_stop_is_carried_out(bench: Bench) -> None:
    async with serving(bench.reactor(rule()), bench) as stop:

        async def at_commit(transaction: Transaction) -> None:
            if transaction.head.seq == 3:
                stop.set()
                # Whoever waited for that goes on.
                for _ in range(20):
                    await asyncio.sleep(0)

        bench.storage.at_commit = at_commit
        await bench.publish(Alarm(machine="press"))
        await stop.wait()

    assert await bench.statuses() == ["succeeded"]


async def test_a_start_that_commits_after_the_grace_period_is_abandoned(bench: Bench) -> None:
    async with serving(bench.reactor(rule()), bench, grace=timedelta(0)) as stop:

        async def at_commit(transaction: Transaction) -> None:
            if transaction.head.seq == 3:
                stop.set()
                # Whoever waited for that goes on, and for the grace period too.
                for _ in range(20):
                    await asyncio.sleep(0)

        bench.storage.at_commit = at_commit
        await bench.publish(Alarm(machine="press"))
        await stop.wait()

    (run,) = await bench.runs()
    assert (run.status, run.reason) == ("retrying", "abandoned")


async def test_the_span_of_a_start_that_does_not_commit_ends(bench: Bench) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    failures = [OSError("gone")]

    async def at_commit(transaction: Transaction) -> None:
        if transaction.head.seq > 1 and failures:
            raise failures.pop()

    gate = Gate()
    async with serving(bench.reactor(rule(), actions={"page": gate}, tracer_provider=provider), bench):
        bench.storage.at_commit = at_commit
        await bench.publish(Alarm(machine="press"))
        await gate.begun.get()
        ended = [span.name for span in exporter.get_finished_spans()]
        gate.let_go()

    assert ended.count("invoke_workflow plant:a") == 1
    assert await bench.statuses() == ["succeeded"]


async def test_what_is_committed_once_nobody_keeps_its_lease_is_found_abandoned(bench: Bench) -> None:
    gate = Gate()

    async def cancelled_meanwhile(transaction: Transaction) -> None:
        if transaction.head.seq == 3:
            serve.cancel()
            # As a commit that is on its way, which goes on to its end whoever is cancelled.
            for _ in range(20):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)

    serve = asyncio.create_task(bench.reactor(rule(), actions={"page": gate}).serve())
    await found_nothing(bench)
    bench.storage.at_commit = cancelled_meanwhile
    await bench.publish(Alarm(machine="press"))
    with pytest.raises(asyncio.CancelledError):
        await serve
    bench.storage.at_commit = None
    left = await bench.statuses()
    bench.clock.advance(TTL)
    await bench.reactor(rule()).settle()

    assert (left, gate.begun.empty()) == (["running"], True)
    assert [(run.status, run.reason) for run in await bench.runs()] == [("retrying", "abandoned")]


async def test_before_anybody_carries_out_runs_none_is_started_with_its_firing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = Executor[Any].serve
    fired = asyncio.Event()

    async def late(self: Executor[Any], stop: asyncio.Event, grace: timedelta) -> None:
        await fired.wait()
        await serve(self, stop, grace)

    monkeypatch.setattr(Executor, "serve", late)
    gate = Gate()
    stop = asyncio.Event()
    commits = Commits(bench)
    await bench.publish(Alarm(machine="press"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.reactor(rule(), actions={"page": gate}).serve(stop))
        await commits.fired.wait()
        fired.set()
        await gate.begun.get()
        gate.let_go()
        stop.set()

    assert commits.statuses == [["pending"]]


# --- Where it goes


async def test_a_workspace_that_changed_is_evaluated_before_any_is_asked_for(bench: Bench) -> None:
    gate = Gate()
    async with serving(bench.reactor(rule(), actions={"page": gate}), bench):
        asked = 0
        behind = bench.storage.behind

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            return await behind(*arguments, **options)

        bench.storage.behind = counted
        await bench.publish(Alarm(machine="press"))
        await gate.begun.get()
        at_first = asked
        gate.let_go()

    assert at_first == 0


async def test_a_workspace_that_changed_without_a_log_is_left_as_it_is(bench: Bench) -> None:
    async with serving(bench.reactor(rule()), bench):
        done = watched_work(bench)
        await bench.storage.acquire([LeaseKey(REF, EVALUATION_LEASE)], "another", TTL)
        bench.storage.wakeups.announce([REF])
        await done(REF)

    assert await bench.storage.progress(REF) == {}


def watched_work(bench: Bench) -> Callable[[WorkspaceRef], Any]:
    """Returns what waits until a transaction of a workspace was begun."""
    begun: asyncio.Queue[WorkspaceRef] = asyncio.Queue()

    async def before(workspace: WorkspaceRef) -> None:
        begun.put_nowait(workspace)

    bench.storage.before = before

    async def wait(workspace: WorkspaceRef) -> None:
        while await begun.get() != workspace:
            pass

    return wait
