"""Broadcasts: the end of each log that somebody streams, read once and written once for all who are caught up."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final, Protocol

from reflexr.core import Envelope, EventFrame, write_frame
from reflexr.workspace import WorkspaceRef, Workspaces

_LOGGER: Final = logging.getLogger("reflexr.fastapi")


class Member(Protocol):
    """A connection that is sent what is live."""

    @property
    def types(self) -> frozenset[str] | None:
        """The event types that it wants; `None` for all."""
        ...

    @property
    def after_seq(self) -> int:
        """The place up to which it has everything already when it joins."""
        ...

    def offer(self, frame: str) -> None:
        """Takes a frame, at once."""
        ...

    def lose(self) -> None:
        """Takes note that the broadcast has ended, as its storage failed."""
        ...


class Broadcasts:
    """The broadcasts of the workspaces that somebody streams. A workspace without a member costs nothing."""

    def __init__(self, workspaces: Workspaces) -> None:
        """Prepares to broadcast.

        Args:
            workspaces: The workspaces whose logs are broadcast.
        """
        self._workspaces = workspaces
        self._broadcasts: dict[WorkspaceRef, _Broadcast] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many workspaces are broadcast."""
        return len(self._broadcasts)

    def ahead_of(self, workspace: WorkspaceRef, seq: int) -> int | None:
        """Returns the place that a connection has to catch up to before it can join; `None` if it can join now."""
        broadcast = self._broadcasts.get(workspace)
        return None if broadcast is None or broadcast.seq <= seq else broadcast.seq

    @contextmanager
    def join(self, workspace: WorkspaceRef, member: Member) -> Generator[None]:
        """Offers a member each frame after its place, from now on until the block ends.

        Nothing must be awaited between `ahead_of` and this.
        """
        broadcast = self._broadcasts.get(workspace)
        if broadcast is None:
            broadcast = self._broadcasts[workspace] = _Broadcast(member.after_seq, partial(self._run, workspace))
        broadcast.add(member)
        try:
            yield
        finally:
            broadcast.discard(member)
            if not broadcast and self._broadcasts.get(workspace) is broadcast:
                self._end(workspace, broadcast)

    async def close(self) -> None:
        """Waits until the broadcasts have ended that nobody follows any more."""
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self, workspace: WorkspaceRef, broadcast: "_Broadcast") -> None:
        del self._broadcasts[workspace]
        broadcast.task.cancel()
        self._ending.add(broadcast.task)
        broadcast.task.add_done_callback(self._ending.discard)

    async def _run(self, workspace: WorkspaceRef, broadcast: "_Broadcast") -> None:
        try:
            async with aclosing(
                self._workspaces.configuration.feeds.follow(workspace, broadcast.seq, None)
            ) as envelopes:
                async for envelope in envelopes:
                    if broadcast.offer(envelope):
                        # What comes in a burst would overflow members that read, had they no turn to send it on.
                        await asyncio.sleep(0)
        except Exception:
            _LOGGER.exception("the stream of %s broke off; its clients resume", workspace)
            # One that nobody follows any more may break off as it is cancelled, when there is another in its place.
            if self._broadcasts.get(workspace) is broadcast:
                del self._broadcasts[workspace]
            for member in broadcast.members():
                member.lose()


class _Broadcast:
    """One workspace's: how far it has come, and who wants what."""

    def __init__(self, seq: int, run: "Callable[[_Broadcast], Coroutine[None, None, None]]") -> None:
        self.seq = seq
        self.task: Final = asyncio.create_task(run(self))
        # By event type, so that who wants other types costs nothing; `None` for who wants all of them.
        self._members: dict[str | None, dict[Member, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._members)

    def add(self, member: Member) -> None:
        for name in _types(member):
            self._members.setdefault(name, {})[member] = None

    def discard(self, member: Member) -> None:
        for name in _types(member):
            members = self._members[name]
            del members[member]
            if not members:
                del self._members[name]

    def members(self) -> list[Member]:
        return list({member: None for members in self._members.values() for member in members})

    def offer(self, envelope: Envelope) -> bool:
        """Offers an envelope, written once, to who wants it, and returns whether anybody does."""
        self.seq = envelope.seq
        # As a list: a member that overflows may leave meanwhile.
        wanting = [*self._members.get(None, ()), *self._members.get(envelope.event_type, ())]
        wanting = [member for member in wanting if envelope.seq > member.after_seq]
        if wanting:
            frame = write_frame(EventFrame(envelope=envelope))
            for member in wanting:
                member.offer(frame)
        return bool(wanting)


def _types(member: Member) -> Iterable[str | None]:
    return (None,) if member.types is None else member.types
