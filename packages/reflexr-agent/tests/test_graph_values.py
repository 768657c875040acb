from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, override

import pytest
from pydantic import BaseModel, Field, ValidationError
from pydantic_graph import StepContext
from pydantic_graph.id_types import NodeID
from pydantic_graph.step import Step

from reflexr.agent.graph_values import NotLasting, Shape, StepShapes, fingerprint

from .harbour import START


class Berth(BaseModel):
    number: int = Field(alias="no")


class Wide(Berth):
    width: float = 1.0


@dataclass
class Plan:
    ships: list[Berth]
    at: datetime


class Flag(StrEnum):
    RED = "red"


class Loose(BaseModel):
    value: Any


@dataclass
class Slack:
    value: Any


class Odd:
    """Raises wherever it is compared."""

    @override
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    @override
    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Any, {"a": [1, 2.5, None, True, "x"]}),
        (int, 3),
        (Berth, Berth(no=4)),
        (list[Berth], [Berth(no=4)]),
        (Plan, Plan([Berth(no=1)], START)),
        (Decimal, Decimal("1.10")),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (Flag, Flag.RED),
        (int | Berth, Berth(no=1)),
        (None, None),
        (Loose, Loose(value={"a": [1]})),
        (Slack, Slack([1, "a"])),
    ],
)
def test_a_value_of_its_declared_type_reads_back_as_it_was(declared: Any, value: Any) -> None:
    shape = Shape(declared)

    back = shape.read(shape.write(value))

    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Any, Berth(no=1)),
        (Any, (1, 2)),
        (Any, {"flag": Flag.RED}),
        (Any, [Flag.RED]),
        (dict[str, Any], {"plan": Plan([], START)}),
        (Loose, Loose(value=Flag.RED)),
        (Slack, Slack(Flag.RED)),
        (Any, {1: "a"}),
        (Any, [True, object()]),
        (Any, Odd()),
        (Berth, Wide(no=1, width=2)),
        (Odd, Odd()),
        (float, float("nan")),
        (int, "3"),
        (float, True),
        (list[Any], [float("inf")]),
        (Any, "\ud800"),
        ("Unknown", 1),
    ],
)
def test_a_value_that_would_read_back_as_another_is_not_written(declared: Any, value: Any) -> None:
    with pytest.raises(NotLasting):
        Shape(declared).write(value)


def test_a_value_that_nests_too_deep_is_not_written() -> None:
    value: Any = None
    for _ in range(99):
        value = [value]

    with pytest.raises(NotLasting, match="nests deeper"):
        Shape(Any).write(value)


def test_a_value_that_its_type_no_longer_accepts_is_not_read() -> None:
    with pytest.raises(ValidationError):
        Shape(int).read("x")
    with pytest.raises(NotLasting):
        Shape(Odd).read(1)


def shapes_of(function: Any) -> StepShapes:
    return StepShapes(Step[Any, Any, Any, Any](id=NodeID("step"), call=function))


def test_a_step_declares_its_inputs_and_its_output() -> None:
    async def step(ctx: StepContext[None, None, Plan]) -> Berth:
        raise NotImplementedError

    plan = Plan([], START)
    shapes = shapes_of(step)

    assert shapes.inputs.read(shapes.inputs.write(plan)) == plan
    assert shapes.output.read(shapes.output.write(Berth(no=1))) == Berth(no=1)


def test_what_a_step_does_not_declare_is_plain_json() -> None:
    async def bare(ctx: Any) -> Any:
        raise NotImplementedError

    async def hidden(ctx: Any) -> Any:
        raise NotImplementedError

    # As where names are imported for the type checker alone.
    hidden.__annotations__ = {"ctx": "StepContext[None, None, Hidden]", "return": "Hidden"}
    functions: list[Any] = [bare, hidden, 3]

    for function in functions:
        shapes = shapes_of(function)
        assert shapes.inputs.write([1]) == shapes.output.write([1]) == [1]


def test_inputs_are_known_again_by_what_they_are() -> None:
    assert fingerprint(Berth(no=1)) == fingerprint(Berth(no=1))
    assert len({fingerprint(value) for value in (1, True, "1", 1.5, None, [1], Berth(no=1), Wide(no=1), b"\xff")}) == 9
    assert fingerprint("\ud800") == fingerprint("\ud800x")


# Either is iterated in the order in which it was filled, as both find the same place for what they hold.
ONE, OTHER = frozenset([0, 8]), frozenset([8, 0])


WITHIN: dict[str, Callable[[Any], Any]] = {
    "itself": lambda numbers: numbers,
    "set": set,
    "dict": lambda numbers: {"a": [numbers, (numbers,)]},
    "model": lambda numbers: Loose(value={"a": numbers}),
    "dataclass": lambda numbers: Slack([numbers]),
    "set of sets": lambda numbers: frozenset([numbers, frozenset("x")]),
}


@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN.keys())
def test_a_set_among_inputs_is_known_again_in_whatever_order_it_comes(within: Callable[[Any], Any]) -> None:
    assert list(ONE) != list(OTHER)
    assert fingerprint(within(ONE)) == fingerprint(within(OTHER))
    assert fingerprint(within(ONE)) != fingerprint(within(frozenset([0, 9])))


def test_inputs_that_hold_themselves_have_no_json() -> None:
    inputs: list[Any] = []
    inputs.append(inputs)
    assert fingerprint(inputs) == fingerprint(["\ud800"])
