"""An agent in workflows of DBOS, on PostgreSQL, whose processes are killed while it runs."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.core import Run
from reflexr.sql import SqlStorage, create_schema

from .harbour import Arrived, Harbour, Moored
from .test_graph_processes import server_url

pytestmark = pytest.mark.timeout(300)

PROGRAM: Final = Path(__file__).with_name("dbos_pilots.py")
LONG: Final = 50.0
"""How many seconds a test waits at most for what another process tells."""

ANSWERS: Final = (1, 2, 3, 4)
"""The model's answers: an event, what it reads, another event, and the end."""

MANY: Final = 10
"""How many runs are cut off together."""


class Pilots:
    """Another process, which forks off those that are killed."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def line(self) -> str:
        """Returns what it tells next."""
        assert self._process.stdout is not None
        async with asyncio.timeout(LONG):
            return (await self._process.stdout.readline()).decode().strip()

    def say(self, line: str) -> None:
        """Tells it something."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def serve(self, executor: str = "one", **options: Any) -> None:
        """Lets a process carry out what there is to do."""
        self.say(json.dumps({"executor": executor} | options))
        assert await self.line() == "ended"


class Sea:
    """A database of PostgreSQL, and what happens on it."""

    def __init__(self, engine: AsyncEngine, asked: Path, harbour: Harbour) -> None:
        self.engine = engine
        self.harbour = harbour
        self._asked = asked

    @asynccontextmanager
    async def pilots(self) -> AsyncGenerator[Pilots]:
        """Starts another process."""
        url = self.engine.url.render_as_string(hide_password=False)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), url, str(self._asked), stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        try:
            others = Pilots(process)
            assert await others.line() == "ready"
            yield others
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def kill(self, others: Pilots, executor: str = "one", **options: Any) -> None:
        """Lets a process go on until it tells that it is to be killed."""
        others.say(json.dumps({"executor": executor} | options))
        os.kill(int(await others.line()), signal.SIGKILL)
        assert await others.line() == "ended"
        await self.lapse()

    async def lapse(self) -> None:
        """Lets all leases lapse, as they would in time."""
        async with self.engine.begin() as connection:
            await connection.execute(text("UPDATE reflexr_leases SET expires = 0"))
            await connection.execute(text("UPDATE reflexr_runs SET due = 0 WHERE due IS NOT NULL"))

    def asked(self, ship: str = "Argo") -> Counter[int]:
        """How often the model was asked for each of its answers to a ship."""
        lines = (line.split() for line in self._asked.read_text().splitlines())
        return Counter(int(number) for name, number in lines if name == ship)

    async def workflows(self) -> list[tuple[str, str]]:
        """The status and the executor of each of DBOS's workflows, in the order in which they began."""
        async with self.engine.connect() as connection:
            found = await connection.execute(
                text("SELECT status, executor_id FROM dbos.workflow_status ORDER BY created_at")
            )
            return [(status, executor) for status, executor in found]


@pytest.fixture
async def sea(tmp_path: Path) -> AsyncGenerator[Sea]:
    name = f"reflexr_dbos_{os.getpid()}"
    admin = create_async_engine(server_url(), isolation_level="AUTOCOMMIT")
    async with admin.connect() as connection:
        await connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        await connection.execute(text(f"CREATE DATABASE {name}"))
    await admin.dispose()
    engine = create_async_engine(admin.url.set(database=name))
    await create_schema(engine)
    async with SqlStorage(engine, listen=False) as storage:
        yield Sea(engine, tmp_path / "asked", Harbour(storage))
    await engine.dispose()


async def run_of(sea: Sea, ship: str = "Argo") -> Run:
    (run,) = [run for run in await sea.harbour.runs() if run.scope["ship"] == ship]
    return run


async def berths(sea: Sea, ship: str = "Argo") -> list[int]:
    return [moored["berth"] for moored in await sea.harbour.log(Moored) if moored["ship"] == ship]


def asked_again(*numbers: int) -> dict[int, int]:
    """How often the model was asked, if for these answers twice."""
    return {number: 2 if number in numbers else 1 for number in ANSWERS}


async def test_an_agent_in_a_workflow_serves_a_run_as_any_other(sea: Sea) -> None:
    await sea.harbour.publish(Arrived(ship="Argo"))
    async with sea.pilots() as others:
        await others.serve()

    run = await run_of(sea)
    assert (run.status, run.output, run.attempt) == ("succeeded", "Argo is moored.", 1)
    assert await berths(sea) == [1, 2]
    assert sea.asked() == asked_again()
    assert await sea.workflows() == [("SUCCESS", "one")]


async def test_another_process_goes_on_where_one_was_killed_and_asks_for_no_answer_again_that_was_given(
    sea: Sea,
) -> None:
    async with sea.pilots() as others:
        for number in ANSWERS:
            ship = f"killed-{number}"
            await sea.harbour.publish(Arrived(ship=ship))
            await sea.kill(others, "one", victim=number)
            await others.serve("two")

            run = await run_of(sea, ship)
            assert (run.status, run.output, run.attempt) == ("succeeded", f"{ship} is moored.", 2)
            assert await berths(sea, ship) == [1, 2]
            assert sea.asked(ship) == asked_again(number)
    assert await sea.workflows() == [("SUCCESS", "two")] * len(ANSWERS)


async def test_processes_that_are_killed_one_after_another_and_come_back_go_on_with_one_workflow(sea: Sea) -> None:
    await sea.harbour.publish(Arrived(ship="Argo"))
    async with sea.pilots() as others:
        for number in ANSWERS:
            await sea.kill(others, victim=number)
        await others.serve()

    run = await run_of(sea)
    assert (run.status, run.output) == ("succeeded", "Argo is moored.")
    assert await berths(sea) == [1, 2]
    assert sea.asked() == asked_again(*ANSWERS)
    assert await sea.workflows() == [("SUCCESS", "one")]


async def test_many_runs_that_were_cut_off_together_go_on(sea: Sea) -> None:
    ships = [f"ship-{number}" for number in range(MANY)]
    await sea.harbour.publish(*(Arrived(ship=ship) for ship in ships))
    async with sea.pilots() as others:
        await sea.kill(others, "one", victim=3, ships=MANY)
        await others.serve("two")

    for ship in ships:
        run = await run_of(sea, ship)
        assert (run.status, run.output) == ("succeeded", f"{ship} is moored.")
        assert await berths(sea, ship) == [1, 2]
        assert sea.asked(ship) == asked_again(3)


async def test_what_was_done_and_not_recorded_is_not_done_again(sea: Sea) -> None:
    await sea.harbour.publish(Arrived(ship="Argo"))
    async with sea.pilots() as others:
        await sea.kill(others, "one", end=True)
        await others.serve("two")

    run = await run_of(sea)
    assert (run.status, run.output, run.attempt) == ("succeeded", "Argo is moored.", 2)
    assert sea.asked() == asked_again()


async def test_an_attempt_that_is_cut_off_in_a_process_that_lives_is_gone_on_with(sea: Sea) -> None:
    await sea.harbour.publish(Arrived(ship="Argo"))
    async with sea.pilots() as others:
        await others.serve(cut_off=3)

    run = await run_of(sea)
    assert (run.status, run.output, run.attempt) == ("succeeded", "Argo is moored.", 2)
    assert await berths(sea) == [1, 2]
    assert sea.asked() == asked_again(3)
    assert await sea.workflows() == [("SUCCESS", "one")]


async def test_after_an_attempt_that_failed_another_workflow_begins(sea: Sea) -> None:
    await sea.harbour.publish(Arrived(ship="Argo"))
    async with sea.pilots() as others:
        await others.serve(failure=3)

    run = await run_of(sea)
    assert (run.status, run.output, run.attempt) == ("succeeded", "Argo is moored.", 2)
    assert await berths(sea) == [1, 2]
    assert sea.asked() == asked_again(1, 2, 3)
    assert await sea.workflows() == [("ERROR", "one"), ("SUCCESS", "one")]


async def test_another_version_of_the_application_begins_another_workflow(sea: Sea) -> None:
    await sea.harbour.publish(Arrived(ship="Argo"))
    async with sea.pilots() as others:
        await sea.kill(others, "one", victim=3)
        await others.serve("two", version="2")

    run = await run_of(sea)
    assert (run.status, run.output) == ("succeeded", "Argo is moored.")
    assert await berths(sea) == [1, 2]
    assert sea.asked() == asked_again(1, 2, 3)
    assert await sea.workflows() == [("PENDING", "one"), ("SUCCESS", "two")]


async def test_what_dbos_recovers_by_itself_waits_for_the_runs_next_attempt(sea: Sea) -> None:
    await sea.harbour.publish(Arrived(ship="Argo"))
    async with sea.pilots() as others:
        await sea.kill(others, victim=3)
        await others.serve(recovered=True)

    run = await run_of(sea)
    assert (run.status, run.output, run.attempt) == ("succeeded", "Argo is moored.", 2)
    assert sea.asked() == asked_again(3)
    assert await sea.workflows() == [("SUCCESS", "one")]


async def test_a_process_that_was_overtaken_while_it_stood_still_does_nothing_more(sea: Sea) -> None:
    await sea.harbour.publish(Arrived(ship="Argo"))
    async with sea.pilots() as others, sea.pilots() as overtaking:
        others.say(json.dumps({"executor": "one", "victim": 2, "lives": True}))
        await others.line()
        await sea.lapse()
        await overtaking.serve("two")
        others.say("go on")
        assert await others.line() == "ended"

    run = await run_of(sea)
    assert (run.status, run.output, run.attempt) == ("succeeded", "Argo is moored.", 2)
    assert await berths(sea) == [1, 2]
    assert sea.asked() == asked_again(2)
    assert await sea.workflows() == [("SUCCESS", "two")]


async def test_a_run_that_asks_is_asked_for_once_and_goes_on_with_its_answer(sea: Sea) -> None:
    await sea.harbour.publish(Arrived(ship="Argo"))
    async with sea.pilots() as others:
        await sea.kill(others, "one", asks=True, end=True)
        await others.serve("two", asks=True)
        paused = await run_of(sea)
        await (await sea.harbour.open()).resume_run(paused.id, answer="It may.")
        await others.serve("two", asks=True)

    run = await run_of(sea)
    assert (paused.status, run.status, run.output) == ("paused", "succeeded", "It may.")
    assert await sea.workflows() == [("SUCCESS", "one"), ("SUCCESS", "two")]


async def test_pydantic_ais_wrapper_begins_no_workflow_as_it_writes_down_its_deps_and_a_reaction_cannot_be(
    sea: Sea,
) -> None:
    await sea.harbour.publish(Arrived(ship="Argo"))
    async with sea.pilots() as others:
        await others.serve(wrapped=True)

    assert (await run_of(sea)).status == "dead_lettered"
    assert await sea.workflows() == []
