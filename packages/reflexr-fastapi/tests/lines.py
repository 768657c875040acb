"""A WebSocket without a network: what a client says is put in, and what it is told can be looked at."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.types import Message
from starlette.websockets import WebSocket


class Line:
    """A client's end of a connection, which speaks ASGI.

    Attributes:
        sent: What the server sent, in order.
        is_open: Whether the client accepts what is sent; a server waits while it does not.
        fails: What sending raises: as where the client is gone, or the server has closed the connection.
    """

    def __init__(self, subprotocols: Sequence[str] = (), *, query: str = "") -> None:
        self.sent: Final[list[Message]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.fails: Callable[[], Exception] | None = None
        self._said = asyncio.Queue[Message]()
        self._said.put_nowait({"type": "websocket.connect"})
        self._told = asyncio.Event()
        scope = {
            "type": "websocket",
            "scheme": "ws",
            "path": "/stream",
            "query_string": query.encode(),
            "headers": [],
            "subprotocols": list(subprotocols),
        }
        self.websocket: Final = WebSocket(scope, self._said.get, self._send)

    def say(self, **message: Any) -> None:
        """Has the client send a text, or bytes."""
        self._said.put_nowait({"type": "websocket.receive", **message})

    def hang_up(self, **message: Any) -> None:
        """Has the client disconnect."""
        self._said.put_nowait({"type": "websocket.disconnect", **message})

    async def told(self, number: int) -> None:
        """Waits until the server has sent so many messages."""
        while len(self.sent) < number:
            self._told.clear()
            await self._told.wait()

    async def _send(self, message: Message) -> None:
        await self.is_open.wait()
        if self.fails is not None:
            raise self.fails()
        self.sent.append(message)
        self._told.set()
