"""A way to a server that is cut off at any moment: a relay on the loopback, all of whose connections can be dropped."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from random import Random


class Relay:
    """Passes on what comes, in pieces, until it is cut.

    Attributes:
        port: Where to connect.
        cuts: How many connections were cut off.
        opened: How many were opened.
    """

    def __init__(self, to: int, random: Random) -> None:
        self.port = 0
        self.cuts = 0
        self.opened = 0
        self._to = to
        self._random = random
        self._connections: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()

    async def is_open(self) -> None:
        """Waits until there is a connection that has passed something back."""
        await self._open.wait()

    def cut(self) -> None:
        """Cuts off every connection, wherever it is, perhaps in the middle of a frame."""
        self._open.clear()
        for connection in list(self._connections):
            self.cuts += connection.cancel()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.opened += 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        try:
            await asyncio.wait(
                [
                    asyncio.create_task(self._pump(reader, there_writer, back=False)),
                    asyncio.create_task(self._pump(there_reader, writer, back=True)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        except asyncio.CancelledError:
            task.uncancel()
        finally:
            self._connections.discard(task)
            for one in (writer, there_writer):
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        # What is passed on is cut into pieces of any size, so that a cut falls inside of frames too.
        with suppress(OSError):
            while piece := await reader.read(self._random.randint(1, 8_192)):
                writer.write(piece)
                await writer.drain()
                if back:
                    self._open.set()


@asynccontextmanager
async def relay(to: int, random: Random) -> AsyncGenerator[Relay]:
    """Relays to a port until the block ends."""
    passing = Relay(to, random)
    server = await asyncio.start_server(passing.pass_on, "127.0.0.1", 0)
    passing.port = server.sockets[0].getsockname()[1]
    try:
        yield passing
    finally:
        server.close()
        passing.cut()
        await server.wait_closed()
