"""The `Wakeups` port: how a commit wakes those that wait for it, and the adapter for one process.

A wake-up says where to look, never what is there: whoever is woken reads the storage.
"""

import asyncio
from collections.abc import Collection, Generator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Protocol

from reflexr.workspace.refs import WorkspaceRef


class Listener(Protocol):
    """Collects the workspaces that changed since it last said so."""

    async def wait(self, at_most: timedelta | None = None) -> frozenset[WorkspaceRef]:
        """Waits until something changed, then returns every workspace that did and forgets it.

        A change between two calls is kept for the second, so none is missed. A cancelled wait forgets nothing.

        Args:
            at_most: How long to wait; for ever by default. Then the answer is empty.
        """
        ...


class Wakeups(Protocol):
    """Wakes listeners when a workspace changed: its log, its runs, or a lease on one of them."""

    @property
    def poll_interval(self) -> timedelta | None:
        """How long a listener should wait at most before it looks by itself, as a notification may be lost.

        `None` where none ever is.
        """
        ...

    def announce(self, workspaces: Collection[WorkspaceRef]) -> None:
        """Wakes the listeners of these workspaces. Never waits, and costs nothing where nobody listens."""
        ...

    def listen(self, workspace: WorkspaceRef | None = None) -> AbstractContextManager[Listener]:
        """Listens from the moment the block is entered until it ends.

        Args:
            workspace: The one workspace to hear of; every one by default.
        """
        ...


class InProcessWakeups:
    """Wakes the listeners of this process, at once and without loss."""

    def __init__(self) -> None:
        self._listeners: dict[WorkspaceRef | None, list[_InProcessListener]] = {}

    def __len__(self) -> int:
        """How many listen."""
        return sum(map(len, self._listeners.values()))

    @property
    def poll_interval(self) -> timedelta | None:
        """`None`: no notification is lost inside one process."""
        return None

    def announce(self, workspaces: Collection[WorkspaceRef]) -> None:
        """Wakes the listeners of these workspaces."""
        for workspace in workspaces:
            for listener in self._listeners.get(workspace, ()):
                listener.add(workspace)
        for listener in self._listeners.get(None, ()):
            for workspace in workspaces:
                listener.add(workspace)

    @contextmanager
    def listen(self, workspace: WorkspaceRef | None = None) -> Generator[Listener]:
        """Listens from the moment the block is entered until it ends."""
        listener = _InProcessListener()
        self._listeners.setdefault(workspace, []).append(listener)
        try:
            yield listener
        finally:
            listeners = self._listeners[workspace]
            listeners.remove(listener)
            if not listeners:
                del self._listeners[workspace]


class _InProcessListener:
    def __init__(self) -> None:
        self._changed: set[WorkspaceRef] = set()
        self._event = asyncio.Event()

    def add(self, workspace: WorkspaceRef) -> None:
        self._changed.add(workspace)
        self._event.set()

    async def wait(self, at_most: timedelta | None = None) -> frozenset[WorkspaceRef]:
        try:
            async with asyncio.timeout(None if at_most is None else at_most.total_seconds()):
                await self._event.wait()
        except TimeoutError:
            return frozenset()
        changed = frozenset(self._changed)
        self._changed.clear()
        self._event.clear()
        return changed
