"""The lists that an application gives: whether each is a list, of what it should be, before anything reads it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import BaseModel

from reflexr.core import Event, Rule, RuleError


@dataclass(frozen=True, slots=True)
class Kind:
    """What a list holds.

    Attributes:
        noun: What one is called, with its article.
        example: How one is written.
        admits: Whether a value is one.
    """

    noun: str
    example: str
    admits: Callable[[object], bool]


EVENT_CLASS: Final = Kind("an event class", "Alarm", lambda item: isinstance(item, type) and issubclass(item, Event))
"""A class of events, itself."""

RULE: Final = Kind("a rule", "Rule(...)", lambda item: isinstance(item, Rule))
"""A rule."""


def checked_lists(given: Mapping[str, tuple[object, Kind]]) -> dict[str, tuple[Any, ...]]:
    """Returns what each list holds, by the name of its argument.

    Args:
        given: The arguments, any iterables, each with what it should hold.

    Raises:
        RuleError: One is no list, or holds something else; every problem is listed.
    """
    lists: dict[str, tuple[Any, ...]] = {}
    problems: list[str] = []
    for place, (values, kind) in given.items():
        if is_list(values):
            lists[place] = tuple(cast("Iterable[object]", values))
            problems += _strangers(place, lists[place], kind)
        else:
            shown = repr(values.name) if isinstance(values, Rule) else repr(values)
            problems.append(f"{place}: {shown} is no list: write {place}=[{kind.example}]")
    if problems:
        raise RuleError(problems)
    return lists


def is_list(values: object) -> bool:
    """Whether something is a list of what it holds, and no single thing that can be iterated over, such as a text."""
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | BaseModel | Mapping)


def _strangers(place: str, values: Iterable[object], kind: Kind) -> Iterator[str]:
    for value in values:
        if not kind.admits(value):
            meant = f"the class {type(value).__name__} itself" if isinstance(value, Event) else kind.example
            yield f"{place}: {value!r} is not {kind.noun}: write {meant}"
