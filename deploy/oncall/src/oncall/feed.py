"""Publishes what a log says, with the clock of the log.

A log is replayed faster than it happened, and the rules must not see it happen in a second: before a line's event is
published, the storage's clock is set to the line's time. So an envelope's `ts` is the time of its line, and the rules
decide as they would have then.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from oncall.events import LogAdvanced, LoginFailed, OncallEvent
from oncall.sources import Line, LogUnreadableError
from oncall.sshd import attempts
from oncall.syslog import Record, Syslog
from reflexr.core import derived_id
from reflexr.workspace import ManualClock, NewEvent, Workspace

MAX_LINES: Final = 1_000
"""How many lines a batch has at most."""

MAX_SPAN: Final = timedelta(minutes=5)
"""How much of the log's time a batch covers at most, so that what the rules start has come to pass before long."""

MAX_EVENTS: Final = 500
"""How many events are published in one transaction at most."""

QUIET: Final = timedelta(minutes=1)
"""How long the log may go on without a login before the rules are told what time it is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line and its parts, if it has any."""

    line: Line
    record: Record | None


@dataclass(slots=True)
class Tally:
    """What became of the lines.

    Attributes:
        lines: How many were read.
        logins: How many of them were about logins.
        unreadable: How many are no line of syslog's, or of no time that there is.
        late: How many were of an earlier time than one before. Their events got that one's time: time never goes back.
        failed: How many failures were published.
        accepted: How many acceptances were.
        known: How many of either were in the workspace already.
        first: The first line's time.
        latest: The latest line's time.
    """

    lines: int = 0
    logins: int = 0
    unreadable: int = 0
    late: int = 0
    failed: int = 0
    accepted: int = 0
    known: int = 0
    first: datetime | None = None
    latest: datetime | None = None

    @property
    def events(self) -> int:
        """How many logins were published."""
        return self.failed + self.accepted

    @property
    def other(self) -> int:
        """How many lines were about something else."""
        return self.lines - self.logins - self.unreadable


def batches(lines: Iterable[Line], syslog: Syslog) -> Iterator[list[Entry]]:
    """Yields the lines with their parts, cut where the rules have their turn, which depends on the lines alone."""
    batch: list[Entry] = []
    begun: datetime | None = None
    try:
        for line in lines:
            record = syslog.read(line.text)
            if batch and (len(batch) == MAX_LINES or (record and begun and record.time - begun >= MAX_SPAN)):
                yield batch
                batch, begun = [], None
            batch.append(Entry(line, record))
            if begun is None and record is not None:
                begun = record.time
    except LogUnreadableError:
        # What came before the log broke off is not lost.
        yield batch
        raise
    yield batch


class Feed:
    """Publishes each login once, however often the log is fed.

    An event's id is derived from its line and the line's number, so feeding a log again, or after it grew, appends only
    what is new.
    """

    def __init__(self, workspace: Workspace, clock: ManualClock) -> None:
        """Begins a log.

        Args:
            workspace: Where to publish.
            clock: The clock of the workspace's storage, which the feed sets.
        """
        self.tally = Tally()
        self._workspace = workspace
        self._clock = clock
        self._pending: list[NewEvent] = []
        self._told: datetime | None = None
        self._latest: Line | None = None

    async def publish(self, batch: Iterable[Entry]) -> None:
        """Publishes what the lines say."""
        for entry in batch:
            self.tally.lines += 1
            if entry.record is None:
                self.tally.unreadable += 1
            else:
                await self._read(entry.line, entry.record)
        await self._flush()

    async def finish(self) -> None:
        """Ends the log: the rules learn the time of its last line, and of no later one."""
        if self._latest is not None and self._told != self.tally.latest:
            await self._advance(self._latest)
        await self._flush()

    async def _read(self, line: Line, record: Record) -> None:
        tally = self.tally
        if tally.latest is None or record.time > tally.latest:
            await self._flush()
            self._clock.set(record.time)
            tally.latest, self._latest = record.time, line
            tally.first = tally.first or record.time
        elif record.time < tally.latest:
            tally.late += 1
        now = tally.latest
        self._told = self._told or now
        if (found := attempts(record)) is not None:
            tally.logins += 1
            for number in range(found.times):
                await self._add(found.event, derived_id("login", line.number, line.text, number))
            self._told = now
        elif now - self._told >= QUIET:
            await self._advance(line)

    async def _advance(self, line: Line) -> None:
        await self._add(LogAdvanced(line=line.number), derived_id("line", line.number, line.text))
        self._told = self.tally.latest

    async def _add(self, event: OncallEvent, id: str) -> None:
        self._pending.append(NewEvent(event, id))
        if len(self._pending) == MAX_EVENTS:
            await self._flush()

    async def _flush(self) -> None:
        """Publishes what is pending. All of it is of the time that the clock shows."""
        if not self._pending:
            return
        publications = await self._workspace.publish_many(self._pending)
        self._pending = []
        for publication in publications:
            event_type = publication.envelope.event_type
            if event_type == LogAdvanced.event_type:
                continue
            if publication.duplicate:
                self.tally.known += 1
            elif event_type == LoginFailed.event_type:
                self.tally.failed += 1
            else:
                self.tally.accepted += 1
