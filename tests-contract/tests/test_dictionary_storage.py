"""A backend from outside this repository keeps the contract, every feature of it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import ClassVar, override

from reflexr.contracts import Feature, StorageContract
from reflexr.workspace import ManualClock, Storage

from .dictionary_storage import Database, DictionaryStorage


class TestDictionaryStorage(StorageContract):
    features: ClassVar[frozenset[Feature]] = frozenset(Feature)

    @override
    @asynccontextmanager
    async def storage(self, clock: ManualClock) -> AsyncGenerator[Storage]:
        yield DictionaryStorage(Database(), clock)

    @override
    @asynccontextmanager
    async def beside(self, storage: Storage, clock: ManualClock) -> AsyncGenerator[Storage]:
        assert isinstance(storage, DictionaryStorage)
        yield DictionaryStorage(storage.database, clock)
