import gzip
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncall.sources import MAX_LINE, Line, LogUnreadableError, identified, opened


def texts(path: Path | str) -> list[str]:
    with opened(str(path)) as source:
        return [line.text for line in source.lines()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "auth.log"


def test_a_log_is_its_lines_by_number(log: Path) -> None:
    log.write_bytes(b"one\r\ntwo\n\nlast")
    with opened(str(log)) as source:
        assert list(source.lines()) == [Line(1, "one"), Line(2, "two"), Line(3, ""), Line(4, "last")]
        assert source.position == source.size == 14


def test_a_log_knows_when_it_was_written(log: Path) -> None:
    log.touch()
    os.utime(log, (1_000_000_000, 1_000_000_000))
    with opened(str(log)) as source:
        assert source.written == datetime.fromtimestamp(1_000_000_000, UTC)


def test_bytes_that_are_no_text_are_escaped(log: Path) -> None:
    log.write_bytes(b"\xef\xbb\xbfone \xff\xfe\ntwo \0 zo\xc3\xab\n")
    assert texts(log) == ["one \\xff\\xfe", "two \0 zoë"]


def test_of_an_endless_line_the_rest_is_passed_over(log: Path) -> None:
    log.write_bytes(b"x" * (3 * MAX_LINE + 7) + b"\nnext\n" + b"y" * MAX_LINE)
    assert texts(log) == ["x" * MAX_LINE, "next", "y" * MAX_LINE]


def test_a_compressed_log_is_read_like_any_other(log: Path) -> None:
    log.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert texts(log) == ["one", "two"]


def test_a_log_that_breaks_off_gives_what_it_has_and_says_where(log: Path) -> None:
    whole = gzip.compress(b"".join(b"%d\n" % (number * 7919 % 10007) for number in range(20_000)))
    log.write_bytes(whole[: len(whole) // 2])
    got: list[Line] = []
    with opened(str(log)) as source, pytest.raises(LogUnreadableError) as raised:
        got.extend(source.lines())
    assert len(got) > 1_000
    assert f"{str(log)!r} cannot be read past line {len(got):,}" in str(raised.value)


def test_standard_input_is_a_log_too() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    kept = os.dup(0)
    try:
        os.dup2(reading, 0)
        before = datetime.now(UTC)
        with opened("-") as source:
            assert source.size is None
            assert timedelta() <= source.written - before < timedelta(minutes=1)
            assert [line.text for line in source.lines()] == ["one", "two"]
            assert source.position == 8
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reading)


@pytest.mark.parametrize(
    ("place", "reason"), [("missing.log", "No such file"), (".", "directory"), ("nul\0.log", "null")]
)
def test_what_cannot_be_opened_is_refused_with_its_name_and_the_reason(
    place: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LogUnreadableError) as raised, opened(place):
        pass
    assert repr(place) in str(raised.value)
    assert reason in str(raised.value)


@given(st.binary())
def test_no_bytes_are_too_much(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    log = tmp_path_factory.mktemp("logs") / "auth.log"
    log.write_bytes(b"x" + content)
    assert len(texts(log)) == len(content.removesuffix(b"\n").split(b"\n"))


def identity(place: Path | str) -> str:
    with opened(str(place)) as source:
        workspace_id, lines = identified(source)
        assert [line.number for line in lines] == list(range(1, len(texts(place)) + 1))
        return workspace_id


def test_a_file_is_the_same_log_as_long_as_it_is_at_its_place(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_text("one\n")
    known = identity(log)
    log.write_text("another\ntwo\n")
    assert identity(log) == known
    log.with_name("link.log").symlink_to(log)
    assert identity(log.with_name("link.log")) == known
    monkeypatch.chdir(log.parent)
    assert identity(log.name) == known
    log.with_name("other.log").write_text("one\n")
    assert identity(log.with_name("other.log")) != known


def test_a_file_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    odd = [Path(os.fsdecode(os.fsencode(tmp_path) + name)) for name in (b"/\xff", b"/\\xff")]
    for one in odd:
        one.touch()
    assert len(set(map(identity, odd))) == 2


@pytest.mark.parametrize(
    ("first", "second", "same"), [(b"1\n2", b"1\n3\n4", True), (b"1", b"2", False), (b"", b"", True)]
)
def test_a_stream_is_the_same_log_if_it_begins_with_the_same_line(first: bytes, second: bytes, same: bool) -> None:
    def streamed(content: bytes) -> str:
        reading, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
        with opened(f"/dev/fd/{reading}") as source:
            workspace_id, lines = identified(source)
            assert len(list(lines)) == len(content.splitlines())
        os.close(reading)
        return workspace_id

    assert (streamed(first) == streamed(second)) == same
