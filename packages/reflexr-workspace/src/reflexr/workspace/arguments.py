"""The arguments of a handle's reads, checked once here so that no storage has to."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from pydantic import TypeAdapter, ValidationError

from reflexr.core import MAX_SEQ, TRANSITIONS, Event, EventRegistry, EventType, RunStatus, ValidationFailed, problems
from reflexr.workspace.publishing import checked_id
from reflexr.workspace.storage import LogWindow, RunQuery

_EVENT_TYPE: Final[TypeAdapter[str]] = TypeAdapter(EventType)

type EventTypes = Collection[str | type[Event]]
"""Event types, by qualified name or as classes."""


def log_window(
    registry: EventRegistry,
    *,
    after_seq: int,
    before_seq: int | None = None,
    types: EventTypes | None = None,
    limit: int | None = None,
    last: int | None = None,
) -> LogWindow:
    """Returns a window of a log.

    Raises:
        ValidationFailed: A number is no whole number from 0 to 2^63-1, `limit` comes with `last`, or a type is none.
    """
    errors = list(_numbers({"after_seq": after_seq, "before_seq": before_seq, "limit": limit, "last": last}))
    if limit is not None and last is not None:
        errors.append("limit: give limit, for the first so many, or last, for the last so many, but not both")
    names: set[str] = set()
    if isinstance(types, str):
        errors.append(f"types: give a list of event types, such as [{types!r}]")
    elif types is not None:
        for item in types:
            name = item.event_type if isinstance(item, type) else item
            names.add(name)
            errors += _type_errors(name, registry)
    if errors:
        raise ValidationFailed("this is no window of a log", errors)
    return LogWindow(after_seq, before_seq, None if types is None else frozenset(names), limit, last)


def run_query(*, rule: str | None, scope_key: str | None, status: RunStatus | None, limit: int | None) -> RunQuery:
    """Returns a query for runs.

    Raises:
        ValidationFailed: The limit is no whole number from 0 to 2^63-1, or the status is none.
    """
    errors = list(_numbers({"limit": limit}))
    if status is not None and status not in TRANSITIONS:
        errors.append(f"status: {status!r} is none of {', '.join(map(repr, TRANSITIONS))}")
    if errors:
        raise ValidationFailed("this is no query for runs", errors)
    return RunQuery(
        rules=None if rule is None else frozenset((rule,)),
        scope_key=scope_key,
        statuses=None if status is None else frozenset((status,)),
        limit=limit,
    )


def checked_texts(**texts: str | None) -> None:
    """Checks texts that name something: a storage can look up none that it can never hold.

    Raises:
        ValidationFailed: One holds a NUL or a lone surrogate.
    """
    if errors := [
        f"{place}: {text!r} holds a NUL or a lone surrogate, which no name does"
        for place, text in texts.items()
        if text is not None and ("\0" in text or any("\ud800" <= character <= "\udfff" for character in text))
    ]:
        raise ValidationFailed(errors[0], errors)


def checked_cursor(name: str, seq: int) -> None:
    """Checks a cursor that is to be saved.

    Raises:
        ValidationFailed: The name is no id, or the place is no whole number from 0 to 2^63-1.
    """
    checked_id(name, "name")
    checked_number("seq", seq)


def checked_number(place: str, value: int) -> None:
    """Checks a number from outside.

    Raises:
        ValidationFailed: It is no whole number from 0 to 2^63-1.
    """
    if errors := list(_numbers({place: value})):
        raise ValidationFailed(errors[0], errors)


def _numbers(numbers: Mapping[str, object]) -> Iterator[str]:
    for place, value in numbers.items():
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SEQ:
            yield f"{place}: {value!r} is no whole number from 0 to {MAX_SEQ}"


def _type_errors(name: str, registry: EventRegistry) -> Iterator[str]:
    try:
        _EVENT_TYPE.validate_python(name)
    except ValidationError as error:
        meant = registry.hint(str(name))
        yield from (f"types: {name!r}: {problem}{meant}" for problem in problems(error))
