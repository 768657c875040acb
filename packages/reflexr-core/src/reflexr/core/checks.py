"""What a filter or a field reference can never do, found before a rule runs.

A check lists every problem it finds, each with its place and its remedy, and raises nothing.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from reflexr.core.events import Event, hint
from reflexr.core.fields import field_names, has_field
from reflexr.core.filters import AllOf, AnyOf, Filter, Not, On, Where
from reflexr.core.type_sets import EVERY, TypeSet, admitted


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a rule may refer to.

    Attributes:
        types: The event classes by qualified type.
        complete: Whether those are all: a type that is not among them is a problem.
        predicates: The names of predicates; `None` where they are not known yet.
    """

    types: Mapping[str, type[Event]]
    complete: bool = True
    predicates: Collection[str] | None = None

    def filter_problems(self, condition: Filter, place: str, context: TypeSet = EVERY) -> Iterator[str]:
        """Yields the problems of a filter over envelopes of the context's types."""
        passing = context & admitted(condition)
        if not passing:
            yield f"{place}: no event type can pass: its parts exclude each other"
        else:
            yield from self._part_problems(condition, place, context, passing)

    def _part_problems(self, condition: Filter, place: str, context: TypeSet, passing: TypeSet) -> Iterator[str]:
        match condition:
            case On():
                for index, event_type in enumerate(condition.types):
                    if self.complete and event_type not in self.types:
                        meant = hint(event_type, self.types)
                        yield f"{place}.types.{index}: {event_type!r} is no event type here{meant}"
            case Where():
                yield from self.field_problems(condition.field, f"{place}.field", context)
            case AllOf():
                for index, part in enumerate(condition.of):
                    yield from self.filter_problems(part, f"{place}.of.{index}", passing)
            case AnyOf():
                for index, part in enumerate(condition.of):
                    yield from self.filter_problems(part, f"{place}.of.{index}", context)
            case Not():
                # What no type can pass inside is passed by every type here, so that is no problem.
                if inner := context & admitted(condition.filter):
                    yield from self._part_problems(condition.filter, f"{place}.filter", context, inner)
            case _:
                if self.predicates is not None and condition.name not in self.predicates:
                    known = (
                        f"one of {', '.join(map(repr, sorted(self.predicates)))}" if self.predicates else "none here"
                    )
                    yield f"{place}.name: there is no predicate {condition.name!r}: the predicates are {known}"

    def field_problems(self, field: str, place: str, context: TypeSet) -> Iterator[str]:
        """Yields a problem if no event type of the context can have the field."""
        event_types = context.among(self.types)
        unknown = not self.complete and (context.inverted or len(event_types) < len(context.names))
        if unknown or not event_types or any(has_field(self.types[event_type], field) for event_type in event_types):
            return
        names = sorted({name for event_type in event_types for name in field_names(self.types[event_type])})
        meant = get_close_matches(field, names, n=1)
        remedy = f"did you mean {meant[0]!r}?" if meant else f"the fields are {', '.join(map(repr, names)) or 'none'}"
        yield f"{place}: {_either(event_types)} has no field {field!r}; {remedy}"


def _either(event_types: list[str]) -> str:
    if len(event_types) == 1:
        return repr(event_types[0])
    shown = ", ".join(map(repr, event_types[:3]))
    return f"none of {shown}{', …' if len(event_types) > 3 else ''}"
