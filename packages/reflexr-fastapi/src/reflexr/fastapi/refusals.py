"""Refusals: how what is refused, or breaks, is answered over HTTP: a status code, and the rejection as `detail`."""

from collections.abc import Iterable
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel

from reflexr.core import (
    DepthExceededRejection,
    ForbiddenRejection,
    InvalidStateRejection,
    NotFoundRejection,
    Rejection,
    UnsupportedProtocolRejection,
    ValidationFailed,
    ValidationFailedRejection,
)

STATUS: Final = {
    "not_found": 404,
    "invalid_state": 409,
    "validation_failed": 422,
    "depth_exceeded": 422,
    "forbidden": 403,
    "unsupported_protocol": 400,
}
"""The status code of each type of rejection."""

_FORMS: Final = {"PublishEvent", "PublishEvents"}
"""The forms of a body, which are no place in it."""


class NotFoundBody(BaseModel):
    """What is named does not exist, or is another tenant's."""

    detail: NotFoundRejection


class InvalidStateBody(BaseModel):
    """What is named is in no state for it, or it could not be done: say it again."""

    detail: InvalidStateRejection


class InvalidBody(BaseModel):
    """Something is not what it has to be."""

    detail: ValidationFailedRejection | DepthExceededRejection


class TooLargeBody(BaseModel):
    """The body is larger than is read."""

    detail: ValidationFailedRejection


class ForbiddenBody(BaseModel):
    """The caller may not do this, or is not known."""

    detail: ForbiddenRejection


class UnsupportedBody(BaseModel):
    """The protocol is not spoken."""

    detail: UnsupportedProtocolRejection


def refused(rejection: Rejection, *, status: int | None = None, headers: dict[str, str] | None = None) -> Response:
    """Returns the answer to a request that was refused."""
    body = b'{"detail":' + rejection.model_dump_json().encode() + b"}"
    return Response(body, status or STATUS[rejection.type], headers, "application/json")


def unavailable(rejection: Rejection) -> Response:
    """Returns the answer to a request that was not carried out, as something broke, and may be tried again."""
    return refused(rejection, status=503, headers={"retry-after": "1"})


def invalid(error: RequestValidationError) -> ValidationFailed:
    """Returns FastAPI's refusal of a request as ours, with the place of each problem."""
    problems = [_problem(one["loc"], one["msg"]) for one in error.errors()]
    return ValidationFailed("the request is not what it has to be", problems)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns how the OpenAPI document describes these refusals."""
    return {status: _DESCRIBED[status] for status in statuses}


def _problem(place: Iterable[object], message: str) -> str:
    # The first says where in the request it is, which the rest of it does too.
    where, *inside = (str(part) for part in place if part not in _FORMS)
    return f"{'.'.join(inside) or where}: {message}"


def _example(model: type[BaseModel], rejection: Rejection, **headers: str) -> dict[str, Any]:
    example = {"detail": rejection.model_dump(mode="json")}
    return {
        "model": model,
        "description": (model.__doc__ or "").strip(),
        "content": {"application/json": {"example": example}},
        "headers": {
            name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
            for name, text in headers.items()
        },
    }


_DESCRIBED: Final[dict[int, dict[str, Any]]] = {
    400: _example(UnsupportedBody, UnsupportedProtocolRejection(message="the protocol 'v0' is not spoken here")),
    401: _example(ForbiddenBody, ForbiddenRejection(message="say who you are"), WWW_Authenticate="How to."),
    403: _example(ForbiddenBody, ForbiddenRejection(message="this user may not 'reflexr:publish'")),
    404: _example(NotFoundBody, NotFoundRejection(message="there is no run 'fir_0' in this workspace")),
    409: _example(InvalidStateBody, InvalidStateRejection(message="the run 'fir_0' has ended: it succeeded")),
    413: _example(
        TooLargeBody, ValidationFailed("the body is larger than 1048576 bytes: send less at a time").rejection
    ),
    422: _example(
        InvalidBody,
        ValidationFailedRejection(
            message="the request is not what it has to be", errors=("limit: Input should be a valid integer",)
        ),
    ),
    503: _example(
        InvalidStateBody,
        InvalidStateRejection(message="the storage does not answer: try again"),
        Retry_After="In how many seconds.",
    ),
}
