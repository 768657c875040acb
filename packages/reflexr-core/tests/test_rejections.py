import copy
import pickle

import pytest
from pydantic import TypeAdapter, ValidationError

from reflexr.core.errors import ReflexrError
from reflexr.core.rejections import (
    MAX_PROBLEMS,
    DepthExceeded,
    DepthExceededRejection,
    Forbidden,
    InvalidState,
    NotFound,
    Rejected,
    Rejection,
    UnsupportedProtocol,
    ValidationFailed,
    rejected,
)

REJECTION: TypeAdapter[Rejection] = TypeAdapter(Rejection)
WIRE = [
    (NotFound("no run 'fir_1'"), {"type": "not_found", "message": "no run 'fir_1'"}),
    (InvalidState("it has ended"), {"type": "invalid_state", "message": "it has ended"}),
    (
        ValidationFailed("the rule is wrong", ["a: b", "c: d"]),
        {"type": "validation_failed", "message": "the rule is wrong", "errors": ["a: b", "c: d"]},
    ),
    (Forbidden("not yours"), {"type": "forbidden", "message": "not yours"}),
    (
        DepthExceeded(9, 8),
        {
            "type": "depth_exceeded",
            "message": "the event would be 9 deep in its causal chain, and the workspace's limit is 8",
            "depth": 9,
            "limit": 8,
        },
    ),
    (UnsupportedProtocol("not 'reflexr.v2'"), {"type": "unsupported_protocol", "message": "not 'reflexr.v2'"}),
]


@pytest.mark.parametrize(("exception", "wire"), WIRE, ids=lambda value: type(value).__name__)
def test_an_exception_carries_its_rejection_as_it_travels(exception: Rejected, wire: dict[str, object]) -> None:
    assert REJECTION.dump_python(exception.rejection, mode="json") == wire
    assert str(exception).startswith(str(wire["message"]))
    assert isinstance(exception, ReflexrError)


def test_a_traceback_shows_every_problem_that_was_found_once() -> None:
    assert str(ValidationFailed("the rule is wrong", ["a: b", "c: d"])) == "the rule is wrong: a: b; c: d"
    assert str(ValidationFailed("the rule is wrong")) == "the rule is wrong"


@pytest.mark.parametrize(("exception", "wire"), WIRE, ids=lambda value: type(value).__name__)
def test_a_received_rejection_becomes_the_exception_it_was(exception: Rejected, wire: dict[str, object]) -> None:
    received = rejected(REJECTION.validate_python({**wire, "since": "a later version"}))

    assert type(received) is type(exception)
    assert received.rejection == exception.rejection


@pytest.mark.parametrize("exception", [exception for exception, _ in WIRE], ids=lambda value: type(value).__name__)
def test_an_exception_is_copied_and_pickled_whole(exception: Rejected) -> None:
    for twin in (copy.copy(exception), pickle.loads(pickle.dumps(exception))):
        assert type(twin) is type(exception)
        assert twin.rejection == exception.rejection
        assert str(twin) == str(exception)


def test_a_received_message_is_kept_whatever_we_would_have_written() -> None:
    rejection = DepthExceededRejection(message="too deep", depth=9, limit=8)

    assert str(rejected(rejection)) == "too deep"
    assert str(pickle.loads(pickle.dumps(rejected(rejection)))) == "too deep"


def test_a_validation_failure_without_errors_names_its_message_as_the_one_problem() -> None:
    assert REJECTION.dump_python(ValidationFailed("no").rejection)["errors"] == ("no",)


def test_of_very_many_problems_the_first_are_told_and_the_rest_counted() -> None:
    errors = [f"events.{place}: no" for place in range(MAX_PROBLEMS + 1)]
    assert ValidationFailed("some are not valid", errors[:-1]).errors == tuple(errors[:-1])
    told = ValidationFailed("some are not valid", errors).errors
    assert told == (*errors[:99], "and 2 more")
    assert ValidationFailed("some are not valid", told).errors == told


def test_a_refusal_that_quotes_a_lone_surrogate_can_still_be_sent() -> None:
    exception = ValidationFailed("no \ud800", ["at \udfff"])

    assert b"no \\\\ud800" in REJECTION.dump_json(exception.rejection)
    assert b"at \\\\udfff" in REJECTION.dump_json(exception.rejection)


def test_a_rejection_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValidationError, match="not_found"):
        REJECTION.validate_python({"type": "teapot", "message": "short and stout"})
