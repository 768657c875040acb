"""`Snapshot`: one workspace's data to be read, as a backend of few methods gives it.

A backend derives from it, or from `reflexr.workspace.kernel`'s transaction, which is one. What is answered from a
snapshot, such as what is due in it, is in `reflexr.workspace.walks`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from reflexr.core import DeadLetter, Envelope, RuleProgress, Run, StoredRule
from reflexr.workspace.refs import WorkspaceRef
from reflexr.workspace.storage import Head, LogWindow, RunQuery


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds a lease, and when it lapses: at that very moment it has."""

    holder: str
    expires: datetime


class Snapshot(ABC):
    """One workspace's data as it was committed, in the hands of one caller, one await at a time, until the block ends.

    Nothing that is returned is shared with the storage. Once the block has ended every method raises
    `TransactionClosedError`.
    """

    def __init__(self, workspace: WorkspaceRef, head: Head, now: datetime) -> None:
        """Begins to read a workspace.

        Args:
            workspace: The workspace, which need not exist yet.
            head: Where its log ends.
            now: The storage's time, in UTC.
        """
        self._workspace = workspace
        self._head = head
        self._now = now

    @property
    def workspace(self) -> WorkspaceRef:
        """The workspace that is read."""
        return self._workspace

    @property
    def head(self) -> Head:
        """Where the log ends."""
        return self._head

    @property
    def now(self) -> datetime:
        """The storage's time when it began, in UTC: what leases and due times are judged by."""
        return self._now

    @abstractmethod
    async def find(self, ids: Collection[str]) -> dict[str, Envelope]:
        """Returns those of the envelopes with these ids that the log holds, by id."""

    @abstractmethod
    async def read(self, window: LogWindow) -> list[Envelope]:
        """Returns the window's envelopes in the log's order."""

    @abstractmethod
    async def cursor(self, name: str) -> int:
        """Returns where a consumer of the log stands: 0 if it saved no place yet."""

    @abstractmethod
    async def progress(self, rules: Collection[str] | None = None) -> dict[str, RuleProgress]:
        """Returns the progress of these rules, by default of all that have any, by name, in the order of creation."""

    @abstractmethod
    async def runs(self, ids: Collection[str]) -> dict[str, Run]:
        """Returns those of the runs with these ids that exist, by id."""

    @abstractmethod
    async def find_runs(self, query: RunQuery) -> list[Run]:
        """Returns the runs that meet the query, newest first: in the order in which they were first saved, reversed."""

    @abstractmethod
    async def dead_letters(self, *, rule: str | None = None, limit: int | None = None) -> list[DeadLetter]:
        """Returns the dead letters, or those of one rule, oldest first; the newest `limit`."""

    @abstractmethod
    async def stored_rules(self, names: Collection[str] | None = None) -> dict[str, StoredRule]:
        """Returns these stored rules, by default every active one, by name, in the order of their first version."""

    @abstractmethod
    async def schedule_ticks(self) -> dict[str, datetime]:
        """Returns the time of each schedule's last tick, by name, in the order of creation."""

    @abstractmethod
    async def leases(self, names: Collection[str]) -> dict[str, Lease]:
        """Returns those of these leases that are known, by name. One that has lapsed may be among them, or not."""
