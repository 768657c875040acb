"""Testimony: what the processes wrote down while they lived, held against what is left."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from reflexr.core import ABANDONED, Envelope, RunResumed, RunStarted
from reflexr.workspace import WorkspaceRef

from .events import Loose, Ping
from .history import OUTCOMES, Chronicle, History, of_type
from .journal import Answered, Begun, Ended, Published, Trouble
from .plans import Lot, lot_of

type Attempt = tuple[str, int]
"""A run and the number of its attempt."""

NEVER: Final = -1


def check_troubles(history: History) -> Iterator[str]:
    """Nothing went wrong in a process that the chaos does not explain."""
    yield from (f"{entry.by}: {entry.text}" for entry in history.journal if isinstance(entry, Trouble))


# --- Publishers


def check_publications(history: History) -> Iterator[str]:
    """What was acknowledged is in the log once, in order and together; what was not is there whole or not at all."""
    logs = {chronicle.workspace: chronicle.log for chronicle in history.chronicles}
    lots: list[tuple[Lot, bool]] = []
    for publisher in history.publishers:
        numbers = [entry.number for entry in history.journal if isinstance(entry, Published) and entry.by == publisher]
        if numbers != list(range(len(numbers))):
            yield f"{publisher!r} was told of its lots out of order: {numbers}"
        lots += ((lot_of(history.seed, publisher, number), True) for number in range(len(numbers)))
        # The latest that it may have published, and was not told of.
        lots.append((lot_of(history.seed, publisher, len(numbers)), False))
    expected = {(lot.workspace, event_id) for lot, _ in lots for event_id in lot.events}
    for workspace, log in logs.items():
        for envelope in of_type(log, Ping, Loose):
            if (workspace, envelope.id) not in expected:
                yield f"{workspace}: nobody published {envelope.id!r}, which is at place {envelope.seq}"
    placed = {workspace: {envelope.id: envelope for envelope in log} for workspace, log in logs.items()}
    latest: dict[tuple[WorkspaceRef, str], int] = {}
    for lot, acknowledged in lots:
        yield from _check_lot(lot, placed[lot.workspace], latest, acknowledged=acknowledged)


def _check_lot(
    lot: Lot,
    log: Mapping[str, Envelope],
    latest: dict[tuple[WorkspaceRef, str], int],
    *,
    acknowledged: bool,
) -> Iterator[str]:
    ids = list(lot.events)
    found = [log[event_id] for event_id in ids if event_id in log]
    if len(found) < len(ids) and (acknowledged or found):
        what = "is acknowledged" if acknowledged else "is published together"
        yield f"{lot.workspace}: {ids} {what}, but {[envelope.id for envelope in found]} is in the log"
        return
    if not found:
        return
    places = [envelope.seq for envelope in found]
    if places != list(range(places[0], places[0] + len(places))):
        yield f"{lot.workspace}: {ids} is not together, but at places {places}"
    publisher = ids[0].partition(":")[0]
    if places[0] <= latest.get((lot.workspace, publisher), NEVER):
        yield f"{lot.workspace}: {ids} is at places {places}, before what {publisher!r} published earlier"
    latest[lot.workspace, publisher] = places[-1]
    for envelope in found:
        if envelope.payload != lot.events[envelope.id].payload():
            yield f"{lot.workspace}: {envelope.id!r} is {envelope.payload}, not {lot.events[envelope.id].payload()}"


def check_answers(history: History) -> Iterator[str]:
    """What was acknowledged as an answer is in the log, and each question was answered once at most."""
    found = [
        (chronicle.workspace, envelope.payload["run_id"], envelope.payload["attempt"])
        for chronicle in history.chronicles
        for envelope in of_type(chronicle.log, RunResumed)
    ]
    told = [(entry.workspace, entry.run, entry.attempt) for entry in history.journal if isinstance(entry, Answered)]
    for workspace, run, attempt in sorted(set(told) - set(found)):
        yield f"{workspace}: the answer to attempt {attempt} of run {run!r} is acknowledged, but not in the log"
    for (workspace, run, attempt), count in Counter(told).items():
        if count > 1:
            yield f"{workspace}: attempt {attempt} of run {run!r} was answered {count} times"


# --- Reactors


def check_journal(history: History) -> Iterator[str]:
    """Each attempt was made once and by one process, and ended before anything that its outcome allowed began.

    Of an attempt that was abandoned nothing is known but its beginning: who made it may have died, or may have gone on
    without knowing that it lost its lease.
    """
    for chronicle in history.chronicles:
        yield from (f"{chronicle.workspace}: {each}" for each in _check_attempts(history, chronicle))


def _check_attempts(history: History, chronicle: Chronicle) -> Iterator[str]:
    begun: dict[Attempt, int] = {}
    ended: dict[Attempt, int] = {}
    for place, entry in enumerate(history.journal):
        if isinstance(entry, Begun | Ended) and entry.workspace == chronicle.workspace:
            attempt, made = (entry.run, entry.attempt), begun if isinstance(entry, Begun) else ended
            if attempt in made:
                yield f"attempt {entry.attempt} of run {entry.run!r} {entry.what} again, by {entry.by!r}"
            made[attempt] = place
    started = {
        (envelope.payload["run_id"], envelope.payload["attempt"]) for envelope in of_type(chronicle.log, RunStarted)
    }
    for run_id, number in begun.keys() - started:
        yield f"attempt {number} of run {run_id!r} was made, but its start is not recorded"
    yield from _check_ends(history, chronicle, begun, ended)


def _check_ends(
    history: History, chronicle: Chronicle, begun: Mapping[Attempt, int], ended: Mapping[Attempt, int]
) -> Iterator[str]:
    """Goes through the recorded attempts, and compares when they were made with what had to be over by then."""
    ordered = {rule.name for rule in history.rules if rule.ordering == "scope"}
    runs = {run.id: run for run in chronicle.runs}
    at_work: dict[str, int] = {}
    over: dict[tuple[str, ...], int] = {}
    for envelope in chronicle.log:
        run = runs.get(envelope.payload.get("run_id", ""))
        if run is None:
            continue
        line = (run.rule, run.scope_key) if run.rule in ordered else (run.id,)
        if envelope.event_type == RunStarted.event_type:
            at_work[run.id] = envelope.payload["attempt"]
            attempt = (run.id, at_work[run.id])
            if attempt in begun and begun[attempt] < over.get(line, NEVER):
                yield f"attempt {attempt[1]} of run {run.id!r} was made before what it had to wait for was over"
        elif envelope.event_type in OUTCOMES and envelope.payload.get("reason") != ABANDONED:
            attempt = (run.id, at_work.get(run.id, 0))
            if attempt not in begun or attempt not in ended:
                yield f"attempt {attempt[1]} of run {run.id!r} has an outcome, but was never made to its end"
            over[line] = max(over.get(line, NEVER), ended.get(attempt, NEVER))
