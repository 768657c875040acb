import enum
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import new_class
from typing import Annotated, Any, ClassVar, Literal, override

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    computed_field,
    model_serializer,
)
from pydantic.alias_generators import to_pascal

from reflexr.core import (
    DEFAULT_REGISTRY,
    Event,
    EventDefinitionError,
    EventRegistry,
    EventType,
    InvalidEventError,
    NotJsonError,
    ReflexrEvent,
    RuleFired,
    UnknownEvent,
    on,
)
from reflexr.core.events import hint, local_name, problems

from .json_values import NOT_JSON, json_values, nested
from .shop import COPIES, Address, OrderPaid, OrderPlaced, ShopEvent

REGISTRY = EventRegistry()
EVENT_TYPE: TypeAdapter[str] = TypeAdapter(EventType)


class DefinedEvent(Event, abstract=True, event_namespace="defined", registry=REGISTRY):
    pass


class Anything(DefinedEvent):
    value: Any = None


class Reading(BaseModel):
    level: float


class Measured(DefinedEvent):
    reading: Reading
    earlier: list[Reading] = Field(default_factory=list[Reading])


class HTTPError(DefinedEvent):
    url: str = Field(alias="href")
    _attempts: int = PrivateAttr(3)

    def attempts(self) -> int:
        return self._attempts

    @computed_field
    @property
    def secure(self) -> bool:
        return self.url.startswith("https:")


class Colour(enum.Enum):
    RED = "red"


class Strict(DefinedEvent, strict=True, extra="forbid"):
    at: datetime
    colour: Colour
    tags: frozenset[str]
    raw: bytes = b""
    amount: Decimal = Decimal(0)
    child: Reading | None = None

    @computed_field
    @property
    def year(self) -> int:
        return self.at.year


class Open(DefinedEvent, extra="allow"):
    known: int = 0


class Pascal(DefinedEvent, alias_generator=to_pascal):
    some_name: int


class Boxed[T](DefinedEvent):
    value: T


class AnyBox[T](DefinedEvent, abstract=True):
    value: T


class IntBox(AnyBox[int]):
    pass


class Token:
    """What only its own serializer can write."""


class Opaque(DefinedEvent, arbitrary_types_allowed=True):
    token: Annotated[Token, PlainSerializer(lambda token: None, when_used="json")]
    reading: Reading | None = None


class Tree(DefinedEvent):
    children: "list[Leaf]"


class Leaf(BaseModel):
    name: str


class Base(DefinedEvent):
    first: int = 1


class Derived(Base):
    second: int = 2


@pytest.mark.parametrize(
    ("event_class", "event_type"),
    [
        (OrderPlaced, "shop:order_placed"),
        (OrderPaid, "shop:order.paid"),
        (HTTPError, "defined:http_error"),
        (Derived, "defined:derived"),
        (IntBox, "defined:int_box"),
        (Boxed[str], "defined:boxed"),
        (RuleFired, "reflexr:rule_fired"),
        (ShopEvent, ""),
        (AnyBox[int], ""),
        (UnknownEvent, ""),
    ],
)
def test_an_event_type_is_its_namespace_and_the_snake_case_of_its_class_or_its_name(
    event_class: type[Event], event_type: str
) -> None:
    assert event_class.event_type == event_type


@pytest.mark.parametrize(
    ("class_name", "local"),
    [("Error", "error"), ("HTTPError", "http_error"), ("V2Ready", "v2_ready"), ("OrderHTTP", "order_http"), ("A", "a")],
)
def test_the_snake_case_of_a_name_keeps_abbreviations_together(class_name: str, local: str) -> None:
    assert local_name(class_name) == local


def test_a_payload_is_the_json_of_the_event_with_its_type() -> None:
    placed = OrderPlaced(order="o1", labels={"a": "b"}, address=Address(city="Oslo"))

    assert placed.payload() == {
        "type": "shop:order_placed",
        "order": "o1",
        "total": 0.0,
        "labels": {"a": "b"},
        "address": {"city": "Oslo", "zone": None},
    }


@pytest.mark.parametrize(
    "event",
    [
        HTTPError(href="https://a"),
        Measured(reading=Reading(level=1.5), earlier=[Reading(level=0)]),
        Strict(at=datetime(2026, 1, 1, tzinfo=UTC), colour=Colour.RED, tags=frozenset("a"), raw=b"\x01"),
        Strict(
            at=datetime(9999, 12, 31, tzinfo=UTC),
            colour=Colour.RED,
            tags=frozenset(),
            raw=b"\x01",
            amount=Decimal("0.10"),
        ),
        Pascal.model_validate({"SomeName": 3}),
        Boxed[int](value=3),
        IntBox(value=3),
        Tree(children=[Leaf(name="a")]),
        Derived(first=0),
        Anything(value=[None, "NaN", "inf"]),
    ],
)
def test_an_event_comes_back_from_its_payload_as_it_was(event: Event) -> None:
    payload = event.payload()
    parsed = REGISTRY.parse(payload)

    assert payload["type"] == type(event).event_type
    assert parsed.payload() == payload
    assert parsed.model_dump() == event.model_dump()


class Own(DefinedEvent):
    @override
    def payload(self) -> dict[str, JsonValue]:
        return {**super().payload(), "own": True}


def test_the_payloads_of_events_are_each_ones_own_in_their_order() -> None:
    events = [
        Anything(value=[None, "NaN", {"a": nested(90)}]),
        OrderPlaced(order="o1", labels={"a": "b"}, address=Address(city="Oslo")),
        Anything(value="second"),
        Own(),
        Boxed[int](value=3),
        Boxed[str](value="3"),
        UnknownEvent.model_validate({"type": "newer:event", "more": [1]}),
        Derived(),
        Base(),
    ]

    assert repr(REGISTRY.payloads(events)) == repr([event.payload() for event in events])
    assert REGISTRY.payloads([]) == []


@given(st.lists(json_values))
def test_the_payloads_of_one_class_are_what_each_ones_is(values: list[JsonValue]) -> None:
    assert repr(REGISTRY.payloads([Anything(value=value) for value in values])) == repr(
        [Anything(value=value).payload() for value in values]
    )


@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
def test_what_keeps_one_of_many_events_from_being_json_is_named(value: Any, problem: str) -> None:
    with pytest.raises(NotJsonError, match=r"defined:anything"):
        REGISTRY.payloads([Anything(), Anything(value=value), Anything()])


def test_a_class_says_how_what_it_does_not_declare_is_written() -> None:
    class Encoded(DefinedEvent, ser_json_bytes="base64", ser_json_timedelta="float"):
        value: Any

    events = [Encoded(value=b"\xff"), Encoded(value=timedelta(seconds=1.5))]

    assert [payload["value"] for payload in REGISTRY.payloads(events)] == ["_w==", 1.5]


def test_a_class_that_is_built_again_is_written_as_it_is_then() -> None:
    class Growing(DefinedEvent):
        value: int = 1

    assert Growing().payload() == {"type": "defined:growing", "value": 1}

    Growing.model_fields["value"].exclude = True
    Growing.model_rebuild(force=True)

    assert Growing().payload() == {"type": "defined:growing"}


def test_a_class_that_is_built_at_first_use_is_written_too() -> None:
    class Deferred(DefinedEvent, defer_build=True):
        value: int = 1

    assert Deferred().payload() == {"type": "defined:deferred", "value": 1}
    assert REGISTRY.payloads([Deferred(), Deferred(value=2)])[1] == {"type": "defined:deferred", "value": 2}


@given(json_values)
def test_any_json_value_comes_back_from_a_payload(value: JsonValue) -> None:
    assert repr(Anything(value=value).payload()["value"]) == repr(value)


def test_an_event_of_a_derived_class_is_of_that_class() -> None:
    assert isinstance(REGISTRY.parse(Derived().payload()), Derived)
    assert type(REGISTRY.parse(Base().payload())) is Base


def test_an_open_event_keeps_the_fields_that_it_does_not_declare() -> None:
    event = Open.model_validate({"more": [1]})

    assert event.payload() == {"type": "defined:open", "known": 0, "more": [1]}
    assert REGISTRY.parse(event.payload()) == event


def test_events_are_immutable_and_are_of_one_type() -> None:
    event = OrderPaid(order="o1")

    with pytest.raises(ValidationError, match="frozen"):
        event.order = "o2"
    with pytest.raises(ValidationError, match=r"Input should be 'shop:order\.paid'"):
        OrderPaid(type="shop:order_placed", order="o1")


def test_private_attributes_stay_out_of_the_payload() -> None:
    event = HTTPError(href="http://a")

    assert event.attempts() == 3
    assert event.payload() == {"type": "defined:http_error", "href": "http://a", "secure": False}


@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
def test_an_event_that_json_cannot_hold_has_no_payload(value: Any, problem: str) -> None:
    with pytest.raises(NotJsonError, match=r"defined:anything"):
        Anything(value=value).payload()


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (Anything(value=float("nan")), r"defined:anything\.value is nan"),
        (Anything(value=[1, {"a": float("inf")}]), r"defined:anything\.value\.1\.a is inf"),
        (Measured(reading=Reading(level=float("nan"))), r"defined:measured\.reading\.level is nan"),
        (
            Measured(reading=Reading(level=0), earlier=[Reading(level=float("-inf"))]),
            r"defined:measured\.earlier\.0\.level is -inf",
        ),
        (Anything(value={float("nan"): 1}), r"a key of defined:anything\.value is nan"),
        (Anything(value={float("-inf"): 1}), r"a key of defined:anything\.value is -inf"),
        (Anything(value=Decimal("NaN")), r"defined:anything\.value is Decimal"),
        (Anything(value=Decimal("-Infinity")), r"defined:anything\.value is Decimal"),
        (Anything(value=iter([float("nan")])), r"defined:anything\.value\.0 is nan"),
        (Anything(value=nested(100)), r"defined:anything\.value.* nests deeper than 100 levels"),
        (Anything(value=nested(10_000)), "'defined:anything' cannot be written as JSON"),
        (Anything(value=LOOP), "'defined:anything' cannot be written as JSON: .*Circular"),
        (Anything(value=object()), "'defined:anything' cannot be written as JSON: .*<class 'object'>"),
        (Anything(value=b"\xff"), "'defined:anything' cannot be written as JSON: .*utf-8"),
        (Anything(value={"\ud800": 1}), "'defined:anything' cannot be written as JSON: .*surrogates not allowed"),
    ],
)
def test_what_keeps_an_event_from_being_json_is_named_with_its_place(event: Event, problem: str) -> None:
    with pytest.raises(NotJsonError, match=f"^{problem}"):
        event.payload()


@pytest.mark.parametrize("value", [nested(99), Decimal("1.50"), {1: "a"}, {"a", "b"}, "nan", ["null", None], 'inf"'])
def test_what_has_a_form_in_json_is_written_in_it(value: Any) -> None:
    assert Anything(value=value).payload()["type"] == "defined:anything"


def test_what_only_its_own_serializer_can_write_is_written_by_it() -> None:
    assert Opaque(token=Token()).payload() == {"type": "defined:opaque", "token": None, "reading": None}
    with pytest.raises(NotJsonError, match=r"defined:opaque\.reading\.level is nan"):
        Opaque(token=Token(), reading=Reading(level=float("nan"))).payload()


def test_an_event_that_loses_its_type_in_json_is_refused() -> None:
    class Lossy(DefinedEvent):
        @model_serializer
        def _write(self) -> Any:
            return {"a": 1}

    class Listed(DefinedEvent):
        @model_serializer
        def _write(self) -> Any:
            return [1]

    for event in (Lossy(), Listed(), ShopEvent(), Base().model_copy(update={"type": "defined:derived"})):
        with pytest.raises(NotJsonError, match="serializes to no object with the type"):
            event.payload()


def define(
    class_name: str = "Lost",
    base: type[Event] = DefinedEvent,
    annotations: dict[str, Any] | None = None,
    attributes: dict[str, Any] | None = None,
    **arguments: Any,
) -> type[Event]:
    """Runs a class statement."""
    body = {"__module__": __name__, "__annotations__": annotations or {}, **(attributes or {})}
    return new_class(class_name, (base,), arguments, lambda namespace: namespace.update(body))


def kind(self: Event) -> str:
    return self.type


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ({"base": Event}, "Lost belongs to no namespace: subclass a base of yours, such as class ShopEvent"),
        (
            {"base": Event, "attributes": {"event_namespace": "nowhere"}},
            "Lost belongs to no namespace: subclass a base of yours",
        ),
        ({"base": UnknownEvent}, "Lost belongs to no namespace"),
        ({"base": ReflexrEvent}, "Lost: the namespace 'reflexr' is reserved: subclass a base of your own"),
        ({"base": RuleFired}, "Lost: the namespace 'reflexr' is reserved"),
        ({"event_namespace": "lost"}, "belong to an abstract base: add abstract=True"),
        ({"registry": REGISTRY}, "belong to an abstract base: add abstract=True"),
        ({"name": "Lost-Event"}, "Lost: 'Lost-Event' is not a local name: pass name= with lower-case words"),
        ({"name": ""}, "Lost: '' is not a local name"),
        ({"name": "lost\n"}, "is not a local name"),
        ({"name": "égaré"}, "'égaré' is not a local name"),
        ({"name": "a..b"}, "'a..b' is not a local name"),
        ({"name": "anything"}, "Lost: 'defined:anything' is already Anything: pass another name="),
        ({"annotations": {"type": str}}, "Lost: the name 'type' is the event's own: rename your field"),
        (
            {"annotations": {"type": Literal["mine"]}, "attributes": {"type": "mine"}},
            "Lost: the name 'type' is the event's own",
        ),
        (
            {"annotations": {"type": ClassVar[str]}, "attributes": {"type": "mine"}},
            "Lost: the name 'type' is the event's own",
        ),
        ({"annotations": {"event_type": ClassVar[str]}}, "Lost: the name 'event_type' is the event's own"),
        ({"annotations": {"event_namespace": ClassVar[str]}}, "Lost: the name 'event_namespace' is the event's own"),
        ({"annotations": {"payload": ClassVar[str]}}, "Lost: the name 'payload' is the event's own"),
        (
            {"annotations": {"kind": str}, "attributes": {"kind": Field("a", alias="type")}},
            "Lost.kind is written as 'type', and so is 'type': give one another alias=",
        ),
        (
            {"attributes": {"kind": computed_field(alias="type")(property(kind))}},
            "Lost.kind is written as 'type', and so is 'type'",
        ),
        (
            {"annotations": {"a": int, "b": int}, "attributes": {"a": Field(1, alias="b")}},
            "Lost.b is written as 'b', and so is 'a': give one another alias=",
        ),
        (
            {"annotations": {"a": int}, "attributes": {"a": Field(1, validation_alias="b")}},
            "Lost.a is read as 'b' and written as 'a': an event is written and read back, so give it one alias=",
        ),
        (
            {"annotations": {"a": int}, "attributes": {"a": Field(1, validation_alias=AliasChoices("a", "b"))}},
            "and written as 'a': an event is written and read back",
        ),
        (
            {"annotations": {"a": int}, "attributes": {"a": Field(1, serialization_alias="b")}},
            "Lost.a is written as 'b' and read as 'a': an event is written and read back",
        ),
        ({"abstract": True, "name": "lost"}, "Lost: an abstract base has no name=, only its subclasses have"),
        ({"abstract": True, "registry": REGISTRY}, "Lost: registry= goes with the event_namespace= it registers"),
        (
            {"abstract": True, "event_namespace": "lost"},
            "Lost: its base already belongs to the namespace 'defined': subclass Event itself",
        ),
        (
            {"base": Event, "abstract": True, "event_namespace": "Lost"},
            "Lost: 'Lost' is not a namespace: write lower-case letters, digits and underscores",
        ),
        ({"base": Event, "abstract": True, "event_namespace": "lost\n"}, "is not a namespace"),
        ({"base": Event, "abstract": True, "event_namespace": ""}, "'' is not a namespace"),
        (
            {"base": Event, "abstract": True, "event_namespace": "shop"},
            "Lost: the namespace 'shop' belongs to .*ShopEvent: subclass that base, or choose another namespace",
        ),
        (
            {"base": Event, "abstract": True, "event_namespace": "reflexr"},
            "Lost: the namespace 'reflexr' belongs to reflexr.core.facts.ReflexrEvent",
        ),
    ],
)
def test_a_class_that_can_be_no_event_is_refused_by_its_class_statement(
    statement: dict[str, Any], problem: str
) -> None:
    with pytest.raises(EventDefinitionError, match=problem):
        define(**statement)

    assert "defined:lost" not in REGISTRY


def test_a_class_that_is_refused_leaves_its_type_to_the_next() -> None:
    with pytest.raises(EventDefinitionError):
        define("Retried", annotations={"a": int}, attributes={"a": Field(1, serialization_alias="b")})

    assert define("Retried") is REGISTRY["defined:retried"]


def test_a_namespace_is_in_the_registry_that_its_base_names_and_in_no_other() -> None:
    assert REGISTRY["defined:anything"] is Anything
    assert "defined:anything" not in DEFAULT_REGISTRY
    assert DEFAULT_REGISTRY["shop:order_placed"] is OrderPlaced
    assert "shop:order_placed" not in REGISTRY


def test_every_registry_knows_the_events_of_reflexr() -> None:
    assert EventRegistry()["reflexr:rule_fired"] is RuleFired


def test_a_registry_is_a_mapping_of_its_classes_by_type() -> None:
    registry = EventRegistry(ShopEvent)
    own = {event_type: cls for event_type, cls in registry.items() if not event_type.startswith("reflexr:")}

    assert own == {"shop:order_placed": OrderPlaced, "shop:order.paid": OrderPaid}
    assert len(registry) == len(EventRegistry()) + 2
    assert repr(registry) == "EventRegistry(reflexr, shop)"
    for name in ("", ":", "shop:", ":order_placed", "order_placed", "shop:order_placed:x", "none:order_placed"):
        assert name not in registry


def test_a_registry_finds_classes_that_are_defined_later() -> None:
    registry = EventRegistry(DefinedEvent)
    later = define("Later")

    assert registry["defined:later"] is later


def test_a_registry_can_include_the_namespaces_of_others() -> None:
    registry = EventRegistry()

    assert registry.add(OrderPaid, DefinedEvent) is registry
    assert registry["shop:order_placed"] is OrderPlaced
    assert registry["defined:anything"] is Anything


@pytest.mark.parametrize("base", [Event, UnknownEvent])
def test_a_registry_includes_no_base_without_a_namespace(base: type[Event]) -> None:
    with pytest.raises(EventDefinitionError, match="belongs to no namespace: add a base that declares one"):
        EventRegistry(base)


@pytest.mark.parametrize("of", COPIES)
def test_a_copy_of_a_registry_knows_the_same_types(of: Any) -> None:
    registry = EventRegistry(ShopEvent)

    assert of(registry) == registry


def test_a_generic_event_is_one_type_whatever_its_arguments() -> None:
    payload = Boxed[int](value=3).payload()

    assert payload == {"type": "defined:boxed", "value": 3}
    assert REGISTRY.parse(payload).model_dump() == {"type": "defined:boxed", "value": 3}
    assert on(Boxed[int]) == on(Boxed[str]) == on("defined:boxed")


def test_a_base_may_have_class_arguments_of_its_own() -> None:
    class Coloured(DefinedEvent, abstract=True):
        colour: ClassVar[str] = ""

        def __init_subclass__(cls, colour: str = "", **arguments: Any) -> None:
            super().__init_subclass__(**arguments)
            cls.colour = colour

        @classmethod
        @override
        def __pydantic_init_subclass__(cls, colour: str = "", **arguments: Any) -> None:
            super().__pydantic_init_subclass__(**arguments)

    class Painted(Coloured, colour="red"):
        pass

    assert (Painted.colour, Painted.event_type) == ("red", "defined:painted")


def test_an_event_of_an_old_version_is_read_without_the_fields_that_are_gone() -> None:
    payload = {**Strict(at=datetime(1, 1, 1, tzinfo=UTC), colour=Colour.RED, tags=frozenset()).payload(), "gone": 1}

    assert REGISTRY.parse(payload) == Strict(at=datetime(1, 1, 1, tzinfo=UTC), colour=Colour.RED, tags=frozenset())
    assert REGISTRY.parse({"type": "defined:base", "gone": 1}) == Base()


@pytest.mark.parametrize(
    ("payload", "event_type", "errors"),
    [
        ({"type": "shop:order.paid"}, "shop:order.paid", ("order: Field required",)),
        (
            {"type": "shop:order.paid", "order": 1, "amount": "x"},
            "shop:order.paid",
            (
                "order: Input should be a valid string",
                "amount: Input should be a valid integer, unable to parse string as an integer",
            ),
        ),
        ({"order": "o1"}, "None", ("type: Field required",)),
        ({"type": 3}, "3", ("type: Input should be a valid string",)),
    ],
)
def test_a_stored_event_that_its_class_refuses_is_invalid(
    payload: dict[str, Any], event_type: str, errors: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidEventError, match=f"no longer a valid '{re.escape(event_type)}': ") as caught:
        DEFAULT_REGISTRY.parse(payload)

    assert (caught.value.event_type, caught.value.errors) == (event_type, errors)


def test_an_event_of_an_unknown_type_is_kept_as_it_is() -> None:
    payload = {"type": "newer:event", "payload": 1, "event_type": 2, "_x": {"type": 3}, "a": [None, 1.0]}
    event = REGISTRY.parse(payload)

    assert isinstance(event, UnknownEvent)
    assert event.type == "newer:event"
    assert repr(event.payload()) == repr(payload)


@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
def test_an_unknown_event_that_json_cannot_hold_has_no_payload(value: Any, problem: str) -> None:
    with pytest.raises(NotJsonError, match=f"newer:event.*{problem}|{problem}"):
        UnknownEvent.model_validate({"type": "newer:event", "value": value}).payload()


@pytest.mark.parametrize("event_type", ["shop:order_placed", "shop:order.paid", "a1_:b2_.c", "reflexr:tick"])
def test_an_event_type_is_a_qualified_name(event_type: str) -> None:
    assert EVENT_TYPE.validate_python(event_type) == event_type


@pytest.mark.parametrize(
    "value",
    [
        *("", ":", "shop:", ":order", "nowhere", "a:b:c", "1a:b", "a-b:c"),
        *("Shop:order", "shop:Order", "shop:order.", "shop:a..b", "shop:order\n", "\ud800:x"),
        *(3, None, b"a:b"),
    ],
)
def test_what_is_no_event_type_is_refused_with_an_example_of_one(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"An event type is 'namespace:local' .* such as 'ops:service\.error'"):
        EVENT_TYPE.validate_python(value)


def test_a_local_name_alone_is_refused_with_the_types_it_may_have_meant() -> None:
    with pytest.raises(ValidationError, match=r"An event type is 'namespace:local'; did you mean 'shop:order\.paid'\?"):
        EVENT_TYPE.validate_python("order.paid")


def test_a_hint_names_every_type_of_the_local_name() -> None:
    assert hint("x:tick", ["b:tick", "a:tick", "a:tock"]) == "; did you mean 'a:tick' or 'b:tick'?"
    assert hint("tick", []) == ""
    assert REGISTRY.hint("anything") == "; did you mean 'defined:anything'?"


def test_a_registry_hints_at_the_type_that_is_spelt_most_alike() -> None:
    assert REGISTRY.hint("defined:anythin") == "; did you mean 'defined:anything'?"
    assert REGISTRY.hint("other:word") == ""


def test_a_problem_is_told_with_its_place() -> None:
    with pytest.raises(ValidationError) as caught:
        Measured.model_validate({"reading": {}, "earlier": [{"level": "high"}]})

    assert problems(caught.value) == [
        "reading.level: Field required",
        "earlier.0.level: Input should be a valid number, unable to parse string as a number",
    ]


def test_a_problem_of_the_whole_is_told_alone() -> None:
    with pytest.raises(ValidationError) as caught:
        Measured.model_validate(3)

    assert problems(caught.value) == ["Input should be a valid dictionary or instance of Measured"]


def test_events_may_have_their_own_configuration() -> None:
    class Loose(DefinedEvent):
        model_config = ConfigDict(frozen=False, ser_json_inf_nan="null")
        value: float = 0

    loose = Loose()
    loose.value = float("nan")

    with pytest.raises(NotJsonError, match=r"defined:loose\.value is nan"):
        loose.payload()


def test_an_event_that_was_made_unchecked_is_not_written_with_fields_of_other_types() -> None:
    with pytest.raises(NotJsonError, match="shop:order_placed"):
        OrderPlaced.model_validate({"order": "o"}).model_copy(update={"order": 5}).payload()
