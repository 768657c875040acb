"""`Reactor`: evaluates workspaces' rules, carries out the runs they start, and publishes the ticks of schedules.

It only puts the parts together: `evaluating`, `executing` and `ticking`, each going its `rounds`.
"""

import asyncio
import os
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from secrets import token_hex
from socket import gethostname
from typing import Any, Final, overload

from reflexr.core import RuleError
from reflexr.workspace.actions import Action, ActionFunction, checked_actions
from reflexr.workspace.attempts import LONGEST_PATIENCE, Equipment
from reflexr.workspace.claiming import Claimer
from reflexr.workspace.evaluating import Evaluating, Evaluator
from reflexr.workspace.executing import Executor
from reflexr.workspace.recording import Recorder
from reflexr.workspace.rounds import Rounds
from reflexr.workspace.run_contexts import RunContext, no_run_context
from reflexr.workspace.slots import Limits
from reflexr.workspace.ticking import Ticking
from reflexr.workspace.workspaces import Workspaces

DEFAULT_BATCH_SIZE: Final = 500
"""How many envelopes one transaction evaluates at most, by default."""

DEFAULT_LEASE_TTL: Final = timedelta(seconds=30)
"""How long a lease lasts that is not renewed, by default."""

DEFAULT_CONCURRENCY: Final = 16
"""How many actions one reactor has at work at a time, by default."""

DEFAULT_GRACE: Final = timedelta(seconds=30)
"""How long actions may go on after a reactor was told to stop, by default."""

LONGEST_LEASE: Final = timedelta(days=1)
"""The longest that a lease may last: a process that died keeps its work from the others for as long."""

_BRIEFLY: Final = timedelta(seconds=1)


class Reactor[Deps]:
    """Lets rules decide on what is published, and carries out what they start.

    Any number of reactors, in any number of processes, share the work of one storage: leases keep two from doing the
    same, and decisions are exact whoever makes them. `serve` is for processes; `settle`, or `tick`, `evaluate` and
    `execute` one by one, are for tests and scripts. All of them may be called side by side.
    """

    @overload
    def __init__(
        self: "Reactor[None]",
        workspaces: Workspaces,
        *,
        actions: Mapping[str, Action[None] | ActionFunction[None]] = ...,
        deps: None = None,
        holder: str | None = None,
        batch_size: int = ...,
        lease_ttl: timedelta = ...,
        concurrency: int = ...,
        rule_concurrency: int | Mapping[str, int] | None = ...,
        workspace_concurrency: int | None = ...,
        run_context: RunContext = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        workspaces: Workspaces,
        *,
        actions: Mapping[str, Action[Deps] | ActionFunction[Deps]] = ...,
        deps: Deps,
        holder: str | None = None,
        batch_size: int = ...,
        lease_ttl: timedelta = ...,
        concurrency: int = ...,
        rule_concurrency: int | Mapping[str, int] | None = ...,
        workspace_concurrency: int | None = ...,
        run_context: RunContext = ...,
    ) -> None: ...

    def __init__(
        self,
        workspaces: Workspaces,
        *,
        actions: Mapping[str, Action[Any] | ActionFunction[Any]] | None = None,
        deps: Any = None,
        holder: str | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        lease_ttl: timedelta = DEFAULT_LEASE_TTL,
        concurrency: int = DEFAULT_CONCURRENCY,
        rule_concurrency: int | Mapping[str, int] | None = None,
        workspace_concurrency: int | None = None,
        run_context: RunContext = no_run_context,
    ) -> None:
        """Checks that every rule finds its action.

        Args:
            workspaces: The workspaces and their rules.
            actions: What rules run, by the name that they give: coroutine functions over a `Reaction`, or other
                actions.
            deps: What the application gives its actions, as `Reaction.deps`.
            holder: What leases call this reactor, by default after its host and process; each reactor adds something
                of its own, as one that comes back after a crash is another.
            batch_size: How many envelopes one transaction evaluates at most, at least 1.
            lease_ttl: How long a lease lasts that is not renewed, at most a day: after so long a crashed
                reactor's work is taken over. Renewed at every third of it. An action that is cancelled has a sixth of
                it to end, and at most 5 seconds, before it is left behind.
            concurrency: How many actions are at work at a time at most, at least 1.
            rule_concurrency: How many runs of one rule are carried out at once at most, in all workspaces and all
                processes together, at least 1: the same for every rule, or by name for some; a stored rule counts by
                its name. By default as many as there are.
            workspace_concurrency: How many runs of one workspace are carried out at once at most, in all processes
                together, at least 1; by default as many as there are. Reactors that say different numbers each begin
                a run only where fewer than their own number are at work, so say the same everywhere.
            run_context: What surrounds each attempt.

        Raises:
            RuleError: An action is missing or none, a rule's params are not what its action wants, or a number is
                out of range; every problem is listed.
        """
        configuration = workspaces.configuration
        problems = [
            f"{name}: {value!r} is less than {least}"
            for name, value, least in (("batch_size", batch_size, 1), ("concurrency", concurrency, 1))
            if value < least
        ]
        limits = Limits(rule_concurrency, workspace_concurrency)
        stored_rules = configuration.settings.stored_rules
        problems += limits.problems(configuration.rules, () if stored_rules is None else stored_rules.namespaces)
        if lease_ttl <= timedelta():
            problems.append(f"lease_ttl: {lease_ttl!r} is not longer than zero")
        if lease_ttl > LONGEST_LEASE:
            problems.append(f"lease_ttl: {lease_ttl!r} is longer than a day")
        checked: dict[str, Action[Any]] = {}
        try:
            checked = checked_actions(actions or {}, configuration.rules, stored_rules)
        except RuleError as error:
            problems += error.problems
        if problems:
            raise RuleError(problems)
        self._configuration = configuration
        self._storage = configuration.storage
        self._lease_ttl = lease_ttl
        self._holder = f"{holder or f'{gethostname()}-{os.getpid()}'}-{token_hex(4)}"
        self._evaluator = Evaluator(configuration, holder=self._holder, batch_size=batch_size, lease_ttl=lease_ttl)
        recorder = Recorder(self._storage, holder=self._holder, patience=lease_ttl)
        self._executor: Executor[Any] = Executor(
            Equipment(workspaces, checked, deps, run_context, recorder, min(lease_ttl / 6, LONGEST_PATIENCE)),
            Claimer(configuration, holder=self._holder, lease_ttl=lease_ttl),
            holder=self._holder,
            lease_ttl=lease_ttl,
            concurrency=concurrency,
            limits=limits,
        )

    @property
    def holder(self) -> str:
        """What this reactor's leases are held as."""
        return self._holder

    async def evaluate(self) -> int:
        """Lets rules decide until each is caught up in every workspace, and returns how many transactions that took.

        A workspace that another reactor evaluates is left to it. A rule whose evaluation breaks is reported and left
        where it stands, and the others go on.

        Raises:
            StorageError: The storage failed; workspaces that it did not fail for were evaluated all the same.
        """
        return await _lone(self._evaluate()[1])

    async def execute(self) -> int:
        """Carries out what is due, and what is when that is done, until nothing is; returns the attempts.

        Attempts that were found abandoned are counted too. Nothing is waited for but the actions: not a run's next
        attempt, and no run that another reactor has in hand.

        Raises:
            StorageError: The storage failed; what it did not fail for was carried out all the same.
        """
        return await _lone(self._executor.execute())

    async def tick(self) -> int:
        """Publishes the ticks that are due by the storage's clock, and returns how many.

        Each schedule ticks once in each workspace; one that catches up on all that were missed, up to its limit.

        Raises:
            StorageError: The storage failed; workspaces that it did not fail for got their ticks all the same.
        """
        if not self._configuration.settings.schedules:
            return 0
        return await _lone(Rounds(self._ticking(serving=False), self._storage).until_idle())

    async def settle(self) -> None:
        """Ticks, evaluates and executes, again and again, until there is nothing to do *now*, by the storage's clock.

        Then no tick is due, every enabled rule is caught up everywhere, and no run may start. What time alone will
        bring is not waited for: a run waits for its next attempt, and a lease of a reactor that died lapses, at a
        later time. With a clock that is moved by hand, move it and settle again. A workspace that another reactor
        evaluates at the moment is waited for briefly; a run that one has in hand is that reactor's.

        Raises:
            StorageError: The storage failed.
        """
        loop = asyncio.get_running_loop()
        patience = loop.time() + _BRIEFLY.total_seconds()
        with self._storage.wakeups.listen() as listener:
            while True:
                ticks = await self.tick()
                duty, evaluating = self._evaluate()
                evaluated = await _lone(evaluating)
                executed = await self.execute()
                if ticks or evaluated or executed:
                    patience = loop.time() + _BRIEFLY.total_seconds()
                elif duty.contended and (left := patience - loop.time()) > 0:
                    # Woken by what does not say which workspace it is, too.
                    await listener.wait(timedelta(seconds=left))
                else:
                    return

    async def serve(self, stop: asyncio.Event | None = None, *, grace: timedelta = DEFAULT_GRACE) -> None:
        """Does all there is to do, as soon as there is, until `stop` is set.

        A commit of this process wakes it at once, one of another as the storage's wake-ups have it, and it sleeps
        until the next run or tick is due. What breaks is logged, left alone for a while and tried again, and never
        keeps back anything else. Once `stop` is set, nothing new is begun: the batches at hand are finished, and
        actions may go on for the grace period, under leases that are kept. Then those left are cancelled, their
        attempts are recorded as abandoned, and their leases given back. Cancelling it instead does the same without a
        grace period.

        Args:
            stop: Ends it; without one it goes on until it is cancelled.
            grace: How long actions may go on after that.
        """
        await _lone(self._serve(asyncio.Event() if stop is None else stop, grace))

    async def _serve(self, stop: asyncio.Event, grace: timedelta) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._configuration.settings.schedules:
                tasks.create_task(Rounds(self._ticking(serving=True), self._storage).serve(stop))
            tasks.create_task(Rounds(Evaluating(self._evaluator, stop, self._executor), self._storage).serve(stop))
            tasks.create_task(self._executor.serve(stop, grace))

    def _evaluate(self) -> tuple[Evaluating, Awaitable[int]]:
        duty = Evaluating(self._evaluator)
        return duty, Rounds(duty, self._storage).until_idle()

    def _ticking(self, *, serving: bool) -> Ticking:
        return Ticking(self._configuration, holder=self._holder, lease_ttl=self._lease_ttl, serving=serving)


async def _lone[Result](awaitable: Awaitable[Result]) -> Result:
    """Awaits something of which the one thing that went wrong is raised as it is, out of the groups of its tasks."""
    try:
        return await awaitable
    except BaseExceptionGroup as group:
        raise _only(group) from None


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    match group.exceptions:
        case (BaseExceptionGroup() as inner,):
            return _only(inner)
        case (error,):
            return error
        case _:
            return group
