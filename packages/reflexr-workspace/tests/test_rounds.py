import asyncio
from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import partial

import pytest

from reflexr.workspace import InMemoryStorage, WorkspaceRef
from reflexr.workspace.rounds import FIRST_DELAY, LONGEST_DELAY, Delays, Rounds, Work

from .plant import REF, append

OTHER = WorkspaceRef("acme", "test")


class Chore:
    """A duty whose work is written down, and whose looking for it may fail."""

    name = "a chore"
    idle = True

    def __init__(self, *todo: WorkspaceRef) -> None:
        self.todo = list(todo)
        self.looked: asyncio.Queue[int] = asyncio.Queue()
        self.looks = 0
        self.done: list[WorkspaceRef] = []
        self.changes: list[frozenset[WorkspaceRef]] = []
        self.errors: list[Exception] = []
        self.broken: set[WorkspaceRef] = set()
        self.failures: list[WorkspaceRef] = []
        self.waits: list[timedelta] = []

    def heard(self, changed: frozenset[WorkspaceRef]) -> bool:
        self.changes.append(changed)
        return True

    async def find(self, busy: Collection[WorkspaceRef]) -> Mapping[WorkspaceRef, Work]:
        self.looks += 1
        self.looked.put_nowait(self.looks)
        if self.errors:
            raise self.errors.pop()
        found, self.todo = self.todo, []
        return {workspace: partial(self.work, workspace) for workspace in found}

    async def work(self, workspace: WorkspaceRef) -> int:
        if workspace in self.broken:
            raise OSError(f"{workspace.workspace_id} is gone")
        self.done.append(workspace)
        return 1

    async def rest(self) -> timedelta | None:
        return self.waits.pop(0) if self.waits else None

    def failed(self, workspace: WorkspaceRef) -> None:
        self.failures.append(workspace)


@pytest.fixture
def storage() -> InMemoryStorage:
    return InMemoryStorage()


async def test_what_comes_of_work_is_done_too(storage: InMemoryStorage) -> None:
    chore = Chore(REF, OTHER)

    assert await Rounds(chore, storage).until_idle() == 2
    assert chore.done == [REF, OTHER]


async def test_looking_for_work_that_fails_fails_the_call(storage: InMemoryStorage) -> None:
    chore = Chore()
    chore.errors = [OSError("gone")]

    with pytest.raises(OSError, match="gone"):
        await Rounds(chore, storage).until_idle()


async def test_looking_for_work_that_fails_breaks_off_none_that_goes_on(storage: InMemoryStorage) -> None:
    chore = Chore(REF)
    rounds = Rounds(chore, storage)

    async def slow(workspace: WorkspaceRef) -> int:
        chore.errors = [OSError("gone")]
        rounds.wake()
        for _ in range(10):
            await asyncio.sleep(0)
        chore.done.append(workspace)
        return 1

    chore.work = slow

    with pytest.raises(OSError, match="gone"):
        await rounds.until_idle()
    assert (chore.done, chore.looks) == ([REF], 2)


async def test_what_comes_of_work_that_ends_while_more_is_looked_for_is_done_too(storage: InMemoryStorage) -> None:
    chore = Chore(REF)
    rounds = Rounds(chore, storage)
    look, work = chore.find, chore.work
    looking, ended = asyncio.Event(), asyncio.Event()

    async def find(busy: Collection[WorkspaceRef]) -> Mapping[WorkspaceRef, Work]:
        found = await look(busy)
        if chore.looks == 2:
            looking.set()
            await ended.wait()
        return found

    async def work_meanwhile(workspace: WorkspaceRef) -> int:
        if workspace == REF:
            rounds.wake()
            await looking.wait()
            chore.todo.append(OTHER)
            asyncio.get_running_loop().call_soon(ended.set)
        return await work(workspace)

    chore.find, chore.work = find, work_meanwhile

    assert await rounds.until_idle() == 2
    assert chore.done == [REF, OTHER]


async def test_serving_sleeps_until_something_changes_and_looks_no_more_than_that(storage: InMemoryStorage) -> None:
    chore = Chore()
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Rounds(chore, storage).serve(stop))
        await chore.looked.get()
        for _ in range(100):
            await asyncio.sleep(0)
        asleep = chore.looks
        await append(storage, "first")
        await chore.looked.get()
        stop.set()

    assert (asleep, chore.looks, chore.changes) == (1, 2, [frozenset({REF})])


async def test_what_is_due_by_time_is_looked_for_then(storage: InMemoryStorage) -> None:
    chore = Chore()
    chore.waits = [timedelta(microseconds=1), timedelta(microseconds=1)]
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Rounds(chore, storage).serve(stop))
        for _ in range(3):
            await chore.looked.get()
        stop.set()

    assert chore.looks == 3


async def test_what_is_due_now_but_cannot_be_found_is_looked_for_once_more_and_then_after_a_while(
    storage: InMemoryStorage,
) -> None:
    chore = Chore()
    chore.waits = [timedelta(0)] * 10
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Rounds(chore, storage).serve(stop))
        for _ in range(2):
            await chore.looked.get()
        for _ in range(100):
            await asyncio.sleep(0)
        stop.set()

    assert chore.looks == 2


async def test_a_storage_whose_wake_ups_may_be_lost_is_looked_at_now_and_then(
    storage: InMemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    chore = Chore()
    monkeypatch.setattr(type(storage.wakeups), "poll_interval", timedelta(microseconds=1))
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Rounds(chore, storage).serve(stop))
        for _ in range(3):
            await chore.looked.get()
        stop.set()


async def test_serving_outlives_a_storage_that_fails(
    storage: InMemoryStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chore = Chore(REF, OTHER)
    chore.errors = [OSError("one"), OSError("two")]
    chore.broken = {REF}
    monkeypatch.setattr("reflexr.workspace.rounds.FIRST_DELAY", timedelta(microseconds=1))
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Rounds(chore, storage).serve(stop))
        while OTHER not in chore.done:
            await chore.looked.get()
        stop.set()

    assert (chore.done, chore.failures) == ([OTHER], [REF])
    assert caplog.text.count("looking for work failed") == 2
    assert "prod" in caplog.text


async def test_serving_finishes_what_it_is_at_when_it_is_stopped(storage: InMemoryStorage) -> None:
    chore = Chore(REF)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(workspace: WorkspaceRef) -> int:
        begun.set()
        await ended.wait()
        chore.done.append(workspace)
        return 1

    chore.work = slow
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Rounds(chore, storage).serve(stop))
        await begun.wait()
        stop.set()
        ended.set()

    assert chore.done == [REF]


async def test_what_goes_wrong_is_left_alone_twice_as_long_each_time() -> None:
    delays = Delays[str]()

    waited = [delays.add("a") for _ in range(10)]

    assert waited[:4] == [FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY, 8 * FIRST_DELAY]
    assert waited[-1] == LONGEST_DELAY
    assert "a" in delays
    assert "b" not in delays
    rest = delays.rest()
    assert rest is not None
    assert timedelta(0) < rest <= LONGEST_DELAY


async def test_what_is_forgotten_begins_afresh() -> None:
    delays = Delays[str]()
    delays.add("a")

    delays.forget("a")
    delays.forget("a")

    assert "a" not in delays
    assert delays.rest() is None
    assert delays.add("a") == FIRST_DELAY


async def test_what_may_be_tried_again_is_not_waited_for_but_remembered() -> None:
    delays = Delays[str]()
    delays.add("a", timedelta(0))

    assert "a" not in delays
    assert delays.rest() is None
    assert len(delays) == 1


async def test_what_was_left_alone_long_ago_takes_no_room_for_ever() -> None:
    delays = Delays[int]()
    for number in range(1_000):
        delays.add(number, -2 * LONGEST_DELAY)

    assert len(delays) <= 257
