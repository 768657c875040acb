"""How the values of a graph are written to a checkpoint: by the types that its steps declare, and only if they last."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast, get_args, get_type_hints

from pydantic import BaseModel, JsonValue, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic_core import from_json, to_json
from pydantic_graph import Step
from pydantic_graph.step import NodeStep

from reflexr.core import derived_id, json_value

_DEPTH: Final = 4
"""How many lists and objects are around a value in a checkpoint, where a run is stored."""


class NotLasting(Exception):
    """A value does not read back as it was."""


class Shape:
    """How the values of one declared type are written and read."""

    def __init__(self, declared: Any) -> None:
        """Takes a type; of one that pydantic does not know, no value lasts."""
        self._declared = declared
        try:
            self._adapter: TypeAdapter[Any] | None = TypeAdapter(declared)
        except (PydanticSchemaGenerationError, PydanticUserError):
            self._adapter = None

    def write(self, value: object) -> JsonValue:
        """Returns a value's JSON.

        Raises:
            NotLasting: What is read from it is not the same value.
        """
        if self._adapter is None:
            raise NotLasting(f"{self._declared!r} is no type that pydantic can write")
        try:
            text = self._adapter.dump_json(value, by_alias=True, round_trip=True, warnings="error")
            found = self._adapter.validate_json(text)
            lasts = bool(found == value) and _alike(found, value)
            written = json_value(from_json(text), "the value", _DEPTH)
        except Exception as error:
            # Whatever a type of the application's raises when it is written, read or compared.
            raise NotLasting(f"a {type(value).__name__} cannot be written and read back: {error}") from error
        if not lasts:
            raise NotLasting(f"a {type(value).__name__} does not read back as it was by the type {self._declared!r}")
        return written

    def read(self, value: JsonValue) -> Any:
        """Returns the value of a JSON.

        Raises:
            ValidationError: The type no longer accepts it.
            NotLasting: The type is none that pydantic knows any more.
        """
        if self._adapter is None:
            raise NotLasting(f"{self._declared!r} is no type that pydantic can read")
        return self._adapter.validate_json(to_json(value))


class StepShapes:
    """How a step's inputs and output are written, as its function's annotations have it."""

    def __init__(self, step: Step[Any, Any, Any, Any]) -> None:
        """Reads a step's annotations; what they do not say is written as plain JSON."""
        if isinstance(step, NodeStep):
            inputs, output = step.node_type, _hints(step.node_type.run).get("return", Any)
        else:
            hints = _hints(step.call)
            output = hints.pop("return", Any)
            # A step's function takes its context alone, as StepContext[State, Deps, Inputs].
            inputs = (*get_args(next(iter(hints.values()), None)), Any, Any, Any)[2]
        self.inputs = Shape(inputs)
        self.output = Shape(output)


def fingerprint(value: object) -> str:
    """Returns a text by which the inputs of a step are known again in another process, if they have a JSON."""
    try:
        text = _text(_in_order(value)).decode()
    except (ValueError, RecursionError):
        text = ""
    return derived_id("in", type(value).__qualname__, text)


def _in_order(value: Any) -> Any:
    """Returns a value with each set in it as a list, whose order is the same in every process."""
    if isinstance(value, set | frozenset):
        return sorted(map(_in_order, cast("Iterable[Any]", value)), key=_text)
    if isinstance(value, dict):
        return {key: _in_order(one) for key, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return list(map(_in_order, cast("Iterable[Any]", value)))
    if isinstance(value, BaseModel):
        return _in_order(dict(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _in_order(getattr(value, each.name)) for each in fields(value)}
    return value


def _text(value: Any) -> bytes:
    return to_json(value, by_alias=True, bytes_mode="base64", serialize_unknown=True)


def _alike(left: Any, right: Any) -> bool:
    """Whether equal values have the same types throughout: `True` and `1` have not, nor an enum's member and a text."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        mine, other = cast("dict[Any, Any]", left), cast("dict[Any, Any]", right)
        return _all_alike(mine, other) and _all_alike(mine.values(), other.values())
    if isinstance(left, list | tuple):
        return _all_alike(cast("Iterable[Any]", left), cast("Iterable[Any]", right))
    if isinstance(left, BaseModel):
        return _alike(dict(left), dict(right))
    if is_dataclass(left):
        return all(_alike(getattr(left, each.name), getattr(right, each.name)) for each in fields(left))
    return True


def _all_alike(left: Iterable[Any], right: Iterable[Any]) -> bool:
    return all(map(_alike, left, right))


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        # Names that only a type checker sees.
        return {}
