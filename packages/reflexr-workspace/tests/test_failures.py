from typing import override

import pytest

from reflexr.workspace import RunFailure
from reflexr.workspace.failures import MAX_ERROR, Failure, describe, failure_of


class Mute(Exception):
    @override
    def __str__(self) -> str:
        raise RuntimeError("no text")


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
