"""Rejections: a client's request that is refused, as an exception in process and as a model on the wire.

What a programmer did wrong is no rejection and lives in `reflexr.core.errors`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Literal, override

from pydantic import Field

from reflexr.core.errors import ReflexrError
from reflexr.core.messages import Message
from reflexr.core.values import json_text


class NotFoundRejection(Message):
    """What the request names does not exist."""

    type: Literal["not_found"] = "not_found"
    message: str


class InvalidStateRejection(Message):
    """What the request names is in no state for it."""

    type: Literal["invalid_state"] = "invalid_state"
    message: str


class ValidationFailedRejection(Message):
    """The request, or something in it, is not what it has to be; `errors` has one text for each problem."""

    type: Literal["validation_failed"] = "validation_failed"
    message: str
    errors: tuple[str, ...]


class ForbiddenRejection(Message):
    """The actor may not do this."""

    type: Literal["forbidden"] = "forbidden"
    message: str


class DepthExceededRejection(Message):
    """The event would be `depth` deep in its causal chain, past the workspace's `limit`."""

    type: Literal["depth_exceeded"] = "depth_exceeded"
    message: str
    depth: int
    limit: int


class UnsupportedProtocolRejection(Message):
    """The client speaks a protocol that the server does not."""

    type: Literal["unsupported_protocol"] = "unsupported_protocol"
    message: str


type Rejection = Annotated[
    NotFoundRejection
    | InvalidStateRejection
    | ValidationFailedRejection
    | ForbiddenRejection
    | DepthExceededRejection
    | UnsupportedProtocolRejection,
    Field(discriminator="type"),
]
"""Any rejection, discriminated by `type`."""


class Rejected(ReflexrError):
    """A request that was refused; each kind of refusal is a subclass.

    Attributes:
        rejection: What was refused and why, as it travels.
    """

    def __init__(self, rejection: Rejection, *arguments: object) -> None:
        # An exception is copied and pickled by calling its class with its arguments: those of the subclass.
        super().__init__(*arguments)
        self.rejection = rejection

    @override
    def __str__(self) -> str:
        return self.rejection.message


class NotFound(Rejected):
    """What the request names does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(NotFoundRejection(message=json_text(message)), message)


class InvalidState(Rejected):
    """What the request names is in no state for it."""

    def __init__(self, message: str) -> None:
        super().__init__(InvalidStateRejection(message=json_text(message)), message)


MAX_PROBLEMS: Final = 100
"""How many problems of one request are told at most: a request can have more of them than it has bytes."""


class ValidationFailed(Rejected):
    """The request, or something in it, is not what it has to be.

    Args:
        message: What was refused.
        errors: Every problem, one text each, with its place; by default the message alone. Of more than `MAX_PROBLEMS`
            the first are told, and last of all how many more there are.

    Attributes:
        errors: The same, as they travel.
    """

    def __init__(self, message: str, errors: Sequence[str] = ()) -> None:
        told = tuple(errors)
        if len(told) > MAX_PROBLEMS:
            told = (*told[: MAX_PROBLEMS - 1], f"and {len(told) - MAX_PROBLEMS + 1} more")
        problems = self.errors = tuple(map(json_text, told or (message,)))
        super().__init__(ValidationFailedRejection(message=json_text(message), errors=problems), message, told)

    @override
    def __str__(self) -> str:
        """Returns the message with every problem, since a traceback shows nothing else."""
        further = "; ".join(error for error in self.errors if error != self.rejection.message)
        return f"{self.rejection.message}: {further}" if further else self.rejection.message


class Forbidden(Rejected):
    """The actor may not do this."""

    def __init__(self, message: str) -> None:
        super().__init__(ForbiddenRejection(message=json_text(message)), message)


class DepthExceeded(Rejected):
    """An event would be deeper in its causal chain than the workspace allows.

    Args:
        depth: How deep the event would be.
        limit: The deepest that the workspace allows.
    """

    def __init__(self, depth: int, limit: int) -> None:
        message = f"the event would be {depth} deep in its causal chain, and the workspace's limit is {limit}"
        super().__init__(DepthExceededRejection(message=message, depth=depth, limit=limit), depth, limit)


class UnsupportedProtocol(Rejected):
    """The client speaks a protocol that the server does not."""

    def __init__(self, message: str) -> None:
        super().__init__(UnsupportedProtocolRejection(message=json_text(message)), message)


def rejected(rejection: Rejection) -> Rejected:
    """Returns the exception of a rejection that was received; it carries the rejection exactly as it came."""
    match rejection:
        case ValidationFailedRejection():
            exception = ValidationFailed(rejection.message, rejection.errors)
        case DepthExceededRejection():
            exception = DepthExceeded(rejection.depth, rejection.limit)
        case _:
            exception = _BY_TYPE[rejection.type](rejection.message)
    exception.rejection = rejection
    return exception


_BY_TYPE: Final[Mapping[str, Callable[[str], Rejected]]] = {
    "not_found": NotFound,
    "invalid_state": InvalidState,
    "forbidden": Forbidden,
    "unsupported_protocol": UnsupportedProtocol,
}
