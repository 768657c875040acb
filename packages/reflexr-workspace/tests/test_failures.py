from typing import Any, override

import pytest

from reflexr.workspace import RunFailure
from reflexr.workspace.failures import MAX_ERROR, MAX_REASON, Failure, describe, failure_of


class Mute(Exception):
    @override
    def __str__(self) -> str:
        raise RuntimeError("no text")


def a_failure(message: Any, **options: Any) -> RunFailure:
    """What an action raises that no type checker has seen."""
    return RunFailure(message, **options)


def test_a_run_failure_keeps_its_reason_and_whether_it_is_for_good() -> None:
    error = RunFailure("blocked", reason="guardrail_blocked", permanent=True)

    assert failure_of(error) == Failure("blocked", "guardrail_blocked", permanent=True)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such host"), "ValueError: no such host"),
        (ValueError(), "ValueError"),
        (Mute(), "Mute: its text cannot be had"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError("\ud800"), r"ValueError: \ud800"),
    ],
)
def test_any_other_exception_is_described_by_its_type_and_text(error: BaseException, text: str) -> None:
    assert failure_of(error) == Failure(text)


def test_a_text_without_end_is_cut() -> None:
    text = describe(ValueError("x" * 100_000))

    assert len(text) == MAX_ERROR
    assert text.endswith("…")


class Unprepared(RunFailure):
    def __init__(self) -> None:
        """Leaves out what its base does."""


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (a_failure(ValueError("no such host")), Failure("no such host")),
        (a_failure(Mute()), Failure("its text cannot be had")),
        (a_failure("blocked", reason=451), Failure("blocked", "451")),
        (a_failure("blocked", permanent="yes"), Failure("blocked", permanent=True)),
        (a_failure(""), Failure("RunFailure")),
        (Unprepared(), Failure("Unprepared")),
    ],
)
def test_a_run_failure_that_holds_something_else_is_recorded_all_the_same(error: Any, failure: Failure) -> None:
    assert failure_of(error) == failure


def test_a_reason_without_end_is_cut() -> None:
    assert len(failure_of(RunFailure("blocked", reason="x" * 10_000)).reason or "") == MAX_REASON
