"""Slots: how many runs of one rule, or of one workspace, are carried out at once at most, in all processes together.

A limit of n is n leases, of which each run that is carried out holds one. So slots exclude as leases do, and those of a
process that died lapse. Which runs are claimed is `reflexr.workspace.executing`'s.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, islice
from logging import getLogger
from typing import Final, NamedTuple

from reflexr.telemetry import untraced
from reflexr.workspace.refs import LeaseKey, WorkspaceRef
from reflexr.workspace.rounds import FIRST_DELAY
from reflexr.workspace.storage import Storage

EVERYWHERE: Final = WorkspaceRef("", "")
"""Where the leases are that are no workspace's: ids have a character at least, so no workspace is called that."""

PAUSE: Final = timedelta(milliseconds=50)
"""How long a limit that others have reached is not looked at again, however often they give slots back."""

_LOGGER: Final = getLogger("reflexr.workspace.reactor")

type Subject = str | WorkspaceRef
"""What a limit is on: a rule, by its name, or a workspace."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many runs are carried out at once at most, in all processes together.

    Attributes:
        rules: Of one rule in all workspaces: the same for every rule, or by name for some.
        workspace: Of all rules in one workspace.
    """

    rules: int | Mapping[str, int] | None = None
    workspace: int | None = None

    def of_rule(self, rule: str) -> int | None:
        """Returns how many runs of a rule are carried out at once."""
        return self.rules.get(rule) if isinstance(self.rules, Mapping) else self.rules

    def problems(self, known: Collection[str], namespaces: Collection[str]) -> Iterator[str]:
        """Yields what is wrong with them.

        Args:
            known: The rules that there are.
            namespaces: The namespaces of stored rules.
        """
        if isinstance(self.rules, Mapping):
            for rule, number in self.rules.items():
                if number < 1:
                    yield f"rule_concurrency: {number!r} of {rule!r} is less than 1: disable the rule instead"
                if rule not in known and rule.partition(":")[0] not in namespaces:
                    yield f"rule_concurrency: there is no rule {rule!r}"
        elif self.rules is not None and self.rules < 1:
            yield f"rule_concurrency: {self.rules!r} is less than 1"
        if self.workspace is not None and self.workspace < 1:
            yield f"workspace_concurrency: {self.workspace!r} is less than 1"


@dataclass(eq=False, slots=True)
class _Pool:
    """The slots of one limit.

    Attributes:
        subject: What the limit is on.
        size: How many slots there are.
        promised: How many of them this process may use for the runs that it has in hand or is about to claim.
        taken: The numbers of those that it has, or has asked for.
        begin: The number that it asks for first: one that it had, as others have those that it could not get.
    """

    subject: Subject
    size: int
    promised: int = 0
    taken: set[int] = field(default_factory=set[int])
    begin: int = 0

    def free(self, number: int, but: Collection[int]) -> list["_Slot"]:
        """Returns so many of the slots that are not taken, but for some."""
        numbers = chain(range(self.begin, self.size), range(self.begin))
        free = (one for one in numbers if one not in self.taken and one not in but)
        return [_Slot(self, one) for one in islice(free, number)]


class _Slot(NamedTuple):
    """One slot of a limit."""

    pool: _Pool
    number: int

    @property
    def lease(self) -> LeaseKey:
        """The lease that it is."""
        subject = self.pool.subject
        name = f"slot:{self.number}" if isinstance(subject, WorkspaceRef) else f"slot:{subject}:{self.number}"
        return LeaseKey(_place_of(subject), name)


@dataclass(eq=False, slots=True)
class Ticket:
    """What one run needs to be carried out: a slot of each limit that it is under.

    Attributes:
        pools: The limits.
        held: The slots, once they are taken.
        lost: Whether one of them was lost.
    """

    pools: tuple[_Pool, ...] = ()
    held: tuple[_Slot, ...] = ()
    lost: bool = False

    @property
    def is_valid(self) -> bool:
        """Whether it has all the slots that it needs."""
        return len(self.held) == len(self.pools)

    @property
    def leases(self) -> list[LeaseKey]:
        """The leases that its slots are."""
        return [slot.lease for slot in self.held]


class _Mark(NamedTuple):
    """That others had reached a limit.

    Attributes:
        until: When it is looked at again.
        earliest: When it is at the earliest.
    """

    until: float
    earliest: float


class Slots:
    """The slots of one reactor."""

    def __init__(self, storage: Storage, limits: Limits, *, holder: str, lease_ttl: timedelta) -> None:
        """Prepares to take slots.

        Args:
            storage: Where the leases are.
            limits: How many slots there are.
            holder: Who holds the leases.
            lease_ttl: How long a lease lasts that is not renewed.
        """
        self._storage = storage
        self._limits = limits
        self._holder = holder
        self._lease_ttl = lease_ttl
        self._pools: dict[Subject, _Pool] = {}
        self._full: dict[Subject, _Mark] = {}
        # What is to be given back keeps its number until it is, so that nobody here takes it in between.
        self._ended: dict[_Slot, None] = {}
        self._giving_back = asyncio.Lock()
        # What was heard while slots are asked for, by each who asks: the answers are older.
        self._news: list[set[WorkspaceRef | None]] = []

    # --- Which limits are reached

    def full(self) -> tuple[frozenset[str], frozenset[WorkspaceRef]]:
        """Returns the rules and the workspaces that have no slot left, as far as is known."""
        now = asyncio.get_running_loop().time()
        self._full = {subject: mark for subject, mark in self._full.items() if mark.until > now}
        reached = {subject for subject, pool in self._pools.items() if pool.promised >= pool.size}
        rules: set[str] = set()
        workspaces: set[WorkspaceRef] = set()
        for subject in reached | self._full.keys():
            if isinstance(subject, WorkspaceRef):
                workspaces.add(subject)
            else:
                rules.add(subject)
        return frozenset(rules), frozenset(workspaces)

    def rest(self) -> timedelta | None:
        """Returns how long it is until limits that others had reached are looked at again; `None` if there are none."""
        if not self._full:
            return None
        now = asyncio.get_running_loop().time()
        return timedelta(seconds=max(min(self._full.values()).until - now, 0))

    def look_again(self) -> None:
        """Forgets which limits others had reached."""
        self._full.clear()

    def heard(self, changed: frozenset[WorkspaceRef]) -> None:
        """Takes note that workspaces changed, which may be that others gave slots back; none stands for any."""
        for news in self._news:
            news.update(changed or (None,))
        for subject, mark in self._full.items():
            if not changed or _place_of(subject) in changed:
                self._full[subject] = mark._replace(until=min(mark.until, mark.earliest))

    # --- The slots of runs

    def promise(self, workspace: WorkspaceRef, rule: str) -> Ticket | None:
        """Returns a ticket for a run, without slots yet; `None` if one of its limits is reached, as far as is known.

        It counts until it is dropped.
        """
        limits: tuple[tuple[Subject, int | None], ...] = (
            (rule, self._limits.of_rule(rule)),
            (workspace, self._limits.workspace),
        )
        pools = tuple(self._pools.get(subject) or _Pool(subject, size) for subject, size in limits if size is not None)
        if any(pool.promised >= pool.size or self._is_full(pool.subject) for pool in pools):
            return None
        for pool in pools:
            pool.promised += 1
            self._pools[pool.subject] = pool
        return Ticket(pools)

    async def take(self, tickets: Collection[Ticket]) -> None:
        """Takes the slots of these tickets, as far as there are any; those that do not get all they need get none.

        Whatever goes wrong, and if it is cancelled, no more is held than the tickets say.

        Raises:
            StorageError: The storage could not.
        """
        needs = Counter(pool for ticket in tickets for pool in ticket.pools)
        if not needs:
            return
        await self._give_back(())
        got: dict[_Pool, list[_Slot]] = {pool: [] for pool in needs}
        news: set[WorkspaceRef | None] = set()
        self._news.append(news)
        try:
            missed = await self._ask(dict(needs), got, {})
            # Others may have just those that were asked for.
            await self._ask({pool: pool.size for pool in needs if len(got[pool]) < needs[pool]}, got, missed)
        finally:
            self._news = [one for one in self._news if one is not news]
        for pool in needs:
            if len(got[pool]) < needs[pool]:
                self._mark(pool.subject, is_old=bool({None, _place_of(pool.subject)} & news))
        for ticket in tickets:
            if all(got[pool] for pool in ticket.pools):
                ticket.held = tuple(got[pool].pop(0) for pool in ticket.pools)
        await self._give_back([slot for slots in got.values() for slot in slots])

    async def give_back(self, tickets: Iterable[Ticket]) -> None:
        """Gives back the slots that these tickets have; a cancellation does not keep it from that.

        If the storage fails, they are given back the next time that any are, or lapse.
        """
        await self._give_back([slot for ticket in tickets for slot in ticket.held])

    def drop(self, tickets: Iterable[Ticket]) -> None:
        """Takes note that the runs of these tickets are not in hand any more, and what they had is given back."""
        for ticket in tickets:
            for pool in ticket.pools:
                pool.promised -= 1
                self._forget_unused(pool)
            for slot in ticket.held:
                self._full.pop(slot.pool.subject, None)

    async def _ask(
        self, wanted: Mapping[_Pool, int], got: Mapping[_Pool, list[_Slot]], but: Mapping[_Pool, Collection[int]]
    ) -> Mapping[_Pool, Collection[int]]:
        """Asks for slots, adds what it gets, and returns the numbers that it did not get."""
        missed: dict[_Pool, set[int]] = {}
        asked = [slot for pool, number in wanted.items() for slot in pool.free(number, but.get(pool, ()))]
        if not asked:
            return missed
        for pool, number in asked:
            pool.taken.add(number)
        try:
            with untraced():
                leases = await self._storage.acquire([slot.lease for slot in asked], self._holder, self._lease_ttl)
        except (Exception, asyncio.CancelledError):
            # Some may be taken all the same.
            await self._give_back([*asked, *chain.from_iterable(got.values())])
            raise
        for slot in asked:
            if slot.lease in leases:
                got[slot.pool].append(slot)
            else:
                slot.pool.taken.discard(slot.number)
                missed.setdefault(slot.pool, set()).add(slot.number)
        return missed

    async def _give_back(self, slots: Sequence[_Slot]) -> None:
        self._ended.update(dict.fromkeys(slots))
        try:
            await self._give_back_all()
        except asyncio.CancelledError:
            await self._give_back_all()
            raise

    async def _give_back_all(self) -> None:
        """Gives back all that are to be; what others have to give back meanwhile goes together after that."""
        if not self._ended:
            return
        async with self._giving_back:
            ended = list(self._ended)
            if not ended:
                return
            try:
                with untraced():
                    await self._storage.release([slot.lease for slot in ended], self._holder)
            except Exception:
                _LOGGER.exception("%d slots could not be given back; they lapse, or are given back later", len(ended))
                return
            for slot in ended:
                del self._ended[slot]
                slot.pool.taken.discard(slot.number)
                slot.pool.begin = slot.number
                self._forget_unused(slot.pool)

    def _mark(self, subject: Subject, *, is_old: bool) -> None:
        """Notes that a limit is reached, or was until something changed."""
        now = asyncio.get_running_loop().time()
        earliest = now + PAUSE.total_seconds()
        self._full[subject] = _Mark(earliest if is_old else now + FIRST_DELAY.total_seconds(), earliest)

    def _is_full(self, subject: Subject) -> bool:
        mark = self._full.get(subject)
        return mark is not None and mark.until > asyncio.get_running_loop().time()

    def _forget_unused(self, pool: _Pool) -> None:
        if not pool.promised and not pool.taken and self._pools.get(pool.subject) is pool:
            del self._pools[pool.subject]


def _place_of(subject: Subject) -> WorkspaceRef:
    """Returns where the leases of a limit are."""
    return subject if isinstance(subject, WorkspaceRef) else EVERYWHERE
