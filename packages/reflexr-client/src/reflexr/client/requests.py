"""Requests: one HTTP request, tried again until it is answered or the back-off ends.

Every request is safe to repeat: reads change nothing, and a command is recognised by its id.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, override

import httpx
from pydantic import TypeAdapter

from reflexr.client.addresses import Address
from reflexr.client.answers import first, read_answer, read_outcome, read_published, refusal
from reflexr.client.arguments import Batch, Parameters
from reflexr.client.backoff import Backoff, Tries
from reflexr.client.credentials import Credentials
from reflexr.client.errors import Unavailable
from reflexr.core import CommandFrame, Outcome, Published, ValidationFailed, write_frame

_LOG: Final = logging.getLogger(__name__)

_TRANSIENT: Final = frozenset({429, 502, 503, 504})
"""The statuses of an answer that another try may improve: too many requests, or no server behind a proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a server.

    Attributes:
        method: The HTTP method.
        segments: The path below the address, each segment as it is called.
        parameters: What follows the `?`.
        body: The JSON text that is sent.
        headers: What is sent besides the credentials.
        command_id: The id of the command that it carries.
    """

    method: str
    segments: tuple[str, ...]
    parameters: Parameters = field(default_factory=dict[str, "str | int | Sequence[str] | None"])
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    command_id: str | None = None

    @override
    def __str__(self) -> str:
        """Returns what it is called in messages."""
        return f"{self.method} /{'/'.join(self.segments)}"


class Requests:
    """Sends requests to one server, with a participant's credentials."""

    def __init__(
        self, http: httpx.AsyncClient, address: Address, credentials: Credentials, timeout: timedelta, backoff: Backoff
    ) -> None:
        """Creates what sends requests.

        Args:
            http: What carries them.
            address: Where the server is.
            credentials: Who asks.
            timeout: How long each try may wait for the server to connect, to take more or to send more.
            backoff: How often and how long a request is tried.
        """
        self._http = http
        self._address = address
        self._credentials = credentials
        self._timeout = httpx.Timeout(timeout.total_seconds())
        self._backoff = backoff

    async def get[T](self, adapter: TypeAdapter[T], *segments: str, parameters: Parameters | None = None) -> T:
        """Returns what is at a path.

        Raises:
            ReflexrError: As `send`.
        """
        request = Request(method="GET", segments=segments, parameters=parameters or {})
        return read_answer(adapter, await self.send(request), str(request))

    async def command[O: Outcome](self, frame: CommandFrame, kind: type[O], *segments: str) -> O:
        """Has a command carried out, once for its id, and returns its outcome.

        Raises:
            ReflexrError: As `send`.
        """
        request = Request(method="POST", segments=segments, body=write_frame(frame), command_id=frame.command_id)
        return read_outcome(await self.send(request), kind, f"{frame.command.type!r} by {request}")

    async def publish(self, batch: Batch, *segments: str) -> list[Published]:
        """Has events appended together, once for their command's id, and returns what came of each.

        Raises:
            ReflexrError: As `send`.
        """
        request = Request(
            method="POST",
            segments=segments,
            body=batch.to_json(),
            headers={"Idempotency-Key": batch.command_id},
            command_id=batch.command_id,
        )
        published = read_published(await self.send(request), len(batch.commands), str(request))
        return [one if named else first(one) for one, named in zip(published, batch.named, strict=True)]

    async def send(self, request: Request) -> bytes:
        """Returns the content of a request's answer.

        Raises:
            Rejected: The server refuses the request, or it is too long to be sent.
            Unauthorized: The server does not know who asks.
            Unavailable: No try was answered.
            UnexpectedAnswer: The answer is neither a result nor a rejection.
        """
        url = self._address.path(*request.segments)
        tries = Tries(self._backoff)
        while True:
            response, failure = await self._try(request, url)
            if response is not None and response.status_code not in _TRANSIENT:
                if response.is_success:
                    return response.content
                raise refusal(response.status_code, response.content, str(request))
            shown = repr(failure) if response is None else f"status {response.status_code}"
            wait = tries.next_wait(at_least=_retry_after(response))
            if wait is None:
                message = f"{request} was tried {tries.failed} times, the last with {shown}"
                raise Unavailable(message, tries.failed, request.command_id) from failure
            _LOG.warning("%s failed with %s: trying again in %.3f s", request, shown, wait)
            await self._backoff.sleep(wait)

    async def _try(self, request: Request, url: str) -> tuple[httpx.Response | None, httpx.RequestError | None]:
        headers = {**await self._credentials.headers(), **request.headers}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        try:
            response = await self._http.request(
                request.method,
                url,
                params={name: value for name, value in request.parameters.items() if value is not None},
                content=request.body,
                headers=headers,
                timeout=self._timeout,
            )
        except httpx.InvalidURL as error:
            raise ValidationFailed(f"{request.method}: what it names is too long for a URL: {error}") from error
        except httpx.RequestError as error:
            return None, error
        return response, None


def _retry_after(response: httpx.Response | None) -> float:
    # The other form, a date, depends on two clocks that may differ: our own back-off does for it.
    seconds = "" if response is None else response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isascii() and seconds.isdigit() else 0.0
