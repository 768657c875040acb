from collections.abc import Iterable
from datetime import UTC, datetime

from oncall.application import Application, News, start
from oncall.feed import batches
from oncall.sources import Line
from oncall.syslog import Syslog
from oncall.timeline import Decision


def line(clock: str, said: str) -> str:
    return f"2025-03-03T{clock}Z gate sshd[1]: {said}"


def failure(clock: str, address: str = "192.0.2.1") -> str:
    return line(clock, f"Failed password for root from {address} port 1 ssh2")


def acceptance(clock: str, address: str = "192.0.2.1") -> str:
    return line(clock, f"Accepted password for root from {address} port 1 ssh2")


async def read(application: Application, texts: Iterable[str]) -> list[News]:
    lines = [Line(number, text) for number, text in enumerate(texts, start=1)]
    news = [await application.read(batch) for batch in batches(lines, Syslog(written=datetime(2025, 3, 3, tzinfo=UTC)))]
    return [*news, await application.finish()]


async def decisions(*texts: str) -> list[Decision]:
    return [decision for news in await read(await start(), texts) for decision in news.decisions]


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
    application = await start()
    texts = [*(failure(f"10:00:0{second}") for second in range(5)), acceptance("10:00:30")]
    first = await read(application, texts)
    assert [len(news.logins) for news in first] == [6, 0]
    assert await read(application, texts) == [News([], []), News([], [])]


async def test_what_is_decided_does_not_depend_on_when_the_rules_had_their_turn() -> None:
    texts = [failure(f"10:{second // 60:02}:{second % 60:02}") for second in range(0, 3000, 7)]
    whole = await decisions(*texts)
    application = await start()
    syslog = Syslog(written=datetime(2025, 3, 3, tzinfo=UTC))
    one_by_one: list[Decision] = []
    for number, text in enumerate(texts, start=1):
        for batch in batches([Line(number, text)], syslog):
            one_by_one += (await application.read(batch)).decisions
    assert [one.run.fired_at for one in one_by_one] == [one.run.fired_at for one in whole]
    assert [[seen.ts for seen in one.matched] for one in one_by_one] == [
        [seen.ts for seen in one.matched] for one in whole
    ]
