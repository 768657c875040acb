"""Fields of events: the path that names one, its value in a payload, and whether a class can have it."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, cast, override

from pydantic import BaseModel, StringConstraints
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from reflexr.core.names import Refusal

FIELD_PATTERN: Final = r"^[^.\x00]+(\.[^.\x00]+)*$"
MAX_FIELD: Final = 255
"""The longest field path, in characters."""

type FieldPath = Annotated[
    str,
    StringConstraints(strict=True, pattern=FIELD_PATTERN, max_length=MAX_FIELD),
    Refusal(
        "field",
        "A field is its name, or the names on the way to it with dots between, such as 'labels.env': "
        "1 to 255 characters, with no NUL and no lone surrogate",
    ),
]
"""Names a field of an event: the keys of its JSON with dots between, such as `severity` or `labels.env`."""

MISSING: Final = object()
"""Stands for the value of a field that is not there."""


def reader(path: str) -> Callable[[Mapping[str, Any]], Any]:
    """Returns a function that gives a payload's value at the path, or `MISSING`."""
    first, *rest = path.split(".")
    if not rest:
        return lambda payload: payload.get(first, MISSING)

    def read(payload: Mapping[str, Any]) -> Any:
        value: Any = payload.get(first, MISSING)
        for key in rest:
            if not isinstance(value, dict):
                return MISSING
            value = cast("dict[str, Any]", value).get(key, MISSING)
        return value

    return read


def has_field(event_class: type[BaseModel], path: str) -> bool:
    """Whether an event of the class can have the field, as far as the class's JSON Schema tells."""
    schema = _known_schema(event_class)
    return _reaches(schema, schema.get("$defs", {}), path.split("."))


def field_names(event_class: type[BaseModel]) -> list[str]:
    """Returns the names of the class's fields in JSON that a path can name, but for `type`."""
    return [name for name in _known_schema(event_class).get("properties", {}) if name != "type" and "." not in name]


def _known_schema(event_class: type[BaseModel]) -> Mapping[str, Any]:
    try:
        return _schema(event_class)
    except PydanticUserError:
        # A field with no JSON Schema, or a reference that is not defined yet: it may hold anything.
        return {}


@cache
def _schema(event_class: type[BaseModel]) -> Mapping[str, Any]:
    return event_class.model_json_schema(mode="serialization", schema_generator=_QuietSchema)


class _QuietSchema(GenerateJsonSchema):
    """Says nothing about a default that JSON cannot hold, which is nothing to the fields there are."""

    @override
    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        pass


def _reaches(
    schema: Any, definitions: Mapping[str, Any], path: list[str], followed: frozenset[str] = frozenset()
) -> bool:
    if not path or not isinstance(schema, dict):
        return not path or schema is True
    schema = cast("dict[str, Any]", schema)
    if reference := schema.get("$ref"):
        # A type may be a choice with itself in it: what it reaches is reached by the other choices.
        known = definitions[reference.rpartition("/")[2]]
        return reference not in followed and _reaches(known, definitions, path, followed | {reference})
    branches = [branch for keyword in ("anyOf", "oneOf", "allOf") for branch in schema.get(keyword, ())]
    if branches:
        return any(_reaches(branch, definitions, path, followed) for branch in branches)
    if schema.get("type", "object") != "object":
        return False
    if "type" not in schema and "properties" not in schema:
        return "enum" not in schema and "const" not in schema
    first, *rest = path
    if first in (properties := schema.get("properties", {})):
        return _reaches(properties[first], definitions, rest)
    others: Iterable[Any] = (schema.get("additionalProperties", False), *schema.get("patternProperties", {}).values())
    return any(_reaches(other, definitions, rest) for other in others if other is not False)
