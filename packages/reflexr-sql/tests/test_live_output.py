"""Live output between processes: another one on another engine stands for another process, or is in one."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, aclosing, asynccontextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, override

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.contracts import LiveOutputContract, guarantee
from reflexr.core import MAX_DELTA, Delta, SourceActor
from reflexr.sql import EngineError, PostgresLiveOutput, SqlStorage, create_sqlite_engine
from reflexr.sql.live_output import ANNOUNCEMENTS, EVERY, EXPIRY, channel_of, parts_of
from reflexr.workspace import DeltaListener, LiveOutput, WorkspaceRef, Workspaces

from .servers import beside, engine_of
from .shop import REF
from .speakers import RULE, WORDS, Asked

OTHER: Final = WorkspaceRef("acme", "other")
SOON: Final = 20.0
FLOOD: Final = 100_000
PROGRAM: Final = Path(__file__).with_name("speakers.py")
ODD: Final = [
    WorkspaceRef("acme", "shop"),
    WorkspaceRef("acmes", "hop"),
    WorkspaceRef("", "acmeshop"),
    WorkspaceRef("1:a", ""),
    WorkspaceRef("o'brien\"; UNLISTEN *; --", "a b\n%s $1"),
    WorkspaceRef("Ünïcode 𝄞", "工作区"),
    WorkspaceRef("\ud800", "\x00\x01"),
    WorkspaceRef("t" * 10_000, "w" * 10_000),
    WorkspaceRef("t" * 10_000, "w" * 10_001),
]


@pytest.fixture
async def postgresql() -> AsyncGenerator[AsyncEngine]:
    async with engine_of("postgresql") as engine:
        yield engine


@asynccontextmanager
async def process(engine: AsyncEngine, **options: Any) -> AsyncGenerator[PostgresLiveOutput]:
    """Live output as another process has it."""
    other = beside(engine)
    async with PostgresLiveOutput(other, **options) as live_output:
        yield live_output
    await other.dispose()


@asynccontextmanager
async def spy(engine: AsyncEngine, channel: str) -> AsyncGenerator[list[str]]:
    """What is notified on a channel."""
    payloads: list[str] = []

    def receive(_connection: object, _process: int, _channel: str, payload: str) -> None:
        payloads.append(payload)

    connection = await engine.connect()
    driver: Any = (await connection.get_raw_connection()).driver_connection
    await driver.add_listener(channel, receive)
    yield payloads
    await driver.remove_listener(channel, receive)
    await connection.close()


def delta(number: int, said: str = "word", **fields: Any) -> Delta:
    return Delta.model_validate(
        {"run_id": "fir_1", "rule": "sqlshop:a", "attempt": 1, "number": number, "kind": "text", "part": 0}
        | {"text": said}
        | fields
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while True:
            if condition():
                return
            # The port tells nobody when it learns of a listener elsewhere: it is asked again.
            await asyncio.sleep(0.005)


async def heard(live_output: LiveOutput, *workspaces: WorkspaceRef) -> None:
    """Waits until it is known that somebody listens to each."""
    await until(lambda: all(map(live_output.is_heard, workspaces or (REF,))))


async def taken(listener: DeltaListener, last: int) -> list[Delta]:
    """Takes deltas until there is the one of that number."""
    deltas: list[Delta] = []
    async with asyncio.timeout(SOON):
        while not deltas or deltas[-1].number < last:
            deltas += await listener.take()
    return deltas


async def notify(engine: AsyncEngine, channel: str, *payloads: str) -> None:
    async with engine.begin() as connection:
        for payload in payloads:
            await connection.execute(
                text("SELECT pg_notify(:channel, :payload)"), {"channel": channel, "payload": payload}
            )


async def backends(engine: AsyncEngine, function: str = "", *, name: str = "") -> int:
    """Counts the server's other connections to the database, or what a function of the pid of each says."""
    query = f"""
        SELECT count({function}(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
          AND application_name = :name
    """
    async with engine.connect() as connection:
        return (await connection.execute(text(query), {"name": name})).scalar_one()


def named(engine: AsyncEngine, name: str) -> AsyncEngine:
    """Another engine, whose connections the server knows by a name."""
    return create_async_engine(engine.url, connect_args={"server_settings": {"application_name": name}})


def hang_up(engine: AsyncEngine, name: str) -> int:
    """Hangs up on connections, while nothing else happens in this process, and returns how many there were."""

    async def work() -> int:
        other = beside(engine)
        number = await backends(other, "pg_terminate_backend", name=name)
        await other.dispose()
        return number

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work()).result()


async def gone(engine: AsyncEngine) -> None:
    """Waits until the server has no connection but the one that asks."""
    async with asyncio.timeout(SOON):
        while await backends(engine):
            continue


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "reflexr.sql.live_output"]


# --- The contract


class TestWithinAProcess(LiveOutputContract):
    @override
    def live_output(self) -> AbstractAsyncContextManager[LiveOutput]:
        return alone()


class TestBetweenProcesses(LiveOutputContract):
    @override
    def live_output(self) -> AbstractAsyncContextManager[LiveOutput]:
        return apart()

    @guarantee()
    @override
    async def test_a_listener_that_left_takes_nothing_from_others(self, trial: LiveOutput) -> None:
        """As within a process; but what was said right before a listener began may be told to it."""
        with trial.listen(CONTRACT[0]) as staying:
            with trial.listen(CONTRACT[0]):
                pass
            trial.send(CONTRACT[0], delta(1))
            assert await taken(staying, 1) == [delta(1)]
        trial.send(CONTRACT[0], delta(2))
        with trial.listen(CONTRACT[0]) as listener:
            trial.send(CONTRACT[0], delta(3))
            assert (await taken(listener, 3))[-1] == delta(3)


CONTRACT: Final = [
    WorkspaceRef("contract-tenant", "one"),
    WorkspaceRef("contract-tenant", "two"),
    WorkspaceRef("another-tenant", "one"),
]
"""The contract's workspaces."""


@asynccontextmanager
async def alone() -> AsyncGenerator[LiveOutput]:
    async with engine_of("postgresql") as engine, process(engine) as live_output:
        yield live_output


@asynccontextmanager
async def apart() -> AsyncGenerator[LiveOutput]:
    async with engine_of("postgresql") as engine, process(engine) as here, process(engine) as there:
        # That somebody listens is known to other processes a moment later, so somebody does before.
        with ExitStack() as stack:
            for workspace in CONTRACT:
                stack.enter_context(there.listen(workspace))
            await heard(here, *CONTRACT)
            yield Apart(here, there)


class Apart(LiveOutput):
    """What is said in one process and heard in another."""

    def __init__(self, here: LiveOutput, there: LiveOutput) -> None:
        self._here = here
        self._there = there

    @override
    def is_heard(self, workspace: WorkspaceRef) -> bool:
        return self._here.is_heard(workspace)

    @override
    def send(self, workspace: WorkspaceRef, delta: Delta) -> None:
        self._here.send(workspace, delta)

    @override
    def listen(self, workspace: WorkspaceRef) -> AbstractContextManager[DeltaListener]:
        return self._there.listen(workspace)


# --- Who is told


async def test_a_subscriber_hears_what_a_run_says_in_another_process(postgresql: AsyncEngine) -> None:
    url = postgresql.url.render_as_string(hide_password=False)
    speaker = await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), url, stdin=PIPE, stdout=PIPE)
    assert speaker.stdout is not None
    try:
        async with SqlStorage(postgresql) as storage, PostgresLiveOutput(postgresql) as live_output:
            assert await speaker.stdout.readline() == b"serves\n"
            workspaces = Workspaces(storage, events=[Asked], rules=[RULE], live_output=live_output)
            workspace = workspaces.handle(REF, actor=SourceActor(name="test"))
            said: list[str] = []
            async with asyncio.timeout(SOON), aclosing(workspace.subscribe(deltas=True)) as stream:
                # Its run says nothing before this process is known to listen.
                await workspace.publish(Asked())
                async for one in stream:
                    if isinstance(one, Delta):
                        said.append(one.text)
                    if len(said) == WORDS:
                        break
    finally:
        await speaker.communicate()
    assert said == [f"{number} " for number in range(1, WORDS + 1)]
    assert speaker.returncode == 0


async def test_each_workspace_is_told_of_its_own_whatever_its_name_is(postgresql: AsyncEngine) -> None:
    channels = {channel_of(workspace) for workspace in ODD}
    assert len(channels) == len(ODD)
    assert all(len(channel) <= 63 for channel in channels)
    async with process(postgresql) as here, process(postgresql) as there:
        with ExitStack() as stack:
            listeners = [stack.enter_context(there.listen(workspace)) for workspace in ODD]
            await heard(here, *ODD)
            for number, workspace in enumerate(ODD, 1):
                here.send(workspace, delta(number))
            for number, listener in enumerate(listeners, 1):
                assert await taken(listener, number) == [delta(number)]


async def test_who_listens_before_a_process_begins_is_known_to_it(
    postgresql: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody announces anything without being asked.
    monkeypatch.setattr("reflexr.sql.live_output.EVERY", 1_000.0)
    async with process(postgresql) as there:
        with there.listen(REF), there.listen(OTHER):
            async with process(postgresql) as first:
                await heard(first, REF, OTHER)
            async with process(postgresql) as second:
                await heard(second, REF, OTHER)


async def test_every_process_is_told_and_none_is_told_twice(postgresql: AsyncEngine) -> None:
    async with process(postgresql) as here, process(postgresql) as there:
        with here.listen(REF) as mine, there.listen(REF) as theirs, there.listen(REF) as another:
            # Each also listens elsewhere, which the other knows last.
            with here.listen(OTHER), there.listen(WorkspaceRef("acme", "third")):
                await heard(here, WorkspaceRef("acme", "third"))
                await heard(there, OTHER)
            here.send(REF, delta(1))
            assert await taken(theirs, 1) == await taken(another, 1) == [delta(1)]
            there.send(REF, delta(2))
            assert await taken(mine, 2) == [delta(1), delta(2)]
            here.send(REF, delta(3))
            assert await taken(theirs, 3) == [delta(2), delta(3)]


async def test_a_process_listens_to_more_than_one_announcement_names(postgresql: AsyncEngine) -> None:
    many = [WorkspaceRef("acme", f"w{number}") for number in range(250)]
    async with process(postgresql) as here, process(postgresql) as there:
        with ExitStack() as stack:
            listeners = [stack.enter_context(there.listen(workspace)) for workspace in many]
            await heard(here, *many)
            for workspace in many:
                here.send(workspace, delta(1))
            for listener in listeners:
                assert await taken(listener, 1) == [delta(1)]


async def test_a_process_that_no_longer_listens_is_sent_nothing_and_can_listen_again(
    postgresql: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with process(postgresql) as here, process(postgresql) as there:
        for number in (1, 2):
            with there.listen(REF) as listener:
                await heard(here)
                # Once it is known to listen elsewhere, it listens here.
                with there.listen(WorkspaceRef("acme", f"again-{number}")):
                    await heard(here, WorkspaceRef("acme", f"again-{number}"))
                here.send(REF, delta(number))
                assert await taken(listener, number) == [delta(number)]
            apart = WorkspaceRef("acme", f"apart-{number}")
            with there.listen(apart) as staying:
                await heard(here, apart)
                # By now it listens to nothing else: it would complain.
                await notify(postgresql, channel_of(REF), "strange")
                here.send(apart, delta(number))
                assert await taken(staying, number) == [delta(number)]
    assert warnings_of(caplog) == []


async def test_who_does_not_announce_it_any_more_is_not_told(
    postgresql: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr("reflexr.sql.live_output.monotonic", lambda: now[0])
    async with process(postgresql) as here, process(postgresql) as there, spy(postgresql, channel_of(OTHER)) as told:
        with there.listen(REF) as listener:
            with there.listen(OTHER):
                await heard(here, REF, OTHER)
            now[0] += EVERY
            # It is woken, and announces what it still listens to.
            with there.listen(WorkspaceRef("acme", "third")):
                await heard(here, WorkspaceRef("acme", "third"))
            now[0] += EXPIRY - EVERY - 1
            assert here.is_heard(OTHER)
            here.send(OTHER, delta(1))
            # What waits is not sent once nobody hears it.
            now[0] += 1
            assert not here.is_heard(OTHER)
            assert here.is_heard(REF)
            here.send(OTHER, delta(2))
            here.send(REF, delta(3))
            assert await taken(listener, 3) == [delta(3)]
        now[0] += EXPIRY
        assert not here.is_heard(REF)
        assert told == []


async def test_who_listens_says_so_again_and_again(postgresql: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reflexr.sql.live_output.EVERY", 0.01)
    async with spy(postgresql, ANNOUNCEMENTS) as announced, process(postgresql) as there:
        with there.listen(REF):
            await until(lambda: sum(channel_of(REF) in payload for payload in announced) >= 5)
    assert sum(payload.endswith(" ?") for payload in announced) == 1


# --- How much is said


@pytest.mark.parametrize(
    "said",
    [
        "𝄞" * MAX_DELTA,
        "\x00" * MAX_DELTA,
        '"\\' * (MAX_DELTA // 2),
        "x" * MAX_DELTA,
        "",
        # More than the port promises.
        "𝄞x" * 10_000,
    ],
)
async def test_whatever_is_said_gets_there_as_it_is(postgresql: AsyncEngine, said: str) -> None:
    deltas = [delta(number, said, tool=said, kind="tool_call") for number in range(1, 21)]
    async with process(postgresql) as here, process(postgresql) as there:
        with there.listen(REF) as listener:
            await heard(here)
            for one in deltas:
                here.send(REF, one)
            assert await taken(listener, 20) == deltas


@pytest.mark.parametrize("length", [0, 1, 1_949, 1_950, 1_951, 7_800, 7_801, 50_000])
@pytest.mark.parametrize("character", ["x", "é", "𝄞"])
def test_every_part_is_one_that_postgresql_takes(length: int, character: str) -> None:
    parts = parts_of(character * length)
    assert "".join(parts) == character * length
    assert all(0 < len(part.encode()) <= 7_900 for part in parts)


async def test_the_same_that_is_said_again_and_again_is_told_as_often(postgresql: AsyncEngine) -> None:
    async with process(postgresql) as here, process(postgresql) as there:
        with there.listen(REF) as listener:
            await heard(here)
            for _ in range(400):
                here.send(REF, delta(1))
            here.send(REF, delta(2))
            assert len(await taken(listener, 2)) == 401


async def test_a_flood_that_nobody_hears_is_sent_nowhere(postgresql: AsyncEngine) -> None:
    async with (
        spy(postgresql, channel_of(REF)) as told,
        process(postgresql) as here,
        process(postgresql) as there,
    ):
        for number in range(FLOOD):
            here.send(REF, delta(number + 1))
        with there.listen(REF) as listener:
            await heard(here)
            here.send(REF, delta(FLOOD + 1))
            assert await taken(listener, FLOOD + 1) == [delta(FLOOD + 1)]
            await until(lambda: len(told) == 1)


@pytest.mark.parametrize("pause", [None, 100])
async def test_a_flood_costs_who_stalls_the_oldest_and_who_listens_elsewhere_nothing(
    postgresql: AsyncEngine, pause: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing else makes a process send what did not go with the last.
    monkeypatch.setattr("reflexr.sql.live_output.EVERY", 1_000.0)
    monkeypatch.setattr("reflexr.sql.live_output.EXPIRY", 1_000.0)
    async with process(postgresql) as here, process(postgresql) as there:
        with there.listen(REF) as stalling, there.listen(OTHER) as reading:
            await heard(here, REF, OTHER)
            for number in range(1, FLOOD + 1):
                here.send(REF, delta(number, "x" * MAX_DELTA))
                if pause is not None and number % pause == 0:
                    await asyncio.sleep(0)
            here.send(OTHER, delta(1))
            assert await taken(reading, 1) == [delta(1)]
            first = await stalling.take()
            assert len(first) <= 1_000
            deltas = first + (await taken(stalling, FLOOD) if first[-1].number < FLOOD else [])
    assert [one.number for one in deltas] == [*accumulate(1 + one.lost for one in deltas)]


async def test_a_size_is_what_waits_on_either_side(postgresql: AsyncEngine) -> None:
    async with process(postgresql, size=3) as here, process(postgresql) as there:
        with there.listen(REF) as listener:
            await heard(here)
            with here.listen(REF) as mine:
                for number in range(1, 11):
                    here.send(REF, delta(number, lost=number == 1))
                expected = [delta(8, lost=8), delta(9), delta(10)]
                assert await taken(mine, 10) == expected
                assert await taken(listener, 10) == expected


async def test_what_no_frame_can_hold_is_refused_and_the_rest_is_told(postgresql: AsyncEngine) -> None:
    async with process(postgresql) as here, process(postgresql) as there:
        with there.listen(REF) as listener:
            await heard(here)
            with pytest.raises(ValueError, match="surrogates"):
                here.send(REF, delta(1).model_copy(update={"text": "\ud800"}))
            here.send(REF, delta(2))
            assert await taken(listener, 2) == [delta(2)]


async def test_what_nobody_of_ours_has_said_is_left_out(
    postgresql: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with process(postgresql) as here, process(postgresql) as there:
        with there.listen(REF) as listener:
            await heard(here)
            strange = [
                "",
                "x",
                "x 1 1 1 {}",
                "x 1 1 1 [0,[]]",
                "x 1 1 1 [-1,[]]",
                "x 1 a b c",
                "x 1 3 3 ]]",
                "x 1 0 3 ",
            ]
            await notify(postgresql, channel_of(REF), *strange)
            await notify(postgresql, ANNOUNCEMENTS, *strange)
            here.send(REF, delta(1))
            assert await taken(listener, 1) == [delta(1)]
    (warning,) = warnings_of(caplog)
    assert "is not understood, and is left out" in warning


async def test_the_end_of_something_whose_beginning_nobody_heard_is_left_out_without_a_word(
    postgresql: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with process(postgresql) as here, process(postgresql) as there:
        with there.listen(REF) as listener:
            await heard(here)
            whole = f"[0,[{delta(9).model_dump_json()}]]"
            await notify(postgresql, channel_of(REF), f"x 1 2 2 {whole}", "x 2 1 3 [0,", f"x 2 3 3 {whole}")
            await notify(postgresql, channel_of(REF), f"y 1 1 2 {whole[:20]}", f"y 1 2 2 {whole[20:]}")
            assert await taken(listener, 9) == [delta(9)]
    assert warnings_of(caplog) == []


async def test_what_is_said_to_a_listener_that_has_left_is_forgotten(
    postgresql: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing makes a process look whether it still listens.
    monkeypatch.setattr("reflexr.sql.live_output.EVERY", 1_000.0)
    monkeypatch.setattr("reflexr.sql.live_output.EXPIRY", 1_000.0)
    async with process(postgresql) as here:
        with here.listen(WorkspaceRef("acme", "third")):
            async with process(postgresql) as there:
                await heard(there, WorkspaceRef("acme", "third"))
                with there.listen(OTHER) as staying:
                    with there.listen(REF):
                        await heard(here, REF, OTHER)
                        here.send(REF, delta(1))
                        here.send(OTHER, delta(2))
                    assert await taken(staying, 2) == [delta(2)]
                with there.listen(REF) as listener:
                    here.send(REF, delta(3))
                    assert await taken(listener, 3) == [delta(3)]


# --- When the database is away


async def test_a_sender_whose_connection_breaks_counts_what_is_lost_and_goes_on(
    postgresql: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = named(postgresql, "speaker")
    async with process(postgresql) as there, PostgresLiveOutput(engine) as here:
        with there.listen(REF) as listener:
            await heard(here)
            here.send(REF, delta(1))
            assert await taken(listener, 1) == [delta(1)]
            assert hang_up(postgresql, "speaker") == 1
            for number in (2, 3, 4):
                here.send(REF, delta(number, lost=number == 2))
            await until(lambda: len(warnings_of(caplog)) == 1)
            here.send(REF, delta(5))
            assert await taken(listener, 5) == [delta(5, lost=4)]
    await engine.dispose()
    assert "lost until the database is back" in caplog.text


async def test_a_listener_whose_connection_breaks_comes_back(
    postgresql: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = named(postgresql, "listener")
    async with process(postgresql) as here, PostgresLiveOutput(engine) as there:
        with there.listen(REF) as listener:
            await heard(here)
            assert hang_up(postgresql, "listener") == 1
            number = 0
            taking = asyncio.create_task(listener.take())
            async with asyncio.timeout(SOON):
                while not taking.done():
                    number += 1
                    here.send(REF, delta(number))
                    # What is said while the link is away is lost, so it goes on saying something until it is heard.
                    await asyncio.sleep(0.005)
            assert await taking
    await engine.dispose()
    assert len(warnings_of(caplog)) == 1


async def test_a_server_that_stays_away_is_told_of_once_and_listeners_of_the_process_hear_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("reflexr.sql.links._FIRST_DELAY", 0.001)
    engine = create_async_engine("postgresql+asyncpg://postgres@127.0.0.1:1/nowhere")
    tries: list[object] = []
    event.listen(engine.sync_engine, "do_connect", lambda *_: tries.append(None))
    async with PostgresLiveOutput(engine) as live_output:
        with live_output.listen(REF) as listener:
            for number in range(1, 11):
                live_output.send(REF, delta(number))
            assert await taken(listener, 10) == [delta(number) for number in range(1, 11)]
            await until(lambda: len(tries) >= 4)
    assert len(warnings_of(caplog)) == 1


# --- Beginning and ending


def test_another_database_is_refused() -> None:
    with pytest.raises(EngineError, match=r"'sqlite\+aiosqlite' carries no live output.*InProcessLiveOutput"):
        PostgresLiveOutput(create_sqlite_engine("sqlite+aiosqlite:///nowhere.db"))


async def test_it_is_opened_and_closed_again_and_meanwhile_stays_within_the_process(postgresql: AsyncEngine) -> None:
    before = asyncio.all_tasks()
    live_output = PostgresLiveOutput(postgresql)
    for number in (1, 2):
        with live_output.listen(REF) as listener:
            live_output.send(REF, delta(number))
            assert await taken(listener, number) == [delta(number)]
            assert asyncio.all_tasks() == before
            async with live_output, process(postgresql) as there:
                await heard(there)
                assert await backends(postgresql) >= 2
                there.send(REF, delta(number))
                assert await taken(listener, number) == [delta(number)]
        live_output.send(REF, delta(3))
        await live_output.close()
        assert asyncio.all_tasks() == before
    await gone(postgresql)


async def test_whenever_it_is_closed_no_task_and_no_connection_is_left(postgresql: AsyncEngine) -> None:
    before = asyncio.all_tasks()
    async with process(postgresql) as there:
        with there.listen(REF):
            for turns in (*range(30), *range(30, 300, 15)):
                async with process(postgresql) as here:
                    with here.listen(OTHER):
                        for number in range(turns):
                            await asyncio.sleep(0)
                            here.send(REF, delta(number + 1))
    assert asyncio.all_tasks() == before
    await gone(postgresql)


async def test_a_close_that_is_cancelled_closes_it_all_the_same(postgresql: AsyncEngine) -> None:
    before = asyncio.all_tasks()
    for turns in range(1, 13):
        other = beside(postgresql)
        live_output = await PostgresLiveOutput(other).__aenter__()
        with live_output.listen(REF):
            for _ in range(10 * turns):
                await asyncio.sleep(0)
            closing = asyncio.create_task(live_output.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
        await until(lambda: asyncio.all_tasks() == before)
        await live_output.close()
        await other.dispose()
    await gone(postgresql)
