"""Sets of event types, finite or "all but these", and which of them a filter can admit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from reflexr.core.filters import AllOf, AnyOf, Filter, On, Predicate, Where


@dataclass(frozen=True, slots=True)
class TypeSet:
    """The types in `names`, or with `inverted` all types but those."""

    names: frozenset[str]
    inverted: bool = False

    def __contains__(self, event_type: str) -> bool:
        return (event_type in self.names) is not self.inverted

    def __bool__(self) -> bool:
        return self.inverted or bool(self.names)

    def __invert__(self) -> "TypeSet":
        return TypeSet(self.names, not self.inverted)

    def __and__(self, other: "TypeSet") -> "TypeSet":
        if self.inverted and other.inverted:
            return TypeSet(self.names | other.names, inverted=True)
        if self.inverted:
            return TypeSet(other.names - self.names)
        return TypeSet(self.names - other.names if other.inverted else self.names & other.names)

    def __or__(self, other: "TypeSet") -> "TypeSet":
        return ~(~self & ~other)

    def __le__(self, other: "TypeSet") -> bool:
        return not self & ~other

    def among(self, event_types: Iterable[str]) -> list[str]:
        """Returns those of the types that are in the set, in their order."""
        return [event_type for event_type in event_types if event_type in self]


EVERY: Final = TypeSet(frozenset(), inverted=True)
NONE: Final = TypeSet(frozenset())


def admitted(condition: Filter) -> TypeSet:
    """Returns the types of which the filter can admit an envelope: of any other, it admits none."""
    return _bounds(condition)[1]


def _bounds(condition: Filter) -> tuple[TypeSet, TypeSet]:
    """Returns the types of which the filter admits every envelope, and those of which it can admit one."""
    match condition:
        case Where() | Predicate():
            return NONE, EVERY
        case On():
            types = TypeSet(frozenset(condition.types))
            return types, types
        case AllOf():
            return _fold(TypeSet.__and__, condition.of)
        case AnyOf():
            return _fold(TypeSet.__or__, condition.of)
        case _:
            surely, possibly = _bounds(condition.filter)
            return ~possibly, ~surely


def _fold(combine: Callable[[TypeSet, TypeSet], TypeSet], filters: Iterable[Filter]) -> tuple[TypeSet, TypeSet]:
    surely, possibly = zip(*map(_bounds, filters), strict=True)
    return reduce(combine, surely), reduce(combine, possibly)
