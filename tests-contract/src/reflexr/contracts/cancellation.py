"""Cancelling a coroutine at each of its awaits in turn."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Literal, override

type Moment = Literal["waiting", "answered"]
"""When a suspended caller is cancelled: while it waits, or once it was answered and before it goes on."""


async def cancel_at_each_await(
    operation: Callable[[int], Coroutine[Any, Any, object]], moment: Moment
) -> AsyncGenerator[int]:
    """Carries out an operation, cancelled at its first await, then afresh at its second, until it has no more.

    Yields:
        The number that the operation was given, each time that it ended; the last time it was not cancelled.
    """
    number = 0
    cancelled = True
    while cancelled:
        number += 1
        steps = _Steps(operation(number).__await__(), number, moment)
        driven = asyncio.create_task(_drive(steps))
        await asyncio.wait([driven])
        cancelled = steps.cancelled
        if not driven.cancelled():
            # Whatever else the operation raised is the test's to hear of.
            driven.result()
            assert not cancelled, "a caller was cancelled and went on as if it was not"
        yield number


async def _drive(steps: "_Steps") -> None:
    await _Driven(steps)


class _Driven:
    def __init__(self, steps: "_Steps") -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._steps


class _Steps(Generator[Any, Any, Any]):
    """The awaits of a coroutine, at one of which the task that it runs in is cancelled."""

    def __init__(self, awaits: Generator[Any, Any, Any], number: int, moment: Moment) -> None:
        self.cancelled = False
        self._awaits = awaits
        self._left = number
        self._moment: Moment = moment

    @override
    def send(self, value: Any, /) -> Any:
        return self._suspended(self._awaits.send(value))

    @override
    def throw(self, *error: Any) -> Any:
        return self._suspended(self._awaits.throw(*error))

    def _suspended(self, awaited: Any) -> Any:
        self._left -= 1
        task = asyncio.current_task()
        if self._left == 0 and task is not None:
            self.cancelled = True
            if self._moment == "answered" and asyncio.isfuture(awaited):
                # Called before what wakes the task, which is added only after this.
                awaited.add_done_callback(lambda _: task.cancel())
            else:
                task.cancel()
        return awaited
