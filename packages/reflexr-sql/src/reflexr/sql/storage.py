"""`SqlStorage`: the workspaces of every tenant in PostgreSQL or SQLite.

It opens transactions and serves reads; the statements are in the modules of `reflexr.sql.catalog`.
"""

from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Self, override

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from reflexr.core import DeadLetter, Draft, Envelope, RuleProgress, Run, StoredRule
from reflexr.sql.cancellation import FairLock, to_the_end
from reflexr.sql.catalog import catalog_of
from reflexr.sql.databases import Database
from reflexr.sql.discovery import START
from reflexr.sql.errors import EngineError
from reflexr.sql.leases import is_of_run
from reflexr.sql.members import Known
from reflexr.sql.sessions import NeutralDriver, Session, reported
from reflexr.sql.statements import named
from reflexr.sql.transactions import SqlTransaction
from reflexr.sql.turns import Share
from reflexr.sql.values import moment
from reflexr.sql.wakeups import POLL_INTERVAL, DatabaseWakeups, PostgresLink, SqliteLink
from reflexr.workspace import (
    Clock,
    Deadline,
    DueRun,
    DueSchedule,
    Head,
    LeaseKey,
    LogWindow,
    RunPolicy,
    RunQuery,
    Storage,
    Transaction,
    Watch,
    WorkspaceError,
    WorkspaceRef,
)


class SqlStorage(Storage):
    """Keeps the workspaces of every tenant in a database, which any number of processes share.

    Run `migrate` once before it is used. Close it before the engine is disposed of, so that every connection is back by
    then: `async with SqlStorage(engine) as storage`, or `close`. The engine stays its owner's.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        clock: Clock | None = None,
        poll_interval: timedelta = POLL_INTERVAL,
        listen: bool = True,
        direct: bool = True,
    ) -> None:
        """Takes an engine; nothing is asked of the database before it is used.

        Args:
            engine: One of `postgresql+asyncpg`, or one of SQLite from `create_sqlite_engine`. A transaction takes one
                of its pool's connections, and so does a read, while it lasts; wake-ups have one of their own.
            clock: What time it is; by default PostgreSQL's own clock, so that no host's can go wrong, and the system's
                for SQLite.
            poll_interval: How long listeners wait at most before they look by themselves, where a notification was
                lost; by default half a second.
            listen: Whether wake-ups cross processes, by `LISTEN` and `NOTIFY` or by the version of the SQLite file. Not
                through a pooler that shares connections between transactions: there, listeners poll.
            direct: Whether asyncpg and aiosqlite are handed statements themselves, which is twice as fast, rather than
                through SQLAlchemy, where its events see them.

        Raises:
            EngineError: The engine has another driver.
            WorkspaceError: The poll interval is not more than zero.
        """
        if poll_interval <= timedelta():
            raise WorkspaceError(f"poll_interval= is more than zero, not {poll_interval!r}")
        self._database = Database(engine, clock=clock, direct=direct)
        self._catalog = catalog_of(type(engine.dialect))
        self._known: Known = {}
        self._after = START
        self._wakeups = DatabaseWakeups(poll_interval)
        if listen:
            link = PostgresLink if self._database.is_postgresql else SqliteLink
            self._wakeups.link = link(engine, self._wakeups)
        self._notifies = listen and self._database.is_postgresql
        self._locks: dict[WorkspaceRef, FairLock] = {}

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes it."""
        await self.close()

    async def close(self) -> None:
        """Ends the wake-ups between processes, and waits until their connection and all others are back in the pool.

        That is a matter of moments: a call whose caller was cancelled goes on until it can be given up, such as one
        that waits for another's lock, and is waited for no longer than 5 seconds. All begins again if it is used.
        """
        if self._wakeups.link is not None:
            await self._wakeups.link.stop()
        await self._database.close()

    @property
    def engine(self) -> AsyncEngine:
        """The engine that it was given."""
        return self._database.engine

    @property
    @override
    def wakeups(self) -> DatabaseWakeups:
        return self._wakeups

    @asynccontextmanager
    async def joined(
        self, connection: AsyncConnection | AsyncSession, workspace: WorkspaceRef
    ) -> AsyncGenerator[Transaction]:
        """Opens a transaction on a workspace that is part of the caller's own, on the same database.

        What it writes is visible, and wakes others, once the caller commits, and is gone if the caller rolls back. If
        the block raises, what it wrote is gone at once, and the caller's transaction can go on.

        The workspace is locked from here until the caller's transaction ends. So join late and commit soon; take your
        own locks first, everywhere; and join several workspaces in the order of their tenants and ids. PostgreSQL has
        to read what was committed meanwhile, so the transaction is one of its default, READ COMMITTED. SQLite has one
        writer: nothing else of this process may write to the file meanwhile in the same task.

        Args:
            connection: The caller's connection or session; of SQLite, one of an engine from `create_sqlite_engine`.
            workspace: The workspace, which need not exist yet.

        Raises:
            EngineError: The connection is of another kind of database, or commits each statement by itself.
            StorageError: The database cannot be reached, or failed.
        """
        if isinstance(connection, AsyncSession):
            connection = await connection.connection()
        _check_joined(connection, postgresql=self._database.is_postgresql)
        session = Session(NeutralDriver(connection))
        async with _savepoint(connection):
            transaction = await self._begin(workspace, session)
            try:
                yield transaction
                await transaction.settle()
                if self._notifies and transaction.changed:
                    await self._catalog.notifications.notify(session, workspace)
            finally:
                transaction.close()

    @override
    async def now(self) -> datetime:
        if (now := self._database.now()) is not None:
            return moment(now)
        return moment(await self._catalog.clock.now(self._database))

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        at_hand: list[SqlTransaction] = []

        async def take(session: Session) -> SqlTransaction:
            return await self._begin(workspace, session)

        def committed() -> None:
            for transaction in at_hand:
                transaction.committed()
                if transaction.changed:
                    self._wakeups.announce((workspace,))

        async with (
            self._turn(workspace) as lock,
            self._database.transaction(take, committed, lock) as (_, transaction),
        ):
            at_hand.append(transaction)
            try:
                yield transaction
                await transaction.settle()
            finally:
                transaction.close()

    @override
    async def append(self, workspace: WorkspaceRef, drafts: Sequence[Draft]) -> list[Envelope]:
        if len({draft.id for draft in drafts}) == len(drafts) > 0:
            async with self._turn(workspace):
                appended = await self._catalog.appends.append(
                    self._database, workspace, drafts, lambda: self._wakeups.announce((workspace,))
                )
            if appended is not None:
                return appended
        return await super().append(workspace, drafts)

    # --- One workspace's data

    @override
    async def head(self, workspace: WorkspaceRef) -> Head:
        seq, ts = await self._catalog.locks.head(self._database, named(workspace))
        return Head(seq, None if ts is None else moment(ts))

    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        return await self._catalog.logs.read(self._database, named(workspace), window)

    @override
    async def find(self, workspace: WorkspaceRef, ids: Collection[str]) -> dict[str, Envelope]:
        return await self._catalog.logs.find(self._database, named(workspace), ids)

    @override
    async def rule_history(self, workspace: WorkspaceRef, rule: str) -> list[Envelope]:
        return await self._catalog.logs.rule_history(self._database, named(workspace), rule)

    @override
    async def stored_rules(
        self, workspace: WorkspaceRef, names: Collection[str] | None = None
    ) -> dict[str, StoredRule]:
        return await self._catalog.stored_rules.load(self._database, named(workspace), names)

    @override
    async def progress(self, workspace: WorkspaceRef) -> dict[str, RuleProgress]:
        return await self._catalog.progress.load(self._database, named(workspace))

    @override
    async def runs(self, workspace: WorkspaceRef, query: RunQuery) -> list[Run]:
        return await self._catalog.runs.find(self._database, named(workspace), query)

    @override
    async def run(self, workspace: WorkspaceRef, run_id: str) -> Run | None:
        return (await self._catalog.runs.load(self._database, named(workspace), [run_id])).get(run_id)

    @override
    async def dead_letters(
        self, workspace: WorkspaceRef, *, rule: str | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        return await self._catalog.dead_letters.newest(self._database, named(workspace), rule, limit)

    @override
    async def dead_letter_counts(self, workspace: WorkspaceRef) -> dict[str, int]:
        return await self._catalog.dead_letters.counts(self._database, named(workspace))

    @override
    async def schedule_ticks(self, workspace: WorkspaceRef) -> dict[str, datetime]:
        return await self._catalog.ticks.load(self._database, named(workspace))

    @override
    async def cursor(self, workspace: WorkspaceRef, name: str) -> int:
        return await self._catalog.cursors.load(self._database, named(workspace), name)

    @override
    async def save_cursor(self, workspace: WorkspaceRef, name: str, seq: int) -> int:
        async with self._database.changes() as fetcher:
            return await self._catalog.cursors.save(fetcher, named(workspace), name, seq)

    # --- Leases

    @override
    async def acquire(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        if not keys:
            return frozenset()
        async with self._database.changes() as fetcher:
            taken = await self._catalog.leases.acquire(fetcher, keys, holder, ttl, self._database.now())
            await self._catalog.leases.set_later(fetcher, taken)
        return frozenset(taken)

    @override
    async def renew(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        if not keys:
            return frozenset()
        async with self._database.changes() as fetcher:
            renewed = await self._catalog.leases.renew(fetcher, keys, holder, ttl, self._database.now())
            await self._catalog.leases.set_later(fetcher, renewed)
        return frozenset(renewed)

    @override
    async def release(self, keys: Collection[LeaseKey], holder: str) -> None:
        if not keys:
            return
        async with self._database.changes() as fetcher:
            if of_runs := [one for one in keys if is_of_run(one)]:
                held = await self._catalog.leases.held(fetcher, of_runs, holder)
                await self._catalog.leases.set_due(fetcher, dict.fromkeys(held, 0))
            released = await self._catalog.leases.release(fetcher, keys, holder)
        self._wakeups.announce({one.workspace for one in released})

    # --- Discovery

    @override
    async def workspaces(
        self, *, tenant_id: str | None = None, after: WorkspaceRef | None = None, limit: int | None = None
    ) -> list[WorkspaceRef]:
        return await self._catalog.workspaces.all(self._database, tenant_id, after, limit)

    @override
    async def behind(self, watch: Watch, *, limit: int) -> list[WorkspaceRef]:
        found, self._after = await self._catalog.workspaces.behind(
            self._database, self._known, watch, self._after, limit
        )
        return found

    @override
    async def due_runs(
        self,
        policy: RunPolicy,
        *,
        limit: int,
        each: int | None = None,
        after: WorkspaceRef | None = None,
        but_runs: Collection[LeaseKey] = (),
        but_workspaces: Collection[WorkspaceRef] = (),
    ) -> list[DueRun]:
        share = Share(limit, each, after, policy.withheld, frozenset(but_runs), frozenset(but_workspaces))
        return await self._catalog.due_runs.find(self._database, policy, share, self._database.now())

    @override
    async def next_due(self, policy: RunPolicy) -> timedelta | None:
        return await self._catalog.due_runs.next(self._database, policy, self._database.now())

    @override
    async def due_schedules(self, deadlines: Mapping[str, Deadline], *, limit: int) -> list[DueSchedule]:
        return await self._catalog.due_schedules.find(self._database, self._known, deadlines, limit)

    # --- Inside

    async def _begin(self, workspace: WorkspaceRef, session: Session) -> SqlTransaction:
        row = await self._catalog.locks.take(session, named(workspace))
        given = self._database.now()
        row.now = row.now if given is None else given
        return SqlTransaction(workspace, row, session, self._catalog, self._known)

    @asynccontextmanager
    async def _turn(self, workspace: WorkspaceRef) -> AsyncGenerator[FairLock]:
        """Waits for those of this process who came before, without a connection: the pool has few."""
        if (lock := self._locks.get(workspace)) is None:
            lock = self._locks[workspace] = FairLock(lambda: self._locks.pop(workspace))
        async with lock.turn():
            yield lock


@asynccontextmanager
async def _savepoint(connection: AsyncConnection) -> AsyncGenerator[None]:
    """Undoes what the block did if it raises, and nothing else of the caller's transaction."""
    savepoint = await to_the_end(reported(_awaited(connection.begin_nested())))
    try:
        yield
    except BaseException:
        await to_the_end(reported(savepoint.rollback()))
        raise
    await to_the_end(reported(savepoint.commit()))


async def _awaited[T](awaitable: Awaitable[T]) -> T:
    return await awaitable


def _check_joined(connection: AsyncConnection, *, postgresql: bool) -> None:
    expected = "postgresql" if postgresql else "sqlite"
    if connection.dialect.name != expected:
        raise EngineError(
            f"a connection to {connection.dialect.name!r} cannot be joined: the storage is in {expected!r}, "
            "and a transaction is one database's"
        )
    started = connection.sync_connection
    if started is not None and started.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise EngineError(
            "a connection that commits each statement by itself cannot be joined: begin a transaction on another"
        )
