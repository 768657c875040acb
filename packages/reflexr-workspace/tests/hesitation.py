"""A storage that lets others run before and after everything it does, and cancellation at each of those moments."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from typing import Any, cast, override

from reflexr.workspace import InMemoryStorage, Transaction, WorkspaceRef


class HesitantStorage(InMemoryStorage):
    """Suspends where a database would: as a transaction begins, before each statement, and before it commits."""

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        await asyncio.sleep(0)
        async with super().transaction(workspace) as transaction:
            await asyncio.sleep(0)
            yield cast("Transaction", _Hesitant(transaction))
            await asyncio.sleep(0)


class _Hesitant:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._transaction, name)
        if not iscoroutinefunction(value):
            return value

        async def hesitantly(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            return await value(*arguments, **options)

        return hesitantly


async def cancelled_after(moments: int, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
    """Runs `work`, cancels it after it was suspended so many times, and returns whether it had ended before."""
    task = asyncio.ensure_future(work())
    for _ in range(moments):
        await asyncio.sleep(0)
    if task.done():
        await task
        return True
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    return not isinstance(outcome, asyncio.CancelledError)
