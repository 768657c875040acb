"""The exceptions of `reflexr.core` that are not rejections: what a programmer did wrong.

A client's refused request is a rejection and lives in `reflexr.core.rejections`.
"""

from collections.abc import Sequence
from typing import Self, override


class ReflexrError(Exception):
    """The root of every exception that reflexr raises."""


class EventDefinitionError(ReflexrError):
    """An event class that cannot be defined as it is written: the class statement raises it."""


class FeedbackDefinitionError(ReflexrError):
    """A feedback class that cannot be defined as it is written: the class statement raises it."""


class NotJsonError(ReflexrError, ValueError):
    """A value that JSON cannot hold: NaN, an infinity, a lone surrogate, or an object of no JSON type."""


class InvalidEventError(ReflexrError):
    """A stored event whose type is known but whose fields its class no longer accepts.

    Attributes:
        event_type: The qualified type of the event.
        errors: What its class refused, one text each, with the field's place.
    """

    def __init__(self, event_type: str, errors: Sequence[str]) -> None:
        self.event_type = event_type
        self.errors = tuple(errors)
        super().__init__(f"the stored event is no longer a valid {event_type!r}: {'; '.join(self.errors)}")

    @override
    def __reduce__(self) -> tuple[type[Self], tuple[str, Sequence[str]]]:
        return type(self), (self.event_type, self.errors)


class RuleError(ReflexrError, ValueError):
    """A rule, or a part of one, that can never work.

    Attributes:
        problems: Every problem found, one text each, with its place and its remedy.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    @override
    def __reduce__(self) -> tuple[type[Self], tuple[Sequence[str]]]:
        return type(self), (self.problems,)
