"""The `LiveOutput` port: how what runs say reaches who listens while they say it, and the adapter for one process.

Nothing of it is stored, and nobody waits for anybody: a listener that falls behind loses the oldest deltas.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from reflexr.core import Delta, Envelope
from reflexr.workspace.refs import WorkspaceRef

DEFAULT_DELTAS: Final = 1_000
"""How many deltas wait for a listener at most, by default."""


class DeltaListener(Protocol):
    """Collects the deltas of a workspace, as many as there is room for."""

    async def take(self) -> list[Delta]:
        """Waits until there are deltas, then returns them, oldest first, and forgets them.

        Those that were lost for want of room are counted in `lost` of the next. A cancelled wait forgets nothing.
        """
        ...


class LiveOutput(Protocol):
    """Carries deltas from the runs of a workspace to its listeners."""

    def is_heard(self, workspace: WorkspaceRef) -> bool:
        """Whether somebody may listen; deltas that nobody hears need not be made."""
        ...

    def send(self, workspace: WorkspaceRef, delta: Delta) -> None:
        """Tells the listeners of a workspace. Never waits, and costs nothing where nobody listens."""
        ...

    def listen(self, workspace: WorkspaceRef) -> AbstractContextManager[DeltaListener]:
        """Listens from the moment the block is entered until it ends."""
        ...


class InProcessLiveOutput:
    """Tells the listeners of this process, at once. It is called in the event loop of those who listen."""

    def __init__(self, size: int = DEFAULT_DELTAS) -> None:
        """Begins with nobody who listens.

        Args:
            size: How many deltas wait for a listener at most, at least 1; with more the oldest are lost.
        """
        self._size = size
        self._listeners: dict[WorkspaceRef, list[_InProcessListener]] = {}

    def __len__(self) -> int:
        """How many listen."""
        return sum(map(len, self._listeners.values()))

    def is_heard(self, workspace: WorkspaceRef) -> bool:
        """Whether somebody listens."""
        return workspace in self._listeners

    def send(self, workspace: WorkspaceRef, delta: Delta) -> None:
        """Tells the listeners of a workspace."""
        for listener in self._listeners.get(workspace, ()):
            listener.add(delta)

    @contextmanager
    def listen(self, workspace: WorkspaceRef) -> Generator[DeltaListener]:
        """Listens from the moment the block is entered until it ends."""
        listener = _InProcessListener(self._size)
        self._listeners.setdefault(workspace, []).append(listener)
        try:
            yield listener
        finally:
            listeners = self._listeners[workspace]
            listeners.remove(listener)
            if not listeners:
                del self._listeners[workspace]


async def with_deltas(
    envelopes: AsyncGenerator[Envelope], live_output: LiveOutput, workspace: WorkspaceRef
) -> AsyncGenerator[Envelope | Delta]:
    """Yields envelopes, and deltas from when the first is asked for, without end; neither keeps back the other.

    What a run has said before an envelope is there comes before that envelope, but for a reader who has lost deltas
    already: it is behind, and has its envelopes first.

    Args:
        envelopes: The workspace's log, which whoever asks closes.
        live_output: What carries the deltas.
        workspace: The workspace.
    """
    with live_output.listen(workspace) as listener:
        following = asyncio.ensure_future(anext(envelopes))
        taking = asyncio.ensure_future(listener.take())
        try:
            while True:
                await asyncio.wait((following, taking), return_when=asyncio.FIRST_COMPLETED)
                deltas: list[Delta] = []
                if taking.done():
                    deltas = taking.result()
                    taking = asyncio.ensure_future(listener.take())
                is_behind = any(delta.lost for delta in deltas)
                for delta in (*deltas, None):
                    if following.done() and (is_behind or delta is None):
                        envelope = following.result()
                        following = asyncio.ensure_future(anext(envelopes))
                        yield envelope
                    if delta is not None:
                        yield delta
        finally:
            following.cancel()
            taking.cancel()
            await asyncio.gather(following, taking, return_exceptions=True)


class _InProcessListener:
    def __init__(self, size: int) -> None:
        self._size = size
        self._deltas: deque[Delta] = deque()
        self._lost = 0
        self._event = asyncio.Event()

    def add(self, delta: Delta) -> None:
        if len(self._deltas) >= self._size:
            self._lost += 1 + self._deltas.popleft().lost
        self._deltas.append(delta)
        self._event.set()

    async def take(self) -> list[Delta]:
        await self._event.wait()
        self._event.clear()
        deltas = list(self._deltas)
        self._deltas.clear()
        if self._lost:
            deltas[0] = deltas[0].model_copy(update={"lost": deltas[0].lost + self._lost})
            self._lost = 0
        return deltas
