"""The `Storage` and `Transaction` ports, and the values that travel through them.

Every method takes and gives sets, so that a storage needs a constant number of statements in a transaction, however
many events, rules, scopes or runs it concerns. Nothing here decides: what to append and save is `reflexr.core`'s to
say, and how subscribers follow a log is `reflexr.workspace.feeds`'s. Adapters live in modules and distributions of
their own. `reflexr.workspace.kernel` fills both ports for a backend that implements little.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Protocol

from reflexr.core import DeadLetter, Draft, Envelope, Needs, RuleProgress, Run, RunStatus, ScopeState, StoredRule
from reflexr.workspace.refs import LeaseKey, WorkspaceRef
from reflexr.workspace.wakeups import Wakeups


@dataclass(frozen=True, slots=True)
class Head:
    """Where a log ends: the place and the time of its last envelope; 0 and `None` for a log that holds none."""

    seq: int = 0
    ts: datetime | None = None


@dataclass(frozen=True, slots=True)
class LogWindow:
    """What to read of a log: those with `after_seq < seq < before_seq`, always answered in the log's order.

    Attributes:
        after_seq: The place before the first; 0 for the log's beginning.
        before_seq: The place after the last; `None` for the log's end.
        types: The qualified event types to read; `None` for every type. None of them, if it is empty.
        limit: The first so many.
        last: The last so many, still in the log's order. Not together with `limit`.
    """

    after_seq: int = 0
    before_seq: int | None = None
    types: frozenset[str] | None = None
    limit: int | None = None
    last: int | None = None

    def select(self, envelopes: Iterable[Envelope]) -> list[Envelope]:
        """Returns what the window takes in of a log, or of a part of it that begins at `after_seq` or before.

        For a storage that has nothing better than to look through it: no more is taken than has to be looked at.
        """
        end = self.before_seq
        before = takewhile(lambda envelope: end is None or envelope.seq < end, envelopes)
        found = (
            envelope
            for envelope in before
            if envelope.seq > self.after_seq and (self.types is None or envelope.event_type in self.types)
        )
        return list(islice(found, self.limit)) if self.last is None else list(deque(found, maxlen=self.last))


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to read: those that meet every condition given; newest first.

    Attributes:
        rules: Of these rules.
        scope_key: Of this scope, which is the canonical JSON of the list of its values.
        statuses: In one of these statuses.
        limit: The newest so many.
    """

    rules: frozenset[str] | None = None
    scope_key: str | None = None
    statuses: frozenset[RunStatus] | None = None
    limit: int | None = None

    def select(self, runs: Iterable[Run]) -> list[Run]:
        """Returns those that meet the query of runs that come newest first: no more are taken than it asks for.

        For a storage that has nothing better than to look through them.
        """
        found = (
            run
            for run in runs
            if (self.rules is None or run.rule in self.rules)
            and (self.scope_key is None or run.scope_key == self.scope_key)
            and (self.statuses is None or run.status in self.statuses)
        )
        return list(islice(found, self.limit))


@dataclass(frozen=True, slots=True)
class RunScope:
    """The runs of one rule in one scope, which a rule with the ordering `scope` carries out one after another."""

    rule: str
    scope_key: str


@dataclass(frozen=True, slots=True)
class StateChanges:
    """What one evaluation changes in a rule's scope states.

    Attributes:
        saved: The states to save, by scope key, in place of what was there.
        dropped: The scope keys whose state is worth nothing any more.
        expired_through: Every other state of the rule whose `expires` is at or before this time goes too.
    """

    saved: Mapping[str, ScopeState] = field(default_factory=dict[str, ScopeState])
    dropped: frozenset[str] = frozenset()
    expired_through: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """Which runs one process can carry out, and in what order.

    Attributes:
        unordered: The rules whose runs may start in any order.
        ordered: The rules of whose runs only the first unfinished of each scope may start.
        blocking: Those of the ordered rules of which a dead-lettered run, too, holds back the later runs of its scope.
        stored: The namespaces of the stored rules whose runs the process can carry out. A stored rule's own workspace
            says whether it is active and enabled, and how its runs are ordered.
        withheld: The rules whose runs are left out all the same, such as those that are at their limit; stored rules
            by their names too.

    Rules that are disabled, or that the process does not know, are in none of them: their runs wait.
    """

    unordered: frozenset[str] = frozenset()
    ordered: frozenset[str] = frozenset()
    blocking: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    withheld: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Watch:
    """Which rules one process evaluates.

    Attributes:
        definitions: Each enabled code rule's definition, by its name.
        stored: The namespaces of the stored rules that the process evaluates: those active and enabled in their
            workspace.
    """

    definitions: Mapping[str, str]
    stored: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DueRun:
    """A run that may start now, as discovery names it: claiming it reads it in a transaction and looks again."""

    workspace: WorkspaceRef
    run_id: str
    rule: str


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule whose tick is due in a workspace, with the time of its last tick there, if it had one."""

    workspace: WorkspaceRef
    schedule: str
    last: datetime | None


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a schedule's latest tick was due, and where it ticks.

    Attributes:
        at: The latest time at or before now that the schedule names.
        workspaces: The workspaces that it targets; `None` for every workspace with a log.
    """

    at: datetime
    workspaces: frozenset[WorkspaceRef] | None = None


class Transaction(Protocol):
    """One workspace's data, in the hands of one caller until the block ends.

    A transaction reads its own writes. Others see all of them once the block has ended normally, and none if it raised
    or was cancelled. A method that raises a `StorageError` has done nothing, and the transaction can go on. One caller
    uses a transaction, one await at a time.

    Envelopes are read without their event's class, so a log that holds events which no class accepts any more is
    readable. Nothing that is returned is shared with the storage: changing it changes nothing there.
    """

    @property
    def workspace(self) -> WorkspaceRef:
        """The workspace whose transaction it is."""
        ...

    @property
    def head(self) -> Head:
        """Where the log ends, with what this transaction appended. Known without asking: the lock brings it."""
        ...

    @property
    def now(self) -> datetime:
        """The storage's time when the transaction began, in UTC: what leases and due times are judged by."""
        ...

    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        """Appends to the log, in order, and returns the envelopes.

        Each gets the next `seq`, with no gap, and a `ts` that is the later of `now` and the previous envelope's.

        Raises:
            DuplicateEventIdError: An id is already in the log, or is there twice. Nothing was appended.
        """
        ...

    async def find(self, ids: Collection[str]) -> dict[str, Envelope]:
        """Returns those of the envelopes with these ids that the log holds, by id."""
        ...

    async def read(self, window: LogWindow) -> list[Envelope]:
        """Returns the window's envelopes in the log's order."""
        ...

    async def read_seqs(self, seqs: Collection[int]) -> dict[int, Envelope]:
        """Returns those of the envelopes at these places that the log holds, by place."""
        ...

    async def progress(self, rules: Collection[str] | None = None) -> dict[str, RuleProgress]:
        """Returns the progress of these rules, by default of all that have any, by name, in the order of creation."""
        ...

    async def save_progress(self, progress: Collection[RuleProgress]) -> None:
        """Saves rules' progress in place of what was there. No cursor is past the log's last envelope."""
        ...

    async def states(self, needs: Mapping[str, Needs]) -> dict[str, dict[str, ScopeState]]:
        """Returns, for each rule, those of its scope states that its needs name, by scope key.

        That is those with one of the `scope_keys`, and those with a `due` at or before `due_through`. A scope without a
        state is not in the answer; each rule that was asked for is. The cost is that of the states returned, not of
        those that wait.
        """
        ...

    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        """Saves and drops scope states, by rule. States past their `expires` are really gone, not only hidden."""
        ...

    async def clear_states(self, rules: Collection[str]) -> None:
        """Drops every scope state of these rules."""
        ...

    async def runs(self, ids: Collection[str]) -> dict[str, Run]:
        """Returns those of the runs with these ids that exist, by id."""
        ...

    async def find_runs(self, query: RunQuery) -> list[Run]:
        """Returns the runs that meet the query, newest first."""
        ...

    async def save_runs(self, runs: Collection[Run]) -> None:
        """Saves runs, new ones in the order given, others in place of what was there.

        The order in which runs were first saved is their order of creation.
        """
        ...

    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        """Returns, for each scope that has one, the id of the run whose turn it is, as `core.runnable` has it.

        That is a run that is running; else the first in the order of `Run.position` that is pending or retrying, or
        paused and blocks, or dead-lettered and its rule `blocking`. The cost does not grow with the runs behind it.

        Args:
            scopes: The scopes to look at.
            blocking: The rules of which a dead-lettered run holds back the later ones.
        """
        ...

    async def add_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Records envelopes that rules could not decide on, in order."""
        ...

    async def stored_rules(self, names: Collection[str] | None = None) -> dict[str, StoredRule]:
        """Returns the current version of stored rules, by name, in the order in which they were first installed.

        Args:
            names: Those to read, whether active or archived; by default every active one.
        """
        ...

    async def save_stored_rules(self, rules: Collection[StoredRule]) -> None:
        """Saves the next version of stored rules; the first is version 1.

        Raises:
            StoredRuleConflictError: A rule's version is not its next. Nothing was saved.
        """
        ...

    async def schedule_ticks(self) -> dict[str, datetime]:
        """Returns the time of each schedule's last tick in this workspace, by name, in the order of creation."""
        ...

    async def save_schedule_ticks(self, ticks: Mapping[str, datetime]) -> None:
        """Saves the time of schedules' last ticks. One earlier than what was saved changes nothing."""
        ...

    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        """Takes leases of this workspace, in force once the block has ended normally, and returns the names it got.

        As `Storage.acquire`. The claim of a run and its lease are one commit.
        """
        ...

    async def release(self, names: Collection[str], holder: str) -> None:
        """Gives back leases of this workspace, once the block has ended normally. Others' are left alone."""
        ...

    async def holders(self, names: Collection[str]) -> dict[str, str]:
        """Returns the holder of each of these leases that is live, by name."""
        ...


class Storage(Protocol):
    """Keeps the workspaces of every tenant.

    Cancel-safe: a cancelled caller leaves no lock, no connection and no half write behind. Cancellation may be deferred
    until the statement at hand has ended. What is read outside a transaction is what was committed; two reads may see
    two states. Nothing that is returned is shared with the storage.
    """

    @property
    def wakeups(self) -> Wakeups:
        """What each commit is announced to: every workspace whose log, runs or leases it changed."""
        ...

    def transaction(self, workspace: WorkspaceRef) -> AbstractAsyncContextManager[Transaction]:
        """Opens a transaction on one workspace, which need not exist yet.

        Transactions of one workspace come one after another from the moment each begins, in the order in which they
        began to wait, so that what a transaction reads is still so when it commits. Those of other workspaces are not
        held up. Opening a second one on the same workspace inside the first waits for ever.

        Raises:
            StorageError: The storage cannot be reached, or could not commit.
        """
        ...

    async def append(self, workspace: WorkspaceRef, drafts: Sequence[Draft]) -> list[Envelope]:
        """Appends to a workspace's log, in order, and returns the envelopes: all that a transaction of its own does.

        So it comes before or after the transactions of the workspace. A storage that can do it with fewer statements
        than a transaction takes does; this does it with one.

        Raises:
            DuplicateEventIdError: An id is already in the log, or is there twice. Nothing was appended.
            StorageError: The storage cannot be reached, or failed. If it was lost meanwhile, the events may be there.
        """
        async with self.transaction(workspace) as transaction:
            return await transaction.append(drafts)

    async def now(self) -> datetime:
        """Returns the time of the storage's clock, in UTC: what leases and due times are judged by."""
        ...

    # --- One workspace's data, as it was committed

    async def head(self, workspace: WorkspaceRef) -> Head:
        """Returns where the log ends."""
        ...

    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        """Returns the window's envelopes in the log's order. The cost is that of the answer, not of the log."""
        ...

    async def find(self, workspace: WorkspaceRef, ids: Collection[str]) -> dict[str, Envelope]:
        """Returns those of the envelopes with these ids that the log holds, by id."""
        ...

    async def rule_history(self, workspace: WorkspaceRef, rule: str) -> list[Envelope]:
        """Returns a stored rule's versions, oldest first: the envelopes of which `stored_rule_of` says its name.

        The cost is that of the answer, not of the log.
        """
        ...

    async def stored_rules(
        self, workspace: WorkspaceRef, names: Collection[str] | None = None
    ) -> dict[str, StoredRule]:
        """Returns the current version of stored rules, as `Transaction.stored_rules` does."""
        ...

    async def progress(self, workspace: WorkspaceRef) -> dict[str, RuleProgress]:
        """Returns the progress of every rule that has any, by name, in the order of creation."""
        ...

    async def runs(self, workspace: WorkspaceRef, query: RunQuery) -> list[Run]:
        """Returns the runs that meet the query, newest first."""
        ...

    async def run(self, workspace: WorkspaceRef, run_id: str) -> Run | None:
        """Returns one run, if it exists."""
        ...

    async def dead_letters(
        self, workspace: WorkspaceRef, *, rule: str | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        """Returns the envelopes that rules, or one rule, could not decide on, oldest first; the newest `limit`."""
        ...

    async def dead_letter_counts(self, workspace: WorkspaceRef) -> dict[str, int]:
        """Returns how many such envelopes each rule has that has any, by name."""
        ...

    async def schedule_ticks(self, workspace: WorkspaceRef) -> dict[str, datetime]:
        """Returns the time of each schedule's last tick, by name, in the order of creation."""
        ...

    # --- The cursors of a log's other consumers, such as a mirror of its feedback

    async def cursor(self, workspace: WorkspaceRef, name: str) -> int:
        """Returns where a consumer stands: 0 if it saved no place yet."""
        ...

    async def save_cursor(self, workspace: WorkspaceRef, name: str, seq: int) -> int:
        """Moves a consumer's cursor forward, never back, and returns where it is then: the furthest save wins."""
        ...

    # --- Leases, by the storage's clock

    async def acquire(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        """Takes leases and returns those it got: the ones nobody else holds.

        A lease is live until `ttl` has passed; at that very moment it has lapsed. One that the holder has already is
        extended. A holder is one life of one process: after a crash it comes back under another name.
        """
        ...

    async def renew(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        """Extends leases that the holder has, and returns those: one that lapsed is not extended, it is lost."""
        ...

    async def release(self, keys: Collection[LeaseKey], holder: str) -> None:
        """Gives back leases. Those that the holder does not have are left alone."""
        ...

    # --- Discovery: costs what there is of work, not the workspaces that are idle

    async def workspaces(
        self, *, tenant_id: str | None = None, after: WorkspaceRef | None = None, limit: int | None = None
    ) -> list[WorkspaceRef]:
        """Returns the workspaces with a log, ordered by tenant and workspace.

        Args:
            tenant_id: Only those of this tenant.
            after: Only those that come after this one: where the last page ended.
            limit: The first so many.
        """
        ...

    async def behind(self, watch: Watch, *, limit: int) -> list[WorkspaceRef]:
        """Returns workspaces with a log where a rule has something to do.

        A rule has if it has no progress there, progress of another definition (code rules only), or a cursor before the
        log's head. Whichever processes ask, with whichever rules, in whatever order: a workspace is in every answer
        that has room for it until its rules are done.

        Args:
            watch: The rules to look for.
            limit: How many to return at most; which of them is the storage's choice, but none is left out for ever.
        """
        ...

    async def due_runs(
        self,
        policy: RunPolicy,
        *,
        limit: int,
        each: int | None = None,
        after: WorkspaceRef | None = None,
        but_runs: Collection[LeaseKey] = (),
        but_workspaces: Collection[WorkspaceRef] = (),
    ) -> list[DueRun]:
        """Returns runs that may start now, of which workspaces take turns.

        A run may start if the policy admits its rule, it is its turn in its scope (see `Transaction.first_runs`) or its
        rule is unordered, and it is pending, or retrying with a `next_attempt_at` that has come, or running with no
        live lease on it, as its executor is gone. A paused run whose time to be answered is over is named too, whether
        or not it is its turn, so that it is ended.

        First comes a run of each workspace, then a second one of each that has more, and so on: of each the runs that
        have waited longest. Workspaces come by tenant and workspace, those after `after` first, so whoever goes on
        after the last that an answer named leaves none out, however many runs others have. The cost is that of the
        answer, and a look at each workspace that is passed over. Neither the runs whose turn it is not, nor those that
        wait, nor those behind the ones in the answer cost anything.

        Args:
            policy: The rules whose runs the caller can carry out.
            limit: How many to return at most.
            each: How many of one workspace to return at most; by default as many as there is room for.
            after: The workspace after which to begin; by default at the first.
            but_runs: The runs to leave out, by their leases.
            but_workspaces: The workspaces to leave out.
        """
        ...

    async def next_due(self, policy: RunPolicy) -> timedelta | None:
        """Returns how long it is, by the storage's clock, until a run that the policy admits may start by time alone.

        That is a retry whose time comes, a lease that lapses, or a paused run that nobody answered in time; zero if one
        may start now, `None` if there is nothing to wait for. Of stored rules that are withheld it may say so too:
        nothing is lost by looking once too often.
        """
        ...

    async def due_schedules(self, deadlines: Mapping[str, Deadline], *, limit: int) -> list[DueSchedule]:
        """Returns where schedules have not ticked since their deadlines, by schedule name.

        Args:
            deadlines: Each schedule's latest deadline and targets, by name.
            limit: How many to return at most.
        """
        ...
