"""Actions: what firings run, as the port `Action`, and plain functions as its first adapter.

What an action is given is `reflexr.workspace.reactions`'s; when it runs, `reflexr.workspace.executing`'s.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from inspect import Signature, iscoroutinefunction, signature
from typing import Any, Protocol, cast

from pydantic import BaseModel, JsonValue

from reflexr.core import NotJsonError, Rule, RuleError, StoredRules, json_value, load_params, model_value
from reflexr.workspace.failures import INVALID_OUTPUT, RunFailure
from reflexr.workspace.pauses import Pause
from reflexr.workspace.reactions import Reaction

type Output = BaseModel | str | float | bool | list[Any] | dict[str, Any] | Pause | None
"""What an action returns: a JSON value, a pydantic model, which is recorded as its JSON, or a `Pause` to wait."""

type ActionFunction[Deps] = Callable[[Reaction[Deps]], Awaitable[Output]]
"""An `async def` over a reaction, which is an action without params."""


class Action[Deps](Protocol):
    """What a firing runs."""

    @property
    def params(self) -> type[BaseModel] | None:
        """The model of the params that rules give it; `None` if it takes none."""
        ...

    async def run(self, reaction: Reaction[Deps], /) -> Output:
        """Carries out one attempt, and returns the run's output, or a `Pause` if it is to wait for an answer.

        It runs at least once: an attempt that was cut short is made again, so what it does outside is keyed by
        `reaction.idempotency_key`. It is cancelled when the rule's timeout is over, the run is cancelled, its lease is
        lost or the reactor stops, and should end soon after. What it raises fails the attempt.

        Raises:
            RunFailure: The attempt failed, with a reason, perhaps for good.
        """
        ...


class FunctionAction[Deps]:
    """A coroutine function as an action. `with_params` makes one; a function without params needs none."""

    def __init__(self, name: str, function: ActionFunction[Deps], params: type[BaseModel] | None = None) -> None:
        """Wraps a function.

        Args:
            name: What the function is called.
            function: The function over a reaction.
            params: The model of its params.
        """
        self._name = name
        self._function = function
        self._params = params

    @property
    def name(self) -> str:
        """The function's name, under which `run(action)` refers to it."""
        return self._name

    @property
    def params(self) -> type[BaseModel] | None:
        """The model of its params."""
        return self._params

    async def run(self, reaction: Reaction[Deps], /) -> Output:
        """Awaits the function."""
        return await self._function(reaction)


def with_params[Deps, Params: BaseModel](
    function: Callable[[Reaction[Deps], Params], Awaitable[Output]], params: type[Params]
) -> FunctionAction[Deps]:
    """Returns a coroutine function as an action whose second argument is its params, as this model.

    Args:
        function: An `async def` over a reaction and its params.
        params: The model of the params, which a rule's values are validated as.

    Raises:
        RuleError: The function is no coroutine function, or does not take two arguments.
    """
    if problem := _problem(function, arguments=2):
        raise RuleError([problem])
    return FunctionAction(name_of(function), lambda reaction: function(reaction, reaction.params_as(params)), params)


def name_of(function: Callable[..., object]) -> str:
    """Returns what a function is called."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def checked_actions[Deps](
    actions: Mapping[str, Action[Deps] | ActionFunction[Deps]],
    rules: Mapping[str, Rule],
    stored_rules: StoredRules | None,
) -> dict[str, Action[Deps]]:
    """Returns the actions by name, if each is one and every rule finds its own.

    Args:
        actions: The actions and coroutine functions, by the name that rules give.
        rules: The code rules, whose actions have to be there and to accept their params.
        stored_rules: What stored rules may run, all of which has to be there.

    Raises:
        RuleError: Something is missing or wrong; every problem is listed.
    """
    checked: dict[str, Action[Deps]] = {}
    problems: list[str] = []
    for name, action in actions.items():
        if problem := _problem(action):
            problems.append(f"actions: {name!r}: {problem}")
        else:
            checked[name] = _as_action(name, action)
    for rule in rules.values():
        if rule.then.action not in actions:
            problems.append(f"rule {rule.name!r}: then.action: {_unknown(rule.then.action, actions)}")
        elif rule.then.action in checked:
            problems += (
                f"rule {rule.name!r}: {problem}" for problem in params_problems(rule, checked[rule.then.action])
            )
    if stored_rules is not None:
        problems += _stored_problems(stored_rules, actions, checked)
    if problems:
        raise RuleError(problems)
    return checked


def params_problems(rule: Rule, action: Action[Any]) -> tuple[str, ...]:
    """Returns why an action does not accept a rule's params; nothing if it does."""
    try:
        params_of(rule, action)
    except RuleError as error:
        return error.problems
    return ()


def params_of(rule: Rule, action: Action[Any]) -> BaseModel | None:
    """Returns a rule's params as its action wants them.

    Raises:
        RuleError: They are not what it wants; every problem is listed.
    """
    if action.params is not None:
        return load_params(rule.then, action.params)
    if rule.then.params:
        raise RuleError(
            [f"then.params: the action {rule.then.action!r} takes none: leave them out, or give it a params model"]
        )
    return None


def output_value(output: object, run_id: str) -> JsonValue:
    """Returns what an action returned as it is recorded.

    Raises:
        RunFailure: It is neither JSON nor a pydantic model.
    """
    place = f"the output of run {run_id!r}"
    try:
        return (
            model_value(output, place, depth=1) if isinstance(output, BaseModel) else json_value(output, place, depth=1)
        )
    except NotJsonError as error:
        raise RunFailure(f"{error}. Return JSON, a pydantic model or None", reason=INVALID_OUTPUT) from error


def _problem(action: object, *, arguments: int = 1) -> str | None:
    """Returns why something is no action, and no coroutine function of so many arguments either."""
    if isinstance(action, type):
        return f"{action.__name__} is a class: give an instance of it"
    run = getattr(action, "run", None) if hasattr(action, "params") else action
    if callable(run) and (iscoroutinefunction(run) or iscoroutinefunction(type(run).__call__)):
        return _signature_problem(run, arguments)
    if callable(run):
        return (
            f"{name_of(run)} is not a coroutine function: write it as `async def`, "
            "and call what blocks through asyncio.to_thread"
        )
    return (
        f"{action!r} is no action: give a coroutine function, or an object with `params` and `async def run(reaction)`"
    )


def _signature_problem(run: Callable[..., object], arguments: int) -> str | None:
    """Returns why a coroutine function cannot be called with so many arguments, and what to do about it."""
    taken = signature(run)
    if _accepts(taken, arguments):
        return None
    name = name_of(run)
    if arguments == 2:
        return f"{name}{taken} does not take two arguments: write `async def {name}(reaction, params)`"
    if _accepts(taken, 0):
        return f"{name}{taken} takes no reaction: write `async def {name}(reaction)`"
    if _accepts(taken, 2):
        return (
            f"{name}{taken} takes two arguments, but an action is given one, its reaction: if the second is its "
            f"params, wrap it as with_params({name}, {_second(taken)})"
        )
    return f"{name}{taken} cannot be called with a reaction alone: write `async def {name}(reaction)`"


def _accepts(taken: Signature, arguments: int) -> bool:
    try:
        taken.bind(*range(arguments))
    except TypeError:
        return False
    return True


def _second(taken: Signature) -> str:
    """Returns what the second parameter's model is called, as far as its annotation says."""
    annotation = list(taken.parameters.values())[1].annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.__name__
    # Under `from __future__ import annotations` it is the text.
    return annotation if isinstance(annotation, str) else "Params"


def _as_action[Deps](name: str, action: Action[Deps] | ActionFunction[Deps]) -> Action[Deps]:
    if hasattr(action, "params"):
        return cast("Action[Deps]", action)
    return FunctionAction(name, cast("ActionFunction[Deps]", action))


def _stored_problems(
    stored_rules: StoredRules, actions: Mapping[str, object], checked: Mapping[str, Action[Any]]
) -> Iterator[str]:
    for name, params in stored_rules.actions.items():
        if name not in actions:
            yield f"stored_rules.actions: {_unknown(name, actions)}"
        elif name in checked and checked[name].params is not params:
            yield (
                f"stored_rules.actions: the params of {name!r} are {_name(params)}, but the action's are "
                f"{_name(checked[name].params)}: name the same model"
            )


def _unknown(name: str, actions: Mapping[str, object]) -> str:
    known = ", ".join(map(repr, sorted(actions))) or "none"
    return f"there is no action {name!r}: those given in actions= are {known}"


def _name(params: type[BaseModel] | None) -> str:
    return "none" if params is None else params.__name__
