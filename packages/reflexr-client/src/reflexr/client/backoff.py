"""Back-off: how long a client waits before it tries again, and when it gives up. What is tried is others' to know."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from reflexr.client.errors import ClientError

_LARGEST_EXPONENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How a client tries again what failed for a reason that may pass.

    Before the n-th repetition it waits for a random time from 0 to `first * 2 ** (n - 1)`, at most `longest`:
    exponential back-off with full jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015), so
    that clients that lost one server together do not come back together. A server that says `Retry-After` is waited
    for at least so long.

    Attributes:
        first: The longest wait before the first repetition, 0 or more.
        longest: The longest wait before any, 0 or more.
        attempts: How often something is tried in all, at least 1.
        within: How long after its first failure it may be tried again, 0 or more. A stream that was once open is
            opened again without end, whatever `attempts` and `within` are.
        sleep: What waits, for so many seconds.
        random: What chooses, from 0 to 1.
        clock: What tells how much time has passed, in seconds.

    Raises:
        ClientError: A duration is negative, or `attempts` is less than 1.
    """

    first: timedelta = timedelta(milliseconds=100)
    longest: timedelta = timedelta(seconds=10)
    attempts: int = 8
    within: timedelta = timedelta(minutes=1)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        for name in ("first", "longest", "within"):
            duration: timedelta = getattr(self, name)
            if duration < timedelta():
                raise ClientError(f"{name}: {duration!r} is negative")
        if self.attempts < 1:
            raise ClientError(f"attempts: {self.attempts!r} is less than 1")


class Tries:
    """The tries of one thing that fails: counts them, and says how long to wait before the next.

    Attributes:
        failed: How many have failed.
    """

    def __init__(self, backoff: Backoff) -> None:
        self.failed = 0
        self._backoff = backoff
        self._failing_since = 0.0

    def restart(self) -> None:
        """Begins anew, since it worked."""
        self.failed = 0

    def next_wait(self, *, at_least: float = 0.0, endless: bool = False) -> float | None:
        """Counts a failure, and returns how many seconds to wait before the next try, or `None` to give up.

        Args:
            at_least: How long the server wants to be left alone, in seconds.
            endless: Whether not to give up.
        """
        backoff = self._backoff
        now = backoff.clock()
        if not self.failed:
            self._failing_since = now
        ceiling = backoff.first.total_seconds() * 2.0 ** min(self.failed, _LARGEST_EXPONENT)
        wait = max(backoff.random() * min(ceiling, backoff.longest.total_seconds()), at_least)
        self.failed += 1
        if endless:
            return wait
        too_late = now + wait - self._failing_since > backoff.within.total_seconds()
        return None if too_late or self.failed >= backoff.attempts else wait
