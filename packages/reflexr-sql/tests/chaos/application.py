"""The application that all processes of an episode run: its workspaces, and the one action of all its rules."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel, JsonValue

from reflexr.core import Envelope, Rule
from reflexr.workspace import (
    Pause,
    Reaction,
    Reactor,
    RunFailure,
    Schedule,
    Storage,
    Workspaces,
    with_params,
)

from .events import Loose, Ping, Pong
from .journal import Begun, Ended, Journal
from .plans import LEASE_TTL, Fault, chance, fault_of, question_of, stages_of

MAX_DEPTH: Final = 4
PLANNED: Final = "planned"
"""The reason of a failure that was planned."""

TICKING: Final = Schedule(name="chaos", every=timedelta(seconds=1))


class Mood(BaseModel):
    """How likely an attempt ends in each way before its work is done, and how long it takes.

    Attributes:
        asks: How likely it asks for something, and waits.
        slow: How likely each of its steps takes longer than a lease lasts.
        slowest: How long one takes at most otherwise, in seconds.
    """

    fails: float = 0.0
    doomed: float = 0.0
    hangs: float = 0.0
    blocks: float = 0.0
    asks: float = 0.0
    slow: float = 0.0
    slowest: float = 0.0


@dataclass(frozen=True, slots=True)
class Worker:
    """Who carries out attempts.

    Attributes:
        seed: The episode's.
        name: The process.
        journal: Where it writes down what it does.
        alone: Whether nobody is there to take over what it has in hand, so that there is no use in taking long.
    """

    seed: int
    name: str
    journal: Journal
    alone: bool = False


async def work(reaction: Reaction[Worker], mood: Mood) -> dict[str, JsonValue] | Pause:
    """Does a run's work from its last checkpoint on, as far as the attempt gets, and writes down that it did."""
    worker, run = reaction.deps, reaction.run
    attempt: dict[str, Any] = {
        "by": worker.name,
        "workspace": reaction.workspace.ref,
        "run": run.id,
        "attempt": reaction.attempt,
    }
    worker.journal.write(Begun(**attempt))
    try:
        pause = await _steps(reaction, mood)
    finally:
        worker.journal.write(Ended(**attempt))
    answer = None if reaction.answer is None else reaction.answer.value
    return {"attempt": reaction.attempt, "answer": answer} if pause is None else pause


async def _steps(reaction: Reaction[Worker], mood: Mood) -> Pause | None:
    run, where = reaction.run, reaction.workspace.ref
    stages = stages_of(reaction.deps.seed, where, run)
    draw = chance(reaction.deps.seed, where, run.id, reaction.attempt)
    fault = fault_of(draw, len(stages), **mood.model_dump(exclude={"asks", "slow", "slowest"}))
    asking = chance(reaction.deps.seed, where, run.id, reaction.attempt, "asks")
    question = question_of(asking, len(stages), asks=mood.asks)
    slow = draw.random() < mood.slow and not reaction.deps.alone
    takes = (LEASE_TTL.total_seconds(), 2 * LEASE_TTL.total_seconds()) if slow else (0, mood.slowest)
    asked: JsonValue = {"attempt": reaction.attempt}
    first = run.checkpoint if isinstance(run.checkpoint, int) else 0
    for step in range(first, len(stages)):
        asks = question if question is not None and step >= question.step else None
        if asks is not None and not stages[step].saves:
            return Pause(asked, timeout=asks.timeout)
        await _suffer(reaction, fault, step, "before")
        # Work of some length, for the killer to come into.
        await asyncio.sleep(draw.uniform(*takes))
        if stages[step].emits:
            await reaction.emit(pong_of(reaction.deps.seed, reaction, step))
        await _suffer(reaction, fault, step, "emitted")
        name, state = f"{reaction.attempt}:{step}", step + 1
        if asks is not None:
            # Where it saves is the same at every attempt, or what it emits would not be.
            return Pause(asked, timeout=asks.timeout, step=name, state=state)
        if stages[step].saves:
            await reaction.checkpoint(name, state)
        await _suffer(reaction, fault, step, "saved")
    return None


def pong_of(seed: int, reaction: Reaction[Worker], step: int) -> Pong:
    """Returns what a run emits at a step, which is the same at every attempt."""
    draw = chance(seed, reaction.workspace.ref, reaction.run_id, step)
    return Pong(run=reaction.run_id, step=step, key=draw.randrange(3), value=draw.randrange(10))


async def _suffer(reaction: Reaction[Worker], fault: Fault | None, step: int, place: str) -> None:
    if fault is None or step < fault.step or place != fault.place:
        return
    match fault.kind:
        case "fails":
            raise RunFailure(f"attempt {reaction.attempt} failed", reason=PLANNED)
        case "is doomed":
            raise RunFailure(f"attempt {reaction.attempt} failed for good", reason=PLANNED, permanent=True)
        case "hangs":
            await asyncio.Event().wait()
        case "blocks":
            if not reaction.deps.alone:
                _block()


def _block() -> None:
    """Has nothing else of the process go on for a while, not even its leases."""
    # Nothing else blocks a loop: it is what is to happen, and nothing is waited for.
    time.sleep(1.5 * LEASE_TTL.total_seconds())


def odd(envelope: Envelope) -> bool:
    """Whether an event's value is odd, which it cannot tell of 9."""
    value: int = envelope.payload["value"]
    if value == 9:
        raise ValueError("nobody knows")
    return value % 2 == 1


PREDICATES: Final[Mapping[str, Callable[[Envelope], bool]]] = {"odd": odd}


def workspaces_of(storage: Storage, rules: Sequence[Rule], *, ticks: bool) -> Workspaces:
    """Returns the application's workspaces; whether it has a schedule that moves their time."""
    return Workspaces(
        storage,
        events=[Ping, Loose],
        emitted=[Pong],
        rules=rules,
        predicates=PREDICATES,
        schedules=[TICKING] if ticks else [],
        max_depth=MAX_DEPTH,
    )


def reactor_of(workspaces: Workspaces, worker: Worker, **options: Any) -> Reactor[Worker]:
    """Returns a reactor that is called what its process is called, like those that had its part before it."""
    return Reactor(
        workspaces,
        actions={"work": with_params(work, Mood)},
        deps=worker,
        holder=worker.name.partition(".")[0],
        **options,
    )
