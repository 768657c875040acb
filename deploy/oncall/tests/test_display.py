import io
import os
from pathlib import Path
from typing import override

import pytest

from oncall.display import Report, Screen
from oncall.feed import Tally
from oncall.rules import BRUTE_FORCE, GAVE_UP, GUESSED, RULES
from oncall.sources import opened
from oncall.summary import Summary
from oncall.timeline import Acceptance, Burst, Decision, Entry
from reflexr.core import Rule, on, run

from .envelopes import ATTACKER, acceptance, at, decide, failure, log


class Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")


def told(*entries: Entry, out: io.StringIO | None = None, plain: bool = False, quiet: bool = False) -> str:
    stream = io.StringIO() if out is None else out
    report = Report(Screen(stream, plain=plain), Screen(io.StringIO()), quiet=quiet)
    for entry in entries:
        report.tell(entry)
    return stream.getvalue()


def ended(decision: Decision, **changes: object) -> Decision:
    return Decision(decision.rule, decision.run.model_copy(update=changes), decision.matched)


def brute_force() -> Decision:
    (decision,) = decide(BRUTE_FORCE, log(*((second, failure()) for second in range(5))))
    return ended(decision, status="succeeded", attempt=1, output={"said": "blocked it"})


def test_a_burst_is_one_line() -> None:
    users = {"root": True, "admin": False, "pi": False}
    assert told(Burst(ATTACKER, at(0), at(18), 5, users)) == (
        "\nMar 3\n00:00:00 · 192.0.2.1         5 failures in 18 s as root · invalid users admin, pi\n"
    )


def test_a_single_failure_takes_no_time() -> None:
    assert "1 failure · invalid user pi\n" in told(Burst(ATTACKER, at(0), at(0), 1, {"pi": False}))


def test_each_day_has_a_heading() -> None:
    text = told(*(Burst(ATTACKER, at(day * 86_400), at(day * 86_400), 1, {"root": True}) for day in (0, 0, 1)))
    assert [row for row in text.splitlines() if row.startswith("Mar")] == ["Mar 3", "Mar 4"]


def test_an_acceptance_says_who_and_how() -> None:
    assert "→ 192.0.2.1         logged in as root by password\n" in told(Acceptance(at(0), acceptance()))


def test_a_decision_says_what_it_matched_what_ran_and_what_came_of_it() -> None:
    assert told(brute_force()).splitlines()[2:] == [
        "00:00:04 ▲ brute-force       192.0.2.1 5 failures in 4 s #1..5",
        "         └ block             ✓ blocked it",
    ]


def test_a_sequence_tells_its_steps() -> None:
    (decision,) = decide(GUESSED, log((0, failure()), (7, acceptance())))
    assert "! guessed           192.0.2.1 failed 00:00:00, then accepted 00:00:07 #1..2\n" in told(decision)


def test_silence_tells_since_when() -> None:
    (decision,) = decide(GAVE_UP, log((7, failure()), (607, failure())))
    assert "00:10:07 ○ gave-up           192.0.2.1 no failure since 00:00:07 #1\n" in told(decision)


def test_a_run_that_did_not_succeed_says_why() -> None:
    waiting = ended(brute_force(), status="retrying", attempt=2, error="no\nroute", output=None)
    assert "└ block             ✗ retrying at attempt 2: no\\nroute\n" in told(waiting)
    assert "✗ pending at attempt 0\n" in told(ended(brute_force(), status="pending", attempt=0, error=None))


def test_an_output_without_words_is_shown_as_it_is() -> None:
    assert '✓ {"until": 7}\n' in told(ended(brute_force(), output={"until": 7}))


def test_a_rule_of_somebody_else_is_shown_as_well() -> None:
    rule = Rule(name="elsewhere:each", when=on("oncall:login.failed"), scope=BRUTE_FORCE.scope, then=run("log"))
    (decision,) = decide(rule, log((0, failure())))
    assert "00:00:00 ▸ each              192.0.2.1 1 failure in 0 s #1\n" in told(decision)


def test_what_is_no_terminal_gets_no_escape_codes_and_no_folding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = told(Burst(ATTACKER, at(0), at(18), 5, {f"a-rather-long-name-{one}": True for one in range(9)}))
    assert "\x1b" not in text
    assert len(text.splitlines()[-1]) > 80


def test_a_terminal_gets_colours_and_long_rows_are_folded_below_their_beginning() -> None:
    users = {f"a-rather-long-name-{one}": True for one in range(9)}
    text = told(Burst(ATTACKER, at(0), at(18), 5, users), out=Terminal())
    assert "\x1b[" in text
    rows = text.splitlines()[3:]
    assert len(rows) > 1
    assert all(row.startswith(" " * 29) for row in rows)


def test_a_terminal_without_colours_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in told(brute_force(), out=Terminal())


def test_plain_is_plain_on_a_terminal_too() -> None:
    assert told(brute_force(), out=Terminal(), plain=True) == told(brute_force())


def test_quiet_tells_nothing_but_the_end() -> None:
    assert told(brute_force(), quiet=True) == ""
    stream = io.StringIO()
    report = Report(Screen(stream), Screen(io.StringIO()), quiet=True)
    report.begin("auth.log", RULES)
    report.resume(at(0), 1, 1)
    report.retell()
    assert stream.getvalue() == ""
    report.end(Tally(), Summary(), RULES)
    assert "summary" in stream.getvalue()


def test_the_beginning_names_the_log_and_the_rules() -> None:
    stream = io.StringIO()
    Report(Screen(stream), Screen(io.StringIO())).begin("a\x1blog", RULES)
    rows = stream.getvalue().splitlines()
    assert rows[0] == "reading a\\x1blog"
    assert [row.split()[:2] for row in rows[1:]] == [["▲", "brute-force"], ["!", "guessed"], ["○", "gave-up"]]
    assert all(rule.description and rule.description in row for rule, row in zip(RULES, rows[1:], strict=True))


def test_the_end_counts_everything() -> None:
    decision = brute_force()
    summary = Summary()
    summary.count([*decision.matched, *log((9, acceptance("198.51.100.2")))])
    summary.count_runs([decision.run, ended(decision, status="pending").run])
    tally = Tally(lines=2_000, logins=6, unreadable=1, late=2, first=at(0), latest=at(190))
    stream = io.StringIO()
    Report(Screen(stream), Screen(io.StringIO())).end(tally, summary, RULES, new=3)
    assert stream.getvalue() == (
        "\n"
        "summary\n"
        "  period     Mar 3 00:00:00 to Mar 3 00:03:10 (3 min 10 s)\n"
        "  published  5 failures, 1 acceptance; 3 of them this time\n"
        "  lines      2,000: 6 about logins, 1,993 about something else\n"
        "  skipped    1 unreadable line\n"
        "  late       2 lines out of order, published at the time of the line before\n"
        "\n"
        "  rule                fired  runs\n"
        "  oncall:brute-force      2  1 pending, 1 succeeded\n"
        "  oncall:guessed          0  -\n"
        "  oncall:gave-up          0  -\n"
        "\n"
        "  busiest    failures  accepted  brute-force  guessed  gave-up\n"
        "  192.0.2.1         5         0            2        0        0\n"
    )


def test_an_end_without_anything_new_says_so() -> None:
    stream = io.StringIO()
    Report(Screen(stream), Screen(io.StringIO())).end(Tally(), Summary(), RULES, new=0)
    assert "  published  0 failures, 0 acceptances; none of them this time\n" in stream.getvalue()


@pytest.mark.parametrize(
    ("failures", "acceptances", "held"),
    [(2_000, 1, "2,000 failures and 1 acceptance were"), (0, 1, "0 failures and 1 acceptance was")],
)
def test_what_was_there_already_is_said_in_a_line(failures: int, acceptances: int, held: str) -> None:
    stream = io.StringIO()
    Report(Screen(stream), Screen(io.StringIO())).resume(at(7), failures, acceptances)
    assert stream.getvalue() == f"continues after Mar 3 00:00:07: {held} here already\n"


def test_what_is_told_again_is_said_to_be() -> None:
    stream = io.StringIO()
    Report(Screen(stream), Screen(io.StringIO())).retell()
    assert stream.getvalue() == "nothing new since the last time; this is what the log holds\n"


def test_the_end_of_nothing_is_an_end() -> None:
    stream = io.StringIO()
    Report(Screen(stream), Screen(io.StringIO())).end(Tally(), Summary(), RULES)
    assert "  period     no time\n" in stream.getvalue()
    assert "  skipped    nothing\n" in stream.getvalue()
    assert "busiest" not in stream.getvalue()


def test_of_many_addresses_the_busiest_are_named_in_an_order_that_is_always_the_same() -> None:
    summary = Summary()
    events = [(0.0, failure(f"192.0.2.{one}")) for one in (9, 8, 7, 6, 5, 4, 4)]
    summary.count(log(*events))
    assert summary.busiest(3) == ["192.0.2.4", "192.0.2.5", "192.0.2.6"]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_long_log_shows_how_far_it_was_read_on_a_terminal(tmp_path: Path, compressed: bool) -> None:
    place = tmp_path / "auth.log"
    place.write_bytes(b"\x1f\x8b" if compressed else b"one\ntwo\n")
    out, notes = io.StringIO(), Terminal()
    report = Report(Screen(out), Screen(notes))
    with opened(str(place)) as source, report.progress(source) as moved:
        moved()
    assert "reading" in notes.getvalue()
    assert out.getvalue() == ""


def test_a_log_of_unknown_length_shows_what_was_read() -> None:
    reading, writing = os.pipe()
    notes = Terminal()
    report = Report(Screen(io.StringIO()), Screen(notes))
    with opened(f"/dev/fd/{reading}") as source, report.progress(source) as moved:
        moved()
    os.close(reading)
    os.close(writing)
    assert "0 bytes" in notes.getvalue()


def test_without_a_terminal_nothing_moves(tmp_path: Path) -> None:
    place = tmp_path / "auth.log"
    place.touch()
    out, notes = io.StringIO(), io.StringIO()
    report = Report(Screen(out), Screen(notes))
    with opened(str(place)) as source, report.progress(source) as moved:
        moved()
    report.note("1.0 s")
    assert (out.getvalue(), notes.getvalue()) == ("", "1.0 s\n")


def test_on_a_terminal_notes_go_where_the_story_goes() -> None:
    out, notes = Terminal(), Terminal()
    Report(Screen(out), Screen(notes)).note("1.0 s")
    assert "1.0 s" in out.getvalue()
    assert notes.getvalue() == ""


class ClosedPipe(io.StringIO):
    @override
    def write(self, s: str, /) -> int:
        raise BrokenPipeError


def test_a_closed_pipe_is_said_to_be_one() -> None:
    screen = Screen(ClosedPipe())
    with pytest.raises(BrokenPipeError):
        screen.print("nobody reads this")
    screen.print("and nobody is told again")
