"""Calls that are awaited to their end: a cancellation that comes meanwhile is raised after it.

A driver that is cancelled in the middle of a statement can keep a connection that still holds a lock, and the pool
never sees it again. So whatever talks to a database runs in a task of its own, which nobody cancels.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any


async def to_the_end[T](call: Coroutine[Any, Any, T]) -> T:
    """Awaits a call to its end, and returns its result.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; the call has ended all the same.
    """
    task = asyncio.Task(call, loop=asyncio.get_running_loop(), eager_start=True)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            # Raises nothing of the task's own, and a cancellation leaves the task alone.
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # What became of the call is nobody's to hear now; it is looked at, so that asyncio does not report it.
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


async def uninterrupted[T](call: Coroutine[Any, Any, T]) -> T:
    """Awaits a call to its end as `to_the_end` does, in the caller's own task, at a fraction of the cost.

    For calls that await nothing but futures, such as a driver's statement: what counts on being cancelled itself, as
    `asyncio.timeout` does, never would be.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; the call has ended all the same.
    """
    return await _Uninterrupted(call)


class FairLock:
    """A lock that callers get in the order in which they came.

    What a cancelled caller began may go on without it. Nobody has a turn before that has ended: so of those who wait
    for the same thing, however many are cancelled, there is one at a time.
    """

    def __init__(self, ended: Callable[[], object] = lambda: None) -> None:
        """Begins with nobody who wants it.

        Args:
            ended: What to do each time that the last one has gone.
        """
        self._lock = asyncio.Lock()
        self._left: set[asyncio.Task[None]] = set()
        self._users = 0
        self._ended = ended

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Waits for those who came before, and for what they left."""
        self._users += 1
        try:
            async with self._lock:
                while self._left:
                    await asyncio.wait(self._left)
                yield
        finally:
            self._leave()

    def left(self, task: "asyncio.Task[None]") -> None:
        """Takes note of what a cancelled caller began, and goes on without it."""
        self._users += 1
        self._left.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._left.discard(task)
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._ended()


async def or_give_back[T](
    call: Coroutine[Any, Any, T],
    give_back: Callable[[T], Coroutine[Any, Any, None]],
    *,
    owner: object,
    lock: FairLock | None = None,
) -> T:
    """Awaits a call that gets something, and returns it; for a caller that is cancelled it is given back.

    The caller is not held up: the call goes on without it.

    Args:
        call: What gets something, such as a connection, perhaps after a while.
        give_back: Gives it back, where the caller is gone by then.
        owner: Whose it is: see `given_back`.
        lock: Whose turn it is meanwhile, if anybody waits for the next one.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile.
    """
    task = asyncio.Task(call, loop=asyncio.get_running_loop(), eager_start=True)
    if task.done():
        return task.result()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        giving_back = asyncio.Task(_give_back(task, give_back), loop=asyncio.get_running_loop(), eager_start=True)
        if not giving_back.done():
            _GIVING_BACK[giving_back] = owner
            giving_back.add_done_callback(_GIVING_BACK.pop)
            if lock is not None:
                lock.left(giving_back)
        raise


async def given_back(owner: object, at_most: timedelta) -> None:
    """Waits until everything of an owner's that cancelled callers would have got is given back, for a time at most."""
    loop = asyncio.get_running_loop()
    if waiting := [task for task, its in _GIVING_BACK.items() if its is owner and task.get_loop() is loop]:
        await asyncio.wait(waiting, timeout=at_most.total_seconds())


async def _give_back[T](task: "asyncio.Task[T]", give_back: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    while not task.done():
        # A loop that ends cancels this too. It cancels the call as well, and waits for both.
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    if not task.cancelled() and task.exception() is None:
        await to_the_end(give_back(task.result()))


# What is given back, with whose it is; asyncio itself keeps no more than a weak reference to a task.
_GIVING_BACK: dict["asyncio.Task[None]", object] = {}


class _Uninterrupted[T]:
    """Drives a call, and tells it nothing of the cancellation of the task that does."""

    def __init__(self, call: Coroutine[Any, Any, T]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, Any, T]:
        cancelled: list[asyncio.CancelledError] = []
        try:
            result = yield from self._driven(cancelled)
        except Exception:
            if not cancelled:
                raise
        else:
            if not cancelled:
                return result
        raise cancelled[-1]

    def _driven(self, cancelled: list[asyncio.CancelledError]) -> Generator[Any, Any, T]:
        """Drives the call to its end, and takes note of the cancellations that come meanwhile."""
        try:
            while True:
                awaited = self._call.send(None)
                try:
                    # A future's own error is heard of by the call, from the future.
                    with suppress(Exception):
                        yield awaited if awaited is None else _Patient(awaited)
                except asyncio.CancelledError as error:
                    # A future that was cancelled itself says so to the call.
                    if awaited is None or not awaited.cancelled():
                        cancelled.append(error)
        except StopIteration as end:
            return end.value
        finally:
            self._call.close()


class _Patient:
    """A future that nobody can cancel: a task that awaits it is told that it was cancelled once the future is done."""

    def __init__(self, future: "asyncio.Future[Any]") -> None:
        # What asyncio knows futures by.
        self._asyncio_future_blocking = True
        self._future = future
        self.get_loop = future.get_loop
        self.add_done_callback = future.add_done_callback

    def cancel(self, msg: object = None) -> bool:
        """Does nothing, and says so."""
        return False
