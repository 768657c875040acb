"""Whether something of a graph's run goes on, or nothing any more but to wait."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

PATIENCE: Final = 100
"""How many turns of the event loop it takes to say that nothing more will come: pydantic-graph takes a few to begin a
step after another."""


class Activity:
    """What goes on in a graph's run."""

    def __init__(self) -> None:
        """Begins with nothing."""
        self._working = 0
        self._changes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._watching = asyncio.Lock()

    @property
    def idle(self) -> bool:
        """Whether nothing is at work at this moment."""
        return not self._working

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Runs a block that is at work."""
        self._working += 1
        self._idle.clear()
        self.stir()
        try:
            yield
        finally:
            self._working -= 1
            if not self._working:
                self._idle.set()
            self.stir()

    def stir(self) -> None:
        """Says that the graph has gone on."""
        self._changes += 1

    async def standstill(self) -> None:
        """Waits until nothing is at work and nothing more will come. Of those who wait, the first is told first."""
        async with self._watching:
            quiet, changes = 0, self._changes
            while quiet < PATIENCE:
                await self._idle.wait()
                await asyncio.sleep(0)
                quiet, changes = (quiet + 1, changes) if changes == self._changes else (0, self._changes)
