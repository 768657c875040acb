from collections.abc import Awaitable
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from reflexr.core import Rule, RuleError, StoredRules, run
from reflexr.workspace import ActionFunction, FunctionAction, Reaction, RunFailure, with_params
from reflexr.workspace.actions import checked_actions, name_of, output_value

from .plant import alarms
from .reacting import Gate, nothing


class Target(BaseModel):
    thread: str


class Other(BaseModel):
    pass


async def notify(reaction: Reaction[Any], params: Target) -> str:
    return params.thread


def blocking(reaction: Reaction[Any]) -> None:
    raise AssertionError("never called")


def returns_an_awaitable(reaction: Reaction[Any]) -> Awaitable[None]:
    raise AssertionError("never called")


def allowed(*_: object) -> bool:
    return True


class Callee:
    async def __call__(self, reaction: Reaction[Any]) -> None:
        raise AssertionError("never called")


class Sync:
    params = None

    def run(self, reaction: Reaction[Any], /) -> None:
        raise AssertionError("never called")


def problems(actions: dict[str, Any], *rules: Rule, stored_rules: StoredRules | None = None) -> tuple[str, ...]:
    with pytest.raises(RuleError) as error:
        checked_actions(actions, {rule.name: rule for rule in rules}, stored_rules)
    return error.value.problems


@pytest.mark.parametrize(
    "action", [nothing, partial(nothing), Callee(), Gate().run], ids=["function", "partial", "object", "method"]
)
def test_whatever_is_a_coroutine_function_is_an_action(action: ActionFunction[None]) -> None:
    checked = checked_actions({"page": action}, {"plant:alarms": alarms()}, None)

    assert checked["page"].params is None


def test_an_object_with_params_and_run_is_an_action_as_it_is() -> None:
    gate = Gate()

    assert checked_actions({"page": gate}, {}, None) == {"page": gate}


def test_a_function_that_is_not_a_coroutine_function_is_refused_with_the_remedy() -> None:
    (problem,) = problems({"page": blocking})

    assert problem.startswith("actions: 'page': blocking is not a coroutine function: write it as `async def`")
    assert problem.endswith("and call what blocks through asyncio.to_thread")


@pytest.mark.parametrize("action", [Sync(), partial(blocking), returns_an_awaitable])
def test_so_is_whatever_else_does_not_await(action: Any) -> None:
    assert "is not a coroutine function" in problems({"page": action})[0]


def test_with_params_refuses_it_too() -> None:
    with pytest.raises(RuleError, match="write it as `async def`"):
        with_params(lambda reaction, params: nothing(reaction), Target)


def test_something_that_cannot_be_called_is_no_action() -> None:
    assert "'triage' is no action" in problems({"page": "triage"})[0]


def test_every_problem_is_listed_at_once() -> None:
    rules = [
        alarms("plant:a", then=run("absent")),
        alarms("plant:b", then=run("notify", thread=1, extra=True)),
        alarms("plant:c", then=run("plain", thread="x")),
        alarms("plant:d", then=run("blocking")),
    ]
    actions = {"notify": with_params(notify, Target), "plain": nothing, "blocking": blocking}

    found = problems(actions, *rules)

    assert [problem.split(": ")[0] for problem in found] == [
        "actions",
        "rule 'plant:a'",
        "rule 'plant:b'",
        "rule 'plant:b'",
        "rule 'plant:c'",
    ]
    assert "there is no action 'absent': those given in actions= are 'blocking', 'notify', 'plain'" in found[1]
    assert "the action 'plain' takes none" in found[4]


def test_without_actions_the_message_says_so() -> None:
    assert problems({}, alarms())[0].endswith("those given in actions= are none")


def test_the_actions_that_stored_rules_may_run_have_to_be_there_with_the_same_params() -> None:
    stored = StoredRules(
        allow=allowed,
        actions={"page": None, "absent": None, "notify": Other, "plain": Other},
        namespaces=frozenset({"chat"}),
    )

    found = problems({"page": nothing, "notify": with_params(notify, Target), "plain": nothing}, stored_rules=stored)

    assert len(found) == 3
    assert "there is no action 'absent'" in found[0]
    assert "the params of 'notify' are Other, but the action's are Target" in found[1]
    assert "the params of 'plain' are Other, but the action's are none" in found[2]


def test_an_action_of_stored_rules_that_is_none_is_named_once() -> None:
    stored = StoredRules(allow=allowed, actions={"page": None}, namespaces=frozenset({"chat"}))

    assert len(problems({"page": blocking}, stored_rules=stored)) == 1


def test_an_action_with_params_keeps_the_functions_name_so_that_run_finds_it() -> None:
    action = with_params(notify, Target)

    assert isinstance(action, FunctionAction)
    assert (action.name, action.params) == ("notify", Target)
    assert run(action).action == "notify"
    assert name_of(partial(partial(notify))) == "notify"
    assert name_of(Callee()) == "Callee"


@pytest.mark.parametrize(
    "output", [float("nan"), {"at": object()}, {1: "x"}, "\ud800", b"bytes", Target(thread="\ud800")]
)
def test_an_output_that_is_not_json_fails_the_attempt_with_the_remedy(output: object) -> None:
    with pytest.raises(RunFailure, match="Return JSON, a pydantic model or None") as failure:
        output_value(output, "fir_1")

    assert failure.value.reason == "invalid_output"
    assert not failure.value.permanent


def test_a_model_is_recorded_as_its_json() -> None:
    assert output_value(Target(thread="t"), "fir_1") == {"thread": "t"}


async def takes_nothing() -> None:
    raise AssertionError("never called")


async def takes_three(reaction: Reaction[Any], first: int, second: int) -> None:
    raise AssertionError("never called")


async def takes_two(reaction: Reaction[Any], params: "Target") -> None:
    raise AssertionError("never called")


async def takes_an_option(reaction: Reaction[Any], *, urgent: bool) -> None:
    raise AssertionError("never called")


async def takes_any(reaction: Reaction[Any], params: dict[str, int]) -> None:
    raise AssertionError("never called")


class TakesNothing:
    params = None

    async def run(self) -> None:
        raise AssertionError("never called")


@pytest.mark.parametrize(
    ("action", "remedy"),
    [
        (takes_nothing, "takes no reaction: write `async def takes_nothing(reaction)`"),
        (
            notify,
            "takes two arguments, but an action is given one, its reaction: if the second is its params, wrap it ",
        ),
        (notify, "wrap it as with_params(notify, Target)"),
        (takes_two, "wrap it as with_params(takes_two, Target)"),
        (takes_any, "wrap it as with_params(takes_any, Params)"),
        (takes_three, "cannot be called with a reaction alone: write `async def takes_three(reaction)`"),
        (takes_an_option, "cannot be called with a reaction alone"),
        (TakesNothing(), "takes no reaction: write `async def run(reaction)`"),
        (Gate, "Gate is a class: give an instance of it"),
    ],
)
def test_an_action_that_cannot_be_called_with_a_reaction_is_refused_with_the_remedy(action: Any, remedy: str) -> None:
    (problem,) = problems({"page": action})

    assert remedy in problem


@pytest.mark.parametrize("action", [partial(notify, params=Target(thread="x")), partial(takes_an_option, urgent=True)])
def test_arguments_that_are_given_already_are_not_missed(action: ActionFunction[None]) -> None:
    checked = checked_actions({"page": action}, {}, None)

    assert checked["page"].params is None


@pytest.mark.parametrize("function", [nothing, takes_three, takes_nothing])
def test_with_params_wants_a_function_of_two(function: Any) -> None:
    with pytest.raises(RuleError, match=r"does not take two arguments: write `async def \w+\(reaction, params\)`"):
        with_params(function, Target)
