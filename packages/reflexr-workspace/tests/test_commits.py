import asyncio
from collections.abc import Sequence

import pytest

from reflexr.core import NotFound, Rejected
from reflexr.workspace import InMemoryStorage, LogWindow, StorageError, Transaction
from reflexr.workspace.commits import MAX_SHARED, Pending, SharedCommits

from .hesitation import HesitantStorage
from .plant import REF, draft


class Recorder:
    """Appends each request as an event, and remembers which were carried out together."""

    def __init__(self, storage: InMemoryStorage) -> None:
        self.batches: list[list[str]] = []
        self.doubtful: list[str] = []
        self.began = asyncio.Event()
        self.commits = SharedCommits(storage, self.carry_out)

    async def carry_out(self, transaction: Transaction, pending: Sequence[Pending[str]]) -> list[int | Rejected]:
        names = [item.request for item in pending]
        self.batches.append(names)
        self.began.set()
        self.doubtful += [item.request for item in pending if item.in_doubt]
        if "broken" in names:
            raise StorageError("the disk is full")
        good = [name for name in names if name != "refused"]
        places = {envelope.id: envelope.seq for envelope in await transaction.append([draft(name) for name in good])}
        return [places[name] if name in places else NotFound("refused") for name in names]


async def logged(storage: InMemoryStorage) -> list[str]:
    return [envelope.id for envelope in await storage.read(REF, LogWindow())]


async def test_a_lone_caller_has_a_commit_of_its_own() -> None:
    recorder = Recorder(InMemoryStorage())

    assert await recorder.commits.submit(REF, "a") == 1
    assert await recorder.commits.submit(REF, "b") == 2

    assert recorder.batches == [["a"], ["b"]]
    assert len(recorder.commits) == 0


async def test_what_arrives_while_a_commit_is_in_flight_goes_together_into_the_next() -> None:
    storage = HesitantStorage()
    recorder = Recorder(storage)
    first = asyncio.create_task(recorder.commits.submit(REF, "a"))
    await recorder.began.wait()

    rest = await asyncio.gather(*(recorder.commits.submit(REF, name) for name in "bcd"))

    assert (await first, rest) == (1, [2, 3, 4])
    assert recorder.batches == [["a"], ["b", "c", "d"]]


async def test_each_request_has_its_own_outcome() -> None:
    storage = HesitantStorage()
    recorder = Recorder(storage)

    submits = [recorder.commits.submit(REF, name) for name in ("a", "refused", "b")]
    first, second, third = await asyncio.gather(*submits, return_exceptions=True)

    assert (first, third) == (1, 2)
    assert isinstance(second, NotFound)
    with pytest.raises(NotFound):
        await recorder.commits.submit(REF, "refused")


async def test_a_request_that_breaks_a_shared_commit_fails_alone() -> None:
    storage = HesitantStorage()
    recorder = Recorder(storage)

    submits = [recorder.commits.submit(REF, name) for name in ("a", "broken", "b")]
    first, second, third = await asyncio.gather(*submits, return_exceptions=True)

    assert (first, third) == (1, 2)
    assert isinstance(second, StorageError)
    assert recorder.batches == [["a", "broken", "b"], ["a"], ["broken"], ["b"]]
    assert recorder.doubtful == ["a", "broken", "b"]
    assert len(recorder.commits) == 0


@pytest.mark.parametrize("moments", range(12))
@pytest.mark.parametrize("victim", range(3))
async def test_a_cancelled_caller_loses_nobodys_request_and_leaves_no_lock(moments: int, victim: int) -> None:
    storage = HesitantStorage()
    recorder = Recorder(storage)
    names = ["a", "b", "c"]
    tasks = [asyncio.create_task(recorder.commits.submit(REF, name)) for name in names]
    for _ in range(moments):
        await asyncio.sleep(0)

    tasks[victim].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    log = await logged(storage)
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, asyncio.CancelledError):
            assert name == names[victim]
        else:
            assert log.index(name) + 1 == outcome
    assert len(log) == len(set(log))
    assert len(recorder.commits) == 0
    assert storage.sizes().callers == 0
    assert await recorder.commits.submit(REF, "later") == len(log) + 1


async def test_a_follower_that_is_cancelled_as_it_comes_to_lead_lets_the_next_one_lead() -> None:
    storage = HesitantStorage()
    recorder = Recorder(storage)

    async def lead() -> None:
        await recorder.commits.submit(REF, "a")
        follower.cancel()

    leader = asyncio.create_task(lead())
    await recorder.began.wait()
    follower, last = (asyncio.create_task(recorder.commits.submit(REF, name)) for name in "bc")

    assert await last == 2
    await leader
    assert follower.cancelled()
    assert await logged(storage) == ["a", "c"]


async def test_a_follower_that_was_cancelled_and_does_not_know_yet_is_passed_over() -> None:
    storage = InMemoryStorage()
    ready = asyncio.Event()

    async def carry_out(transaction: Transaction, pending: Sequence[Pending[str]]) -> list[int | Rejected]:
        if pending[0].request == "a":
            await ready.wait()
            follower.cancel()
        envelopes = await transaction.append([draft(item.request) for item in pending])
        return [envelope.seq for envelope in envelopes]

    commits = SharedCommits(storage, carry_out)
    tasks = [asyncio.create_task(commits.submit(REF, name)) for name in "ab"]
    follower = tasks[1]
    await asyncio.sleep(0)
    ready.set()
    await tasks[0]

    assert await logged(storage) == ["a"]
    assert len(commits) == 0


async def test_callers_that_are_all_cancelled_leave_an_empty_line() -> None:
    storage = HesitantStorage()
    recorder = Recorder(storage)
    tasks = [asyncio.create_task(recorder.commits.submit(REF, name)) for name in "abc"]
    for _ in range(4):
        await asyncio.sleep(0)

    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert await logged(storage) == []
    assert len(recorder.commits) == 0


async def test_a_commit_is_shared_by_so_many_at_most() -> None:
    storage = HesitantStorage()
    recorder = Recorder(storage)

    await asyncio.gather(*(recorder.commits.submit(REF, f"e{index}") for index in range(MAX_SHARED + 5)))

    assert [len(batch) for batch in recorder.batches] == [MAX_SHARED, 5]
