"""The killer: does what the plan says to the processes and to the database."""

import asyncio
import os
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from .journal import Done, Journal
from .nursery import Settings
from .plans import Act

PATIENCE: Final = 60.0
"""How many seconds the nursery has at most for an answer."""

LOCKED: Final = 0.3
"""For how many seconds the database is locked."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The database of an episode, empty and with all its tables.

    Attributes:
        url: Where it is.
        restart: Stops the server, as it wishes or at once (`crash`), and starts it again; `None` for one that is not
            ours to restart.
        drop: Has the server hang up on everybody; `None` for a file.
    """

    url: str
    restart: Callable[..., None] | None = None
    drop: Callable[[], Awaitable[None]] | None = None

    @property
    def is_postgresql(self) -> bool:
        """Whether it is PostgreSQL, rather than SQLite."""
        return self.url.startswith("postgresql")


class Wards:
    """The processes of an episode, through the nursery that has them.

    Attributes:
        living: Those that were started and are not gone yet.
        died: Who ended without having been told to, or not well, and with what status.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._paused: set[str] = set()
        self._told: set[str] = set()
        self.living: list[str] = []
        self.died: list[str] = []

    async def do(self, deed: str, name: str) -> bool:
        """Has something done to a process, and returns whether there is one of this name."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{deed} {name}\n".encode())
        while (answer := (await self.answer()).split())[0] == "died":
            self._gone(answer[1], answer[2])
        match answer:
            case ["start", _]:
                self.living.append(name)
            case ["kill", _]:
                self._gone(name, "0")
            case ["await", _, status]:
                self._gone(name, status)
            case ["pause", _]:
                self._paused.add(name)
            case ["resume", _]:
                self._paused.discard(name)
            case ["end", _]:
                self._told.add(name)
            case _:
                return False
        return True

    async def answer(self) -> str:
        """Returns what the nursery says next."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return (await self._process.stdout.readline()).decode().strip()

    async def end(self) -> None:
        """Ends everybody: some reactors by force, as those who are paused; the others are told to, and waited for."""
        for number, name in enumerate(list(self.living)):
            by_force = name in self._paused or (name.startswith("reactor") and number % 2 == 1)
            if name not in self._told:
                await self.do("kill" if by_force else "end", name)
        for name in list(self.living):
            await self.do("await", name)

    def _gone(self, name: str, status: str) -> None:
        self.living.remove(name)
        if status != "0":
            self.died.append(f"{name} ended with {status}")


@asynccontextmanager
async def nursery(settings: Settings) -> AsyncGenerator[Wards]:
    """Starts the nursery of an episode; when the block ends, everybody in it is gone."""
    path = settings.folder / "settings.json"
    path.write_text(settings.model_dump_json())
    here = Path(__file__).parent
    paths = [str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"{here.name}.nursery", str(path), stdin=PIPE, stdout=PIPE, env=environment
    )
    try:
        wards = Wards(started)
        assert await wards.answer() == "ready"
        yield wards
    finally:
        assert started.stdin is not None
        # It kills who is left, and ends.
        started.stdin.close()
        await started.wait()


@dataclass(slots=True)
class Killer:
    """Carries out the acts of a plan.

    Attributes:
        done: What it did, with how often.
    """

    ground: Ground
    wards: Wards
    journal: Journal
    done: Counter[str] = field(default_factory=Counter[str])

    async def carry_out(self, acts: tuple[Act, ...], seconds: float) -> None:
        """Does one act after another, each when it is due, and returns after so many seconds."""
        now = 0.0
        for act in acts:
            await asyncio.sleep(act.at - now)
            await self._do(act)
            now = act.at
        await asyncio.sleep(seconds - now)

    async def _do(self, act: Act) -> None:
        match act.deed:
            case "drop":
                assert self.ground.drop is not None
                await self.ground.drop()
            case "restart" | "crash":
                assert self.ground.restart is not None
                await asyncio.to_thread(self.ground.restart, crash=act.deed == "crash")
            case "lock":
                await lock(self.ground.url)
            case _:
                if not await self.wards.do(act.deed, act.name):
                    return
        self.journal.write(Done(by="killer", deed=f"{act.deed} {act.name}".strip()))
        kind = act.deed if not act.name else f"{act.deed} {act.name.partition('-')[0]}"
        self.done[kind] += 1


async def lock(url: str) -> None:
    """Keeps everybody else from writing to the file for a while, unless somebody who is paused does already."""

    def hold() -> None:
        path = str(make_url(url).database)
        with closing(sqlite3.connect(path, isolation_level=None, timeout=LOCKED)) as connection:
            with suppress(sqlite3.OperationalError):
                connection.execute("BEGIN IMMEDIATE")
            time.sleep(LOCKED)

    await asyncio.to_thread(hold)
