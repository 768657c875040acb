"""Wake-ups between processes: `DatabaseWakeups`, and the links that carry them.

Inside a process a commit wakes at once. A link tells other processes, and hears of theirs. What a link loses only comes
later: whoever listens looks by himself after `poll_interval`, and is woken once a lost link is back.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator
from contextlib import contextmanager
from datetime import timedelta
from secrets import token_hex
from typing import Final, cast, override

from pydantic_core import from_json, to_json
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from reflexr.sql.cancellation import to_the_end
from reflexr.sql.errors import SqlStorageError
from reflexr.sql.links import KeptConnection, NotifyingConnection
from reflexr.sql.sessions import AiosqliteConnection, Fetcher
from reflexr.sql.statements import TEXT, Statements, parameter
from reflexr.workspace import Listener, Wakeups, WorkspaceRef

CHANNEL: Final = "reflexr"
"""The channel of PostgreSQL's notifications."""

POLL_INTERVAL: Final = timedelta(seconds=0.5)
"""How long a listener waits at most before it looks by itself."""

_LOG: Final = logging.getLogger(__name__)

_LARGEST: Final = 7_900
"""How many bytes of a payload to fill; PostgreSQL takes fewer than 8,000."""

_PAUSE: Final = 0.005
"""How many seconds a link rests after it told something: what comes meanwhile goes together."""

_LOOK: Final = 0.02
"""How many seconds pass between two looks at the version of an SQLite file."""


class Link(ABC):
    """Tells other processes of changes and hears of theirs, from when it is started until it is stopped."""

    @abstractmethod
    def start(self) -> None:
        """Begins to hear, if it does not already. Never waits."""

    @abstractmethod
    def tell(self, workspaces: Collection[WorkspaceRef]) -> None:
        """Tells other processes of changes. Never waits."""

    @abstractmethod
    async def ready(self) -> None:
        """Waits until whatever other processes tell from now on is heard."""

    @abstractmethod
    async def stop(self) -> None:
        """Ends it."""


class DatabaseWakeups(Wakeups):
    """Wakes the listeners of this process at once, and those of others through a link."""

    def __init__(self, poll_interval: timedelta) -> None:
        """Begins with no link.

        Args:
            poll_interval: How long a listener waits at most before it looks by itself; more than zero.
        """
        self.link: Link | None = None
        self._poll_interval = poll_interval
        self._listeners: dict[WorkspaceRef | None, list[_Listener]] = {}

    @property
    @override
    def poll_interval(self) -> timedelta | None:
        return self._poll_interval

    @override
    def announce(self, workspaces: Collection[WorkspaceRef]) -> None:
        self.heard(workspaces)
        if workspaces and self.link is not None:
            self.link.tell(workspaces)

    @override
    @contextmanager
    def listen(self, workspace: WorkspaceRef | None = None) -> Generator[Listener]:
        if self.link is not None:
            self.link.start()
        listener = _Listener()
        self._listeners.setdefault(workspace, []).append(listener)
        try:
            yield listener
        finally:
            listeners = self._listeners[workspace]
            listeners.remove(listener)
            if not listeners:
                del self._listeners[workspace]

    async def ready(self) -> None:
        """Waits until whatever other processes announce from now on is heard here."""
        if self.link is not None:
            await self.link.ready()

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def heard(self, workspaces: Collection[WorkspaceRef]) -> None:
        """Wakes the listeners of these workspaces in this process."""
        for workspace in workspaces:
            for listener in self._listeners.get(workspace, ()):
                listener.wake(workspace)
        for listener in self._listeners.get(None, ()):
            for workspace in workspaces:
                listener.wake(workspace)

    def missed(self) -> None:
        """Wakes every listener in this process, as anything may have changed.

        A listener of one workspace is told of it; one of all is told of none, as after a wait that was too long.
        """
        for workspace, listeners in self._listeners.items():
            for listener in listeners:
                listener.wake(workspace)


class _Listener(Listener):
    def __init__(self) -> None:
        self._changed: set[WorkspaceRef] = set()
        self._event = asyncio.Event()

    def wake(self, workspace: WorkspaceRef | None) -> None:
        if workspace is not None:
            self._changed.add(workspace)
        self._event.set()

    @override
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


class _KeptLink(KeptConnection, Link):
    """A link over a connection of its own."""

    def __init__(self, engine: AsyncEngine, wakeups: DatabaseWakeups) -> None:
        super().__init__(engine)
        self._wakeups = wakeups

    @override
    def _broke(self, error: SqlStorageError, delay: float) -> None:
        _LOG.warning("wake-ups between processes are lost; trying again in %g s: %s", delay, error)

    def _begins(self) -> None:
        """Takes note that whatever is told from now on is heard; what was told before may have been missed."""
        self._ready.set()
        self._wakeups.missed()


class PostgresLink(_KeptLink):
    """`LISTEN` and `NOTIFY`.

    What a commit changed is told after it, over the link's own connection and many at once: a `NOTIFY` inside the
    transaction takes a lock of the whole server while it commits.
    """

    def __init__(self, engine: AsyncEngine, wakeups: DatabaseWakeups) -> None:
        super().__init__(engine, wakeups)
        self._me = token_hex(8)
        self._told: set[WorkspaceRef] = set()
        self._wake = asyncio.Event()

    @override
    def tell(self, workspaces: Collection[WorkspaceRef]) -> None:
        self._told.update(workspaces)
        self._wake.set()
        self.start()

    @override
    async def _carry(self, connection: object) -> None:
        driver = cast("NotifyingConnection", connection)
        driver.add_termination_listener(lambda _: self._wake.set())
        # A notification need not survive the server, so it need not wait for the disk, nor have others wait.
        await driver.execute("SET synchronous_commit = off")
        await driver.add_listener(CHANNEL, self._heard)
        self._begins()
        while True:
            await self._wake.wait()
            self._wake.clear()
            telling, self._told = self._told, set()
            try:
                # Also where there is nothing to tell: woken by the connection's end, it says what became of it.
                await driver.execute(
                    "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload",
                    CHANNEL,
                    payloads(self._me, telling),
                )
            except BaseException:
                self._told |= telling
                raise
            await asyncio.sleep(_PAUSE)

    def _heard(self, _connection: object, _process: int, _channel: str, payload: str, /) -> None:
        sender, workspaces = from_json(payload)
        if sender == self._me:
            return
        if workspaces is None:
            self._wakeups.missed()
        else:
            self._wakeups.heard([WorkspaceRef(*one) for one in workspaces])


class SqliteLink(_KeptLink):
    """`PRAGMA data_version`, which changes when another connection commits. It tells by itself, and not of what."""

    @override
    def tell(self, workspaces: Collection[WorkspaceRef]) -> None:
        """Tells nothing: the commit did."""

    @override
    async def _carry(self, connection: object) -> None:
        driver = cast("AiosqliteConnection", connection)
        before: object = None
        while True:
            ((version,),) = await to_the_end(driver.execute_fetchall("PRAGMA data_version"))
            if version != before:
                before = version
                self._begins()
            if not self._wakeups.is_heard:
                return
            await asyncio.sleep(_LOOK)


class Notifications:
    """Notifications inside a transaction: PostgreSQL sends them when it commits, and not at all if it rolls back."""

    def __init__(self, statements: Statements) -> None:
        self._notify = statements(select(func.pg_notify(parameter("channel", TEXT), parameter("payload", TEXT))))

    async def notify(self, fetcher: Fetcher, workspace: WorkspaceRef) -> None:
        """Has every process told of a workspace, this one too."""
        for payload in payloads("", [workspace]):
            await fetcher.fetch(self._notify, {"channel": CHANNEL, "payload": payload})


def payloads(sender: str, workspaces: Collection[WorkspaceRef]) -> list[str]:
    """Returns what to send, each payload as large as PostgreSQL takes it; one that would be larger says to look."""
    found: list[str] = []
    names: list[tuple[str, str]] = []
    size = len(to_json([sender, []]))
    for workspace in sorted(workspaces):
        name = (workspace.tenant_id, workspace.workspace_id)
        length = len(to_json(name)) + 1
        if names and size + length > _LARGEST:
            found.append(_payload(sender, names))
            names, size = [], len(to_json([sender, []]))
        names.append(name)
        size += length
    return [*found, _payload(sender, names)] if names else found


def _payload(sender: str, names: list[tuple[str, str]]) -> str:
    payload = to_json([sender, names])
    return (payload if len(payload) <= _LARGEST else to_json([sender, None])).decode()
