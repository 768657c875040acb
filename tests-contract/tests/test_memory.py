"""The adapters of reflexr.workspace keep their contracts."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import ClassVar, override

from reflexr.contracts import CommandResultsContract, Feature, ReactorContract, StorageContract, WakeupsContract
from reflexr.workspace import (
    CommandResults,
    InMemoryCommandResults,
    InMemoryStorage,
    InProcessWakeups,
    ManualClock,
    Storage,
    Wakeups,
)


class TestInMemoryStorage(StorageContract):
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.MOVABLE_CLOCK, Feature.PARALLEL_WORKSPACES})

    @override
    @asynccontextmanager
    async def storage(self, clock: ManualClock) -> AsyncGenerator[Storage]:
        yield InMemoryStorage(clock=clock)


class TestInMemoryStorageByTheSystemsClock(StorageContract):
    @override
    @asynccontextmanager
    async def storage(self, clock: ManualClock) -> AsyncGenerator[Storage]:
        yield InMemoryStorage()


class TestReactorOverMemory(ReactorContract):
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.MOVABLE_CLOCK, Feature.PARALLEL_WORKSPACES})
    crowd: ClassVar[int] = 1_000

    @override
    @asynccontextmanager
    async def storage(self, clock: ManualClock) -> AsyncGenerator[Storage]:
        yield InMemoryStorage(clock=clock)


class TestInMemoryCommandResults(CommandResultsContract):
    @override
    @asynccontextmanager
    async def results(self) -> AsyncGenerator[CommandResults]:
        yield InMemoryCommandResults()


class TestInProcessWakeups(WakeupsContract):
    @override
    @asynccontextmanager
    async def wakeups(self) -> AsyncGenerator[Wakeups]:
        yield InProcessWakeups()
