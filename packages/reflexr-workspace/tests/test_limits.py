"""At most so many runs at once per rule and per workspace, and turns between workspaces."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection
from datetime import timedelta
from typing import Any, override

import pytest

from reflexr.core import RuleError, on, run
from reflexr.workspace import LeaseKey, Reaction, WorkspaceRef
from reflexr.workspace.slots import EVERYWHERE

from .hesitation import HesitantStorage, cancelled_after
from .plant import REF, Alarm, a_run, stored, stored_rules
from .reacting import IMMEDIATELY, TTL, Bench, Gate, TouchyStorage, nothing, rule
from .test_executing import refuse, until

OTHER = WorkspaceRef("acme", "test")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def slots_of(name: str | WorkspaceRef, number: int) -> list[LeaseKey]:
    if isinstance(name, WorkspaceRef):
        return [LeaseKey(name, f"slot:{one}") for one in range(number)]
    return [LeaseKey(EVERYWHERE, f"slot:{name}:{one}") for one in range(number)]


async def free(bench: Bench, *limits: tuple[str | WorkspaceRef, int]) -> int:
    """How many of the slots nobody has."""
    leases = [lease for name, number in limits for lease in slots_of(name, number)]
    got = await bench.storage.acquire(leases, "a look", TTL)
    await bench.storage.release(got, "a look")
    return len(got)


class Gauge:
    """An action that takes a few turns of the loop, fails now and then, and counts how many are at work."""

    def __init__(self) -> None:
        self.at_work: Counter[str | WorkspaceRef] = Counter()
        self.most: dict[str | WorkspaceRef, int] = defaultdict(int)
        self.attempts = 0

    async def __call__(self, reaction: Reaction[Any]) -> None:
        subjects: tuple[str | WorkspaceRef, ...] = (
            reaction.run.rule,
            WorkspaceRef(reaction.workspace.tenant_id, reaction.workspace.workspace_id),
        )
        for subject in subjects:
            self.at_work[subject] += 1
            self.most[subject] = max(self.most[subject], self.at_work[subject])
        self.attempts += 1
        try:
            for _ in range(self.attempts % 7):
                await asyncio.sleep(0)
            if self.attempts % 5 == 0 and reaction.run.attempt == 1:
                raise OSError("now and then")
        finally:
            for subject in subjects:
                self.at_work[subject] -= 1


RULES = (
    rule("plant:a", ordering="none", retry=IMMEDIATELY),
    rule("plant:b", retry=IMMEDIATELY),
    rule("plant:c", ordering="none", retry=IMMEDIATELY),
)


@pytest.mark.parametrize(
    "limits",
    [
        {"rule_concurrency": {"plant:a": 3}},
        {"workspace_concurrency": 2},
        {"rule_concurrency": 2, "workspace_concurrency": 3},
    ],
)
async def test_reactors_together_never_exceed_a_limit(bench: Bench, limits: dict[str, Any]) -> None:
    gauge = Gauge()
    names = ["prod", "test", "lab"]
    for name in names:
        await bench.publish(*[Alarm(machine=f"m{number}") for number in range(15)], workspace_id=name)
    reactors = [bench.reactor(*RULES, actions={"page": gauge}, **limits) for _ in range(3)]
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        for reactor in reactors:
            tasks.create_task(reactor.serve(stop))
        for name in names:
            for each in RULES:
                await until(bench, each.name, 15, name)
        stop.set()

    of_rule, of_workspace = limits.get("rule_concurrency"), limits.get("workspace_concurrency")
    expected = {
        **({each.name: of_rule for each in RULES} if isinstance(of_rule, int) else of_rule or {}),
        **({WorkspaceRef("acme", name): of_workspace for name in names} if of_workspace else {}),
    }
    assert all(gauge.most[subject] <= size for subject, size in expected.items())
    # How near they come to it is up to whose turn it is.
    assert max(gauge.most[subject] for subject in expected) > 1
    assert await free(bench, *expected.items()) == sum(expected.values())


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"rule_concurrency": 0}, "rule_concurrency: 0 is less than 1"),
        ({"rule_concurrency": {"plant:a": 0}}, "rule_concurrency: 0 of 'plant:a' is less than 1"),
        ({"rule_concurrency": {"plant:none": 1}}, "rule_concurrency: there is no rule 'plant:none'"),
        ({"workspace_concurrency": -1}, "workspace_concurrency: -1 is less than 1"),
    ],
)
async def test_limits_are_checked_when_the_reactor_is_built(bench: Bench, limits: dict[str, Any], problem: str) -> None:
    with pytest.raises(RuleError) as caught:
        bench.reactor(rule(), concurrency=0, **limits)
    (concurrency, found) = caught.value.problems
    assert (concurrency, found.partition(": disable")[0]) == ("concurrency: 0 is less than 1", problem)


async def test_a_limit_may_name_a_rule_that_is_stored_somewhere(bench: Bench) -> None:
    bench.reactor(rule(), stored_rules=stored_rules(), rule_concurrency={"plant:a": 1, "chat:alarms": 1})
    with pytest.raises(RuleError, match="no rule 'chart:alarms'"):
        bench.reactor(rule(), stored_rules=stored_rules(), rule_concurrency={"chart:alarms": 1})


async def test_a_rule_at_its_limit_holds_up_no_other_rule(bench: Bench) -> None:
    gate = Gate()
    other = rule("plant:b", then=run("other"), ordering="none")
    reactor = bench.reactor(
        rule(ordering="none"),
        other,
        actions={"page": gate, "other": nothing},
        rule_concurrency={"plant:a": 2},
        concurrency=4,
    )
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        for workspace_id in ("prod", "test"):
            await bench.publish(*[Alarm(machine="press")] * 10, workspace_id=workspace_id)
        tasks.create_task(reactor.serve(stop))
        for _ in range(2):
            await gate.begun.get()
        await until(bench, "plant:b", 8)
        await until(bench, "plant:b", 8, "test")
        held = (gate.at_work, gate.begun.qsize())
        gate.let_go()
        await until(bench, "plant:a", 10)
        await until(bench, "plant:a", 10, "test")
        stop.set()

    assert (held, gate.most) == ((2, 0), 2)


async def test_a_stored_rule_at_its_limit_holds_up_no_other_stored_rule(bench: Bench) -> None:
    gate = Gate()
    often = on(Alarm).at_most(60, per=timedelta(hours=1))
    for workspace_id in ("prod", "test"):
        workspace = await bench.open(workspace_id, stored_rules=stored_rules())
        await workspace.install_rule(stored(when=often, ordering="none"))
        await workspace.install_rule(stored("chat:others", when=often, ordering="none"))
        await bench.publish(*[Alarm(machine="press")] * 5, workspace_id=workspace_id)

    async def page(reaction: Reaction[Any]) -> None:
        if reaction.run.rule == "chat:alarms":
            await gate.run(reaction)

    reactor = bench.reactor(
        stored_rules=stored_rules(), actions={"page": page}, rule_concurrency={"chat:alarms": 1}, concurrency=2
    )
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        await until(bench, "chat:others", 5)
        await until(bench, "chat:others", 5, "test")
        gate.let_go()
        await until(bench, "chat:alarms", 5)
        await until(bench, "chat:alarms", 5, "test")
        stop.set()

    assert gate.most == 1


async def test_a_workspace_at_its_limit_holds_up_no_other_workspace(bench: Bench) -> None:
    gate = Gate()

    async def page(reaction: Reaction[Any]) -> None:
        if reaction.workspace.workspace_id == "prod":
            await gate.run(reaction)

    reactor = bench.reactor(rule(ordering="none"), actions={"page": page}, workspace_concurrency=1, concurrency=2)
    await bench.publish(*[Alarm(machine="press")] * 20)
    await bench.publish(*[Alarm(machine="press")] * 5, workspace_id="test")
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        await until(bench, "plant:a", 5, "test")
        held = gate.at_work
        gate.let_go()
        await until(bench, "plant:a", 20)
        stop.set()

    assert (held, gate.most) == (1, 1)


async def test_what_others_give_back_is_taken_up_at_once(bench: Bench) -> None:
    gate = Gate()
    limited: dict[str, Any] = {"rule_concurrency": 1}
    reactors = [bench.reactor(rule(), actions={"page": gate}, **limited) for _ in range(2)]
    await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))
    await reactors[0].evaluate()
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactors[0].execute())
        await gate.begun.get()
        tasks.create_task(reactors[1].serve(stop))
        gate.let_go()
        await until(bench, "plant:a", 2)
        stop.set()

    assert gate.most == 1
    assert await free(bench, ("plant:a", 1)) == 1


async def test_the_slots_of_a_reactor_that_died_lapse(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule(), rule_concurrency=2, workspace_concurrency=1)
    await reactor.evaluate()
    await bench.storage.acquire(slots_of("plant:a", 2), "the dead", TTL)

    assert await reactor.execute() == 0
    bench.clock.advance(TTL)
    assert await reactor.execute() == 1


async def test_reactors_that_say_different_numbers_each_keep_to_their_own(bench: Bench) -> None:
    gate = Gate()
    one = bench.reactor(rule(ordering="none"), actions={"page": gate}, rule_concurrency=1)
    three = bench.reactor(rule(ordering="none"), actions={"page": gate}, rule_concurrency=3)
    await bench.publish(*[Alarm(machine="press")] * 5)
    await one.evaluate()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(three.execute())
        for _ in range(3):
            await gate.begun.get()
        assert await one.execute() == 0
        gate.let_go()

    assert gate.most == 3
    assert await bench.statuses() == ["succeeded"] * 5


async def test_an_attempt_that_lost_its_slot_is_stopped(bench: Bench) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate}, rule_concurrency=1, lease_ttl=timedelta(milliseconds=60))
    await bench.publish(Alarm(machine="press"))
    await reactor.evaluate()

    async with asyncio.TaskGroup() as tasks:
        executing = tasks.create_task(reactor.execute())
        await gate.begun.get()
        await bench.storage.release(slots_of("plant:a", 1), reactor.holder)
        await executing

    assert [(run.status, run.reason) for run in await bench.runs()] == [("retrying", "abandoned")]
    assert await free(bench, ("plant:a", 1)) == 1


async def test_an_attempt_whose_slot_was_lost_while_it_was_claimed_never_acts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), actions={"page": gate}, rule_concurrency=1, lease_ttl=timedelta(milliseconds=60))
    await bench.publish(Alarm(machine="press"))
    await reactor.evaluate()
    renewed = asyncio.Event()
    renew = bench.storage.renew

    async def noted(keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        kept = await renew(keys, holder, ttl)
        renewed.set()
        return kept

    async def slow(transaction: Any) -> None:
        bench.storage.at_commit = None
        await bench.storage.release(slots_of("plant:a", 1), reactor.holder)
        await renewed.wait()

    monkeypatch.setattr(bench.storage, "renew", noted)
    bench.storage.at_commit = slow

    await reactor.execute()

    assert [(run.status, run.reason) for run in await bench.runs()] == [("retrying", "abandoned")]
    assert gate.begun.empty()


async def test_slots_are_renewed_with_the_leases_of_their_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    reactor = bench.reactor(
        rule(),
        actions={"page": gate},
        rule_concurrency=1,
        workspace_concurrency=1,
        lease_ttl=timedelta(milliseconds=60),
    )
    await bench.publish(Alarm(machine="press"))
    await reactor.evaluate()
    renewed: asyncio.Queue[int] = asyncio.Queue()
    renew = bench.storage.renew

    async def noted(keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        bench.clock.advance(timedelta(milliseconds=20))
        kept = await renew(keys, holder, ttl)
        renewed.put_nowait(len(kept))
        return kept

    monkeypatch.setattr(bench.storage, "renew", noted)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.execute())
        # Of a workspace that changed the leases on runs are looked at by themselves.
        together = 0
        while together < 5:
            together += await renewed.get() == 3
        gate.let_go()

    assert await bench.statuses() == ["succeeded"]


LIMITED: dict[str, Any] = {"rule_concurrency": 2, "workspace_concurrency": 2}
ALL: tuple[tuple[str | WorkspaceRef, int], ...] = (("plant:a", 2), (REF, 2))


async def test_a_claim_that_does_not_commit_gives_its_slots_back(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))
    reactor = bench.reactor(rule(), **LIMITED)
    await reactor.evaluate()
    bench.storage.at_commit = refuse(*[OSError("disk full")] * 3)

    with pytest.raises(ExceptionGroup, match="could not be claimed"):
        await reactor.execute()

    assert await free(bench, *ALL) == 4
    assert await reactor.execute() == 2


async def test_slots_that_cannot_be_asked_for_leave_their_runs_alone_for_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))
    reactor = bench.reactor(rule(), **LIMITED)
    await reactor.evaluate()

    async def refused(*_: Any) -> frozenset[LeaseKey]:
        raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(bench.storage, "acquire", refused)
        with pytest.raises(OSError, match="gone"):
            await reactor.execute()

    assert await bench.statuses() == ["pending", "pending"]
    assert await reactor.execute() == 2


async def test_a_run_that_somebody_else_took_gives_its_slots_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule(), **LIMITED)
    await reactor.evaluate()
    acquire = bench.storage.acquire

    async def late(keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        got = await acquire(keys, holder, ttl)
        if holder == reactor.holder:
            await bench.reactor(rule()).execute()
        return got

    monkeypatch.setattr(bench.storage, "acquire", late)

    assert await reactor.execute() == 0
    assert await bench.statuses() == ["succeeded"]
    assert await free(bench, *ALL) == 4


async def test_a_run_that_is_cancelled_and_one_that_fails_give_their_slots_back(bench: Bench) -> None:
    gate = Gate(lambda reaction: 1 / 0)
    reactor = bench.reactor(rule(), actions={"page": gate}, **LIMITED)
    await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))
    await reactor.evaluate()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.execute())
        cancelled = await gate.begun.get()
        await gate.begun.get()
        await (await bench.open()).cancel_run(cancelled.run_id)
        gate.let_go()

    assert sorted(await bench.statuses()) == ["cancelled", "retrying"]
    assert await free(bench, *ALL) == 4


class HesitantLeases(HesitantStorage, TouchyStorage):
    """Suspends where a database would, also as it takes and gives back leases."""

    @override
    async def acquire(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        await asyncio.sleep(0)
        got = await super().acquire(keys, holder, ttl)
        await asyncio.sleep(0)
        return got

    @override
    async def release(self, keys: Collection[LeaseKey], holder: str) -> None:
        await asyncio.sleep(0)
        await super().release(keys, holder)
        await asyncio.sleep(0)


async def test_a_reactor_keeps_no_slot_whenever_it_is_cancelled(bench: Bench) -> None:
    moments, ended = 0, False
    while not ended:
        bench.storage = HesitantLeases(clock=bench.clock)
        await bench.publish(Alarm(machine="press"), Alarm(machine="saw"), Alarm(machine="drill"))
        reactor = bench.reactor(rule(), **LIMITED)
        await reactor.evaluate()
        ended = await cancelled_after(moments, reactor.execute)
        assert await free(bench, *ALL) == 4, moments
        moments += 1
    assert moments > 50


async def test_a_backlog_of_one_tenant_does_not_keep_the_run_of_another_waiting(bench: Bench) -> None:
    started: list[str] = []
    stop = asyncio.Event()

    async def page(reaction: Reaction[Any]) -> None:
        started.append(reaction.workspace.workspace_id)
        if started[-1] == "z":
            stop.set()

    for workspace, runs in ((REF, 20_000), (WorkspaceRef("zeta", "z"), 1)):
        async with bench.storage.transaction(workspace) as transaction:
            await transaction.save_runs(
                [
                    a_run(f"r{number}", rule="plant:a", seq=number + 1).model_copy(update={"matched": ()})
                    for number in range(runs)
                ]
            )
    reactor = bench.reactor(rule(ordering="none"), actions={"page": page}, concurrency=10)

    await reactor.serve(stop)

    assert len(started) <= 30


async def test_slots_are_kept_while_a_claim_waits_for_its_workspace(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = asyncio.Event()
    renew = bench.storage.renew

    async def noted(keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        assert slots_of("plant:a", 1)[0] in keys
        renewed.set()
        return await renew(keys, holder, ttl)

    monkeypatch.setattr(bench.storage, "renew", noted)
    reactor = bench.reactor(rule(), rule_concurrency=1, lease_ttl=timedelta(milliseconds=30))
    await bench.publish(Alarm(machine="press"))
    await reactor.evaluate()

    async with asyncio.TaskGroup() as tasks, bench.storage.transaction(REF):
        executing = tasks.create_task(reactor.execute())
        await renewed.wait()

    assert executing.result() == 1
    assert await bench.statuses() == ["succeeded"]
