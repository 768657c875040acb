"""What it all came to: counts of logins, firings and runs. How they look is `oncall.display`'s."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from oncall.events import LoginFailed
from reflexr.core import Envelope, Run, RunStatus


def _counters() -> defaultdict[str, Counter[RunStatus]]:
    return defaultdict(Counter[RunStatus])


@dataclass(slots=True)
class Summary:
    """Counts what the workspace's log holds.

    Attributes:
        failures: The failures of each address.
        acceptances: The acceptances of each address.
        fired: How often each rule fired.
        runs: How many runs of each rule are in which status.
        by_address: How often each rule fired for each address.
    """

    failures: Counter[str] = field(default_factory=Counter[str])
    acceptances: Counter[str] = field(default_factory=Counter[str])
    fired: Counter[str] = field(default_factory=Counter[str])
    runs: defaultdict[str, Counter[RunStatus]] = field(default_factory=_counters)
    by_address: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])

    @property
    def logins(self) -> int:
        """How many failures and acceptances were counted."""
        return self.failures.total() + self.acceptances.total()

    def count(self, logins: Iterable[Envelope]) -> None:
        """Counts these too."""
        for login in logins:
            address = str(login.payload["address"])
            if login.event_type == LoginFailed.event_type:
                self.failures[address] += 1
            else:
                self.acceptances[address] += 1

    def count_runs(self, runs: Iterable[Run]) -> None:
        """Counts these too, each for a firing."""
        for run in runs:
            self.fired[run.rule] += 1
            self.runs[run.rule][run.status] += 1
            self.by_address[run.rule, str(run.scope["address"])] += 1

    def busiest(self, most: int) -> list[str]:
        """Returns the addresses with the most failures, then by their text, so that equal ones have an order."""
        return sorted(self.failures, key=lambda address: (-self.failures[address], address))[:most]
