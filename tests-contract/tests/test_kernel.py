"""What a storage of few methods does besides what every storage promises: how far it looks, and whom it lets wait."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, override

import pytest

from reflexr.contracts.samples import ALPHA, BETA, HOUR, START, at, definitions, draft, marked, run, run_scope
from reflexr.core import UNFINISHED, Envelope, Run
from reflexr.workspace import (
    Deadline,
    DueRun,
    LeaseKey,
    LogWindow,
    ManualClock,
    RunPolicy,
    RunQuery,
    StateChanges,
    StorageError,
    StorageKernel,
    Watch,
    WorkspaceRef,
    run_lease,
    system_clock,
)

from .outside_storage import Database, DictionaryStorage, DictionaryTransaction

PLACES = [WorkspaceRef("tenant", f"w{number}") for number in range(5)]
UNORDERED = RunPolicy(unordered=frozenset({ALPHA}))
WATCH = Watch(definitions(ALPHA))


class Watched(DictionaryStorage):
    """Notes what it is asked to open."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        super().__init__(database, clock)
        self.opened: list[WorkspaceRef] = []

    @override
    @asynccontextmanager
    async def snapshot(self, workspace: WorkspaceRef) -> AsyncGenerator[DictionaryTransaction]:
        self.opened.append(workspace)
        async with super().snapshot(workspace) as snapshot:
            yield snapshot


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def storage(clock: ManualClock) -> Watched:
    return Watched(Database(), clock)


async def append(storage: StorageKernel, *places: WorkspaceRef) -> None:
    for place in places:
        await storage.append(place, [draft("e1")])


async def save(storage: StorageKernel, *runs: Run, places: list[WorkspaceRef]) -> None:
    for place in places:
        async with storage.transaction(place) as transaction:
            await transaction.save_runs(runs)


async def test_it_goes_by_the_systems_clock_and_wakes_its_own_process_unless_it_is_told_otherwise() -> None:
    class ByDefault(DictionaryStorage):
        def __init__(self) -> None:
            StorageKernel.__init__(self)
            self.database = Database()

    storage, other = ByDefault(), ByDefault()
    before = system_clock()
    assert before <= await storage.now() <= system_clock()
    with storage.wakeups.listen() as listener, other.wakeups.listen() as others:
        await append(storage, PLACES[0])
        assert await listener.wait() == {PLACES[0]}
        assert await others.wait(timedelta()) == frozenset()


# --- Fairness


async def test_a_workspace_where_nothing_can_be_done_keeps_no_other_from_being_found(storage: Watched) -> None:
    await append(storage, *PLACES)
    answers = [await storage.behind(WATCH, limit=2) for _ in range(3)]
    assert answers == [PLACES[:2], PLACES[2:4], [PLACES[4], PLACES[0]]]


async def test_a_schedule_that_cannot_tick_keeps_no_other_from_ticking(storage: Watched) -> None:
    unborn = WorkspaceRef("tenant", "w9")
    await append(storage, *PLACES)
    deadlines = {"all": Deadline(at(1)), "some": Deadline(at(1), frozenset({PLACES[1], unborn}))}
    answers = [await storage.due_schedules(deadlines, limit=3) for _ in range(3)]
    assert [[(due.workspace, due.schedule) for due in found] for found in answers] == [
        [(PLACES[0], "all"), (PLACES[1], "all"), (PLACES[1], "some")],
        [(PLACES[2], "all"), (PLACES[3], "all"), (PLACES[4], "all")],
        [(unborn, "some"), (PLACES[0], "all"), (PLACES[1], "all")],
    ]


async def test_an_order_of_names_that_is_not_pythons_leaves_out_no_workspace_and_names_none_twice(
    clock: ManualClock,
) -> None:
    class IgnoresCase(DictionaryStorage):
        @override
        async def known_workspaces(self, after: WorkspaceRef | None, limit: int) -> list[WorkspaceRef]:
            known = sorted(self.database.tables, key=self.place)
            return [one for one in known if after is None or self.place(one) > self.place(after)][:limit]

        def place(self, workspace: WorkspaceRef) -> str:
            return workspace.workspace_id.casefold()

    storage = IgnoresCase(Database(), clock)
    places = [WorkspaceRef("tenant", name) for name in ("a", "B", "c", "D")]
    await append(storage, *places)
    await save(storage, run("r1"), places=places)
    for turn, after in enumerate(places, start=1):
        found = await storage.due_runs(UNORDERED, limit=9, after=after)
        assert [due.workspace for due in found] == places[turn:] + places[:turn]


# --- How far it looks


async def test_more_workspaces_than_a_page_holds_are_all_found(storage: Watched) -> None:
    places = sorted(WorkspaceRef("tenant", f"w{number:04}") for number in range(1001))
    await append(storage, *places)
    await save(storage, run("r1"), places=places)
    assert await storage.workspaces() == places
    assert await storage.behind(WATCH, limit=2000) == places
    found = await storage.due_runs(UNORDERED, limit=2000, after=places[600])
    assert [due.workspace for due in found] == places[601:] + places[:601]
    assert len(await storage.due_schedules({"daily": Deadline(at(1))}, limit=2000)) == len(places)


async def test_it_opens_no_more_workspaces_than_an_answer_needs(storage: Watched) -> None:
    await append(storage, *PLACES)
    await save(storage, run("r1"), places=PLACES)
    storage.opened.clear()
    await storage.workspaces(limit=1)
    await storage.workspaces(tenant_id="another")
    await storage.behind(WATCH, limit=1)
    await storage.due_schedules({"daily": Deadline(at(1))}, limit=1)
    await storage.due_runs(UNORDERED, limit=2, after=PLACES[1], but_workspaces=[PLACES[2]])
    await storage.next_due(UNORDERED)
    assert storage.opened == [PLACES[0]] * 3 + [PLACES[3], PLACES[4], PLACES[0]]
    storage.opened.clear()
    assert await storage.due_runs(UNORDERED, limit=0) == await storage.due_runs(UNORDERED, limit=9, each=0) == []
    assert (
        await storage.behind(WATCH, limit=0) == await storage.due_schedules({"daily": Deadline(at(1))}, limit=0) == []
    )
    assert storage.opened == []


async def test_places_that_follow_one_another_are_one_read(storage: Watched) -> None:
    windows: list[LogWindow] = []

    class Reads(DictionaryTransaction):
        @override
        async def read(self, window: LogWindow) -> list[Envelope]:
            windows.append(window)
            return await super().read(window)

    await storage.append(PLACES[0], [draft(f"e{number}") for number in range(9)])
    reads = Reads(PLACES[0], storage.database.tables[PLACES[0]], START)
    found = await reads.read_seqs([7, -1, 3, 4, 3, 99, 5, 0])
    assert {seq: envelope.seq for seq, envelope in found.items()} == {seq: seq for seq in (3, 4, 5, 7)}
    assert windows == [LogWindow(2, 6), LogWindow(6, 8)]


async def test_whose_turn_it_is_takes_one_query_that_is_as_narrow_as_can_be(storage: Watched) -> None:
    queries: list[RunQuery] = []

    class Finds(DictionaryTransaction):
        @override
        async def find_runs(self, query: RunQuery) -> list[Run]:
            queries.append(query)
            return await super().find_runs(query)

    await save(storage, run("a"), run("b", BETA, scope="x"), places=PLACES[:1])
    finds = Finds(PLACES[0], storage.database.tables[PLACES[0]], START)
    one, other = run_scope(), run_scope(BETA, "x")
    assert await finds.first_runs([one]) == {one: "a"}
    assert await finds.first_runs([one, other], blocking=[BETA]) == {one: "a", other: "b"}
    assert queries == [
        RunQuery(frozenset({ALPHA}), one.scope_key, UNFINISHED),
        RunQuery(frozenset({ALPHA, BETA}), None, frozenset({*UNFINISHED, "dead_lettered"})),
    ]


# --- What it writes


async def test_states_that_stay_as_they_are_are_not_written(storage: Watched) -> None:
    async with storage.transaction(PLACES[0]) as transaction:
        await transaction.change_states({ALPHA: StateChanges({"[]": marked(at(9))})})
    with storage.wakeups.listen(PLACES[0]) as listener:
        async with storage.transaction(PLACES[0]) as transaction:
            unchanged = StateChanges({"[]": marked(at(9))}, frozenset({"[1]"}), at(8))
            await transaction.change_states({ALPHA: unchanged, BETA: StateChanges()})
        assert await listener.wait(timedelta()) == frozenset()


async def test_who_is_cut_off_between_two_workspaces_keeps_the_first_lease_until_it_lapses(clock: ManualClock) -> None:
    class FailsOnce(DictionaryStorage):
        fails = True

        @override
        @asynccontextmanager
        async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[DictionaryTransaction]:
            if workspace == PLACES[1] and self.fails:
                self.fails = False
                raise StorageError("the server is down")
            async with super().transaction(workspace) as transaction:
                yield transaction

    storage = FailsOnce(Database(), clock)
    keys = [LeaseKey(place, "a") for place in PLACES[2::-1]]
    with pytest.raises(StorageError, match="the server is down"):
        await storage.acquire(keys, "first", HOUR)
    assert await storage.acquire(keys, "second", HOUR) == {*keys[:2]}
    clock.advance(HOUR)
    assert await storage.acquire(keys, "second", HOUR) == {*keys}


async def test_whoever_is_cancelled_at_any_await_leaves_nothing_open(clock: ManualClock) -> None:
    class Hesitates(DictionaryStorage):
        waits = False
        open = 0

        @override
        @asynccontextmanager
        async def snapshot(self, workspace: WorkspaceRef) -> AsyncGenerator[DictionaryTransaction]:
            async with super().snapshot(workspace) as snapshot:
                self.open += 1
                try:
                    await self.hesitate()
                    yield snapshot
                    await self.hesitate()
                finally:
                    self.open -= 1

        @override
        async def known_workspaces(self, after: WorkspaceRef | None, limit: int) -> list[WorkspaceRef]:
            await self.hesitate()
            # In pages as small as can be.
            return await super().known_workspaces(after, min(limit, 1))

        async def hesitate(self) -> None:
            if self.waits:
                await asyncio.sleep(0)

    storage = Hesitates(Database(), clock)
    await append(storage, *PLACES[:2])
    await save(storage, run("r1", status="retrying", retry_at=START + HOUR), places=PLACES[:2])
    deadlines, keys = {"daily": Deadline(at(1))}, [LeaseKey(place, "a") for place in PLACES[:2]]
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        partial(storage.read, PLACES[0], LogWindow()),
        partial(storage.workspaces),
        partial(storage.behind, WATCH, limit=9),
        partial(storage.due_runs, UNORDERED, limit=9, after=PLACES[0]),
        partial(storage.next_due, UNORDERED),
        partial(storage.due_schedules, deadlines, limit=9),
        partial(storage.save_cursor, PLACES[0], "mirror", 1),
        partial(storage.acquire, keys, "holder", HOUR),
        partial(storage.renew, keys, "holder", HOUR),
        partial(storage.release, keys, "holder"),
    ]
    for call in calls:
        storage.waits = True
        steps = 0
        while True:
            steps += 1
            task = asyncio.create_task(call())
            for _ in range(steps):
                await asyncio.sleep(0)
            if not task.cancel():
                break
            await asyncio.wait([task])
            assert task.cancelled()
            assert storage.open == 0
        storage.waits = False
        assert steps > 2
        for place in PLACES[:2]:
            async with asyncio.timeout(1), storage.transaction(place) as transaction:
                assert await transaction.runs(["r1"])


# --- Time


async def test_a_run_that_was_fired_ahead_of_a_clock_that_went_back_is_due_all_the_same(
    storage: Watched, clock: ManualClock
) -> None:
    pending, lost = run("pending", fired_at=START + HOUR), run("lost", status="running", fired_at=START + HOUR)
    await save(storage, pending, lost, places=PLACES[:1])
    assert {due.run_id for due in await storage.due_runs(UNORDERED, limit=9)} == {"pending", "lost"}
    assert await storage.next_due(UNORDERED) == timedelta()


async def test_the_first_of_all_workspaces_that_may_start_is_what_is_next_due(
    storage: Watched, clock: ManualClock
) -> None:
    for hours, place in zip((3, 1, 2), PLACES, strict=False):
        await save(storage, run("r1", status="retrying", retry_at=START + hours * HOUR), places=[place])
    assert await storage.next_due(UNORDERED) == HOUR
    async with storage.transaction(PLACES[4]) as transaction:
        await transaction.save_runs([run("r1", status="running")])
        await transaction.acquire([run_lease("r1")], "somebody", HOUR / 2)
    assert await storage.next_due(UNORDERED) == HOUR / 2
    clock.advance(HOUR / 2)
    assert await storage.due_runs(UNORDERED, limit=9) == [DueRun(PLACES[4], "r1", ALPHA)]
