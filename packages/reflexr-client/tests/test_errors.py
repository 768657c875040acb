import pickle
from copy import copy

import pytest

from reflexr.client import ClientError, LogReset, Unauthorized, Unavailable, UnexpectedAnswer
from reflexr.core import ReflexrError

ERRORS = [
    ClientError("wrong"),
    Unauthorized("who are you"),
    Unavailable("gone", 3, "cmd_1"),
    UnexpectedAnswer("strange", 500),
    LogReset(41, 7),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_copied_and_pickled_with_all_that_it_says(error: ClientError) -> None:
    for again in (copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert vars(again) == vars(error)
        assert str(again) == str(error)


def test_every_error_is_one_of_reflexr_and_says_what_was_wrong() -> None:
    assert all(isinstance(error, ReflexrError) for error in ERRORS)
    assert [str(error) for error in ERRORS[:4]] == ["wrong", "who are you", "gone", "strange"]
    assert str(ERRORS[4]).startswith("the log ends at 7, before 41,")
