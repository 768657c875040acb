"""Failures of attempts: the exception by which an action fails with a reason, and what any exception is recorded as."""

from dataclasses import dataclass
from typing import Final

from reflexr.core import json_text
from reflexr.workspace.errors import WorkspaceError

MAX_ERROR: Final = 4_000
"""The longest error that is recorded of an attempt, in characters."""

MAX_REASON: Final = 255
"""The longest reason that is recorded of an attempt, in characters."""

UNKNOWN_ACTION: Final = "unknown_action"
"""The reason of an attempt whose action the reactor does not have. Permanent."""

INVALID_PARAMS: Final = "invalid_params"
"""The reason of an attempt whose params are not what its action wants. Permanent."""

INVALID_OUTPUT: Final = "invalid_output"
"""The reason of an attempt whose action returned something that is neither JSON nor a pydantic model."""

TIMEOUT: Final = "timeout"
"""The reason of an attempt that took longer than its rule's `timeout`."""

CANCELLED: Final = "cancelled"
"""The reason of an attempt that ended as cancelled though nobody cancelled it: something that it awaited was."""


class RunFailure(WorkspaceError):
    """Fails the attempt of the action that raises it, with a reason that rules, metrics and people can tell apart.

    Attributes:
        message: What went wrong, for a person.
        reason: A stable code for it, such as `guardrail_blocked`; recorded on the run, its facts and the metrics.
        permanent: Whether trying again is pointless, so that the run is dead-lettered at once.
    """

    # What a subclass has that does not call `__init__`.
    message: str = ""
    reason: str | None = None
    permanent: bool = False

    def __init__(self, message: str, *, reason: str | None = None, permanent: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class Failure:
    """What is recorded of an attempt that failed.

    Attributes:
        error: What went wrong, for a person.
        reason: A stable code for it.
        permanent: Whether trying again is pointless.
    """

    error: str
    reason: str | None = None
    permanent: bool = False


def failure_of(error: BaseException) -> Failure:
    """Returns what is recorded of an attempt that ended with this exception. Never raises, whatever it holds."""
    if not isinstance(error, RunFailure):
        return Failure(describe(error))
    reason: object = error.reason
    return Failure(
        _recorded(_text(error.message) or describe(error)),
        None if reason is None else _recorded(_text(reason), MAX_REASON),
        bool(error.permanent),
    )


def describe(error: BaseException) -> str:
    """Returns an exception's type and text. Never raises, whatever the exception does."""
    name = type(error).__name__
    text = _text(error)
    return _recorded(f"{name}: {text}" if text else name)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return "its text cannot be had"


def _recorded(text: str, most: int = MAX_ERROR) -> str:
    return json_text(text if len(text) <= most else f"{text[: most - 1]}…")
