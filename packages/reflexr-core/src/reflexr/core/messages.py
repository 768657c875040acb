"""The bases of what travels: immutable, and members of unions that are told apart by one field."""

from typing import Final, override

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_DISCRIMINATORS: Final = frozenset({"kind", "ok", "type"})


class Message(BaseModel):
    """The base of what a server sends: fields that it does not have are ignored, as a newer server may send more.

    In JSON the field that tells the members of a union apart is required; in Python it has its one value by itself.
    """

    model_config = ConfigDict(frozen=True)

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        model = handler.resolve_ref_schema(described)
        properties = model.get("properties", {})
        required = _DISCRIMINATORS.intersection(properties).union(model.get("required", ()))
        if required:
            model["required"] = [name for name in properties if name in required]
        return described


class Request(Message):
    """The base of what a client sends: fields that it does not have are refused."""

    model_config = ConfigDict(extra="forbid")
