"""What an attempt's span says of a checkpoint that could not be used, or of something that could not be saved."""

from typing import Final

from opentelemetry import trace

DISCARDED: Final = "reflexr.checkpoint.discarded"
"""The event on an attempt's span that says that the run's checkpoint was set aside, with the reason."""

UNSAVED: Final = "reflexr.checkpoint.unsaved"
"""The event on a step's or an attempt's span that says that something could not be saved, with the reason."""

REASON: Final = "reflexr.reason"


def discarded(error: Exception) -> None:
    """Says on the current span that the run's checkpoint was set aside, and why."""
    trace.get_current_span().add_event(DISCARDED, {REASON: f"{type(error).__name__}: {error}"})


def unsaved(error: Exception) -> None:
    """Says on the current span that something was not saved, and why."""
    trace.get_current_span().add_event(UNSAVED, {REASON: str(error)})
