"""Feedback: people's and evaluators' judgements as typed models, registered by name.

What feedback is about lives in `reflexr.core.targets`. Whether a target exists, and which chain it belongs to, is the
host's to find.
"""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, cast, get_args, override

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from pydantic_core import to_json

from reflexr.core.actors import Actor
from reflexr.core.envelopes import Causation, Draft
from reflexr.core.errors import FeedbackDefinitionError, NotJsonError
from reflexr.core.events import local_name, problems
from reflexr.core.facts import FeedbackGiven
from reflexr.core.names import LOCAL_NAME_PATTERN
from reflexr.core.rejections import NotFound, ValidationFailed
from reflexr.core.targets import Target, TargetKind
from reflexr.core.values import json_value, model_value


class Feedback(BaseModel):
    """A judgement, as a model of its own.

    Subclass it for each type of feedback, saying what the type can be given on:

    ```python
    from typing import Literal

    from reflexr.core import Feedback


    class Triage(Feedback, name="triage", targets={"run"}):
        correct: bool
        severity: Literal["low", "high", "critical"]
        reason: str | None = None
    ```

    Class arguments:
        abstract: Whether this is a base and no feedback type.
        name: The type's name, its alone in a process; by default the class's name in snake case.
        targets: What it can be given on: any of `run`, `firing` and `chain`. A subclass of a base has its base's.

    Attributes:
        feedback_type: The type's name.
        feedback_targets: What it can be given on.

    Raises:
        FeedbackDefinitionError: By the class statement, when the class cannot be a feedback type.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    feedback_type: ClassVar[str] = ""
    feedback_targets: ClassVar[frozenset[TargetKind]] = frozenset()

    def __init_subclass__(
        cls,
        *,
        abstract: bool = False,
        name: str | None = None,
        targets: Collection[TargetKind] | None = None,
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
        name: str | None = None,
        targets: Collection[TargetKind] | None = None,
        **config: Any,
    ) -> None:
        super().__pydantic_init_subclass__(**config)
        if cls.__pydantic_generic_metadata__["origin"] is not None:
            return
        if targets is not None:
            cls.feedback_targets = _targets(cls, targets)
        if not abstract:
            _declare_type(cls, local_name(cls.__name__) if name is None else name)
        elif name is not None:
            raise FeedbackDefinitionError(
                f"{cls.__qualname__}: an abstract base has no name=, only its subclasses have"
            )


_TYPES: Final[dict[str, type[Feedback]]] = {}

FEEDBACK_TYPES: Final[Mapping[str, type[Feedback]]] = MappingProxyType(_TYPES)
"""Every feedback type of the process, by name."""


def parse_feedback(feedback_type: str, value: Mapping[str, JsonValue]) -> Feedback:
    """Returns the typed feedback of a JSON object.

    Raises:
        NotFound: There is no feedback type of this name.
        ValidationFailed: The type refuses the value; fields it does not have are refused too.
    """
    feedback_class = FEEDBACK_TYPES.get(feedback_type)
    if feedback_class is None:
        known = ", ".join(map(repr, sorted(FEEDBACK_TYPES))) or "none is defined"
        raise NotFound(f"there is no feedback type {feedback_type!r}: {known}")
    try:
        return feedback_class.model_validate_json(to_json(json_value(dict(value), feedback_type)))
    except ValidationError as error:
        raise ValidationFailed(f"the value is no valid {feedback_type!r}", problems(error)) from error
    except NotJsonError as error:
        raise ValidationFailed(str(error)) from error


def feedback_given(
    feedback: Feedback,
    target: Target,
    *,
    event_id: str,
    actor: Actor,
    correlation_id: str,
    causation: Causation | None = None,
) -> Draft:
    """Returns the fact that somebody gave feedback on a target.

    Args:
        feedback: The judgement.
        target: What it is about; the host has found that it exists.
        event_id: The fact's id.
        actor: Whose judgement it is.
        correlation_id: The target's causal chain, which the fact joins.
        causation: The run that gave it, if one did.

    Raises:
        ValidationFailed: Feedback of this type cannot be given on such a target, or it holds what JSON cannot.
    """
    if target.kind not in feedback.feedback_targets:
        allowed = " or ".join(repr(kind) for kind in sorted(feedback.feedback_targets))
        raise ValidationFailed(
            f"{feedback.feedback_type!r} cannot be given on a {target.kind}",
            [f"target.kind: {feedback.feedback_type!r} is given on {allowed}, not on {target.kind!r}"],
        )
    fact = FeedbackGiven(feedback_type=feedback.feedback_type, target=target, value=_value(feedback))
    return Draft(id=event_id, payload=fact.payload(), actor=actor, correlation_id=correlation_id, causation=causation)


_KINDS: Final = frozenset(cast("tuple[TargetKind, ...]", get_args(TargetKind.__value__)))


def _value(feedback: Feedback) -> dict[str, JsonValue]:
    # No method of the class, whose subclasses name their fields as they like.
    try:
        # A fact's payload is around it.
        value = model_value(feedback, feedback.feedback_type, depth=1)
    except NotJsonError as error:
        raise ValidationFailed(str(error)) from error
    if not isinstance(value, dict):
        raise ValidationFailed(f"{feedback.feedback_type!r} cannot be recorded: it serializes to no object")
    return value


def _targets(cls: type[Feedback], targets: Collection[TargetKind]) -> frozenset[TargetKind]:
    kinds = frozenset(targets)
    if not kinds or not kinds <= _KINDS:
        allowed = ", ".join(map(repr, sorted(_KINDS)))
        raise FeedbackDefinitionError(f"{cls.__qualname__}: targets={targets!r} has to be a set of any of {allowed}")
    return kinds


def _declare_type(cls: type[Feedback], name: str) -> None:
    if re.fullmatch(LOCAL_NAME_PATTERN[1:-1], name) is None:
        raise FeedbackDefinitionError(
            f"{cls.__qualname__}: {name!r} is not a feedback type's name: pass name= with lower-case words "
            "of letters, digits and underscores, separated by dots"
        )
    if name in _TYPES:
        raise FeedbackDefinitionError(
            f"{cls.__qualname__}: the feedback type {name!r} is already {_TYPES[name].__qualname__}: pass another name="
        )
    if not cls.feedback_targets:
        raise FeedbackDefinitionError(f"{cls.__qualname__}: say what it can be given on, such as targets={{'run'}}")
    if cls.model_config.get("extra") != "forbid":
        raise FeedbackDefinitionError(
            f"{cls.__qualname__}: feedback refuses the fields it does not have: leave extra= as it is"
        )
    for field_name, field in cls.model_fields.items():
        if field.validation_alias != field.serialization_alias:
            raise FeedbackDefinitionError(
                f"{cls.__qualname__}.{field_name} is read as {field.validation_alias or field_name!r} and written as "
                f"{field.serialization_alias or field_name!r}: feedback is written and read back, so give it one alias="
            )
    cls.feedback_type = name
    _TYPES[name] = cls
