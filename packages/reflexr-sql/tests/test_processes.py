"""Several processes on one database, and what becomes of it when they, or the server, die."""

import asyncio
import os
import random
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import batched
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.core import Envelope
from reflexr.sql import SqlStorage, create_schema
from reflexr.workspace import LogWindow, WorkspaceRef

from .servers import Kind, embedded, engine_of

KINDS: Final[tuple[Kind, ...]] = ("sqlite", "postgresql")
REF: Final = WorkspaceRef("acme", "processes")
PROGRAM: Final = Path(__file__).with_name("publishers.py")
EACH: Final = 10_000
KILLS: Final = 100
"""How often a process is killed on each of the two databases."""

BATCH: Final = 3
"""How many events a process publishes together that is killed."""

WHILE: Final = 0.02
"""How many seconds it goes on at most after the first: some batches."""

RESTARTS: Final = 3
LONG: Final = 50.0
"""How many seconds a test waits at most for what another process tells."""

AT_ONCE: Final = 10.0
"""How many it waits at most where nothing is to be waited for, on a machine with much else to do."""


class Publisher:
    """Another process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def line(self, within: float = LONG) -> str:
        """Returns what it tells next, within so many seconds, and nothing once it has ended."""
        assert self._process.stdout is not None
        async with asyncio.timeout(within):
            return (await self._process.stdout.readline()).decode().strip()

    async def lines(self) -> list[str]:
        """Returns all that it still tells until it has ended by itself."""
        lines: list[str] = []
        while line := await self.line():
            lines.append(line)
        assert await self._process.wait() == 0
        return lines

    def say(self, line: str = "") -> None:
        """Tells it something."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def end_input(self) -> None:
        """Tells it that there is no more to tell."""
        assert self._process.stdin is not None
        self._process.stdin.close()


@asynccontextmanager
async def process(work: str, engine: AsyncEngine, *more: object) -> AsyncGenerator[Publisher]:
    """Starts another process, which is gone once the block ends, with all that it forked off."""
    url = engine.url.render_as_string(hide_password=False)
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        work,
        url,
        *map(str, more),
        stdin=PIPE,
        stdout=PIPE,
        limit=2**24,
        start_new_session=True,
    )
    try:
        yield Publisher(started)
    finally:
        if started.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
        await started.wait()


async def log_of(engine: AsyncEngine) -> list[Envelope]:
    async with SqlStorage(engine, listen=False) as storage:
        return await storage.read(REF, LogWindow())


def check(log: list[Envelope]) -> None:
    """Whether a log is one: each place taken once, and no time before the one before."""
    assert [envelope.seq for envelope in log] == list(range(1, len(log) + 1))
    times = [envelope.ts for envelope in log]
    assert times == sorted(times)


@pytest.mark.parametrize("kind", KINDS)
async def test_two_processes_publish_at_once_and_a_third_sees_each_event_once_and_in_order(kind: Kind) -> None:
    async with (
        engine_of(kind) as engine,
        process("subscribe", engine, 2 * EACH) as subscriber,
        process("publish", engine, "a", EACH) as one,
        process("publish", engine, "b", EACH) as other,
    ):
        assert [await each.line() for each in (subscriber, one, other)] == ["ready"] * 3
        one.say()
        other.say()
        assert await one.lines() == await other.lines() == ["done"]
        (seen,) = await subscriber.lines()
        log = await log_of(engine)
    check(log)
    assert {envelope.id for envelope in log} == {f"{name}-{number}" for name in "ab" for number in range(EACH)}
    assert seen.split() == [f"{envelope.seq}:{envelope.id}" for envelope in log]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_process_that_is_killed_while_it_publishes_leaves_what_was_acknowledged_and_no_half(
    kind: Kind, tmp_path: Path
) -> None:
    chance = random.Random(7)
    names = [f"p{number}" for number in range(KILLS)]
    async with engine_of(kind) as engine, process("fork", engine, tmp_path) as parent:
        await parent.line()
        for name in names:
            parent.say(name)
            # It works at once, whatever the one before left behind.
            victim = int(await parent.line(AT_ONCE))
            # Nothing is waited for: this is where in the middle.
            await asyncio.sleep(chance.random() * WHILE)
            os.kill(victim, signal.SIGKILL)
            assert await parent.line() == "ended"
        parent.end_input()
        await parent.lines()
        log = await log_of(engine)
    check(log)
    diaries = {name: Counter((tmp_path / name).read_text().split()) for name in ("parent", *names)}
    ids = [envelope.id for envelope in log]
    # A server may still be at work for a process that was killed when the next one publishes.
    assert all(len({one.partition("-")[0] for one in batch}) == 1 for batch in batched(ids, BATCH))
    for name, diary in diaries.items():
        own = [one for one in ids if one.partition("-")[0] == name]
        assert own == [f"{name}-{number}" for number in range(len(own))]
        assert len(own) in (BATCH * diary["acknowledged"], BATCH * diary["begun"])
    assert sum(diary["begun"] > diary["acknowledged"] for diary in diaries.values()) > KILLS // 2


async def test_a_server_that_is_restarted_costs_publishers_errors_at_most() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = embedded(f"{Path(folder).name}-restarted")
        engine = create_async_engine(server.get_uri(driver="asyncpg"))
        await create_schema(engine)
        published: dict[str, set[str]] = {"a": set(), "b": set()}
        failures: list[str] = []
        async with process("trouble", engine, "a") as one, process("trouble", engine, "b") as other:
            publishers = {"a": one, "b": other}

            async def follow(name: str, number: int) -> None:
                """Waits until so many more are published."""
                more = 0
                while more < number:
                    word, what = (await publishers[name].line()).split()
                    if word == "published":
                        published[name].add(f"{name}-{what}")
                        more += 1
                    else:
                        failures.append(what)

            for _ in range(RESTARTS):
                await asyncio.gather(follow("a", 20), follow("b", 20))
                await asyncio.to_thread(restart, server)
            await asyncio.gather(follow("a", 20), follow("b", 20))
            for name, publisher in publishers.items():
                publisher.end_input()
                for word, what in map(str.split, await publisher.lines()):
                    if word == "published":
                        published[name].add(f"{name}-{what}")
        log = await log_of(engine)
        await engine.dispose()
        server.cleanup()
    check(log)
    ids = [envelope.id for envelope in log]
    assert len(ids) == len(set(ids))
    assert published["a"] | published["b"] <= set(ids)
    # A publish that looks for its event once the server is back need not even tell.
    assert set(failures) <= {"DatabaseUnavailableError", "DatabaseBusyError"}


def restart(server: Any) -> None:
    """Stops the server, whoever is connected, and starts it again."""
    server.stop()
    server.ensure_postgres_running()
