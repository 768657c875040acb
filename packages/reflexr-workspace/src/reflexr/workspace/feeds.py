"""Feeds: how subscribers follow a log, missing nothing and getting nothing twice.

The subscribers of one workspace share one read of each new envelope. How a commit wakes them is
`reflexr.workspace.wakeups`'.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Final

from reflexr.core import Envelope, EventRegistry
from reflexr.telemetry import untraced
from reflexr.workspace.refs import WorkspaceRef
from reflexr.workspace.storage import LogWindow, Storage
from reflexr.workspace.wakeups import Listener

PAGE: Final = 500
"""How many envelopes are read at a time."""

TAIL: Final = 1_000
"""How many of the newest envelopes a feed keeps for those of its subscribers that are a little behind."""


class Feeds:
    """The feeds of the workspaces that somebody follows."""

    def __init__(self, storage: Storage, registry: EventRegistry) -> None:
        """Creates feeds over a storage.

        Args:
            storage: Where the logs are.
            registry: Which the envelopes' classes are looked up in.
        """
        self._storage = storage
        self._registry = registry
        self._feeds: dict[WorkspaceRef, _Feed] = {}

    def __len__(self) -> int:
        """How many workspaces are followed."""
        return len(self._feeds)

    async def follow(
        self, workspace: WorkspaceRef, after_seq: int, types: frozenset[str] | None
    ) -> AsyncGenerator[Envelope]:
        """Yields a log's envelopes of these types after a place, those to come as they are appended, without end."""
        with self._feed(workspace) as feed:
            seq = after_seq
            while True:
                with untraced():
                    envelopes, seq = await feed.next(seq, types)
                for envelope in envelopes:
                    yield envelope

    @contextmanager
    def _feed(self, workspace: WorkspaceRef) -> "Generator[_Feed]":
        feed = self._feeds.get(workspace)
        if feed is None:
            feed = self._feeds[workspace] = _Feed(self._storage, self._registry, workspace)
        feed.subscribers += 1
        try:
            yield feed
        finally:
            feed.subscribers -= 1
            if not feed.subscribers:
                del self._feeds[workspace]
                feed.close()


class _Feed:
    """The end of one log, as far as it was read, for all who follow it."""

    def __init__(self, storage: Storage, registry: EventRegistry, workspace: WorkspaceRef) -> None:
        self.subscribers = 0
        self._storage = storage
        self._registry = registry
        self._workspace = workspace
        self._listening = storage.wakeups.listen(workspace)
        self._listener: Listener = self._listening.__enter__()
        self._lock = asyncio.Lock()
        self._tail: deque[Envelope] = deque(maxlen=TAIL)
        self._seq: int | None = None
        # Whether the log may have grown since it was read: a reader that is cancelled leaves it so for the next.
        self._stale = False

    def close(self) -> None:
        self._listening.__exit__(None, None, None)

    async def next(self, after_seq: int, types: frozenset[str] | None) -> tuple[list[Envelope], int]:
        """Returns the next envelopes of these types, perhaps none, and the place up to which that is all."""
        if self._seq is None:
            async with self._lock:
                if self._seq is None:
                    self._seq = (await self._storage.head(self._workspace)).seq
        if after_seq >= self._seq:
            await self._grow(after_seq)
        if self._tail and self._tail[0].seq <= after_seq + 1:
            offset = after_seq + 1 - self._tail[0].seq
            envelopes = [self._tail[index] for index in range(offset, len(self._tail))]
            return [envelope for envelope in envelopes if types is None or envelope.event_type in types], self._seq
        return await self._catch_up(after_seq, self._seq, types)

    async def _catch_up(self, after_seq: int, seq: int, types: frozenset[str] | None) -> tuple[list[Envelope], int]:
        window = LogWindow(after_seq=after_seq, before_seq=seq + 1, types=types, limit=PAGE)
        envelopes = [envelope.bind(self._registry) for envelope in await self._storage.read(self._workspace, window)]
        return envelopes, envelopes[-1].seq if len(envelopes) == PAGE else seq

    async def _grow(self, after_seq: int) -> None:
        """Waits until the log has grown past a place. One subscriber waits and reads, for all of them."""
        while self._seq is not None and self._seq <= after_seq:
            async with self._lock:
                if self._seq > after_seq:
                    return
                if not self._stale:
                    await self._listener.wait(self._storage.wakeups.poll_interval)
                    self._stale = True
                window = LogWindow(after_seq=self._seq, limit=PAGE)
                envelopes = await self._storage.read(self._workspace, window)
                self._stale = len(envelopes) == PAGE
                self._tail.extend(envelope.bind(self._registry) for envelope in envelopes)
                self._seq += len(envelopes)
