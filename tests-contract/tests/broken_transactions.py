"""Storages that break one promise of transactions each."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import override

from reflexr.workspace import (
    Clock,
    Transaction,
    WorkspaceRef,
)

from .dictionary_storage import Database, DictionaryStorage, DictionaryTransaction, Tables


class NeverWaits(DictionaryStorage):
    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        self.database.locks[workspace] = asyncio.Lock()
        async with super().transaction(workspace) as transaction:
            yield transaction


class WaitsForItselfOnly(DictionaryStorage):
    """Locks in its own process, not in the database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(replace(database, locks=defaultdict(asyncio.Lock)), clock)


class LetsTheLastInFirst(DictionaryStorage):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.queue: list[asyncio.Future[None]] = []
        self.taken: set[WorkspaceRef] = set()

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        while workspace in self.taken:
            turn = asyncio.get_running_loop().create_future()
            self.queue.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self.wake()
                raise
        self.taken.add(workspace)
        try:
            async with super().transaction(workspace) as transaction:
                yield transaction
        finally:
            self.taken.remove(workspace)
            self.wake()

    def wake(self) -> None:
        while self.queue:
            turn = self.queue.pop()
            if not turn.done():
                turn.set_result(None)
                return


class HoldsUpEverybody(DictionaryStorage):
    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        async with self.database.locks[WorkspaceRef("", "")], super().transaction(workspace) as transaction:
            yield transaction


class CommitsWhatRaised(DictionaryStorage):
    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        error: Exception | None = None
        async with super().transaction(workspace) as transaction:
            try:
                yield transaction
            except Exception as raised:
                error = raised
        if error is not None:
            raise error


class CommitsWhatWasCancelled(DictionaryStorage):
    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        error: asyncio.CancelledError | None = None
        async with super().transaction(workspace) as transaction:
            try:
                yield transaction
            except asyncio.CancelledError as cancelled:
                error = cancelled
        if error is not None:
            raise error


class CommitsInTwoSteps(DictionaryStorage):
    """Lets others in between."""

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        async with self.database.locks[workspace]:
            transaction = self.begin(workspace, self.tables(workspace).copy())
            try:
                yield transaction
                half = replace(transaction.tables.copy(), runs=self.tables(workspace).runs)
                if transaction.tables != self.tables(workspace):
                    self.database.tables[workspace] = half
                    await asyncio.sleep(0)
                    self.commit(workspace, transaction.tables)
            finally:
                transaction.close()


class KeepsTheLockOfTheCancelled(DictionaryStorage):
    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        lock = self.database.locks[workspace]
        waiting = asyncio.create_task(lock.acquire())
        # Nobody calls it off when the caller is cancelled.
        await asyncio.shield(waiting)
        lock.release()
        async with super().transaction(workspace) as transaction:
            yield transaction


class KeepsTheLockOfWhatRaised(DictionaryStorage):
    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        async with super().transaction(workspace) as transaction:
            try:
                yield transaction
            except Exception:
                self.database.locks[workspace] = asyncio.Lock()
                await self.database.locks[workspace].acquire()
                raise


class ShowsWhatIsNotCommitted(DictionaryStorage):
    @override
    def begin(self, workspace: WorkspaceRef, tables: Tables) -> DictionaryTransaction:
        tables.runs = self.tables(workspace).runs
        return super().begin(workspace, tables)


class WrapsErrors(DictionaryStorage):
    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        async with super().transaction(workspace) as transaction:
            try:
                yield transaction
            except LookupError as error:
                raise LookupError(*error.args) from error


class GoesOnAfterItsBlock(DictionaryTransaction):
    @override
    def close(self) -> None:
        """Stays open."""


class MakesWorkspacesOfNothing(DictionaryStorage):
    @override
    async def workspaces(
        self, *, tenant_id: str | None = None, after: WorkspaceRef | None = None, limit: int | None = None
    ) -> list[WorkspaceRef]:
        places = sorted(self.database.tables)
        found = [one for one in places if tenant_id in (None, one.tenant_id) and (after is None or one > after)]
        return found[:limit]
