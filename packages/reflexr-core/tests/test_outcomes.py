from datetime import UTC, datetime
from typing import Final

import pytest
from pydantic import TypeAdapter, ValidationError

from reflexr.core.outcomes import Outcome, Published, PublishedMany, Recorded, RuleReplayed, RuleVersion, RunChanged
from reflexr.core.runs import Run
from reflexr.core.states import RuleProgress

OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)
RUN: Final = Run(
    id="fir_1",
    rule="ops:spike",
    generation=1,
    scope={},
    scope_key="[]",
    fired_seq=1,
    fired_at=datetime(2026, 1, 1, tzinfo=UTC),
    matched=(1,),
    correlation_id="evt_1",
    depth=1,
)
OUTCOMES: Final[list[Outcome]] = [
    Published(seq=1, id="evt_1", duplicate=False),
    PublishedMany(published=(Published(seq=1, id="evt_1", duplicate=True), Published(seq=2, id="b", duplicate=False))),
    Recorded(seq=2, id="evt_2"),
    RunChanged(run=RUN),
    RuleReplayed(rule="ops:spike", progress=RuleProgress("ops:spike", 2, 0, "hash", silent_through=9)),
    RuleVersion(rule="chat:spike", version=3, seq=7, duplicate=True),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.type)
def test_an_outcome_comes_back_as_it_was(outcome: Outcome) -> None:
    assert OUTCOME.validate_json(OUTCOME.dump_json(outcome)) == outcome


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.type)
def test_an_outcome_of_a_newer_server_is_read_without_what_is_new(outcome: Outcome) -> None:
    newer = {**OUTCOME.dump_python(outcome, mode="json"), "new": {"a": 1}}

    assert OUTCOME.validate_python(newer) == outcome


def test_an_outcome_says_what_it_is_of() -> None:
    assert [OUTCOME.dump_python(outcome, mode="json")["type"] for outcome in OUTCOMES] == [
        "published",
        "published_many",
        "recorded",
        "run",
        "rule",
        "rule_version",
    ]


def test_a_run_that_is_an_outcome_is_the_run_as_it_is_read() -> None:
    wire = OUTCOME.dump_python(RunChanged(run=RUN), mode="json")

    assert wire == {"type": "run", "run": RUN.model_dump(mode="json")}


def test_an_outcome_of_no_type_is_refused() -> None:
    with pytest.raises(ValidationError, match="published"):
        OUTCOME.validate_python({"type": "exploded"})
