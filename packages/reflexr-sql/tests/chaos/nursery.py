"""The nursery: forks off the reactors and the publishers of an episode, and sends them signals.

`python -m chaos.nursery SETTINGS` does as it is told by lines, and answers each with one; it imports everything, and
compiles every statement, once for all of them. Whoever ends without having been told to is told of: `died NAME STATUS`.
When its input ends, so does everybody.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, override

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.core import InvalidState, Rejected, Rule, SourceActor
from reflexr.sql import SqlStorage, create_sqlite_engine
from reflexr.workspace import NewEvent, RunFailure, StorageError, Workspace

from .application import Worker, reactor_of, workspaces_of
from .journal import Answered, Journal, Published, Trouble, entries_of
from .plans import LEASE_TTL, WORKSPACES, chance, lot_of

GRACE: Final = LEASE_TTL / 2
"""How long actions may go on once a reactor was told to end."""

BATCH_SIZE: Final = 5
"""How many envelopes are evaluated together: few, so that a backlog takes several transactions under one lease."""

CONCURRENCY: Final = 16


class Settings(BaseModel):
    """What all processes of an episode know.

    Attributes:
        folder: Where they write.
        pace: How long a publisher rests between two lots at most, in seconds.
    """

    url: str
    folder: Path
    seed: int
    rules: list[Rule]
    pace: float

    @property
    def journal(self) -> Path:
        """Where they write down what they do."""
        return self.folder / "journal"


def engine_of(url: str) -> AsyncEngine:
    """Returns an engine on the episode's database."""
    return create_sqlite_engine(url, synchronous="OFF") if url.startswith("sqlite") else create_async_engine(url)


# --- The nursery


class Nursery:
    """Those that were forked off and are not gone yet."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._living: dict[str, int] = {}
        self._told: set[str] = set()

    def obey(self, deed: str, name: str) -> str:
        """Does something to a process, and says what came of it."""
        for dead, status in self._dead():
            tell("died", dead, status)
        if deed != "start" and name not in self._living:
            return f"gone {name}"
        match deed:
            case "start":
                self._living[name] = self._fork(name)
            case "kill":
                os.kill(self._living[name], signal.SIGKILL)
                os.waitpid(self._living.pop(name), 0)
            case "pause":
                os.kill(self._living[name], signal.SIGSTOP)
            case "resume":
                os.kill(self._living[name], signal.SIGCONT)
            case "end":
                self._told.add(name)
                os.kill(self._living[name], signal.SIGTERM)
            case _:
                _, status = os.waitpid(self._living.pop(name), 0)
                return f"{deed} {name} {os.waitstatus_to_exitcode(status)}"
        return f"{deed} {name}"

    def close(self) -> None:
        """Kills who is left."""
        for name in list(self._living):
            self.obey("kill", name)

    def _fork(self, name: str) -> int:
        if child := os.fork():
            return child
        status = 1
        try:
            live(self._settings, name)
            status = 0
        finally:
            logging.shutdown()
            # Nothing of the nursery's own is to be ended here.
            os._exit(status)

    def _dead(self) -> list[tuple[str, int]]:
        """Returns who ended without having been told to, with the status."""
        dead: list[tuple[str, int]] = []
        for name in self._living.keys() - self._told:
            ended, status = os.waitpid(self._living[name], os.WNOHANG)
            if ended:
                dead.append((name, os.waitstatus_to_exitcode(status)))
                del self._living[name]
        return dead


def tell(*words: object) -> None:
    """Answers."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


# --- Those who are forked off


def live(settings: Settings, name: str) -> None:
    """Plays a part until the process is told to end, or dies."""
    journal = Journal(settings.journal)
    _write_log(settings.folder / f"{name}.log", name, journal)
    part = _react if name.startswith("reactor") else _publish
    try:
        asyncio.run(_lived(part, settings, Worker(settings.seed, name, journal)))
    except BaseException as error:
        journal.write(Trouble(by=name, text=f"it ended with {error!r}"))
        raise


type _Part = Callable[[Settings, Worker, SqlStorage, asyncio.Event], Coroutine[Any, Any, None]]


async def _lived(part: _Part, settings: Settings, worker: Worker) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    engine = engine_of(settings.url)
    async with SqlStorage(engine) as storage:
        await part(settings, worker, storage, stop)
    out: Any = engine.pool
    if out.checkedout():
        worker.journal.write(Trouble(by=worker.name, text=f"connections are not back: {engine.pool.status()}"))
    await engine.dispose()


async def _react(settings: Settings, worker: Worker, storage: SqlStorage, stop: asyncio.Event) -> None:
    workspaces = workspaces_of(storage, settings.rules, ticks=True)
    reactor = reactor_of(workspaces, worker, lease_ttl=LEASE_TTL, batch_size=BATCH_SIZE, concurrency=CONCURRENCY)
    await reactor.serve(stop, grace=GRACE)


async def _publish(settings: Settings, worker: Worker, storage: SqlStorage, stop: asyncio.Event) -> None:
    """Publishes lot after lot, from the first on that is not known to be in the log; tries each until it is."""
    part = worker.name.partition(".")[0]
    workspaces = workspaces_of(storage, settings.rules, ticks=False)
    handles: dict[object, Workspace] = {ref: workspaces.handle(ref, actor=SourceActor(name=part)) for ref in WORKSPACES}
    number = sum(isinstance(entry, Published) and entry.by == part for entry in entries_of(settings.journal))
    pace = chance(worker.name)
    while not stop.is_set():
        lot = lot_of(settings.seed, part, number)
        rest = pace.uniform(0, settings.pace)
        try:
            published = await handles[lot.workspace].publish_many(
                [NewEvent(event, id=event_id) for event_id, event in lot.events.items()]
            )
            repeated = any(publication.duplicate for publication in published)
            worker.journal.write(Published(by=part, number=number, repeated=repeated))
            number += 1
            for handle in handles.values():
                await answer(handle, worker, pace)
        except StorageError:
            # A server that is not there says so at once.
            logging.getLogger("chaos").exception("a lot or an answer is not acknowledged, up to lot %d", number)
        with suppress(TimeoutError):
            async with asyncio.timeout(rest):
                await stop.wait()


async def answer(workspace: Workspace, worker: Worker, draw: Random) -> None:
    """Answers some of the paused runs of a workspace, of which others may do so at once."""
    for run in await workspace.runs(status="paused"):
        if draw.random() < 0.5:
            continue
        try:
            await workspace.resume_run(run.id, answer={"attempt": run.attempt}, attempt=run.attempt)
        except InvalidState:
            # Somebody else did, or it was too late.
            continue
        worker.journal.write(Answered(by=worker.name, workspace=workspace.ref, run=run.id, attempt=run.attempt))


# --- What they log


class _Watching(logging.Handler):
    """Writes down what is logged that nothing of the chaos explains."""

    def __init__(self, name: str, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._name = name
        self._journal = journal

    @override
    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # A connection that the server hung up on cannot be closed in good form, and the pool says so.
        hung_up = record.name.startswith("sqlalchemy.pool") and isinstance(error, ConnectionError)
        if not hung_up and (record.name == "asyncio" if error is None else not _is_explained(error)):
            self._journal.write(Trouble(by=self._name, text=f"{record.name}: {record.getMessage()}: {error!r}"))


def _is_explained(error: BaseException) -> bool:
    """Whether an error is what the chaos leads to: the database is away, or an attempt fails or is no longer it."""
    match error:
        case BaseExceptionGroup(exceptions=parts):
            return all(map(_is_explained, parts))
        case _:
            return isinstance(error, StorageError | RunFailure | Rejected)


def _write_log(path: Path, name: str, journal: Journal) -> None:
    """Has everything logged to a file, and all output of the process go there too."""
    with path.open("ab", buffering=0) as file:
        for output in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), output.fileno())
    os.close(sys.stdin.fileno())
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    logging.getLogger().addHandler(_Watching(name, journal))


def main(path: str) -> None:
    """Obeys until its input ends."""
    settings = Settings.model_validate_json(Path(path).read_bytes())
    SqlStorage(engine_of(settings.url))
    # Whoever is told to end hears of it once there is somebody to hear.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    nursery = Nursery(settings)
    tell("ready")
    try:
        for line in sys.stdin:
            deed, name = line.split()
            tell(nursery.obey(deed, name))
    finally:
        nursery.close()


if __name__ == "__main__":
    main(sys.argv[1])
