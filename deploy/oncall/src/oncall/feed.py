"""Publishes what a log says, with the clock of the log.

A log is replayed faster than it happened, and the rules must not see it happen in a second: before a line's event is
published, the storage's clock is set to the line's time. So an envelope's `ts` is the time of its line, and the rules
decide as they would have then. Only a log that goes back behind what the workspace holds already is taken to happen at
the end of that, as time in a workspace's log never goes back.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Final

from oncall.events import LogAdvanced, OncallEvent
from oncall.sources import Line, LogUnreadableError
from oncall.sshd import attempts
from oncall.syslog import Record, Syslog
from reflexr.core import Envelope, derived_id
from reflexr.workspace import ManualClock, NewEvent, Workspace

MAX_LINES: Final = 1_000
"""How many lines a batch has at most."""

MAX_SPAN: Final = timedelta(minutes=5)
"""How much of the log's time a batch covers at most, so that what the rules start has come to pass before long."""

MAX_EVENTS: Final = 500
"""How many events wait to be published at most, and so are published in one transaction."""

QUIET: Final = timedelta(minutes=1)
"""How long the log may go on without a login before the rules are told what time it is."""


type Find = Callable[[Collection[str]], Awaitable[Mapping[str, Envelope]]]
"""Returns those of some events that a log holds, by id."""


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
        first: The first line's time.
        latest: The latest line's time.
    """

    lines: int = 0
    logins: int = 0
    unreadable: int = 0
    late: int = 0
    first: datetime | None = None
    latest: datetime | None = None

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

    Attributes:
        tally: What became of the lines.
        seq: How far in the workspace's log the events come that it was fed.
    """

    def __init__(self, workspace: Workspace, clock: ManualClock, *, find: Find | None = None, known: int = 0) -> None:
        """Begins a log.

        Args:
            workspace: Where to publish.
            clock: The clock of the workspace's storage, which the feed sets.
            find: Looks up events of the workspace's log, so that what it holds need not be published to see that.
            known: How far in the workspace's log it is worth while to look.
        """
        self.tally = Tally()
        self.seq = 0
        self._workspace = workspace
        self._clock = clock
        self._find = find
        self._known = known
        self._pending: list[tuple[datetime, NewEvent]] = []
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
        if self.tally.latest is not None:
            self._set_clock(self.tally.latest)

    async def finish(self) -> None:
        """Ends the log: the rules learn the time of its last line, and of no later one."""
        latest = self.tally.latest
        if self._latest is not None and latest is not None and self._told != latest:
            await self._advance(self._latest, latest)
        await self._flush()

    async def _read(self, line: Line, record: Record) -> None:
        tally = self.tally
        if tally.latest is None or record.time > tally.latest:
            tally.latest, self._latest = record.time, line
            tally.first = tally.first or record.time
        elif record.time < tally.latest:
            tally.late += 1
        now = tally.latest
        self._told = self._told or now
        if (found := attempts(record)) is not None:
            tally.logins += 1
            for number in range(found.times):
                await self._add(now, found.event, derived_id("login", line.number, line.text, number))
            self._told = now
        elif now - self._told >= QUIET:
            await self._advance(line, now)

    async def _advance(self, line: Line, now: datetime) -> None:
        await self._add(now, LogAdvanced(line=line.number), derived_id("line", line.number, line.text))
        self._told = now

    async def _add(self, time: datetime, event: OncallEvent, id: str) -> None:
        self._pending.append((time, NewEvent(event, id)))
        if len(self._pending) == MAX_EVENTS:
            await self._flush()

    async def _flush(self) -> None:
        """Publishes what is pending: in one transaction what is of one time."""
        if not await self._is_known():
            for time, group in groupby(self._pending, key=itemgetter(0)):
                self._set_clock(time)
                publications = await self._workspace.publish_many([event for _, event in group])
                self.seq = max(self.seq, *(publication.seq for publication in publications))
        self._pending = []

    async def _is_known(self) -> bool:
        """Whether all that is pending is in the workspace's log already."""
        if self._find is None or self.seq >= self._known:
            return False
        ids = {event.id for _, event in self._pending if event.id is not None}
        found = await self._find(ids)
        self.seq = max([self.seq, *(envelope.seq for envelope in found.values())])
        return len(found) == len(ids)

    def _set_clock(self, time: datetime) -> None:
        self._clock.set(max(time, self._clock()))
