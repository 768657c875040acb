"""Values from outside that have to be JSON: outputs, checkpoints, provenance.

What JSON values mean to a rule, their canonical text and their equality, is in `reflexr.core.canonical`.
"""

from typing import Final, cast

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from reflexr.core.canonical import check_json, check_written
from reflexr.core.errors import NotJsonError
from reflexr.core.events import problems

_JSON: Final[TypeAdapter[JsonValue]] = TypeAdapter(JsonValue)


def json_value(value: object, place: str, depth: int = 0) -> JsonValue:
    """Returns a copy of a JSON value, exactly as it is read back once it is stored.

    Args:
        value: `None`, a bool, an int, a float, a str, or a list or dict of them.
        place: What the value is, for the message.
        depth: How many lists and objects will be around it where it is stored.

    Raises:
        NotJsonError: The value is none of these, is not finite, holds a lone surrogate or an integer of more than 4,300
            digits, or nests deeper than `MAX_DEPTH`.
    """
    if value is None:
        return None
    check_json(value, place, depth)
    try:
        return cast("JsonValue", from_json(to_json(_JSON.validate_python(value))))
    except ValidationError as error:
        raise NotJsonError(f"{place} is not JSON: {'; '.join(problems(error))}") from error


def model_value(model: BaseModel, place: str, depth: int = 0) -> JsonValue:
    """Returns a model's JSON value, exactly as it is read back once it is stored.

    Args:
        model: Any model; its aliases are used.
        place: What the model is, for the message.
        depth: How many lists and objects will be around it where it is stored.

    Raises:
        NotJsonError: A field holds NaN, an infinity, a lone surrogate, an integer of more than 4,300 digits, or
            something with no JSON form, or the model nests deeper than `MAX_DEPTH`.
    """
    try:
        text = model.model_dump_json(by_alias=True, warnings="error")
        value = cast("JsonValue", from_json(text))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise NotJsonError(f"{place} cannot be written as JSON: {error}") from error
    check_written(text, [value], lambda: [model.model_dump(by_alias=True)], place, depth)
    return value


def json_text(text: str) -> str:
    """Returns a text with its lone surrogates escaped, so that JSON can hold it.

    An error's message quotes what went wrong, and must not itself go wrong.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
