"""`Database`: an engine's connections, and the transactions on them. What is said on them is other modules'."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Final, cast

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reflexr.sql.cancellation import FairLock, given_back, or_give_back, to_the_end
from reflexr.sql.errors import EngineError, SqlStorageError
from reflexr.sql.sessions import (
    BEGIN_OPTION,
    AiosqliteConnection,
    AiosqliteDriver,
    AsyncpgConnection,
    AsyncpgDriver,
    Driver,
    Fetcher,
    NeutralDriver,
    Session,
    reported,
)
from reflexr.sql.statements import Parameters, Row, Statement
from reflexr.sql.translation import is_disconnect
from reflexr.sql.values import micros
from reflexr.workspace import Clock, system_clock

ATTEMPTS: Final = 3
"""How often a call is tried that did nothing yet, where the connection turns out to be lost."""

_CLOSING: Final = timedelta(seconds=5)
"""How long closing waits for connections at most."""


class Database:
    """The database of an engine, and its clock.

    Attributes:
        is_postgresql: Whether it is PostgreSQL, rather than SQLite.
    """

    def __init__(self, engine: AsyncEngine, *, clock: Clock | None, direct: bool = True) -> None:
        """Takes an engine.

        Args:
            engine: Whose pool's connections to use.
            clock: What time it is; by default PostgreSQL's own clock, and the system's for SQLite, which has none.
            direct: Whether asyncpg and aiosqlite are handed statements themselves, rather than through SQLAlchemy.

        Raises:
            EngineError: The engine has another driver.
        """
        kind = (engine.dialect.name, engine.dialect.driver)
        if kind not in (("postgresql", "asyncpg"), ("sqlite", "aiosqlite")):
            raise EngineError(
                f"an engine of {'+'.join(kind)!r} cannot be used: create one of 'postgresql+asyncpg' with "
                "create_async_engine, or one of 'sqlite+aiosqlite' with create_sqlite_engine"
            )
        self.engine = engine
        self.is_postgresql = engine.dialect.name == "postgresql"
        self._direct = direct
        self._clock = clock if clock is not None or self.is_postgresql else system_clock
        self._latest: datetime | None = None
        # SQLite has one writer at a time: this process's take turns in the order in which they come.
        self._lock = None if self.is_postgresql else FairLock()

    def now(self) -> int | None:
        """Returns what time it is, in microseconds, or `None` where the database itself knows.

        A clock that goes back is taken to stand still.
        """
        if self._clock is None:
            return None
        now = self._clock()
        self._latest = now if self._latest is None else max(self._latest, now)
        return micros(self._latest)

    async def fetch(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        """Executes a statement alone, and returns its rows. Doing it twice must be as good as once."""
        return await _retried(lambda: self._fetch(statement, parameters))

    async def once(
        self, statement: Statement, parameters: Parameters, done: Callable[[Sequence[Row]], None]
    ) -> Sequence[Row]:
        """Executes a statement alone and once, and returns its rows.

        Args:
            statement: The statement.
            parameters: What it is given.
            done: What to do once it is committed, given the rows, also for a caller that was cancelled meanwhile.

        Raises:
            DatabaseUnavailableError: The connection was lost, so that nobody knows whether it was executed.
        """
        connection = await _retried(lambda: or_give_back(self._open(), _close, owner=self.engine))
        return await to_the_end(connection.only(statement, parameters, done))

    @asynccontextmanager
    async def transaction[T](
        self,
        begin: Callable[[Session], Coroutine[Any, Any, T]],
        committed: Callable[[], None] = lambda: None,
        lock: FairLock | None = None,
    ) -> AsyncGenerator[tuple[Session, T]]:
        """Opens a transaction, which commits when the block ends normally and rolls back if it raises.

        Args:
            begin: What to do in it first, such as taking a lock. It is done again where the connection turns out to be
                lost, as nothing was done by then.
            committed: What to do once it is committed, also for a caller that was cancelled meanwhile.
            lock: What the caller has, if it waits for others than for SQLite's one writer: what it leaves keeps it.
        """
        lock = lock if self._lock is None else self._lock
        async with nullcontext() if self._lock is None else self._lock.turn():
            connection, began = await _retried(
                lambda: or_give_back(self._begin(begin), _roll_back, owner=self.engine, lock=lock)
            )
            try:
                yield Session(connection.driver), began
            except BaseException:
                await to_the_end(connection.rollback())
                raise
            await to_the_end(connection.commit(committed))

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[Fetcher]:
        """Gives what executes several statements that write.

        On PostgreSQL each is alone, so that no two hold rows that the other waits for; SQLite, where each commit costs
        more and nobody can hold anything meanwhile, has them in one transaction.
        """
        if self.is_postgresql:
            yield self
        else:
            async with self.transaction(_nothing) as (session, _):
                yield session

    async def close(self) -> None:
        """Waits, for a while, until the connections that cancelled callers would have had are back in the pool.

        What is not back by then is once its call has ended.
        """
        await given_back(self.engine, _CLOSING)

    async def _fetch(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        connection = await or_give_back(self._open(), _close, owner=self.engine)
        return await to_the_end(connection.only(statement, parameters))

    async def _begin[T](self, begin: Callable[[Session], Coroutine[Any, Any, T]]) -> "tuple[_Connection, T]":
        connection = await self._open()
        try:
            await reported(connection.driver.begin())
            return connection, await begin(Session(connection.driver))
        except BaseException:
            await connection.rollback()
            raise

    async def _open(self) -> "_Connection":
        return await reported(_connected(self.engine, direct=self._direct))


class _Connection:
    """A connection that was taken from the pool. It goes back, or is thrown away if anything is wrong with it."""

    def __init__(self, connection: AsyncConnection, driver: Driver) -> None:
        self.driver = driver
        self._connection = connection

    async def only(
        self, statement: Statement, parameters: Parameters, done: Callable[[Sequence[Row]], None] = lambda _: None
    ) -> Sequence[Row]:
        """Executes one statement, does what is to be done then, and gives the connection back."""
        try:
            rows = await reported(self.driver.alone(statement, parameters))
        except SqlStorageError as error:
            await (self.discard() if is_disconnect(error) else self.close())
            raise
        except BaseException:
            await self.discard()
            raise
        done(rows)
        await self.close()
        return rows

    async def commit(self, committed: Callable[[], None]) -> None:
        """Commits, and gives the connection back."""
        try:
            await reported(self.driver.commit())
        except BaseException:
            await self.discard()
            raise
        committed()
        await self.close()

    async def rollback(self) -> None:
        """Rolls back, and gives the connection back. Where that fails, the database rolls back by itself."""
        try:
            await reported(self.driver.rollback())
        except SqlStorageError:
            await self.discard()
        except BaseException:
            await self.discard()
            raise
        else:
            await self.close()

    async def close(self) -> None:
        """Gives the connection back."""
        await self._connection.close()

    async def discard(self) -> None:
        """Throws the connection away."""
        await self._connection.invalidate()
        await self._connection.close()


async def _connected(engine: AsyncEngine, *, direct: bool) -> _Connection:
    connection = await engine.connect()
    try:
        return await _driven(connection, direct=direct)
    except BaseException:
        await connection.close()
        raise


async def _driven(connection: AsyncConnection, *, direct: bool) -> _Connection:
    if not direct:
        await connection.execution_options(**{BEGIN_OPTION: "DEFERRED"})
        return _Connection(connection, NeutralDriver(connection))
    raw = await connection.get_raw_connection()
    if connection.dialect.name == "sqlite":
        return _Connection(connection, AiosqliteDriver(cast("AiosqliteConnection", raw.driver_connection)))
    while cast("AsyncpgConnection", raw.driver_connection).is_closed():
        # The server hung up while the connection was in the pool.
        await connection.invalidate()
        raw = await connection.get_raw_connection()
    return _Connection(connection, AsyncpgDriver(cast("AsyncpgConnection", raw.driver_connection)))


async def _retried[T](call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Makes a call that does all or nothing, again if the connection turned out to be lost."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await call()
        except SqlStorageError as error:
            if not is_disconnect(error):
                raise
    return await call()


async def _close(connection: _Connection) -> None:
    await connection.close()


async def _roll_back(began: tuple[_Connection, Any]) -> None:
    await began[0].rollback()


async def _nothing(session: Session) -> None:
    """Takes no lock but that of beginning."""
