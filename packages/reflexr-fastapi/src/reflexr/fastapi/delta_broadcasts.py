"""Delta broadcasts: what runs say while they are at work, heard and written once for all connections that want it.

They are apart from the broadcasts of the logs, which nothing here holds up.
"""

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from itertools import batched
from typing import Final, Protocol

from reflexr.core import Delta, DeltaFrame, write_frame
from reflexr.workspace import LiveOutput, WorkspaceRef

BURST: Final = 100
"""How many deltas are offered at a time at most."""

_LOGGER: Final = logging.getLogger("reflexr.fastapi")


class DeltaMember(Protocol):
    """A connection that is sent deltas."""

    def offer_delta(self, delta: Delta, frame: str) -> None:
        """Takes a delta, and the frame in which it is sent, at once."""
        ...


class DeltaBroadcasts:
    """The deltas of the workspaces of which somebody wants them. A workspace without a member costs nothing."""

    def __init__(self, live_output: LiveOutput) -> None:
        """Prepares to broadcast.

        Args:
            live_output: What carries the deltas.
        """
        self._live_output = live_output
        self._broadcasts: dict[WorkspaceRef, _DeltaBroadcast] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many workspaces are broadcast."""
        return len(self._broadcasts)

    @contextmanager
    def join(self, workspace: WorkspaceRef, member: DeltaMember) -> Generator[None]:
        """Offers a member each delta of a workspace, from now on until the block ends."""
        broadcast = self._broadcasts.get(workspace)
        if broadcast is None or broadcast.task.done():
            broadcast = self._broadcasts[workspace] = _DeltaBroadcast(workspace, self._live_output)
        broadcast.members[member] = None
        try:
            yield
        finally:
            del broadcast.members[member]
            if not broadcast.members:
                self._end(workspace, broadcast)

    async def close(self) -> None:
        """Waits until the broadcasts have ended that nobody wants any more."""
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self, workspace: WorkspaceRef, broadcast: "_DeltaBroadcast") -> None:
        # One that broke off may have another in its place.
        if self._broadcasts.get(workspace) is broadcast:
            del self._broadcasts[workspace]
        broadcast.task.cancel()
        self._ending.add(broadcast.task)
        broadcast.task.add_done_callback(self._ending.discard)


class _DeltaBroadcast:
    """One workspace's, and who wants it."""

    def __init__(self, workspace: WorkspaceRef, live_output: LiveOutput) -> None:
        self.members: Final[dict[DeltaMember, None]] = {}
        # It begins at once, so that it hears whatever is said once somebody has joined.
        self.task: Final = asyncio.Task(
            self._run(workspace, live_output), loop=asyncio.get_running_loop(), eager_start=True
        )

    async def _run(self, workspace: WorkspaceRef, live_output: LiveOutput) -> None:
        try:
            with live_output.listen(workspace) as listener:
                while True:
                    for deltas in batched(await listener.take(), BURST):
                        for delta in deltas:
                            self._offer(delta)
                        # A longer burst would overflow members that read, had they no turn to send it on.
                        await asyncio.sleep(0)
        except Exception:
            _LOGGER.exception("the deltas of %s broke off; its streams go on without", workspace)

    def _offer(self, delta: Delta) -> None:
        frame = write_frame(DeltaFrame(delta=delta))
        for member in self.members:
            member.offer_delta(delta, frame)
