"""Command results beyond their contract: how long they and claims last."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reflexr.core import CommandResult, CommandSucceeded, Publish, Published
from reflexr.sql import SqlCommandResults, SqlStorage
from reflexr.sql.sessions import AsyncpgDriver
from reflexr.sql.statements import Parameters, Row, Statement
from reflexr.workspace import CommandKey, ManualClock, Workspaces

from .servers import Kind, engine_of
from .shop import HOUR, REF, START, TILL, Sold

KEY = CommandKey(REF, '["user","ada"]', "c1")
MINUTE = timedelta(minutes=1)
SHORT = timedelta(milliseconds=30)
"""How long a claim lasts that is renewed every 10 ms."""


@pytest.fixture(params=["sqlite", "postgresql"])
async def engine(request: pytest.FixtureRequest) -> AsyncGenerator[AsyncEngine]:
    kind: Kind = request.param
    async with engine_of(kind) as engine:
        yield engine


def published(seq: int) -> CommandResult:
    return CommandSucceeded(command_id="c1", outcome=Published(seq=seq, id="e1", duplicate=False))


async def rows(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return (await connection.execute(text("SELECT count(*) FROM reflexr_command_results"))).scalar_one()


class Asked:
    """A clock that tells when it is asked: each statement that goes by the time begins with that."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._answers = asyncio.Queue[datetime]()

    def __call__(self) -> datetime:
        now = self._clock()
        self._answers.put_nowait(now)
        return now

    async def twice(self) -> None:
        """Waits until it is asked twice more, so that what the first time was asked for is done."""
        while not self._answers.empty():
            self._answers.get_nowait()
        for _ in range(2):
            await self._answers.get()


async def test_a_result_is_forgotten_when_it_is_old(engine: AsyncEngine) -> None:
    clock = ManualClock(START)
    results = SqlCommandResults(engine, clock=clock, keep=HOUR)
    assert await results.claim(KEY) is None
    await results.finish(KEY, published(1))
    clock.advance(HOUR - timedelta.resolution)
    assert await results.claim(KEY) == published(1)
    clock.advance(timedelta.resolution)
    assert await results.claim(KEY) is None


async def test_old_results_are_removed(engine: AsyncEngine) -> None:
    clock = ManualClock(START)
    results = SqlCommandResults(engine, clock=clock, keep=HOUR)
    for number in range(99):
        key = CommandKey(REF, KEY.participant, f"c{number}")
        await results.claim(key)
        await results.finish(key, published(number))
    assert await rows(engine) == 99
    clock.advance(HOUR)
    await results.claim(KEY)
    await results.finish(KEY, published(1))
    assert await rows(engine) == 1


async def test_a_claim_whose_process_is_gone_lapses(engine: AsyncEngine) -> None:
    clock = ManualClock(START)
    looks = Asked(clock)
    gone, other = (SqlCommandResults(engine, clock=each, claim_ttl=MINUTE) for each in (clock, looks))
    assert await gone.claim(KEY) is None
    waiting = asyncio.create_task(other.claim(KEY))
    await looks.twice()
    assert not waiting.done()
    clock.advance(MINUTE)
    assert await waiting is None
    # What the first did comes too late, and changes nothing.
    await gone.finish(KEY, published(1))
    await other.finish(KEY, published(2))
    assert await gone.claim(KEY) == published(2)


async def test_who_is_cancelled_while_asking_takes_nothing_from_who_has_the_claim(engine: AsyncEngine) -> None:
    first, other = SqlCommandResults(engine), SqlCommandResults(engine)
    assert await first.claim(KEY) is None
    for awaits in range(25):
        asking = asyncio.create_task(other.claim(KEY))
        for _ in range(awaits):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
    await first.finish(KEY, published(1))
    assert await other.claim(KEY) == published(1)


async def test_a_claim_whose_answer_was_lost_is_its_claimants_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = AsyncpgDriver.alone
    lost = 0

    async def lose(driver: AsyncpgDriver, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        nonlocal lost
        rows = await alone(driver, statement, parameters)
        if not lost:
            lost += 1
            raise ConnectionResetError
        return rows

    async with engine_of("postgresql") as engine:
        results = SqlCommandResults(engine)
        monkeypatch.setattr(AsyncpgDriver, "alone", lose)
        async with asyncio.timeout(10):
            assert await results.claim(KEY) is None
        assert lost == 1
        await results.finish(KEY, published(1))


async def test_a_claim_is_renewed_while_its_command_is_carried_out(engine: AsyncEngine) -> None:
    clock = ManualClock(START)
    renewals, looks = Asked(clock), Asked(clock)
    results, other = (SqlCommandResults(engine, clock=each, claim_ttl=SHORT) for each in (renewals, looks))
    assert await results.claim(KEY) is None
    waiting = asyncio.create_task(other.claim(KEY))
    for _ in range(3):
        clock.advance(SHORT - timedelta.resolution)
        await renewals.twice()
    await looks.twice()
    assert not waiting.done()
    await results.finish(KEY, published(1))
    assert await waiting == published(1)


async def test_a_claim_that_cannot_be_given_up_or_renewed_is_reported_and_lapses(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(START)
    renewals = Asked(clock)
    results = SqlCommandResults(engine, clock=renewals, claim_ttl=SHORT)
    assert await results.claim(KEY) is None
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE reflexr_command_results RENAME TO away"))
    with caplog.at_level(logging.WARNING):
        await renewals.twice()
        await results.abandon(KEY)
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE away RENAME TO reflexr_command_results"))
    assert "the claims on 1 commands could not be renewed" in caplog.text
    assert "a claim on a command could not be given up" in caplog.text
    clock.advance(SHORT)
    assert await results.claim(KEY) is None
    # It would be renewed for ever, on connections that the engine opens once it is disposed of.
    await results.abandon(KEY)


async def test_a_command_that_is_repeated_in_another_process_is_carried_out_once(engine: AsyncEngine) -> None:
    storage = SqlStorage(engine, listen=False)
    processes = [Workspaces(storage, events=[Sold], results=SqlCommandResults(engine)) for _ in range(2)]
    command = Publish(event={"type": "sqlshop:sold", "item": "tea"})

    async def execute(workspaces: Workspaces) -> CommandResult:
        workspace = await workspaces.open(REF.tenant_id, REF.workspace_id, actor=TILL)
        return await workspaces.execute(workspace, command, command_id="c1")

    first, second = await asyncio.gather(*map(execute, processes))
    assert isinstance(first, CommandSucceeded)
    assert second == first
    assert (await storage.head(REF)).seq == 1
