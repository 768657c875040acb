"""Attempts: carrying out one claimed attempt of a run, whatever its action does, and recording what became of it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from logging import getLogger
from time import perf_counter
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode
from pydantic import JsonValue

from reflexr.core import (
    ABANDONED,
    AgentActor,
    Rule,
    RuleError,
    Run,
    Transition,
    abandon,
    checkpoint,
    fail,
    succeed,
)
from reflexr.telemetry import RunAttributes, attributes, in_session, record_exception, traceparent_of
from reflexr.workspace.actions import Action, Output, output_value, params_of
from reflexr.workspace.claiming import Claim
from reflexr.workspace.failures import (
    CANCELLED,
    INVALID_PARAMS,
    TIMEOUT,
    UNKNOWN_ACTION,
    Failure,
    RunFailure,
    failure_of,
)
from reflexr.workspace.live_attempts import LiveAttempt
from reflexr.workspace.pauses import Pause, pausing
from reflexr.workspace.reactions import Reaction
from reflexr.workspace.recording import Recorder, Step
from reflexr.workspace.run_contexts import RunContext
from reflexr.workspace.workspaces import Workspaces

_LOGGER: Final = getLogger("reflexr.workspace.reactor")

LONGEST_PATIENCE: Final = timedelta(seconds=5)
"""How long an action that was cancelled may take to end, at most, before it is left behind."""

type Move = Callable[[Run, datetime], Transition]
"""What becomes of the run, once it is recorded: one of core's transitions."""


@dataclass(frozen=True, slots=True)
class Equipment[Deps]:
    """What every attempt of one reactor is carried out with.

    Attributes:
        workspaces: The workspaces.
        actions: The actions, by name.
        deps: What the application gives its actions.
        run_context: What surrounds each attempt.
        recorder: Records what becomes of it.
        patience: How long an action that was cancelled may take to end before it is left behind.
    """

    workspaces: Workspaces
    actions: Mapping[str, Action[Deps]]
    deps: Deps
    run_context: RunContext
    recorder: Recorder
    patience: timedelta = LONGEST_PATIENCE


class Attempt[Deps]:
    """One attempt, from its claim until what became of it is recorded."""

    def __init__(self, equipment: Equipment[Deps], claim: Claim) -> None:
        """Takes on a claim.

        Args:
            equipment: What to carry it out with.
            claim: The attempt.
        """
        self._equipment = equipment
        self._claim = claim
        self._task: asyncio.Task[Any] | None = None
        self._stopped = False
        self._failed: BaseException | None = None

    def stop(self) -> None:
        """Cancels the action, if it is at work, so that the attempt ends as abandoned."""
        if self._task is not None and not self._stopped:
            # Once, as what it does to clean up is not broken off.
            self._task.cancel()
        self._stopped = True

    async def carry_out(self) -> None:
        """Runs the action and records what became of it. A cancellation stops the action, not the recording.

        What breaks besides, such as a tracer, is reported and breaks no other attempt.
        """
        try:
            await self._carry_out()
        except Exception:
            _LOGGER.exception(
                "an attempt of run %r in %s broke; it is found abandoned once its lease has lapsed",
                self._claim.run.id,
                self._claim.workspace,
            )

    async def _carry_out(self) -> None:
        move = await self._act()
        workspace = self._claim.workspace
        step = Step(self._claim.run.id, move, traceparent_of(self._claim.span), ends=True)
        try:
            run = await self._equipment.recorder.insist(workspace, step)
        except asyncio.CancelledError:
            # What was done is not to be done again only because the reactor is going away.
            _uncancel()
            run = await self._equipment.recorder.insist(workspace, step)
        if self._failed is not None:
            self._report(self._failed, run)
        if run is not None:
            self._measure(run)

    async def _act(self) -> Move:
        """Runs the action in its span, and returns the transition that it comes to."""
        run, rule, span = self._claim.run, self._claim.rule, self._claim.span
        with (
            trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False),
            in_session(run.correlation_id),
        ):
            self._task = asyncio.current_task()
            try:
                return await self._conclude()
            except (KeyboardInterrupt, GeneratorExit):
                # The process or its event loop ends here and now: the lease lapses, and the attempt is found abandoned.
                raise
            except BaseException as error:
                if _uncancel() or self._stopped:
                    span.set_status(Status(StatusCode.ERROR, ABANDONED))
                    return partial(_abandoned, attempt=run.attempt, rule=rule)
                self._failed = error
                failure = _failure(error)
                span.set_attribute(attributes.ERROR_TYPE, failure.reason or type(error).__qualname__)
                record_exception(span, error)
                span.set_status(Status(StatusCode.ERROR, failure.error))
                return partial(_failed, attempt=run.attempt, rule=rule, failure=failure)
            finally:
                self._task = None
                _uncancel()

    async def _conclude(self) -> Move:
        """Runs the action in its context, and returns the transition that its output comes to."""
        if self._stopped:
            raise asyncio.CancelledError
        action, reaction = self._prepare()
        async with self._equipment.run_context(reaction):
            try:
                return self._concluded(await self._run(action, reaction))
            except BaseException as error:
                failure = error
                raise
        # The context swallowed it, but a failure is one.
        raise failure

    def _concluded(self, output: Output) -> Move:
        """Returns the transition that an output comes to."""
        run, rule = self._claim.run, self._claim.rule
        if isinstance(output, Pause):
            return pausing(output, run, blocks=rule.on_pause == "block")
        return partial(_succeeded, attempt=run.attempt, output=output_value(output, run.id))

    async def _run(self, action: Action[Deps], reaction: Reaction[Deps]) -> Output:
        timeout = self._claim.rule.timeout
        # A task of its own, as an action that makes light of its cancellation is to hold up nobody. It begins at once.
        work = asyncio.Task(_outcome(action, reaction), loop=asyncio.get_running_loop(), eager_start=True)
        try:
            if not work.done():
                await asyncio.wait([work], timeout=None if timeout is None else timeout.total_seconds())
            if work.done():
                return _told(work.result())
        finally:
            await self._end(work)
        raise RunFailure(f"the attempt took longer than {timeout}", reason=TIMEOUT)

    async def _end(self, work: "asyncio.Task[_Outcome]") -> None:
        """Cancels an action that is at work, and waits a while for its end."""
        if work.done():
            return
        work.cancel()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._equipment.patience.total_seconds()
        cancelled: asyncio.CancelledError | None = None
        while not work.done() and (left := until - loop.time()) > 0:
            try:
                await asyncio.wait([work], timeout=left)
            except asyncio.CancelledError as error:
                # What it does to clean up has its time all the same.
                cancelled = error
        if not work.done():
            _LEFT_BEHIND.add(work)
            work.add_done_callback(_LEFT_BEHIND.discard)
            _LOGGER.error(
                "the action of run %r in %s was cancelled and goes on all the same: it is left behind, and what it "
                "comes to is not heard",
                self._claim.run.id,
                self._claim.workspace,
            )
        elif isinstance(work.result()[1], KeyboardInterrupt):
            _told(work.result())
        if cancelled is not None:
            raise cancelled

    def _prepare(self) -> tuple[Action[Deps], Reaction[Deps]]:
        """Returns the action and what it is given.

        Raises:
            RunFailure: There is no such action, or its params are not what it wants. Permanent.
        """
        equipment, run, rule = self._equipment, self._claim.run, self._claim.rule
        action = equipment.actions.get(rule.then.action)
        if action is None:
            raise RunFailure(
                f"there is no action {rule.then.action!r} in this reactor", reason=UNKNOWN_ACTION, permanent=True
            )
        try:
            params = params_of(rule, action)
        except RuleError as error:
            raise RunFailure(str(error), reason=INVALID_PARAMS, permanent=True) from error
        actor = AgentActor(rule=run.rule, run_id=run.id, name=rule.then.action)
        workspace = equipment.workspaces.handle(self._claim.workspace, actor=actor)
        return action, Reaction(
            workspace=workspace.caused_by(run.causation, correlation_id=run.correlation_id, attempt=run.attempt),
            run=run,
            rule=rule,
            envelopes=self._claim.envelopes,
            deps=equipment.deps,
            params=params,
            save_checkpoint=self._save_checkpoint,
            live=LiveAttempt(equipment.workspaces.configuration.settings.live_output, self._claim.workspace, run),
        )

    async def _save_checkpoint(self, step: str, value: JsonValue) -> Run:
        move = partial(_checkpointed, attempt=self._claim.run.attempt, step=step, value=value)
        return await self._equipment.recorder.record(
            self._claim.workspace,
            Step(self._claim.run.id, move, traceparent_of(self._claim.span), ends=False),
        )

    def _report(self, error: BaseException, run: Run | None) -> None:
        claimed = self._claim.run
        _LOGGER.warning(
            "attempt %d of run %r of rule %r in %s failed: %s",
            claimed.attempt,
            claimed.id,
            claimed.rule,
            self._claim.workspace,
            _next(run),
            exc_info=error,
        )

    def _measure(self, run: Run) -> None:
        configuration = self._equipment.workspaces.configuration
        instruments = configuration.instruments
        if not instruments.active:
            return
        ended: RunAttributes = {
            "reflexr.tenant.id": self._claim.workspace.tenant_id,
            "reflexr.workspace.id": self._claim.workspace.workspace_id,
            "reflexr.rule": configuration.rule_label(run.rule),
            "reflexr.run.status": run.status,
            "reflexr.reason": run.reason or "",
        }
        instruments.runs.add(1, ended)
        instruments.run_duration.record(perf_counter() - self._claim.began, ended)


# asyncio itself keeps no more than a weak reference to a task.
_LEFT_BEHIND: Final[set["asyncio.Task[_Outcome]"]] = set()

type _Outcome = tuple[Output, BaseException | None]
"""What an action returned, or what it raised."""


async def _outcome(action: Action[Any], reaction: Reaction[Any]) -> _Outcome:
    """Runs an action, and returns what came of it: the task that it runs in never fails."""
    try:
        return await action.run(reaction), None
    except BaseException as error:
        return None, error


def _told(outcome: _Outcome) -> Output:
    output, error = outcome
    if error is not None:
        raise error
    return output


def _next(run: Run | None) -> str:
    """Returns what happens after an attempt that failed, given the run as it was recorded."""
    if run is None:
        return "that is not recorded, as the run has moved on or the storage failed"
    if run.next_attempt_at is not None:
        return f"the next attempt is at {run.next_attempt_at.isoformat()}"
    return "the run is dead-lettered"


def _failure(error: BaseException) -> Failure:
    if isinstance(error, asyncio.CancelledError):
        return Failure("something that the action awaited was cancelled, and the action with it", CANCELLED)
    return failure_of(error)


def _uncancel() -> bool:
    """Takes back the cancellations of the current task, and returns whether there were any."""
    task = asyncio.current_task()
    cancelled = False
    while task is not None and task.cancelling():
        task.uncancel()
        cancelled = True
    return cancelled


def _succeeded(run: Run, now: datetime, *, attempt: int, output: JsonValue) -> Transition:
    return succeed(run, attempt=attempt, now=now, output=output)


def _failed(run: Run, now: datetime, *, attempt: int, rule: Rule, failure: Failure) -> Transition:
    return fail(
        run,
        attempt=attempt,
        now=now,
        error=failure.error,
        policy=rule.retry,
        reason=failure.reason,
        permanent=failure.permanent,
    )


def _abandoned(run: Run, now: datetime, *, attempt: int, rule: Rule) -> Transition:
    return abandon(run, attempt=attempt, now=now, policy=rule.retry)


def _checkpointed(run: Run, now: datetime, *, attempt: int, step: str, value: JsonValue) -> Transition:
    return checkpoint(run, attempt=attempt, step=step, value=value)
