"""Commits that several callers share: what arrives while a commit is in flight goes together into the next one.

Nothing here knows what is committed; whoever builds a `SharedCommits` says how a set of requests is carried out.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from reflexr.core import Rejected
from reflexr.workspace.refs import WorkspaceRef
from reflexr.workspace.storage import Storage, Transaction

MAX_SHARED: Final = 256
"""How many requests share one commit at most."""


@dataclass(slots=True, eq=False)
class Pending[Request]:
    """A request that waits for its commit.

    Attributes:
        request: What is asked for.
        in_doubt: Whether an earlier commit with it failed, so that it may have been carried out already. It shares no
            further one, but for the transaction that is tried where it could not be carried out at once.
    """

    request: Request
    in_doubt: bool = False


type CarryOut[Request, Result] = Callable[
    [Transaction, Sequence[Pending[Request]]], Awaitable[Sequence[Result | Rejected]]
]
"""Carries out requests in one transaction, in order, and returns the result of each, or why it was refused."""

type CarryOutAtOnce[Request, Result] = Callable[
    [Storage, WorkspaceRef, Sequence[Pending[Request]]], Awaitable[Sequence[Result] | None]
]
"""Carries out requests without a transaction, all or none, and returns the result of each, or `None` if it cannot."""


class SharedCommits[Request, Result]:
    """Carries out requests on workspaces, several in one transaction where they arrive together.

    One of the callers leads: it commits for all that wait, and another leads next. So there is no task to look after,
    and a lone caller pays for its own commit and, where that can do without a transaction, a turn of the loop. If a
    leader is cancelled, or its commit fails, its followers are carried out all the same. A follower that is cancelled
    before a leader took it along is not carried out.
    """

    def __init__(
        self,
        storage: Storage,
        carry_out: CarryOut[Request, Result],
        *,
        at_once: CarryOutAtOnce[Request, Result] | None = None,
    ) -> None:
        """Creates commits over a storage.

        Args:
            storage: Where to commit.
            carry_out: What to commit. A request that is refused must have written nothing.
            at_once: What is tried first, where a storage can do without a transaction.
        """
        self._storage = storage
        self._carry_out = carry_out
        self._at_once = at_once
        self._lines: dict[WorkspaceRef, deque[_Follower[Request, Result]]] = {}

    def __len__(self) -> int:
        """How many workspaces have a commit in flight."""
        return len(self._lines)

    async def submit(self, workspace: WorkspaceRef, request: Request) -> Result:
        """Carries out a request, and returns its result once it is committed.

        Raises:
            Rejected: The request was refused.
            StorageError: The storage could not commit it.
        """
        line = self._lines.get(workspace)
        if line is None:
            line = self._lines[workspace] = deque()
            return await self._lead(workspace, line, Pending(request))
        follower = _Follower[Request, Result](request)
        line.append(follower)
        try:
            outcome = await follower.turn
        except asyncio.CancelledError:
            if follower in line:
                line.remove(follower)
            elif not follower.turn.cancelled() and follower.turn.result() is None:
                self._appoint(workspace, line)
            raise
        return await self._lead(workspace, line, follower) if outcome is None else _result(outcome[0])

    async def _lead(
        self, workspace: WorkspaceRef, line: "deque[_Follower[Request, Result]]", leader: Pending[Request]
    ) -> Result:
        try:
            while True:
                followers: list[_Follower[Request, Result]] = []
                try:
                    return _result(await self._commit(workspace, line, leader, followers))
                except Rejected:
                    raise
                except Exception:
                    # Whose fault it was shows when each is carried out alone.
                    if not followers:
                        raise
        finally:
            self._appoint(workspace, line)

    async def _commit(
        self,
        workspace: WorkspaceRef,
        line: "deque[_Follower[Request, Result]]",
        leader: Pending[Request],
        followers: "list[_Follower[Request, Result]]",
    ) -> Result | Rejected:
        try:
            results = await self._without_transaction(workspace, line, leader, followers)
            if results is None:
                async with self._storage.transaction(workspace) as transaction:
                    # Whoever came while the lock was awaited goes along.
                    _board(line, leader, followers)
                    results = await self._carry_out(transaction, [leader, *followers])
        except BaseException:
            leader.in_doubt = True
            for follower in followers:
                follower.in_doubt = True
            line.extendleft(follower for follower in reversed(followers) if not follower.turn.done())
            raise
        for follower, result in zip(followers, results[1:], strict=True):
            if not follower.turn.done():
                follower.turn.set_result((result,))
        return results[0]

    async def _without_transaction(
        self,
        workspace: WorkspaceRef,
        line: "deque[_Follower[Request, Result]]",
        leader: Pending[Request],
        followers: "list[_Follower[Request, Result]]",
    ) -> Sequence[Result | Rejected] | None:
        if self._at_once is None or leader.in_doubt:
            return None
        # Whoever asks in the same turn of the loop goes along, such as all those of the commit before.
        await asyncio.sleep(0)
        _board(line, leader, followers)
        return await self._at_once(self._storage, workspace, [leader, *followers])

    def _appoint(self, workspace: WorkspaceRef, line: "deque[_Follower[Request, Result]]") -> None:
        """Lets the next in line lead."""
        while line:
            follower = line.popleft()
            if not follower.turn.done():
                follower.turn.set_result(None)
                return
        del self._lines[workspace]


@dataclass(slots=True, eq=False)
class _Follower[Request, Result](Pending[Request]):
    """A request behind a leader: its turn is what came of it, or `None` if it leads now."""

    turn: "asyncio.Future[tuple[Result | Rejected] | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


def _board[Request, Result](
    line: "deque[_Follower[Request, Result]]",
    leader: Pending[Request],
    followers: "list[_Follower[Request, Result]]",
) -> None:
    """Takes along those who wait, as many as share a commit."""
    while line and len(followers) + 1 < MAX_SHARED and not (leader.in_doubt or line[0].in_doubt):
        followers.append(line.popleft())


def _result[Result](outcome: Result | Rejected) -> Result:
    if isinstance(outcome, Rejected):
        raise outcome
    return outcome
