import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from reflexr.sql.cancellation import given_back, or_give_back, to_the_end, uninterrupted

type Await = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


OWNER = object()


async def settle() -> None:
    """Lets every other task come as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


WAYS = pytest.mark.parametrize("await_", [to_the_end, uninterrupted])


@WAYS
async def test_a_call_that_is_not_cancelled_returns_its_result(await_: Await) -> None:
    async def call() -> int:
        await asyncio.sleep(0)
        return 7

    assert await await_(call()) == 7


@WAYS
async def test_a_call_that_fails_raises_what_it_raised(await_: Await) -> None:
    async def call() -> None:
        await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        await await_(call())


@WAYS
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancellation_is_raised_once_the_call_has_ended(await_: Await, fails: bool, times: int) -> None:
    go, ended = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        await go.wait()
        ended.set()
        if fails:
            raise LookupError

    caller = asyncio.create_task(await_(call()))
    await settle()
    for _ in range(times):
        caller.cancel()
        await settle()
    assert not caller.done()
    go.set()
    await asyncio.wait([caller])
    assert ended.is_set()
    assert caller.cancelled()


async def test_a_call_that_is_cancelled_itself_is_cancelled() -> None:
    async def call() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        await to_the_end(call())


async def test_an_uninterrupted_call_hears_of_what_became_of_the_futures_that_it_awaits() -> None:
    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    heard: list[str] = []

    async def call() -> str:
        try:
            await failing
        except LookupError:
            heard.append("failed")
        try:
            await cancelled
        except asyncio.CancelledError:
            heard.append("cancelled")
        return "done"

    caller = asyncio.create_task(uninterrupted(call()))
    await settle()
    failing.set_exception(LookupError())
    await settle()
    cancelled.cancel()
    assert await caller == "done"
    assert heard == ["failed", "cancelled"]


async def test_an_uninterrupted_call_that_is_about_to_begin_is_told_of_its_cancellation_at_its_end() -> None:
    ended: list[bool] = []

    async def call() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended.append(True)

    async def cancelled_before() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await uninterrupted(call())

    caller = asyncio.create_task(cancelled_before())
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert ended == [True]


def test_a_loop_that_is_gone_ends_an_uninterrupted_call() -> None:
    ended: list[bool] = []

    async def call() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    begun = uninterrupted(call())
    begun.send(None)
    begun.close()
    assert ended == [True]


async def test_a_loop_that_ends_takes_the_call_with_it() -> None:
    async def call() -> None:
        await asyncio.Event().wait()

    caller = asyncio.create_task(to_the_end(call()))
    await settle()
    caller.cancel()
    await settle()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()


async def test_what_a_caller_is_there_for_is_its() -> None:
    async def at_once() -> int:
        return 1

    async def later() -> int:
        await asyncio.sleep(0)
        return 2

    async def give_back(_: int) -> None:
        raise AssertionError

    assert await or_give_back(at_once(), give_back, owner=OWNER) == 1
    assert await or_give_back(later(), give_back, owner=OWNER) == 2


async def test_what_a_cancelled_caller_would_have_got_is_given_back_and_it_is_not_held_up() -> None:
    go = asyncio.Event()
    given: list[int] = []

    async def call() -> int:
        await go.wait()
        return 7

    async def give_back(got: int) -> None:
        await asyncio.sleep(0)
        given.append(got)

    caller = asyncio.create_task(or_give_back(call(), give_back, owner=OWNER))
    await settle()
    caller.cancel()
    await asyncio.wait([caller])
    assert (caller.cancelled(), given) == (True, [])
    go.set()
    await settle()
    assert given == [7]


async def test_what_was_never_got_is_not_given_back() -> None:
    go = asyncio.Event()

    async def call() -> int:
        await go.wait()
        raise LookupError

    async def give_back(_: int) -> None:
        raise AssertionError

    caller = asyncio.create_task(or_give_back(call(), give_back, owner=OWNER))
    await settle()
    caller.cancel()
    await asyncio.wait([caller])
    go.set()
    await settle()
    assert caller.cancelled()


async def cancelled_caller(call: Coroutine[Any, Any, int], given: list[int], owner: object) -> None:
    async def give_back(got: int) -> None:
        await asyncio.sleep(0)
        given.append(got)

    caller = asyncio.create_task(or_give_back(call, give_back, owner=owner))
    await settle()
    caller.cancel()
    await asyncio.wait([caller])


async def test_who_waits_for_what_is_given_back_waits_for_all_of_an_owners_and_for_nobody_elses() -> None:
    mine, others = asyncio.Event(), asyncio.Event()
    given: list[int] = []

    async def got(go: asyncio.Event, value: int) -> int:
        await go.wait()
        return value

    stranger = object()
    await cancelled_caller(got(mine, 1), given, OWNER)
    await cancelled_caller(got(mine, 2), given, OWNER)
    await cancelled_caller(got(others, 3), given, stranger)
    waiting = asyncio.create_task(given_back(OWNER, timedelta(minutes=1)))
    await settle()
    assert not waiting.done()
    mine.set()
    await waiting
    assert given == [1, 2]
    others.set()
    await given_back(stranger, timedelta(minutes=1))
    assert given == [1, 2, 3]


async def test_what_is_not_given_back_in_time_is_not_waited_for() -> None:
    go = asyncio.Event()
    given: list[int] = []

    async def call() -> int:
        await go.wait()
        return 7

    await cancelled_caller(call(), given, OWNER)
    await given_back(OWNER, timedelta(milliseconds=1))
    assert given == []
    go.set()
    await given_back(OWNER, timedelta(minutes=1))
    assert given == [7]


def test_a_loop_that_ends_still_has_what_was_got_given_back() -> None:
    given: list[int] = []

    async def call() -> int:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return 7

    asyncio.run(cancelled_caller(call(), given, OWNER))
    assert given == [7]
