"""Streams: how a subscriber follows a log over as many connections as that takes."""

import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from ssl import SSLContext
from typing import Final

from reflexr.client.addresses import Address
from reflexr.client.backoff import Backoff, Tries
from reflexr.client.connections import Door, opened
from reflexr.client.credentials import Credentials
from reflexr.client.cursors import StreamBrokenError, StreamCursor
from reflexr.client.errors import Unavailable, UnexpectedAnswer
from reflexr.core import Delta, DeltaFrame, Envelope, ReplayComplete

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Opens the streams of one server, with a participant's credentials.

    Attributes:
        address: Where the server is.
        credentials: Who asks.
        timeout: How long the server may take to open a stream, and then to say `welcome`.
        keepalive: How often the server is pinged, and how long it may take to answer.
        tls: What its certificate is checked with; by default the system's authorities.
        backoff: How often and how long a stream is tried that cannot be opened, or whose server breaks the protocol.
    """

    address: Address
    credentials: Credentials
    timeout: timedelta
    keepalive: timedelta
    tls: SSLContext | None
    backoff: Backoff

    async def follow(self, workspace_id: str, cursor: StreamCursor) -> AsyncGenerator[Envelope | Delta]:
        """Yields what comes after a cursor, each envelope once and in order, without end; and deltas, if it wants them.

        Nothing is read ahead but a few frames, so a subscriber that stops to take envelopes is one that the server
        closes; it goes on where it was once it takes them again.

        Raises:
            LogReset: The log ends before the cursor.
            Rejected: The server refuses the stream.
            Unauthorized: The server does not know who asks.
            Unavailable: The stream could not be opened a first time.
            UnexpectedAnswer: What is there is no such server, or it breaks the protocol each time at one place.
        """
        url = self.address.stream(workspace_id)
        recovery = _Recovery(self.backoff, url)
        while True:
            door = Door(url, await self.credentials.headers(), self.timeout, self.keepalive, self.tls)
            try:
                async with opened(door) as connection:
                    cursor.begin(await connection.greet(cursor.hello()))
                    recovery.opened()
                    while True:
                        frame = await connection.receive()
                        envelope = cursor.take(frame)
                        if envelope is not None:
                            recovery.progressed()
                            yield envelope
                        elif isinstance(frame, ReplayComplete):
                            recovery.progressed()
                        elif isinstance(frame, DeltaFrame) and cursor.hello().deltas:
                            yield frame.delta
            except StreamBrokenError as broken:
                wait = recovery.next_wait(broken, cursor.after_seq)
            await self.backoff.sleep(wait)


class _Recovery:
    """Says what becomes of a stream that broke: how long to wait before it is opened again, or that it is given up."""

    def __init__(self, backoff: Backoff, url: str) -> None:
        self._losses = Tries(backoff)
        # Counted apart: a server that is long away, and then broken once, is to have its chances all the same.
        self._violations = Tries(backoff)
        self._url = url
        self._was_open = False

    def opened(self) -> None:
        self._was_open = True

    def progressed(self) -> None:
        self._losses.restart()
        self._violations.restart()

    def next_wait(self, broken: StreamBrokenError, after_seq: int | None) -> float:
        tries = self._violations if broken.violation else self._losses
        wait = tries.next_wait(endless=self._was_open and not broken.violation)
        place = "at its head" if after_seq is None else f"after {after_seq}"
        if wait is None:
            message = f"{self._url} failed {tries.failed} times {place}: {broken}"
            if broken.violation:
                raise UnexpectedAnswer(message) from broken
            raise Unavailable(message, tries.failed) from broken
        _LOG.warning("%s broke %s: %s: opening it again in %.3f s", self._url, place, broken, wait)
        return wait
