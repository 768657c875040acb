import gzip
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest

from oncall.cli import main
from oncall.rules import RULES
from oncall.story import Story
from reflexr.core import Rule

SAMPLE = str(files("oncall") / "samples" / "auth.log")
COMMAND = (sys.executable, "-m", "oncall")

ACCEPTED = "Mar  3 10:00:00 gate sshd[1]: Accepted password for alice from 192.0.2.1 port 1 ssh2\n"
OTHER = "Mar  3 10:00:00 gate sshd[1]: hello\n"
FAILED = "Mar  3 10:00:0{} gate sshd[1]: Failed password for root from 192.0.2.1 port 1 ssh2\n"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    place = tmp_path / "auth.log"
    place.write_text("".join(FAILED.format(second) for second in range(5)))
    return place


def test_the_sample_shows_each_rule_its_run_and_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown, noted = capsys.readouterr()
    assert shown.startswith("reading the sample auth.log\n")
    for rule in ("brute-force", "guessed", "gave-up"):
        assert f" {rule} " in shown
    for action in ("block             ✓ blocked ", "page              ✓ page 1 ", "close             ✓ case closed, "):
        assert f"└ {action}" in shown
    assert "\x1b" not in shown
    assert "lines/s" in noted
    assert "make demo LOG=" in noted


def test_the_same_log_looks_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--memory", SAMPLE])
    first = capsys.readouterr().out
    main(["--memory", SAMPLE])
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("arguments", [[], [SAMPLE]])
def test_a_log_without_anything_new_is_told_from_what_is_kept(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    main(arguments)
    first = capsys.readouterr().out
    assert main(arguments) == 0
    again = capsys.readouterr().out
    for added in (
        "continues after Mar 3 09:31:44: 16 failures and 3 acceptances were here already\n",
        "nothing new since the last time; this is what the log holds\n",
        "; none of them this time",
    ):
        assert added in again
        again = again.replace(added, "")
    assert again == first


def test_what_came_since_is_told_and_everything_is_counted(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    main([str(log)])
    capsys.readouterr()
    with log.open("a") as more:
        more.write(ACCEPTED.replace("10:00:00", "10:00:30"))
    assert main([str(log)]) == 0
    shown = capsys.readouterr().out
    assert "continues after Mar 3 10:00:04: 5 failures and 0 acceptances were here already\n" in shown
    assert [row.split()[2] for row in shown.splitlines() if row.startswith("10:00:")] == ["192.0.2.1", "guessed"]
    assert "published  5 failures, 1 acceptance; 1 of them this time\n" in shown
    assert "oncall:brute-force      1  1 succeeded\n" in shown
    assert "oncall:guessed          1  1 succeeded\n" in shown


def test_each_log_is_kept_apart(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    other = log.with_name("other.log")
    other.write_bytes(log.read_bytes())
    main([str(log)])
    first = capsys.readouterr().out
    main([str(other)])
    assert capsys.readouterr().out == first.replace(str(log), str(other))


def test_a_database_can_be_named(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    database = tmp_path / "new" / "a?b#c%20.db"
    main(["--database", str(database), str(log)])
    assert f"Kept in {database}: the next time, it continues.\n" in capsys.readouterr().err
    main(["--database", str(database), str(log)])
    assert "nothing new" in capsys.readouterr().out
    assert sorted(one.name for one in database.parent.iterdir()) == [database.name, f"{database.name}.lock"]
    assert not (tmp_path / "state").exists()


def test_memory_keeps_nothing(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    main(["--memory", str(log)])
    shown, noted = capsys.readouterr()
    assert "oncall:brute-force      1  1 succeeded" in shown
    assert "Kept" not in noted
    assert list(tmp_path.iterdir()) == [log]


@pytest.mark.parametrize("name", ["", "\0", "auth.log", "auth.log/oncall.db"])
def test_what_can_be_no_database_is_an_error(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path, name: str
) -> None:
    assert main(["--database", f"{tmp_path}/{name}", str(log)]) == 2
    shown, noted = capsys.readouterr()
    assert shown == ""
    assert noted.startswith("oncall: ")
    assert " cannot be the database: " in noted
    assert noted.count("\n") == 1


def test_a_database_that_fails_is_an_error(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    database = tmp_path / "oncall.db"
    main(["--database", str(database), str(log)])
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TABLE reflexr_events")
    capsys.readouterr()
    assert main(["--database", str(database), str(log)]) == 2
    assert capsys.readouterr().err.startswith("oncall: the database failed: ")


def test_a_log_of_ones_own_is_read(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    assert main([str(log)]) == 0
    shown = capsys.readouterr().out
    assert "5 failures in 4 s as root" in shown
    assert "oncall:brute-force      1  1 succeeded" in shown


def test_quiet_prints_the_summary_alone(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    assert main(["--quiet", str(log)]) == 0
    assert capsys.readouterr().out.startswith("\nsummary\n")


def test_the_year_of_a_log_can_be_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "auth.log"
    place.write_text(FAILED.format(0).replace("Mar  3", "Feb 29"))
    main(["--memory", "--year", "2023", str(place)])
    assert "skipped    1 unreadable line\n" in capsys.readouterr().out
    main(["--memory", "--year", "2024", str(place)])
    assert "skipped    nothing\n" in capsys.readouterr().out


@pytest.mark.parametrize("year", ["1969", "2200", "99", "next", "²⁰²⁴"])
def test_what_is_no_year_is_refused(capsys: pytest.CaptureFixture[str], year: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--year", year])
    assert ended.value.code == 2
    assert f"{year!r} is no year from 1970 to 2199" in capsys.readouterr().err


def test_the_rules_can_be_printed_as_the_data_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rules"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [Rule.model_validate_json(json.dumps(rule)) for rule in printed] == list(RULES)


def test_output_may_go_to_any_stream(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["--quiet", str(log)]) == 0
    assert stream.getvalue().startswith("\nsummary\n")


def test_a_log_that_cannot_be_read_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "missing.log"
    assert main([str(place)]) == 2
    shown, noted = capsys.readouterr()
    assert shown == ""
    assert noted == f"oncall: {str(place)!r} cannot be read: No such file or directory\n"


def test_no_name_is_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([""]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_log_that_breaks_off_is_told_as_far_as_it_goes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "auth.log.gz"
    place.write_bytes(gzip.compress(FAILED.format(0).encode())[:-8])
    assert main([str(place)]) == 2
    shown, noted = capsys.readouterr()
    assert "1 failure as root" in shown
    assert "published  1 failure" in shown
    assert "cannot be read past line 1" in noted


def test_what_the_terminal_cannot_show_does_not_end_the_story(log: Path) -> None:
    done = subprocess.run(
        [*COMMAND, str(log)], env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=True
    )
    assert b"? brute-force" in done.stdout


def test_who_stops_reading_ends_it_quietly(log: Path) -> None:
    log.write_text((ACCEPTED + OTHER) * 20_000)
    with subprocess.Popen([*COMMAND, str(log)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == f"reading {log}\n".encode()
        running.stdout.close()
        noted = running.stderr.read()
    assert (running.returncode, noted) == (0, b"")


def check_interrupted(running: "subprocess.Popen[bytes]") -> None:
    """Interrupts it once it has told something, and checks that it tells the rest of its story."""
    assert running.stdout is not None
    assert any(b"logged in as alice" in row for row in running.stdout)
    running.send_signal(signal.SIGINT)
    shown, noted = running.communicate()
    assert running.returncode == 130
    assert b"published  0 failures, 1 acceptance" in shown
    assert noted.endswith(b"oncall: interrupted\n")
    assert b"Traceback" not in noted


def test_ctrl_c_ends_a_log_that_is_waited_for_and_tells_what_there_was(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with (
        subprocess.Popen([*COMMAND, str(fifo)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running,
        fifo.open("w") as writing,
    ):
        # More than a batch, so that it is told, and then nothing more: the reader waits for the rest.
        writing.write(ACCEPTED + OTHER * 1_500)
        writing.flush()
        check_interrupted(running)


def test_ctrl_c_ends_a_long_log_where_it_is(log: Path) -> None:
    log.write_text(ACCEPTED + OTHER * 200_000)
    with subprocess.Popen([*COMMAND, str(log)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        check_interrupted(running)


def test_a_second_ctrl_c_ends_everything(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_story: Story, _news: object) -> None:
        signal.raise_signal(signal.SIGINT)

    log.write_text(ACCEPTED)
    monkeypatch.setattr(Story, "tell", interrupt)
    # Whoever runs the tests may have it ignored, as a shell does for what it runs in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main([str(log)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    shown, noted = capsys.readouterr()
    assert "published" not in shown
    assert noted.endswith("oncall: interrupted\n")
