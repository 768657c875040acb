"""What a window and a query take in, for storages that have nothing better than to look."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

from reflexr.core import Envelope, Run
from reflexr.workspace import LogWindow, RunQuery

from .plant import START, a_run, draft

LOG = [
    Envelope.placed(
        draft(f"e{seq}", kind="plant:opened" if seq % 3 == 0 else "plant:alarm"),
        seq=seq,
        ts=START + timedelta(seconds=seq),
        workspace_id="plant",
    )
    for seq in range(1, 10)
]
RUNS = [a_run(f"r{seq}", seq=seq, status="pending" if seq % 2 else "succeeded") for seq in range(9, 0, -1)]


def seqs(window: LogWindow, log: Iterable[Envelope] = LOG) -> list[int]:
    return [envelope.seq for envelope in window.select(log)]


def ids(query: RunQuery, runs: Iterable[Run] = RUNS) -> list[str]:
    return [run.id for run in query.select(runs)]


def breaking_off[Row](rows: list[Row], after: int) -> Iterator[Row]:
    yield from rows[:after]
    raise AssertionError(f"more than {after} were taken")


def test_a_window_takes_in_what_is_between_its_ends() -> None:
    assert seqs(LogWindow()) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert seqs(LogWindow(after_seq=3, before_seq=7)) == [4, 5, 6]
    assert seqs(LogWindow(after_seq=7, before_seq=3)) == []
    assert seqs(LogWindow(after_seq=9)) == []
    assert seqs(LogWindow(before_seq=0)) == []


def test_a_window_takes_in_the_types_that_it_names() -> None:
    assert seqs(LogWindow(types=frozenset({"plant:opened"}))) == [3, 6, 9]
    assert seqs(LogWindow(types=frozenset())) == []


def test_a_window_takes_the_first_or_the_last() -> None:
    opened = frozenset({"plant:opened"})
    assert seqs(LogWindow(limit=2)) == [1, 2]
    assert seqs(LogWindow(limit=2, types=opened)) == [3, 6]
    assert seqs(LogWindow(last=2, types=opened, before_seq=9)) == [3, 6]
    assert seqs(LogWindow(limit=0)) == seqs(LogWindow(last=0)) == []
    assert seqs(LogWindow(last=99)) == seqs(LogWindow(limit=99)) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_window_can_look_at_a_part_of_the_log() -> None:
    assert seqs(LogWindow(after_seq=5, before_seq=8), LOG[5:]) == [6, 7]


def test_a_window_looks_no_further_than_it_has_to() -> None:
    assert seqs(LogWindow(limit=2), breaking_off(LOG, 2)) == [1, 2]
    assert seqs(LogWindow(before_seq=3), breaking_off(LOG, 3)) == [1, 2]
    assert seqs(LogWindow(before_seq=3, last=1), breaking_off(LOG, 3)) == [2]


def test_a_query_takes_the_runs_that_meet_all_of_it() -> None:
    assert ids(RunQuery(statuses=frozenset({"pending"}))) == ["r9", "r7", "r5", "r3", "r1"]
    assert ids(RunQuery(rules=frozenset({RUNS[0].rule}), scope_key=RUNS[0].scope_key, limit=2)) == ["r9", "r8"]
    assert ids(RunQuery(rules=frozenset({"plant:other"}))) == []
    assert ids(RunQuery(rules=frozenset())) == ids(RunQuery(statuses=frozenset())) == []
    assert ids(RunQuery(scope_key="another")) == []


def test_a_query_looks_no_further_than_it_has_to() -> None:
    assert ids(RunQuery(statuses=frozenset({"pending"}), limit=2), breaking_off(RUNS, 3)) == ["r9", "r7"]
    assert ids(RunQuery(limit=0), breaking_off(RUNS, 0)) == []
