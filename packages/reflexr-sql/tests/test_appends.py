"""Appends alone, where others come in between."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reflexr.core import Draft, RuleInstalled, SystemActor
from reflexr.sql import DatabaseBusyError, SqlStorage, create_sqlite_engine
from reflexr.workspace import DuplicateEventIdError, LogWindow, ManualClock, WorkspaceRef

from .servers import Kind, beside, engine_of
from .shop import REF, append, draft

WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


async def until_one_waits(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        while not await connection.scalar(WAITING):
            pass


async def test_the_isolation_by_default_is_no_matter() -> None:
    options = {"server_settings": {"default_transaction_isolation": "repeatable read"}}
    async with engine_of("postgresql", connect_args=options) as engine, SqlStorage(engine, listen=False) as storage:
        other = beside(engine)
        async with SqlStorage(other, listen=False) as second:
            await append(storage, draft("e1"))
            async with second.transaction(REF) as transaction:
                await transaction.append([draft("e2")])
                late = asyncio.create_task(storage.append(REF, [draft("e3")]))
                await until_one_waits(engine)
            (appended,) = await late
        await other.dispose()
    assert appended.seq == 3


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_times_far_ahead_are_kept_to_the_microsecond(kind: Kind) -> None:
    clock = ManualClock(datetime(9998, 12, 31, 23, 59, 59, 123457, tzinfo=UTC))
    async with engine_of(kind) as engine, SqlStorage(engine, clock=clock, listen=False) as storage:
        await append(storage, draft("e1"))
        (second,) = await storage.append(REF, [draft("e2")])
        read = await storage.read(REF, LogWindow())
    assert (second.ts, [one.ts for one in read]) == (clock(), [clock(), clock()])


async def test_an_append_on_sqlite_has_the_time_at_which_the_lock_was_free() -> None:
    clock = ManualClock()
    async with engine_of("sqlite") as engine, SqlStorage(engine, clock=clock, listen=False) as storage:
        await append(storage, draft("e1"))
        async with storage.transaction(WorkspaceRef("acme", "other")):
            late = asyncio.create_task(storage.append(REF, [draft("e2")]))
            await asyncio.sleep(0)
            clock.advance(timedelta(seconds=30))
        (appended,) = await late
    assert appended.ts == clock()


async def test_an_append_that_the_database_was_too_busy_for_is_made_in_a_transaction() -> None:
    async with engine_of("sqlite") as engine:
        hasty = create_sqlite_engine(engine.url, busy_timeout=timedelta())
        async with SqlStorage(engine, listen=False) as storage, SqlStorage(hasty, listen=False) as second:
            await append(storage, draft("e1"))
            async with storage.transaction(REF):
                with pytest.raises(DatabaseBusyError):
                    await second.append(REF, [draft("e2")])
            (appended,) = await second.append(REF, [draft("e2")])
        await hasty.dispose()
    assert appended.seq == 2


async def test_an_id_that_came_while_an_append_waited_is_refused_and_takes_no_place() -> None:
    async with engine_of("postgresql") as engine, SqlStorage(engine, listen=False) as storage:
        other = beside(engine)
        async with SqlStorage(other, listen=False) as second:
            await append(storage, draft("e1"))
            async with storage.transaction(REF) as transaction:
                await transaction.append([draft("e2")])
                late = asyncio.create_task(second.append(REF, [draft("e3"), draft("e2")]))
                await until_one_waits(engine)
            with pytest.raises(DuplicateEventIdError) as refused:
                await late
            assert refused.value.ids == ("e2",)
            (last,) = await second.append(REF, [draft("e3")])
        await other.dispose()
        assert last.seq == 3
        assert [one.id for one in await storage.read(REF, LogWindow())] == ["e1", "e2", "e3"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_an_id_that_was_taken_for_a_fresh_one_is_refused_all_the_same(kind: Kind) -> None:
    async with engine_of(kind) as engine, SqlStorage(engine, listen=False) as storage:
        await append(storage, draft("e1"))
        with pytest.raises(DuplicateEventIdError) as refused:
            await storage.append(REF, [draft("e2")._replace(fresh=True), draft("e1")._replace(fresh=True)])
        (appended,) = await storage.append(REF, [draft("e2")._replace(fresh=True)])
        read = await storage.read(REF, LogWindow())
    assert refused.value.ids == ("e1",)
    assert (appended.seq, [one.id for one in read]) == (2, ["e1", "e2"])


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_what_is_appended_together_is_read_as_each_was(kind: Kind) -> None:
    installed = RuleInstalled(rule="sqlshop:stored", version=1, spec={}).payload()
    drafts = [
        draft("two\nlines", item='of "\n\\n\r\u2028" {},'),
        Draft("e2", installed, SystemActor(name="desk"), "two\nlines", None, "00-trace", fresh=True),
        draft("{null}", item=None),
    ]
    async with engine_of(kind) as engine, SqlStorage(engine, listen=False) as storage:
        await append(storage, draft("e1"))
        appended = await storage.append(REF, drafts)
        read = await storage.read(REF, LogWindow(after_seq=1))
        history = await storage.rule_history(REF, "sqlshop:stored")
    assert read == appended
    assert [(one.seq, one.id, one.payload) for one in read] == [
        (seq, one.id, one.payload) for seq, one in enumerate(drafts, start=2)
    ]
    assert [one.id for one in history] == ["e2"]


async def test_appends_under_new_ids_are_not_planned_anew_each_time() -> None:
    plans = text("SELECT sum(generic_plans) FROM pg_prepared_statements WHERE statement LIKE 'WITH moved AS%INSERT%'")
    async with (
        engine_of("postgresql", pool_size=1, max_overflow=0) as engine,
        SqlStorage(engine, listen=False) as storage,
    ):
        await append(storage, draft("e0"))
        for number in range(1, 11):
            await storage.append(REF, [draft(f"e{number}")._replace(fresh=True)])
        async with engine.connect() as connection:
            assert await connection.scalar(plans) == 5
