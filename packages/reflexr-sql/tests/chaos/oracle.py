"""The oracle: whether what is left of an episode is what must be, whatever happened in it.

Each check returns a sentence for each thing that differs. They take a history as data, and read nothing else.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise, zip_longest
from typing import Final

from reflexr.core import (
    TRANSITIONS,
    UNFINISHED,
    Batch,
    Draft,
    Envelope,
    Evaluation,
    Rule,
    RuleErrored,
    RuleFired,
    RuleProgress,
    RuleReset,
    Run,
    RunDeadLettered,
    RunOperation,
    RunPaused,
    RunProgressed,
    RunResumed,
    RunRetrying,
    RunStarted,
    RunStatus,
    RunSucceeded,
    Tick,
    create_run,
    evaluate,
    holds,
    needs,
)

from .application import MAX_DEPTH, PREDICATES
from .events import Pong
from .history import Chronicle, History, of_type
from .plans import stages_of
from .testimony import check_answers, check_journal, check_publications, check_troubles

OPERATIONS: Final[Mapping[str, RunOperation]] = {
    RunStarted.event_type: "start",
    RunProgressed.event_type: "checkpoint",
    RunPaused.event_type: "pause",
    RunResumed.event_type: "resume",
    RunRetrying.event_type: "fail",
    RunSucceeded.event_type: "succeed",
    RunDeadLettered.event_type: "dead_letter",
}
"""The facts about runs that an episode leads to: nobody cancels, skips or retries one. Of one that is paused, a dead
letter is the end of its time."""

DECISIONS: Final = frozenset({RuleFired.event_type, RuleErrored.event_type})


def differences(history: History) -> list[str]:
    """Returns everything that is not as it must be; nothing, if all is well."""
    found = [*check_publications(history), *check_answers(history), *check_journal(history), *check_troubles(history)]
    for chronicle in history.chronicles:
        checks: list[Iterable[str]] = [
            check_places(chronicle),
            check_ticks(chronicle),
            check_decisions(chronicle, history.rules),
            check_runs(chronicle, history.rules),
            check_attempts(chronicle),
            check_order(chronicle, history.rules),
            check_emissions(chronicle, history.seed),
            check_waiting(chronicle, history.rules, history.settled_at),
        ]
        found += (f"{chronicle.workspace}: {difference}" for check in checks for difference in check)
    return found


# --- The log


def check_places(chronicle: Chronicle) -> Iterator[str]:
    """Each place is taken once and none is left out, no time is before the last one, and each id is there once."""
    for place, envelope in enumerate(chronicle.log, start=1):
        if envelope.seq != place:
            yield f"the log has {envelope.id!r} at place {envelope.seq}, where {place} is due"
            return
    for before, after in pairwise(chronicle.log):
        if after.ts < before.ts:
            yield f"the log goes back in time: place {after.seq} is at {after.ts}, after {before.ts}"
    for envelope_id, count in Counter(envelope.id for envelope in chronicle.log).items():
        if count > 1:
            yield f"the id {envelope_id!r} is in the log {count} times"
    for envelope in chronicle.log:
        if envelope.workspace_id != chronicle.workspace.workspace_id:
            yield f"{envelope.id!r} is of the workspace {envelope.workspace_id!r}"


def check_ticks(chronicle: Chronicle) -> Iterator[str]:
    """Each tick is there once, in the order of their times."""
    times: dict[str, datetime] = {}
    for envelope in of_type(chronicle.log, Tick):
        schedule, at = envelope.payload["schedule"], datetime.fromisoformat(envelope.payload["at"])
        if schedule in times and at <= times[schedule]:
            yield f"the tick of {schedule!r} at {at} comes after that at {times[schedule]}"
        times[schedule] = at


# --- Deciding


def check_decisions(chronicle: Chronicle, rules: Sequence[Rule]) -> Iterator[str]:
    """Evaluating the log from its first envelope gives exactly the firings and errors in it, in each rule's order."""
    known = {rule.name for rule in rules}
    for envelope in chronicle.log:
        if envelope.event_type in DECISIONS and envelope.payload["rule"] not in known:
            yield f"{envelope.id!r} is a decision of {envelope.payload['rule']!r}, which is no rule"
    for envelope in of_type(chronicle.log, RuleReset):
        yield f"{envelope.payload['rule']!r} was reset, which nobody asked for"
    batch = _batch(chronicle)
    if batch is None:
        return
    for rule in rules:
        evaluation = evaluated(rule, batch)
        logged = [
            envelope
            for envelope in chronicle.log
            if envelope.event_type in DECISIONS and envelope.payload["rule"] == rule.name
        ]
        yield from _same_decisions(rule, evaluation.facts, logged)
        for firing, envelope in zip(evaluation.firings, of_type(logged, RuleFired), strict=False):
            if envelope.seq <= firing.seq:
                yield f"{rule.name!r}: the firing {firing.id!r} is at place {envelope.seq}, but fired at {firing.seq}"
        stored = [letter for letter in chronicle.dead_letters if letter.rule == rule.name]
        if stored != list(evaluation.errors):
            yield f"{rule.name!r}: the dead letters stored are {stored}, those decided {evaluation.errors}"
        if chronicle.progress.get(rule.name) != evaluation.progress:
            yield f"{rule.name!r}: its progress is {chronicle.progress.get(rule.name)}, not {evaluation.progress}"


def _batch(chronicle: Chronicle) -> Batch | None:
    """Returns the whole log, if it is one that can be evaluated."""
    return Batch(chronicle.log) if chronicle.log and not any(check_places(chronicle)) else None


def evaluated(rule: Rule, batch: Batch) -> Evaluation:
    """Returns what a rule makes of a whole log, all at once. A workspace's rules begin with its first envelope."""
    progress = RuleProgress(rule=rule.name, generation=1, cursor=0, definition=rule.definition())
    wanted = needs(rule, progress, batch, predicates=PREDICATES)
    return evaluate(rule, progress, {}, batch, predicates=PREDICATES, max_depth=MAX_DEPTH, needs=wanted)


def _same_decisions(rule: Rule, decided: Sequence[Draft], logged: Sequence[Envelope]) -> Iterator[str]:
    """Tells of the first decision that differs: all behind it may."""
    for place, (draft, envelope) in enumerate(zip_longest(decided, logged), start=1):
        wanted = None if draft is None else (draft.id, draft.payload, draft.correlation_id, draft.causation)
        found = (
            None if envelope is None else (envelope.id, envelope.payload, envelope.correlation_id, envelope.causation)
        )
        if wanted != found:
            yield f"{rule.name!r}: decision {place} of the log is {found}, but evaluating it gives {wanted}"
            return


# --- Runs


def check_runs(chronicle: Chronicle, rules: Sequence[Rule]) -> Iterator[str]:
    """Every firing has exactly one run, which is the firing's, and there is no other."""
    for run_id, count in Counter(run.id for run in chronicle.runs).items():
        if count > 1:
            yield f"the run {run_id!r} is there {count} times"
    runs = {run.id: run for run in chronicle.runs}
    fired = [envelope.payload["firing_id"] for envelope in of_type(chronicle.log, RuleFired)]
    yield from (f"the firing {firing!r} has no run" for firing in fired if firing not in runs)
    yield from (f"the run {run_id!r} has no firing" for run_id in runs if run_id not in set(fired))
    batch = _batch(chronicle)
    if batch is None:
        return
    for firing in (firing for rule in rules for firing in evaluated(rule, batch).firings):
        created = create_run(firing)
        run = runs.get(firing.id)
        if run is None:
            continue
        for name in ("rule", "generation", "scope", "scope_key", "fired_seq", "fired_at", "matched", "depth"):
            if getattr(run, name) != getattr(created, name):
                yield f"the {name} of run {run.id!r} is {getattr(run, name)!r}, its firing's {getattr(created, name)!r}"


def check_attempts(chronicle: Chronicle) -> Iterator[str]:
    """No two attempts of a run overlap in what is recorded of them, and its facts lead to the run as it is."""
    lives: dict[str, _Life] = {}
    for envelope in chronicle.log:
        operation = OPERATIONS.get(envelope.event_type)
        if operation is not None:
            yield from lives.setdefault(envelope.payload["run_id"], _Life()).live(operation, envelope)
    for run in chronicle.runs:
        life = lives.pop(run.id, _Life())
        recorded = (run.status, run.attempt, run.checkpoints)
        if recorded != (life.status, life.attempt, life.checkpoints):
            yield (
                f"run {run.id!r} is {run.status} at attempt {run.attempt} with {run.checkpoints} checkpoints, but its "
                f"facts say {life.status} at attempt {life.attempt} with {life.checkpoints}"
            )
    yield from (f"there are facts about a run {run_id!r}, which is not there" for run_id in lives)


@dataclass(slots=True)
class _Life:
    """A run, as far as its facts tell."""

    status: RunStatus = "pending"
    attempt: int = 0
    checkpoints: int = 0
    until: datetime | None = None
    answer: object = None
    told: object = None

    def live(self, operation: RunOperation, envelope: Envelope) -> Iterator[str]:
        """Takes the run on by one fact, and tells of what cannot be."""
        operation = _meant(operation, self.status)
        place = f"place {envelope.seq}: {operation} of run {envelope.payload['run_id']!r}"
        if operation not in TRANSITIONS[self.status]:
            yield f"{place}, which is {self.status} at attempt {self.attempt}"
            return
        expected = self.attempt + (operation == "start")
        for named in _attempts_named(envelope):
            if named != expected:
                yield f"{place} is of attempt {named}, where attempt {expected} is due"
        yield from (f"{place} {difference}" for difference in self._converse(operation, envelope))
        self.status = TRANSITIONS[self.status][operation]
        self.attempt = expected
        self.checkpoints += bool(envelope.payload.get("step"))

    def _converse(self, operation: RunOperation, envelope: Envelope) -> Iterator[str]:
        """Tells of what was asked and answered otherwise than it can be."""
        payload = envelope.payload
        match operation:
            case "pause":
                until = payload["until"]
                self.until, self.answer = None if until is None else datetime.fromisoformat(until), None
            case "resume":
                self.answer = payload["answer"]
            case "start":
                self.told = self.answer
            case "checkpoint":
                self.answer = None
            case "expire" if self.until is None or envelope.ts < self.until:
                yield f"is at {envelope.ts}, but it had time until {self.until}"
            case "succeed" if payload["output"].get("answer") != self.told:
                yield f"was told {payload['output'].get('answer')}, but the answer is {self.told}"
            case _:
                pass


def _meant(operation: RunOperation, status: RunStatus) -> RunOperation:
    """Returns what a fact says that was done to a run in this status."""
    return "expire" if operation == "dead_letter" and status == "paused" else operation


def _attempts_named(envelope: Envelope) -> Iterator[int]:
    """Yields each attempt that a fact names, whether reflexr wrote it down or the action did."""
    payload = envelope.payload
    for name in ("attempt", "attempts"):
        if name in payload:
            yield payload[name]
    if named := re.search(r"attempt (\d+)", payload.get("error", "")):
        yield int(named[1])
    if step := payload.get("step"):
        yield int(step.partition(":")[0])
    for name in ("request", "answer"):
        if isinstance(said := payload.get(name), dict):
            yield said["attempt"]
    if isinstance(output := payload.get("output"), dict):
        yield output["attempt"]


def check_order(chronicle: Chronicle, rules: Sequence[Rule]) -> Iterator[str]:
    """In each scope of an ordered rule, a run begins when no other is at work and none before it is to go first."""
    ordered = {rule.name: rule for rule in rules if rule.ordering == "scope"}
    runs = {run.id: run for run in chronicle.runs if run.rule in ordered}
    scopes: dict[tuple[str, str], dict[str, RunStatus]] = defaultdict(dict)
    for envelope in chronicle.log:
        fired = envelope.event_type == RuleFired.event_type
        run = runs.get(envelope.payload["firing_id"] if fired else envelope.payload.get("run_id", ""))
        if run is None or not (fired or envelope.event_type in OPERATIONS):
            continue
        statuses = scopes[run.rule, run.scope_key]
        status = statuses.get(run.id, "pending")
        operation = None if fired else _meant(OPERATIONS[envelope.event_type], status)
        if operation == "start":
            for other_id, other in statuses.items():
                if other == "running" or (runs[other_id].position < run.position and _holds(other, ordered[run.rule])):
                    yield f"place {envelope.seq}: run {run.id!r} begins, though {other_id!r} is {other} before it"
        statuses[run.id] = status if operation is None else TRANSITIONS[status].get(operation, status)
    yield from _left_out(chronicle.runs, scopes)


def _holds(status: RunStatus, rule: Rule) -> bool:
    """Whether a run in this status holds back the later ones of its scope."""
    match status:
        case "paused":
            return rule.on_pause == "block"
        case "dead_lettered":
            return rule.on_dead_letter == "block"
        case _:
            return status in UNFINISHED


def _left_out(runs: Sequence[Run], scopes: Mapping[tuple[str, str], Mapping[str, RunStatus]]) -> Iterator[str]:
    """Tells of runs that were never paused and have not ended, though a later one of their scope began."""
    by_id = {run.id: run for run in runs}
    begun = {
        scope: max((by_id[run_id].position for run_id, status in statuses.items() if status != "pending"), default=None)
        for scope, statuses in scopes.items()
    }
    for run in runs:
        last = begun.get((run.rule, run.scope_key))
        if last is not None and run.unfinished and not run.spent and run.position < last:
            yield f"run {run.id!r} is {run.status}, though one of its scope began that fired after it"


def check_waiting(chronicle: Chronicle, rules: Sequence[Rule], now: datetime) -> Iterator[str]:
    """Every run has ended, or waits for a reason: for a later time, an answer, or for one before it in its scope."""
    by_name = {rule.name: rule for rule in rules}
    scopes: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in sorted(chronicle.runs, key=lambda run: run.position):
        scopes[run.rule, run.scope_key].append(run)
    for (rule, _), runs in scopes.items():
        held_by: Run | None = None
        for run in runs:
            held = held_by is not None and run.status != "paused"
            if run.status == "running" or (run.unfinished and not held and not _has_time(run, now)):
                yield f"run {run.id!r} of {rule!r} is {run.status} for no reason"
            if held_by is None and holds(run, by_name[rule]):
                held_by = run


def _has_time(run: Run, now: datetime) -> bool:
    """Whether a run waits for a later time, or for an answer until then or for any time."""
    if run.waiting is not None:
        return run.waiting.until is None or run.waiting.until > now
    return run.next_attempt_at is not None and run.next_attempt_at > now


# --- What runs emit


def check_emissions(chronicle: Chronicle, seed: int) -> Iterator[str]:
    """What a run emits is there once, however often it was tried; if it succeeded, all of it is, before its end."""
    ended = {envelope.payload["run_id"]: envelope.seq for envelope in of_type(chronicle.log, RunSucceeded)}
    runs = {run.id: run for run in chronicle.runs}
    emitted: dict[tuple[str, int], Envelope] = {}
    for envelope in of_type(chronicle.log, Pong):
        run_id, step = envelope.payload["run"], envelope.payload["step"]
        if (run_id, step) in emitted:
            yield f"what run {run_id!r} emits at step {step} is at place {envelope.seq} again"
        emitted[run_id, step] = envelope
        run = runs.get(run_id)
        if run is None or envelope.causation != run.causation or envelope.correlation_id != run.correlation_id:
            yield f"{envelope.id!r} says that it is of run {run_id!r}, which is not its cause"
    for run in chronicle.runs:
        stages = stages_of(seed, chronicle.workspace, run)
        planned = {(run.id, step) for step, stage in enumerate(stages) if stage.emits}
        if run.status == "succeeded":
            for _, step in sorted(planned - emitted.keys()):
                yield f"run {run.id!r} succeeded and never emitted at step {step}"
        for key in sorted(key for key in emitted if key[0] == run.id):
            if key not in planned:
                yield f"run {run.id!r} emitted at step {key[1]}, which was not to"
            elif emitted[key].seq > ended.get(run.id, emitted[key].seq):
                yield f"run {run.id!r} emitted at place {emitted[key].seq}, after it succeeded"
