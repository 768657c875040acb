"""What the application does: block, page, close. Why it does is in `oncall.rules`.

An action runs at least once: a process may die after it acted and before that was recorded, and then it acts again. So
each is written to be repeated: a block has the same end however often it is set, and the pager knows a page by its run.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from pydantic import BaseModel, Field

from oncall.events import LoginAccepted
from reflexr.core import Run
from reflexr.workspace import Action, ActionFunction, Reaction, with_params


class Firewall:
    """Keeps addresses out for a while. In memory, as an example."""

    def __init__(self) -> None:
        self._blocked: dict[str, datetime] = {}

    def block(self, address: str, until: datetime) -> None:
        """Blocks an address until then, or for longer if it is blocked for longer."""
        self._blocked[address] = max(until, self._blocked.get(address, until))

    def blocked_until(self, address: str) -> datetime | None:
        """Returns when the latest block of an address ends or ended; `None` if it never was blocked."""
        return self._blocked.get(address)


class Pager:
    """Wakes whoever is on call. In memory, as an example."""

    def __init__(self) -> None:
        self._pages: dict[str, tuple[int, str]] = {}

    def page(self, key: str, text: str) -> int:
        """Sends a page, once per key, and returns its number."""
        return self._pages.setdefault(key, (len(self._pages) + 1, text))[0]


class Deps:
    """What the actions act on.

    A firewall and a pager of the world remember what was done with them. These ones' memory ends with the process, and
    what the next one's have to know is in the workspace, as the outputs of its runs.
    """

    def __init__(self) -> None:
        self.firewall = Firewall()
        self.pager = Pager()

    def remember(self, action: str, run: Run) -> None:
        """Takes note of what a run of an action did, in an earlier process; told in the order of the runs."""
        match action:
            case "block":
                blocked = Blocked.model_validate(run.output)
                self.firewall.block(blocked.address, blocked.until)
            case "page":
                self.pager.page(run.id, Paged.model_validate(run.output).said)
            case _:
                return


class Outcome(BaseModel):
    """What came of an action.

    Attributes:
        said: The same in words.
    """

    said: str


class Blocked(Outcome):
    address: str
    until: datetime


class Paged(Outcome):
    page: int


class Closed(Outcome):
    address: str
    blocked_until: datetime | None


class BlockParams(BaseModel):
    minutes: int = Field(gt=0)


async def block(reaction: Reaction[Deps], params: BlockParams) -> Blocked:
    """Blocks the address that is guessing."""
    address = str(reaction.scope["address"])
    until = reaction.run.fired_at + timedelta(minutes=params.minutes)
    reaction.deps.firewall.block(address, until)
    return Blocked(said=f"blocked {address} until {until:%H:%M:%S}", address=address, until=until)


async def page(reaction: Reaction[Deps]) -> Paged:
    """Wakes the on-call: somebody is in who may not be who they say."""
    login = LoginAccepted.model_validate(reaction.envelopes[-1].payload)
    text = f"{login.address} failed, then got in as {login.user!r} on {login.host}: is that them?"
    number = reaction.deps.pager.page(reaction.idempotency_key, text)
    return Paged(said=f"page {number} to the on-call: {text}", page=number)


async def close(reaction: Reaction[Deps]) -> Closed:
    """Closes the case of an address that is silent now."""
    address = str(reaction.scope["address"])
    until = reaction.deps.firewall.blocked_until(address)
    said = "case closed, it was never blocked" if until is None else f"case closed, blocked until {until:%H:%M:%S}"
    return Closed(said=said, address=address, blocked_until=until)


ACTIONS: Final[Mapping[str, Action[Deps] | ActionFunction[Deps]]] = {
    "block": with_params(block, BlockParams),
    "page": page,
    "close": close,
}
"""What the rules name."""
