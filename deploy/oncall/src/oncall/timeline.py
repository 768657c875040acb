"""What happened, in order: the log's logins, gathered into bursts, and what rules decided about them.

Nothing is printed here; how an entry looks is `oncall.display`'s.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from oncall.events import LoginAccepted, LoginFailed
from reflexr.core import Envelope, Rule, Run

PAUSE: Final = timedelta(minutes=1)
"""How long an address pauses before its next failure begins a new burst."""

LONGEST: Final = timedelta(minutes=15)
"""How long a burst goes on before it is told, even if the address never pauses."""


@dataclass(slots=True)
class Burst:
    """Failures of one address, one soon after another.

    Attributes:
        address: The address.
        first: The time of the first.
        last: The time of the last.
        failures: How many there were.
        users: The names that were tried, and whether the machine has such a user.
    """

    address: str
    first: datetime
    last: datetime
    failures: int = 0
    users: dict[str, bool] = field(default_factory=dict[str, bool])


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Somebody logged in."""

    time: datetime
    login: LoginAccepted


@dataclass(frozen=True, slots=True)
class Decision:
    """A rule fired: its run, as it is by now, and the envelopes that the firing matched."""

    rule: Rule
    run: Run
    matched: tuple[Envelope, ...]

    @property
    def address(self) -> str:
        """The address it is about."""
        return str(self.run.scope["address"])

    @property
    def is_of_silence(self) -> bool:
        """Whether the rule fired because time went by, and not because of the envelope at which it did."""
        return self.matched[-1].seq < self.run.fired_seq


type Entry = Burst | Acceptance | Decision
"""One thing to tell."""


class Timeline:
    """Puts a log together, for a person to read.

    Entries come in the order in which they began. As a burst is told whole, what began after it waits until it is over,
    so the entries do not depend on how the log was cut into parts.
    """

    def __init__(self) -> None:
        self._waiting: deque[Entry] = deque()
        # By the time of their last failure: the first to be over comes first.
        self._open: dict[str, Burst] = {}

    def add(self, logins: Iterable[Envelope], decisions: Iterable[Decision]) -> Iterator[Entry]:
        """Yields the entries that are complete, after these logins and all that was decided at them.

        Args:
            logins: The log's next logins, in its order.
            decisions: What rules decided at them, in any order.
        """
        pending = deque(sorted(decisions, key=lambda decision: (decision.run.fired_seq, not decision.is_of_silence)))
        for login in logins:
            while pending and (
                pending[0].run.fired_seq < login.seq
                or (pending[0].run.fired_seq == login.seq and pending[0].is_of_silence)
            ):
                self._decided(pending.popleft())
            self._login(login)
            yield from self._complete()
        for decision in pending:
            self._decided(decision)
        yield from self._complete()

    def finish(self) -> Iterator[Entry]:
        """Yields the entries that are left at the end of the log."""
        self._open.clear()
        yield from self._complete()

    def _login(self, envelope: Envelope) -> None:
        self._pass(envelope.ts)
        event = envelope.event
        if isinstance(event, LoginFailed):
            self._failed(envelope.ts, event)
        elif isinstance(event, LoginAccepted):
            self._open.pop(event.address, None)
            self._waiting.append(Acceptance(envelope.ts, event))

    def _failed(self, time: datetime, event: LoginFailed) -> None:
        burst = self._open.pop(event.address, None)
        if burst is None or time - burst.first >= LONGEST:
            burst = Burst(event.address, time, time)
            self._waiting.append(burst)
        burst.last = time
        burst.failures += 1
        burst.users.setdefault(event.user, event.user_exists)
        self._open[event.address] = burst

    def _decided(self, decision: Decision) -> None:
        self._pass(decision.run.fired_at)
        self._open.pop(decision.address, None)
        self._waiting.append(decision)

    def _pass(self, now: datetime) -> None:
        """Ends the bursts whose address has paused."""
        while self._open:
            quietest = next(iter(self._open.values()))
            if now - quietest.last < PAUSE:
                break
            del self._open[quietest.address]

    def _complete(self) -> Iterator[Entry]:
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, Burst) and self._open.get(first.address) is first:
                break
            yield self._waiting.popleft()
