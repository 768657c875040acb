"""Operators: who does something to a workspace, and what leads to it.

All of it is in every envelope that is appended, so it is checked first: a log that holds an actor which is none could
never be read again.
"""

from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from reflexr.core import Actor, Causation, ValidationFailed, problems
from reflexr.workspace.refs import WorkspaceRef

_ACTOR: Final[TypeAdapter[Any]] = TypeAdapter(Actor)
_CAUSATION: Final[TypeAdapter[Any]] = TypeAdapter(Causation)


@dataclass(frozen=True, slots=True)
class Operator:
    """Who does something to a workspace, and what leads to it.

    Attributes:
        workspace: The workspace.
        actor: Who acts.
        causation: The run that acts, if one does.
        correlation_id: That run's causal chain.
        attempt: The attempt at which that run has to be for what it publishes to be appended; `None` for any.
    """

    workspace: WorkspaceRef
    actor: Actor
    causation: Causation | None = None
    correlation_id: str | None = None
    attempt: int | None = None


def checked_actor(actor: object) -> None:
    """Checks who acts.

    Raises:
        ValidationFailed: It is no actor, or one that was made without being checked and cannot be read back.
    """
    meant = f"UserActor(id={actor!r})" if isinstance(actor, str) else "UserActor(id='ada'), or another of the actors"
    _check(actor, _ACTOR, "actor", f"is no actor: write {meant}")


def checked_causation(causation: object) -> None:
    """Checks what leads to what a run does.

    Raises:
        ValidationFailed: It is no causation, or one that was made without being checked and cannot be read back.
    """
    _check(causation, _CAUSATION, "causation", "is no causation: give a run's, as run.causation")


def _check(value: object, adapter: TypeAdapter[Any], place: str, refusal: str) -> None:
    errors: list[str] = []
    if isinstance(value, BaseModel):
        try:
            if isinstance(value, type(adapter.validate_python(vars(value)))):
                return
        except ValidationError as error:
            errors = [f"{place}: {problem}" for problem in problems(error)]
    message = f"{place}: {value!r} {refusal}"
    raise ValidationFailed(message, [message, *errors])
