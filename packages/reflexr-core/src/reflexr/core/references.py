"""References to fields of events, as conditions in Python write them: `F.severity >= 7`."""

from collections.abc import Callable
from typing import Any, Final, NoReturn, override

from pydantic import JsonValue, ValidationError

from reflexr.core.errors import RuleError
from reflexr.core.events import problems
from reflexr.core.filters import Operator, Where


class FieldReference:
    """A field of an event, and what it can be compared with.

    An attribute of a reference is a field inside it: `F.labels.env` is `labels.env`. Where a name is one of the methods
    below, or no Python name, write `field("labels.matches")`.
    """

    __slots__ = ("__path__",)

    def __init__(self, path: str) -> None:
        self.__path__ = path

    def __getattr__(self, name: str) -> "FieldReference":
        if name.startswith("__"):
            raise AttributeError(name)
        return FieldReference(f"{self.__path__}.{name}")

    def __lt__(self, value: float | str) -> Where:
        return self._where("lt", value)

    def __le__(self, value: float | str) -> Where:
        return self._where("le", value)

    def __gt__(self, value: float | str) -> Where:
        return self._where("gt", value)

    def __ge__(self, value: float | str) -> Where:
        return self._where("ge", value)

    def eq(self, value: JsonValue) -> Where:
        """Admits events whose field equals the value, as JSON has it."""
        return self._where("eq", value)

    def ne(self, value: JsonValue) -> Where:
        """Admits events that have the field with another value."""
        return self._where("ne", value)

    def in_(self, values: "list[JsonValue] | tuple[JsonValue, ...] | set[Any] | frozenset[Any]") -> Where:
        """Admits events whose field equals one of the values."""
        if isinstance(values, set | frozenset):
            return self._where("in", sorted(values, key=repr))
        return self._where("in", list(values) if isinstance(values, tuple) else values)

    def contains(self, value: JsonValue) -> Where:
        """Admits events whose field is a list with the value in it, or a string with the text in it."""
        return self._where("contains", value)

    def matches(self, pattern: str) -> Where:
        """Admits events whose field is a string in which the regular expression is found, in linear time."""
        return self._where("matches", pattern)

    def exists(self, present: bool = True) -> Where:
        """Admits events that have the field, or with `False` those that do not."""
        return self._where("exists", present)

    @override
    def __eq__(self, other: object) -> NoReturn:
        raise TypeError(f"write F.{self.__path__}.eq(…) for ==, which has to return a bool, and .in_([…]) for in")

    @override
    def __ne__(self, other: object) -> NoReturn:
        raise TypeError(f"write F.{self.__path__}.ne(…): != has to return a bool")

    @override
    def __hash__(self) -> int:
        return hash(self.__path__)

    @override
    def __repr__(self) -> str:
        return f"field({self.__path__!r})"

    def _where(self, op: Operator, value: JsonValue) -> Where:
        return built(lambda: Where(field=self.__path__, op=op, value=value))


class Fields:
    """The fields of events: an attribute is a reference to the field of that name."""

    __slots__ = ()

    def __getattr__(self, name: str) -> FieldReference:
        if name.startswith("__"):
            raise AttributeError(name)
        return FieldReference(name)


F: Final = Fields()
"""The fields of events: `F.severity`, `F.labels.env`."""


def field(path: str) -> FieldReference:
    """Returns a reference to the field at the path: keys of the event's JSON with dots between."""
    return FieldReference(path)


def path_of(reference: object) -> str:
    """Returns the path of a reference, or the path itself.

    Raises:
        RuleError: It is neither.
    """
    path = reference.__path__ if isinstance(reference, FieldReference) else reference
    if not isinstance(path, str):
        raise RuleError([f"{path!r} is no field: write F.severity, or 'severity'"])
    return path


def built[T](build: Callable[[], T]) -> T:
    """Returns what is built.

    Raises:
        RuleError: Its values are refused.
    """
    try:
        return build()
    except ValidationError as error:
        raise RuleError(problems(error)) from error
