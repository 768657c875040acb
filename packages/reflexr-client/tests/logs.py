"""Logs of events that a server of the tests has, and what the tests expect of their envelopes."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from datetime import UTC, datetime, timedelta

from reflexr.core import Envelope, SourceActor

_START = datetime(2026, 1, 1, tzinfo=UTC)


def envelope(seq: int, event_type: str = "ops:beat", *, workspace_id: str = "prod", text: str = "") -> Envelope:
    event = {"type": event_type, "n": seq, "text": text}
    return Envelope(
        seq=seq,
        id=f"e-{seq}",
        ts=_START + timedelta(seconds=seq),
        workspace_id=workspace_id,
        actor=SourceActor(name="test"),
        correlation_id=f"e-{seq}",
        event=event,
    )


class Log:
    """A log that grows by hand, and that servers follow."""

    def __init__(self, length: int = 0, *, workspace_id: str = "prod") -> None:
        self.envelopes: list[Envelope] = []
        self.workspace_id = workspace_id
        self._grown = asyncio.Event()
        self.grow(length)

    @property
    def head_seq(self) -> int:
        return len(self.envelopes)

    def grow(self, by: int = 1, event_type: str = "ops:beat", *, text: str = "") -> None:
        for seq in range(self.head_seq + 1, self.head_seq + 1 + by):
            self.envelopes.append(envelope(seq, event_type, workspace_id=self.workspace_id, text=text))
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    async def after(self, seq: int, types: Collection[str] | None = None) -> AsyncGenerator[Envelope]:
        while True:
            while seq < self.head_seq:
                seq += 1
                one = self.envelopes[seq - 1]
                if types is None or one.event_type in types:
                    yield one
            await self._grown.wait()
