"""Outputs: what agents and graphs come to, as an action returns it."""

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from reflexr.workspace import Output


def output_of(value: Any) -> Output:
    """Returns a value as an action returns it: dataclasses, dates and whatever else pydantic writes, as their JSON.

    What has no JSON comes back as it is, and the reactor says what is wrong with it.
    """
    if isinstance(value, BaseModel):
        return value
    try:
        return to_jsonable_python(value, by_alias=True)
    except PydanticSerializationError:
        return value
