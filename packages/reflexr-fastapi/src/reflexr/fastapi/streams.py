"""Streams: `reflexr.v1` over a WebSocket. The past straight from storage, then what is live, and commands between.

A connection is a few tasks: one reads the client's frames, one sends what is put for it, one brings it up to date. The
first that has a reason to end the connection ends all of them.
"""

import asyncio
import logging
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from typing import Final

from fastapi import WebSocket, WebSocketDisconnect

from reflexr.core import (
    CommandFrame,
    CommandResult,
    ErrorFrame,
    EventFrame,
    Forbidden,
    InvalidState,
    Rejected,
    ReplayComplete,
    Welcome,
    resume,
)
from reflexr.fastapi.broadcasts import Broadcasts
from reflexr.fastapi.callers import Callers, Unauthorized
from reflexr.fastapi.connections import (
    BROKEN,
    FAREWELL,
    GOING_AWAY,
    MAY_NOT,
    NOT_AUTHENTICATED,
    Closed,
    Connection,
    StreamLimits,
)
from reflexr.fastapi.delta_broadcasts import DeltaBroadcasts
from reflexr.workspace import Authorize, Workspace, Workspaces

PAGE: Final = 500
"""How many envelopes of the past are read at a time."""

_LOGGER: Final = logging.getLogger("reflexr.fastapi")


class Streams:
    """The streams of one router."""

    def __init__(
        self, workspaces: Workspaces, callers: Callers, authorize: Authorize | None, limits: StreamLimits
    ) -> None:
        """Prepares to stream.

        Args:
            workspaces: The workspaces.
            callers: Identifies who connects.
            authorize: Permissions to ask besides the application's.
            limits: What a connection may cost.
        """
        self._workspaces = workspaces
        self._callers = callers
        self._authorize = authorize
        self._limits = limits
        self._broadcasts = Broadcasts(workspaces)
        self._delta_broadcasts = DeltaBroadcasts(workspaces.configuration.settings.live_output)
        self._connections: set[Connection] = set()
        self._commands: set[asyncio.Task[CommandResult]] = set()
        self._closing = False

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    async def serve(self, websocket: WebSocket, workspace_id: str) -> None:
        """Serves one connection until it ends."""
        connection = Connection(websocket, self._limits)
        self._connections.add(connection)
        try:
            if (closed := await self._ended(connection, websocket, workspace_id)) is not None:
                await connection.close(closed)
        finally:
            self._connections.discard(connection)
            connection.gone.set()

    async def close(self) -> None:
        """Closes every connection, as the server is going away; commands that were begun are finished."""
        self._closing = True
        connections = list(self._connections)
        for connection in connections:
            connection.end(GOING_AWAY, "the server is going away")
        # A client that reads nothing is the server's to cut off.
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL.total_seconds()):
                for connection in connections:
                    await connection.gone.wait()
        await self._broadcasts.close()
        await self._delta_broadcasts.close()
        if self._commands:
            await asyncio.wait(self._commands)

    async def _ended(self, connection: Connection, websocket: WebSocket, workspace_id: str) -> Closed | None:
        """Converses with a client, and returns how to close the connection: `None` if the client is gone."""
        closed = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(connection.watch())
                workspace = await self._admit(connection, websocket, workspace_id)
                await self._converse(connection, workspace, tasks)
        except* WebSocketDisconnect:
            _LOGGER.debug("a client of %r is gone", workspace_id)
        except* Closed as group:
            closed = _first(group)
        except* Exception as group:
            _LOGGER.exception("a stream of %r broke off; its client resumes", workspace_id, exc_info=group)
            closed = closed or Closed(BROKEN, "the stream broke off: resume after the last event")
        return closed

    async def _admit(self, connection: Connection, websocket: WebSocket, workspace_id: str) -> Workspace:
        """Accepts the connection and opens the workspace for whoever is at its other end."""
        try:
            # Before it is accepted, as that is when a server writes down its URL.
            caller = await self._callers.identify(websocket.scope)
        except Unauthorized as error:
            await connection.accept()
            raise Closed(NOT_AUTHENTICATED, str(error)) from error
        await connection.accept()
        if self._closing:
            raise Closed(GOING_AWAY, "the server is going away")
        try:
            return await self._workspaces.open(
                caller.tenant_id, workspace_id, actor=caller.actor, authorize=self._authorize
            )
        except Forbidden as refused:
            raise Closed(MAY_NOT, str(refused)) from refused
        except Rejected as refused:
            raise await connection.refuse_hello(refused) from refused

    async def _converse(self, connection: Connection, workspace: Workspace, tasks: asyncio.TaskGroup) -> None:
        hello = await connection.hello()
        try:
            head_seq = await workspace.head_seq()
            beginning = resume(hello, head_seq)
        except Forbidden as refused:
            raise Closed(MAY_NOT, str(refused)) from refused
        except Rejected as refused:
            raise await connection.refuse_hello(refused) from refused
        connection.types = None if hello.types is None else frozenset(hello.types)
        connection.after_seq = beginning.after_seq
        tasks.create_task(connection.send_all())
        await connection.put(Welcome(workspace_id=workspace.workspace_id, head_seq=head_seq, reset=beginning.reset))
        tasks.create_task(self._obey(connection, workspace))
        try:
            await self._replay(connection, workspace, beginning.up_to_seq)
            # Before the client is told that what comes next is live.
            with self._deltas(workspace, connection, wanted=hello.deltas):
                await connection.put(ReplayComplete(up_to_seq=beginning.up_to_seq))
                await self._catch_up(connection, workspace)
                await self._live(connection, workspace)
        except Forbidden as refused:
            raise Closed(MAY_NOT, str(refused)) from refused

    def _deltas(self, workspace: Workspace, connection: Connection, *, wanted: bool) -> AbstractContextManager[None]:
        """Offers a connection what runs say, if it wants that, until the block ends."""
        return self._delta_broadcasts.join(workspace.ref, connection) if wanted else nullcontext()

    async def _live(self, connection: Connection, workspace: Workspace) -> None:
        """Has the connection sent what is published, without end."""
        while (ahead := self._broadcasts.ahead_of(workspace.ref, connection.after_seq)) is not None:
            await self._follow(connection, workspace, ahead)
        with self._broadcasts.join(workspace.ref, connection):
            await connection.watch()

    async def _replay(self, connection: Connection, workspace: Workspace, up_to_seq: int) -> None:
        """Puts what the client wants of the log up to a place."""
        while connection.after_seq < up_to_seq:
            envelopes = await workspace.read(
                after_seq=connection.after_seq, before_seq=up_to_seq + 1, types=connection.types, limit=PAGE
            )
            for envelope in envelopes:
                await connection.put(EventFrame(envelope=envelope))
            connection.after_seq = envelopes[-1].seq if len(envelopes) == PAGE else up_to_seq

    async def _catch_up(self, connection: Connection, workspace: Workspace) -> None:
        """Puts what was published during the replay, until there is room for what is live.

        A client that joined with a full outbox, or far from the log's end, would be closed however well it reads.
        """
        while True:
            await connection.drained()
            head_seq = await workspace.head_seq()
            if head_seq - connection.after_seq <= self._limits.outbox_size // 2:
                return
            await self._replay(connection, workspace, head_seq)

    async def _follow(self, connection: Connection, workspace: Workspace, up_to_seq: int) -> None:
        """Puts what a broadcast is ahead by, from the end of the log that is in memory for it."""
        feed = self._workspaces.configuration.feeds.follow(workspace.ref, connection.after_seq, None)
        async with aclosing(feed) as envelopes:
            while connection.after_seq < up_to_seq:
                envelope = await anext(envelopes)
                if connection.types is None or envelope.event_type in connection.types:
                    await connection.put(EventFrame(envelope=envelope))
                connection.after_seq = envelope.seq

    async def _obey(self, connection: Connection, workspace: Workspace) -> None:
        """Carries out the client's commands, one after another in the order in which they come, without end."""
        while True:
            try:
                frame = await connection.receive()
                if not isinstance(frame, CommandFrame):
                    raise InvalidState("hello is said once, and was: open another connection to begin elsewhere")
            except Rejected as refused:
                await connection.put(ErrorFrame(rejection=refused.rejection))
            else:
                await connection.put(await self._execute(workspace, frame))

    async def _execute(self, workspace: Workspace, frame: CommandFrame) -> CommandResult:
        """Carries out a command to its end, also where the client goes away meanwhile: it will ask again."""
        task = asyncio.create_task(self._workspaces.execute(workspace, frame.command, command_id=frame.command_id))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)
        return await asyncio.shield(task)


def _first(group: BaseExceptionGroup[Closed]) -> Closed:
    first = group.exceptions[0]
    return first if isinstance(first, Closed) else _first(first)
