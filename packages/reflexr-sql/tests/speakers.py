"""What another process does whose runs say something: `python speakers.py URL`. It tells by lines.

It is a program of its own. The test imports nothing of it but what that process reacts to.
"""

import asyncio
import sys
from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import create_async_engine

from reflexr.core import Event, Rule, on, run
from reflexr.sql import PostgresLiveOutput, SqlStorage
from reflexr.workspace import Reaction, Reactor, Workspaces

WORDS: Final = 200
"""How many deltas a run says."""

LONG: Final = 20.0
"""How many seconds it waits at most for somebody who listens."""


class SpeakingEvent(Event, abstract=True, event_namespace="sqlspeaking"):
    """What this process reacts to."""


class Asked(SpeakingEvent):
    """An event whose run says something."""


RULE: Final = Rule(name="sqlspeaking:answer", when=on(Asked), then=run("answer"))


def tell(*words: object) -> None:
    """Tells the test something."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def answer(reaction: Reaction[None]) -> None:
    """Says its words once somebody listens."""
    async with asyncio.timeout(LONG):
        while True:
            if reaction.live.is_heard:
                break
            # Nothing tells a run that somebody has begun to listen: it asks again.
            await asyncio.sleep(0.005)
    for number in range(1, WORDS + 1):
        reaction.live.send(f"{number} ")
        await asyncio.sleep(0)


async def main(url: str) -> None:
    """Serves until the test ends its input."""
    engine = create_async_engine(url)
    stop = asyncio.Event()
    async with (
        SqlStorage(engine, poll_interval=timedelta(milliseconds=50)) as storage,
        PostgresLiveOutput(engine) as live_output,
        asyncio.TaskGroup() as tasks,
    ):
        workspaces = Workspaces(storage, events=[Asked], rules=[RULE], live_output=live_output)
        tasks.create_task(Reactor(workspaces, actions={"answer": answer}).serve(stop))
        tell("serves")
        await asyncio.to_thread(sys.stdin.read)
        stop.set()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
