"""Events: typed models in namespaces, and the registries that know them.

An event class belongs to the namespace of the base it subclasses, and its qualified name, `namespace:local`, is its
type in every log. Envelopes, which place events in a log, live in `reflexr.core.envelopes`; reflexr's own events in
`reflexr.core.facts`.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from difflib import get_close_matches
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast, override

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.fields import ComputedFieldInfo, FieldInfo
from pydantic_core import PydanticCustomError, PydanticSerializationError, SchemaSerializer, from_json, to_json

from reflexr.core.canonical import check_json, check_written
from reflexr.core.errors import EventDefinitionError, InvalidEventError, NotJsonError
from reflexr.core.names import (
    EVENT_TYPE_PATTERN,
    LOCAL_NAME_PATTERN,
    NAMESPACE_PATTERN,
    RESERVED_NAMESPACE,
    Refusal,
    Unlike,
)


class Event(BaseModel):
    """Something that happened, as a model of its own.

    Declare a base for your namespace once, then subclass it for each event type:

    ```python
    from reflexr.core import Event


    class ShopEvent(Event, abstract=True, event_namespace="shop"):
        pass


    class OrderPlaced(ShopEvent):  # shop:order_placed
        order: str


    class OrderPaid(ShopEvent, name="order.paid"):  # shop:order.paid
        order: str
    ```

    Class arguments:
        abstract: Whether this is a base and no event type.
        event_namespace: The namespace that an abstract base declares; its alone, once in a process.
        name: The local name; by default the class's name in snake case.
        registry: Where the declared namespace is registered; by default `DEFAULT_REGISTRY`.

    Attributes:
        event_type: The qualified type of this class, `namespace:local`.
        event_namespace: The namespace this class belongs to.
        type: The qualified type, as it is in the event's JSON.

    Raises:
        EventDefinitionError: By the class statement, when the class cannot be an event type.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    event_type: ClassVar[str] = ""
    event_namespace: ClassVar[str] = ""

    __reflexr_lists__: "ClassVar[tuple[SchemaSerializer, SchemaSerializer] | None]" = None

    type: str = ""

    def __init_subclass__(
        cls,
        *,
        abstract: bool = False,
        event_namespace: str | None = None,
        name: str | None = None,
        registry: "EventRegistry | None" = None,
        **config: Any,
    ) -> None:
        """Takes the class arguments; `__pydantic_init_subclass__` uses them once the fields are known."""
        super().__init_subclass__(**config)

    @classmethod
    @override
    def __pydantic_init_subclass__(
        cls,
        *,
        abstract: bool = False,
        event_namespace: str | None = None,
        name: str | None = None,
        registry: "EventRegistry | None" = None,
        **config: Any,
    ) -> None:
        super().__pydantic_init_subclass__(**config)
        if cls.__pydantic_generic_metadata__["origin"] is not None:
            if cls.event_type:
                _set_type(cls, cls.event_type)
            return
        if abstract:
            _declare_base(cls, event_namespace, name, registry)
            return
        if event_namespace is not None or registry is not None:
            raise EventDefinitionError(
                f"{cls.__qualname__}: event_namespace= and registry= belong to an abstract base: add abstract=True"
            )
        _declare_type(cls, name)

    def payload(self) -> dict[str, JsonValue]:
        """Returns the event's JSON object, with its `type`, exactly as a log stores it.

        Raises:
            NotJsonError: A field holds NaN, an infinity, a lone surrogate, an integer of more than 4,300 digits, or
                something with no JSON form, or the event nests deeper than `MAX_DEPTH`.
        """
        (payload,) = _written(type(self), [self])
        return payload


class EventRegistry(Mapping[str, type[Event]]):
    """A set of namespaces, read as a mapping of their event classes by qualified type.

    reflexr's own namespace is in every registry. What a namespace's classes are is looked up when it is asked, so a
    class that is defined later is found too.
    """

    def __init__(self, *bases: type[Event]) -> None:
        """Creates a registry of reflexr's namespace and of those that the bases declared.

        Raises:
            EventDefinitionError: A base belongs to no namespace.
        """
        self._namespaces: dict[str, dict[str, type[Event]]] = {}
        if own := _NAMESPACES.get(RESERVED_NAMESPACE):
            self._namespaces[RESERVED_NAMESPACE] = own
        self.add(*bases)

    def add(self, *bases: type[Event]) -> Self:
        """Includes the namespaces of these bases, also those another registry holds, and returns itself.

        Raises:
            EventDefinitionError: A base belongs to no namespace.
        """
        for base in bases:
            if base.event_namespace not in _NAMESPACES:
                raise EventDefinitionError(f"{base.__qualname__} belongs to no namespace: add a base that declares one")
            self._namespaces[base.event_namespace] = _NAMESPACES[base.event_namespace]
        return self

    @override
    def __getitem__(self, event_type: str) -> type[Event]:
        namespace, _, local = event_type.partition(":")
        return self._namespaces[namespace][local]

    @override
    def __iter__(self) -> Iterator[str]:
        return (f"{namespace}:{local}" for namespace, classes in self._namespaces.items() for local in classes)

    @override
    def __len__(self) -> int:
        return sum(map(len, self._namespaces.values()))

    @override
    def __repr__(self) -> str:
        return f"EventRegistry({', '.join(sorted(self._namespaces))})"

    def hint(self, name: str) -> str:
        """Returns what a name that is no registered type might have meant, or the empty text.

        That is those with its local name, or else the one that is spelt most like it.
        """
        return hint(name, self) or "".join(f"; did you mean {near!r}?" for near in get_close_matches(name, self, n=1))

    @staticmethod
    def payloads(events: Sequence[Event]) -> list[dict[str, JsonValue]]:
        """Returns the payload of each of these events, in a fraction of the time that each takes alone.

        Raises:
            NotJsonError: As by `Event.payload`, of one of them.
        """
        types = list(map(type, events))
        if len(set(types)) == 1:
            return _payloads(types[0], events)
        classes: dict[type[Event], list[Event]] = {}
        for event in events:
            classes.setdefault(type(event), []).append(event)
        written = {event_class: iter(_payloads(event_class, its)) for event_class, its in classes.items()}
        return [next(written[event_class]) for event_class in types]

    def parse(self, payload: Mapping[str, Any]) -> Event:
        """Returns the typed event of a stored payload: an `UnknownEvent` if no class of the registry has its type.

        Fields that the class does not have any more are ignored, so an old log can still be read.

        Raises:
            InvalidEventError: The class refuses the payload.
        """
        event_type = str(payload.get("type"))
        event_class = self.get(event_type)
        try:
            if event_class is None:
                return UnknownEvent.model_validate(payload)
            return _read(event_class, to_json(payload))
        except ValidationError as error:
            raise InvalidEventError(event_type, problems(error)) from error


def hint(name: str, event_types: Iterable[str]) -> str:
    """Returns which of the event types have the name's local name, as the end of a message, or the empty text."""
    local = name.rpartition(":")[2]
    meant = sorted(event_type for event_type in event_types if event_type.rpartition(":")[2] == local)
    return f"; did you mean {' or '.join(map(repr, meant))}?" if meant else ""


def known_types() -> dict[str, type[Event]]:
    """Returns every event class of this process by its qualified type, whatever registry knows it."""
    return {
        f"{namespace}:{local}": event_class
        for namespace, classes in _NAMESPACES.items()
        for local, event_class in classes.items()
    }


def problems(error: ValidationError) -> list[str]:
    """Returns each of a validation error's problems as a text that names its place."""
    return [
        ": ".join(filter(None, (".".join(map(str, problem["loc"])), problem["msg"])))
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    ]


def local_name(class_name: str) -> str:
    """Returns the snake case of a class's name: `ServiceError` is `service_error`, `HTTPError` is `http_error`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()


def _payloads(event_class: type[Event], events: Sequence[Event]) -> list[dict[str, JsonValue]]:
    if event_class.payload is not Event.payload:
        return [event.payload() for event in events]
    return _written(event_class, events)


def _written(event_class: type[Event], events: Sequence[Event]) -> list[dict[str, JsonValue]]:
    """Returns the payloads of events of exactly this class, all by one call: a call costs as much as ten events."""
    event_type = event_class.event_type
    try:
        serializer = _list_serializer(event_class)
        text = serializer.to_json(events, by_alias=True, warnings="error").decode()
        payloads = cast("list[JsonValue]", from_json(text))
    except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError) as error:
        raise NotJsonError(f"{event_type!r} cannot be written as JSON: {error}") from error
    if not event_type or not all(isinstance(one, dict) and one.get("type") == event_type for one in payloads):
        raise NotJsonError(
            f"{event_class.__qualname__} serializes to no object with the type {event_type!r}: "
            "publish an event of a class that has a type, and serialize it with its type"
        )
    check_written(text, payloads, lambda: serializer.to_python(events, by_alias=True), event_type)
    return cast("list[dict[str, JsonValue]]", payloads)


def _list_serializer(event_class: type[Event]) -> SchemaSerializer:
    """Returns the serializer of lists of a class, by the class's configuration."""
    own, of_lists = event_class.__reflexr_lists__ or (None, None)
    # A base has another serializer, and so has a class once it was built again.
    if of_lists is None or own is not event_class.__pydantic_serializer__:
        lists = cast("type[list[Event]]", GenericAlias(list, event_class))
        of_lists = TypeAdapter(lists, config=event_class.model_config).serializer
        event_class.__reflexr_lists__ = (event_class.__pydantic_serializer__, of_lists)
    return of_lists


def _read(event_class: type[Event], text: bytes) -> Event:
    # JSON is read as JSON: in Python's mode a strict class would want a datetime where JSON has a text.
    try:
        return event_class.model_validate_json(text)
    except ValidationError:
        return event_class.model_validate_json(text, extra="ignore")


def _with_hint(value: Any, handler: ValidatorFunctionWrapHandler) -> str:
    try:
        return handler(value)
    except ValidationError as error:
        if not isinstance(value, str) or not (meant := hint(value, known_types())):
            raise
        raise PydanticCustomError(
            "event_type", "An event type is 'namespace:local'{hint}", {"hint": meant, "value": value}
        ) from error


type EventType = Annotated[
    str,
    StringConstraints(strict=True, pattern=EVENT_TYPE_PATTERN),
    Refusal(
        "event_type",
        "An event type is 'namespace:local' in lower-case letters, digits and underscores, such as 'ops:service.error'",
    ),
    WrapValidator(_with_hint),
    Unlike(r"\n"),
]
"""A qualified event type, `namespace:local`; a name with no namespace is refused with the types it may have meant."""

_NAMESPACES: Final[dict[str, dict[str, type[Event]]]] = {}
_OWNERS: Final[dict[str, str]] = {}
_OWN_NAMES: Final = frozenset(("type", "event_type", "event_namespace", "payload"))


def _declare_base(cls: type[Event], namespace: str | None, name: str | None, registry: EventRegistry | None) -> None:
    if name is not None:
        raise EventDefinitionError(f"{cls.__qualname__}: an abstract base has no name=, only its subclasses have")
    if namespace is None:
        if registry is not None:
            raise EventDefinitionError(f"{cls.__qualname__}: registry= goes with the event_namespace= it registers")
        return
    if cls.event_namespace:
        raise EventDefinitionError(
            f"{cls.__qualname__}: its base already belongs to the namespace {cls.event_namespace!r}: "
            "subclass Event itself"
        )
    if re.fullmatch(NAMESPACE_PATTERN[1:-1], namespace) is None:
        raise EventDefinitionError(
            f"{cls.__qualname__}: {namespace!r} is not a namespace: write lower-case letters, digits and underscores"
        )
    if namespace in _OWNERS:
        raise EventDefinitionError(
            f"{cls.__qualname__}: the namespace {namespace!r} belongs to {_OWNERS[namespace]}: "
            "subclass that base, or choose another namespace"
        )
    _OWNERS[namespace] = f"{cls.__module__}.{cls.__qualname__}"
    _NAMESPACES[namespace] = {}
    cls.event_namespace = namespace
    (DEFAULT_REGISTRY if registry is None else registry).add(cls)


def _declare_type(cls: type[Event], name: str | None) -> None:
    if cls.event_namespace not in _NAMESPACES:
        raise EventDefinitionError(
            f"{cls.__qualname__} belongs to no namespace: subclass a base of yours, "
            f"such as class ShopEvent(Event, abstract=True, event_namespace='shop')"
        )
    if cls.event_namespace == RESERVED_NAMESPACE and not _OWNERS[RESERVED_NAMESPACE].startswith(f"{cls.__module__}."):
        raise EventDefinitionError(
            f"{cls.__qualname__}: the namespace 'reflexr' is reserved: subclass a base of your own, "
            f"such as class ShopEvent(Event, abstract=True, event_namespace='shop')"
        )
    local = local_name(cls.__name__) if name is None else name
    if re.fullmatch(LOCAL_NAME_PATTERN[1:-1], local) is None:
        raise EventDefinitionError(
            f"{cls.__qualname__}: {local!r} is not a local name: pass name= with lower-case words "
            "of letters, digits and underscores, separated by dots"
        )
    classes = _NAMESPACES[cls.event_namespace]
    event_type = f"{cls.event_namespace}:{local}"
    if local in classes:
        raise EventDefinitionError(
            f"{cls.__qualname__}: {event_type!r} is already {classes[local].__qualname__}: pass another name="
        )
    for field_name, field in cls.model_fields.items():
        if field.validation_alias not in (None, field.serialization_alias or field_name):
            raise EventDefinitionError(
                f"{cls.__qualname__}.{field_name} is read as {field.validation_alias!r} and written as "
                f"{field.serialization_alias or field_name!r}: an event is written and read back, so give it one alias="
            )
        if field.serialization_alias not in (None, field.validation_alias or field_name):
            raise EventDefinitionError(
                f"{cls.__qualname__}.{field_name} is written as {field.serialization_alias!r} and read as "
                f"{field.validation_alias or field_name!r}: an event is written and read back, so give it one alias="
            )
    _set_type(cls, event_type)
    _check_keys(cls)
    classes[local] = cls


def _set_type(cls: type[Event], event_type: str) -> None:
    """Narrows the class's field `type` to its one value."""
    for name in _OWN_NAMES & inspect.get_annotations(cls).keys():
        raise EventDefinitionError(f"{cls.__qualname__}: the name {name!r} is the event's own: rename your field")
    field = copy(cls.model_fields["type"])
    field.annotation = cast("type[Any]", Literal[event_type])
    field.default = event_type
    # Whatever the class's alias_generator makes of other names, an event's type is under `type`.
    field.alias = field.validation_alias = field.serialization_alias = "type"
    field.alias_priority = 2
    cls.__pydantic_fields__["type"] = field
    cls.event_type = event_type
    # A forward reference that cannot be resolved yet is resolved at first use, as for any model.
    cls.model_rebuild(force=True, raise_errors=False)


def _check_keys(cls: type[Event]) -> None:
    """Refuses two fields that are written under one key."""
    fields: Iterable[tuple[str, FieldInfo | ComputedFieldInfo]] = (
        *cls.model_fields.items(),
        *cls.model_computed_fields.items(),
    )
    owners: dict[str, str] = {}
    for name, field in fields:
        key = (field.serialization_alias if isinstance(field, FieldInfo) else field.alias) or name
        if key in owners:
            raise EventDefinitionError(
                f"{cls.__qualname__}.{name} is written as {key!r}, and so is {owners[key]!r}: give one another alias="
            )
        owners[key] = name


DEFAULT_REGISTRY: Final = EventRegistry()
"""Holds every namespace whose base names no other registry."""


class UnknownEvent(Event, extra="allow", abstract=True):
    """An event of a type that the registry does not know, such as a newer version's.

    Its fields are kept as they are, and it is written back unchanged.
    """

    type: str = Field()

    @override
    def payload(self) -> dict[str, JsonValue]:
        payload = {"type": self.type, **(self.model_extra or {})}
        check_json(payload, self.type)
        return payload


type EventLike = Event | Mapping[str, Any]
"""An event, or its JSON object with its `type`, such as a client sends."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """One of the events to publish together.

    Attributes:
        event: The event.
        id: The event's id; by default a new one.
    """

    event: EventLike
    id: str | None = None
