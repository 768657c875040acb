"""What a log in a database costs to write, beside the drivers beneath with statements written by hand."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime
from secrets import token_hex

from reflexr.core import SourceActor
from reflexr.sql import SqlStorage
from reflexr.workspace import Workspace, WorkspaceRef, Workspaces

from .databases import AsyncpgConnection, connect, database, dsn_of
from .deciding import ServiceError, log
from .harness import Cost, Sides, benchmark, timed, timed_async

MANY = 100
REF = WorkspaceRef("bench", "bench")
PLACE = (REF.tenant_id, REF.workspace_id)
PUBLISHER = SourceActor(name="bench")

type RawRow = tuple[str, str, str]
"""An event's id, type and envelope."""


def events(number: int) -> list[ServiceError]:
    """Events whose envelopes have about 400 bytes."""
    return [ServiceError(service=f"service-{index % 100}", severity=8, message="x" * 110) for index in range(number)]


def raw_rows(number: int) -> list[RawRow]:
    """As many rows as they are written, each with an id of its own."""
    texts = [envelope.to_json() for envelope in log(number, scopes=100)]
    return [(f"evt_{token_hex(8)}", ServiceError.event_type, text) for text in texts]


class RawPostgresql:
    """A log by hand over asyncpg: a row for each workspace, which is locked, and events with two indexes."""

    def __init__(self, connection: AsyncpgConnection) -> None:
        self._connection = connection

    async def create(self) -> None:
        """Creates the tables, and the workspace."""
        await self._connection.execute(
            "CREATE TABLE raw_logs"
            " (tenant text, workspace text, head bigint, at bigint, PRIMARY KEY (tenant, workspace));"
            "CREATE TABLE raw_events (tenant text, workspace text, seq bigint, id text, type text, envelope json,"
            " PRIMARY KEY (tenant, workspace, seq), UNIQUE (tenant, workspace, id));"
            "INSERT INTO raw_logs VALUES ('bench', 'bench', 0, 0)"
        )

    async def publish(self, rows: Sequence[RawRow]) -> None:
        """Appends rows in a transaction of three statements."""
        execute = self._connection.execute
        await execute("BEGIN")
        ((head,),) = await self._connection.fetch(
            "SELECT head FROM raw_logs WHERE tenant = $1 AND workspace = $2 FOR UPDATE", *PLACE
        )
        if len(rows) == 1:
            await execute("INSERT INTO raw_events VALUES ($1, $2, $3, $4, $5, $6)", *PLACE, head + 1, *rows[0])
        else:
            ids, types, texts = zip(*rows, strict=True)
            await execute(
                "INSERT INTO raw_events SELECT $1, $2, * FROM unnest($3::bigint[], $4::text[], $5::text[], $6::json[])",
                *PLACE,
                list(range(head + 1, head + 1 + len(rows))),
                ids,
                types,
                texts,
            )
        await execute(
            "UPDATE raw_logs SET head = $3, at = $4 WHERE tenant = $1 AND workspace = $2",
            *PLACE,
            head + len(rows),
            _micros(),
        )
        await execute("COMMIT")


class RawSqlite:
    """The same by hand over `sqlite3`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def create(self) -> None:
        """Creates the tables, and the workspace."""
        self._connection.executescript(
            "CREATE TABLE raw_logs (tenant text, workspace text, head int, at int, PRIMARY KEY (tenant, workspace));"
            "CREATE TABLE raw_events (tenant text, workspace text, seq int, id text, type text, envelope text,"
            " PRIMARY KEY (tenant, workspace, seq), UNIQUE (tenant, workspace, id));"
            "INSERT INTO raw_logs VALUES ('bench', 'bench', 0, 0)"
        )

    def publish(self, rows: Sequence[RawRow]) -> None:
        """Appends rows in a transaction of three statements."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        ((head,),) = execute("SELECT head FROM raw_logs WHERE tenant = ? AND workspace = ?", PLACE).fetchall()
        self._connection.executemany(
            "INSERT INTO raw_events VALUES (?, ?, ?, ?, ?, ?)",
            [(*PLACE, seq, *row) for seq, row in enumerate(rows, start=head + 1)],
        )
        execute(
            "UPDATE raw_logs SET head = ?, at = ? WHERE tenant = ? AND workspace = ?",
            (head + len(rows), _micros(), *PLACE),
        )
        execute("COMMIT")


@benchmark("publish_many of 100, PostgreSQL, to raw asyncpg", at_least=0.5)
async def batches_on_postgresql() -> AsyncGenerator[Sides]:
    """Events a second."""
    transactions = 50
    async with _beside_asyncpg() as (workspace, raw):
        batch = events(MANY)
        batches: list[list[RawRow]] = []

        async def prepare() -> None:
            batches[:] = [raw_rows(MANY) for _ in range(transactions)]

        async def by_hand() -> None:
            for rows in batches:
                await raw.publish(rows)

        async def publish() -> None:
            for _ in range(transactions):
                await workspace.publish_many(batch)

        units = transactions * MANY
        yield Sides(ours=timed_async(publish, units=units), raw=timed_async(by_hand, units=units, before=prepare))


@benchmark("one publish after another, PostgreSQL, to raw asyncpg", at_least=0.6)
async def single_events_on_postgresql() -> AsyncGenerator[Sides]:
    """Events a second."""
    number = 500
    async with _beside_asyncpg() as (workspace, raw):
        (event,) = events(1)

        async def publish() -> None:
            for _ in range(number):
                await workspace.publish(event)

        yield Sides(ours=timed_async(publish, units=number), raw=_one_by_one(raw, number))


@benchmark("64 publishes at once to one workspace, PostgreSQL, to raw transactions one after another", at_least=5)
async def publishes_at_once() -> AsyncGenerator[Sides]:
    """Events a second."""
    publishers, each, number = 64, 20, 300
    async with _beside_asyncpg() as (workspace, raw):
        (event,) = events(1)

        async def publisher() -> None:
            for _ in range(each):
                await workspace.publish(event)

        async def publish() -> None:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(publishers):
                    tasks.create_task(publisher())

        yield Sides(ours=timed_async(publish, units=publishers * each), raw=_one_by_one(raw, number))


@benchmark("publish_many of 100, SQLite, to raw sqlite3", at_least=0.3)
async def batches_on_sqlite() -> AsyncGenerator[Sides]:
    """Events a second."""
    transactions = 50
    async with database("sqlite") as engine, database("sqlite", schema=False) as other, SqlStorage(engine) as storage:
        with _sqlite3(str(other.url.database)) as connection:
            raw = RawSqlite(connection)
            raw.create()
            workspace = handle_on(storage)
            batch = events(MANY)
            batches: list[list[RawRow]] = []

            def prepare() -> None:
                batches[:] = [raw_rows(MANY) for _ in range(transactions)]

            def by_hand() -> None:
                for rows in batches:
                    raw.publish(rows)

            async def publish() -> None:
                for _ in range(transactions):
                    await workspace.publish_many(batch)

            units = transactions * MANY
            yield Sides(ours=timed_async(publish, units=units), raw=timed(by_hand, units=units, before=prepare))


def handle_on(storage: SqlStorage) -> Workspace:
    """A workspace in the hands of who publishes."""
    return Workspaces(storage, events=[ServiceError]).handle(REF, actor=PUBLISHER)


@asynccontextmanager
async def _beside_asyncpg() -> AsyncGenerator[tuple[Workspace, RawPostgresql]]:
    """A workspace, and a log by hand in the same database."""
    async with database("postgresql") as engine, SqlStorage(engine) as storage, AsyncExitStack() as stack:
        connection = await connect(dsn_of(engine))
        stack.push_async_callback(connection.close)
        raw = RawPostgresql(connection)
        await raw.create()
        yield handle_on(storage), raw


def _one_by_one(raw: RawPostgresql, number: int) -> Cost:
    """Transactions by hand of one event, one after another."""
    rows: list[RawRow] = []

    async def prepare() -> None:
        rows[:] = raw_rows(number)

    async def by_hand() -> None:
        for row in rows:
            await raw.publish([row])

    return timed_async(by_hand, units=number, before=prepare)


@contextmanager
def _sqlite3(path: str) -> Generator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        yield connection


def _micros() -> int:
    return int(datetime.now(UTC).timestamp() * 1_000_000)
