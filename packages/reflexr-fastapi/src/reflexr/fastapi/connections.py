"""Connections: one WebSocket of a client, its hello, what it is sent in which order, and how it ends."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fastapi import WebSocket, WebSocketDisconnect
from starlette.websockets import WebSocketState

from reflexr.core import (
    PROTOCOL,
    ClientFrame,
    Delta,
    ErrorFrame,
    Hello,
    Rejected,
    ServerFrame,
    ValidationFailed,
    read_client_frame,
    write_frame,
)
from reflexr.fastapi.outboxes import Outbox

BAD_HELLO: Final = 4400
NOT_AUTHENTICATED: Final = 4401
MAY_NOT: Final = 4403
NO_HELLO: Final = 4408
TOO_SLOW: Final = 4429
GOING_AWAY: Final = 1001
LOST: Final = 1006
BROKEN: Final = 1011

PATIENCE: Final = timedelta(seconds=30)
"""How long a client may take to accept one frame before it is closed as too slow.

For a delta it has any time, until more than deltas is there to be sent.
"""

FAREWELL: Final = timedelta(seconds=10)
"""How long it may take to tell a client that its connection is closed, before it is cut off.

A client that is closed as too slow reads nothing just then: it has `PATIENCE`, and holds no frames meanwhile.
"""

_LONGEST_REASON: Final = 123
"""How many bytes of a reason a close frame has room for (RFC 6455, 5.5)."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What a connection may cost.

    Attributes:
        hello_timeout: How long its client has to say hello.
        outbox_size: How many frames its client may be behind.
        max_frame: How many bytes a frame of its client may have.
    """

    hello_timeout: timedelta
    outbox_size: int
    max_frame: int


class Closed(Exception):
    """The connection is to be closed.

    Attributes:
        code: The close code.
        reason: Why, in words.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class Connection:
    """One client's connection. It is a member of its workspace's broadcasts once it is caught up.

    Attributes:
        types: The event types that the client wants; `None` for all.
        after_seq: The place up to which everything it wants was put in its outbox, until it joins the broadcast.
    """

    def __init__(self, websocket: WebSocket, limits: StreamLimits) -> None:
        """Prepares to serve a client.

        Args:
            websocket: The connection, not accepted yet.
            limits: What it may cost.
        """
        self.types: frozenset[str] | None = None
        self.after_seq = 0
        self.gone: Final = asyncio.Event()
        self._websocket = websocket
        self._limits = limits
        self._outbox = Outbox(limits.outbox_size)
        self._patience: asyncio.Timeout | None = None
        self._verdict: asyncio.Future[Closed] = asyncio.get_running_loop().create_future()

    async def accept(self) -> None:
        """Accepts the connection, in the protocol if the client offers it.

        Raises:
            WebSocketDisconnect: The client is gone.
        """
        offered = self._websocket.scope.get("subprotocols") or ()
        try:
            await self._websocket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
        except OSError as error:
            raise WebSocketDisconnect(LOST) from error

    async def hello(self) -> Hello:
        """Returns the client's first frame.

        Raises:
            Closed: It is no hello, or did not come in time.
            WebSocketDisconnect: The client is gone.
        """
        try:
            async with asyncio.timeout(self._limits.hello_timeout.total_seconds()):
                frame = await self.receive()
        except TimeoutError as error:
            raise Closed(NO_HELLO, "no hello came in time") from error
        except Rejected as refused:
            raise await self.refuse_hello(refused) from refused
        if not isinstance(frame, Hello):
            raise await self.refuse_hello(ValidationFailed("the first frame is a hello"))
        return frame

    async def refuse_hello(self, refused: Rejected) -> Closed:
        """Tells the client what was wrong with its hello, and returns how the connection is to be closed."""
        await self._send(write_frame(ErrorFrame(rejection=refused.rejection)))
        return Closed(BAD_HELLO, str(refused))

    async def receive(self) -> ClientFrame:
        """Returns the client's next frame.

        Raises:
            ValidationFailed: It is none.
            WebSocketDisconnect: The client is gone.
        """
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", GOING_AWAY))
        text: str | None = message.get("text")
        if text is None:
            raise ValidationFailed("a frame is text, and this one is binary")
        if len(text) > self._limits.max_frame or len(text.encode()) > self._limits.max_frame:
            raise ValidationFailed(f"the frame is larger than {self._limits.max_frame} bytes: send less at a time")
        return read_client_frame(text)

    async def put(self, frame: ServerFrame) -> None:
        """Has a frame sent, once there is room for it behind those that wait."""
        await self._outbox.put(write_frame(frame))
        self._press()

    def offer(self, frame: str) -> None:
        """Has a frame sent; a client that is too far behind is closed."""
        if self._verdict.done():
            return
        if self._outbox.offer(frame):
            self._press()
        else:
            self.end(TOO_SLOW, "too slow: more is there to be read than waits for anybody; resume after the last event")

    def offer_delta(self, delta: Delta, frame: str) -> None:
        """Has a delta sent in a frame; a client that is too far behind loses the oldest that it was not sent."""
        if not self._verdict.done():
            self._outbox.offer_delta(delta, frame)

    def lose(self) -> None:
        """Ends the connection, as the storage failed."""
        self.end(BROKEN, "the storage failed: resume after the last event")

    def end(self, code: int, reason: str) -> None:
        """Ends the connection, unless it is ending already."""
        if not self._verdict.done():
            self._verdict.set_result(Closed(code, reason))

    async def watch(self) -> None:
        """Waits until the connection is to end.

        Raises:
            Closed: It is.
        """
        # A waiter that is cancelled takes nothing from the others.
        raise await asyncio.shield(self._verdict)

    async def drained(self) -> None:
        """Waits until everything that was put is on its way."""
        await self._outbox.drained()

    async def send_all(self) -> None:
        """Sends what is put in the outbox, without end.

        Raises:
            Closed: The client does not accept it.
            WebSocketDisconnect: The client is gone.
        """
        while True:
            frame = await self._outbox.take()
            await self._send(frame, is_pressing=self._outbox.is_pressing)

    async def close(self, closed: Closed) -> None:
        """Tells the client that the connection is closed, and why."""
        self._outbox.clear()
        reason = closed.reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
        at_most = PATIENCE if closed.code == TOO_SLOW else FAREWELL
        # The client may be gone, or the server have closed the connection itself.
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(at_most.total_seconds()):
                if self._websocket.application_state is WebSocketState.CONNECTING:
                    # Only a connection that was accepted has a close code.
                    await self.accept()
                await self._websocket.close(closed.code, reason)

    def _press(self) -> None:
        """Has the client accept in time the delta that is on its way, as more than deltas is behind it now."""
        if self._patience is not None and self._patience.when() is None:
            self._patience.reschedule(asyncio.get_running_loop().time() + PATIENCE.total_seconds())

    async def _send(self, frame: str, *, is_pressing: bool = True) -> None:
        try:
            async with asyncio.timeout(PATIENCE.total_seconds() if is_pressing else None) as self._patience:
                await self._websocket.send_text(frame)
        except TimeoutError as error:
            raise Closed(TOO_SLOW, "too slow: a frame was not accepted in time") from error
        except RuntimeError as error:
            # The server has closed the connection by itself, as where no pong came.
            raise WebSocketDisconnect(LOST) from error
        finally:
            self._patience = None
