from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from pydantic import Field, JsonValue, model_serializer

from reflexr.core.actors import EvaluatorActor, UserActor
from reflexr.core.envelopes import Causation
from reflexr.core.errors import FeedbackDefinitionError
from reflexr.core.events import DEFAULT_REGISTRY
from reflexr.core.facts import FeedbackGiven
from reflexr.core.feedback import FEEDBACK_TYPES, Feedback, feedback_given, parse_feedback
from reflexr.core.rejections import NotFound, Rejected, ValidationFailed, ValidationFailedRejection
from reflexr.core.targets import ChainTarget, FiringTarget, RunTarget, Target


class Triage(Feedback, name="triage", targets={"run"}):
    correct: bool
    severity: Literal["low", "high", "critical"]
    reason: str | None = None
    seen_at: datetime | None = None


class UsefulAlert(Feedback, targets={"firing", "chain"}):
    score: float = Field(alias="the score")


class Verdict(Feedback, abstract=True, targets={"run"}):
    confidence: float


class SafetyVerdict(Verdict):
    safe: bool


class Rating[T](Feedback, name="rating", targets={"run"}):
    value_given: T


class Plain(Feedback, targets={"run"}):
    value: int
    name: str
    type: str
    targets: list[str]


def value_of(feedback: Feedback, target: Target) -> JsonValue:
    ada = UserActor(id="ada")
    return feedback_given(feedback, target, event_id="evt_1", actor=ada, correlation_id="evt_0").payload["value"]


def errors_of(rejected: Rejected) -> tuple[str, ...]:
    assert isinstance(rejected.rejection, ValidationFailedRejection)
    return rejected.rejection.errors


def test_a_type_is_registered_by_its_name() -> None:
    assert FEEDBACK_TYPES["triage"] is Triage
    assert Triage.feedback_type == "triage"
    assert Triage.feedback_targets == {"run"}


def test_a_type_without_a_name_has_its_class_name_in_snake_case() -> None:
    assert FEEDBACK_TYPES["useful_alert"] is UsefulAlert


def test_a_type_has_its_bases_fields_and_targets() -> None:
    assert FEEDBACK_TYPES["safety_verdict"] is SafetyVerdict
    assert SafetyVerdict.feedback_targets == {"run"}
    assert "verdict" not in FEEDBACK_TYPES


def test_a_parametrized_type_is_no_further_type() -> None:
    assert isinstance(Rating[int](value_given=3), Rating)
    assert FEEDBACK_TYPES["rating"] is Rating


def test_a_value_is_validated_as_json() -> None:
    feedback = parse_feedback("triage", {"correct": True, "severity": "high", "seen_at": "2026-01-02T03:04:05Z"})

    assert feedback == Triage(correct=True, severity="high", seen_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


def test_a_value_is_read_and_written_by_its_aliases() -> None:
    feedback = parse_feedback("useful_alert", {"the score": 0.5})

    assert value_of(feedback, FiringTarget(firing_id="fir_1")) == {"the score": 0.5}


def test_a_type_names_its_fields_as_it_likes() -> None:
    value: JsonValue = {"value": 1, "name": "n", "type": "t", "targets": ["x"]}

    assert value_of(parse_feedback("plain", value), RunTarget(run_id="fir_1")) == value


def test_an_unknown_type_is_not_found_and_the_known_ones_are_named() -> None:
    with pytest.raises(NotFound, match=r"no feedback type 'triages': .*'triage'"):
        parse_feedback("triages", {})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"severity": "high"}, "correct: Field required"),
        ({"correct": True, "severity": "odd"}, "severity: Input should be"),
        ({"correct": True, "severity": "high", "by": "me"}, "by: Extra inputs are not permitted"),
    ],
)
def test_a_value_that_the_type_refuses_fails_validation_with_the_place(
    value: dict[str, JsonValue], problem: str
) -> None:
    with pytest.raises(ValidationFailed, match="no valid 'triage'") as refused:
        parse_feedback("triage", value)

    assert [error for error in errors_of(refused.value) if error.startswith(problem)]


@pytest.mark.parametrize("value", [float("nan"), "\ud800"])
def test_a_value_that_json_cannot_hold_fails_validation(value: JsonValue) -> None:
    with pytest.raises(ValidationFailed, match="JSON"):
        parse_feedback("triage", {"correct": True, "severity": "high", "reason": value})


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_feedback_that_json_cannot_hold_cannot_be_given(score: float) -> None:
    feedback = UsefulAlert.model_validate({"the score": score})

    with pytest.raises(ValidationFailed, match="JSON cannot hold"):
        value_of(feedback, FiringTarget(firing_id="fir_1"))


def test_feedback_that_serializes_to_no_object_cannot_be_given() -> None:
    class OneWord(Feedback, targets={"run"}):
        @model_serializer
        def _word(self) -> str:
            return "yes"

    with pytest.raises(ValidationFailed, match="serializes to no object"):
        value_of(OneWord(), RunTarget(run_id="fir_1"))


def test_feedback_becomes_a_fact_in_its_targets_chain() -> None:
    actor = EvaluatorActor(name="judge", version="2")
    causation = Causation(firing_id="fir_2", run_id="fir_2", depth=2)

    draft = feedback_given(
        Triage(correct=False, severity="low"),
        RunTarget(run_id="fir_1"),
        event_id="evt_1",
        actor=actor,
        correlation_id="evt_0",
        causation=causation,
    )

    assert (draft.id, draft.actor, draft.correlation_id, draft.causation) == ("evt_1", actor, "evt_0", causation)
    assert draft.payload == {
        "type": "reflexr:feedback_given",
        "feedback_type": "triage",
        "target": {"kind": "run", "run_id": "fir_1"},
        "value": {"correct": False, "severity": "low", "reason": None, "seen_at": None},
    }
    assert isinstance(DEFAULT_REGISTRY.parse(draft.payload), FeedbackGiven)


@pytest.mark.parametrize("target", [FiringTarget(firing_id="fir_1"), ChainTarget(correlation_id="evt_1")])
def test_feedback_is_given_only_on_the_kinds_its_type_names(target: Target) -> None:
    feedback = Triage(correct=True, severity="low")

    with pytest.raises(ValidationFailed, match=f"'triage' cannot be given on a {target.kind}") as refused:
        feedback_given(feedback, target, event_id="evt_1", actor=UserActor(id="ada"), correlation_id="evt_0")

    assert errors_of(refused.value) == (f"target.kind: 'triage' is given on 'run', not on {target.kind!r}",)


def no_targets() -> type[Feedback]:
    class Untargeted(Feedback):
        pass

    return Untargeted


def empty_targets() -> type[Feedback]:
    class Untargeted(Feedback, targets=()):
        pass

    return Untargeted


def text_for_targets() -> type[Feedback]:
    targets: Any = "run"

    class Untargeted(Feedback, targets=targets):
        pass

    return Untargeted


def unknown_target() -> type[Feedback]:
    targets: Any = {"run", "walk"}

    class Untargeted(Feedback, targets=targets):
        pass

    return Untargeted


def bad_name() -> type[Feedback]:
    class Named(Feedback, name="Not a name", targets={"run"}):
        pass

    return Named


def name_with_a_line_break() -> type[Feedback]:
    class Named(Feedback, name="triage_\n", targets={"run"}):
        pass

    return Named


def taken_name() -> type[Feedback]:
    class Triage2(Feedback, name="triage", targets={"run"}):
        pass

    return Triage2


def named_base() -> type[Feedback]:
    class Base(Feedback, abstract=True, name="base"):
        pass

    return Base


def extra_fields() -> type[Feedback]:
    class Open(Feedback, targets={"run"}, extra="allow"):
        pass

    return Open


def two_aliases() -> type[Feedback]:
    class Aliased(Feedback, targets={"run"}):
        score: int = Field(validation_alias="given")

    return Aliased


@pytest.mark.parametrize(
    ("define", "problem"),
    [
        (no_targets, "say what it can be given on"),
        (empty_targets, r"targets=\(\) has to be a set of any of 'chain', 'firing', 'run'"),
        (text_for_targets, "targets='run' has to be a set"),
        (unknown_target, "has to be a set of any of"),
        (bad_name, "'Not a name' is not a feedback type's name"),
        (name_with_a_line_break, r"'triage_\\n' is not a feedback type's name"),
        (taken_name, "the feedback type 'triage' is already Triage"),
        (named_base, "an abstract base has no name="),
        (extra_fields, "refuses the fields it does not have"),
        (two_aliases, "score is read as 'given' and written as 'score'"),
    ],
)
def test_a_class_that_can_be_no_type_is_refused_where_it_is_defined(
    define: Callable[[], type[Feedback]], problem: str
) -> None:
    known = dict(FEEDBACK_TYPES)

    with pytest.raises(FeedbackDefinitionError, match=problem):
        define()

    assert known == FEEDBACK_TYPES


def test_feedback_is_immutable() -> None:
    feedback: Any = Triage(correct=True, severity="low")

    with pytest.raises(ValueError, match="frozen"):
        feedback.correct = False
