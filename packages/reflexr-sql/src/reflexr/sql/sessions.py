"""Sessions: one connection of the engine's pool, and the drivers beneath it.

Every statement of a storage goes through `Session.fetch`, which awaits it to its end and translates what went wrong.
asyncpg and aiosqlite are handed the compiled statement as it is. The same text goes through SQLAlchemy where the
connection is the caller's own, which takes about twice as long.
"""

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, override

from sqlalchemy.ext.asyncio import AsyncConnection

from reflexr.sql.cancellation import uninterrupted
from reflexr.sql.errors import SqlStorageError
from reflexr.sql.statements import Parameters, Row, Statement
from reflexr.sql.translation import translated

BEGIN_OPTION: Final = "sqlite_begin"
"""The execution option that says how SQLite begins SQLAlchemy's own transactions: IMMEDIATE by default."""


class Fetcher(Protocol):
    """Executes statements: a session, or a database on any of its connections."""

    async def fetch(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        """Executes a statement to its end, and returns its rows.

        Raises:
            SqlStorageError: What went wrong.
        """
        ...


class Driver(ABC):
    """Talks to the database over one connection."""

    @abstractmethod
    async def begin(self) -> None:
        """Begins a transaction."""

    @abstractmethod
    async def commit(self) -> None:
        """Commits it.

        Raises:
            SqlStorageError: The database rolled it back instead.
        """

    @abstractmethod
    async def rollback(self) -> None:
        """Rolls it back."""

    @abstractmethod
    async def fetch(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        """Executes a statement, and returns its rows, none if it has none."""

    async def alone(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        """Executes a statement that is a transaction of its own."""
        return await self.fetch(statement, parameters)

    async def execute_many(self, statement: Statement, parameters: Sequence[Parameters]) -> None:
        """Executes a statement with each of these parameters in turn."""
        for one in parameters:
            await self.fetch(statement, one)


class Session:
    """One connection, in the hands of one caller."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def fetch(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        """Executes a statement to its end, and returns its rows.

        Raises:
            SqlStorageError: What went wrong.
        """
        return await uninterrupted(reported(self._driver.fetch(statement, parameters)))

    async def execute_many(self, statement: Statement, parameters: Sequence[Parameters]) -> None:
        """Executes a statement with each of these parameters in turn, to the end.

        Raises:
            SqlStorageError: What went wrong; what was done before is not undone.
        """
        await uninterrupted(reported(self._driver.execute_many(statement, parameters)))


async def reported[T](call: Coroutine[Any, Any, T]) -> T:
    """Awaits a call to a database, and raises what goes wrong as one of our errors.

    Raises:
        SqlStorageError: What went wrong, with the driver's error as its cause.
    """
    try:
        return await call
    except Exception as error:
        if (meant := translated(error)) is None:
            raise
        raise meant from error


class AsyncpgConnection(Protocol):
    """What is used of asyncpg's connection."""

    def is_closed(self) -> bool:
        """Whether it is of no use any more."""
        ...

    async def execute(self, query: str) -> str:
        """Executes a statement without parameters, and returns the server's word for what it did."""
        ...

    async def fetch(self, query: str, *args: object) -> Sequence[Row]:
        """Executes a statement, and returns its rows."""
        ...


class AiosqliteConnection(Protocol):
    """What is used of aiosqlite's connection."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    async def execute_fetchall(self, sql: str, parameters: Sequence[object] = ...) -> Sequence[Row]:
        """Executes a statement, and returns its rows."""
        ...

    async def executemany(self, sql: str, parameters: Sequence[Sequence[object]]) -> object:
        """Executes a statement with each of these parameters."""
        ...


class AsyncpgDriver(Driver):
    """asyncpg's own connection."""

    def __init__(self, connection: AsyncpgConnection) -> None:
        self._connection = connection

    @override
    async def begin(self) -> None:
        # Whoever waited for a lock has to read what was committed meanwhile, whatever the database's default is.
        await self._connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")

    @override
    async def commit(self) -> None:
        if await self._connection.execute("COMMIT") != "COMMIT":
            raise SqlStorageError("the transaction was rolled back, as one of its statements had failed")

    @override
    async def rollback(self) -> None:
        await self._connection.execute("ROLLBACK")

    @override
    async def fetch(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        return await self._connection.fetch(statement.text, *statement.arguments(parameters))


class AiosqliteDriver(Driver):
    """aiosqlite's own connection."""

    def __init__(self, connection: AiosqliteConnection) -> None:
        self._connection = connection

    @override
    async def begin(self) -> None:
        await self._connection.execute_fetchall("BEGIN IMMEDIATE")

    @override
    async def commit(self) -> None:
        await self._connection.execute_fetchall("COMMIT")

    @override
    async def rollback(self) -> None:
        if self._connection.in_transaction:
            await self._connection.execute_fetchall("ROLLBACK")

    @override
    async def fetch(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        return await self._connection.execute_fetchall(statement.text, statement.arguments(parameters))

    @override
    async def execute_many(self, statement: Statement, parameters: Sequence[Parameters]) -> None:
        await self._connection.executemany(statement.text, [statement.arguments(one) for one in parameters])


class NeutralDriver(Driver):
    """SQLAlchemy's connection: the reference for the others."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    @override
    async def begin(self) -> None:
        await self._connection.execution_options(**{BEGIN_OPTION: "IMMEDIATE"})
        await self._connection.begin()

    @override
    async def commit(self) -> None:
        await self._connection.commit()

    @override
    async def rollback(self) -> None:
        await self._connection.rollback()

    @override
    async def fetch(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        result = await self._connection.exec_driver_sql(statement.text, tuple(statement.arguments(parameters)))
        return result.all() if result.returns_rows else ()

    @override
    async def alone(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        rows = await self.fetch(statement, parameters)
        await self._connection.commit()
        return rows
