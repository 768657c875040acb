"""What a storage promises of transactions: one after another, whole or not at all, whatever becomes of the caller."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.cancellation import Moment, cancel_at_each_await
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import (
    ALPHA,
    BETA,
    HOUR,
    WORKSPACE,
    at,
    dead_letter,
    draft,
    drafts,
    marked,
    needs,
    progress,
    rule,
    run,
    run_scope,
    stored,
)
from reflexr.contracts.trials import StorageGuarantees, StorageTrial, give_way, together
from reflexr.workspace import (
    LeaseKey,
    LogWindow,
    RunPolicy,
    RunQuery,
    StateChanges,
    Transaction,
    TransactionClosedError,
    Watch,
    WorkspaceRef,
)

WRITERS = 20
"""How many write at once here."""


class TransactionContract(StorageGuarantees):
    """Transactions of one workspace come one after another, and each is all or nothing."""

    # --- One after another

    @guarantee()
    async def test_a_transaction_waits_for_the_one_before_it(self, trial: StorageTrial) -> None:
        """A transaction begins only when the one before it on that workspace has ended, and sees all that it wrote."""
        heads: list[int] = []

        async def second() -> None:
            async with trial.transaction() as transaction:
                heads.append(transaction.head.seq)

        async with trial.transaction() as transaction:
            waiting = asyncio.create_task(second())
            await give_way(transaction, waiting)
            assert heads == []
            await transaction.append(drafts(3))
        await waiting
        assert heads == [3]

    @guarantee()
    async def test_no_write_is_lost(self, trial: StorageTrial) -> None:
        """What a transaction read is still so when it commits: of 20 that each count one up at once, all 20 count."""

        async def count_up() -> None:
            async with trial.transaction() as transaction:
                known = (await transaction.progress([ALPHA])).get(ALPHA)
                await asyncio.sleep(0)
                await transaction.save_progress([progress(ALPHA, 1 if known is None else known.cursor + 1)])

        await together(count_up() for _ in range(WRITERS))
        assert (await trial.storage.progress(WORKSPACE))[ALPHA].cursor == WRITERS

    @guarantee()
    async def test_transactions_take_turns_in_the_order_in_which_they_waited(self, trial: StorageTrial) -> None:
        """Those who wait for a workspace get it in the order in which they began to wait."""
        turns: list[int] = []

        async def wait(number: int) -> None:
            async with trial.transaction():
                turns.append(number)

        async with trial.transaction() as transaction:
            waiting: list[asyncio.Task[None]] = []
            for number in range(5):
                waiting.append(asyncio.create_task(wait(number)))
                await give_way(transaction, *waiting)
        await asyncio.gather(*waiting)
        assert turns == [0, 1, 2, 3, 4]

    @guarantee()
    async def test_two_writers_at_once_share_one_order(self, trial: StorageTrial) -> None:
        """Two who append at once get places without a gap or a double, each one's in the order of its appends."""
        await _two_writers(trial, trial)

    @guarantee(Feature.PARALLEL_WORKSPACES)
    async def test_another_workspace_is_not_held_up(self, trial: StorageTrial) -> None:
        """A transaction on one workspace begins, writes and commits while one on another is open."""
        other = WorkspaceRef(WORKSPACE.tenant_id, "another")
        async with trial.transaction() as transaction:
            await transaction.append([draft("e1")])
            await trial.append(draft("e1"), workspace=other)
            assert await trial.ids(other) == ["e1"]
        assert await trial.ids() == ["e1"]

    @guarantee()
    async def test_nobody_sees_a_part_of_a_transaction(self, trial: StorageTrial) -> None:
        """Whoever reads outside sees nothing of a transaction before it ends, and everything afterwards."""
        seen: list[int] = []

        async def look() -> None:
            seen.append((await trial.storage.head(WORKSPACE)).seq)
            seen.append(len(await trial.storage.read(WORKSPACE, LogWindow())))
            seen.append(len(await trial.storage.runs(WORKSPACE, RunQuery())))

        async with trial.transaction() as transaction:
            await transaction.append(drafts(3))
            await transaction.save_runs([run("r1"), run("r2", seq=2), run("r3", seq=3)])
            looking = asyncio.create_task(look())
            await give_way(transaction, looking)
            # A storage may let a reader wait until the transaction has ended, but not show it a part.
            assert seen in ([], [0], [0, 0], [0, 0, 0])
        await looking
        seen.clear()
        await look()
        assert seen == [3, 3, 3]

    # --- All or nothing

    @guarantee()
    async def test_a_block_that_raises_changes_nothing(self, trial: StorageTrial) -> None:
        """Of a transaction whose block raises, nothing is left: of none of its writes, and of no lease."""
        await _prepare(trial)
        before = await _everything(trial)
        async with trial.rolled_back() as transaction:
            await _change_everything(transaction)
        assert await _everything(trial) == before

    @guarantee()
    async def test_a_block_that_is_cancelled_changes_nothing(self, trial: StorageTrial) -> None:
        """Of a transaction whose caller is cancelled inside the block, nothing is left."""
        await _prepare(trial)
        before = await _everything(trial)
        written = asyncio.Event()

        async def write() -> None:
            async with trial.transaction() as transaction:
                await _change_everything(transaction)
                written.set()
                await asyncio.Event().wait()

        writing = asyncio.create_task(write())
        await written.wait()
        writing.cancel()
        await asyncio.wait([writing])
        assert writing.cancelled()
        assert await _everything(trial) == before

    @guarantee()
    async def test_a_block_that_ends_changes_everything(self, trial: StorageTrial) -> None:
        """Of a transaction whose block ends, every write is there."""
        await _prepare(trial)
        before = await _everything(trial)
        async with trial.transaction() as transaction:
            await _change_everything(transaction)
        after = await _everything(trial)
        assert {name for name, value in after.items() if value != before[name]} == set(after)

    @guarantee()
    async def test_an_error_of_the_block_passes_through(self, trial: StorageTrial) -> None:
        """The caller gets the very exception that its block raised."""
        error = LookupError("mine")

        async def fail() -> None:
            async with trial.transaction() as transaction:
                await transaction.append([draft("e1")])
                raise error

        with pytest.raises(LookupError) as raised:
            await fail()
        assert raised.value is error

    @guarantee()
    async def test_a_workspace_that_a_block_left_is_free(self, trial: StorageTrial) -> None:
        """After a block raised, the next transaction on the workspace begins at once."""
        for number in range(WRITERS):
            async with trial.rolled_back() as transaction:
                await transaction.append([draft(f"gone{number}")])
        await trial.append(draft("e1"))
        assert await trial.ids() == ["e1"]

    @guarantee()
    async def test_a_transaction_that_writes_nothing_changes_nothing(self, trial: StorageTrial) -> None:
        """A transaction that only reads, or writes empty sets, commits, and no workspace comes of it."""
        async with trial.transaction() as transaction:
            await transaction.append([])
            await transaction.save_progress([])
            await transaction.change_states({})
            await transaction.clear_states([])
            await transaction.save_runs([])
            await transaction.add_dead_letters([])
            await transaction.save_stored_rules([])
            await transaction.save_schedule_ticks({})
            assert await transaction.acquire([], "holder", HOUR) == frozenset()
            await transaction.release([], "holder")
            assert await transaction.progress([]) == {}
            assert await transaction.states({}) == {}
            assert await transaction.runs([]) == {}
            assert await transaction.find_runs(RunQuery()) == []
            assert await transaction.first_runs([]) == {}
            assert await transaction.stored_rules([]) == {}
            assert await transaction.holders([]) == {}
        assert await trial.storage.workspaces() == []

    @guarantee()
    async def test_a_transaction_is_of_no_use_after_its_block(self, trial: StorageTrial) -> None:
        """Every method of a transaction raises `TransactionClosedError` once its block has ended."""
        async with trial.transaction() as transaction:
            await transaction.append([draft("e1")])
        uses: list[Awaitable[object]] = [
            transaction.append([draft("e2")]),
            transaction.find(["e1"]),
            transaction.read(LogWindow()),
            transaction.read_seqs([1]),
            transaction.progress(),
            transaction.save_progress([progress(ALPHA)]),
            transaction.states({ALPHA: needs("[]")}),
            transaction.change_states({ALPHA: StateChanges(dropped=frozenset({"[]"}))}),
            transaction.clear_states([ALPHA]),
            transaction.runs(["r1"]),
            transaction.find_runs(RunQuery()),
            transaction.save_runs([run("r1")]),
            transaction.first_runs([run_scope()]),
            transaction.add_dead_letters([dead_letter(ALPHA, 1)]),
            transaction.stored_rules(),
            transaction.save_stored_rules([stored(rule(ALPHA))]),
            transaction.schedule_ticks(),
            transaction.save_schedule_ticks({"daily": at(1)}),
            transaction.acquire(["a"], "holder", HOUR),
            transaction.release(["a"], "holder"),
            transaction.holders(["a"]),
        ]
        outcomes = [await _outcome(use) for use in uses]
        assert outcomes == [TransactionClosedError] * len(uses)
        assert await trial.ids() == ["e1"]

    @guarantee()
    async def test_a_transaction_knows_its_workspace_and_its_time(self, trial: StorageTrial) -> None:
        """A transaction names its workspace, and its `now` is in UTC and stands still while it is open."""
        async with trial.transaction() as transaction:
            now = transaction.now
            assert transaction.workspace == WORKSPACE
            assert now.utcoffset() == timedelta()
            await trial.pass_time(trial.clock_precision)
            assert transaction.now == now

    @guarantee()
    async def test_a_storage_tells_its_time(self, trial: StorageTrial) -> None:
        """The storage's `now` is that of its transactions, in UTC: one that begins later is not earlier."""
        before = await trial.storage.now()
        async with trial.transaction() as transaction:
            now = transaction.now
        after = await trial.storage.now()
        assert before.utcoffset() == after.utcoffset() == timedelta()
        assert before <= now <= after

    # --- Cancelled anywhere

    @guarantee()
    async def test_a_transaction_that_is_cancelled_while_it_waits_is_out_of_the_way(self, trial: StorageTrial) -> None:
        """Who is cancelled while waiting for a workspace leaves the queue, and those behind get their turn."""

        async def append(event_id: str) -> None:
            await trial.append(draft(event_id))

        async with trial.transaction() as transaction:
            cancelled = asyncio.create_task(append("cancelled"))
            await give_way(transaction, cancelled)
            behind = asyncio.create_task(append("behind"))
            await give_way(transaction, behind)
            cancelled.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([cancelled, behind])
        await trial.append(draft("after"))
        assert await trial.ids() == ["behind", "after"]

    @guarantee()
    async def test_a_transaction_that_is_cancelled_at_any_await_is_whole_or_nothing(self, trial: StorageTrial) -> None:
        """A transaction whose caller is cancelled while it awaits leaves no lock, and no half write.

        It is cancelled at its first await, then at its second, and so on, and each time the next caller finds the
        workspace free, and either all of what was written or nothing.
        """
        await _cancel_transactions(trial, "waiting")

    @guarantee()
    async def test_a_transaction_that_is_cancelled_when_answered_is_whole_or_nothing(self, trial: StorageTrial) -> None:
        """A transaction whose caller is cancelled once it was answered leaves no lock, and no half write.

        It is cancelled after its first await, then after its second, and so on, and each time the next caller finds the
        workspace free, and either all of what was written or nothing.
        """
        await _cancel_transactions(trial, "answered")

    @guarantee()
    async def test_a_read_that_is_cancelled_at_any_await_leaves_nothing_behind(self, trial: StorageTrial) -> None:
        """A read that is cancelled, while it awaits or when it was answered, keeps nobody from reading or writing."""
        await _prepare(trial)
        expected = await _everything(trial)
        policy, watch = RunPolicy(unordered=frozenset({ALPHA})), Watch({ALPHA: "d1"})
        reads: list[Callable[[], Awaitable[object]]] = [
            lambda: trial.storage.head(WORKSPACE),
            lambda: trial.storage.read(WORKSPACE, LogWindow()),
            lambda: trial.storage.find(WORKSPACE, ["e1"]),
            lambda: trial.storage.rule_history(WORKSPACE, ALPHA),
            lambda: trial.storage.stored_rules(WORKSPACE),
            lambda: trial.storage.progress(WORKSPACE),
            lambda: trial.storage.runs(WORKSPACE, RunQuery()),
            lambda: trial.storage.run(WORKSPACE, "r1"),
            lambda: trial.storage.dead_letters(WORKSPACE),
            lambda: trial.storage.dead_letter_counts(WORKSPACE),
            lambda: trial.storage.schedule_ticks(WORKSPACE),
            lambda: trial.storage.cursor(WORKSPACE, "mirror"),
            trial.storage.workspaces,
            lambda: trial.storage.behind(watch, limit=10),
            lambda: trial.storage.due_runs(policy, limit=10),
            lambda: trial.storage.next_due(policy),
            lambda: trial.storage.due_schedules({}, limit=10),
        ]
        moments: list[Moment] = ["waiting", "answered"]
        for read in reads:
            for moment in moments:
                async for _ in cancel_at_each_await(lambda _, read=read: _awaited(read()), moment):
                    assert await trial.ids() == ["e1"]
        assert await _everything(trial) == expected
        await trial.append(draft("e2"))

    @guarantee()
    async def test_a_lease_or_cursor_that_is_cancelled_at_any_await_is_whole_or_nothing(
        self, trial: StorageTrial
    ) -> None:
        """Leases and cursors whose caller is cancelled are all changed or none is, and the next caller can go on."""
        names = ["a", "b", "c"]
        moments: list[Moment] = ["waiting", "answered"]
        for moment in moments:

            async def use(number: int) -> None:
                keys = [LeaseKey(_numbered(number), name) for name in names]
                await trial.storage.acquire(keys, "first", HOUR)
                await trial.storage.renew(keys, "first", HOUR)
                await trial.storage.save_cursor(_numbered(number), "mirror", 7)
                await trial.storage.release(keys, "first")

            async for number in cancel_at_each_await(use, moment):
                keys = frozenset(LeaseKey(_numbered(number), name) for name in names)
                async with trial.transaction(_numbered(number)) as transaction:
                    assert len(await transaction.holders(names)) in {0, 3}
                assert await trial.storage.cursor(_numbered(number), "mirror") in {0, 7}
                assert await trial.storage.acquire(keys, "first", HOUR) == keys
                await trial.storage.release(keys, "first")

    # --- Two storages on the same data

    @guarantee(Feature.SHARED_DATA)
    async def test_another_storage_sees_what_was_committed(self, trial: StorageTrial) -> None:
        """What one storage committed, a second one on the same data reads, all of it."""
        await _prepare(trial)
        async with trial.beside() as other:
            assert await _everything(other) == await _everything(trial)
            async with other.transaction() as transaction:
                await _change_everything(transaction)
            assert await _everything(other) == await _everything(trial)

    @guarantee(Feature.SHARED_DATA)
    async def test_a_transaction_waits_for_that_of_another_storage(self, trial: StorageTrial) -> None:
        """Transactions of one workspace come one after another also when two storages open them."""
        heads: list[int] = []
        async with trial.beside() as other:

            async def second() -> None:
                async with other.transaction() as transaction:
                    heads.append(transaction.head.seq)

            async with trial.transaction() as transaction:
                waiting = asyncio.create_task(second())
                await give_way(transaction, waiting)
                assert heads == []
                await transaction.append(drafts(3))
            await waiting
        assert heads == [3]

    @guarantee(Feature.SHARED_DATA)
    async def test_two_storages_at_once_share_one_order(self, trial: StorageTrial) -> None:
        """Two who append at once through storages of their own get places without a gap or a double."""
        async with trial.beside() as other:
            await _two_writers(trial, other)


async def _two_writers(one: StorageTrial, other: StorageTrial) -> None:
    async def write(trial: StorageTrial, name: str) -> list[int]:
        return [(await trial.append(draft(f"{name}{number}")))[0].seq for number in range(WRITERS)]

    first, second = await together([write(one, "a"), write(other, "b")])
    assert sorted([*first, *second]) == list(range(1, 2 * WRITERS + 1))
    assert [first, second] == [sorted(first), sorted(second)]
    log = await one.storage.read(WORKSPACE, LogWindow())
    assert [envelope.seq for envelope in log] == list(range(1, 2 * WRITERS + 1))
    assert [envelope.ts for envelope in log] == sorted(envelope.ts for envelope in log)


async def _cancel_transactions(trial: StorageTrial, moment: Moment) -> None:
    async def write(number: int) -> None:
        async with trial.transaction(_numbered(number)) as transaction:
            await transaction.append(drafts(2))
            await transaction.save_runs([run("r1")])
            await asyncio.sleep(0)
            await transaction.append(drafts(1, "last"))
            await transaction.acquire(["lease"], "first", HOUR)

    async for number in cancel_at_each_await(write, moment):
        async with trial.transaction(_numbered(number)) as transaction:
            head = transaction.head.seq
            runs = len(await transaction.runs(["r1"]))
            leases = len(await transaction.holders(["lease"]))
            assert (head, runs, leases) in {(0, 0, 0), (3, 1, 1)}
            (envelope,) = await transaction.append([draft("after")])
        assert envelope.seq == head + 1


def _numbered(number: int) -> WorkspaceRef:
    return WorkspaceRef(WORKSPACE.tenant_id, f"cancelled {number}")


async def _awaited(awaitable: Awaitable[object]) -> None:
    await awaitable


async def _outcome(use: Awaitable[object]) -> type[Exception] | None:
    try:
        await use
    except Exception as error:
        return type(error)
    return None


async def _prepare(trial: StorageTrial) -> None:
    """Writes something of everything, for `_change_everything` to change."""
    async with trial.transaction() as transaction:
        await transaction.append([draft("e1")])
        await transaction.save_progress([progress(ALPHA)])
        await transaction.change_states({ALPHA: StateChanges(saved={"[1]": marked(at(1)), "[2]": marked(at(2))})})
        await transaction.save_runs([run("r1")])
        await transaction.add_dead_letters([dead_letter(ALPHA, 1)])
        await transaction.save_stored_rules([stored(rule(ALPHA))])
        await transaction.save_schedule_ticks({"daily": at(1)})
        await transaction.acquire(["kept"], "holder", HOUR)


async def _change_everything(transaction: Transaction) -> None:
    await transaction.append([draft("e2")])
    await transaction.save_progress([progress(ALPHA, 1), progress(BETA)])
    await transaction.change_states(
        {ALPHA: StateChanges(saved={"[3]": marked(at(9))}, dropped=frozenset({"[1]"}), expired_through=at(2))}
    )
    await transaction.save_runs([run("r1", status="cancelled"), run("r2", seq=2)])
    await transaction.add_dead_letters([dead_letter(ALPHA, 2), dead_letter(BETA, 2)])
    await transaction.save_stored_rules([stored(rule(ALPHA), 2), stored(rule(BETA))])
    await transaction.save_schedule_ticks({"daily": at(2), "hourly": at(2)})
    await transaction.release(["kept"], "holder")
    await transaction.acquire(["taken"], "holder", HOUR)


async def _everything(trial: StorageTrial) -> dict[str, object]:
    """Reads everything of the workspace, as it was committed."""
    storage = trial.storage
    async with trial.transaction() as transaction:
        states = await transaction.states({ALPHA: needs("[1]", "[2]", "[3]")})
        holders = await transaction.holders(["kept", "taken"])
    return {
        "log": await storage.read(WORKSPACE, LogWindow()),
        "head": await storage.head(WORKSPACE),
        "progress": await storage.progress(WORKSPACE),
        "states": states,
        "runs": await storage.runs(WORKSPACE, RunQuery()),
        "dead letters": await storage.dead_letters(WORKSPACE),
        "dead letter counts": await storage.dead_letter_counts(WORKSPACE),
        "stored rules": await storage.stored_rules(WORKSPACE),
        "ticks": await storage.schedule_ticks(WORKSPACE),
        "leases": holders,
    }
