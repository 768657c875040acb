"""The contracts over both databases, and over both ways in which a statement gets to them."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar, override

from reflexr.contracts import CommandResultsContract, Feature, ReactorContract, StorageContract, WakeupsContract
from reflexr.sql import SqlCommandResults, SqlStorage
from reflexr.workspace import CommandResults, ManualClock, Storage, Wakeups

from .servers import Kind, beside, engine_of

SHARED = frozenset({Feature.MOVABLE_CLOCK, Feature.SHARED_DATA})


@asynccontextmanager
async def opened(kind: Kind, clock: ManualClock, *, direct: bool) -> AsyncGenerator[Storage]:
    async with engine_of(kind) as engine, SqlStorage(engine, clock=clock, direct=direct, listen=False) as storage:
        yield storage


@asynccontextmanager
async def opened_beside(storage: Storage, clock: ManualClock, *, direct: bool) -> AsyncGenerator[Storage]:
    assert isinstance(storage, SqlStorage)
    engine = beside(storage.engine)
    async with SqlStorage(engine, clock=clock, direct=direct, listen=False) as other:
        yield other
    await engine.dispose()


class SqlStorageContract(StorageContract):
    kind: ClassVar[Kind]
    direct: ClassVar[bool] = True

    @override
    def storage(self, clock: ManualClock) -> AbstractAsyncContextManager[Storage]:
        return opened(self.kind, clock, direct=self.direct)

    @override
    def beside(self, storage: Storage, clock: ManualClock) -> AbstractAsyncContextManager[Storage]:
        return opened_beside(storage, clock, direct=self.direct)


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


class SqlReactorContract(ReactorContract):
    kind: ClassVar[Kind]
    # Many more are in `test_reacting`, made by statements of their own.
    crowd: ClassVar[int] = 60
    quiet: ClassVar[int] = 200

    @override
    def storage(self, clock: ManualClock) -> AbstractAsyncContextManager[Storage]:
        return opened(self.kind, clock, direct=True)

    @override
    def beside(self, storage: Storage, clock: ManualClock) -> AbstractAsyncContextManager[Storage]:
        return opened_beside(storage, clock, direct=True)


class TestReactorOverSqlite(SqlReactorContract):
    kind: ClassVar[Kind] = "sqlite"
    features: ClassVar[frozenset[Feature]] = SHARED


class TestReactorOverPostgresql(SqlReactorContract):
    kind: ClassVar[Kind] = "postgresql"
    features: ClassVar[frozenset[Feature]] = SHARED | {Feature.PARALLEL_WORKSPACES}


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
