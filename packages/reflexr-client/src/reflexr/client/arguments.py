"""The arguments of a client's methods, checked as far as no server is needed for it, as a handle checks them."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from reflexr.core import (
    MAX_SEQ,
    Command,
    CommandFrame,
    Event,
    EventLike,
    EventType,
    Feedback,
    GiveFeedback,
    Id,
    NewEvent,
    NotFound,
    NotJsonError,
    Publish,
    Target,
    ValidationFailed,
    model_value,
    problems,
)

_NAMELESS: Final = re.compile("[\0\ud800-\udfff]")
_EVENT_TYPES: Final[TypeAdapter[list[str]]] = TypeAdapter(list[EventType])
_ID: Final[TypeAdapter[str]] = TypeAdapter(Id)

type EventTypes = Collection[str | type[Event]]
"""Event types, by qualified name or as classes."""

type Parameters = Mapping[str, str | int | Sequence[str] | None]
"""What follows the `?` of a URL: `None` is left out, and a list is the same name again and again."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events to publish together.

    Attributes:
        commands: The command that would publish each alone.
        named: Whether each came with its id.
        correlation_id: The causal chain that all of them join.
        command_id: What a repetition is recognised by; it can travel in a header.
    """

    commands: list[Publish]
    named: list[bool]
    correlation_id: str | None
    command_id: str

    def to_json(self) -> str:
        """Returns the JSON text that asks for them to be appended."""
        events = [command.model_dump(include={"event", "id"}) for command in self.commands]
        return to_json({"events": events, "correlation_id": self.correlation_id}).decode()


def checked_id(value: str, place: str) -> str:
    """Returns an id.

    Raises:
        ValidationFailed: It is none.
    """
    return built(f"{place}: this is no id", lambda: _ID.validate_python(value))


def checked_numbers(**numbers: int | None) -> None:
    """Checks numbers that name places, or how many.

    Raises:
        ValidationFailed: One is no whole number from 0 to 2^63-1.
    """
    if errors := [
        f"{place}: {_shown(value)} is no whole number from 0 to {MAX_SEQ}"
        for place, value in numbers.items()
        if value is not None and (type(value) is not int or not 0 <= value <= MAX_SEQ)
    ]:
        raise ValidationFailed(errors[0], errors)


def checked_texts(**texts: str | None) -> None:
    """Checks texts that name something.

    Raises:
        ValidationFailed: One is no text, or holds a NUL or a lone surrogate.
    """
    if errors := [
        f"{place}: {text!r} is no text, or holds a NUL or a lone surrogate, which no name does"
        for place, text in texts.items()
        if text is not None and not (_is(str, text) and _NAMELESS.search(text) is None)
    ]:
        raise ValidationFailed(errors[0], errors)


def named(name: str, noun: str) -> str:
    """Returns the name of one thing, as a segment of a path.

    Raises:
        ValidationFailed: It is no text, or holds a NUL or a lone surrogate.
        NotFound: It is empty, which as a segment would name the list of all.
    """
    checked_texts(**{noun: name})
    if not name:
        raise NotFound(f"there is no {noun} {name!r} in this workspace")
    return name


def type_names(types: EventTypes | None) -> list[str] | None:
    """Returns the qualified names of event types, or `None` for all.

    Raises:
        ValidationFailed: It is no list of event types.
    """
    if types is None:
        return None
    if not _is_list(types):
        raise ValidationFailed(f"types: give a list of event types, such as [{types!r}]")
    names = [item.event_type if isinstance(item, type) and _is_event(item) else item for item in types]
    return built("types: these are no event types", lambda: _EVENT_TYPES.validate_python(names))


def window(
    *, after_seq: int, before_seq: int | None, types: EventTypes | None, limit: int | None, last: int | None
) -> Parameters:
    """Returns what a URL says of a window of a log.

    Raises:
        ValidationFailed: A number is no whole number from 0 to 2^63-1, or a type is none.
    """
    checked_numbers(after_seq=after_seq, before_seq=before_seq, limit=limit, last=last)
    names = type_names(types)
    if names == []:
        # No type in a URL stands for every type.
        limit, last = (0, last) if last is None else (limit, 0)
    return {"after_seq": after_seq, "before_seq": before_seq, "type": names, "limit": limit, "last": last}


def publish_command(event: EventLike, id: str | None, correlation_id: str | None) -> Publish:
    """Returns the command that publishes an event, under a new id if it has none.

    So it is appended once, even where a server has forgotten the results of commands between two tries.

    Raises:
        ValidationFailed: The event or an id is none.
    """
    try:
        payload = event.payload() if isinstance(event, Event) else dict(event) if _is(Mapping, event) else event
    except NotJsonError as error:
        raise ValidationFailed(str(error)) from error
    fields = {
        "event": payload,
        "id": _new_id("evt") if id is None else id,
        "correlation_id": correlation_id,
    }
    return built("this cannot be published", lambda: Publish.model_validate(fields))


def batch(events: Sequence[EventLike | NewEvent], correlation_id: str | None, command_id: str | None) -> Batch:
    """Returns events to publish together, under a new id if they have none.

    Raises:
        ValidationFailed: It is no list, events or ids in it are none, or an id is none; every problem is listed with
            its place.
    """
    if not _is_list(events):
        raise ValidationFailed(f"events: one {type(events).__name__} is no list of events: write [event]")
    if correlation_id is not None:
        checked_id(correlation_id, "correlation_id")
    items = [event if isinstance(event, NewEvent) else NewEvent(event) for event in events]
    commands: list[Publish] = []
    errors: list[str] = []
    for index, item in enumerate(items):
        try:
            commands.append(publish_command(item.event, item.id, correlation_id))
        except ValidationFailed as failed:
            errors += [f"events.{index}: {error}" for error in failed.errors]
    if errors:
        raise ValidationFailed("some of these events are not valid", errors)
    return Batch(
        commands=commands,
        named=[item.id is not None for item in items],
        correlation_id=correlation_id,
        command_id=_new_id("cmd") if command_id is None else _header_id(command_id, "command_id"),
    )


def feedback_command(feedback: Feedback, on: Target) -> GiveFeedback:
    """Returns the command that gives feedback.

    Raises:
        ValidationFailed: It is no feedback, or no target.
    """
    if not _is(Feedback, feedback):
        raise ValidationFailed(f"feedback: {feedback!r} is no feedback: give one of a class of yours")
    try:
        value = model_value(feedback, feedback.feedback_type, depth=1)
    except NotJsonError as error:
        raise ValidationFailed(str(error)) from error
    fields = {"feedback_type": feedback.feedback_type, "target": on, "value": value}
    return built("this is no feedback", lambda: GiveFeedback.model_validate(fields))


def command_frame(command: Callable[[], Command], command_id: str | None) -> CommandFrame:
    """Returns the frame of a command, under a new id if it has none.

    Raises:
        ValidationFailed: The command or its id is none.
    """
    return built(
        "this command cannot be given",
        lambda: CommandFrame(command_id=_new_id("cmd") if command_id is None else command_id, command=command()),
    )


def built[M](refused: str, build: Callable[[], M]) -> M:
    """Returns what is built.

    Raises:
        ValidationFailed: Its values are refused; every problem is listed.
    """
    try:
        return build()
    except ValidationError as error:
        raise ValidationFailed(refused, problems(error)) from error


def _new_id(prefix: str) -> str:
    return f"{prefix}_{token_hex(8)}"


def _header_id(value: str, place: str) -> str:
    if not all("!" <= character <= "~" for character in checked_id(value, place)):
        raise ValidationFailed(f"{place}: {value!r} travels in a header, which takes ASCII with no spaces alone")
    return value


def _shown(value: object) -> str:
    # What has too many digits to be written has too many to be shown.
    return "what was given" if isinstance(value, int) and value.bit_length() > 1_000 else repr(value)


def _is_event(kind: type[object]) -> bool:
    return issubclass(kind, Event)


def _is(kind: type[object], value: object) -> bool:
    return isinstance(value, kind)


def _is_list(values: object) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | BaseModel | Mapping)
