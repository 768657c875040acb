"""Connections: one WebSocket of a stream, and what its end means. When the next is opened is `streams`' to say."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from ssl import SSLContext
from typing import Any, Final, override

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidMessage,
    InvalidStatus,
    NegotiationError,
    ProxyError,
    WebSocketException,
)
from websockets.typing import Subprotocol

from reflexr.client.answers import json_object, refusal
from reflexr.client.cursors import StreamBrokenError
from reflexr.client.errors import ClientError, Unauthorized
from reflexr.core import (
    PROTOCOL,
    ErrorFrame,
    Forbidden,
    Hello,
    InvalidState,
    NotFound,
    Rejected,
    Rejection,
    ServerFrame,
    UnsupportedProtocol,
    ValidationFailed,
    read_server_frame,
    rejected,
    write_frame,
)

MAX_FRAME: Final = 16 * 1024 * 1024
"""The largest frame that is read, in bytes."""

QUEUE: Final = 16
"""How many frames wait for a slow subscriber; with more than that nothing is read from the socket any more."""

FAREWELL: Final = timedelta(milliseconds=100)
"""How long a server that reads nothing may keep a connection from being closed."""

# Protocol error, unsupported data, invalid data and message too big: what comes next would be so too.
_VIOLATIONS: Final = frozenset({1002, 1003, 1007, 1009})

# Without "delta": one that cannot be read is a newer server's, and may be lost as any other.
_FRAME_TYPES: Final = frozenset({"welcome", "event", "replay_complete", "command_result", "error"})

_REFUSALS: Final[Mapping[str, Callable[[str], Rejected]]] = {
    "not_found": NotFound,
    "invalid_state": InvalidState,
    "validation_failed": ValidationFailed,
    "forbidden": Forbidden,
    "unsupported_protocol": UnsupportedProtocol,
}


@dataclass(frozen=True, slots=True)
class Door:
    """Where and how a stream is opened.

    Attributes:
        url: The stream's.
        headers: With the credentials.
        timeout: How long the server may take to open it, and then to say `welcome`.
        keepalive: How often the server is pinged, and how long it may take to answer.
        tls: What its certificate is checked with; by default the system's authorities.
    """

    url: str
    headers: Mapping[str, str]
    timeout: timedelta
    keepalive: timedelta
    tls: SSLContext | None


@asynccontextmanager
async def opened(door: Door) -> "AsyncGenerator[Connection]":
    """Opens a connection, and closes it at once at the end, whatever the server does.

    Raises:
        StreamBrokenError: It cannot be opened now.
        Rejected: The server refuses to open it.
        Unauthorized: The server does not know who asks.
        UnexpectedAnswer: What is there is no such server.
    """
    socket = await _connect(door)
    try:
        if socket.subprotocol != PROTOCOL:
            raise UnsupportedProtocol(f"the server does not speak {PROTOCOL!r}")
        yield Connection(socket, door.timeout)
    finally:
        try:
            # What is said last waits behind what the server does not read.
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL.total_seconds()):
                    await socket.close()
        finally:
            # Also where that is cancelled.
            socket.transport.abort()


class Connection:
    """One open WebSocket."""

    def __init__(self, socket: ClientConnection, timeout: timedelta) -> None:
        self._socket = socket
        self._timeout = timeout
        self._rejection: Rejection | None = None

    async def greet(self, hello: Hello) -> ServerFrame:
        """Says hello, and returns the first frame that is no error.

        Raises:
            StreamBrokenError: There is none in time, or the connection ends.
            Rejected: The server refuses the hello.
            Unauthorized: The server does not know who asks.
        """
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                with self._ending():
                    await self._socket.send(write_frame(hello))
                while isinstance(frame := await self.receive(), ErrorFrame):
                    self._rejection = frame.rejection
                return frame
        except TimeoutError as error:
            raise StreamBrokenError(f"the server said no welcome within {self._timeout}") from error

    async def receive(self) -> ServerFrame:
        """Returns the next frame of a type that is known; what has another is a newer server's.

        Raises:
            StreamBrokenError: The connection ends, or what comes is no frame.
            Rejected: The server ends it and says why.
            Unauthorized: The server does not know any more who asks.
        """
        while True:
            with self._ending():
                content = await self._socket.recv(decode=False)
            if (frame := _read(content)) is not None:
                return frame

    @contextmanager
    def _ending(self) -> Generator[None]:
        try:
            yield
        except ConnectionClosed as closed:
            raise self._end(closed) from closed

    def _end(self, closed: ConnectionClosed) -> Rejected | ClientError | StreamBrokenError:
        last = closed.rcvd or closed.sent
        code, reason = (1006, "") if last is None else (last.code, last.reason)
        match code:
            case 4400 | 4403 if self._rejection is not None:
                return rejected(self._rejection)
            case 4400:
                return _refusal(reason, ValidationFailed, "the server refuses the hello")
            case 4401:
                return Unauthorized(reason or "the server does not know who asks: give a token that it accepts")
            case 4403:
                return _refusal(reason, Forbidden, "the server does not let you follow this workspace")
            case _:
                return StreamBrokenError(f"the connection ended: {closed}", violation=code in _VIOLATIONS)


class _Connect(connect):
    """Follows no redirect, which might lead the credentials elsewhere."""

    @override
    def process_redirect(self, exc: Exception) -> Exception:
        return exc


async def _connect(door: Door) -> ClientConnection:
    # Without TLS there is nothing to check, and websockets refuses what would check it.
    tls: dict[str, Any] = {"ssl": door.tls} if door.tls is not None and door.url.startswith("wss:") else {}
    try:
        return await _Connect(
            door.url,
            subprotocols=[Subprotocol(PROTOCOL)],
            additional_headers=door.headers,
            # Envelopes are small, and a context of compression for each connection is not.
            compression=None,
            open_timeout=door.timeout.total_seconds(),
            ping_interval=door.keepalive.total_seconds(),
            ping_timeout=door.keepalive.total_seconds(),
            # Nothing is to come after it is closed.
            close_timeout=0,
            max_size=MAX_FRAME,
            max_queue=QUEUE,
            **tls,
        )
    except InvalidStatus as error:
        status_code = error.response.status_code
        # A server that has just failed to open a stream may open the next.
        if status_code == 429 or status_code >= 500:
            raise StreamBrokenError(f"the stream was refused with status {status_code}") from error
        raise refusal(status_code, bytes(error.response.body or b""), "opening the stream") from error
    except NegotiationError as error:
        raise UnsupportedProtocol(f"the server does not speak {PROTOCOL!r}: {error}") from error
    except (OSError, InvalidMessage, ProxyError) as error:
        raise StreamBrokenError(f"the stream cannot be opened: {error!r}") from error
    except WebSocketException as error:
        raise StreamBrokenError(f"the stream cannot be opened: {error!r}", violation=True) from error


def _read(content: bytes) -> ServerFrame | None:
    try:
        return read_server_frame(content)
    except ValidationFailed as failed:
        if _is_newer(content):
            return None
        raise StreamBrokenError(f"what came is no frame: {failed.errors[0]}", violation=True) from failed


def _is_newer(content: bytes) -> bool:
    kind = json_object(content).get("type")
    return isinstance(kind, str) and kind not in _FRAME_TYPES


def _refusal(reason: str, otherwise: Callable[[str], Rejected], unexplained: str) -> Rejected:
    # A reason begins with the rejection's type where it is not the one that the code stands for.
    kind, _, message = reason.partition(": ")
    return _REFUSALS.get(kind, otherwise)(message if kind in _REFUSALS else reason or unexplained)
