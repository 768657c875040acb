"""Processes that carry out the voyage until they are killed: `python voyagers.py URL FOLDER`. They tell by lines.

It is a program of its own, and no module of the tests.
"""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from harbour import Arrived, Harbour, rule
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from voyage import ASKING, BRANCHES, Do, Log, others_are_saved, voyage

from reflexr.agent import GraphAction, StepReaction
from reflexr.core import RetryPolicy
from reflexr.sql import SqlStorage
from reflexr.workspace import Reaction

AS_OFTEN_AS_IT_TAKES: Final = RetryPolicy(max_attempts=100, backoff=timedelta())


def tell(word: object) -> None:
    """Tells the test something."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def crew(did: Path, victim: str) -> Do:
    """Does what steps do, writes it down, and stops at the victim: there it tells which process it is, and waits.

    On a ship whose name says that it asks, some of the steps ask, and then do more: that is `step!`.
    """
    at_work: set[str] = set()

    async def do(step: str, reaction: Reaction[Any]) -> None:
        ship = str(reaction.scope["ship"])
        asking = ASKING if ship.startswith("asking") else frozenset[str]()
        write(ship, step)
        at_work.add(step)
        if step == victim:
            await stop(reaction, step, *asking)
        if victim == "branches" and step in BRANCHES:
            if at_work >= BRANCHES:
                tell(os.getpid())
            await asyncio.Event().wait()
        if step in asking:
            assert isinstance(reaction, StepReaction)
            await reaction.ask({"may": step})
            write(ship, f"{step}!")
            if victim == f"{step}!":
                await stop(reaction, step)

    async def stop(reaction: Reaction[Any], step: str, *asking: str) -> None:
        if step in BRANCHES:
            await others_are_saved(reaction, step, *asking)
        tell(os.getpid())
        await asyncio.Event().wait()

    def write(ship: str, what: str) -> None:
        with did.open("a") as written:
            written.write(f"{ship} {what}\n")

    return do


async def sail(engine: AsyncEngine, did: Path, victim: str, *, ship: str | None = None) -> None:
    """Carries out what there is to do, first of all a ship's voyage if one is named."""
    async with SqlStorage(engine, listen=False) as storage:
        harbour = Harbour(storage)
        if ship is not None:
            await harbour.publish(Arrived(ship=ship))
        action = GraphAction(voyage(crew(did, victim)), name="voyage", state=Log, inputs=lambda _: "Argo")
        await harbour.reactor(action, rule(retry=AS_OFTEN_AS_IT_TAKES)).settle()
    await engine.dispose()


def main(url: str, did: str) -> None:
    """Forks off a process for each line, which names the step at which it is killed, and says when it is gone.

    They are forked off a process that has done it all once, and has nothing open: everything is imported, and every
    statement compiled.
    """
    engine = create_async_engine(url)
    asyncio.run(sail(engine, Path(did), "none", ship="first"))
    tell("ready")
    for victim in map(str.strip, sys.stdin):
        if (child := os.fork()) == 0:
            asyncio.run(sail(engine, Path(did), victim))
            os._exit(0)
        os.waitpid(child, 0)
        tell("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
