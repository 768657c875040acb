"""Puts the application together: where events are kept, which rules watch them, what the rules run.

A workspace holds all that is known of a log, so `start` goes on where an earlier process stopped, whichever way that
ended. How a workspace is kept is `oncall.database`'s.
"""

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from oncall.actions import ACTIONS, Deps
from oncall.database import kept
from oncall.events import LogAdvanced, LoginAccepted, LoginFailed
from oncall.feed import Entry, Feed
from oncall.rules import RULES
from oncall.timeline import Decision
from reflexr.core import UNFINISHED, Envelope, Rule, RuleFired, Run, SourceActor
from reflexr.workspace import (
    EVALUATION_LEASE,
    Head,
    ManualClock,
    Reactor,
    RunQuery,
    Storage,
    Workspace,
    WorkspaceRef,
    Workspaces,
    run_lease,
)

TENANT: Final = "example"
SSHD: Final = SourceActor(name="sshd")

PAGE: Final = 1_000
"""How many logins are read of a workspace's log at a time."""

_LOGINS: Final = (LoginFailed, LoginAccepted)
_EVENTS: Final = (*_LOGINS, LogAdvanced)


@dataclass(frozen=True, slots=True)
class News:
    """A part of what the workspace's log holds: logins, and what rules decided."""

    logins: Sequence[Envelope]
    decisions: Sequence[Decision]


class Application:
    """A workspace that is fed a log, and the reactor that reacts to it.

    Attributes:
        feed: What feeds it.
        held: Where the workspace's log ended when the application started.
    """

    def __init__(
        self,
        workspace: Workspace,
        reactor: Reactor[Deps],
        feed: Feed,
        rules: Sequence[Rule],
        *,
        held: Head,
        known: int,
    ) -> None:
        """Takes up a workspace.

        Args:
            workspace: The workspace.
            reactor: The reactor.
            feed: Feeds the workspace.
            rules: The rules.
            held: Where the workspace's log ends.
            known: Where the last event is that it was fed.
        """
        self.feed = feed
        self.held = held
        self._workspace = workspace
        self._reactor = reactor
        self._rules = {rule.name: rule for rule in rules}
        self._known = known
        self._seq = held.seq
        self._unfinished: list[str] | None = None

    async def read(self, batch: Iterable[Entry]) -> News:
        """Publishes what the lines say, lets the reactor react, and returns what is new."""
        await self.feed.publish(batch)
        if self.feed.seq < self._known:
            # Here an earlier process had its turn. Where it was killed before, the rules have theirs after the same
            # lines, so the log is no other than if nothing had happened.
            return News([], [])
        return await self._react()

    async def finish(self) -> News:
        """Ends the log, and returns what came of that."""
        await self.feed.finish()
        return await self._react()

    async def logins(self) -> AsyncGenerator[Sequence[Envelope]]:
        """Yields the logins that the workspace's log held when the application started, in parts."""
        async for logins in self._pages(self.held.seq):
            yield logins

    async def everything(self) -> AsyncGenerator[News]:
        """Yields all that the workspace's log holds, in parts."""
        head = await self._workspace.head_seq()
        # Those that fired at one place stay in the order in which they did.
        runs = deque(sorted(await self.runs(), key=lambda run: run.fired_seq))
        async for logins in self._pages(head):
            through = logins[-1].seq if len(logins) == PAGE else head
            decided: list[Decision] = []
            while runs and runs[0].fired_seq <= through:
                decided += await self._decisions([runs.popleft()])
            yield News(logins, decided)

    async def runs(self) -> list[Run]:
        """Returns the workspace's runs, oldest first."""
        return list(reversed(await self._workspace.runs()))

    async def _react(self) -> News:
        if self._unfinished is None:
            self._unfinished = [run.id for run in await self.runs() if run.status in UNFINISHED]
        await self._reactor.settle()
        after, self._seq = self._seq, await self._workspace.head_seq()
        logins = await self._workspace.read(after_seq=after, before_seq=self._seq + 1, types=_LOGINS)
        fired = await self._workspace.read(after_seq=after, before_seq=self._seq + 1, types=(RuleFired,))
        ids = [*self._unfinished, *(str(one.payload["firing_id"]) for one in fired)]
        self._unfinished = []
        return News(logins, await self._decisions([await self._workspace.run(run_id) for run_id in ids]))

    async def _pages(self, through: int) -> AsyncGenerator[Sequence[Envelope]]:
        after, full = 0, True
        while full:
            page = await self._workspace.read(after_seq=after, before_seq=through + 1, types=_LOGINS, limit=PAGE)
            yield page
            full = len(page) == PAGE
            after = page[-1].seq if full else through

    async def _decisions(self, runs: Sequence[Run]) -> list[Decision]:
        """Returns what was decided, but for what rules did that are no more."""
        found: list[Decision] = []
        for run in runs:
            if (rule := self._rules.get(run.rule)) is not None:
                matched = [await self._workspace.read(after_seq=seq - 1, limit=1) for seq in run.matched]
                found.append(Decision(rule, run, tuple(envelope for (envelope,) in matched)))
        return found


@asynccontextmanager
async def start(
    workspace_id: str, database: Path | None = None, rules: Sequence[Rule] = RULES
) -> AsyncGenerator[Application]:
    """Opens a workspace, and continues what was begun in it, with a clock that the log will set.

    Args:
        workspace_id: The workspace: one for each log.
        database: The file that keeps it; by default it is kept in memory.
        rules: What watches it.

    Raises:
        DatabaseUnusableError: The workspace cannot be kept there, or another process has it in hand.
        StorageError: The database failed.
    """
    clock = ManualClock(datetime(1970, 1, 1, tzinfo=UTC))
    async with kept(database, workspace_id, clock) as storage:
        workspaces = Workspaces(storage, events=_EVENTS, rules=rules)
        workspace = await workspaces.open(TENANT, workspace_id, actor=SSHD)
        head = await storage.head(workspace.ref)
        known = 0
        deps = Deps()
        if head.ts is not None:
            clock.set(head.ts)
            await _take_over(storage, workspace.ref)
            known = max((one.seq for one in await workspace.read(types=_EVENTS, last=1)), default=0)
            actions = {rule.name: rule.then.action for rule in rules}
            for run in reversed(await workspace.runs(status="succeeded")):
                if run.rule in actions:
                    deps.remember(actions[run.rule], run)
        reactor = Reactor(workspaces, actions=ACTIONS, deps=deps)
        feed = Feed(workspace, clock, find=partial(storage.find, workspace.ref), known=known)
        yield Application(workspace, reactor, feed, rules, held=head, known=known)


async def _take_over(storage: Storage, workspace: WorkspaceRef) -> None:
    """Releases what a process held when it was killed.

    Leases lapse by the clock, and this one stands still until the log goes on. Nobody else is at work: see `kept`.
    """
    async with storage.transaction(workspace) as transaction:
        running = await transaction.find_runs(RunQuery(statuses=frozenset({"running"})))
        leases = await transaction.holders([EVALUATION_LEASE, *(run_lease(run.id) for run in running)])
        for name, holder in leases.items():
            await transaction.release([name], holder)
