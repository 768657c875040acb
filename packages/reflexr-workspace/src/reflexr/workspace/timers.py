"""Timers: keys with a time each, of which those that are due are found without looking at the others."""

from collections.abc import Hashable, Iterator
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Final

_SLACK: Final = 64


class Timers[Key: Hashable]:
    """A time for each key, indexed by time.

    Setting and discarding cost the logarithm of the number of keys; asking for what is due costs that for each that is.
    Keys of equal times come in the order in which they were set.
    """

    def __init__(self) -> None:
        # The heap may hold entries that no longer count: an entry counts if its number is the key's.
        self._entries: dict[Key, tuple[datetime, int]] = {}
        self._heap: list[tuple[datetime, int, Key]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    @property
    def entries(self) -> int:
        """How many entries the index holds, also those that no longer count."""
        return len(self._heap)

    def get(self, key: Key) -> datetime | None:
        """Returns the time of a key."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def set(self, key: Key, at: datetime | None) -> None:
        """Gives a key this time in place of any other; no time is as good as no key."""
        entry = self._entries.get(key)
        if at is None:
            if entry is not None:
                self.discard(key)
            return
        if entry is not None and entry[0] == at:
            return
        self._number += 1
        self._entries[key] = (at, self._number)
        heappush(self._heap, (at, self._number, key))
        self._compact()

    def discard(self, key: Key) -> None:
        """Forgets a key, if it is known."""
        self._entries.pop(key, None)
        self._compact()

    def first(self) -> datetime | None:
        """Returns the earliest time of all."""
        while self._heap:
            at, number, key = self._heap[0]
            if self._counts(number, key):
                return at
            heappop(self._heap)
        return None

    def through(self, at: datetime, limit: int | None = None) -> list[tuple[datetime, Key]]:
        """Returns the keys whose time is at or before `at`, earliest first: the first `limit` of them."""
        found: list[tuple[datetime, int, Key]] = []
        for entry in self._pop(at):
            found.append(entry)
            if len(found) == limit:
                break
        for entry in found:
            heappush(self._heap, entry)
        return [(time, key) for time, _, key in found]

    def expire(self, at: datetime) -> list[Key]:
        """Forgets the keys whose time is at or before `at`, and returns them, earliest first."""
        expired = [key for _, _, key in self._pop(at)]
        for key in expired:
            del self._entries[key]
        self._compact()
        return expired

    def _pop(self, at: datetime) -> Iterator[tuple[datetime, int, Key]]:
        while self._heap and self._heap[0][0] <= at:
            entry = heappop(self._heap)
            if self._counts(entry[1], entry[2]):
                yield entry

    def _counts(self, number: int, key: Key) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry[1] == number

    def _compact(self) -> None:
        """Keeps the heap's size in proportion to the number of keys, at a cost that the calls before have paid."""
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = [(at, number, key) for key, (at, number) in self._entries.items()]
            heapify(self._heap)
