"""Outboxes: the frames that a connection has still to be sent, of which there are never more than it has room for."""

import asyncio
from collections import deque
from itertools import count
from typing import Final

from reflexr.core import Delta, DeltaFrame, write_frame

AHEAD: Final = 1_048_576
"""How many characters a frame waits behind at most before it is put: what one connection alone holds in memory."""

DELTAS: Final = 1_000
"""How many deltas wait at most."""


class Outbox:
    """Frames in the order in which they are to be sent, between those who write them and the one who sends them.

    What answers the client waits for room. What is live does not wait for anybody: it finds room or overflows. Deltas
    have a room of their own, where the oldest make room for the newest. They are taken in turn with the frames, but
    for a client that is far behind, who gets its frames first.
    """

    def __init__(self, size: int) -> None:
        """Creates an empty outbox.

        Args:
            size: How many frames it has room for, at least 1.
        """
        self._size = size
        self._places = count()
        self._frames: deque[tuple[int, str]] = deque()
        self._characters = 0
        self._deltas: deque[tuple[int, Delta, str]] = deque()
        self._lost = 0
        self._took_frame = False
        # Whoever waits for room waits in turn, so that a command's result is not kept back by a whole replay.
        self._turn = asyncio.Lock()
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()

    def __len__(self) -> int:
        """How many frames it holds, deltas left out."""
        return len(self._frames)

    @property
    def is_pressing(self) -> bool:
        """Whether what was taken last, or anything behind it, is more than a delta."""
        return self._took_frame or bool(self._frames)

    async def put(self, frame: str) -> None:
        """Adds a frame once there is room for it."""
        async with self._turn:
            while len(self._frames) >= self._size or (self._frames and self._characters + len(frame) > AHEAD):
                self._taken.clear()
                await self._taken.wait()
            self._add(frame)

    def offer(self, frame: str) -> bool:
        """Adds a frame if there is room for it, and returns whether there was."""
        if len(self._frames) >= self._size:
            return False
        self._add(frame)
        return True

    def offer_delta(self, delta: Delta, frame: str) -> None:
        """Adds a delta, in place of the oldest that waits if there is no room for more.

        Args:
            delta: The delta.
            frame: The frame in which it is sent, unless some are lost before it and it has to say so.
        """
        if len(self._deltas) >= DELTAS:
            _, oldest, _ = self._deltas.popleft()
            self._lost += 1 + oldest.lost
        self._deltas.append((next(self._places), delta, frame))
        self._filled.set()

    async def take(self) -> str:
        """Returns the next frame once there is one. Its place is free from then on."""
        while not self._frames and not self._deltas:
            self._filled.clear()
            await self._filled.wait()
        self._took_frame = self._is_frame_next()
        if not self._took_frame:
            return self._take_delta()
        _, frame = self._frames.popleft()
        self._characters -= len(frame)
        self._taken.set()
        return frame

    async def drained(self) -> None:
        """Waits until every frame was taken; deltas may be left."""
        while self._frames:
            self._taken.clear()
            await self._taken.wait()

    def clear(self) -> None:
        """Forgets every frame."""
        self._frames.clear()
        self._deltas.clear()
        self._characters = 0
        self._taken.set()

    def _add(self, frame: str) -> None:
        self._frames.append((next(self._places), frame))
        self._characters += len(frame)
        self._filled.set()

    def _is_frame_next(self) -> bool:
        if not self._frames or not self._deltas:
            return bool(self._frames)
        return len(self._frames) > self._size // 2 or self._frames[0][0] < self._deltas[0][0]

    def _take_delta(self) -> str:
        _, delta, frame = self._deltas.popleft()
        if self._lost:
            frame = write_frame(DeltaFrame(delta=delta.model_copy(update={"lost": delta.lost + self._lost})))
            self._lost = 0
        return frame
