"""Reactors over a database that fails beneath them or holds very much, and processes that die as they react."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, override

import pytest
from sqlalchemy import BigInteger, Text, cast, event, func, literal, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from reflexr.core import UNFINISHED, InvalidState, RetryPolicy, Rule, RuleProgress, Run, on
from reflexr.core import run as action
from reflexr.sql import SqlStorage
from reflexr.sql.tables import RUNS, WORKSPACES
from reflexr.workspace import ManualClock, Reaction, Reactor, StorageError, Transaction, WorkspaceRef, Workspaces

from . import reactors
from .servers import Kind, beside, engine_of, terminate_others
from .shop import HOUR, REF, START, TILL, Sold, append, draft, opened
from .test_plans import planned
from .test_processes import Publisher

KINDS: Final[tuple[Kind, ...]] = ("sqlite", "postgresql")
TTL: Final = timedelta(seconds=30)
CROWD: Final = 1_000
FINISHED: Final = 100_000
QUIET: Final = 10_000
BUSY: Final = [WorkspaceRef("acme", f"busy{number}") for number in range(10)]
PROGRAM: Final = Path(__file__).with_name("reactors.py")

type Hook = Callable[[Transaction], Awaitable[None]]


class HookedStorage(SqlStorage):
    """Does something of a test's before each commit."""

    before_commit: Hook | None = None

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        async with super().transaction(workspace) as transaction:
            yield transaction
            if self.before_commit is not None:
                await self.before_commit(transaction)


@pytest.fixture(params=KINDS)
async def engine(request: pytest.FixtureRequest) -> AsyncGenerator[AsyncEngine]:
    kind: Kind = request.param
    async with engine_of(kind) as engine:
        yield engine


def rule(**changes: Any) -> Rule:
    return Rule.model_validate(
        {
            "name": "sqlshop:restock",
            "when": on(Sold),
            "scope": {"fields": ["item"]},
            "then": action("act"),
            "retry": RetryPolicy(backoff=timedelta(0)),
        }
        | changes
    )


async def nothing(_: Reaction[Any]) -> None:
    """An action that does nothing."""


def reactor(storage: SqlStorage, act: Any = nothing, *, of: Rule | None = None, **options: Any) -> Reactor[None]:
    workspaces = Workspaces(storage, events=[Sold], rules=[of or rule()])
    settings: dict[str, Any] = {"lease_ttl": TTL, **options}
    return Reactor(workspaces, actions={"act": act}, **settings)


async def sell(storage: SqlStorage, *items: str, workspace: WorkspaceRef = REF) -> None:
    handle = Workspaces(storage, events=[Sold]).handle(workspace, actor=TILL)
    await handle.publish_many([Sold(item=item) for item in items])


async def runs(storage: SqlStorage, workspace: WorkspaceRef = REF) -> list[Run]:
    return (await Workspaces(storage).handle(workspace, actor=TILL).runs())[::-1]


async def statuses(storage: SqlStorage, workspace: WorkspaceRef = REF) -> list[str]:
    return [run.status for run in await runs(storage, workspace)]


async def until_ended(storage: SqlStorage, number: int) -> None:
    with storage.wakeups.listen() as listener:
        while await ended(storage.engine) < number:
            await listener.wait(storage.wakeups.poll_interval)


async def ended(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        found = select(func.count()).select_from(RUNS).where(RUNS.c.status.not_in(UNFINISHED))
        return (await connection.execute(found)).scalar_one()


async def kinds_of_facts(storage: SqlStorage) -> list[str]:
    log = await (await opened(storage)).read()
    return [envelope.event_type.partition(":")[2] for envelope in log]


# --- Databases that fail


async def test_every_connection_dropped_in_the_middle_of_a_sweep_leaves_no_half_of_it(engine: AsyncEngine) -> None:
    clock, connections = ManualClock(START), Connections(engine)
    async with HookedStorage(engine, clock=clock, listen=False) as storage:
        await sell(storage, "a", "b", "c")
        await left_running(storage, clock)
        sweeper = reactor(storage)

        async def drop(_: Transaction) -> None:
            storage.before_commit = None
            await connections.drop()

        storage.before_commit = drop
        with suppress(StorageError):
            await sweeper.execute()
        assert storage.before_commit is None
        await sweeper.settle()
        assert [(run.status, run.attempt) for run in await runs(storage)] == [("succeeded", 2)] * 3
        facts = await kinds_of_facts(storage)
        assert [facts.count(kind) for kind in ("run_started", "run_retrying", "run_succeeded")] == [6, 3, 3]
    assert checked_out(engine) == 0


async def test_a_process_that_serves_goes_on_when_every_connection_was_dropped(engine: AsyncEngine) -> None:
    connections = Connections(engine)
    async with HookedStorage(engine, listen=False) as storage:
        drops, dropped = 2, asyncio.Event()

        async def drop(_: Transaction) -> None:
            nonlocal drops
            if drops:
                drops -= 1
                await connections.drop()
            if not drops:
                dropped.set()

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reactor(storage).serve(stop))
            await sell(storage, "a", "b")
            storage.before_commit = drop
            # Whoever reads while they are dropped may be told so.
            await dropped.wait()
            with storage.wakeups.listen() as listener:
                while await statuses(storage) != ["succeeded", "succeeded"]:
                    await listener.wait(storage.wakeups.poll_interval)
            stop.set()
    assert checked_out(engine) == 0


@pytest.mark.parametrize("listen", [True, False])
async def test_a_process_stops_at_once_what_another_one_cancels(engine: AsyncEngine, *, listen: bool) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def hang(_: Reaction[None]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    there_engine = beside(engine)
    try:
        async with (
            SqlStorage(engine, listen=listen) as here,
            SqlStorage(there_engine, listen=listen) as there,
            asyncio.TaskGroup() as tasks,
        ):
            stop = asyncio.Event()
            # No lease is renewed in time for it.
            tasks.create_task(reactor(here, hang, lease_ttl=timedelta(days=1)).serve(stop))
            await sell(here, "a")
            await begun.wait()
            tasks.create_task(reactor(there, hang, lease_ttl=timedelta(days=1)).serve(stop))
            (run,) = await runs(there)
            await Workspaces(there).handle(REF, actor=TILL).cancel_run(run.id)
            await stopped.wait()
            stop.set()
    finally:
        await there_engine.dispose()
    assert checked_out(engine) == 0


async def left_running(storage: HookedStorage, clock: ManualClock) -> None:
    """Has a process begin all runs, and die; its leases have lapsed then."""
    begun = asyncio.Queue[str]()

    async def hang(reaction: Reaction[None]) -> None:
        begun.put_nowait(reaction.run_id)
        await asyncio.Event().wait()

    dying = reactor(storage, hang)
    await dying.evaluate()
    executing = asyncio.create_task(dying.execute())
    for _ in await runs(storage):
        await begun.get()

    async def nothing_more(_: Transaction) -> None:
        raise DeadError

    storage.before_commit = nothing_more
    executing.cancel()
    await asyncio.wait([executing])
    storage.before_commit = None
    assert executing.cancelled() or executing.exception() is not None
    clock.advance(TTL)


class DeadError(BaseException):
    """Nothing that a process was killed in is committed."""


class Connections:
    """The connections that an engine has opened."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._opened: list[Any] = []
        event.listen(engine.sync_engine, "connect", self._note)

    def _note(self, adapted: Any, _: object) -> None:
        self._opened.append(adapted.driver_connection)

    async def drop(self) -> None:
        """Drops all of them, also those in use."""
        if self._engine.dialect.name == "sqlite":
            # Side by side, as one may wait for a lock that another has.
            opened, self._opened = self._opened, []
            await asyncio.gather(*(connection.close() for connection in opened))
            return
        await terminate_others(self._engine.url)


def checked_out(engine: AsyncEngine) -> int:
    pool: Any = engine.pool
    return pool.checkedout()


async def test_a_run_that_cannot_be_decoded_keeps_back_none_of_ten(engine: AsyncEngine) -> None:
    async with SqlStorage(engine, listen=False) as storage:
        await sell(storage, *(f"item{number}" for number in range(10)))
        process = reactor(storage)
        await process.evaluate()
        ids = [run.id for run in await runs(storage)]
        async with engine.begin() as connection:
            spoiled = func.replace(cast(RUNS.c.run, Text), '"pending"', '"nonsense"')
            await connection.execute(
                update(RUNS).where(RUNS.c.run_id == ids[4]).values(run=cast(spoiled, RUNS.c.run.type))
            )
        with pytest.raises(StorageError, match="a Run in the database cannot be read"):
            await process.execute()
        assert await status_column(engine) == {run_id: "pending" if run_id == ids[4] else "succeeded" for run_id in ids}
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(process.serve(stop))
            await sell(storage, "another")
            await until_ended(storage, 10)
            stop.set()


async def status_column(engine: AsyncEngine) -> dict[str, str]:
    async with engine.connect() as connection:
        rows = await connection.execute(select(RUNS.c.run_id, RUNS.c.status))
        return {row.run_id: row.status for row in rows}


@pytest.mark.timeout(300)  # some four thousand transactions, on a machine that may have much else to do
async def test_a_thousand_cancellations_that_race_completion_leave_every_connection_and_place_free(
    engine: AsyncEngine,
) -> None:
    cancelling: list[asyncio.Task[None]] = []

    async def act(reaction: Reaction[None]) -> None:
        cancelling.append(asyncio.create_task(cancel(reaction.run_id)))
        for _ in range(reaction.envelopes[0].seq % 7):
            await asyncio.sleep(0)

    async def cancel(run_id: str) -> None:
        with suppress(InvalidState):
            await workspace.cancel_run(run_id)

    async with SqlStorage(engine, listen=False) as storage:
        process = reactor(storage, act, of=rule(ordering="none"), concurrency=8)
        workspace = await opened(storage)
        await sell(storage, *(["item"] * CROWD))
        await process.settle()
        await asyncio.gather(*cancelling)
        facts = await kinds_of_facts(storage)
        assert facts.count("run_succeeded") + facts.count("run_cancelled") == CROWD
        assert facts.count("run_cancelled") > 0
        assert await process.execute() == 0
    assert checked_out(engine) == 0


# --- Databases that hold very much


async def test_ten_due_runs_beside_very_many_finished_ones_are_found_by_ranges(engine: AsyncEngine) -> None:
    async with SqlStorage(engine, clock=ManualClock(START), listen=False) as storage:
        await sell(storage, "a")
        await reactor(storage).settle()
        await multiply_runs(engine)
        await sell(storage, *(f"item{number}" for number in range(10)))
        await reactor(storage).evaluate()
    plan = await planned(engine, execute_all)
    assert RUNS.name not in plan.walks, plan.text
    assert await ended(engine) == FINISHED + 11


async def execute_all(storage: SqlStorage) -> None:
    assert await reactor(storage).execute() == 10


async def multiply_runs(engine: AsyncEngine) -> None:
    """Puts as many runs beside the one that there is, each like it but for its id."""
    first = select(literal(1, BigInteger).label("n")).cte("numbers", recursive=True)
    numbers = first.union_all(select(first.c.n + 1).where(first.c.n < FINISHED))
    name = literal("copy") + cast(numbers.c.n, Text)
    document = func.replace(cast(RUNS.c.run, Text), RUNS.c.run_id, name)
    changed: dict[str, Any] = {
        "run_id": name,
        "number": RUNS.c.number + numbers.c.n,
        "run": cast(document, RUNS.c.run.type),
    }
    columns = [changed.get(column.name, column).label(column.name) for column in RUNS.columns]
    async with engine.begin() as connection:
        chosen = select(*columns).select_from(RUNS.join(numbers, literal(value=True)))
        await connection.execute(RUNS.insert().from_select([column.name for column in RUNS.columns], chosen))


async def test_ten_busy_workspaces_take_as_many_calls_among_ten_thousand_as_alone(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqlStorage(engine, listen=False) as storage:
        alone = await calls(storage, monkeypatch)
        await reactor(storage).settle()
        await multiply_workspaces(engine)
        assert len(await storage.workspaces()) == QUIET + len(BUSY) + 1
        among = await calls(storage, monkeypatch)
        assert [await statuses(storage, place) for place in BUSY] == [["succeeded"] * 2] * len(BUSY)
    # How often it looks depends on what ends together; one look at each workspace would be a thousand times as many.
    assert sum(among.values()) <= 2 * sum(alone.values())


async def calls(storage: SqlStorage, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Sells in ten workspaces, and returns how often a process calls what until all is done."""
    for place in BUSY:
        await sell(storage, "a", workspace=place)
    counts: dict[str, int] = {}
    with monkeypatch.context() as patched:
        for name in ("transaction", "behind", "due_runs", "next_due", "renew", "release"):
            call: Any = getattr(storage, name)

            def counted(*arguments: Any, name: str = name, call: Any = call, **options: Any) -> Any:
                counts[name] = counts.get(name, 0) + 1
                return call(*arguments, **options)

            patched.setattr(storage, name, counted)
        await reactor(storage).settle()
    return counts


async def multiply_workspaces(engine: AsyncEngine) -> None:
    """Puts as many workspaces beside one where nothing is to be done, each like it."""
    async with SqlStorage(engine, listen=False) as storage:
        place = WorkspaceRef("acme", "quiet")
        await append(storage, draft("e1"), workspace=place)
        async with storage.transaction(place) as transaction:
            await transaction.save_progress([RuleProgress(rule().name, 1, 1, rule().definition())])
        await reactor(storage).settle()
    first = select(literal(1, BigInteger).label("n")).cte("numbers", recursive=True)
    numbers = first.union_all(select(first.c.n + 1).where(first.c.n < QUIET))
    columns: list[Any] = [
        (literal("quiet") + cast(numbers.c.n, Text)).label(column.name) if column.name == "workspace_id" else column
        for column in WORKSPACES.columns
    ]
    chosen = select(*columns).select_from(WORKSPACES.join(numbers, WORKSPACES.c.workspace_id == "quiet"))
    async with engine.begin() as connection:
        await connection.execute(WORKSPACES.insert().from_select([one.name for one in WORKSPACES.columns], chosen))


# --- Processes that die, and hosts whose clocks are wrong


@asynccontextmanager
async def processes(work: str, engine: AsyncEngine) -> AsyncGenerator[Publisher]:
    """Starts what starts other processes that react; all are gone once the block ends."""
    url = engine.url.render_as_string(hide_password=False)
    started = await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), work, url, stdin=PIPE, stdout=PIPE)
    try:
        yield Publisher(started)
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def started(parent: Publisher, holder: str = "host") -> int:
    """Starts a process, and returns which it is."""
    parent.say(holder)
    word, child = (await parent.line()).split()
    assert word == "serves"
    return int(child)


async def ended_well(parent: Publisher) -> None:
    """Ends the process that serves, and what started it."""
    parent.say()
    assert await parent.line() == "ended 0"
    parent.end_input()
    assert await parent.lines() == []


async def poison(storage: SqlStorage, *poisoned: bool) -> None:
    workspaces = Workspaces(storage, events=[reactors.Poisoned])
    await workspaces.handle(REF, actor=TILL).publish_many([reactors.Poisoned(poison=one) for one in poisoned])


async def test_an_action_that_exits_its_process_at_every_attempt_ends_as_a_dead_letter(engine: AsyncEngine) -> None:
    async with SqlStorage(engine, listen=False) as storage, processes("exits", engine) as parent:
        assert await parent.line() == "ready"
        await poison(storage, True, False)
        for attempt in (1, 2, 3):
            await started(parent)
            assert [await parent.line() for _ in range(2)] == [f"began 1 {attempt}", "ended 3"]
        await started(parent)
        assert await parent.line() == "began 2 1"
        await until_ended(storage, 2)
        await ended_well(parent)
        assert [(run.status, run.attempt, run.reason) for run in await runs(storage)] == [
            ("dead_lettered", 3, "abandoned"),
            ("succeeded", 1, None),
        ]


async def test_a_process_that_is_killed_and_restarted_under_its_name_resumes_when_its_lease_lapses(
    engine: AsyncEngine,
) -> None:
    async with SqlStorage(engine, listen=False) as storage, processes("hangs", engine) as parent:
        assert await parent.line() == "ready"
        await poison(storage, True, False)
        victim = await started(parent)
        assert await parent.line() == "began 1 1"
        os.kill(victim, signal.SIGKILL)
        assert await parent.line() == f"ended -{signal.SIGKILL.value}"
        await started(parent)
        assert [await parent.line() for _ in range(2)] == ["began 1 2", "began 2 1"]
        await until_ended(storage, 2)
        await ended_well(parent)
        log = await (await opened(storage)).read()
        at = {envelope.event_type: envelope.ts for envelope in reversed(log)}
        assert at["reflexr:run_retrying"] - at["reflexr:run_started"] >= reactors.TTL
        assert [(run.status, run.attempt) for run in await runs(storage)] == [("succeeded", 2), ("succeeded", 1)]


async def test_hosts_an_hour_ahead_and_behind_go_by_the_clock_of_the_database() -> None:
    async with engine_of("postgresql") as engine, SqlStorage(engine, listen=False) as storage:
        begun, end = asyncio.Event(), asyncio.Event()

        async def act(reaction: Reaction[None]) -> None:
            if reaction.envelopes[0].payload["item"] == "slow":
                begun.set()
                await end.wait()
            elif reaction.attempt == 1:
                raise OSError

        of = rule(retry=RetryPolicy(backoff=timedelta(minutes=1)))
        before = await storage.now()
        await sell(storage, "slow", "failing")
        async with asyncio.TaskGroup() as tasks:
            stop = asyncio.Event()
            tasks.create_task(reactor(storage, act, of=of).serve(stop))
            await begun.wait()
            with storage.wakeups.listen() as listener:
                while "retrying" not in await statuses(storage):
                    await listener.wait(storage.wakeups.poll_interval)
            for shift in (HOUR, -HOUR):
                host = ManualClock(before + shift)
                workspaces = Workspaces(storage, events=[Sold], rules=[of], clock=host)
                await Reactor(workspaces, actions={"act": nothing}, lease_ttl=TTL).settle()
            assert await statuses(storage) == ["running", "retrying"]
            end.set()
            stop.set()
        assert [(run.status, run.attempt) for run in await runs(storage)] == [("succeeded", 1), ("retrying", 1)]
        after = await storage.now()
        log = await (await opened(storage)).read()
        assert all(before <= envelope.ts <= after for envelope in log)
