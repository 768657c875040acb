"""`PostgresLiveOutput`: what runs say while they are at work, carried between processes by `LISTEN` and `NOTIFY`.

Each workspace has a channel of its own, named by a hash, so that a process is sent no more than its listeners want. On
one more channel processes announce what they listen to: what nobody hears is not sent.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from hashlib import sha256
from itertools import batched
from secrets import token_hex
from time import monotonic
from typing import Annotated, Final, Self, cast, override

from pydantic import Field, NonNegativeInt, TypeAdapter
from sqlalchemy.ext.asyncio import AsyncEngine

from reflexr.core import Delta
from reflexr.sql.cancellation import given_back
from reflexr.sql.errors import EngineError, SqlStorageError
from reflexr.sql.links import KeptConnection, NotifyingConnection
from reflexr.workspace import DeltaListener, InProcessLiveOutput, WorkspaceRef

ANNOUNCEMENTS: Final = "reflexr_live"
"""The channel on which processes announce what they listen to, and ask others to."""

SIZE: Final = 1_000
"""How many deltas of a workspace wait to be sent, and for each listener to be taken, by default."""

PAUSE: Final = 0.02
"""How many seconds pass at least between two statements that send: what is said meanwhile goes together."""

EVERY: Final = 3.0
"""How many seconds pass at most between two announcements."""

EXPIRY: Final = 10.0
"""How many seconds an announcement holds: some of them may be lost."""

_LOG: Final = logging.getLogger(__name__)

_TOGETHER: Final = 100
"""How many deltas of a workspace go together at most, before others have their turn."""

_BATCH: Final = 500_000
"""About how many characters go in one statement at most."""

_NAMED: Final = 100
"""How many channels an announcement names at most; PostgreSQL takes fewer than 8,000 bytes."""

_PART: Final = 7_800
"""How many bytes of a text a payload holds at most, beside what it begins with."""

_CLOSING: Final = timedelta(seconds=5)
"""How long closing waits at most for a connection that is still being made."""

_MESSAGE: Final = TypeAdapter(tuple[NonNegativeInt, Annotated[list[Delta], Field(min_length=1)]])
"""How many deltas were lost before, and the next ones."""


class PostgresLiveOutput:
    """Tells the listeners of this process at once, and those of every process on the same database within moments.

    It carries between processes while it is open: `async with PostgresLiveOutput(engine) as live_output`. Close it
    before the engine is disposed of. Not through a pooler that shares connections between transactions.

    A run waits for nothing of it. Where the database is away, deltas are lost between processes, and are told within
    each. What a listener in another process is told may have been said moments before it began.
    """

    def __init__(self, engine: AsyncEngine, *, size: int = SIZE) -> None:
        """Takes an engine; nothing is asked of the database before it is opened.

        Args:
            engine: One of `postgresql+asyncpg`. While it is open, it has one connection of the engine's for itself.
            size: How many deltas of a workspace wait to be sent to other processes, and how many for a listener to take
                them, at least 1; with more the oldest are lost.

        Raises:
            EngineError: The engine has another driver.
        """
        kind = (engine.dialect.name, engine.dialect.driver)
        if kind != ("postgresql", "asyncpg"):
            raise EngineError(
                f"an engine of {'+'.join(kind)!r} carries no live output between processes: create one of "
                "'postgresql+asyncpg', or use an InProcessLiveOutput within one process"
            )
        self._engine = engine
        self._here = InProcessLiveOutput(size)
        self._link = _DeltaLink(engine, self._here, size)
        self._is_open = False

    async def __aenter__(self) -> Self:
        """Opens it and returns it, without waiting for the database."""
        self._is_open = True
        self._link.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes it."""
        await self.close()

    async def close(self) -> None:
        """Ends what it has with other processes, and its connection; within this one it goes on.

        What was said in the last moments may not get to other processes any more.
        """
        self._is_open = False
        await self._link.stop()
        await given_back(self._engine, _CLOSING)

    def is_heard(self, workspace: WorkspaceRef) -> bool:
        """Whether somebody listens in this process, or did in another some seconds ago. It may be asked in any thread.

        That a process listens is known to others moments after it began.
        """
        return self._here.is_heard(workspace) or self._link.is_heard(channel_of(workspace))

    def send(self, workspace: WorkspaceRef, delta: Delta) -> None:
        """Tells the listeners of a workspace. Never waits, and costs nothing where nobody listens."""
        self._here.send(workspace, delta)
        channel = channel_of(workspace)
        if self._is_open and self._link.is_heard(channel):
            self._link.send(channel, delta)

    @contextmanager
    def listen(self, workspace: WorkspaceRef) -> Generator[DeltaListener]:
        """Listens from the moment the block is entered until it ends; to other processes, from moments later on."""
        channel = channel_of(workspace)
        try:
            with self._here.listen(workspace) as listener:
                self._link.listened[channel] = workspace
                if self._is_open:
                    self._link.wake()
                yield listener
        finally:
            if not self._here.is_heard(workspace):
                del self._link.listened[channel]


@lru_cache(maxsize=1_024)
def channel_of(workspace: WorkspaceRef) -> str:
    """Returns the channel of a workspace: a name that PostgreSQL takes, whatever the workspace's is."""
    name = f"{len(workspace.tenant_id)}:{workspace.tenant_id}{workspace.workspace_id}"
    return f"{ANNOUNCEMENTS}_{sha256(name.encode(errors='surrogatepass')).hexdigest()[:48]}"


def parts_of(text: str) -> list[str]:
    """Returns a text in parts, each of which PostgreSQL takes as a payload, with a head of less than 100 bytes."""
    # A character takes one byte, or four at most.
    size = _PART if text.isascii() else _PART // 4
    return [text[start : start + size] for start in range(0, len(text), size)]


@dataclass(frozen=True)
class _Sending:
    """Deltas of one workspace that go together, and how many are lost with them where they get nowhere."""

    channel: str
    text: str
    lost: int


class _DeltaLink(KeptConnection):
    """Sends deltas to other processes, and gives theirs to the listeners of this one."""

    def __init__(self, engine: AsyncEngine, here: InProcessLiveOutput, size: int) -> None:
        super().__init__(engine)
        self.listened: dict[str, WorkspaceRef] = {}
        self._here = here
        self._size = size
        self._me = token_hex(8)
        self._wake = asyncio.Event()
        self._announce_at = 0.0
        self._heard: dict[str, float] = {}
        self._waiting: dict[str, deque[tuple[int, str]]] = {}
        self._lost: Counter[str] = Counter()
        self._messages = 0
        self._begun: dict[tuple[str, str], list[str]] = {}
        self._is_broken = self._is_confused = False

    def is_heard(self, channel: str) -> bool:
        """Whether another process listens, or did some seconds ago."""
        return self._heard.get(channel, 0.0) > monotonic()

    def wake(self) -> None:
        """Has it look at once what there is to do."""
        self._wake.set()
        self.start()

    def send(self, channel: str, delta: Delta) -> None:
        """Sends a delta soon. Never waits."""
        text = delta.model_dump_json()
        waiting = self._waiting.setdefault(channel, deque())
        if len(waiting) >= self._size:
            self._lost[channel] += 1 + waiting.popleft()[0]
        waiting.append((delta.lost, text))
        self.wake()

    @override
    async def _carry(self, connection: object) -> None:
        driver = cast("NotifyingConnection", connection)
        driver.add_termination_listener(lambda _: self._wake.set())
        # A notification need not survive the server, so it need not wait for the disk, nor have others wait.
        await driver.execute("SET synchronous_commit = off")
        await driver.add_listener(ANNOUNCEMENTS, self._announced)
        self._begun.clear()
        self._announce_at = 0.0
        listening: set[str] = set()
        asking = [(ANNOUNCEMENTS, f"{self._me} ?")]
        while True:
            self._wake.clear()
            new = await self._listen(driver, listening)
            await self._notify(driver, [*asking, *self._announcements(listening, new)])
            asking = []
            self._is_broken = False
            self._ready.set()
            await asyncio.sleep(PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._announce_at - monotonic()):
                    await self._wake.wait()

    @override
    def _broke(self, error: SqlStorageError, delay: float) -> None:
        if not self._is_broken:
            _LOG.warning("live output between processes is lost until the database is back: %s", error)
        self._is_broken = True

    # --- What is listened to

    async def _listen(self, driver: NotifyingConnection, listening: set[str]) -> set[str]:
        """Listens to what is to be listened to and to nothing else, and returns which channels are new."""
        wanted = set(self.listened)
        for channel in listening - wanted:
            await driver.remove_listener(channel, self._received)
        new = wanted - listening
        for channel in new:
            await driver.add_listener(channel, self._received)
        listening &= wanted
        listening |= new
        return new

    def _announcements(self, listening: Collection[str], new: Collection[str]) -> list[tuple[str, str]]:
        """Returns what to announce: all that is listened to where that is due, and else what is new."""
        now = monotonic()
        if now >= self._announce_at:
            self._announce_at = now + EVERY
            self._heard = {channel: until for channel, until in self._heard.items() if until > now}
            self._lost = Counter({channel: lost for channel, lost in self._lost.items() if channel in self._heard})
            new = listening
        return [(ANNOUNCEMENTS, " ".join((self._me, *channels))) for channels in batched(new, _NAMED)]

    def _announced(self, _connection: object, _process: int, _channel: str, payload: str, /) -> None:
        sender, *words = payload.split(" ")
        if sender == self._me:
            return
        if words == ["?"]:
            self._announce_at = 0.0
            self._wake.set()
        else:
            self._heard.update(dict.fromkeys(words, monotonic() + EXPIRY))

    # --- What is said

    async def _notify(self, driver: NotifyingConnection, announcements: list[tuple[str, str]]) -> None:
        """Tells other processes what there is to tell, in a statement that also says whether the server is there."""
        sendings = self._taken()
        told = [*announcements, *(one for sending in sendings for one in self._payloads(sending))]
        try:
            await driver.execute(
                "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS told (channel, payload)",
                [channel for channel, _ in told],
                [payload for _, payload in told],
            )
        except BaseException:
            for sending in sendings:
                self._lost[sending.channel] += sending.lost
            raise

    def _taken(self) -> list[_Sending]:
        """Takes what waits, some of each workspace in turn; what is too much for one statement goes with the next."""
        sendings: list[_Sending] = []
        size = 0
        while self._waiting and size < _BATCH:
            channel = next(iter(self._waiting))
            waiting = self._waiting.pop(channel)
            lost = self._lost.pop(channel, 0)
            if not self.is_heard(channel):
                continue
            taken = [waiting.popleft() for _ in range(min(len(waiting), _TOGETHER))]
            text = f"[{lost},[{','.join(text for _, text in taken)}]]"
            sendings.append(_Sending(channel, text, lost + sum(1 + before for before, _ in taken)))
            size += len(text)
            if waiting:
                self._waiting[channel] = waiting
        if self._waiting:
            self._wake.set()
        return sendings

    def _payloads(self, sending: _Sending) -> list[tuple[str, str]]:
        # Numbered, as PostgreSQL leaves out what it was told already in the same transaction.
        self._messages += 1
        parts = parts_of(sending.text)
        head = f"{self._me} {self._messages}"
        return [(sending.channel, f"{head} {place} {len(parts)} {part}") for place, part in enumerate(parts, 1)]

    def _received(self, _connection: object, _process: int, channel: str, payload: str, /) -> None:
        try:
            deltas = self._read(channel, payload)
        except ValueError as error:
            if not self._is_confused:
                _LOG.warning("what another process says is not understood, and is left out: %s", error)
            self._is_confused = True
            return
        # The last listener may have left meanwhile.
        if (workspace := self.listened.get(channel)) is not None:
            for delta in deltas:
                self._here.send(workspace, delta)

    def _read(self, channel: str, payload: str) -> list[Delta]:
        """Returns the deltas that a payload is the last part of; none for the others, nor for this process's own."""
        sender, _, place, number, part = payload.split(" ", 4)
        if sender == self._me:
            return []
        parts = [] if place == "1" else self._begun.pop((channel, sender), [])
        parts.append(part)
        if len(parts) != int(place):
            # What it began with was sent before this process listened.
            return []
        if place != number:
            self._begun[channel, sender] = parts
            return []
        lost, deltas = _MESSAGE.validate_json("".join(parts))
        if lost:
            deltas[0] = deltas[0].model_copy(update={"lost": deltas[0].lost + lost})
        return deltas
