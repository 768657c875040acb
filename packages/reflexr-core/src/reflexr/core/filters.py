"""Filters: which envelopes a rule looks at, as data.

A filter decides on one envelope alone. What types it can admit lives in `reflexr.core.type_sets`, how it is compiled
to a function in `reflexr.core.compiled`, and how it is written in Python in `reflexr.core.builder`.
"""

from typing import Annotated, Any, Final, Literal, NoReturn, Self, override

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, SchemaError, SchemaValidator
from pydantic_core.core_schema import (
    no_info_after_validator_function,
    no_info_before_validator_function,
    str_schema,
)

from reflexr.core.canonical import check_json
from reflexr.core.errors import NotJsonError
from reflexr.core.events import EventType
from reflexr.core.fields import FieldPath
from reflexr.core.messages import Request
from reflexr.core.names import Id

type Operator = Literal["eq", "ne", "lt", "le", "gt", "ge", "in", "contains", "matches", "exists"]
"""How a field's value is compared.

`eq` and `ne`: JSON's equality. `lt`, `le`, `gt`, `ge`: a number with a number or a string with a string, else false.
`in`: equal to one of a list. `contains`: an element of a list, or a substring of a string. `matches`: a regular
expression found in a string. `exists`: whether the field is there. A field that is missing matches nothing but
`exists` with false.
"""

MAX_FILTER_DEPTH: Final = 32
"""How many filters deep a filter may nest, itself included."""

ORDERINGS: Final = frozenset({"lt", "le", "gt", "ge"})


class Part(Request):
    """The base of a rule's parts: immutable, and strict about fields it does not know."""


class Ordered:
    """Wants a list of at least so many items.

    A set is refused: its order differs between processes, and with it the rule's definition. While some of the items
    are refused, nothing is said about their number.
    """

    def __init__(self, at_least: int = 0) -> None:
        self._at_least = at_least

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(
            _not_a_set, no_info_after_validator_function(self._long_enough, handler(source))
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "minItems": self._at_least}

    def _long_enough(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(items) < self._at_least:
            raise PydanticCustomError(
                "too_short",
                "A list of at least {at_least} is wanted, not of {length}",
                {"at_least": self._at_least, "length": len(items)},
            )
        return items


def _not_a_set(items: Any) -> Any:
    if isinstance(items, set | frozenset):
        raise PydanticCustomError("unordered", "A list is wanted, whose order stays the same, not a set")
    return items


class FilterPart(Part):
    """The base of filters, which combine with `&`, `|` and `~`."""

    def __and__(self, other: "Filter") -> "AllOf":
        return AllOf(of=(*_parts(self, AllOf), *_parts(other, AllOf)))

    def __or__(self, other: "Filter") -> "AnyOf":
        return AnyOf(of=(*_parts(self, AnyOf), *_parts(other, AnyOf)))

    def __invert__(self) -> "Not":
        return Not(filter=_checked(self))

    @model_validator(mode="after")
    def _not_too_deep(self) -> Self:
        if _depth(self) > MAX_FILTER_DEPTH:
            raise PydanticCustomError(
                "too_deep", "Filters nest at most {limit} deep: write a flatter one", {"limit": MAX_FILTER_DEPTH}
            )
        return self

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a filter is neither true nor false: combine filters with &, | and ~, "
            "and write 5 <= F.level <= 9 as (F.level >= 5) & (F.level <= 9)"
        )


class On(FilterPart):
    """Admits envelopes of these event types."""

    kind: Literal["on"] = "on"
    types: Annotated[tuple[EventType, ...], Ordered(1)]


class Where(FilterPart):
    """Admits envelopes whose event's field compares so with the value."""

    kind: Literal["where"] = "where"
    field: FieldPath
    op: Operator
    value: JsonValue

    @model_validator(mode="after")
    def _value_suits_operator(self) -> Self:
        try:
            check_json(self.value, "value")
        except NotJsonError as error:
            raise PydanticCustomError("json", "{problem}", {"problem": str(error)}) from error
        if problem := self._problem():
            raise PydanticCustomError(
                "operand", "{problem}", {"problem": f"field {self.field!r}: op {self.op!r} {problem}"}
            )
        return self

    def _problem(self) -> str | None:
        value = self.value
        if self.op in ORDERINGS and (isinstance(value, bool) or not isinstance(value, int | float | str)):
            return f"compares with a number or a string, not {value!r}"
        if self.op == "in" and not (isinstance(value, list) and value):
            return f"needs a list of at least one value, not {value!r}"
        if self.op == "exists" and not isinstance(value, bool):
            return f"needs true or false, not {value!r}"
        if self.op == "matches":
            if not isinstance(value, str):
                return f"needs a regular expression, a string, not {value!r}"
            try:
                search(value)
            except SchemaError as error:
                detail = str(error).rpartition("error: ")[2].strip()
                return (
                    "needs a regular expression that runs in linear time, so without look-around and back-references; "
                    f"{value[:MAX_SHOWN]!r} cannot be compiled: {detail}"
                )
        return None

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = super().__get_pydantic_json_schema__(schema, handler)
        model = handler.resolve_ref_schema(described)
        model["allOf"] = [
            {
                "if": {"properties": {"op": {"enum": operators}}, "required": ["op"]},
                "then": {"properties": {"value": value}},
            }
            for operators, value in _OPERANDS
        ]
        return described


class AllOf(FilterPart):
    """Admits envelopes that every one of these filters admits."""

    kind: Literal["all"] = "all"
    of: Annotated[tuple["Filter", ...], Ordered(1)]


class AnyOf(FilterPart):
    """Admits envelopes that at least one of these filters admits."""

    kind: Literal["any"] = "any"
    of: Annotated[tuple["Filter", ...], Ordered(1)]


class Not(FilterPart):
    """Admits envelopes that this filter does not admit."""

    kind: Literal["not"] = "not"
    filter: "Filter"


class Predicate(FilterPart):
    """Admits envelopes for which the application's function of this name returns true."""

    kind: Literal["predicate"] = "predicate"
    name: Id


type Filter = Annotated[On | Where | AllOf | AnyOf | Not | Predicate, Field(discriminator="kind")]
"""Any filter, discriminated by `kind`."""


def _depth(filter: object) -> int:
    match filter:
        case AllOf() | AnyOf():
            return 1 + max(map(_depth, filter.of))
        case Not():
            return 1 + _depth(filter.filter)
        case _:
            return 1


def _parts(filter: object, kind: "type[AllOf | AnyOf]") -> "tuple[Filter, ...]":
    return filter.of if isinstance(filter, kind) else (_checked(filter),)


def _checked(filter: object) -> "Filter":
    if isinstance(filter, On | Where | AllOf | AnyOf | Not | Predicate):
        return filter
    raise TypeError(f"{filter!r} is not a filter: write F.level >= 5, or predicate('name')")


def search(pattern: str) -> SchemaValidator:
    """Returns a compiled regular expression whose `isinstance_python` searches a string, in time linear in its length.

    Raises:
        SchemaError: The pattern cannot be compiled.
    """
    return SchemaValidator(str_schema(pattern=pattern, regex_engine="rust-regex"))


MAX_SHOWN: Final = 100
"""How much of a pattern that is refused its refusal shows, in characters."""

_OPERANDS: Final[list[tuple[list[str], dict[str, Any]]]] = [
    (["lt", "le", "gt", "ge"], {"type": ["number", "string"]}),
    (["in"], {"type": "array", "minItems": 1}),
    (["matches"], {"type": "string", "description": "a regular expression without look-around and back-references"}),
    (["exists"], {"type": "boolean"}),
]
