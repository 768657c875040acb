import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from reflexr.core import Tick, by, on
from reflexr.workspace import LeaseKey, Schedule, WorkspaceRef, schedule_lease
from reflexr.workspace.schedules import SCHEDULER, tick, tick_id

from .plant import REF, START, Alarm, draft
from .reacting import TTL, Bench
from .test_evaluating import each

MINUTE = timedelta(minutes=1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def ticks(bench: Bench, workspace_id: str = "prod") -> list[tuple[str, timedelta]]:
    """The ticks of a workspace: which schedule's, and how long after the start they were due."""
    facts = await bench.facts("reflexr:tick", workspace_id)
    return [(fact["schedule"], datetime.fromisoformat(fact["at"]) - START) for fact in facts]


def schedule(name: str = "s", **fields: Any) -> Schedule:
    return Schedule.model_validate({"name": name, "every": MINUTE} | fields)


async def test_a_tick_is_published_once_with_the_time_it_was_due(bench: Bench) -> None:
    reactor = bench.reactor(schedules=[schedule()])
    await bench.publish(Alarm(machine="press"))
    bench.clock.advance(MINUTE + timedelta(seconds=2))

    assert await reactor.tick() == 1
    assert await reactor.tick() == 0

    assert await ticks(bench) == [("s", MINUTE)]
    envelope = (await bench.log())[-1]
    assert (envelope.id, envelope.actor, envelope.ts) == (tick_id("s", START + MINUTE), SCHEDULER, bench.clock())
    assert await bench.storage.schedule_ticks(REF) == {"s": START + MINUTE}


async def test_a_log_gets_no_tick_that_was_due_before_it_began(bench: Bench) -> None:
    reactor = bench.reactor(schedules=[schedule(), schedule("daily", every=None, cron="0 9 * * *")])
    bench.clock.advance(timedelta(hours=12))
    await bench.publish(Alarm(machine="press"))

    assert await reactor.tick() == 0
    bench.clock.advance(MINUTE)
    assert await reactor.tick() == 1

    assert await ticks(bench) == [("s", timedelta(hours=12, minutes=1))]


async def test_after_downtime_skip_publishes_the_latest_and_all_publishes_each_up_to_the_limit(bench: Bench) -> None:
    schedules = [schedule("skip"), schedule("all", catch_up="all"), schedule("some", catch_up="all", limit=2)]
    reactor = bench.reactor(schedules=schedules)
    await bench.publish(Alarm(machine="press"))
    bench.clock.advance(MINUTE)
    await reactor.tick()

    bench.clock.advance(3 * MINUTE)
    await reactor.tick()
    after_one_pass = await ticks(bench)
    await reactor.settle()

    assert [at for name, at in after_one_pass if name == "skip"] == [MINUTE, 4 * MINUTE]
    assert [at for name, at in after_one_pass if name == "all"] == [MINUTE, 2 * MINUTE, 3 * MINUTE, 4 * MINUTE]
    assert [at for name, at in after_one_pass if name == "some"] == [MINUTE, 2 * MINUTE, 3 * MINUTE]
    assert [at for name, at in await ticks(bench) if name == "some"] == [MINUTE, 2 * MINUTE, 3 * MINUTE, 4 * MINUTE]


async def test_every_workspace_with_a_log_gets_ticks_or_those_that_are_listed(bench: Bench) -> None:
    listed = schedule("listed", targets=[("acme", "prod"), ("acme", "empty")])
    reactor = bench.reactor(schedules=[schedule("every"), listed])
    for name in ("prod", "test"):
        await bench.publish(Alarm(machine="press"), workspace_id=name)
    bench.clock.advance(MINUTE)

    await reactor.settle()

    assert sorted(await ticks(bench)) == [("every", MINUTE), ("listed", MINUTE)]
    assert await ticks(bench, "test") == [("every", MINUTE)]
    # Its first tick begins the log, which from then on is one that every schedule ticks in.
    assert await ticks(bench, "empty") == [("listed", MINUTE)]


async def test_many_workspaces_get_their_ticks_in_one_call(bench: Bench) -> None:
    names = [f"w{number}" for number in range(40)]
    for name in names:
        await bench.publish(Alarm(machine="press"), workspace_id=name)
    bench.clock.advance(MINUTE)

    assert await bench.reactor(schedules=[schedule()]).tick() == 40


async def test_a_schedule_whose_lease_another_has_is_left_to_it(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    bench.clock.advance(MINUTE)
    await bench.storage.acquire([LeaseKey(REF, schedule_lease("s"))], "another", TTL)
    reactor = bench.reactor(schedules=[schedule(), schedule("t")])

    assert await reactor.tick() == 1
    bench.clock.advance(TTL)
    assert await reactor.tick() == 1

    assert await ticks(bench) == [("t", MINUTE), ("s", MINUTE)]


async def test_a_tick_that_is_in_the_log_already_is_not_published_again(bench: Bench) -> None:
    async with bench.storage.transaction(REF) as transaction:
        await transaction.append([draft("first"), tick("s", START + MINUTE)])
    bench.clock.advance(MINUTE)

    await bench.reactor(schedules=[schedule()]).tick()

    assert await ticks(bench) == [("s", MINUTE)]
    assert await bench.storage.schedule_ticks(REF) == {"s": START + MINUTE}


async def test_an_id_that_somebody_took_keeps_no_tick_from_being_published(bench: Bench) -> None:
    reactor = bench.reactor(schedules=[schedule()])
    async with bench.storage.transaction(REF) as transaction:
        await transaction.append([draft(tick_id("s", START + MINUTE))])
    bench.clock.advance(MINUTE)

    await reactor.tick()

    assert await ticks(bench) == [("s", MINUTE)]


async def test_ticks_move_the_clock_of_rules_in_a_quiet_workspace(bench: Bench) -> None:
    quiet = each("plant:quiet", when=on(Alarm).absent(within=timedelta(seconds=90)), scope=by("machine"))
    reactor = bench.reactor(quiet, each("plant:minute", when=on(Tick).where(schedule="s")), schedules=[schedule()])
    await bench.publish(Alarm(machine="press"))
    for _ in range(3):
        bench.clock.advance(MINUTE)
        await reactor.settle()

    fired = [fact["rule"] for fact in await bench.facts("reflexr:rule_fired")]
    assert sorted(fired) == ["plant:minute", "plant:minute", "plant:minute", "plant:quiet"]


async def test_two_reactors_publish_a_tick_once(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    bench.clock.advance(MINUTE)
    one, two = (bench.reactor(schedules=[schedule()]) for _ in range(2))

    assert sorted(await asyncio.gather(one.tick(), two.tick())) == [0, 1]
    assert await ticks(bench) == [("s", MINUTE)]


async def test_a_workspace_that_breaks_keeps_back_no_other(bench: Bench) -> None:
    for name in ("a", "b"):
        await bench.publish(Alarm(machine="press"), workspace_id=name)
    bench.clock.advance(MINUTE)

    async def failing(ref: WorkspaceRef) -> None:
        if ref.workspace_id == "a":
            raise OSError("gone")

    bench.storage.before = failing

    with pytest.raises(OSError, match="gone"):
        await bench.reactor(schedules=[schedule()]).tick()

    assert await ticks(bench, "b") == [("s", MINUTE)]
