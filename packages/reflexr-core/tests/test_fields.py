import warnings
from collections.abc import Mapping
from types import new_class
from typing import Annotated, Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, JsonValue, RootModel, TypeAdapter, ValidationError, computed_field
from pydantic.json_schema import SkipJsonSchema

from reflexr.core import Event, EventRegistry, UnknownEvent
from reflexr.core.fields import MISSING, FieldPath, field_names, has_field, reader

PATH: TypeAdapter[str] = TypeAdapter(FieldPath)


class FieldEvent(Event, abstract=True, event_namespace="fields", registry=EventRegistry()):
    pass


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Node(BaseModel):
    label: str
    parent: "Node | None" = None


class Choice(RootModel["Choice | dict[str, int]"]):
    pass


class Everything(FieldEvent):
    number: int
    maybe: Cat | None = None
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    anything: Any = object()
    value: JsonValue = None
    labels: dict[str, str]
    counts: dict[int, Cat]
    matched: dict[Annotated[str, Field(pattern="^a")], int] = Field(default_factory=dict)
    node: Node
    mode: Literal["a", "b"] = "a"
    one: Literal["a"] = "a"
    pets: list[Cat]
    choice: Choice
    renamed: int = Field(1, alias="other")
    dotted: int = Field(1, alias="a.b")
    table: dict[str, dict[str, Cat]]
    bare: dict[str, Any] = Field(default_factory=dict)
    hidden: SkipJsonSchema[int] = 0

    @computed_field
    @property
    def computed(self) -> Cat:
        raise AssertionError


class Open(FieldEvent, extra="allow"):
    known: int = 0


@pytest.mark.parametrize(
    "path",
    [
        *("type", "number", "mode", "pet", "pet.kind", "pet.lives", "pet.tricks", "maybe.lives", "computed.lives"),
        *("anything", "anything.a.b", "value.a.b.c", "labels", "labels.env", "counts.3.lives", "matched.abc"),
        *("node.label", "node.parent.parent.parent.label", "choice.a", "other", "table.a.b.lives", "bare.a.b"),
    ],
)
def test_a_class_has_the_fields_that_its_json_can_have(path: str) -> None:
    assert has_field(Everything, path)


@pytest.mark.parametrize(
    "path",
    [
        *("nothing", "number.a", "mode.a", "one.a", "pet.name", "pet.lives.a", "maybe.name", "labels.env.a"),
        *("counts.3.name", "node.name", "node.parent.name", "pets.0", "pets.lives", "renamed", "a.b", "computed.name"),
        *("table.a.b.name", "choice.a.b", "matched.abc.d"),
    ],
)
def test_a_class_has_no_field_that_its_json_cannot_have(path: str) -> None:
    assert not has_field(Everything, path)


def test_an_open_class_has_every_field() -> None:
    assert has_field(Open, "known")
    assert has_field(Open, "more.and.more")
    assert not has_field(Open, "known.more")
    assert has_field(UnknownEvent, "any.thing")


def test_a_class_that_is_not_complete_yet_may_have_any_field_until_it_is() -> None:
    body = {"__module__": __name__, "__annotations__": {"later": "Later | None"}, "later": None}
    pending: type[FieldEvent] = new_class("Pending", (FieldEvent,), exec_body=lambda namespace: namespace.update(body))

    assert has_field(pending, "later.anything")
    assert field_names(pending) == []

    class Later(BaseModel):
        at: int

    pending.model_rebuild(_types_namespace={"Later": Later})

    assert has_field(pending, "later.at")
    assert not has_field(pending, "later.anything")


def test_the_names_of_fields_are_those_that_a_path_can_name() -> None:
    names = field_names(Everything)

    assert {"number", "other", "computed", "pet"} <= {*names}
    assert names.index("number") < names.index("pet")
    assert not {"type", "renamed", "a.b", "dotted"} & {*names}


def test_a_default_that_json_cannot_hold_is_no_reason_to_warn() -> None:
    class Fresh(FieldEvent):
        anything: Any = object()

    with warnings.catch_warnings():
        warnings.simplefilter("error")

        assert has_field(Fresh, "anything")


keys = st.sampled_from(["a", "b", "é", "a b"])
trees = st.recursive(
    st.none() | st.integers() | st.text(max_size=2),
    lambda inner: st.dictionaries(keys, inner, max_size=2) | st.lists(inner, max_size=2),
)


@given(st.dictionaries(keys, trees), st.lists(keys, min_size=1, max_size=3))
def test_a_path_reads_the_value_on_the_way_through_objects(payload: dict[str, Any], path: list[str]) -> None:
    expected: Any = payload
    for key in path:
        expected = cast("Mapping[str, Any]", expected).get(key, MISSING) if isinstance(expected, Mapping) else MISSING

    assert reader(".".join(path))(payload) is expected


@pytest.mark.parametrize("path", ["a", "a.b", "é", "a b.c", "a\n", "0", "-", "a" * 255, "type"])
def test_a_path_is_names_with_dots_between(path: str) -> None:
    assert PATH.validate_python(path) == path


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "a\0", "\ud800", "a" * 256, 3, None, b"a", ["a"]])
def test_what_is_no_path_is_refused_with_an_example_of_one(path: Any) -> None:
    with pytest.raises(ValidationError, match=r"A field is its name, or .* such as 'labels\.env': 1 to 255 characters"):
        PATH.validate_python(path)
