from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from reflexr.core.integers import Place, Positive

POSITIVE: TypeAdapter[int] = TypeAdapter(Positive)
PLACE: TypeAdapter[int] = TypeAdapter(Place)


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("3.0", 3), ("3e2", 300), ("9223372036854775807", 2**63 - 1)])
def test_a_whole_number_is_read_however_json_writes_it(text: str, number: int) -> None:
    read = POSITIVE.validate_json(text)

    assert (read, type(read)) == (number, int)


@pytest.mark.parametrize("value", ["3", True, False, None, 3.5, float("nan"), float("inf"), [3], {}])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="A whole number is wanted, such as 3"):
        POSITIVE.validate_python(value)


@pytest.mark.parametrize("value", [0, -1, -1.0])
def test_a_positive_number_is_at_least_1(value: float) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        POSITIVE.validate_python(value)


def test_a_place_is_0_to_the_last_of_a_log() -> None:
    assert PLACE.validate_python(0) == 0
    assert PLACE.validate_python(2**63 - 1) == 2**63 - 1
    for value in (-1, 2**63):
        with pytest.raises(ValidationError, match="equal to"):
            PLACE.validate_python(value)
