"""A backend from outside this repository keeps the contract, every feature of it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import ClassVar, override

from reflexr.contracts import Feature, ReactorContract, StorageContract
from reflexr.workspace import ManualClock, Storage

from .outside_storage import Database, DictionaryStorage


class TestOutsideStorage(StorageContract, ReactorContract):
    features: ClassVar[frozenset[Feature]] = frozenset(Feature)
    # It looks through all that it holds.
    crowd: ClassVar[int] = 100
    quiet: ClassVar[int] = 100

    @override
    @asynccontextmanager
    async def storage(self, clock: ManualClock) -> AsyncGenerator[Storage]:
        yield DictionaryStorage(Database(), clock)

    @override
    @asynccontextmanager
    async def beside(self, storage: Storage, clock: ManualClock) -> AsyncGenerator[Storage]:
        assert isinstance(storage, DictionaryStorage)
        yield DictionaryStorage(storage.database, clock)
