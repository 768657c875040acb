"""Rules: what to watch, how to partition it, and what to run, as data.

A rule's condition lives in `reflexr.core.conditions`; what a rule decides in `reflexr.core.evaluation`.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self, cast, override

from pydantic import BaseModel, Field, JsonValue, StrictBool, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError, to_json

from reflexr.core.canonical import check_json, digest
from reflexr.core.checks import Vocabulary
from reflexr.core.compiled import Payload, Test, compile_filter, compile_scope
from reflexr.core.conditions import Condition
from reflexr.core.durations import Duration, Window
from reflexr.core.errors import NotJsonError, RuleError
from reflexr.core.events import DEFAULT_REGISTRY, EventRegistry, problems
from reflexr.core.fields import FieldPath
from reflexr.core.filters import Ordered, Part
from reflexr.core.integers import Positive
from reflexr.core.names import Id, RuleName, Text
from reflexr.core.patterns import Stages, compile_stages
from reflexr.core.type_sets import TypeSet


class Scope(Part):
    """How a rule is partitioned: state and order are independent for each list of these fields' values.

    No field is one scope, the whole workspace.
    """

    fields: Annotated[tuple[FieldPath, ...], Ordered()] = ()


class ActionRef(Part):
    """What a firing runs: an action by its registered name, with the values of its params model."""

    action: Id
    params: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("params")
    @classmethod
    def _params_are_json(cls, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        try:
            check_json(params, "params")
        except NotJsonError as error:
            raise PydanticCustomError("json", "{problem}", {"problem": str(error)}) from error
        return params


class RetryPolicy(Part):
    """How often a run is tried, and how long it waits between attempts.

    Attributes:
        max_attempts: The attempts of a run before it is dead-lettered; one that paused does not count.
        backoff: How long a run waits after its first failed attempt.
        multiplier: How much longer after each further one.
        max_backoff: The longest wait.
    """

    max_attempts: Positive = 5
    backoff: Duration = timedelta(seconds=1)
    multiplier: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)] = 2.0
    max_backoff: Duration = timedelta(minutes=5)

    def delay(self, failed: int) -> timedelta:
        """Returns how long a run waits after its `failed`-th failed attempt, counted from 1."""
        try:
            return min(self.backoff * self.multiplier ** (failed - 1), self.max_backoff)
        except OverflowError:
            return self.max_backoff if self.backoff else self.backoff


class CompiledRule:
    """A rule's condition and scope as functions.

    Attributes:
        types: The event types of which the filter can admit an envelope; the functions are for those alone.
        test: The filter; `None` if it admits every envelope of those types.
        scope_key: The scope key of a payload.
        stages: The stages after the filter.
    """

    __slots__ = ("scope_key", "stages", "test", "types")

    def __init__(self, condition: Condition, fields: tuple[str, ...]) -> None:
        self.types: TypeSet = condition.admitted
        self.test: Test | None = compile_filter(condition.filter, self.types)
        self.scope_key: Callable[[Payload], str] = compile_scope(fields)
        self.stages: Stages = compile_stages(condition, self.types)


class Rule(Part):
    """What to watch, how to partition it, and what to run.

    Attributes:
        name: The qualified name, which identifies the rule in its workspace.
        description: What the rule is for, in prose; agents that it runs read it.
        when: The condition.
        scope: The partition; by default the whole workspace.
        then: The action.
        retry: How often a run is tried.
        ordering: Whether runs of a scope start in firing order (`scope`) or whenever they can (`none`).
        on_dead_letter: Whether later runs of a scope go on after a dead-lettered one, or wait for someone to retry or
            skip it.
        on_pause: Whether later runs of a scope go on while one is paused, or wait until it has ended.
        start: Whether a rule that is new to a workspace begins at the head of its log or at the beginning.
        timeout: How long one attempt may take; `None` for any time.
        enabled: Whether the rule is evaluated and its runs are started.
    """

    name: RuleName
    description: Text | None = None
    when: Condition
    scope: Scope = Scope()
    then: ActionRef
    retry: RetryPolicy = RetryPolicy()
    ordering: Literal["scope", "none"] = "scope"
    on_dead_letter: Literal["continue", "block"] = "continue"
    on_pause: Literal["continue", "block"] = "continue"
    start: Literal["now", "beginning"] = "now"
    timeout: Window | None = None
    enabled: StrictBool = True

    @field_validator("when", "scope", "then", "retry", mode="before")
    @classmethod
    def _is_a_part(cls, value: object, info: ValidationInfo) -> object:
        """Refuses what is no object with how the part is written, which pydantic cannot know."""
        if isinstance(value, BaseModel | dict):
            return cast("object", value)
        raise PydanticCustomError(
            "part",
            "{field} is written {remedy}, not {value}",
            {"field": info.field_name, "remedy": _REMEDIES[str(info.field_name)], "value": repr(value)[:100]},
        )

    def definition(self) -> str:
        """Returns the hash of what the rule decides by: the condition and the scope, and nothing else.

        Two rules of one definition decide the same. A rule whose definition changes starts afresh.
        """
        return self._definition

    def check(self, registry: EventRegistry = DEFAULT_REGISTRY, predicates: Collection[str] = ()) -> list[str]:
        """Returns every problem that keeps the rule from ever working, each with its place and its remedy.

        Args:
            registry: The event types that there are.
            predicates: The names of the predicates that there are.
        """
        return list(self._problems(Vocabulary(registry, predicates=predicates)))

    @cached_property
    def compiled(self) -> CompiledRule:
        """The rule's condition and scope as functions."""
        return CompiledRule(self.when, self.scope.fields)

    @override
    def __copy__(self) -> Self:
        """Leaves out what is derived from the fields, which a copy may change."""
        return self._without_derived(super().__copy__())

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Leaves out what is derived from the fields, which a copy may change."""
        return self._without_derived(super().__deepcopy__(memo))

    @override
    def __getstate__(self) -> dict[Any, Any]:
        """Leaves out what is compiled, which cannot be pickled and is compiled again at its next use."""
        state = super().__getstate__()
        return {**state, "__dict__": {name: state["__dict__"][name] for name in type(self).model_fields}}

    def _without_derived(self, copied: Self) -> Self:
        for name in ("compiled", "_definition"):
            vars(copied).pop(name, None)
        return copied

    @cached_property
    def _definition(self) -> str:
        return digest(self.model_dump(mode="json", include={"when", "scope"}))

    def _problems(self, vocabulary: Vocabulary) -> Iterator[str]:
        yield from self.when.problems(vocabulary)
        for index, field in enumerate(self.scope.fields):
            yield from vocabulary.field_problems(field, f"scope.fields.{index}", self.when.admitted)


_REMEDIES: Final = {
    "when": "on(ServiceError), sequence(…), or the condition as JSON",
    "scope": "by(F.service), or the scope as JSON",
    "then": "run(triage), or the action as JSON",
    "retry": "RetryPolicy(max_attempts=3), or the policy as JSON",
}


def load_params[M: BaseModel](action: ActionRef, model: type[M]) -> M:
    """Returns an action's params as its params model, which refuses a field it does not know.

    Raises:
        RuleError: The values are not what the model wants; every problem is listed.
    """
    try:
        return model.model_validate_json(to_json(action.params), extra="forbid")
    except ValidationError as error:
        raise RuleError([f"then.params.{problem}" for problem in problems(error)]) from error
