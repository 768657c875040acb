import asyncio
import json
from collections.abc import Awaitable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflexr.fastapi import outboxes
from reflexr.fastapi.outboxes import Outbox

from .saying import delta, told, written


def begun(work: Awaitable[object]) -> asyncio.Task[object]:
    async def run() -> object:
        return await work

    return asyncio.create_task(run())


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_frames_are_taken_in_the_order_in_which_they_were_added() -> None:
    outbox = Outbox(3)
    await outbox.put("a")
    assert outbox.offer("b")
    await outbox.put("c")

    assert [await outbox.take() for _ in range(3)] == ["a", "b", "c"]
    assert len(outbox) == 0


async def test_who_takes_waits_for_a_frame() -> None:
    outbox = Outbox(1)
    taking = begun(outbox.take())
    await turns()
    assert not taking.done()

    outbox.offer("a")

    assert await taking == "a"


@pytest.mark.parametrize("size", [1, 2, 1_000])
async def test_what_is_live_finds_room_or_overflows_and_never_waits(size: int) -> None:
    outbox = Outbox(size)

    assert [outbox.offer("a") for _ in range(size + 2)] == [True] * size + [False] * 2
    assert len(outbox) == size
    await outbox.take()
    assert outbox.offer("b")


@pytest.mark.parametrize("size", [1, 2, 1_000])
async def test_what_answers_waits_for_room(size: int) -> None:
    outbox = Outbox(size)
    for _ in range(size):
        await outbox.put("a")
    putting = begun(outbox.put("b"))
    await turns()
    assert not putting.done()
    assert len(outbox) == size

    await outbox.take()
    await putting

    assert [await outbox.take() for _ in range(size)] == ["a"] * (size - 1) + ["b"]


async def test_what_answers_waits_behind_no_more_characters_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "AHEAD", 10)
    outbox = Outbox(100)
    await outbox.put("a" * 6)
    await outbox.put("b" * 4)
    putting = begun(outbox.put("c"))
    await turns()
    assert not putting.done()

    await outbox.take()
    await putting

    assert len(outbox) == 2


async def test_a_frame_larger_than_may_wait_is_put_when_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "AHEAD", 10)
    outbox = Outbox(100)
    await outbox.put("a" * 100)
    putting = begun(outbox.put("b" * 100))
    await turns()
    assert not putting.done()

    assert await outbox.take() == "a" * 100
    await putting
    assert await outbox.take() == "b" * 100


async def test_who_waits_for_room_waits_in_turn_also_behind_who_puts_without_end() -> None:
    outbox = Outbox(2)

    async def replay() -> None:
        while True:
            await outbox.put("past")

    replaying = begun(replay())
    await turns()
    answering = begun(outbox.put("result"))
    await turns()

    taken: list[str] = []
    for _ in range(5):
        taken.append(await outbox.take())
        await turns()

    assert answering.done()
    assert "result" in taken
    replaying.cancel()


async def test_who_is_cancelled_while_it_waits_puts_nothing_and_keeps_back_nobody() -> None:
    outbox = Outbox(1)
    await outbox.put("a")
    waiting = [begun(outbox.put(frame)) for frame in "bcd"]
    await turns()
    waiting[0].cancel()
    waiting[1].cancel()
    await turns()

    assert await outbox.take() == "a"
    await waiting[2]
    assert await outbox.take() == "d"


async def test_who_is_cancelled_while_it_takes_takes_nothing() -> None:
    outbox = Outbox(1)
    taking = begun(outbox.take())
    await turns()
    outbox.offer("a")
    taking.cancel()
    await turns()

    assert taking.cancelled()
    assert await outbox.take() == "a"


async def test_it_is_drained_once_everything_was_taken() -> None:
    outbox = Outbox(3)
    await outbox.drained()
    for frame in "abc":
        outbox.offer(frame)
    draining = begun(outbox.drained())
    for _ in range(2):
        await outbox.take()
        await turns()
        assert not draining.done()

    await outbox.take()
    await draining


async def test_a_cleared_outbox_holds_nothing_and_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "AHEAD", 10)
    outbox = Outbox(2)
    outbox.offer("a" * 10)
    outbox.offer("b" * 10)
    draining, putting = begun(outbox.drained()), begun(outbox.put("c" * 10))
    await turns()

    outbox.clear()
    assert len(outbox) == 0
    await asyncio.gather(draining, putting)
    assert [len(outbox), await outbox.take()] == [1, "c" * 10]


@given(
    size=st.integers(1, 5),
    putters=st.lists(st.integers(0, 10), max_size=4),
    offers=st.integers(0, 10),
    pauses=st.lists(st.integers(0, 3), min_size=1, max_size=10),
)
async def test_whoever_adds_gets_all_through_in_order_and_never_more_than_has_room(
    size: int, putters: list[int], offers: int, pauses: list[int]
) -> None:
    outbox = Outbox(size)
    taken: list[str] = []

    async def put(name: int, number: int) -> None:
        for index in range(number):
            await outbox.put(f"{name}:{index}")

    async def offer() -> list[str]:
        kept: list[str] = []
        for index in range(offers):
            if outbox.offer(f"live:{index}"):
                kept.append(f"live:{index}")
            await turns(pauses[index % len(pauses)])
        return kept

    async def take() -> None:
        while True:
            taken.append(await outbox.take())
            assert len(outbox) <= size
            await turns(pauses[len(taken) % len(pauses)])

    taking = begun(take())
    putting = [begun(put(name, number)) for name, number in enumerate(putters)]
    kept = await offer()
    await asyncio.gather(*putting)
    await outbox.drained()
    await turns()
    taking.cancel()

    assert [frame for frame in taken if frame.startswith("live")] == kept
    assert len(taken) == len(set(taken)) == len(kept) + sum(putters)
    for name in range(len(putters)):
        places = [int(frame.split(":")[1]) for frame in taken if frame.startswith(f"{name}:")]
        assert all(one < other for one, other in pairwise(places))


# --- Deltas


def say(outbox: Outbox, *numbers: int, text: str = "") -> None:
    for number in numbers:
        outbox.offer_delta(delta(number, text=text), written(delta(number, text=text)))


async def all_of(outbox: Outbox) -> list[str]:
    outbox.offer("last")
    frames: list[str] = []
    while (frame := await outbox.take()) != "last":
        frames.append(frame)
    return frames


async def test_deltas_are_taken_in_turn_with_the_frames() -> None:
    outbox = Outbox(10)
    say(outbox, 1)
    outbox.offer("a")
    say(outbox, 2, 3)
    await outbox.put("b")
    say(outbox, 4)

    frames = [await outbox.take() for _ in range(6)]
    assert frames == [written(delta(1)), "a", written(delta(2)), written(delta(3)), "b", written(delta(4))]


async def test_who_takes_waits_for_a_delta_too() -> None:
    outbox = Outbox(1)
    taking = begun(outbox.take())
    await turns()
    say(outbox, 1)

    assert await taking == written(delta(1))


async def test_deltas_take_no_frames_room_and_have_room_for_a_number_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outboxes, "DELTAS", 3)
    monkeypatch.setattr(outboxes, "AHEAD", 10)
    outbox = Outbox(2)
    say(outbox, *range(1, 101), text="x" * 1_000)

    await outbox.put("a")
    assert outbox.offer("b")
    assert not outbox.offer("c")
    assert len(outbox) == 2
    taken = [await outbox.take() for _ in range(5)]
    assert (taken[0], taken[4]) == ("a", "b")
    assert told(taken[1:4]) == [(98, 97), (99, 0), (100, 0)]


async def test_it_is_drained_also_where_deltas_are_left() -> None:
    outbox = Outbox(2)
    outbox.offer("a")
    say(outbox, 1)
    await outbox.take()

    await outbox.drained()
    assert await outbox.take() == written(delta(1))


async def test_what_was_lost_is_counted_in_the_next_and_with_it_if_that_is_lost_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outboxes, "DELTAS", 1)
    outbox = Outbox(10)
    outbox.offer_delta(delta(3, lost=2), written(delta(3, lost=2)))
    outbox.offer_delta(delta(7, lost=3), written(delta(7, lost=3)))
    assert told([await outbox.take()]) == [(7, 6)]
    say(outbox, 8)
    assert await outbox.take() == written(delta(8))


async def test_a_client_that_is_far_behind_is_sent_its_frames_first() -> None:
    outbox = Outbox(4)
    say(outbox, 1, 2)
    for frame in "abc":
        outbox.offer(frame)

    assert [await outbox.take() for _ in range(5)] == ["a", written(delta(1)), written(delta(2)), "b", "c"]


async def test_deltas_that_come_faster_than_they_are_taken_keep_back_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "DELTAS", 10)
    outbox = Outbox(1_000)
    taken: list[str] = []
    for number in range(1, 1_001):
        say(outbox, *range(number * 5, number * 5 + 5))
        if number % 10 == 0:
            assert outbox.offer(f"{number}")
        taken.append(await outbox.take())

    frames = [frame for frame in taken if frame.isdecimal()]
    assert frames == [f"{number}" for number in range(10, len(frames) * 10 + 1, 10)]
    assert len(frames) >= 98


async def test_it_is_pressing_while_more_than_deltas_is_taken_or_waits() -> None:
    outbox = Outbox(10)
    say(outbox, 1, 2)
    await outbox.take()
    assert not outbox.is_pressing
    outbox.offer("a")
    assert outbox.is_pressing
    await outbox.take()
    assert outbox.is_pressing
    await outbox.take()
    assert outbox.is_pressing
    say(outbox, 3)
    await outbox.take()
    assert not outbox.is_pressing


async def test_a_cleared_outbox_holds_no_delta() -> None:
    outbox = Outbox(10)
    say(outbox, 1)
    outbox.clear()

    assert await all_of(outbox) == []


@given(
    size=st.integers(1, 5),
    room=st.integers(1, 5),
    steps=st.lists(st.sampled_from(["delta", "frame", "take"]), max_size=60),
)
async def test_every_frame_gets_through_and_each_delta_gets_through_or_is_counted(
    size: int, room: int, steps: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outboxes, "DELTAS", room)
        outbox = Outbox(size)
        offered, kept, taken = 0, 0, list[str]()
        for step in steps:
            match step:
                case "delta":
                    offered += 1
                    say(outbox, offered)
                case "frame":
                    kept += outbox.offer(f'{{"type": "event", "seq": {kept + 1}}}')
                case _ if kept + offered > 0:
                    taking = begun(outbox.take())
                    await turns(2)
                    if taking.done():
                        taken.append(str(await taking))
                    taking.cancel()
                case _:
                    pass
        taken += await all_of(outbox) if len(outbox) < size else []

    seqs = [each["seq"] for each in map(json.loads, taken) if each["type"] == "event"]
    assert seqs == [*range(1, len(seqs) + 1)]
    deltas = told(taken)
    assert all(after[0] - after[1] - 1 == before[0] for before, after in pairwise([(0, 0), *deltas]))
