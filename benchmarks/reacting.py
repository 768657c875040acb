"""How soon a process reacts to another's publish: `python -m benchmarks.reacting URL DSN` is that other process."""

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median

from reflexr.core import Rule, on, run
from reflexr.sql import SqlStorage
from reflexr.workspace import Reaction, Reactor, Workspaces

from .databases import connect, database, dsn_of, engine_of, url_of
from .deciding import ServiceError
from .harness import Sides, benchmark
from .storage import events, handle_on

TIMES = 20
REST = 0.1
"""How many seconds the other process has to come to rest."""

RULE = Rule(name="bench:at-once", when=on(ServiceError), then=run("tell"))


@benchmark("publish in one process to action start in another, PostgreSQL, to a NOTIFY round trip", at_most=10)
async def reaction_of_another_process() -> AsyncGenerator[Sides]:
    """The median time from the call to the action's first line, with nothing else to do."""
    async with database("postgresql") as engine, SqlStorage(engine) as storage, AsyncExitStack() as stack:
        other = await stack.enter_async_context(_other_process(url_of(engine), dsn_of(engine)))
        connection = await connect(dsn_of(engine))
        stack.push_async_callback(connection.close)
        answered = asyncio.Event()
        await connection.add_listener("bench_pong", lambda *_: answered.set())
        workspace = handle_on(storage)
        (event,) = events(1)

        async def round_trip() -> float:
            times: list[float] = []
            for _ in range(TIMES):
                answered.clear()
                began = time.perf_counter()
                await connection.execute("NOTIFY bench_ping")
                await answered.wait()
                times.append(time.perf_counter() - began)
                # As long as the other side rests, since who has just worked answers sooner than who was idle.
                await asyncio.sleep(REST)
            return median(times)

        async def reaction() -> float:
            times: list[float] = []
            for _ in range(TIMES):
                began = time.perf_counter()
                await workspace.publish(event)
                # Both processes read the one clock of the machine.
                times.append(float(await _line(other)) - began)
                # Until the other process has nothing to do any more.
                await asyncio.sleep(REST)
            return median(times)

        yield Sides(ours=reaction, raw=round_trip)


@asynccontextmanager
async def _other_process(url: str, dsn: str) -> AsyncGenerator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.reacting", url, dsn, stdin=PIPE, stdout=PIPE
    )
    try:
        await _line(process)
        yield process
    finally:
        process.kill()
        await process.wait()


async def _line(process: Process) -> str:
    if process.stdout is None:
        raise ValueError("the other process has no output to read")
    async with asyncio.timeout(30):
        line = await process.stdout.readline()
    if not line:
        raise ValueError("the other process has ended")
    return line.decode().strip()


def _tell(what: object) -> None:
    os.write(sys.stdout.fileno(), f"{what}\n".encode())


async def _tell_time(reaction: Reaction[None]) -> None:
    _tell(time.perf_counter())


async def _react(url: str, dsn: str) -> None:
    """Answers each NOTIFY with one, and says when each action begins, until it is killed."""
    connection = await connect(dsn)
    pings = asyncio.Event()
    await connection.add_listener("bench_ping", lambda *_: pings.set())

    async def answer() -> None:
        while True:
            await pings.wait()
            pings.clear()
            await connection.execute("NOTIFY bench_pong")

    async with SqlStorage(engine_of(url)) as storage, asyncio.TaskGroup() as tasks:
        workspaces = Workspaces(storage, events=[ServiceError], rules=[RULE])
        tasks.create_task(answer())
        tasks.create_task(Reactor(workspaces, actions={"tell": _tell_time}).serve())
        await storage.wakeups.ready()
        _tell("ready")


if __name__ == "__main__":
    asyncio.run(_react(*sys.argv[1:]))
