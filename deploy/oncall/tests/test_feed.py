from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncall.application import SSHD, TENANT
from oncall.events import LogAdvanced, LoginAccepted, LoginFailed
from oncall.feed import MAX_EVENTS, MAX_LINES, Entry, Feed, batches
from oncall.sources import Line, LogUnreadableError
from oncall.syslog import Syslog
from reflexr.core import Envelope
from reflexr.workspace import InMemoryStorage, ManualClock, Workspace, Workspaces

FAILED = "gate sshd[1]: Failed password for root from 192.0.2.1 port 1 ssh2"
ACCEPTED = "gate sshd[1]: Accepted password for root from 192.0.2.1 port 1 ssh2"
OTHER = "gate cron[1]: hello"


def line(clock: str, said: str) -> str:
    return f"2025-03-03T{clock}Z {said}"


def numbered(texts: Iterable[str]) -> list[Line]:
    return [Line(number, text) for number, text in enumerate(texts, start=1)]


def cut(texts: Iterable[str]) -> list[list[Entry]]:
    return list(batches(numbered(texts), Syslog(written=datetime(2025, 3, 3, tzinfo=UTC))))


class World:
    """A workspace in memory, whose clock a feed sets."""

    def __init__(self) -> None:
        self.clock = ManualClock(datetime(1970, 1, 1, tzinfo=UTC))
        self.storage = InMemoryStorage(clock=self.clock)
        self.looked_up: list[int] = []
        self._workspaces = Workspaces(self.storage, events=[LoginFailed, LoginAccepted, LogAdvanced])

    async def workspace(self) -> Workspace:
        return await self._workspaces.open(TENANT, "ssh", actor=SSHD)

    async def feed(self, *texts: str, known: int = 0) -> Feed:
        workspace = await self.workspace()

        async def find(ids: Collection[str]) -> dict[str, Envelope]:
            self.looked_up.append(len(ids))
            return await self.storage.find(workspace.ref, ids)

        feed = Feed(workspace, self.clock, find=find, known=known)
        for batch in cut(texts):
            await feed.publish(batch)
        await feed.finish()
        return feed

    async def log(self) -> list[Envelope]:
        return await (await self.workspace()).read()

    async def times(self) -> list[tuple[str, str]]:
        return [(f"{one.ts:%H:%M:%S}", one.event_type.partition(":")[2]) for one in await self.log()]


@pytest.fixture
def world() -> World:
    return World()


async def test_an_event_has_the_time_of_its_line(world: World) -> None:
    feed = await world.feed(line("10:00:00", FAILED), line("10:00:07", FAILED), line("10:00:07", ACCEPTED))
    assert await world.times() == [
        ("10:00:00", "login.failed"),
        ("10:00:07", "login.failed"),
        ("10:00:07", "login.accepted"),
    ]
    assert (feed.tally.lines, feed.tally.logins, feed.seq) == (3, 3, 3)


async def test_a_repeated_message_is_as_many_events_of_its_time(world: World) -> None:
    repeated = FAILED.replace("Failed", "message repeated 5 times: [ Failed") + "]"
    feed = await world.feed(line("10:00:00", repeated))
    assert await world.times() == [("10:00:00", "login.failed")] * 5
    assert feed.tally.logins == 1


async def test_a_great_many_events_of_one_time_are_published_in_parts(world: World) -> None:
    repeated = FAILED.replace("Failed", f"message repeated {2 * MAX_EVENTS + 1} times: [ Failed") + "]"
    assert (await world.feed(line("10:00:00", repeated))).seq == 2 * MAX_EVENTS + 1
    assert len(await world.log()) == 2 * MAX_EVENTS + 1


async def test_a_line_out_of_order_is_published_at_the_time_of_the_one_before(world: World) -> None:
    feed = await world.feed(line("10:00:05", FAILED), line("09:59:00", FAILED), line("10:00:06", FAILED))
    assert [time for time, _ in await world.times()] == ["10:00:05", "10:00:05", "10:00:06"]
    assert feed.tally.late == 1


async def test_what_cannot_be_read_is_counted_and_passed_over(world: World) -> None:
    feed = await world.feed("garbage", line("10:00:00", FAILED), "", line("10:00:00", OTHER))
    assert (feed.tally.unreadable, feed.tally.other, feed.tally.logins) == (2, 1, 1)


async def test_a_quiet_log_moves_the_clock_once_a_minute_and_at_its_end(world: World) -> None:
    clocks = ("10:00:00", "10:00:59", "10:01:00", "10:01:30", "10:02:10", "10:02:50")
    await world.feed(*(line(clock, OTHER) for clock in clocks))
    assert await world.times() == [(time, "log.advanced") for time in ("10:01:00", "10:02:10", "10:02:50")]


async def test_a_login_moves_the_clock_too(world: World) -> None:
    await world.feed(
        line("10:00:00", OTHER), line("10:00:50", FAILED), line("10:01:40", OTHER), line("10:01:50", ACCEPTED)
    )
    assert await world.times() == [("10:00:50", "login.failed"), ("10:01:50", "login.accepted")]


async def test_an_empty_log_publishes_nothing(world: World) -> None:
    feed = await world.feed()
    assert await world.log() == []
    assert (feed.tally.first, feed.tally.latest) == (None, None)


async def test_the_same_log_again_publishes_nothing(world: World) -> None:
    texts = [line("10:00:00", FAILED), line("10:00:00", FAILED), line("10:03:00", OTHER)]
    await world.feed(*texts)
    before = await world.log()
    again = await world.feed(*texts)
    assert await world.log() == before
    assert again.seq == 3


async def test_a_log_that_grew_publishes_what_is_new(world: World) -> None:
    texts = [line("10:00:00", FAILED), line("10:00:00", FAILED)]
    await world.feed(*texts)
    before = await world.log()
    await world.feed(*texts, line("10:00:00", FAILED))
    assert (await world.log())[:2] == before
    assert await world.times() == [("10:00:00", "login.failed")] * 3


async def test_what_is_known_is_looked_up_instead_of_published_until_all_of_it_was_met(world: World) -> None:
    texts = [line(f"10:{minute:02}:00", FAILED) for minute in range(0, 60, 5)]
    await world.feed(*texts[:2])
    assert world.looked_up == []
    grown = await world.feed(*texts, known=2)
    assert world.looked_up == [1, 1]
    assert grown.seq == 12
    assert [time for time, _ in await world.times()] == [f"10:{minute:02}:00" for minute in range(0, 60, 5)]


async def test_what_is_known_in_part_is_published_at_its_time(world: World) -> None:
    await world.feed(line("10:00:00", FAILED))
    await world.feed(line("10:00:00", FAILED), line("10:00:07", FAILED), known=1)
    assert [time for time, _ in await world.times()] == ["10:00:00", "10:00:07"]


async def test_a_log_that_goes_back_behind_what_the_workspace_holds_happens_at_its_end(world: World) -> None:
    await world.feed(line("10:00:00", FAILED))
    await world.feed(line("09:00:00", ACCEPTED))
    assert [time for time, _ in await world.times()] == ["10:00:00", "10:00:00"]


async def test_the_clock_shows_the_time_of_the_latest_line(world: World) -> None:
    feed = Feed(await world.workspace(), world.clock)
    for batch in cut([line("10:00:00", FAILED), line("10:00:07", OTHER)]):
        await feed.publish(batch)
    assert world.clock() == datetime(2025, 3, 3, 10, 0, 7, tzinfo=UTC)


def test_a_batch_ends_after_so_many_lines() -> None:
    sizes = [len(batch) for batch in cut([line("10:00:00", OTHER)] * (2 * MAX_LINES + 1))]
    assert sizes == [MAX_LINES, MAX_LINES, 1]


def test_a_batch_ends_where_five_minutes_are_over() -> None:
    clocks = ("10:00:00", "10:04:59", "10:05:00", "10:09:59", "11:00:00")
    assert [len(batch) for batch in cut(["garbage", *(line(clock, OTHER) for clock in clocks)])] == [3, 2, 1]


def test_what_came_before_a_log_broke_off_is_a_batch() -> None:
    def broken() -> Iterator[Line]:
        yield Line(1, line("10:00:00", OTHER))
        raise LogUnreadableError("the disk is gone")

    found = batches(broken(), Syslog(written=datetime(2025, 3, 3, tzinfo=UTC)))
    assert [entry.line.number for entry in next(found)] == [1]
    with pytest.raises(LogUnreadableError, match="gone"):
        next(found)


@given(st.lists(st.sampled_from(["garbage", *(line(f"10:{minute:02}:00", OTHER) for minute in range(60))])))
def test_batches_are_the_lines_in_their_order(texts: list[str]) -> None:
    assert [entry.line for batch in cut(texts) for entry in batch] == numbered(texts)
