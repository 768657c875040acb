"""Ordered sets: values in their order, quick to change at either end, which is where queues change."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol


class Comparable(Protocol):
    """A value that has a place among others of its kind."""

    def __lt__(self, other: Any, /) -> bool:
        """Whether it comes before the other."""
        ...


class Ordered[Value: Comparable]:
    """Different values in their order.

    Adding the last and removing the first cost the same however many there are; elsewhere it is a move of memory.
    """

    __slots__ = ("_start", "_values")

    def __init__(self) -> None:
        # What was removed in front stays until it is half of all.
        self._values: list[Value] = []
        self._start = 0

    def __len__(self) -> int:
        return len(self._values) - self._start

    def __iter__(self) -> Iterator[Value]:
        return islice(self._values, self._start, None)

    def __reversed__(self) -> Iterator[Value]:
        return islice(reversed(self._values), len(self))

    def add(self, value: Value) -> None:
        """Adds a value that is not there."""
        self._values.insert(bisect_left(self._values, value, self._start), value)

    def remove(self, value: Value) -> None:
        """Removes a value that is there."""
        index = bisect_left(self._values, value, self._start)
        if index > self._start:
            del self._values[index]
            return
        self._start += 1
        if 2 * self._start >= len(self._values):
            del self._values[: self._start]
            self._start = 0
