"""Members of a broadcast that keep what they are offered, and a storage that counts, hesitates and fails."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import override

from reflexr.core import Envelope
from reflexr.fastapi.broadcasts import Broadcasts
from reflexr.workspace import InMemoryStorage, LogWindow, StorageError, Transaction, WorkspaceRef


class Listening:
    """A member that keeps what it is offered, and that can be waited for."""

    def __init__(self, after_seq: int = 0, types: Iterable[str] | None = None) -> None:
        self.after_seq = after_seq
        self.types = None if types is None else frozenset(types)
        self.frames: list[str] = []
        self.is_lost = False
        self._happened = asyncio.Event()

    @property
    def seqs(self) -> list[int]:
        """The places of what it was offered."""
        return [json.loads(frame)["envelope"]["seq"] for frame in self.frames]

    def offer(self, frame: str) -> None:
        """Keeps a frame."""
        self.frames.append(frame)
        self._happened.set()

    def lose(self) -> None:
        """Keeps in mind that it is lost."""
        self.is_lost = True
        self._happened.set()

    async def until(self, holds: Callable[["Listening"], bool]) -> None:
        """Waits until something holds of it."""
        while not holds(self):
            self._happened.clear()
            await self._happened.wait()

    async def has(self, number: int) -> None:
        """Waits until it was offered so many frames."""
        await self.until(lambda _: len(self.frames) >= number)


class Gate:
    """What is passed at once while it is open.

    Attributes:
        reached: Somebody came to it since it was shut.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._is_open = asyncio.Event()
        self._is_open.set()

    def shut(self) -> None:
        """Holds up whoever comes, from now on."""
        self.reached.clear()
        self._is_open.clear()

    def open(self) -> None:
        """Lets everybody pass."""
        self._is_open.set()

    async def passed(self) -> None:
        """Waits until it is open."""
        self.reached.set()
        await self._is_open.wait()


class TrialStorage(InMemoryStorage):
    """Counts its reads of the log, and suspends, waits or fails in them as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.reading, self.writing = Gate(), Gate()
        self.hesitation: Callable[[], int] = lambda: 1
        self.is_broken = False
        self.writes_fail = False
        self.fails_when_cancelled = False

    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        self.reads += 1
        try:
            await self.reading.passed()
            for _ in range(self.hesitation()):
                await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            if self.fails_when_cancelled:
                raise StorageError("the connection broke") from error
            raise
        if self.is_broken:
            raise StorageError("the disk is gone")
        return await super().read(workspace, window)

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        await self.writing.passed()
        if self.writes_fail:
            raise StorageError("the disk is full")
        async with super().transaction(workspace) as transaction:
            yield transaction


@contextmanager
def joined(broadcasts: Broadcasts, workspace: WorkspaceRef, *members: Listening) -> Generator[None]:
    """Has members join until the block ends."""
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(broadcasts.join(workspace, member))
        yield
