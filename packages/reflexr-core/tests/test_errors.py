import pytest

from reflexr.core import (
    EventDefinitionError,
    FeedbackDefinitionError,
    InvalidEventError,
    NotJsonError,
    ReflexrError,
    RuleError,
)

from .shop import pickled


@pytest.mark.parametrize(
    "error", [EventDefinitionError, FeedbackDefinitionError, InvalidEventError, NotJsonError, RuleError]
)
def test_every_error_has_one_root(error: type[Exception]) -> None:
    assert issubclass(error, ReflexrError)


@pytest.mark.parametrize("error", [NotJsonError, RuleError])
def test_a_refused_value_is_a_value_error_to_those_who_know_nothing_of_reflexr(error: type[Exception]) -> None:
    assert issubclass(error, ValueError)


def test_an_invalid_event_is_told_with_its_type_and_every_problem() -> None:
    error = InvalidEventError("shop:order", ["a: no", "b: no"])

    assert str(error) == "the stored event is no longer a valid 'shop:order': a: no; b: no"
    assert (error.event_type, error.errors) == ("shop:order", ("a: no", "b: no"))


def test_a_rule_error_tells_each_problem_on_a_line() -> None:
    error = RuleError(["a: no", "b: no"])

    assert str(error) == "a: no\nb: no"
    assert error.problems == ("a: no", "b: no")


@pytest.mark.parametrize("error", [InvalidEventError("shop:order", ["a: no"]), RuleError(["a: no", "b: no"])])
def test_an_error_survives_the_way_from_another_process(error: ReflexrError) -> None:
    copied = pickled(error)

    assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))
