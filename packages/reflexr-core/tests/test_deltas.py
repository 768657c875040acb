from typing import Any

import pytest
from pydantic import ValidationError

from reflexr.core.deltas import Delta

VALUES = {"run_id": "fir_1", "rule": "ops:a", "attempt": 1, "number": 1, "kind": "text", "part": 0, "text": "Hel"}


def test_a_delta_says_whose_it_is_and_what_it_is_a_piece_of() -> None:
    delta = Delta.model_validate({**VALUES, "kind": "tool_call", "tool": "look_up", "lost": 2})

    assert Delta.model_validate_json(delta.model_dump_json()) == delta
    assert (Delta.model_validate(VALUES).tool, Delta.model_validate(VALUES).lost) == (None, 0)


def test_a_newer_servers_delta_is_read() -> None:
    assert Delta.model_validate({**VALUES, "took": "PT1S"}) == Delta.model_validate(VALUES)


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": 0},
        {"number": 0},
        {"part": -1},
        {"lost": -1},
        {"kind": "sound"},
        {"rule": "a"},
        {"run_id": ""},
        {"text": "\ud800"},
        {"text": None},
        {"tool": "\udfff"},
    ],
    ids=str,
)
def test_what_is_no_delta_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Delta.model_validate({**VALUES, **change})
