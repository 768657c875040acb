"""What a storage promises to those who follow a log: every envelope once, in order, soon after it was committed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import ALPHA, BETA, HOUR, WORKSPACE, draft, drafts, run
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.core import Envelope, UserActor
from reflexr.workspace import LeaseKey, Listener, WorkspaceRef, Workspaces


class SubscriptionContract(StorageGuarantees):
    """Whoever follows a log gets each envelope once and in order; whoever waits for a commit is woken."""

    # --- Following a log

    @guarantee()
    async def test_a_subscriber_gets_what_was_there_and_what_comes(self, trial: StorageTrial) -> None:
        """A subscriber gets the envelopes after its place, then those appended later, each once and in order."""
        await trial.append(*drafts(3, "old"))
        async with _following(trial, after_seq=1) as following:
            assert await _next(trial, following, 2) == ["old2", "old3"]
            await trial.append(draft("new1"))
            assert await _next(trial, following, 1) == ["new1"]
            await trial.append(draft("new2"), draft("new3"))
            assert await _next(trial, following, 2) == ["new2", "new3"]

    @guarantee()
    async def test_a_subscriber_misses_nothing_while_others_append(self, trial: StorageTrial) -> None:
        """Subscribers that begin at any moment while many append get every envelope once and in order."""

        async def write() -> None:
            for number in range(40):
                await trial.append(*drafts(1 + number % 3, f"{number}-"))
                await asyncio.sleep(0)

        async def follow() -> list[int]:
            async with _following(trial) as following:
                return [(await anext(following)).seq for _ in range(79)]

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            subscribers: list[asyncio.Task[list[int]]] = []
            for _ in range(5):
                subscribers.append(group.create_task(follow()))
                await trial.storage.head(WORKSPACE)
                await asyncio.sleep(0)
        assert [subscriber.result() for subscriber in subscribers] == [list(range(1, 80))] * 5

    @guarantee()
    async def test_a_subscriber_gets_the_types_that_it_names(self, trial: StorageTrial) -> None:
        """A subscriber that names event types gets these alone, of what was there and of what comes."""
        await trial.append(draft("e1", ALPHA), draft("e2", BETA))
        async with _following(trial, types=[BETA]) as following:
            assert await _next(trial, following, 1) == ["e2"]
            await trial.append(draft("e3", ALPHA), draft("e4", BETA))
            assert await _next(trial, following, 1) == ["e4"]

    @guarantee()
    async def test_a_subscriber_gets_nothing_of_a_rollback(self, trial: StorageTrial) -> None:
        """What a transaction appended that rolled back reaches no subscriber."""
        async with _following(trial) as following:
            waiting = asyncio.create_task(_next(trial, following, 1))
            async with trial.rolled_back() as transaction:
                await transaction.append([draft("gone")])
            await trial.append(draft("kept"))
            assert await waiting == ["kept"]

    @guarantee()
    async def test_a_subscriber_that_is_cancelled_disturbs_no_other(self, trial: StorageTrial) -> None:
        """Where several follow one log, one that is cancelled while it waits takes nothing from the others."""
        async with _following(trial) as first, _following(trial) as second:
            leaving, staying = (asyncio.create_task(_next(trial, following, 1)) for following in (first, second))
            await trial.storage.head(WORKSPACE)
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
            await trial.append(draft("e1"))
            assert await staying == ["e1"]

    @guarantee(Feature.SHARED_DATA)
    async def test_a_subscriber_gets_what_another_storage_appends(self, trial: StorageTrial) -> None:
        """A subscriber gets what is appended through a second storage on the same data, each once and in order."""
        async with trial.beside() as other, _following(other) as following:
            for number in range(5):
                waiting = asyncio.create_task(_next(trial, following, 2))
                await trial.append(draft(f"a{number}"))
                await other.append(draft(f"b{number}"))
                assert await waiting == [f"a{number}", f"b{number}"]

    # --- Wake-ups

    @guarantee()
    async def test_a_commit_wakes_those_who_listen(self, trial: StorageTrial) -> None:
        """A commit that changed a log, a run or a lease wakes the listeners of its workspace and those of all."""
        with trial.storage.wakeups.listen(WORKSPACE) as mine, trial.storage.wakeups.listen() as every:
            await trial.append(draft("e1"))
            assert WORKSPACE in await _woken(trial, mine)
            assert WORKSPACE in await _woken(trial, every)
            await trial.save(run("r1"))
            assert WORKSPACE in await _woken(trial, mine)
            assert WORKSPACE in await _woken(trial, every)
            async with trial.transaction() as transaction:
                await transaction.acquire(["lease"], "holder", HOUR)
            assert WORKSPACE in await _woken(trial, mine)
            assert WORKSPACE in await _woken(trial, every)

    @guarantee()
    async def test_a_lease_that_is_given_back_wakes_those_who_listen(self, trial: StorageTrial) -> None:
        """A lease that is given back wakes the listeners of its workspace, as a run may be due again."""
        key = LeaseKey(WORKSPACE, "lease")
        await trial.storage.acquire([key], "holder", HOUR)
        with trial.storage.wakeups.listen(WORKSPACE) as listener:
            await trial.storage.release([key], "holder")
            assert await _woken(trial, listener)

    @guarantee()
    async def test_who_is_woken_reads_what_was_committed(self, trial: StorageTrial) -> None:
        """Nobody is woken before what they are woken for can be read."""
        seen = asyncio.Queue[int]()

        async def look(listener: Listener) -> None:
            for _ in range(10):
                await _woken(trial, listener)
                seen.put_nowait((await trial.storage.head(WORKSPACE)).seq)

        with trial.storage.wakeups.listen(WORKSPACE) as listener:
            looking = asyncio.create_task(look(listener))
            for number in range(1, 11):
                await trial.append(draft(f"e{number}"))
                assert await seen.get() == number
            await looking

    @guarantee()
    async def test_a_storage_of_which_wakeups_can_be_lost_says_how_long_to_wait(self, trial: StorageTrial) -> None:
        """`poll_interval` is a time after which to look without having been woken, or `None` where none is lost."""
        interval = trial.storage.wakeups.poll_interval
        assert interval is None or interval > timedelta()

    @guarantee(Feature.SHARED_WAKEUPS)
    async def test_a_commit_wakes_those_who_listen_to_another_storage(self, trial: StorageTrial) -> None:
        """A commit wakes those who listen through a second storage on the same data, of its workspace and of all."""
        elsewhere = WorkspaceRef(WORKSPACE.tenant_id, "another")
        async with trial.beside() as other:
            with other.storage.wakeups.listen(WORKSPACE) as mine, other.storage.wakeups.listen() as every:
                await trial.append(draft("e1"))
                assert WORKSPACE in await _woken(trial, mine)
                assert WORKSPACE in await _woken(trial, every)
                await trial.append(draft("e1"), workspace=elsewhere)
                assert elsewhere in await _woken(trial, every)


@asynccontextmanager
async def _following(
    trial: StorageTrial, after_seq: int = 0, types: list[str] | None = None
) -> AsyncGenerator[AsyncGenerator[Envelope]]:
    workspaces = Workspaces(trial.storage)
    workspace = await workspaces.open(WORKSPACE.tenant_id, WORKSPACE.workspace_id, actor=UserActor(id="someone"))
    async with aclosing(workspace.subscribe(after_seq=after_seq, types=types)) as following:
        yield following


async def _next(trial: StorageTrial, following: AsyncGenerator[Envelope], count: int) -> list[str]:
    async with asyncio.timeout(trial.soon.total_seconds()):
        return [(await anext(following)).id for _ in range(count)]


async def _woken(trial: StorageTrial, listener: Listener) -> frozenset[WorkspaceRef]:
    """Waits to be woken, and returns for which workspaces."""
    woken = await listener.wait(trial.soon)
    assert woken, f"nobody was woken within {trial.soon}"
    return woken
