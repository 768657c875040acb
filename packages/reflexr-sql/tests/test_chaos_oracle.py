"""The oracle of the chaos notices: each history here differs in one thing from one that is as it must be."""

import asyncio

import pytest

from .chaos.episodes import counted
from .chaos.history import History
from .chaos.oracle import differences
from .histories import made
from .tampering import TAMPERS, Tamper


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return asyncio.run(made(tmp_path_factory.mktemp("chaos") / "journal"))


def test_a_history_as_it_must_be_differs_in_nothing_and_has_all_that_can_be_tampered_with(history: History) -> None:
    assert not differences(history)
    counts = counted(history)
    for what in ("runs retried", "runs resumed", "runs pending", "runs retrying", "runs dead_lettered"):
        assert counts[what]
    assert counts["events emitted by retried runs"]
    assert counts["evaluation errors"]
    for what in ("pauses", "pauses answered", "pauses over", "runs paused"):
        assert counts[what]


@pytest.mark.parametrize("tamper", TAMPERS, ids=lambda tamper: tamper.__name__)
def test_the_oracle_notices_and_says_what_differs(history: History, tamper: Tamper) -> None:
    found = differences(tamper(history))
    assert any(TAMPERS[tamper] in difference for difference in found), found
