import asyncio
import logging
from contextlib import ExitStack
from random import Random
from typing import override

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflexr.core import EventFrame, ServerFrame, write_frame
from reflexr.fastapi import broadcasts as module
from reflexr.fastapi.broadcasts import Broadcasts
from reflexr.workspace import WorkspaceRef, Workspaces

from .members import Listening, TrialStorage, joined
from .ops import ADA, PROD, REGISTRY, Deployed, ServiceError

ERRORS = frozenset({ServiceError.event_type})
DEPLOYS = frozenset({Deployed.event_type})


class Stage:
    """Workspaces with a storage on trial, their broadcasts, and one workspace."""

    def __init__(self) -> None:
        self.storage = TrialStorage()
        self.workspaces = Workspaces(self.storage, events=[ServiceError, Deployed], registry=REGISTRY)
        self.broadcasts = Broadcasts(self.workspaces)
        self.workspace = self.workspaces.handle(PROD, actor=ADA)

    async def publish(self, number: int = 1) -> None:
        await self.workspace.publish_many([ServiceError()] * number)

    async def assert_nothing_is_left(self) -> None:
        await self.broadcasts.close()
        assert len(self.broadcasts) == 0
        assert len(self.workspaces.configuration.feeds) == 0
        assert len(self.storage.wakeups) == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[ServerFrame]:
    """Every frame that a broadcast writes from now on."""
    written: list[ServerFrame] = []

    def write(frame: ServerFrame) -> str:
        written.append(frame)
        return write_frame(frame)

    monkeypatch.setattr(module, "write_frame", write)
    return written


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_a_member_is_offered_what_comes_after_its_place_as_frames(stage: Stage) -> None:
    await stage.publish(3)
    member = Listening(after_seq=2)
    with joined(stage.broadcasts, PROD, member):
        await member.has(1)
        await stage.publish(2)
        await member.has(3)

    assert member.seqs == [3, 4, 5]
    [envelope] = await stage.workspace.read(last=1)
    assert member.frames[-1] == write_frame(EventFrame(envelope=envelope))
    await stage.assert_nothing_is_left()


async def test_an_envelope_is_read_once_and_written_once_for_a_hundred_members(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = counted(monkeypatch)
    members = [Listening(types=None if index % 2 else ERRORS) for index in range(100)]
    with joined(stage.broadcasts, PROD, *members):
        for number in range(1, 11):
            await stage.publish()
            for member in members:
                await member.has(number)

    assert (stage.storage.reads, len(written)) == (10, 10)
    assert all(member.frames[index] is members[0].frames[index] for member in members for index in range(10))


async def test_what_nobody_wants_is_not_even_written(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    written = counted(monkeypatch)
    with joined(stage.broadcasts, PROD, Listening(types=DEPLOYS), probe := Listening(types=DEPLOYS)):
        await stage.publish(50)
        await stage.workspace.publish(Deployed(service="auth"))
        await probe.has(1)

    assert len(written) == 1


async def test_members_are_offered_the_types_that_they_want(stage: Stage) -> None:
    both = DEPLOYS | ERRORS
    members = [Listening(types=types) for types in (None, ERRORS, DEPLOYS, both, {"ops:other"})]
    with joined(stage.broadcasts, PROD, *members):
        await stage.publish()
        await stage.workspace.publish(Deployed(service="auth"))
        await stage.publish()
        await members[0].has(3)

    assert [member.seqs for member in members] == [[1, 2, 3], [1, 3], [2], [1, 2, 3], []]


async def test_who_is_ahead_of_the_broadcast_joins_and_is_offered_nothing_twice(stage: Stage) -> None:
    await stage.publish(5)
    first = Listening()
    with joined(stage.broadcasts, PROD, first):
        second = Listening(after_seq=4)
        assert stage.broadcasts.ahead_of(PROD, 4) is None
        with joined(stage.broadcasts, PROD, second):
            await first.has(5)
            await stage.publish()
            await first.has(6)

    assert first.seqs == [1, 2, 3, 4, 5, 6]
    assert second.seqs == [5, 6]


async def test_who_is_behind_the_broadcast_is_told_how_far_to_catch_up(stage: Stage) -> None:
    assert stage.broadcasts.ahead_of(PROD, 0) is None
    first = Listening()
    with joined(stage.broadcasts, PROD, first):
        await stage.publish(5)
        await first.has(5)

        assert [stage.broadcasts.ahead_of(PROD, seq) for seq in (0, 4, 5, 6)] == [5, 5, None, None]
        assert stage.broadcasts.ahead_of(WorkspaceRef("acme", "other"), 0) is None


async def test_a_workspace_is_broadcast_while_it_has_a_member(stage: Stage) -> None:
    other = WorkspaceRef("acme", "other")
    first, second, third = Listening(), Listening(), Listening()
    with joined(stage.broadcasts, PROD, first):
        with joined(stage.broadcasts, PROD, second), joined(stage.broadcasts, other, third):
            assert len(stage.broadcasts) == 2
        assert len(stage.broadcasts) == 1
        await stage.publish()
        await first.has(1)
    assert len(stage.broadcasts) == 0

    assert (second.seqs, third.seqs) == ([], [])
    await stage.assert_nothing_is_left()


async def test_a_member_that_leaves_while_it_is_offered_a_frame_costs_the_others_nothing(stage: Stage) -> None:
    leaving = ExitStack()

    class Leaving(Listening):
        @override
        def offer(self, frame: str) -> None:
            super().offer(frame)
            leaving.close()

    first, leaver, last = Listening(), Leaving(), Listening()
    with joined(stage.broadcasts, PROD, first):
        leaving.enter_context(stage.broadcasts.join(PROD, leaver))
        with joined(stage.broadcasts, PROD, last):
            await stage.publish(3)
            await last.has(3)

    assert [member.seqs for member in (first, leaver, last)] == [[1, 2, 3], [1], [1, 2, 3]]
    await stage.assert_nothing_is_left()


async def test_the_last_member_that_leaves_while_it_is_offered_a_frame_ends_the_broadcast(stage: Stage) -> None:
    leaving = ExitStack()

    class Leaving(Listening):
        @override
        def offer(self, frame: str) -> None:
            super().offer(frame)
            leaving.close()

    leaver = Leaving()
    leaving.enter_context(stage.broadcasts.join(PROD, leaver))
    await stage.publish(3)
    await leaver.has(1)

    assert leaver.seqs == [1]
    await stage.assert_nothing_is_left()


async def test_members_have_their_turn_to_send_between_the_envelopes_of_a_burst(stage: Stage) -> None:
    class Sending(Listening):
        sent = 0
        most = 0

        @override
        def offer(self, frame: str) -> None:
            super().offer(frame)
            self.most = max(self.most, len(self.frames) - self.sent)

    member = Sending()

    async def send() -> None:
        while True:
            await member.has(member.sent + 1)
            member.sent = len(member.frames)

    sending = asyncio.create_task(send())
    with joined(stage.broadcasts, PROD, member):
        await stage.publish(1_200)
        await member.has(1_200)
    sending.cancel()

    assert member.most == 1


async def test_every_member_is_lost_when_the_storage_fails_and_the_next_begins_anew(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    members = [Listening(), Listening(types=ERRORS | DEPLOYS)]
    with joined(stage.broadcasts, PROD, *members):
        await stage.publish()
        await members[1].has(1)
        stage.storage.is_broken = True
        await stage.publish()
        for member in members:
            await member.until(lambda member: member.is_lost)
        assert len(stage.broadcasts) == 0
        stage.storage.is_broken = False
        with joined(stage.broadcasts, PROD, another := Listening(after_seq=1)):
            await another.has(1)

    assert [member.seqs for member in members] == [[1], [1]]
    assert another.seqs == [2]
    [record] = caplog.records
    assert (record.levelno, "the disk is gone" in caplog.text) == (logging.ERROR, True)
    await stage.assert_nothing_is_left()


async def test_a_broadcast_that_breaks_off_as_it_ends_takes_nothing_from_the_one_in_its_place(stage: Stage) -> None:
    stage.storage.hesitation = lambda: 3
    stage.storage.fails_when_cancelled = True
    with joined(stage.broadcasts, PROD, first := Listening()):
        await stage.publish()
        await stage.storage.reading.reached.wait()
    with joined(stage.broadcasts, PROD, second := Listening()):
        await second.has(1)
        assert len(stage.broadcasts) == 1
        await stage.publish()
        await second.has(2)

    assert (first.seqs, second.seqs, second.is_lost) == ([], [1, 2], False)
    await stage.assert_nothing_is_left()


@pytest.mark.parametrize("moments", range(8))
async def test_a_member_may_leave_at_any_moment(stage: Stage, moments: int) -> None:
    stage.storage.hesitation = lambda: 2
    with joined(stage.broadcasts, PROD, Listening()):
        await stage.publish(2)
        for _ in range(moments):
            await asyncio.sleep(0)
    with joined(stage.broadcasts, PROD, second := Listening(after_seq=1)):
        await second.has(1)

    assert second.seqs == [2]
    await stage.assert_nothing_is_left()


async def test_closing_waits_for_nothing_where_nothing_ends(stage: Stage) -> None:
    await stage.broadcasts.close()
    await stage.assert_nothing_is_left()


async def turns(random: Random, at_most: int) -> None:
    for _ in range(random.randrange(at_most)):
        await asyncio.sleep(0)


@given(seed=st.integers(0, 2**32), members=st.integers(1, 6), publishers=st.integers(1, 3))
async def test_each_member_gets_each_envelope_after_its_place_once_and_in_order(
    seed: int, members: int, publishers: int
) -> None:
    random, stage = Random(seed), Stage()
    stage.storage.hesitation = lambda: random.randrange(4)
    wants = (None, ERRORS, DEPLOYS, ERRORS | DEPLOYS)

    async def publish() -> None:
        for _ in range(random.randrange(1, 12)):
            await turns(random, 4)
            events = [random.choice((ServiceError(), Deployed(service="auth"))) for _ in range(random.randrange(1, 4))]
            await stage.workspace.publish_many(events)

    async def follow() -> tuple[int, Listening, bool]:
        await turns(random, 12)
        head = await stage.workspace.head_seq()
        begins = random.randrange(head + 1)
        member, types = Listening(begins), random.choice(wants)
        while (ahead := stage.broadcasts.ahead_of(PROD, member.after_seq)) is not None:
            for envelope in await stage.workspace.read(
                after_seq=member.after_seq, before_seq=ahead + 1, types=types, limit=100
            ):
                member.offer(write_frame(EventFrame(envelope=envelope)))
            member.after_seq = ahead
        member.types = types
        stays = random.random() < 0.5
        with stage.broadcasts.join(PROD, member):
            await turns(random, 20)
            if stays:
                await published.wait()
                log = await stage.workspace.read(after_seq=begins, types=types)
                await member.has(len(log))
                await turns(random, 5)
        return begins, member, stays

    published = asyncio.Event()
    following = [asyncio.create_task(follow()) for _ in range(members)]
    await asyncio.gather(*(publish() for _ in range(publishers)))
    published.set()

    for begins, member, stays in await asyncio.gather(*following):
        log = [envelope.seq for envelope in await stage.workspace.read(after_seq=begins, types=member.types)]
        assert member.seqs == (log if stays else log[: len(member.seqs)])
        assert not member.is_lost
    await stage.broadcasts.close()
    assert (len(stage.broadcasts), len(stage.storage.wakeups)) == (0, 0)
