"""`KeptConnection`: a connection of a task's own, which is opened again when it breaks. What it carries is others'."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reflexr.sql.cancellation import or_give_back, to_the_end
from reflexr.sql.errors import SqlStorageError
from reflexr.sql.sessions import reported

_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 5.0
"""How many seconds a connection that broke is left alone at first, and at most."""


class KeptConnection(ABC):
    """What one task carries over a connection of its own, from when it is started until it is stopped."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Event = asyncio.Event()

    def start(self) -> None:
        """Begins, if it does not carry already. Never waits."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve(), name=type(self).__name__)

    async def ready(self) -> None:
        """Begins, and waits until it carries."""
        self.start()
        await self._ready.wait()

    async def stop(self) -> None:
        """Ends it, and its connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _serve(self) -> None:
        delay = _FIRST_DELAY
        while True:
            try:
                await reported(self._connected())
            except SqlStorageError as error:
                if self._ready.is_set():
                    delay = _FIRST_DELAY
                self._broke(error, delay)
            else:
                return
            finally:
                self._ready.clear()
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _connected(self) -> None:
        connection = await or_give_back(self._connect(), AsyncConnection.close, owner=self._engine)
        try:
            raw = await connection.get_raw_connection()
            driver = raw.driver_connection
            # It is the task's from here on: the pool makes another.
            raw.detach()
            await self._carry(driver)
        finally:
            await to_the_end(connection.close())

    async def _connect(self) -> AsyncConnection:
        return await self._engine.connect()

    @abstractmethod
    async def _carry(self, connection: object) -> None:
        """Carries over the driver's own connection, until it breaks or nobody needs it. Sets `_ready` once it does."""

    @abstractmethod
    def _broke(self, error: SqlStorageError, delay: float) -> None:
        """Takes note that the connection broke, or could not be made, and is tried again after so many seconds."""


class NotifyingConnection(Protocol):
    """What is used of asyncpg's connection."""

    def add_termination_listener(self, callback: Callable[[object], None]) -> None:
        """Has it called when the connection ends."""
        ...

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None:
        """Has it called with what others notify."""
        ...

    async def remove_listener(self, channel: str, callback: Callable[..., None]) -> None:
        """Has it called no more."""
        ...

    async def execute(self, query: str, *args: object) -> str:
        """Executes a statement, and returns the server's word for what it did."""
        ...
