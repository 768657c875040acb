"""An event loop in which no time passes: where it would wait, its clock jumps to what it would wait for."""

import asyncio
from selectors import DefaultSelector, SelectorKey
from typing import override


class TimelessLoop(asyncio.SelectorEventLoop):
    """For tests of what does no input or output: whoever waits for ever is found out at once, on any machine."""

    def __init__(self) -> None:
        self._moment = 0.0
        super().__init__(_Jump(self))

    @override
    def time(self) -> float:
        return self._moment

    def jump(self, seconds: float) -> None:
        self._moment += seconds


class _Jump(DefaultSelector):
    def __init__(self, loop: TimelessLoop) -> None:
        super().__init__()
        self._loop = loop

    @override
    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        self._loop.jump(timeout or 0.0)
        return super().select(0)
