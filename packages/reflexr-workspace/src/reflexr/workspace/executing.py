"""Executing: carrying out the runs that are due, each under a lease that is kept while its action works.

How one attempt goes is `reflexr.workspace.attempts`'s; how runs are taken, `reflexr.workspace.claiming`'s.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from logging import getLogger
from typing import Final

from reflexr.telemetry import untraced
from reflexr.workspace.attempts import Attempt, Equipment
from reflexr.workspace.claiming import Claim, Claimed, Claimer
from reflexr.workspace.refs import LeaseKey, WorkspaceRef, run_lease
from reflexr.workspace.rounds import Delays, Rounds, Work
from reflexr.workspace.storage import Storage

_LOGGER: Final = getLogger("reflexr.workspace.reactor")

PAUSE: Final = timedelta(milliseconds=20)
"""How long leases are not looked at again after they were, however often their workspaces change."""


class Executor[Deps]:
    """Carries out runs for one reactor: never more at a time than its concurrency, whoever calls how often."""

    def __init__(
        self,
        equipment: Equipment[Deps],
        claimer: Claimer,
        *,
        holder: str,
        lease_ttl: timedelta,
        concurrency: int,
    ) -> None:
        """Prepares to carry out runs.

        Args:
            equipment: What attempts are carried out with.
            claimer: Takes the runs.
            holder: Who holds the leases.
            lease_ttl: How long a lease lasts that is not renewed; it is at every third of that.
            concurrency: How many actions work at a time at most.
        """
        self._equipment = equipment
        self._claimer = claimer
        self._storage: Storage = equipment.workspaces.configuration.storage
        self._holder = holder
        self._lease_ttl = lease_ttl
        self._concurrency = concurrency
        self._in_hand: dict[LeaseKey, Attempt[Deps]] = {}
        self._reserved = 0
        self._waiting: set[Rounds] = set()

    async def execute(self) -> int:
        """Carries out what is due, and what is when that is done, until nothing is; returns the attempts.

        A run that waits for its next attempt is not waited for, nor is one that another reactor has in hand.

        Raises:
            StorageError: The storage failed; what was in hand is carried out all the same.
        """
        return await self._session(None, timedelta())

    async def serve(self, stop: asyncio.Event, grace: timedelta) -> None:
        """Carries out what is due, whenever something is, until `stop` is set.

        Then nothing new is begun. What is in hand keeps its leases and has the grace period to end; what has not
        ended by then is cancelled, and its attempt recorded as abandoned.
        """
        await self._session(stop, grace)

    async def _session(self, stop: asyncio.Event | None, grace: timedelta) -> int:
        done = 0
        async with asyncio.TaskGroup() as keeping:
            session = _Session[Deps]()
            keeper = keeping.create_task(self._keep_leases(session))
            try:
                # If all of this is cancelled, so are the attempts first; their leases are kept until the last has
                # ended.
                async with asyncio.TaskGroup() as attempts:
                    duty = Executing(self, session, attempts, serving=stop is not None)
                    rounds = Rounds(duty, self._storage)
                    self._waiting.add(rounds)
                    try:
                        if stop is None:
                            done = await rounds.until_idle()
                        else:
                            await rounds.serve(stop)
                            await session.drain(grace)
                    finally:
                        self._waiting.discard(rounds)
            finally:
                keeper.cancel()
        return done

    # --- For the duty

    async def due(
        self, further: int, busy: Collection[WorkspaceRef], skip: Callable[[LeaseKey], bool]
    ) -> dict[WorkspaceRef, list[str]]:
        """Returns runs to claim, for as many as there is room, by workspace; the room is theirs until `claim` ends."""
        if self._room() <= 0:
            return {}
        due = await self._storage.due_runs(self._claimer.policy, limit=self._concurrency + further)
        found: dict[WorkspaceRef, list[str]] = {}
        for run in due:
            key = LeaseKey(run.workspace, run_lease(run.run_id))
            # A run in hand is due again if its lease has lapsed; it is begun again once the attempt at hand has ended.
            if self._room() > 0 and run.workspace not in busy and key not in self._in_hand and not skip(key):
                found.setdefault(run.workspace, []).append(run.run_id)
                self._reserved += 1
        return found

    async def rest(self) -> timedelta | None:
        """Returns how long it is until a run is due by time alone; `None` if there is no room for one."""
        if self._room() <= 0:
            return None
        return await self._storage.next_due(self._claimer.policy)

    async def claim(self, workspace: WorkspaceRef, run_ids: list[str]) -> Claimed:
        """Claims runs."""
        return await self._claimer.claim(workspace, run_ids)

    def _room(self) -> int:
        return self._concurrency - len(self._in_hand) - self._reserved

    def make_room(self, runs: int) -> None:
        """Gives back the room of runs that were to be claimed."""
        self._reserved -= runs
        self._look_again()

    def take_up(self, claim: Claim, session: "_Session[Deps]", attempts: asyncio.TaskGroup) -> None:
        """Begins to carry out a claim."""
        attempt = Attempt(self._equipment, claim)
        self._in_hand[claim.key] = session.attempts[claim.key] = attempt
        session.ended.clear()
        task = attempts.create_task(attempt.carry_out())
        task.add_done_callback(lambda _: self._put_down(claim.key, session))

    def _put_down(self, key: LeaseKey, session: "_Session[Deps]") -> None:
        del self._in_hand[key], session.attempts[key]
        if not session.attempts:
            session.ended.set()
        self._look_again()

    def _look_again(self) -> None:
        for rounds in self._waiting:
            rounds.wake()

    # --- Leases

    async def _keep_leases(self, session: "_Session[Deps]") -> None:
        """Renews the leases of what is in hand: all of them in time, and those of workspaces that change at once.

        Whoever cancels a run takes its lease away, so that is also how a cancellation is heard of.
        """
        loop = asyncio.get_running_loop()
        interval = self._lease_ttl.total_seconds() / 3
        with self._storage.wakeups.listen() as listener:
            renewal = loop.time() + interval
            while True:
                at_work = session.attempts or self._reserved
                changed = await listener.wait(timedelta(seconds=max(renewal - loop.time(), 0)) if at_work else None)
                everything = loop.time() >= renewal
                held = {
                    key: attempt for key, attempt in session.attempts.items() if everything or key.workspace in changed
                }
                if everything:
                    renewal = loop.time() + interval
                if held and not await self._renew(held, session):
                    renewal = min(renewal, loop.time() + interval / 4)
                await asyncio.sleep(PAUSE.total_seconds())

    async def _renew(self, held: Mapping[LeaseKey, Attempt[Deps]], session: "_Session[Deps]") -> bool:
        try:
            with untraced():
                kept = await self._storage.renew(list(held), self._holder, self._lease_ttl)
        except Exception:
            _LOGGER.exception("the leases of %d attempts could not be renewed; next try soon", len(held))
            return False
        for key, attempt in held.items():
            if key not in kept and session.attempts.get(key) is attempt:
                attempt.stop()
        return True


class _Session[Deps]:
    """What one call of the executor has in hand."""

    def __init__(self) -> None:
        self.attempts: dict[LeaseKey, Attempt[Deps]] = {}
        self.ended = asyncio.Event()
        self.ended.set()

    async def drain(self, grace: timedelta) -> None:
        """Waits until nothing is in hand; stops what has not ended after the grace period."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                await self.ended.wait()
        for attempt in list(self.attempts.values()):
            attempt.stop()


class Executing[Deps]:
    """The duty of carrying out every run that is due."""

    name = "executing"

    def __init__(
        self, executor: Executor[Deps], session: _Session[Deps], attempts: asyncio.TaskGroup, *, serving: bool
    ) -> None:
        """Takes up the duty.

        Args:
            executor: Who carries runs out.
            session: What is in hand.
            attempts: Owns the attempts' tasks.
            serving: Whether what cannot be claimed is tried again after a while.
        """
        self._executor = executor
        self._session = session
        self._attempts = attempts
        self._serving = serving
        self._aside = Delays[LeaseKey]()

    @property
    def idle(self) -> bool:
        """Whether no attempt is in hand."""
        return not self._session.attempts

    def heard(self, changed: frozenset[WorkspaceRef]) -> None:
        """Takes no note: `find` asks the storage, and what broke is left alone for its time."""

    async def find(self, busy: Collection[WorkspaceRef]) -> Mapping[WorkspaceRef, Work]:
        """Returns runs to claim."""
        due = await self._executor.due(len(self._aside), busy, self._aside.__contains__)
        return {workspace: partial(self._claim, workspace, run_ids) for workspace, run_ids in due.items()}

    async def rest(self) -> timedelta | None:
        """Returns how long it is until a run is due, or until one is tried again that could not be claimed."""
        waits = [wait for wait in (await self._executor.rest(), self._aside.rest()) if wait is not None]
        return min(waits, default=None)

    def failed(self, workspace: WorkspaceRef) -> None:
        """Takes no note: each run that could not be claimed was set aside by itself."""

    async def _claim(self, workspace: WorkspaceRef, run_ids: list[str]) -> int:
        """Claims runs and begins to carry them out; one that cannot be claimed keeps back none of the others."""
        try:
            try:
                return self._begin(run_ids, workspace, await self._executor.claim(workspace, run_ids))
            except Exception:
                if len(run_ids) == 1:
                    self._set_aside(workspace, run_ids[0])
                    raise
            begun = 0
            errors: list[Exception] = []
            for run_id in run_ids:
                try:
                    begun += self._begin([run_id], workspace, await self._executor.claim(workspace, [run_id]))
                except Exception as error:
                    self._set_aside(workspace, run_id)
                    errors.append(error)
            if errors:
                raise ExceptionGroup(f"{len(errors)} runs could not be claimed", errors)
            return begun
        finally:
            self._executor.make_room(len(run_ids))

    def _begin(self, run_ids: list[str], workspace: WorkspaceRef, claimed: Claimed) -> int:
        for claim in claimed.claims:
            self._executor.take_up(claim, self._session, self._attempts)
        changed = {run.id for run in claimed.abandoned} | {claim.run.id for claim in claimed.claims}
        for run_id in run_ids:
            if run_id in changed:
                self._aside.forget(LeaseKey(workspace, run_lease(run_id)))
            else:
                # Somebody was faster, or still has its lease.
                self._set_aside(workspace, run_id)
        return len(changed)

    def _set_aside(self, workspace: WorkspaceRef, run_id: str) -> None:
        self._aside.add(LeaseKey(workspace, run_lease(run_id)), None if self._serving else timedelta.max)
