"""Whole numbers from outside, read as JSON has them: `3` and `3.0` are the same, `"3"` and `true` are none."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from reflexr.core.envelopes import MAX_SEQ


def whole(value: Any) -> Any:
    """Returns the int of a whole number.

    Raises:
        PydanticCustomError: The value is no number, or not whole.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise PydanticCustomError("whole_number", "A whole number is wanted, such as 3")


type Positive = Annotated[
    int,
    BeforeValidator(whole),
    Field(ge=1, le=MAX_SEQ),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_SEQ}),
]
"""A whole number, from 1 to 2^63-1."""

type Place = Annotated[
    int,
    BeforeValidator(whole),
    Field(ge=0, le=MAX_SEQ),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_SEQ}),
]
"""A place in a log as a client names it, from 1 to 2^63-1; 0 is before the first."""
