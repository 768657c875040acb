"""The contracts over both databases, and over both ways in which a statement gets to them."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar, override

from reflexr.contracts import CommandResultsContract, Feature, StorageContract, WakeupsContract
from reflexr.sql import SqlCommandResults, SqlStorage
from reflexr.workspace import CommandResults, ManualClock, Storage, Wakeups

from .servers import Kind, beside, engine_of

SHARED = frozenset({Feature.MOVABLE_CLOCK, Feature.SHARED_DATA})


class SqlStorageContract(StorageContract):
    kind: ClassVar[Kind]
    direct: ClassVar[bool] = True

    @override
    @asynccontextmanager
    async def storage(self, clock: ManualClock) -> AsyncGenerator[Storage]:
        async with (
            engine_of(self.kind) as engine,
            SqlStorage(engine, clock=clock, direct=self.direct, listen=False) as storage,
        ):
            yield storage

    @override
    @asynccontextmanager
    async def beside(self, storage: Storage, clock: ManualClock) -> AsyncGenerator[Storage]:
        assert isinstance(storage, SqlStorage)
        engine = beside(storage.engine)
        async with SqlStorage(engine, clock=clock, direct=self.direct, listen=False) as other:
            yield other
        await engine.dispose()


class TestSqlite(SqlStorageContract):
    kind: ClassVar[Kind] = "sqlite"
    features: ClassVar[frozenset[Feature]] = SHARED


class TestPostgresql(SqlStorageContract):
    kind: ClassVar[Kind] = "postgresql"
    # What each answers is the same statement's answer; a server takes longer for as many.
    examples: ClassVar[int] = 15
    features: ClassVar[frozenset[Feature]] = SHARED | {Feature.PARALLEL_WORKSPACES}


class TestSqliteThroughSqlalchemy(TestSqlite):
    direct: ClassVar[bool] = False
    # The same statements take another way: that needs fewer examples of what they answer.
    examples: ClassVar[int] = 5


class TestPostgresqlThroughSqlalchemy(TestPostgresql):
    direct: ClassVar[bool] = False
    examples: ClassVar[int] = 3


class SqlCommandResultsContract(CommandResultsContract):
    kind: ClassVar[Kind]
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.SHARED_DATA})

    @override
    @asynccontextmanager
    async def results(self) -> AsyncGenerator[CommandResults]:
        async with engine_of(self.kind) as engine:
            yield SqlCommandResults(engine)

    @override
    @asynccontextmanager
    async def beside(self, results: CommandResults) -> AsyncGenerator[CommandResults]:
        assert isinstance(results, SqlCommandResults)
        engine = beside(results.engine)
        yield SqlCommandResults(engine)
        await engine.dispose()


class TestSqliteCommandResults(SqlCommandResultsContract):
    kind: ClassVar[Kind] = "sqlite"


class TestPostgresqlCommandResults(SqlCommandResultsContract):
    kind: ClassVar[Kind] = "postgresql"


class SqlWakeupsContract(WakeupsContract):
    kind: ClassVar[Kind]

    @override
    @asynccontextmanager
    async def wakeups(self) -> AsyncGenerator[Wakeups]:
        async with engine_of(self.kind) as engine, SqlStorage(engine) as storage:
            # The link between processes is there from the beginning to the end.
            with storage.wakeups.listen():
                await storage.wakeups.ready()
                yield storage.wakeups

    @override
    def beside(self, wakeups: Wakeups) -> AbstractAsyncContextManager[Wakeups]:
        return self.wakeups()


class TestPostgresqlWakeups(SqlWakeupsContract):
    kind: ClassVar[Kind] = "postgresql"
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.SHARED_WAKEUPS})


class TestSqliteWakeups(SqlWakeupsContract):
    """A commit is what wakes other processes; what is only announced does not."""

    kind: ClassVar[Kind] = "sqlite"
