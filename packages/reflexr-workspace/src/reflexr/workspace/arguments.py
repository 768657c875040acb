"""The arguments of a handle's reads, checked once here so that no storage has to."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError

from reflexr.core import (
    MAX_SEQ,
    TRANSITIONS,
    Event,
    EventLike,
    EventRegistry,
    EventType,
    Feedback,
    NewEvent,
    NotJsonError,
    RunStatus,
    Target,
    ValidationFailed,
    json_value,
    problems,
)
from reflexr.workspace.lists import is_list
from reflexr.workspace.publishing import checked_id
from reflexr.workspace.storage import LogWindow, RunQuery

_EVENT_TYPE: Final[TypeAdapter[str]] = TypeAdapter(EventType)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_TARGET: Final[TypeAdapter[Any]] = TypeAdapter(Target)

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
        for item in _items(types):
            name = _event_type(item)
            if problems_of_type := list(_type_errors(name, registry)):
                errors += problems_of_type
            else:
                names.add(str(name))
    if errors:
        raise ValidationFailed("this is no window of a log", errors)
    return LogWindow(after_seq, before_seq, None if types is None else frozenset(names), limit, last)


def run_query(*, rule: str | None, scope_key: str | None, status: RunStatus | None, limit: int | None) -> RunQuery:
    """Returns a query for runs.

    Raises:
        ValidationFailed: The limit is no whole number from 0 to 2^63-1, or the status is none.
    """
    errors = list(_numbers({"limit": limit}))
    if status is not None and not (_is_text(status) and status in TRANSITIONS):
        errors.append(f"status: {status!r} is none of {', '.join(map(repr, TRANSITIONS))}")
    if errors:
        raise ValidationFailed("this is no query for runs", errors)
    return RunQuery(
        rules=None if rule is None else frozenset((rule,)),
        scope_key=scope_key,
        statuses=None if status is None else frozenset((status,)),
        limit=limit,
    )


def new_events(events: Iterable[EventLike | NewEvent]) -> list[NewEvent]:
    """Returns events to publish together, each as a `NewEvent`.

    Raises:
        ValidationFailed: It is no list.
    """
    if not is_list(events):
        shown = type(events).__name__
        raise ValidationFailed(f"events: one {shown} is no list of events: publish it alone, or write [event]")
    return [event if isinstance(event, NewEvent) else NewEvent(event) for event in events]


def checked_feedback(feedback: object, target: object) -> None:
    """Checks feedback, and what it is to be given on, as far as no log is needed for it.

    Raises:
        ValidationFailed: It is no feedback, or no target.
    """
    errors: list[str] = []
    if not isinstance(feedback, Feedback) or not feedback.feedback_type:
        errors.append(f"feedback: {feedback!r} is no feedback: give one of a class of yours, a subclass of Feedback")
    try:
        if not isinstance(target, type(_TARGET.validate_json(_TARGET.dump_json(target, warnings=False)))):
            errors.append(_no_target(target))
    except ValueError:
        errors.append(_no_target(target))
    if errors:
        raise ValidationFailed(errors[0], errors)


def checked_answer(answer: object, attempt: int | None) -> None:
    """Checks an answer to a paused run, and the attempt that asked.

    Raises:
        ValidationFailed: The answer is not JSON, or the attempt no whole number from 1 to 2^63-1.
    """
    errors = list(_numbers({"attempt": attempt}, least=1))
    try:
        json_value(answer, "answer", depth=2)
    except NotJsonError as error:
        errors.append(f"answer: {error}")
    if errors:
        raise ValidationFailed(errors[0], errors)


def checked_texts(**texts: str | None) -> None:
    """Checks texts that name something: a storage can look up none that it can never hold.

    Raises:
        ValidationFailed: One is no text, or holds a NUL or a lone surrogate.
    """
    if errors := [
        f"{place}: {text!r} is no text, or holds a NUL or a lone surrogate, which no name does"
        for place, text in texts.items()
        if text is not None and not (_is_text(text) and "\0" not in text and _SURROGATE.search(text) is None)
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


def _numbers(numbers: Mapping[str, object], *, least: int = 0) -> Iterator[str]:
    for place, value in numbers.items():
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_SEQ:
            # What has too many digits to be written has too many to be shown.
            shown = "what was given" if isinstance(value, int) and value.bit_length() > 1_000 else repr(value)
            yield f"{place}: {shown} is no whole number from {least} to {MAX_SEQ}"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _event_type(item: object) -> object:
    return item.event_type if isinstance(item, type) and issubclass(item, Event) else cast("object", item)


def _items(types: object) -> list[object]:
    return list(cast("Collection[object]", types)) if isinstance(types, Iterable) else [types]


def _type_errors(name: object, registry: EventRegistry) -> Iterator[str]:
    try:
        _EVENT_TYPE.validate_python(name)
    except ValidationError as error:
        meant = registry.hint(str(name))
        yield from (f"types: {name!r}: {problem}{meant}" for problem in problems(error))


def _no_target(target: object) -> str:
    meant = f"RunTarget(run_id={target!r})" if isinstance(target, str) else "RunTarget(run_id=...)"
    return f"target: {target!r} is no target: write {meant}, or a FiringTarget or ChainTarget"
