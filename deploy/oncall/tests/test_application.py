from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from oncall.actions import ACTIONS, Deps
from oncall.application import TENANT, Application, News, start
from oncall.database import kept
from oncall.events import LoginFailed
from oncall.feed import Entry, batches
from oncall.rules import BRUTE_FORCE, GUESSED, RULES
from oncall.sources import Line
from oncall.syslog import Syslog
from oncall.timeline import Decision, Timeline
from reflexr.core import Envelope, Rule
from reflexr.core import start as begin_attempt
from reflexr.workspace import (
    EVALUATION_LEASE,
    LogWindow,
    ManualClock,
    Reactor,
    RunQuery,
    WorkspaceRef,
    Workspaces,
    run_lease,
)


def line(clock: str, said: str) -> str:
    return f"2025-03-03T{clock}Z gate sshd[1]: {said}"


def failure(clock: str, address: str = "192.0.2.1") -> str:
    return line(clock, f"Failed password for root from {address} port 1 ssh2")


def acceptance(clock: str, address: str = "192.0.2.1") -> str:
    return line(clock, f"Accepted password for root from {address} port 1 ssh2")


def cut(texts: Iterable[str]) -> list[list[Entry]]:
    lines = [Line(number, text) for number, text in enumerate(texts, start=1)]
    return list(batches(lines, Syslog(written=datetime(2025, 3, 3, tzinfo=UTC))))


async def read(application: Application, texts: Iterable[str]) -> list[News]:
    return [*[await application.read(batch) for batch in cut(texts)], await application.finish()]


async def fed(database: Path | None, *texts: str, rules: Sequence[Rule] = RULES) -> list[News]:
    """What is new in a process of its own."""
    async with start("ssh", database, rules) as application:
        return await read(application, texts)


async def decisions(*texts: str, database: Path | None = None) -> list[Decision]:
    return [decision for news in await fed(database, *texts) for decision in news.decisions]


async def stored(database: Path) -> list[Envelope]:
    async with kept(database, "ssh", ManualClock()) as storage:
        return await storage.read(WorkspaceRef(TENANT, "ssh"), LogWindow())


def logins(news: Iterable[News]) -> list[tuple[str, str]]:
    return [(f"{one.ts:%H:%M:%S}", one.event_type.rpartition(".")[2]) for part in news for one in part.logins]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "oncall.db"


FIVE = tuple(failure(f"10:00:0{second}") for second in range(5))


def outcomes(found: Iterable[Decision]) -> list[tuple[str, str, object]]:
    return [(one.run.rule, one.run.status, one.run.output) for one in found]


async def test_brute_force_is_blocked_and_when_it_gives_up_the_case_is_closed() -> None:
    found = await decisions(*(failure(f"10:00:{second:02}") for second in range(6)), line("10:11:00", "hello"))
    assert outcomes(found) == [
        (
            "oncall:brute-force",
            "succeeded",
            {
                "said": "blocked 192.0.2.1 until 10:15:04",
                "address": "192.0.2.1",
                "until": "2025-03-03T10:15:04Z",
            },
        ),
        (
            "oncall:gave-up",
            "succeeded",
            {
                "said": "case closed, blocked until 10:15:04",
                "address": "192.0.2.1",
                "blocked_until": "2025-03-03T10:15:04Z",
            },
        ),
    ]
    assert [[one.seq for one in decision.matched] for decision in found] == [[1, 2, 3, 4, 5], [6]]


async def test_who_guessed_right_is_paged_about() -> None:
    (found,) = await decisions(failure("10:00:00"), acceptance("10:00:30"))
    said = "page 1 to the on-call: 192.0.2.1 failed, then got in as 'root' on gate: is that them?"
    assert outcomes([found]) == [("oncall:guessed", "succeeded", {"said": said, "page": 1})]


async def test_who_never_was_blocked_gives_up_as_well() -> None:
    (found,) = await decisions(failure("10:00:00"), failure("10:10:00", "198.51.100.2"))
    assert found.address == "192.0.2.1"
    assert outcomes([found])[0][2] == {
        "said": "case closed, it was never blocked",
        "address": "192.0.2.1",
        "blocked_until": None,
    }


async def test_no_time_passes_beyond_the_last_line() -> None:
    assert await decisions(failure("10:00:00"), line("10:09:59", "hello")) == []
    assert len(await decisions(failure("10:00:00"), line("10:10:00", "hello"))) == 1


async def test_the_same_log_again_is_no_news() -> None:
    texts = [*FIVE, acceptance("10:00:30")]
    async with start("ssh") as application:
        first = await read(application, texts)
        assert [len(news.logins) for news in first] == [6, 0]
        assert await read(application, texts) == [News([], []), News([], [])]


async def test_what_is_decided_does_not_depend_on_when_the_rules_had_their_turn() -> None:
    texts = [failure(f"10:{second // 60:02}:{second % 60:02}") for second in range(0, 3000, 7)]
    whole = await decisions(*texts)
    syslog = Syslog(written=datetime(2025, 3, 3, tzinfo=UTC))
    one_by_one: list[Decision] = []
    async with start("ssh") as application:
        for number, text in enumerate(texts, start=1):
            for batch in batches([Line(number, text)], syslog):
                one_by_one += (await application.read(batch)).decisions
    assert [one.run.fired_at for one in one_by_one] == [one.run.fired_at for one in whole]
    assert [[seen.ts for seen in one.matched] for one in one_by_one] == [
        [seen.ts for seen in one.matched] for one in whole
    ]


async def test_another_process_publishes_nothing_twice_and_goes_on_with_what_came_since(database: Path) -> None:
    texts = [*FIVE, line("10:01:00", "hello")]
    await fed(database, *texts)
    before = await stored(database)
    assert await fed(database, *texts) == [News([], [])] * 2
    assert await stored(database) == before
    grown = await fed(database, *texts, acceptance("10:02:00"))
    assert logins(grown) == [("10:02:00", "accepted")]
    assert [one.rule for news in grown for one in news.decisions] == [GUESSED]
    assert (await stored(database))[: len(before)] == before


async def test_another_process_knows_what_was_blocked(database: Path) -> None:
    await fed(database, *FIVE)
    (found,) = await decisions(*FIVE, line("10:11:00", "hello"), database=database)
    assert outcomes([found])[0][2] == {
        "said": "case closed, blocked until 10:15:04",
        "address": "192.0.2.1",
        "blocked_until": "2025-03-03T10:15:04Z",
    }


async def test_what_a_rule_did_that_is_no_more_is_left_aside(database: Path) -> None:
    await fed(database, *FIVE)
    assert logins(await fed(database, *FIVE, acceptance("10:00:30"), rules=[GUESSED])) == [("10:00:30", "accepted")]
    async with start("ssh", database, [GUESSED]) as application:
        told = [news async for news in application.everything()]
        assert [one.rule for news in told for one in news.decisions] == [GUESSED]
        assert {run.rule for run in await application.runs()} == {BRUTE_FORCE.name, GUESSED.name}


async def test_what_a_killed_process_had_in_hand_is_done_at_once_and_told(database: Path) -> None:
    workspace = WorkspaceRef(TENANT, "ssh")
    async with start("ssh", database) as application:
        (batch,) = cut(FIVE)
        await application.feed.publish(batch)
    clock = ManualClock(datetime(2025, 3, 3, 10, 0, 4, tzinfo=UTC))
    async with kept(database, "ssh", clock) as storage:
        await Reactor(Workspaces(storage, rules=RULES), actions=ACTIONS, deps=Deps()).evaluate()
        async with storage.transaction(workspace) as transaction:
            (run,) = await transaction.find_runs(RunQuery())
            await transaction.save_runs([begin_attempt(run, now=clock()).run])
            await transaction.acquire([EVALUATION_LEASE, run_lease(run.id)], "the killed one", timedelta(hours=1))
    news = await fed(database, *FIVE)
    assert logins(news) == []
    (found,) = [decision for part in news for decision in part.decisions]
    assert (found.run.status, found.run.attempt) == ("succeeded", 2)
    assert await fed(database, *FIVE) == [News([], [])] * 2


async def test_the_rules_have_their_turn_after_the_same_lines_wherever_a_process_was_killed(tmp_path: Path) -> None:
    late = [failure(f"10:06:0{second}") for second in range(6)]
    texts = [failure("10:00:00"), *late, acceptance("10:06:30")]
    await fed(tmp_path / "whole.db", *texts)
    first, second = cut(texts)
    async with start("ssh", tmp_path / "cut.db") as application:
        await application.read(first)
        await application.feed.publish(second[:5])
    await fed(tmp_path / "cut.db", *texts)
    whole, other = await stored(tmp_path / "whole.db"), await stored(tmp_path / "cut.db")
    assert [(one.seq, one.id, one.ts) for one in other] == [(one.seq, one.id, one.ts) for one in whole]


@pytest.mark.parametrize("page", [1, 2, 3, 1_000])
async def test_what_is_told_again_is_what_was_told(database: Path, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    def entries(told: Iterable[News]) -> list[object]:
        timeline = Timeline()
        return [*(entry for news in told for entry in timeline.add(news.logins, news.decisions)), *timeline.finish()]

    texts = [*FIVE, acceptance("10:00:30"), failure("10:09:00", "192.0.2.2"), line("10:30:00", "hello")]
    first = await fed(database, *texts)
    monkeypatch.setattr("oncall.application.PAGE", page)
    async with start("ssh", database) as application:
        again = [news async for news in application.everything()]
        assert entries(again) == entries(first)
        known = [login async for part in application.logins() for login in part]
        assert [one.id for one in known] == [one.id for news in first for one in news.logins]
        assert all(isinstance(one.event, LoginFailed) for one in known[:5])
