"""Conditions: the stages of a rule's `when`, as data: filter, dedupe, pattern, throttle.

A condition is also its own builder: each method adds one stage and returns a new condition. How a stage advances
lives in `reflexr.core.patterns`.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from reflexr.core.checks import Vocabulary
from reflexr.core.durations import Window
from reflexr.core.errors import RuleError
from reflexr.core.events import known_types
from reflexr.core.fields import FieldPath
from reflexr.core.filters import AllOf, Filter, FilterPart, Ordered, Part
from reflexr.core.integers import Positive
from reflexr.core.references import FieldReference, built, path_of
from reflexr.core.type_sets import TypeSet, admitted


class Each(Part):
    """Fires at every envelope."""

    kind: Literal["each"] = "each"


class Count(Part):
    """Fires when `at_least` envelopes are inside the window that ends at the latest; the firing consumes them all."""

    kind: Literal["count"] = "count"
    at_least: Positive
    within: Window


class Sequence(Part):
    """Fires when the steps were matched in order, all inside the window that begins at the first matched envelope.

    One envelope fills one step. An envelope that does not match the awaited step but the first starts again; any
    other is ignored.
    """

    kind: Literal["sequence"] = "sequence"
    steps: Annotated[tuple[Filter, ...], Ordered(2)]
    within: Window


class Absence(Part):
    """Fires when a scope that was seen stays quiet for the window; then waits for its next envelope."""

    kind: Literal["absence"] = "absence"
    within: Window


type Pattern = Annotated[Each | Count | Sequence | Absence, Field(discriminator="kind")]
"""Any pattern, discriminated by `kind`."""


class Dedupe(Part):
    """Drops an envelope whose key fields equal those of one that passed less than `within` before."""

    key: Annotated[tuple[FieldPath, ...], Ordered(1)]
    within: Window


class Throttle(Part):
    """Lets at most `at_most` firings of a scope through in any window of `per`."""

    at_most: Positive
    per: Window


class Condition(Part):
    """When a rule fires: a pipeline of stages, evaluated per scope.

    Write one with [`on`][reflexr.core.on] or [`sequence`][reflexr.core.sequence] and its methods, each of which adds
    a stage:

    ```python
    from datetime import timedelta

    from reflexr.core import Event, F, on


    class AlarmEvent(Event, abstract=True, event_namespace="alarm"):
        pass


    class Raised(AlarmEvent):
        zone: str
        level: int


    condition = (
        on(Raised)
        .where(F.level >= 7)
        .count(at_least=3, within=timedelta(minutes=1))
        .at_most(1, per=timedelta(minutes=15))
    )
    ```
    """

    filter: Filter
    dedupe: Dedupe | None = None
    pattern: Pattern = Each()
    throttle: Throttle | None = None

    def __invert__(self) -> NoReturn:
        raise TypeError(
            "a condition has no opposite: negate a filter, as in on(Order).where(~F.paid.eq(True)), "
            "and for what does not happen write on(Placed, Shipped).absent(within=…)"
        )

    def where(self, *filters: Filter, **equal: JsonValue) -> Self:
        """Admits only envelopes that these filters admit too, and whose fields equal these values.

        Raises:
            RuleError: A pattern or another stage was added already, no filter is given, or no event type that can get
                here has a field that is named.
        """
        self._refuse_after("where", self.dedupe, self.throttle, None if self.pattern == Each() else self.pattern)
        added = (*filters, *(FieldReference(name).eq(value) for name, value in equal.items()))
        if not added:
            raise RuleError(["where() needs at least one filter, such as F.severity >= 7"])
        _refuse_strangers(added)
        of = self.filter.of if isinstance(self.filter, AllOf) else (self.filter,)
        return self._with(filter=built(lambda: AllOf(of=(*of, *added))))

    def distinct(self, *key: FieldReference | str, within: timedelta) -> Self:
        """Drops an envelope whose key fields equal those of one that passed less than `within` before.

        Raises:
            RuleError: A later stage was added already, no key is given, the window is not positive, or no event type
                that can get here has the field.
        """
        self._refuse_after("distinct", self.dedupe, self.throttle, None if self.pattern == Each() else self.pattern)
        return self._with(dedupe=built(lambda: Dedupe(key=tuple(map(path_of, key)), within=within)))

    def count(self, *, at_least: int, within: timedelta) -> Self:
        """Fires when `at_least` envelopes are inside a window that ends at the latest.

        Raises:
            RuleError: A pattern or a throttle was added already, or a value is not positive.
        """
        return self._with_pattern("count", built(lambda: Count(at_least=at_least, within=within)))

    def absent(self, *, within: timedelta) -> Self:
        """Fires when a scope that was seen stays quiet for the window.

        Raises:
            RuleError: A pattern or a throttle was added already, or the window is not positive.
        """
        return self._with_pattern("absent", built(lambda: Absence(within=within)))

    def at_most(self, firings: int, *, per: timedelta) -> Self:
        """Lets at most so many firings of a scope through in any window of `per`.

        Raises:
            RuleError: There is a throttle already, or a value is not positive.
        """
        self._refuse_after("at_most", self.throttle)
        return self._with(throttle=built(lambda: Throttle(at_most=firings, per=per)))

    @property
    def admitted(self) -> TypeSet:
        """The event types of which the filter can admit an envelope."""
        return admitted(self.filter)

    def problems(self, vocabulary: Vocabulary, place: str = "when") -> Iterator[str]:
        """Yields what the condition can never do, given what a rule may refer to."""
        yield from vocabulary.filter_problems(self.filter, f"{place}.filter")
        passing = self.admitted
        for index, field in enumerate(self.dedupe.key if self.dedupe else ()):
            yield from vocabulary.field_problems(field, f"{place}.dedupe.key.{index}", passing)
        if isinstance(self.pattern, Sequence):
            for index, step in enumerate(self.pattern.steps):
                yield from vocabulary.filter_problems(step, f"{place}.pattern.steps.{index}", passing)

    def _with_pattern(self, method: str, pattern: Pattern) -> Self:
        self._refuse_after(method, self.throttle, None if self.pattern == Each() else self.pattern)
        return self._with(pattern=pattern)

    def _with(self, **stages: Any) -> Self:
        condition = self.model_copy(update=stages)
        if problems := list(condition.problems(Vocabulary(known_types(), complete=False))):
            raise RuleError(problems)
        return condition

    def _refuse_after(self, method: str, *stages: Part | None) -> None:
        for stage in stages:
            if stage is not None:
                raise RuleError(
                    [
                        (
                            f"{method}() comes before {type(stage).__name__.lower()}, which is there: write the "
                            "stages in the order where, distinct, count or absent, at_most, all but where once"
                        )
                    ]
                )

    @model_serializer(mode="wrap")
    def _leave_out_absent_stages(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: stage for name, stage in handler(self).items() if stage is not None}


def _refuse_strangers(filters: Iterable[object]) -> None:
    if strangers := [added for added in filters if not isinstance(added, FilterPart)]:
        raise RuleError([f"where() takes filters, such as F.severity >= 7, not {stranger!r}" for stranger in strangers])
