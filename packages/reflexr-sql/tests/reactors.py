"""What other processes that react do, for the tests of several: `python reactors.py WORK URL`. They tell by lines.

It is a program of its own. The tests import nothing of it but what those processes react to.
"""

import asyncio
import os
import sys
from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import create_async_engine

from reflexr.core import Event, RetryPolicy, Rule, on, run
from reflexr.sql import SqlStorage, create_sqlite_engine
from reflexr.workspace import Reaction, Reactor, Workspaces

TTL: Final = timedelta(milliseconds=300)
"""How long the leases of these processes last."""


class DyingEvent(Event, abstract=True, event_namespace="sqldying"):
    """What these processes react to."""


class Poisoned(DyingEvent):
    """An event whose first run is the death of its process."""

    poison: bool


RULE: Final = Rule(
    name="sqldying:poison",
    when=on(Poisoned),
    then=run("act"),
    retry=RetryPolicy(max_attempts=3, backoff=timedelta()),
)


def tell(*words: object) -> None:
    """Tells the test something."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def exits(reaction: Reaction[None]) -> None:
    """Ends its process at every attempt of a poisoned run, before anything of it is recorded."""
    tell("began", reaction.envelopes[0].seq, reaction.attempt)
    if reaction.envelopes[0].payload["poison"]:
        os._exit(3)


async def hangs(reaction: Reaction[None]) -> None:
    """Is at work for ever in the first attempt of a poisoned run, so that the test can kill its process."""
    tell("began", reaction.envelopes[0].seq, reaction.attempt)
    if reaction.envelopes[0].payload["poison"] and reaction.attempt == 1:
        await asyncio.Event().wait()


async def serve(work: str, url: str, holder: str) -> None:
    """Serves until the test tells it a line."""
    engine = create_sqlite_engine(url, synchronous="OFF") if url.startswith("sqlite") else create_async_engine(url)
    stop = asyncio.Event()
    async with SqlStorage(engine, poll_interval=timedelta(milliseconds=50)) as storage, asyncio.TaskGroup() as tasks:
        workspaces = Workspaces(storage, events=[Poisoned], rules=[RULE])
        actions = {"act": exits if work == "exits" else hangs}
        tasks.create_task(Reactor(workspaces, actions=actions, holder=holder, lease_ttl=TTL).serve(stop))
        tell("serves", os.getpid())
        await asyncio.to_thread(sys.stdin.readline)
        stop.set()
    await engine.dispose()


def main(work: str, url: str) -> None:
    """Starts a process for each line, which is its reactor's name, and says how it ended.

    They are forked off, so that everything is imported once.
    """
    tell("ready")
    while holder := sys.stdin.readline().strip():
        if (child := os.fork()) == 0:
            asyncio.run(serve(work, url, holder))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        tell("ended", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
