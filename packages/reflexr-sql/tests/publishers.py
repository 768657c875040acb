"""What other processes do, for the tests of several: `python publishers.py WORK URL ...`. They tell by lines.

It is a program of its own, and no module of the tests.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.core import Event, SourceActor
from reflexr.sql import SqlStorage, create_sqlite_engine
from reflexr.workspace import NewEvent, StorageError, Workspace, WorkspaceRef, Workspaces

BATCH: Final = 100
"""How many events are published together."""

SMALL: Final = 3
"""How many by a process that is killed."""

REF: Final = WorkspaceRef("acme", "processes")


class ProcessEvent(Event, abstract=True, event_namespace="sqlprocess"):
    """The events of these processes."""


class Counted(ProcessEvent):
    """One of the events of a process, in order."""

    number: int


def tell(*words: object) -> None:
    """Tells the test something."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def engine_of(url: str) -> AsyncEngine:
    """An engine on the test's database."""
    return create_sqlite_engine(url, synchronous="OFF") if url.startswith("sqlite") else create_async_engine(url)


@asynccontextmanager
async def opened(engine: AsyncEngine, *, listen: bool = True) -> AsyncGenerator[Workspace]:
    """Opens the workspace in which everything happens."""
    async with SqlStorage(engine, listen=listen) as storage:
        yield Workspaces(storage, events=[Counted]).handle(REF, actor=SourceActor(name="process"))
    await engine.dispose()


def batch(name: str, first: int, size: int = BATCH) -> list[NewEvent]:
    """The next events of a process."""
    return [NewEvent(Counted(number=number), id=f"{name}-{number}") for number in range(first, first + size)]


async def publish(url: str, name: str, number: int) -> None:
    """Publishes so many events, once the test says so."""
    async with opened(engine_of(url)) as workspace:
        await workspace.head_seq()
        tell("ready")
        sys.stdin.readline()
        for first in range(0, number, BATCH):
            await workspace.publish_many(batch(name, first))
        tell("done")


async def subscribe(url: str, number: int) -> None:
    """Follows the log for so many events, and says what it saw of each."""
    async with opened(engine_of(url)) as workspace, aclosing(workspace.subscribe()) as feed:
        tell("ready")
        seen: list[str] = []
        async for envelope in feed:
            seen.append(f"{envelope.seq}:{envelope.id}")
            if len(seen) == number:
                break
    tell(*seen)


async def publish_small(engine: AsyncEngine, name: str, diary: Path, batches: Iterable[int]) -> None:
    """Publishes small batches, one after another, and tells after the first which process it is.

    It writes down when each begins and when it is acknowledged: that wakes nobody, so it is killed anywhere rather than
    where it tells something.
    """
    with diary.open("w", buffering=1) as written:
        # It does nothing but publish: opening a link for wake-ups would take most of its time.
        async with opened(engine, listen=False) as workspace:
            for number in batches:
                written.write("begun\n")
                await workspace.publish_many(batch(name, SMALL * number, SMALL))
                written.write("acknowledged\n")
                if number == 0:
                    tell(os.getpid())


async def publish_through_trouble(url: str, name: str) -> None:
    """Publishes one event after another until the test ends its input; tries each again that failed.

    It says what became of each: that it is there, or which error of ours there was. Any other error ends it.
    """
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    async with opened(engine_of(url)) as workspace:
        number = 0
        while not ended.done():
            (event,) = batch(name, number, 1)
            try:
                await workspace.publish(event.event, id=event.id)
            except StorageError as error:
                tell("failed", type(error).__name__)
                # A server that is not there says so at once.
                await asyncio.sleep(0.01)
            else:
                tell("published", number)
                number += 1


def fork_publishers(url: str, folder: Path) -> None:
    """Starts a process that publishes until it is killed for each line, which is its name, and says when it is gone.

    They are forked off a process that has published once, and has nothing open: everything is imported, and every
    statement compiled.
    """
    engine = engine_of(url)
    asyncio.run(publish_small(engine, "parent", folder / "parent", range(1)))
    for name in map(str.strip, sys.stdin):
        if (child := os.fork()) == 0:
            asyncio.run(publish_small(engine, name, folder / name, count()))
        os.waitpid(child, 0)
        tell("ended")


def main(work: str, url: str, *more: str) -> None:
    """Does what the test asks for."""
    match work, more:
        case "publish", (name, number):
            asyncio.run(publish(url, name, int(number)))
        case "subscribe", (number,):
            asyncio.run(subscribe(url, int(number)))
        case "fork", (folder,):
            fork_publishers(url, Path(folder))
        case _:
            asyncio.run(publish_through_trouble(url, more[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
