"""Routes: what every request goes through before and after its endpoint.

Its caller is identified before anything else of it is read; its body is read as JSON within limits; and whatever is
refused is answered as `reflexr.fastapi.refusals` has it.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast, override

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from reflexr.core import ForbiddenRejection, InvalidStateRejection, Rejected, ValidationFailed, repeated_member
from reflexr.fastapi.callers import Caller, Callers, Unauthorized
from reflexr.fastapi.refusals import invalid, refused, unavailable
from reflexr.workspace import StorageError

_LOGGER: Final = logging.getLogger("reflexr.fastapi")

_CALLER: Final = "reflexr.caller"

_JSON_TYPE: Final = re.compile(r"application/([^/\s]+\+)?json")
"""What FastAPI takes for JSON too, which leaves every other body unread."""

WORKSPACE: Final = "/workspaces/{workspace_id:reflexr_id}"
"""The path of a workspace, whose id may have any character, also slashes and line breaks."""

SLASHES: Final = "/{slashes:reflexr_slashes}"
"""What a path ends in that is one but for a slash, or for more of them."""


class _IdConvertor(PathConvertor):
    """A part of a path that may have any character."""

    regex = r"[\s\S]*"


class _SlashesConvertor(PathConvertor):
    """The slashes that a path ends in, but for the first."""

    regex = r"/*"


register_url_convertor("reflexr_id", _IdConvertor())
register_url_convertor("reflexr_slashes", _SlashesConvertor())


def caller_of(request: Request) -> Caller:
    """Returns who calls."""
    return request.scope[_CALLER]


def route_class(callers: Callers, max_body: int) -> type[APIRoute]:
    """Returns the class of the routes of one router.

    Args:
        callers: Identifies who calls.
        max_body: How many bytes of a body are read at most.
    """
    allowed: defaultdict[str, set[str]] = defaultdict(set)

    class Route(APIRoute):
        """A route of reflexr's router."""

        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
            super().__init__(path, endpoint, **options)
            allowed[self.path_format].update(self.methods or ())

        @override
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["method"] not in self.methods:
                callers.redact(scope)
                # The path may have other routes, for other methods.
                raise HTTPException(405, headers={"allow": ", ".join(sorted(allowed[self.path_format]))})
            await super().handle(scope, receive, send)

        @override
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            known = {parameter.alias for parameter in self.dependant.query_params}

            async def handler(request: Request) -> Response:
                try:
                    request.scope[_CALLER] = await callers.identify(request.scope)
                    _check_query(request, known)
                    return await handle(_JsonRequest(request, max_body))
                except Unauthorized as error:
                    rejection = ForbiddenRejection(message=str(error))
                    return refused(rejection, status=401, headers={"www-authenticate": "Bearer"})
                except Rejected as error:
                    return refused(error.rejection)
                except RequestValidationError as error:
                    return refused(invalid(error).rejection)
                except _BodyRefused as error:
                    return refused(error.refusal.rejection, status=error.status_code)
                except StorageError:
                    _LOGGER.exception("%s %s could not be answered", request.method, request.scope["path"])
                    rejection = InvalidStateRejection(message="the storage does not answer: try again")
                    return unavailable(rejection)

            return handler

    return Route


async def unknown() -> None:
    """Answers as at any path that does not exist."""
    raise HTTPException(404)


def unknown_route_class(callers: Callers) -> type[APIRoute]:
    """Returns the class of the routes that answer `unknown`, which keep credentials in a URL out of every record.

    Add them last, for GET: any other method is then left to the routes that have the path.
    """

    class UnknownRoute(APIRoute):
        """A path that a client may take for one of reflexr's, and send credentials to."""

        @override
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            # Also for every other method, or else it would be told that it may try GET.
            callers.redact(scope)
            await unknown()

    return UnknownRoute


class _BodyRefused(HTTPException):
    """A body that is not read: FastAPI lets no other exception than this through as it is."""

    def __init__(self, refusal: ValidationFailed, status: int = 422) -> None:
        super().__init__(status)
        self.refusal = refusal


class _JsonRequest(Request):
    """A request whose body is read as reflexr reads JSON: no more of it than is admitted, UTF-8, and an object."""

    def __init__(self, request: Request, max_body: int) -> None:
        super().__init__(request.scope, request.receive)
        self._max_body = max_body
        self._read: bytes | None = None

    @override
    async def body(self) -> bytes:
        if self._read is None:
            _check_type(self.headers.get("content-type", ""))
            self._check_size(int(size) if (size := self.headers.get("content-length", "0")).isdecimal() else 0)
            body = bytearray()
            async for chunk in self.stream():
                body += chunk
                self._check_size(len(body))
            self._read = bytes(body)
        return self._read

    @override
    async def json(self) -> Any:
        body = await self.body()
        try:
            # It refuses what nests too deep and halves of surrogates, and takes the last of two members of one name.
            value: object = from_json(body)
            repeated = repeated_member(body)
        except ValueError as error:
            raise _BodyRefused(ValidationFailed("the body is not JSON", [f"body: {_why(body, error)}"])) from error
        if repeated is not None:
            problem = f"body: an object has more than one member {repeated!r}"
            raise _BodyRefused(ValidationFailed("the body is ambiguous", [problem]))
        if not isinstance(value, dict):
            raise _BodyRefused(ValidationFailed("the body is not a JSON object", ["body: write {…}"]))
        return cast("dict[str, Any]", value)

    def _check_size(self, size: int) -> None:
        if size > self._max_body:
            large = ValidationFailed(f"the body is larger than {self._max_body} bytes: send less at a time")
            raise _BodyRefused(large, 413)


def _check_type(content_type: str) -> None:
    media_type = content_type.partition(";")[0].strip().lower()
    if _JSON_TYPE.fullmatch(media_type) is None:
        shown = f"is {media_type!r}" if media_type else "is missing"
        raise _BodyRefused(
            ValidationFailed("the body is not JSON", [f"content-type: it {shown}: send application/json"])
        )


def _why(body: bytes, error: ValueError) -> str:
    """Returns why a body is no JSON."""
    try:
        body.decode()
    except UnicodeDecodeError as undecodable:
        return f"it is not UTF-8: {undecodable.reason} at byte {undecodable.start}"
    if "hex escape" in str(error):
        return f"{error}: a surrogate is written with its other half"
    return str(error)


def _check_query(request: Request, known: set[str]) -> None:
    """Refuses a query parameter that the route does not have, as a filter that is misspelt would filter nothing."""
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        takes = f"this takes {', '.join(map(repr, sorted(known)))}" if known else "this takes none"
        raise ValidationFailed(
            "the request has query parameters that are not known", [f"{name}: {takes}" for name in unknown]
        )
