"""Puts the application together: where events are kept, which rules watch them, what the rules run.

The storage is chosen in `start` and nowhere else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from oncall.actions import ACTIONS, Deps
from oncall.events import LogAdvanced, LoginAccepted, LoginFailed
from oncall.feed import Entry, Feed
from oncall.rules import RULES
from oncall.timeline import Decision
from reflexr.core import Envelope, Rule, RuleFired, SourceActor
from reflexr.workspace import InMemoryStorage, ManualClock, Reactor, Workspace, Workspaces

TENANT: Final = "example"
WORKSPACE: Final = "ssh"
SSHD: Final = SourceActor(name="sshd")

_LOGINS: Final = (LoginFailed, LoginAccepted)


@dataclass(frozen=True, slots=True)
class News:
    """What is new in the workspace's log: logins, and what rules decided."""

    logins: Sequence[Envelope]
    decisions: Sequence[Decision]


class Application:
    """A workspace that is fed a log, and the reactor that reacts to it."""

    def __init__(
        self, workspace: Workspace, reactor: Reactor[Deps], clock: ManualClock, rules: Sequence[Rule], seq: int
    ) -> None:
        self.feed = Feed(workspace, clock)
        self._workspace = workspace
        self._reactor = reactor
        self._rules = {rule.name: rule for rule in rules}
        self._seq = seq

    async def read(self, batch: Iterable[Entry]) -> News:
        """Publishes what the lines say, lets the reactor react, and returns what is new."""
        await self.feed.publish(batch)
        return await self._react()

    async def finish(self) -> News:
        """Ends the log, and returns what came of that."""
        await self.feed.finish()
        return await self._react()

    async def _react(self) -> News:
        await self._reactor.settle()
        after, self._seq = self._seq, await self._workspace.head_seq()
        logins = await self._workspace.read(after_seq=after, before_seq=self._seq + 1, types=_LOGINS)
        fired = await self._workspace.read(after_seq=after, before_seq=self._seq + 1, types=(RuleFired,))
        return News(logins, [await self._decision(str(one.payload["firing_id"])) for one in fired])

    async def _decision(self, firing_id: str) -> Decision:
        run = await self._workspace.run(firing_id)
        matched = [await self._workspace.read(after_seq=seq - 1, limit=1) for seq in run.matched]
        return Decision(self._rules[run.rule], run, tuple(envelope for (envelope,) in matched))


async def start(rules: Sequence[Rule] = RULES) -> Application:
    """Opens the workspace, in memory, with a clock that the log will set."""
    clock = ManualClock(datetime(1970, 1, 1, tzinfo=UTC))
    workspaces = Workspaces(InMemoryStorage(clock=clock), events=[*_LOGINS, LogAdvanced], rules=rules)
    reactor = Reactor(workspaces, actions=ACTIONS, deps=Deps())
    workspace = await workspaces.open(TENANT, WORKSPACE, actor=SSHD)
    return Application(workspace, reactor, clock, rules, await workspace.head_seq())
