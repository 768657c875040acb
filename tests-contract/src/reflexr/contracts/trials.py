"""What a guarantee of a storage is tried on, and the few steps that most of them take."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar, Final, override

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import Contract
from reflexr.contracts.samples import HOUR, START, WORKSPACE, stored
from reflexr.core import Draft, Envelope, Rule, Run
from reflexr.workspace import (
    LogWindow,
    ManualClock,
    RunPolicy,
    RunScope,
    Storage,
    Transaction,
    WorkspaceRef,
    run_lease,
)

_TURNS: Final = 20


class RolledBackError(Exception):
    """Makes a transaction roll back."""


@dataclass(frozen=True, slots=True)
class StorageTrial:
    """A storage on trial.

    Attributes:
        storage: The storage, which holds nothing yet.
        clock: Its clock, if it declares that it has one that can be moved.
        clock_precision: How exactly it tells the time.
        is_movable: Whether the clock is the storage's.
        soon: How long a wake-up is waited for before it is taken to be lost.
        open_beside: Opens a second storage on the same data.
    """

    storage: Storage
    clock: ManualClock
    clock_precision: timedelta
    is_movable: bool
    soon: timedelta
    open_beside: Callable[[], AbstractAsyncContextManager[Storage]]

    @asynccontextmanager
    async def beside(self) -> AsyncGenerator["StorageTrial"]:
        """Opens a second storage on the same data, as another process would."""
        async with self.open_beside() as storage:
            yield replace(self, storage=storage)

    def transaction(self, workspace: WorkspaceRef = WORKSPACE) -> AbstractAsyncContextManager[Transaction]:
        """Opens a transaction."""
        return self.storage.transaction(workspace)

    @asynccontextmanager
    async def rolled_back(self, workspace: WorkspaceRef = WORKSPACE) -> AsyncGenerator[Transaction]:
        """Opens a transaction that rolls back, since its block raises in the end."""
        with suppress(RolledBackError):
            async with self.transaction(workspace) as transaction:
                yield transaction
                raise RolledBackError

    async def append(self, *drafts: Draft, workspace: WorkspaceRef = WORKSPACE) -> list[Envelope]:
        """Appends in one transaction."""
        async with self.transaction(workspace) as transaction:
            return await transaction.append(drafts)

    async def save(self, *runs: Run, workspace: WorkspaceRef = WORKSPACE) -> None:
        """Saves runs in one transaction."""
        async with self.transaction(workspace) as transaction:
            await transaction.save_runs(runs)

    async def claim(self, running: Run, ttl: timedelta = HOUR) -> None:
        """Saves a run that somebody runs, with its lease, in one transaction."""
        async with self.transaction() as transaction:
            await transaction.save_runs([running])
            await transaction.acquire([run_lease(running.id)], "holder", ttl)

    async def store(self, *rules: Rule, version: int = 1, is_active: bool = True) -> None:
        """Saves a version of stored rules in one transaction."""
        async with self.transaction() as transaction:
            await transaction.save_stored_rules([stored(rule, version, is_active=is_active) for rule in rules])

    async def turns(self, *scopes: RunScope, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        """Returns whose turn it is in scopes."""
        async with self.transaction() as transaction:
            return await transaction.first_runs(scopes, blocking=blocking)

    async def due(self, policy: RunPolicy, limit: int = 100) -> list[str]:
        """Returns the ids of the runs that are due."""
        return [due.run_id for due in await self.storage.due_runs(policy, limit=limit)]

    async def ids(self, workspace: WorkspaceRef = WORKSPACE, **window: Any) -> list[str]:
        """Returns the ids of a window of the log."""
        return [envelope.id for envelope in await self.storage.read(workspace, LogWindow(**window))]

    async def pass_time(self, by: timedelta) -> None:
        """Lets the storage's time go on: at once where its clock can be moved, else by waiting."""
        if self.is_movable:
            self.clock.advance(by)
        else:
            await asyncio.sleep((by + self.clock_precision).total_seconds())


class StorageGuarantees(Contract[StorageTrial]):
    """Some of the promises of `Storage`, over the one factory that they all share.

    Attributes:
        large: How many items a large set has, which a storage takes or gives in one call.
    """

    large: ClassVar[int] = 5_000

    def storage(self, clock: ManualClock) -> AbstractAsyncContextManager[Storage]:
        """Opens a storage that holds nothing. This is the factory to override.

        Args:
            clock: What time it is, for a storage that declares `Feature.MOVABLE_CLOCK`; others leave it alone.
        """
        raise self.missing("storage")

    def beside(self, storage: Storage, clock: ManualClock) -> AbstractAsyncContextManager[Storage]:
        """Opens a second storage on the data of one that `storage` opened, as another process would.

        To be overridden by whoever declares `Feature.SHARED_DATA`.
        """
        raise NotImplementedError(f"{type(self).__name__} declares {Feature.SHARED_DATA!r}: override beside() too")

    @override
    @asynccontextmanager
    async def trial(self) -> AsyncGenerator[StorageTrial]:
        clock = ManualClock(START)
        async with self.storage(clock) as storage:
            yield StorageTrial(
                storage=storage,
                clock=clock,
                clock_precision=self.clock_precision,
                is_movable=Feature.MOVABLE_CLOCK in self.features,
                soon=self.soon,
                open_beside=lambda: self.beside(storage, clock),
            )


async def give_way(transaction: Transaction, *others: asyncio.Task[Any]) -> None:
    """Does as much in a transaction as others need to come to where they have to wait, unless they are done before."""
    for _ in range(_TURNS):
        if all(other.done() for other in others):
            return
        await transaction.read(LogWindow(limit=1))
        await asyncio.sleep(0)


async def together[T](coroutines: Iterable[Awaitable[T]]) -> list[T]:
    """Runs coroutines at once, and returns what each returned."""

    async def one(awaitable: Awaitable[T]) -> T:
        return await awaitable

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(coroutine)) for coroutine in coroutines]
    return [task.result() for task in tasks]
