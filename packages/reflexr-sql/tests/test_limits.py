"""Limits and turns over one database: reactors of two processes, each with an engine of its own."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reflexr.core import RetryPolicy, Rule, by, on
from reflexr.core import run as action
from reflexr.sql import SqlStorage
from reflexr.workspace import LeaseKey, Reaction, Reactor, WorkspaceRef, Workspaces

from .servers import Kind, beside, engine_of
from .shop import HOUR, REF, TILL, Sold, run

TTL = timedelta(milliseconds=600)
OTHER = WorkspaceRef("acme", "other shop")
EVERYWHERE = WorkspaceRef("", "")
BACKLOG = 100_000
RULES = tuple(
    Rule(
        name=f"sqlshop:{name}",
        when=on(Sold),
        scope=by("item"),
        then=action("count"),
        ordering="none",
        retry=RetryPolicy(max_attempts=9, backoff=timedelta(0)),
    )
    for name in ("restock", "recount")
)


@pytest.fixture(params=["sqlite", "postgresql"])
async def engine(request: pytest.FixtureRequest) -> AsyncGenerator[AsyncEngine]:
    kind: Kind = request.param
    async with engine_of(kind) as engine:
        yield engine


@asynccontextmanager
async def two_storages(engine: AsyncEngine) -> AsyncGenerator[tuple[SqlStorage, SqlStorage]]:
    other = beside(engine)
    async with SqlStorage(engine) as first, SqlStorage(other) as second:
        yield first, second
    await other.dispose()


class Gauge:
    """An action that fails now and then, and counts how many are at work."""

    def __init__(self) -> None:
        self.at_work: Counter[object] = Counter()
        self.most: Counter[object] = Counter()
        self.attempts = 0

    async def __call__(self, reaction: Reaction[None]) -> None:
        subjects = (reaction.run.rule, reaction.workspace.ref)
        self.at_work.update(subjects)
        self.most |= self.at_work
        self.attempts += 1
        try:
            # Work of some length, so that runs overlap and end in other orders than they began in.
            await asyncio.sleep(0.001 * (self.attempts % 4))
            if self.attempts % 5 == 0 and reaction.run.attempt == 1:
                raise OSError("now and then")
        finally:
            self.at_work.subtract(subjects)


def reactor_on(storage: SqlStorage, do: Any, **options: Any) -> Reactor[None]:
    return Reactor(Workspaces(storage, events=[Sold], rules=RULES), actions={"count": do}, **options)


async def publish(storage: SqlStorage, workspace: WorkspaceRef, number: int) -> None:
    workspaces = Workspaces(storage, events=[Sold], rules=RULES)
    handle = await workspaces.open(workspace.tenant_id, workspace.workspace_id, actor=TILL)
    await handle.publish_many([Sold(item=str(one)) for one in range(number)])


async def until(storage: SqlStorage, workspace: WorkspaceRef, succeeded: int) -> None:
    """Waits until so many runs of a workspace have succeeded."""
    workspaces = Workspaces(storage, events=[Sold], rules=RULES)
    handle = await workspaces.open(workspace.tenant_id, workspace.workspace_id, actor=TILL)
    with storage.wakeups.listen(workspace) as listener:
        while len(await handle.runs(status="succeeded")) < succeeded:
            await listener.wait(storage.wakeups.poll_interval)


async def free(storage: SqlStorage, limits: dict[object, int]) -> int:
    """How many slots nobody has."""
    leases = [
        LeaseKey(subject, f"slot:{number}")
        if isinstance(subject, WorkspaceRef)
        else LeaseKey(EVERYWHERE, f"slot:{subject}:{number}")
        for subject, size in limits.items()
        for number in range(size)
    ]
    got = await storage.acquire(leases, "a look", HOUR)
    await storage.release(got, "a look")
    return len(got)


LIMITS: dict[object, int] = {RULES[0].name: 3, RULES[1].name: 3, REF: 4, OTHER: 4}
OPTIONS: dict[str, Any] = {"rule_concurrency": 3, "workspace_concurrency": 4, "lease_ttl": TTL}


async def test_reactors_of_two_processes_together_never_exceed_a_limit(engine: AsyncEngine) -> None:
    gauge = Gauge()
    stop = asyncio.Event()
    async with two_storages(engine) as storages:
        for workspace in (REF, OTHER):
            await publish(storages[0], workspace, 15)

        async with asyncio.TaskGroup() as tasks:
            for storage in (*storages, *storages):
                tasks.create_task(reactor_on(storage, gauge, **OPTIONS).serve(stop))
            for workspace in (REF, OTHER):
                await until(storages[1], workspace, 30)
            stop.set()

        assert all(gauge.most[subject] <= size for subject, size in LIMITS.items())
        # How near they come to it is up to whose turn it is.
        assert max(gauge.most[rule.name] for rule in RULES) > 1
        assert await free(storages[0], LIMITS) == sum(LIMITS.values())


async def test_slots_that_a_process_cannot_give_back_lapse_and_are_exceeded_by_nobody(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauge = Gauge()
    stop = asyncio.Event()
    async with two_storages(engine) as (broken, whole):
        release = broken.release
        calls = 0

        async def failing(keys: Collection[LeaseKey], holder: str) -> None:
            nonlocal calls
            calls += 1
            if calls % 2:
                raise OSError("gone")
            await release(keys, holder)

        monkeypatch.setattr(broken, "release", failing)
        await publish(whole, REF, 15)

        async with asyncio.TaskGroup() as tasks:
            for storage in (broken, whole):
                tasks.create_task(reactor_on(storage, gauge, **OPTIONS).serve(stop))
            await until(whole, REF, 30)
            stop.set()

        assert all(gauge.most[subject] <= size for subject, size in LIMITS.items())


async def test_what_a_process_that_died_had_in_hand_is_taken_over_within_the_limit(engine: AsyncEngine) -> None:
    begun, stop = asyncio.Event(), asyncio.Event()
    gauge = Gauge()

    async def hang(reaction: Reaction[None]) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with two_storages(engine) as (dying, living):
        await publish(living, REF, 1)
        dead = reactor_on(dying, hang, rule_concurrency=1, workspace_concurrency=1, lease_ttl=TTL)
        serving = asyncio.ensure_future(dead.serve())
        await begun.wait()
        with pytest.MonkeyPatch.context() as patched:
            # From one moment to the next it does nothing more.
            for method in ("renew", "release", "acquire", "transaction"):
                patched.setattr(dying, method, _gone)
            serving.cancel()
            await asyncio.wait([serving])

        async with asyncio.TaskGroup() as tasks:
            living_one = reactor_on(living, gauge, rule_concurrency=1, workspace_concurrency=1, lease_ttl=TTL)
            tasks.create_task(living_one.serve(stop))
            await until(living, REF, 2)
            stop.set()

        assert gauge.most[REF] == 1


def _gone(*_: object, **__: object) -> Any:
    raise OSError("gone")


async def test_a_backlog_of_one_tenant_does_not_keep_the_run_of_another_waiting(engine: AsyncEngine) -> None:
    started: list[WorkspaceRef] = []
    stop = asyncio.Event()
    quiet = WorkspaceRef("zeta", "shop")

    async def count(reaction: Reaction[None]) -> None:
        started.append(reaction.workspace.ref)
        if reaction.workspace.ref == quiet:
            stop.set()

    storage = SqlStorage(engine, listen=False)
    waiting = run("r", RULES[0].name).model_copy(update={"matched": ()})
    for first in range(0, BACKLOG, 10_000):
        async with storage.transaction(REF) as transaction:
            await transaction.save_runs(
                [
                    waiting.model_copy(update={"id": f"r{number}", "fired_seq": number})
                    for number in range(first, first + 10_000)
                ]
            )
    async with storage.transaction(quiet) as transaction:
        await transaction.save_runs([waiting])

    await reactor_on(storage, count, concurrency=10).serve(stop)

    assert quiet in started
    assert len(started) <= 30
