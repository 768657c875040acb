"""The JSON Schemas (2020-12) of a rule and of every frame, generated from the models.

They are for people, agents and clients in any language, so they say in words what each field is. The files are in the
distribution's folder `schemas`.
"""

import re
from typing import Any, Final, cast, override

from pydantic import JsonValue, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

from reflexr.core.frames import ClientFrame, ServerFrame
from reflexr.core.rules import Rule

type JsonSchema = dict[str, JsonValue]


def rule_schema() -> JsonSchema:
    """Returns the JSON Schema of a rule.

    A JSON document is valid exactly when `Rule` accepts it, as far as JSON Schema can say it: that a regular expression
    compiles, that a number fits a float and how deep values nest are `Rule`'s alone to say.
    """
    schema = _readable(Rule.model_json_schema(schema_generator=_Generator))
    return {"$schema": _DIALECT, "$id": "urn:reflexr:v1:rule", **schema}


def frames_schema() -> JsonSchema:
    """Returns the JSON Schema of every frame of `reflexr.v1`: what a client sends, and what a server does.

    `#/$defs/ClientFrame` and `#/$defs/ServerFrame` are the two by themselves.
    """
    adapters: list[tuple[str, Any, TypeAdapter[Any]]] = [
        ("client", "validation", TypeAdapter(ClientFrame)),
        ("server", "serialization", TypeAdapter(ServerFrame)),
    ]
    roots, definitions = TypeAdapter.json_schemas(adapters, schema_generator=_Generator)
    schema = _readable({"title": "Frame", "oneOf": list(roots.values()), **definitions})
    return {"$schema": _DIALECT, "$id": "urn:reflexr:v1:frames", **schema}


_DIALECT: Final = GenerateJsonSchema.schema_dialect


class _Generator(GenerateJsonSchema):
    """Leaves out a field's title, which only repeats its name."""

    @override
    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:
        return False


def _readable(schema: dict[str, Any]) -> JsonSchema:
    """Describes fields where they are, and leaves out what is OpenAPI's and not JSON Schema's."""
    for part in (schema, *schema["$defs"].values()):
        description = part.get("description", "")
        for field, text in _ATTRIBUTE.findall(description):
            if field in part.get("properties", {}):
                part["properties"][field].setdefault("description", _words(text))
        if description:
            part["description"] = _words(_FURTHER.split(description)[0])
        part.pop("discriminator", None)
    return cast("JsonSchema", schema)


_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""An entry of a docstring's section `Attributes:`."""

_FURTHER: Final = re.compile(r"\n\n(?:Attributes:\n|Write one )")
"""Where a docstring begins to be about the Python class."""


def _words(text: str) -> str:
    return " ".join(text.replace("`None`", "`null`").split())
