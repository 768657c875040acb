"""How rules are written in Python: `on`, `sequence`, `by`, `run`, and the names of fields."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from pydantic import JsonValue

from reflexr.core.conditions import Condition, Sequence
from reflexr.core.errors import RuleError
from reflexr.core.events import Event
from reflexr.core.filters import AnyOf, Filter, On, Predicate
from reflexr.core.references import FieldReference, built, path_of
from reflexr.core.rules import ActionRef, Scope


class Named(Protocol):
    """An action that knows the name it is registered under."""

    @property
    def name(self) -> str:
        """The name."""
        ...


def on(*events: type[Event] | str) -> Condition:
    """Returns a condition that fires at every event of these types, given as classes or by qualified name.

    Raises:
        RuleError: No type is given, or a name is no qualified event type.
    """
    return Condition(filter=built(lambda: On(types=tuple(map(_type_of, events)))))


def sequence(*steps: Condition, within: timedelta) -> Condition:
    """Returns a condition that fires when the steps match in order, inside the window of the first.

    A step is a condition with a filter alone, such as `on(Deploy)` or `on(ServiceError).where(F.severity >= 7)`.

    Raises:
        RuleError: There are fewer than two steps, a step has more than a filter, or the window is not positive.
    """
    filters = tuple(_step(place, step) for place, step in enumerate(steps, start=1))
    pattern = built(lambda: Sequence(steps=filters, within=within))
    distinct = tuple({step.model_dump_json(): step for step in filters}.values())
    return Condition(filter=distinct[0] if len(distinct) == 1 else built(lambda: AnyOf(of=distinct)), pattern=pattern)


def predicate(name: str) -> Predicate:
    """Returns a filter that admits envelopes for which the application's function of this name returns true.

    Raises:
        RuleError: The name is not 1 to 255 characters.
    """
    return built(lambda: Predicate(name=name))


def by(*fields: FieldReference | str) -> Scope:
    """Returns the scope of these fields: independent state and order for each list of their values.

    Raises:
        RuleError: A field is no path.
    """
    return built(lambda: Scope(fields=tuple(map(path_of, fields))))


def run(action: Callable[..., Any] | Named | str, /, **params: JsonValue) -> ActionRef:
    """Returns a reference to an action by its name, with the values of its params.

    Args:
        action: A function, an action with a `name`, or the name itself.
        params: The values, which a rule's definition does not include: changing them never resets the rule.

    Raises:
        RuleError: The action has no name, such as a lambda, or a value is not JSON.
    """
    name = action if isinstance(action, str) else getattr(action, "name", None) or getattr(action, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise RuleError(
            [f"{action!r} has no name to refer to it by: pass a function, or the name it is registered under"]
        )
    return built(lambda: ActionRef(action=name, params=params))


def _step(place: int, step: object) -> Filter:
    if not isinstance(step, Condition):
        raise RuleError([f"step {place} of the sequence is no condition but {step!r}: write on(…)"])
    if step != Condition(filter=step.filter):
        raise RuleError(
            [f"step {place} of the sequence has more than a filter: add distinct() and at_most() to the sequence"]
        )
    return step.filter


def _type_of(event: object) -> str:
    if isinstance(event, str):
        return event
    if not (isinstance(event, type) and issubclass(event, Event)):
        raise RuleError([f"{event!r} is no event type: name a subclass of Event, or its qualified type"])
    if not event.event_type:
        raise RuleError([f"{event.__qualname__} is an abstract base and no event type: name its subclasses"])
    return event.event_type
