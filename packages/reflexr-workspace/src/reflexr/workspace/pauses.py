"""Pauses: how an action asks for something and waits, and the action by which an event answers."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import BaseModel, JsonValue, ValidationError

from reflexr.core import (
    AgentActor,
    Envelope,
    InvalidState,
    NotJsonError,
    Rejected,
    ResumeRun,
    Run,
    Transition,
    json_value,
    model_value,
    pause,
    problems,
)
from reflexr.workspace.errors import WorkspaceError
from reflexr.workspace.failures import INVALID_OUTPUT, RunFailure
from reflexr.workspace.reactions import Reaction

INVALID_ANSWER: Final = "invalid_answer"
"""The reason of a run whose event should have answered another one and does not tell which, or with what. Permanent."""

NOT_FROM_RUNS: Final = "not_from_runs"
"""The reason of a run whose event would have answered another one, and was itself emitted by a run. Permanent."""

NOT_ASKED_YET: Final = "not_asked_yet"
"""The reason of an attempt whose event answers an attempt that has not asked yet."""


@dataclass(frozen=True, slots=True)
class Pause:
    """What an action returns in place of an output to ask for something: its run pauses until it is answered.

    A paused run holds no lease, no worker and, unless its rule says `on_pause="block"`, no place in the order of its
    scope. `Workspace.resume_run` answers it: then it has another attempt, in whatever process, which finds
    `reaction.answer` and the run's checkpoint.

    Attributes:
        request: What it asks, as JSON or a pydantic model: whoever is to answer reads it as the run's
            `waiting.request` and in the fact `reflexr:run_paused`.
        timeout: How long the run waits at most, more than 0; then it is dead-lettered as `unanswered`. `None` for any
            time.
        step: The step after which `state` is saved as the checkpoint, with the pause. `None` if the last checkpoint
            stands: then the next attempt does again what the action did since, and emits the same events in the same
            order, of which none is appended twice.
        state: What the next attempt can resume from, as JSON or a pydantic model.

    Raises:
        WorkspaceError: The timeout is not more than 0, there is a state and no step, or the step is no text.
    """

    request: BaseModel | JsonValue
    timeout: timedelta | None = None
    step: str | None = None
    state: BaseModel | JsonValue = None

    def __post_init__(self) -> None:
        if self.timeout is not None and self.timeout <= timedelta():
            raise WorkspaceError(f"timeout: {self.timeout!r} is not more than 0: give None to wait for any time")
        if self.step is None and self.state is not None:
            raise WorkspaceError("state: a state is saved after a step: name it in step=")
        if not _is_text(self.step or ""):
            raise WorkspaceError(f"step: {self.step!r} is no text")

    def until(self, now: datetime) -> datetime | None:
        """Returns when it is over, if it begins now; `None` if never."""
        if self.timeout is None:
            return None
        try:
            return now + self.timeout
        except OverflowError:
            # Later than there are times.
            return None


class ResumeAction:
    """An action by which an event answers a paused run: that of a rule on such events.

    The run, the answer and, if it has such a field, the attempt whose question is answered are fields of the last event
    that the firing matched. Whoever published the event answers, and the permissions of `Workspaces` are asked whether
    they may. No event answers what was asked after it was published, unless it names the attempt: give events that
    field where runs ask more than once. An answer that comes too late, as the run waits no more or asks something else
    by now, is no failure: the output says so as `refused`.
    """

    def __init__(
        self, *, run_id: str = "run_id", answer: str = "answer", attempt: str = "attempt", from_runs: bool = False
    ) -> None:
        """Creates the action.

        Args:
            run_id: The event's field that names the run.
            answer: The field with the answer.
            attempt: The field with the attempt whose question is answered, which events need not have.
            from_runs: Whether events that runs emitted answer too. By default they do not: an agent that may emit the
                event would approve what it asks itself.
        """
        self._run_id = run_id
        self._answer = answer
        self._attempt = attempt
        self._from_runs = from_runs

    @property
    def params(self) -> None:
        """It takes none."""
        return

    async def run(self, reaction: Reaction[Any], /) -> dict[str, JsonValue]:
        """Answers the run, and returns its `run_id` and `status`, or why the answer was `refused`.

        Raises:
            RunFailure: The event does not have the fields, there is no such run, or the publisher may not answer it.
                Permanent. Or the attempt that it names is still at work, and has not asked: `not_asked_yet`, which
                another try may find otherwise.
        """
        envelope = reaction.envelopes[-1]
        command = self._command(envelope)
        if isinstance(envelope.actor, AgentActor) and not self._from_runs:
            raise RunFailure(
                f"the event {envelope.id!r} was emitted by a run, which may not answer: pass from_runs=True if it may",
                reason=NOT_FROM_RUNS,
                permanent=True,
            )
        try:
            run = await reaction.workspace.run(command.run_id)
            if problem := _too_early(run, command, envelope):
                return {"run_id": run.id, "refused": problem}
            publisher = reaction.workspace.as_actor(envelope.actor)
            # What was looked at is asked by this attempt: a later question is another one's.
            attempt = run.attempt if command.attempt is None else command.attempt
            resumed = await publisher.resume_run(run.id, answer=command.answer, attempt=attempt)
        except InvalidState as refused:
            return {"run_id": command.run_id, "refused": str(refused)}
        except Rejected as refused:
            raise RunFailure(str(refused), reason=refused.rejection.type, permanent=True) from refused
        return {"run_id": resumed.id, "status": resumed.status}

    def _command(self, envelope: Envelope) -> ResumeRun:
        payload = envelope.payload
        for field in (self._run_id, self._answer):
            if field not in payload:
                raise RunFailure(
                    f"the event {envelope.event_type!r} has no field {field!r}: name its fields in ResumeAction(…)",
                    reason=INVALID_ANSWER,
                    permanent=True,
                )
        try:
            return ResumeRun(
                run_id=payload[self._run_id], answer=payload[self._answer], attempt=payload.get(self._attempt)
            )
        except ValidationError as error:
            raise RunFailure("; ".join(problems(error)), reason=INVALID_ANSWER, permanent=True) from error


def _too_early(run: Run, command: ResumeRun, envelope: Envelope) -> str | None:
    """Returns why an event is no answer to what a run asks, if it was published before that.

    Raises:
        RunFailure: The attempt that it names has not asked yet.
    """
    if command.attempt is None:
        if run.waiting is None:
            # By the time of the answer it may ask something, which the event is older than.
            return f"run {run.id!r} asks nothing now: it is {run.status!r}"
        if run.waiting.since > envelope.ts:
            return f"what run {run.id!r} asks now, it asks since {run.waiting.since}: after the event, of {envelope.ts}"
        return None
    if run.status == "running" and run.attempt == command.attempt:
        raise RunFailure(
            f"attempt {run.attempt} of run {run.id!r} is at work, and has not asked yet", reason=NOT_ASKED_YET
        )
    return None


def pausing(asked: Pause, run: Run, *, blocks: bool) -> Callable[[Run, datetime], Transition]:
    """Returns what becomes of a run whose attempt ends with a pause, once it is recorded.

    Args:
        asked: What the action returned.
        run: The run, at this attempt.
        blocks: Whether it keeps its place in the order of its scope.

    Raises:
        RunFailure: The request or the state is neither JSON nor a pydantic model.
    """
    try:
        request = _as_json(asked.request, f"what run {run.id!r} asks", depth=2)
        state = _as_json(asked.state, f"the checkpoint of run {run.id!r}", depth=1)
    except NotJsonError as error:
        raise RunFailure(f"{error}. Pause with JSON, a pydantic model or None", reason=INVALID_OUTPUT) from error
    attempt = run.attempt

    def move(run: Run, now: datetime) -> Transition:
        until = asked.until(now)
        return pause(
            run, attempt=attempt, now=now, request=request, until=until, step=asked.step, value=state, blocks=blocks
        )

    return move


def _as_json(value: BaseModel | JsonValue, place: str, depth: int) -> JsonValue:
    return model_value(value, place, depth) if isinstance(value, BaseModel) else json_value(value, place, depth)


def _is_text(value: object) -> bool:
    return isinstance(value, str)
