import asyncio
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import override

import pytest

from reflexr.workspace import InMemoryStorage, LeaseKey, ManualClock, WorkspaceRef
from reflexr.workspace.slots import EVERYWHERE, Limits, Slots, Ticket

from .hesitation import cancelled_after
from .plant import REF, START
from .reacting import TTL

OTHER = WorkspaceRef("acme", "test")
RULE = "plant:a"


class Leases(InMemoryStorage):
    """Suspends where a database would before and after it takes and gives back leases, and does what a test says."""

    def __init__(self) -> None:
        self.now_at = ManualClock(START)
        super().__init__(clock=self.now_at)
        self.calls: list[str] = []
        self.failures: list[str] = []

    @override
    async def acquire(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        await self._pause("acquire")
        got = await super().acquire(keys, holder, ttl)
        await self._end("acquire")
        return got

    @override
    async def release(self, keys: Collection[LeaseKey], holder: str) -> None:
        await self._pause("release")
        await super().release(keys, holder)
        await self._end("release")

    async def _pause(self, call: str) -> None:
        self.calls.append(call)
        await asyncio.sleep(0)

    async def _end(self, call: str) -> None:
        await asyncio.sleep(0)
        if call in self.failures:
            self.failures.remove(call)
            raise OSError("the answer was lost")


@pytest.fixture
def storage() -> Leases:
    return Leases()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reflexr.workspace.slots.PAUSE", timedelta(0))


def slots_of(
    storage: Leases, holder: str = "me", *, rules: int | dict[str, int] | None = None, workspace: int | None = None
) -> Slots:
    return Slots(storage, Limits(rules, workspace), holder=holder, lease_ttl=TTL)


async def taken(slots: Slots, number: int = 1, *, workspace: WorkspaceRef = REF, rule: str = RULE) -> list[Ticket]:
    """Takes slots for so many runs, or for as many of them as there are."""
    promised = [slots.promise(workspace, rule) for _ in range(number)]
    tickets = [ticket for ticket in promised if ticket is not None]
    await slots.take(tickets)
    slots.drop(ticket for ticket in tickets if not ticket.is_valid)
    return [ticket for ticket in tickets if ticket.is_valid]


async def end(slots: Slots, tickets: Collection[Ticket]) -> None:
    await slots.give_back(tickets)
    slots.drop(tickets)


async def test_without_limits_nothing_is_asked_of_the_storage(storage: Leases) -> None:
    slots = slots_of(storage)

    tickets = await taken(slots, 1_000)
    await end(slots, tickets)

    assert len(tickets) == 1_000
    assert (storage.calls, slots.full(), slots.rest()) == ([], (frozenset(), frozenset()), None)


async def test_a_limit_gives_as_many_tickets_as_it_has_slots_until_one_is_dropped(storage: Leases) -> None:
    slots = slots_of(storage, rules=3)

    tickets = await taken(slots, 5)
    assert (len(tickets), slots.full()) == (3, ({RULE}, frozenset()))
    assert slots.promise(OTHER, RULE) is None
    assert slots.promise(OTHER, "plant:b") is not None
    await end(slots, tickets[:1])

    assert slots.full() == (frozenset(), frozenset())
    assert len(await taken(slots, 5)) == 1


async def test_slots_are_as_many_for_all_processes_together(storage: Leases) -> None:
    first, second = slots_of(storage, "first", workspace=3), slots_of(storage, "second", workspace=3)

    mine = await taken(first, 2)
    theirs = await taken(second, 3)

    assert (len(mine), len(theirs)) == (2, 1)
    assert second.full() == (frozenset(), {REF})
    assert len(await taken(second, 3, workspace=OTHER)) == 3


async def test_a_stored_rule_and_a_rule_of_its_own_number_count_by_their_names(storage: Leases) -> None:
    slots = slots_of(storage, rules={"chat:alarms": 1, RULE: 2})

    assert len(await taken(slots, 5, rule="chat:alarms")) == 1
    assert len(await taken(slots, 5)) == 2
    assert len(await taken(slots, 5, rule="plant:b")) == 5


async def test_slots_that_others_have_are_asked_for_once_and_not_again_and_again(storage: Leases) -> None:
    first, second = slots_of(storage, "first", rules=5), slots_of(storage, "second", rules=5)
    await taken(first, 2)

    tickets = await taken(second)
    others = await taken(second, 1)
    storage.calls.clear()
    await end(second, tickets)
    await taken(second)

    assert (len(tickets), len(others), storage.calls) == (1, 1, ["release", "acquire"])


async def test_more_than_are_needed_are_given_back_at_once(storage: Leases) -> None:
    first, second = slots_of(storage, "first", rules=5), slots_of(storage, "second", rules=5)
    await taken(first, 1)

    assert len(await taken(second)) == 1
    assert storage.sizes().leases == 2
    assert len(await taken(first, 3)) == 3


async def test_a_run_gets_a_slot_of_each_of_its_limits_or_none(storage: Leases) -> None:
    first, second = slots_of(storage, "first", workspace=1), slots_of(storage, "second", rules=2, workspace=1)
    await taken(first)

    assert await taken(second) == []
    assert storage.sizes().leases == 1
    assert second.full() == (frozenset(), {REF})
    assert len(await taken(second, workspace=OTHER)) == 1


async def test_a_limit_that_others_have_reached_is_looked_at_again_when_they_give_back(storage: Leases) -> None:
    limits = {"rules": 1, "workspace": 1}
    first, second = slots_of(storage, "first", **limits), slots_of(storage, "second", **limits)
    tickets = await taken(first)
    assert await taken(second) == []
    rest = second.rest()
    assert rest is not None
    assert timedelta() < rest <= timedelta(seconds=1)

    second.heard(frozenset({OTHER}))
    assert second.full() == ({RULE}, {REF})
    second.heard(frozenset({REF}))
    assert second.full() == ({RULE}, frozenset())
    with storage.wakeups.listen() as listener:
        await end(first, tickets)
        second.heard(await listener.wait())

    assert second.full() == (frozenset(), frozenset())
    assert second.rest() is None
    assert len(await taken(second)) == 1


async def test_a_limit_that_others_have_reached_is_looked_at_again_where_anything_may_have_changed(
    storage: Leases,
) -> None:
    first, second = slots_of(storage, "first", rules=1), slots_of(storage, "second", rules=1)
    await taken(first)
    await taken(second)

    second.heard(frozenset())

    assert second.full() == (frozenset(), frozenset())


async def test_a_limit_that_others_have_reached_is_left_alone_for_a_moment_however_often_they_give_back(
    storage: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reflexr.workspace.slots.PAUSE", timedelta(milliseconds=900))
    first, second = slots_of(storage, "first", rules=1), slots_of(storage, "second", rules=1)
    tickets = await taken(first)
    await taken(second)
    await end(first, tickets)

    second.heard(frozenset({EVERYWHERE}))

    assert second.full() == ({RULE}, frozenset())
    rest = second.rest()
    assert rest is not None
    assert rest <= timedelta(milliseconds=900)


async def test_a_limit_that_others_have_reached_is_looked_at_again_after_a_while(
    storage: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reflexr.workspace.slots.FIRST_DELAY", timedelta(0))
    first, second = slots_of(storage, "first", rules=1), slots_of(storage, "second", rules=1)
    await taken(first)
    assert await taken(second) == []

    storage.now_at.advance(TTL)

    assert second.rest() == timedelta()
    assert second.full() == (frozenset(), frozenset())
    assert len(await taken(second)) == 1


@pytest.mark.parametrize("changed", [frozenset({EVERYWHERE}), frozenset[WorkspaceRef]()])
async def test_what_is_given_back_while_others_ask_is_looked_at_again_at_once(
    storage: Leases, changed: frozenset[WorkspaceRef]
) -> None:
    first, second = slots_of(storage, "first", rules=1), slots_of(storage, "second", rules=1)
    await taken(first)

    asking = asyncio.ensure_future(taken(second))
    await asyncio.sleep(0)
    second.heard(frozenset({REF}))
    second.heard(changed)

    assert await asking == []
    assert second.full() == (frozenset(), frozenset())


async def test_of_a_limit_that_others_have_reached_each_slot_is_asked_for_once(storage: Leases) -> None:
    first, second = slots_of(storage, "first", rules=3), slots_of(storage, "second", rules=3)
    await taken(first, 3)
    storage.calls.clear()

    assert await taken(second, 3) == []

    assert storage.calls == ["acquire"]


async def test_two_claims_at_once_share_no_slot(storage: Leases) -> None:
    slots = slots_of(storage, rules=4)

    first, second = await asyncio.gather(taken(slots, 2), taken(slots, 2, workspace=OTHER))

    leases = [lease for ticket in (*first, *second) for lease in ticket.leases]
    assert len(leases) == len(set(leases)) == 4


@pytest.mark.parametrize("reactors", [1, 2])
async def test_nothing_stays_taken_whenever_a_claim_is_cancelled(storage: Leases, reactors: int) -> None:
    async def claim() -> None:
        promised = [slots.promise(REF, RULE) for _ in range(2)]
        tickets = [ticket for ticket in promised if ticket is not None]
        try:
            await slots.take(tickets)
        finally:
            try:
                await slots.give_back(tickets)
            finally:
                slots.drop(tickets)

    for number in range(1, reactors):
        await taken(slots_of(storage, f"another {number}", rules=4), 1)
    moments, ended = 0, False
    while not ended:
        slots = slots_of(storage, f"holder {moments}", rules=4, workspace=3)
        ended = await cancelled_after(moments, claim)
        assert storage.sizes().leases == reactors - 1
        assert len(await taken(slots, 3)) == 3
        await storage.release(storage_leases(4), f"holder {moments}")
        moments += 1
    assert moments > 5


def storage_leases(number: int) -> list[LeaseKey]:
    of_rule = [LeaseKey(EVERYWHERE, f"slot:{RULE}:{one}") for one in range(number)]
    return [*of_rule, *(LeaseKey(REF, f"slot:{one}") for one in range(number))]


async def test_nothing_stays_taken_when_the_answer_to_a_claim_is_lost(storage: Leases) -> None:
    slots = slots_of(storage, rules=2)
    storage.failures = ["acquire"]

    with pytest.raises(OSError, match="lost"):
        await taken(slots)

    assert storage.sizes().leases == 0


async def test_slots_that_could_not_be_given_back_are_later(
    storage: Leases, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slots = slots_of(storage, rules=2)
    tickets = await taken(slots, 2)

    async def refused(keys: Collection[LeaseKey], holder: str) -> None:
        raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "release", refused)
        await end(slots, tickets)
    assert "2 slots could not be given back" in caplog.text
    assert storage.sizes().leases == 2

    assert len(await taken(slots, 2)) == 2
    assert storage.calls == ["acquire", "release", "acquire"]


async def test_what_is_given_back_at_once_goes_together(storage: Leases) -> None:
    slots = slots_of(storage, rules=20)
    tickets = await taken(slots, 20)
    storage.calls.clear()

    await asyncio.gather(*(end(slots, [ticket]) for ticket in tickets))

    assert len(storage.calls) <= 2
    assert storage.sizes().leases == 0


async def test_slots_are_given_back_though_whoever_does_is_cancelled(storage: Leases) -> None:
    slots = slots_of(storage, rules=1)
    moments, ended = 1, False
    while not ended:
        tickets = await taken(slots)
        ended = await cancelled_after(moments, partial(slots.give_back, tickets))
        assert (len(tickets), storage.sizes().leases) == (1, 0)
        slots.drop(tickets)
        moments += 1
    assert moments > 2
