"""Processes that call the pilot, an agent in workflows of DBOS: `python dbos_pilots.py URL ASKED`. They tell by lines.

It is a program of its own, and no module of the tests.
"""

import asyncio
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final, override

from dbos import DBOS
from dbos_actions import DBOSAction
from harbour import Harbour, Moored, call, rule
from pydantic_ai import Agent, ModelMessage, ModelResponse, PydanticAIDeprecationWarning, TextPart
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import UserPromptPart
from pydantic_ai.models.function import AgentInfo
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from reflexr.agent import AgentAction, EventContext, function_model
from reflexr.core import RetryPolicy
from reflexr.sql import SqlStorage
from reflexr.workspace import Action, Output, Pause, Reaction, Reactor

AT_ONCE: Final = RetryPolicy(max_attempts=20, backoff=timedelta())

SHIP: Final[ContextVar[str | None]] = ContextVar("SHIP", default=None)
"""Whose attempt it is, inside what surrounds the attempt."""


def tell(word: object) -> None:
    """Tells the test something."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


class Pilot:
    """A model that moors a ship with four answers, and writes down which it is asked for."""

    def __init__(
        self, asked: Path, *, victim: int = 0, ships: int = 1, lives: bool = False, failure: int = 0, cut_off: int = 0
    ) -> None:
        """Says what becomes of it.

        Args:
            asked: Where it writes.
            victim: At which answer it tells its process's id, and waits to be killed.
            ships: How many ships have to be there before it tells.
            lives: Whether its whole process stands still instead, until it is told a line.
            failure: At which answer it fails, once.
            cut_off: At which answer it is cancelled, once.
        """
        self._asked = asked
        self._victim = victim
        self._ships = ships
        self._lives = lives
        self._failures = [failure]
        self._cut_offs = [cut_off]

    async def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Answers, if nothing becomes of it."""
        ship = _ship(messages)
        assert SHIP.get() == ship
        number = sum(isinstance(message, ModelResponse) for message in messages) + 1
        with self._asked.open("a") as written:
            written.write(f"{ship} {number}\n")
        if number == self._victim:
            await self._wait()
        if number in self._failures:
            self._failures.remove(number)
            raise ConnectionError("the line is busy")
        if number in self._cut_offs:
            self._cut_offs.remove(number)
            raise asyncio.CancelledError
        answers = (
            call("emit_event", event={"type": "harbour:moored", "ship": ship, "berth": 1}),
            call("read_events", types=["harbour:moored"]),
            call("emit_event", event={"type": "harbour:moored", "ship": ship, "berth": 2}),
            TextPart(f"{ship} is moored."),
        )
        return ModelResponse([answers[number - 1]])

    async def _wait(self) -> None:
        self._ships -= 1
        if self._ships == 0:
            tell(os.getpid())
        if self._lives:
            sys.stdin.readline()
        else:
            await asyncio.Event().wait()


def _ship(messages: Sequence[ModelMessage]) -> str:
    (prompt,) = [part for part in messages[0].parts if isinstance(part, UserPromptPart)]
    found = re.search(r'<scope>\{"ship": ?"([^"]+)"\}', str(prompt.content))
    assert found is not None
    return found[1]


class Asks:
    """An action that asks for its output."""

    params = None

    async def run(self, reaction: Reaction[Any], /) -> Output:
        """Returns the answer, once there is one."""
        return Pause("May it?") if reaction.answer is None else reaction.answer.value


class Recovered(logging.Handler):
    """Hears that DBOS began a workflow by itself, which was left as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = asyncio.Event()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if "cancelled" in record.getMessage():
            self.heard.set()


@asynccontextmanager
async def at_sea(reaction: Reaction[Any]) -> AsyncGenerator[None]:
    """Surrounds an attempt, and says whose it is."""
    token = SHIP.set(str(reaction.scope["ship"]))
    try:
        yield
    finally:
        SHIP.reset(token)


@asynccontextmanager
async def killed_at_the_end(reaction: Reaction[Any]) -> AsyncGenerator[None]:
    """Surrounds an attempt that is done, and not recorded, when the process is killed."""
    async with at_sea(reaction):
        yield
    tell(os.getpid())
    await asyncio.Event().wait()


async def serve(
    url: str,
    asked: Path,
    executor: str,
    *,
    version: str = "1",
    end: bool = False,
    asks: bool = False,
    wrapped: bool = False,
    recovered: bool = False,
    **pilot: Any,
) -> None:
    """Carries out what there is to do.

    Args:
        url: The database.
        asked: Where the pilot writes.
        executor: The name of the process.
        version: The application's version.
        end: Whether it is killed when an attempt is done.
        asks: Whether the action asks, and no agent answers.
        wrapped: Whether the agent is wrapped by pydantic-ai's `DBOSAgent`, and the action by nothing.
        recovered: Whether DBOS first recovers what it has to recover.
        pilot: What becomes of the pilot.
    """
    queue = f"reflexr-{executor}"
    agent = Agent(
        function_model(Pilot(asked, **pilot)),
        name="pilot",
        deps_type=Reaction[None],
        capabilities=[EventContext(emit=[Moored])] if wrapped else [EventContext(emit=[Moored]), DBOSDurability()],
    )
    action: Action[Any]
    if wrapped:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PydanticAIDeprecationWarning)
            wrapper: Any = import_module("pydantic_ai.durable_exec.dbos").DBOSAgent
            action = AgentAction(wrapper(agent), name="pilot")
    else:
        action = DBOSAction(Asks() if asks else AgentAction(agent, name="pilot"), name="harbour.pilot", queue=queue)
    DBOS(
        config={
            "name": "harbour",
            "system_database_url": make_url(url).set(drivername="postgresql").render_as_string(hide_password=False),
            "executor_id": executor,
            "application_version": version,
            "log_level": "WARNING",
        }
    )
    hears = Recovered()
    DBOS.logger.addHandler(hears)
    DBOS.listen_queues([queue])
    DBOS.launch()
    await DBOS.register_queue_async(queue, polling_interval_sec=0.05)
    if recovered:
        await hears.heard.wait()
    engine = create_async_engine(url)
    async with SqlStorage(engine, listen=False) as storage:
        workspaces = Harbour(storage).workspaces(rule(retry=RetryPolicy(max_attempts=1) if wrapped else AT_ONCE))
        run_context = killed_at_the_end if end else at_sea
        await Reactor(workspaces, actions={"pilot": action}, run_context=run_context).settle()
    await engine.dispose()
    await DBOS.delete_queue_async(queue)
    DBOS.destroy()


def main(url: str, asked: str) -> None:
    """Forks off a process for each line, which says as JSON what `serve` is given, and says when it is gone."""
    tell("ready")
    while line := sys.stdin.readline():
        if (child := os.fork()) == 0:
            asyncio.run(serve(url, Path(asked), **json.loads(line)))
            os._exit(0)
        os.waitpid(child, 0)
        tell("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
