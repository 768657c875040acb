"""Rounds: going about the workspaces that have something to do, side by side, until nothing is left or told to stop.

What there is to do, and how it is done, is a `Duty`'s to say: evaluating, executing and ticking each are one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from logging import getLogger
from typing import Final, Protocol

from reflexr.telemetry import untraced
from reflexr.workspace.refs import WorkspaceRef
from reflexr.workspace.storage import Storage
from reflexr.workspace.wakeups import Listener

PARALLEL: Final = 16
"""How many workspaces one duty works on at a time."""

FIRST_DELAY: Final = timedelta(seconds=1)
"""How long what went wrong is left alone at first; each further time twice as long."""

LONGEST_DELAY: Final = timedelta(minutes=1)
"""The longest that it is left alone."""

_LOGGER: Final = getLogger("reflexr.workspace.reactor")

_CROWD: Final = 256

type Work = Callable[[], Awaitable[int]]
"""Does what there is to do in one workspace, and returns how much it did."""


class Duty(Protocol):
    """Something that is to be done in workspaces."""

    @property
    def name(self) -> str:
        """What it is, for messages."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing goes on beside the work that `find` named."""
        ...

    def heard(self, changed: frozenset[WorkspaceRef]) -> bool:
        """Takes note that workspaces changed, none stands for any, and returns whether to look for work now.

        Whatever changes where something is being done is looked for once that is over.
        """
        ...

    async def find(self, busy: Collection[WorkspaceRef]) -> Mapping[WorkspaceRef, Work]:
        """Returns what there is to do now, by workspace: nothing in those that are busy."""
        ...

    async def rest(self) -> timedelta | None:
        """Returns how long it is until there is something to do by time alone; `None` if only a change can bring it."""
        ...

    def failed(self, workspace: WorkspaceRef) -> None:
        """Takes note that the work in a workspace broke, so that it is not found again at once."""
        ...


class Rounds:
    """One going about. Its tasks are its own and have ended when it has."""

    def __init__(self, duty: Duty, storage: Storage) -> None:
        """Prepares to go about.

        Args:
            duty: What to do.
            storage: Whose changes to listen to.
        """
        self._duty = duty
        self._storage = storage
        self._wake = asyncio.Event()
        self._busy: set[WorkspaceRef] = set()
        self._serving = False
        self._errors: list[Exception] = []
        self._done = 0

    def wake(self) -> None:
        """Has it look again."""
        self._wake.set()

    def hear(self, changed: frozenset[WorkspaceRef]) -> None:
        """Takes note that workspaces changed, and looks again where that may have brought work; none stands for any."""
        if self._duty.heard(changed):
            self._wake.set()

    async def until_idle(self) -> int:
        """Does what there is to do, and what comes of it, until there is nothing; returns how much was done.

        Raises:
            ExceptionGroup: Work broke in some workspaces, after all the others were done; a lone exception comes as
                it is.
        """
        looking = True
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                if looking:
                    try:
                        with untraced():
                            found = await self._duty.find(self._busy)
                    except Exception as error:
                        # What goes on already is not broken off.
                        looking = False
                        self._errors.append(error)
                    else:
                        self._start(tasks, found)
                # What ended while it was looked for may have brought more, of which the answer says nothing yet.
                outdated = looking and self._wake.is_set()
                if not (self._busy or outdated) and self._duty.idle:
                    break
                await self._wake.wait()
        if len(self._errors) > 1:
            raise ExceptionGroup(f"{self._duty.name} broke {len(self._errors)} times", self._errors)
        for error in self._errors:
            raise error
        return self._done

    async def serve(self, stop: asyncio.Event, *, listen: bool = True) -> None:
        """Does what there is to do, whenever there is, until `stop` is set; then finishes what it is at.

        What breaks is reported, left alone for a while and tried again.

        Args:
            stop: Ends it.
            listen: Whether it listens to the storage; otherwise somebody says what changed: see `hear`.
        """
        self._serving = True
        with ExitStack() as stack:
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(self._await_stop(stop))]
                if listen:
                    listener = stack.enter_context(self._storage.wakeups.listen())
                    helpers.append(tasks.create_task(self._listen(listener)))
                try:
                    await self._serve(tasks, stop)
                finally:
                    for helper in helpers:
                        helper.cancel()

    async def _serve(self, tasks: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        delays = Delays[str]()
        hasty = False
        while not stop.is_set():
            self._wake.clear()
            delay: timedelta | None = None
            try:
                with untraced():
                    found = await self._duty.find(self._busy)
                    if not found:
                        delay = await self._duty.rest()
            except Exception:
                delay = delays.add("find")
                _LOGGER.exception("%s: looking for work failed; next try in %s", self._duty.name, delay)
            else:
                delays.forget("find")
                self._start(tasks, found)
                # What is due by time may have become so since it was looked for, which is worth one more look and no
                # more.
                if not found and delay == timedelta() and not hasty:
                    hasty = True
                    continue
            hasty = False
            await self._pause(delay)

    async def _pause(self, delay: timedelta | None) -> None:
        """Waits until it is woken, at most this long: not at all is no wait, so it is a while."""
        polls = self._storage.wakeups.poll_interval
        delays = [
            max(delay, FIRST_DELAY) if delay == timedelta() else delay for delay in (delay, polls) if delay is not None
        ]
        try:
            async with asyncio.timeout(min(delays).total_seconds() if delays else None):
                await self._wake.wait()
        except TimeoutError:
            return

    def _start(self, tasks: asyncio.TaskGroup, found: Mapping[WorkspaceRef, Work]) -> None:
        for workspace, work in found.items():
            self._busy.add(workspace)
            tasks.create_task(self._work(workspace, work))

    async def _work(self, workspace: WorkspaceRef, work: Work) -> None:
        try:
            done = await work()
            self._done += done
        except Exception as error:
            self._duty.failed(workspace)
            if self._serving:
                _LOGGER.exception("%s: %s broke, and is tried again in a while", self._duty.name, workspace)
            else:
                self._errors.append(error)
        finally:
            self._busy.discard(workspace)
            self._wake.set()

    async def _listen(self, listener: Listener) -> None:
        while True:
            self.hear(await listener.wait())

    async def _await_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()


class Delays[Key: Hashable]:
    """What is left alone for a while, because it went wrong or somebody else is at it: each time twice as long."""

    def __init__(self) -> None:
        self._entries: dict[Key, tuple[float, timedelta]] = {}
        self._crowd = _CROWD

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        """Whether it is left alone now."""
        entry = self._entries.get(key)
        return entry is not None and entry[0] > asyncio.get_running_loop().time()

    def known(self, key: Key) -> bool:
        """Whether it was left alone not long ago."""
        return key in self._entries

    def add(self, key: Key, delay: timedelta | None = None) -> timedelta:
        """Leaves something alone, and returns for how long.

        Args:
            key: What to leave alone.
            delay: For how long; by default for `FIRST_DELAY`, and twice as long as last time after that.
        """
        if delay is None:
            before = self._entries.get(key)
            delay = FIRST_DELAY if before is None else min(2 * before[1], LONGEST_DELAY)
        now = asyncio.get_running_loop().time()
        self._entries[key] = now + delay.total_seconds(), delay
        if len(self._entries) > self._crowd:
            # What was not asked for again for so long is gone for good.
            old = now - LONGEST_DELAY.total_seconds()
            self._entries = {key: entry for key, entry in self._entries.items() if entry[0] > old}
            self._crowd = max(2 * len(self._entries), _CROWD)
        return delay

    def forget(self, key: Key) -> bool:
        """Leaves it alone no longer, and returns whether it was."""
        return self._entries.pop(key, None) is not None

    def rest(self) -> timedelta | None:
        """Returns how long it is until the first is to be tried again; `None` if there is none."""
        if not self._entries:
            return None
        now = asyncio.get_running_loop().time()
        later = [at for at, _ in self._entries.values() if at > now]
        return timedelta(seconds=min(later) - now) if later else None
