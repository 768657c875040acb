"""What a storage promises of leases: one holder at a time, until the lease lapses or is given back."""

import asyncio
from datetime import timedelta

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import HOUR, WORKSPACE, numbered
from reflexr.contracts.trials import StorageGuarantees, StorageTrial, give_way, together
from reflexr.workspace import LeaseKey, WorkspaceRef

SHORT = timedelta(milliseconds=20)
KEY = LeaseKey(WORKSPACE, "a")


class LeasesContract(StorageGuarantees):
    """A lease has one holder, who has it until it lapses, is renewed or is given back."""

    @guarantee()
    async def test_a_lease_excludes_others(self, trial: StorageTrial) -> None:
        """A lease that somebody holds is not given to anybody else."""
        assert await trial.storage.acquire([KEY], "first", HOUR) == {KEY}
        assert await trial.storage.acquire([KEY], "second", HOUR) == frozenset()
        async with trial.transaction() as transaction:
            assert await transaction.acquire(["a"], "second", HOUR) == frozenset()
            assert await transaction.holders(["a"]) == {"a": "first"}

    @guarantee()
    async def test_of_many_who_want_a_lease_at_once_one_gets_it(self, trial: StorageTrial) -> None:
        """Of 20 who ask for the same leases at once, each lease goes to exactly one."""
        keys = [LeaseKey(WORKSPACE, name) for name in numbered(5, "lease")]
        got = await together(trial.storage.acquire(keys, f"holder {number}", HOUR) for number in range(20))
        assert sorted(key.name for taken in got for key in taken) == sorted(key.name for key in keys)

    @guarantee()
    async def test_free_leases_of_a_set_are_taken(self, trial: StorageTrial) -> None:
        """Of a set of leases, those that are free are taken and named, whatever becomes of the others."""
        keys = [LeaseKey(WORKSPACE, name) for name in "abc"]
        await trial.storage.acquire(keys[1:2], "first", HOUR)
        assert await trial.storage.acquire(keys, "second", HOUR) == {keys[0], keys[2]}
        assert await trial.storage.acquire([], "second", HOUR) == frozenset()

    @guarantee()
    async def test_a_lease_is_taken_again_by_its_holder(self, trial: StorageTrial) -> None:
        """A holder that asks for a lease it has gets it again, and it is extended."""
        await trial.storage.acquire([KEY], "first", timedelta(seconds=2))
        assert await trial.storage.acquire([KEY], "first", HOUR) == {KEY}
        await trial.pass_time(SHORT)
        if trial.is_movable:
            trial.clock.advance(timedelta(seconds=2))
        assert await trial.storage.acquire([KEY], "second", HOUR) == frozenset()

    @guarantee()
    async def test_a_lease_lapses(self, trial: StorageTrial) -> None:
        """Once its `ttl` has passed a lease is anybody's."""
        await trial.storage.acquire([KEY], "first", SHORT)
        await trial.pass_time(SHORT)
        async with trial.transaction() as transaction:
            assert await transaction.holders(["a"]) == {}
        assert await trial.storage.acquire([KEY], "second", HOUR) == {KEY}

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_lease_lapses_at_its_very_time(self, trial: StorageTrial) -> None:
        """A lease is live until `ttl` has passed, and has lapsed at that very moment."""
        await trial.storage.acquire([KEY], "first", HOUR)
        trial.clock.advance(HOUR - trial.clock_precision)
        assert await trial.storage.acquire([KEY], "second", HOUR) == frozenset()
        async with trial.transaction() as transaction:
            assert await transaction.holders(["a"]) == {"a": "first"}
        trial.clock.advance(trial.clock_precision)
        async with trial.transaction() as transaction:
            assert await transaction.holders(["a"]) == {}
        assert await trial.storage.acquire([KEY], "second", HOUR) == {KEY}

    @guarantee()
    async def test_a_lease_that_is_renewed_does_not_lapse(self, trial: StorageTrial) -> None:
        """A lease that its holder renews in time lives on for the new `ttl`, and is named in the answer."""
        await trial.storage.acquire([KEY], "first", timedelta(seconds=2))
        assert await trial.storage.renew([KEY], "first", HOUR) == {KEY}
        await trial.pass_time(SHORT)
        if trial.is_movable:
            trial.clock.advance(timedelta(seconds=2))
        assert await trial.storage.acquire([KEY], "second", HOUR) == frozenset()

    @guarantee()
    async def test_a_lease_that_lapsed_is_not_renewed(self, trial: StorageTrial) -> None:
        """A lease that lapsed is lost, also if nobody took it since: renewing it returns it not."""
        await trial.storage.acquire([KEY], "first", SHORT)
        await trial.pass_time(SHORT)
        assert await trial.storage.renew([KEY], "first", HOUR) == frozenset()
        assert await trial.storage.acquire([KEY], "second", HOUR) == {KEY}

    @guarantee()
    async def test_a_lease_of_another_is_not_renewed(self, trial: StorageTrial) -> None:
        """Only its holder renews a lease; those of others, and those that nobody has, are not in the answer."""
        keys = [LeaseKey(WORKSPACE, name) for name in "abc"]
        await trial.storage.acquire(keys[:1], "first", HOUR)
        await trial.storage.acquire(keys[1:2], "second", HOUR)
        assert await trial.storage.renew(keys, "second", HOUR) == {keys[1]}
        assert await trial.storage.renew([], "second", HOUR) == frozenset()
        assert await trial.storage.acquire(keys, "third", HOUR) == {keys[2]}

    @guarantee()
    async def test_a_lease_that_is_given_back_is_free(self, trial: StorageTrial) -> None:
        """A lease that its holder gave back is anybody's at once."""
        await trial.storage.acquire([KEY], "first", HOUR)
        await trial.storage.release([KEY], "first")
        assert await trial.storage.acquire([KEY], "second", HOUR) == {KEY}

    @guarantee()
    async def test_a_lease_of_another_is_not_given_back(self, trial: StorageTrial) -> None:
        """Giving back a lease that another holds, or that nobody holds, does nothing."""
        await trial.storage.acquire([KEY], "first", HOUR)
        await trial.storage.release([KEY, LeaseKey(WORKSPACE, "none")], "second")
        assert await trial.storage.acquire([KEY], "second", HOUR) == frozenset()

    @guarantee()
    async def test_leases_are_of_one_workspace(self, trial: StorageTrial) -> None:
        """Leases of one name in different workspaces have nothing to do with each other."""
        other = LeaseKey(WorkspaceRef(WORKSPACE.tenant_id, "another"), "a")
        await trial.storage.acquire([KEY], "first", HOUR)
        assert await trial.storage.acquire([KEY, other], "second", HOUR) == {other}

    @guarantee()
    async def test_names_and_holders_are_told_apart_by_every_character(self, trial: StorageTrial) -> None:
        """Names of leases and of holders that differ in case, spaces or normalisation are different."""
        names = ["a", "A", "a ", "caf\u00e9", "cafe\u0301", "%", "_"]
        for name in names:
            key = LeaseKey(WORKSPACE, name)
            assert await trial.storage.acquire([key], name, HOUR) == {key}
        for number, name in enumerate(names):
            assert await trial.storage.renew([LeaseKey(WORKSPACE, name)], names[number - 1], HOUR) == frozenset()

    @guarantee()
    async def test_a_large_number_of_leases_is_one_call(self, trial: StorageTrial) -> None:
        """5,000 leases are taken, renewed and given back in one call each."""
        keys = frozenset(LeaseKey(WORKSPACE, name) for name in numbered(self.large, "lease"))
        assert await trial.storage.acquire(keys, "first", HOUR) == keys
        assert await trial.storage.renew(keys, "first", HOUR) == keys
        await trial.storage.release(keys, "first")
        assert await trial.storage.acquire(keys, "second", HOUR) == keys

    # --- Inside a transaction

    @guarantee()
    async def test_a_transaction_takes_leases_when_it_commits(self, trial: StorageTrial) -> None:
        """Leases that a transaction takes are its own at once, and are taken for everybody else once it committed."""
        async with trial.transaction() as transaction:
            assert await transaction.acquire(["a", "b"], "first", HOUR) == {"a", "b"}
            assert await transaction.holders(["a", "b", "c"]) == {"a": "first", "b": "first"}
            assert await transaction.acquire(["a"], "second", HOUR) == frozenset()
        assert await trial.storage.acquire([KEY], "second", HOUR) == frozenset()

    @guarantee()
    async def test_a_transaction_that_raises_takes_and_gives_back_no_lease(self, trial: StorageTrial) -> None:
        """Leases taken or given back by a transaction that rolled back are as they were before."""
        await trial.storage.acquire([KEY], "first", HOUR)
        async with trial.rolled_back() as transaction:
            await transaction.release(["a"], "first")
            await transaction.acquire(["a", "b"], "second", HOUR)
        async with trial.transaction() as transaction:
            assert await transaction.holders(["a", "b"]) == {"a": "first"}

    @guarantee()
    async def test_a_transaction_gives_back_leases_when_it_commits(self, trial: StorageTrial) -> None:
        """Leases that a transaction gives back are free for it at once and for everybody once it committed."""
        await trial.storage.acquire([KEY, LeaseKey(WORKSPACE, "b")], "first", HOUR)
        async with trial.transaction() as transaction:
            await transaction.release(["a", "b"], "second")
            await transaction.release(["a"], "first")
            assert await transaction.holders(["a", "b"]) == {"b": "first"}
        assert await trial.storage.acquire([KEY], "second", HOUR) == {KEY}

    @guarantee()
    async def test_a_lease_changes_hands_inside_a_transaction(self, trial: StorageTrial) -> None:
        """A lease that a transaction gave back can be taken in it by another, who has it afterwards."""
        await trial.storage.acquire([KEY], "first", HOUR)
        async with trial.transaction() as transaction:
            await transaction.release(["a"], "first")
            assert await transaction.acquire(["a"], "second", HOUR) == {"a"}
        assert await trial.storage.renew([KEY], "first", HOUR) == frozenset()
        assert await trial.storage.renew([KEY], "second", HOUR) == {KEY}

    @guarantee()
    async def test_a_lease_that_a_transaction_takes_is_not_given_away_meanwhile(self, trial: StorageTrial) -> None:
        """Who asks for a lease while an open transaction has taken it does not get it, whether they wait or not."""
        got: list[frozenset[LeaseKey]] = []

        async def take() -> None:
            got.append(await trial.storage.acquire([KEY], "second", HOUR))

        async with trial.transaction() as transaction:
            assert await transaction.acquire(["a"], "first", HOUR) == {"a"}
            taking = asyncio.create_task(take())
            await give_way(transaction, taking)
        await taking
        assert got == [frozenset()]
        assert await trial.storage.renew([KEY], "first", HOUR) == {KEY}

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_lease_that_a_transaction_takes_lapses_at_its_very_time(self, trial: StorageTrial) -> None:
        """A lease that a transaction took lapses when `ttl` has passed since the transaction's `now`."""
        async with trial.transaction() as transaction:
            await transaction.acquire(["a"], "first", HOUR)
            trial.clock.advance(HOUR / 2)
        trial.clock.advance(HOUR / 2 - trial.clock_precision)
        assert await trial.storage.acquire([KEY], "second", HOUR) == frozenset()
        trial.clock.advance(trial.clock_precision)
        assert await trial.storage.acquire([KEY], "second", HOUR) == {KEY}

    @guarantee(Feature.SHARED_DATA)
    async def test_a_lease_excludes_those_of_another_storage(self, trial: StorageTrial) -> None:
        """A lease excludes those who ask through a second storage on the same data, and is renewed through either."""
        async with trial.beside() as other:
            assert await trial.storage.acquire([KEY], "first", HOUR) == {KEY}
            assert await other.storage.acquire([KEY], "second", HOUR) == frozenset()
            assert await other.storage.renew([KEY], "first", HOUR) == {KEY}
            got = await together(
                one.storage.acquire([LeaseKey(WORKSPACE, "b")], f"holder {number}", HOUR)
                for number, one in enumerate([trial, other] * 5)
            )
            assert sum(map(len, got)) == 1
