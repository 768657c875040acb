"""Whatever happens to processes and to the database, the log says what rules decide, and runs are as they must be.

`make chaos` has it go on for as long as one likes, in episodes of which each has a seed of its own.
"""

import asyncio
import math
import os
import random
import signal
import sqlite3
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from reflexr.core import Absence, Count, Each, Rule, Sequence, on, predicate, run
from reflexr.sql import SqlStorage, create_schema
from reflexr.workspace import LeaseKey

from .chaos.episodes import Report, episode
from .chaos.events import Ping
from .chaos.journal import Trouble, entries_of
from .chaos.killer import Ground, nursery
from .chaos.nursery import Settings
from .chaos.plans import PROCESSES, WORKSPACES, Card, planned, rules_of
from .chaos.residue import residue
from .servers import Kind, embedded, terminate_others
from .servers import engine_of as prepared

KINDS: Final[tuple[Kind, ...]] = ("sqlite", "postgresql")

SEED: Final = 2
SECONDS: Final = 3.2
"""How long the killer is at work in a run of all tests, so that each of its deeds is done once at least."""

LONGEST: Final = 20.0
"""How long it is at most in an episode of `make chaos`, each of which has rules of its own."""

SHORTEST: Final = 10.0
"""How long it is there at least, so that each of its deeds is done whatever the seed is."""

ASKED: Final = os.environ.get("REFLEXR_CHAOS_SECONDS")
"""How long it is to go on on each database, if somebody asks."""

NAMED: Final = os.environ.get("REFLEXR_TEST_POSTGRES_URL")
"""A server that is not ours to restart."""

PACE: Final = 1.5
"""How long a publisher rests between two lots at most: what is published leads to several times as many runs."""


@asynccontextmanager
async def ground_of(kind: Kind) -> AsyncGenerator[Ground]:
    """An empty database: of a server of its own, which may be restarted, if none is named."""
    if kind == "sqlite" or NAMED:
        async with prepared(kind) as engine:
            await engine.dispose()
            url = engine.url.render_as_string(hide_password=False)
            yield Ground(url, drop=partial(terminate_others, url))
        return
    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.to_thread(embedded, f"{Path(folder).name}-chaos")
    url = server.get_uri(driver="asyncpg")
    engine = create_async_engine(url)
    await create_schema(engine)
    await engine.dispose()

    def restart(*, crash: bool) -> None:
        if crash:
            process = server.get_postmaster_info().process
            process.send_signal(signal.SIGQUIT)
            process.wait()
        else:
            server.stop()
        server.ensure_postgres_running()

    try:
        yield Ground(url, restart, partial(terminate_others, url))
    finally:
        await asyncio.to_thread(server.cleanup)


def deck_of(ground: Ground, seconds: float) -> tuple[Card, ...]:
    """What the killer does, each once before anything comes again; to processes more often where there is time."""
    processes = PROCESSES if seconds <= SECONDS else PROCESSES * 2
    if not ground.is_postgresql:
        return (*processes, "lock")
    return (*processes, "drop") if ground.restart is None else (*processes, "drop", "restart")


async def chaos(kind: Kind, seed: int, seconds: float, folder: Path) -> Report:
    async with ground_of(kind) as ground:
        reactors = 2 if seconds <= SECONDS else 3
        plan = planned(seed, seconds, deck=deck_of(ground, seconds), reactors=reactors, publishers=2)
        return await episode(ground, plan, folder, seconds=seconds, pace=PACE)


def wanted() -> list[tuple[int, float]]:
    """The episodes, each with its seed and how long the killer is at work: one, if no other is asked for."""
    if ASKED is None:
        return [(SEED, SECONDS)]
    first = int(os.environ.get("REFLEXR_CHAOS_SEED") or random.randrange(1_000_000))
    episodes = math.ceil(float(ASKED) / LONGEST)
    return [(first + number, max(float(ASKED) / episodes, SHORTEST)) for number in range(episodes)]


@pytest.mark.timeout(120 if ASKED is None else 0)
@pytest.mark.parametrize("kind", KINDS)
async def test_after_a_chaos_decisions_and_runs_are_what_they_must_be_and_nothing_is_left(
    kind: Kind, tmp_path: Path
) -> None:
    for seed, seconds in wanted():
        folder = tmp_path / str(seed)
        folder.mkdir()
        report = await chaos(kind, seed, seconds, folder)
        told = f"{kind}, {seconds:.1f} s from seed {seed}, written down in {folder}:\n  {report}\n"
        sys.stdout.write(told)
        assert not report.differences, told
        for deed in ("kill reactor", "pause reactor", "end reactor", "kill publisher", "pause publisher"):
            assert report.deeds[deed], told
        assert report.deeds["lock" if kind == "sqlite" else "drop"], told
        assert kind == "sqlite" or NAMED or report.deeds["restart"] + report.deeds["crash"], told
        for what in (
            "firings",
            "runs retried",
            "attempts abandoned",
            "events emitted by retried runs",
            "pauses",
            "pauses answered",
        ):
            assert report.counts[what], told


async def test_a_process_that_ends_by_itself_is_told_of(tmp_path: Path) -> None:
    stranger = Rule(name="chaos:stranger", when=on(Ping).where(predicate("unheard-of")), then=run("work"))
    async with ground_of("sqlite") as ground:
        settings = Settings(url=ground.url, folder=tmp_path, seed=SEED, rules=[stranger], pace=1)
        async with nursery(settings) as wards:
            await wards.do("start", "reactor-0.1")
            await wards.end()
    assert wards.died == ["reactor-0.1 ended with 1"]
    (trouble,) = entries_of(settings.journal)
    assert isinstance(trouble, Trouble)
    assert "unheard-of" in trouble.text


# --- What is left


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lease_that_is_live_is_noticed(kind: Kind) -> None:
    async with prepared(kind) as engine, SqlStorage(engine) as storage:
        await storage.acquire([LeaseKey(WORKSPACES[0], "evaluation")], "somebody", timedelta(hours=1))
        await storage.acquire([LeaseKey(WORKSPACES[1], "evaluation")], "a dead one", timedelta(microseconds=1))
        await storage.close()
        await engine.dispose()
        found = await residue(Ground(engine.url.render_as_string(hide_password=False)))
    assert found == ["a lease is live: 'evaluation' in 'north', of 'somebody'"]


async def test_a_connection_and_its_locks_are_noticed() -> None:
    async with prepared("postgresql") as engine, engine.connect() as connection:
        await connection.execute(text("SELECT * FROM reflexr_workspaces FOR UPDATE"))
        (found,) = await residue(Ground(engine.url.render_as_string(hide_password=False)), looks=1)
    assert "is idle in transaction with" in found
    assert "FOR UPDATE" in found


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("BEGIN IMMEDIATE", "the file is locked: database is locked"),
        ("BEGIN", "somebody is still reading the file"),
    ],
)
async def test_a_writer_and_a_reader_of_the_file_are_noticed(statement: str, told: str) -> None:
    async with prepared("sqlite") as engine:
        url = engine.url.render_as_string(hide_password=False)
        await engine.dispose()
        with closing(sqlite3.connect(str(engine.url.database), isolation_level=None)) as other:
            other.execute("INSERT INTO reflexr_leases VALUES ('t', 'w', 'l', 'h', 0), ('t', 'w', 'm', 'h', 0)")
            other.execute(statement)
            other.execute("SELECT * FROM reflexr_leases").fetchone()
            assert await residue(Ground(url)) == [told]


# --- What is planned


def test_the_same_seed_plans_the_same_and_another_does_not() -> None:
    def plan(seed: int) -> object:
        return planned(seed, 30, deck=(*PROCESSES, "drop", "restart"), reactors=3, publishers=2)

    assert plan(1) == plan(1) != plan(2)


@pytest.mark.parametrize("seed", range(20))
def test_the_rules_of_a_seed_are_of_every_kind(seed: int) -> None:
    rules = rules_of(seed)
    assert {type(rule.when.pattern) for rule in rules} == {Each, Count, Sequence, Absence}
    assert any(rule.when.throttle for rule in rules)
    assert any(rule.when.dedupe for rule in rules)
    assert any(rule.timeout for rule in rules)
    assert {rule.ordering for rule in rules} == {"scope", "none"}
    assert {rule.on_dead_letter for rule in rules} == {"continue", "block"}
    assert {rule.on_pause for rule in rules if rule.then.params.get("asks")} == {"continue", "block"}
