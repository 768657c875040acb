"""Executing: carrying out the runs that are due, each under a lease that is kept while its action works.

A reactor that serves also starts runs in the transaction that fires them, where it has room: see `Starting`. How one
attempt goes is `reflexr.workspace.attempts`'s; how runs are taken, `reflexr.workspace.claiming`'s.
"""

import asyncio
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from logging import getLogger
from typing import Final

from opentelemetry.trace import Span

from reflexr.core import Envelope, Rule, Run
from reflexr.telemetry import untraced
from reflexr.workspace.attempts import Attempt, Equipment
from reflexr.workspace.claiming import Begun, Claim, Claimed, Claimer
from reflexr.workspace.refs import LeaseKey, WorkspaceRef, run_lease
from reflexr.workspace.rounds import Delays, Rounds, Work
from reflexr.workspace.slots import Limits, Slots, Ticket
from reflexr.workspace.storage import RunPolicy, Storage, Transaction

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
        limits: Limits,
    ) -> None:
        """Prepares to carry out runs.

        Args:
            equipment: What attempts are carried out with.
            claimer: Takes the runs.
            holder: Who holds the leases.
            lease_ttl: How long a lease lasts that is not renewed; it is at every third of that.
            concurrency: How many actions work at a time at most.
            limits: How many runs of a rule or a workspace are carried out at once, in all processes together.
        """
        self._equipment = equipment
        self._claimer = claimer
        self._storage: Storage = equipment.workspaces.configuration.storage
        self._holder = holder
        self._lease_ttl = lease_ttl
        self._concurrency = concurrency
        self._limits = limits
        self._slots = Slots(self._storage, limits, holder=holder, lease_ttl=lease_ttl)
        self._in_hand: dict[LeaseKey, Attempt[Deps]] = {}
        self._reserved = 0
        self._after: WorkspaceRef | None = None
        # As far as is known: runs that wait have their turn before any that is fired.
        self._crowded = True
        self._waiting: set[Rounds] = set()
        self._serving: list[_Session[Deps]] = []

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

    def hear(self, changed: frozenset[WorkspaceRef]) -> None:
        """Takes note that workspaces changed, and looks what is due; none stands for any."""
        for rounds in self._waiting:
            rounds.hear(changed)

    @contextmanager
    def starting(self) -> Generator["Starting[Deps]"]:
        """Gives what starts runs in a transaction that fires them, which is committed once the block has ended.

        If the block raises, nothing was started.
        """
        starting = Starting(self, self._claimer, next((one for one in self._serving if one.is_open), None))
        try:
            yield starting
        except BaseException:
            starting.give_up()
            raise
        starting.take_up()

    async def _session(self, stop: asyncio.Event | None, grace: timedelta) -> int:
        done = 0
        self._slots.look_again()
        async with asyncio.TaskGroup() as keeping:
            attempts = asyncio.TaskGroup()
            session = _Session[Deps](attempts, stop)
            keeper = keeping.create_task(self._keep_leases(session))
            try:
                # If all of this is cancelled, so are the attempts first; their leases are kept until the last has
                # ended.
                async with attempts:
                    duty = Executing(self, session, serving=stop is not None)
                    rounds = Rounds(duty, self._storage)
                    self._waiting.add(rounds)
                    try:
                        if stop is None:
                            done = await rounds.until_idle()
                        else:
                            await self._serve(rounds, session, stop, grace)
                    finally:
                        self._waiting.discard(rounds)
            finally:
                keeper.cancel()
        return done

    async def _serve(self, rounds: Rounds, session: "_Session[Deps]", stop: asyncio.Event, grace: timedelta) -> None:
        self._serving.append(session)
        try:
            await rounds.serve(stop, listen=False)
            await session.drain(grace)
        finally:
            self._serving.remove(session)
            session.is_closed = True

    # --- For the duty

    async def due(
        self, busy: Collection[WorkspaceRef], left_out: Collection[LeaseKey]
    ) -> dict[WorkspaceRef, dict[str, Ticket]]:
        """Returns runs to claim, for as many as there is room, by workspace, each with its ticket.

        Workspaces take turns. The room is theirs until `make_room`.

        Args:
            busy: The workspaces to leave out.
            left_out: The runs to leave out.
        """
        if (room := self._room()) <= 0:
            self._crowded = True
            return {}
        policy, workspaces = self._admitted()
        due = await self._storage.due_runs(
            policy,
            limit=room,
            each=self._limits.workspace,
            after=self._after,
            # A run in hand is due again if its lease has lapsed; it is begun again once the attempt at hand has ended.
            but_runs={*left_out, *self._in_hand},
            but_workspaces={*busy, *workspaces},
        )
        # Of workspaces that are busy nothing was asked.
        self._crowded = bool(busy) or len(due) >= room
        found: dict[WorkspaceRef, dict[str, Ticket]] = {}
        for run in due:
            # Others may have been claimed since it was asked for.
            is_free = self._room() > 0 and LeaseKey(run.workspace, run_lease(run.run_id)) not in self._in_hand
            if is_free and (ticket := self._slots.promise(run.workspace, run.rule)) is not None:
                found.setdefault(run.workspace, {})[run.run_id] = ticket
                self._reserved += 1
                self._after = run.workspace
        return found

    async def rest(self) -> timedelta | None:
        """Returns how long it is until a run is due by time alone; `None` if there is no room for one."""
        if self._room() <= 0:
            return None
        due, slots = await self._storage.next_due(self._admitted()[0]), self._slots.rest()
        if due is None or slots is None:
            return slots if due is None else due
        # What is due already waits for a slot.
        return min(due, slots) if due else slots

    def heard(self, changed: frozenset[WorkspaceRef]) -> None:
        """Takes note that workspaces changed, which may be that slots were given back; none stands for any."""
        self._slots.heard(changed)

    def reserve(self, runs: int) -> bool:
        """Returns whether there is room for runs that were just fired, which is theirs then until `make_room`.

        There is none where there is too little for all of them, or where others may be waiting: then all take turns.
        """
        self._crowded = self._crowded or runs > self._room()
        if not self._crowded:
            self._reserved += runs
        return not self._crowded

    def is_bounded(self, rule: str) -> bool:
        """Whether runs of a rule need slots, which are taken before they are claimed."""
        return self._limits.of_rule(rule) is not None or self._limits.workspace is not None

    async def claim(self, workspace: WorkspaceRef, run_ids: list[str]) -> Claimed:
        """Claims runs."""
        return await self._claimer.claim(workspace, run_ids)

    async def take_slots(self, tickets: Collection[Ticket], session: "_Session[Deps]") -> None:
        """Takes the slots of runs to claim, which are kept from then on, as far as there are any."""
        await self._slots.take(tickets)
        session.tickets.update(ticket for ticket in tickets if ticket.held)

    async def give_back_slots(self, tickets: Collection[Ticket], session: "_Session[Deps]") -> None:
        """Gives back the slots of runs that were not claimed."""
        session.tickets.difference_update(tickets)
        await self._slots.give_back(tickets)

    def _admitted(self) -> tuple[RunPolicy, frozenset[WorkspaceRef]]:
        """Returns which runs may be claimed, and the workspaces of which none may, as their limits are reached."""
        rules, workspaces = self._slots.full()
        policy = self._claimer.policy
        return replace(policy, withheld=rules) if rules else policy, workspaces

    def _room(self) -> int:
        return self._concurrency - len(self._in_hand) - self._reserved

    def make_room(self, runs: int, unused: Collection[Ticket]) -> None:
        """Gives back the room of runs that were to be claimed, and what was promised to those that were not."""
        self._reserved -= runs
        self._slots.drop(unused)
        self._look_again()

    def take_up(self, claim: Claim, ticket: Ticket, session: "_Session[Deps]") -> None:
        """Begins to carry out a claim."""
        attempt = Attempt(self._equipment, claim)
        if ticket.lost or session.is_stopped:
            attempt.stop()
        self._in_hand[claim.key] = session.attempts[claim.key] = attempt
        session.ticket_of[claim.key] = ticket
        session.ended.clear()
        task = session.tasks.create_task(self._carry_out(attempt, ticket))
        task.add_done_callback(lambda _: self._put_down(claim.key, session))

    async def _carry_out(self, attempt: Attempt[Deps], ticket: Ticket) -> None:
        await attempt.carry_out()
        await self._slots.give_back([ticket])

    def _put_down(self, key: LeaseKey, session: "_Session[Deps]") -> None:
        del self._in_hand[key], session.attempts[key]
        ticket = session.ticket_of.pop(key)
        session.tickets.discard(ticket)
        self._slots.drop([ticket])
        session.look_whether_ended()
        self._look_again()

    def _look_again(self) -> None:
        for rounds in self._waiting:
            rounds.wake()

    # --- Leases

    async def _keep_leases(self, session: "_Session[Deps]") -> None:
        """Renews the leases of what is in hand: all of them in time, and those of workspaces that change at once.

        Whoever cancels a run takes its lease away, so that is also how a cancellation is heard of. Where a wake-up may
        be lost, or does not say what changed, all of them are looked at as often as the wake-ups have others look.
        """
        loop = asyncio.get_running_loop()
        interval = self._lease_ttl.total_seconds() / 3
        polls = self._storage.wakeups.poll_interval
        pause = interval if polls is None else polls.total_seconds()
        with self._storage.wakeups.listen() as listener:
            renewal, look = loop.time() + interval, loop.time() + pause
            while True:
                # Also where nothing is in hand: slots are held while a claim waits for its workspace.
                wait = min(renewal, look if session.attempts else renewal) - loop.time()
                changed = await listener.wait(timedelta(seconds=max(wait, 0)))
                everything = loop.time() >= renewal
                unsaid = not changed and loop.time() >= look
                held = {
                    key: attempt
                    for key, attempt in session.attempts.items()
                    if everything or unsaid or key.workspace in changed
                }
                if everything or unsaid:
                    look = loop.time() + pause
                if everything:
                    renewal = loop.time() + interval
                tickets = set(session.tickets) if everything else set[Ticket]()
                if (held or tickets) and not await self._renew(held, tickets, session):
                    renewal = min(renewal, loop.time() + interval / 4)
                await asyncio.sleep(PAUSE.total_seconds())

    async def _renew(
        self, held: Mapping[LeaseKey, Attempt[Deps]], tickets: Collection[Ticket], session: "_Session[Deps]"
    ) -> bool:
        leases = [*held, *(lease for ticket in tickets for lease in ticket.leases)]
        try:
            with untraced():
                kept = await self._storage.renew(leases, self._holder, self._lease_ttl)
        except Exception:
            _LOGGER.exception("the leases of %d attempts could not be renewed; next try soon", len(held))
            return False
        for ticket in tickets:
            ticket.lost = not kept.issuperset(ticket.leases)
        for key, attempt in held.items():
            if session.attempts.get(key) is attempt and (key not in kept or session.ticket_of[key].lost):
                attempt.stop()
        return True


class Starting[Deps]:
    """Starts runs in one transaction that fires them, where there is room, and carries them out once it is committed.

    Those that it leaves are claimed in turns, as ever.
    """

    def __init__(self, executor: Executor[Deps], claimer: Claimer, session: "_Session[Deps] | None") -> None:
        """Prepares to start runs.

        Args:
            executor: Whose room it is.
            claimer: Takes the runs.
            session: What has them in hand; without one, none is started.
        """
        self._executor = executor
        self._claimer = claimer
        self._session = session
        self._reserved = 0
        self._claims: tuple[Claim, ...] = ()
        self._spans: list[Span] = []

    async def begin(
        self, transaction: Transaction, fired: Sequence[Run], rules: Mapping[str, Rule], known: Mapping[int, Envelope]
    ) -> Begun:
        """Begins the first attempts of those runs whose turn it is: of all of them, or of none. The caller saves them.

        Args:
            transaction: The transaction that fires them, where they are not saved yet.
            fired: The runs, of rules that are enabled.
            rules: The workspace's rules.
            known: Envelopes of the log, by place.
        """
        session = self._session
        free = [run for run in fired if not self._executor.is_bounded(run.rule)]
        if session is None or not session.is_open or not free:
            return Begun()
        turns = await self._claimer.next_of(transaction, free, rules)
        if not turns or not self._executor.reserve(len(turns)):
            return Begun()
        self._reserved = len(turns)
        session.transactions += 1
        session.ended.clear()
        begun = await self._claimer.begin(transaction, turns, rules, known, self._spans)
        self._claims = begun.claims
        return begun

    def take_up(self) -> None:
        """Carries out what was begun, now that it is committed."""
        session = self._session
        if session is not None and not session.is_closed:
            for claim in self._claims:
                self._executor.take_up(claim, Ticket(), session)
            self._claimer.measure(self._claims)
            self._spans.clear()
        # Where nobody keeps its lease any more, what was begun is found abandoned once that has lapsed.
        self.give_up()

    def give_up(self) -> None:
        """Leaves to others what was begun and is not carried out, as it is not committed."""
        for span in self._spans:
            span.end()
        if self._session is not None and self._reserved:
            self._session.transactions -= 1
            self._session.look_whether_ended()
            self._executor.make_room(self._reserved, ())


class _Session[Deps]:
    """What one call of the executor has in hand."""

    def __init__(self, tasks: asyncio.TaskGroup, stop: asyncio.Event | None) -> None:
        """Begins with nothing in hand.

        Args:
            tasks: Owns the attempts' tasks.
            stop: What ends it, if it serves.
        """
        self.tasks = tasks
        self.attempts: dict[LeaseKey, Attempt[Deps]] = {}
        self.ticket_of: dict[LeaseKey, Ticket] = {}
        # With those of the runs that are being claimed.
        self.tickets: set[Ticket] = set()
        # How many transactions have started runs and are not committed yet.
        self.transactions = 0
        self.is_stopped = self.is_closed = False
        self.ended = asyncio.Event()
        self.ended.set()
        self._stop = stop

    @property
    def is_open(self) -> bool:
        """Whether runs may be started with their firing."""
        return self._stop is not None and not self._stop.is_set()

    def look_whether_ended(self) -> None:
        """Takes note that nothing is in hand any more, if that is so."""
        if not self.attempts and not self.transactions:
            self.ended.set()

    async def drain(self, grace: timedelta) -> None:
        """Waits until nothing is in hand; stops what has not ended after the grace period."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                await self.ended.wait()
        self.is_stopped = True
        for attempt in list(self.attempts.values()):
            attempt.stop()
        await self.ended.wait()


class Executing[Deps]:
    """The duty of carrying out every run that is due."""

    name = "executing"

    def __init__(self, executor: Executor[Deps], session: _Session[Deps], *, serving: bool) -> None:
        """Takes up the duty.

        Args:
            executor: Who carries runs out.
            session: What is in hand.
            serving: Whether what cannot be claimed is tried again after a while.
        """
        self._executor = executor
        self._session = session
        self._serving = serving
        self._aside = Delays[LeaseKey]()
        self._left_out: set[LeaseKey] = set()

    @property
    def idle(self) -> bool:
        """Whether no attempt is in hand."""
        return not self._session.attempts

    def heard(self, changed: frozenset[WorkspaceRef]) -> bool:
        """Takes note that limits may not be reached any more; what broke is left alone for its time."""
        self._executor.heard(changed)
        return True

    async def find(self, busy: Collection[WorkspaceRef]) -> Mapping[WorkspaceRef, Work]:
        """Returns runs to claim."""
        self._left_out = {key for key in self._left_out if key in self._aside}
        due = await self._executor.due(busy, self._left_out)
        return {workspace: partial(self._claim, workspace, tickets) for workspace, tickets in due.items()}

    async def rest(self) -> timedelta | None:
        """Returns how long it is until a run is due, or until one is tried again that could not be claimed."""
        waits = [wait for wait in (await self._executor.rest(), self._aside.rest()) if wait is not None]
        return min(waits, default=None)

    def failed(self, workspace: WorkspaceRef) -> None:
        """Takes no note: each run that could not be claimed was set aside by itself."""

    async def _claim(self, workspace: WorkspaceRef, tickets: dict[str, Ticket]) -> int:
        """Claims runs, those for which there are slots, and begins to carry them out."""
        unused = dict(tickets)
        try:
            try:
                await self._executor.take_slots(tickets.values(), self._session)
            except Exception:
                for run_id in tickets:
                    self._set_aside(workspace, run_id)
                raise
            return await self._claim_each(workspace, unused)
        finally:
            try:
                await self._executor.give_back_slots(unused.values(), self._session)
            finally:
                self._executor.make_room(len(tickets), unused.values())

    async def _claim_each(self, workspace: WorkspaceRef, tickets: dict[str, Ticket]) -> int:
        """Claims the runs of valid tickets, which are used up; one that cannot be claimed keeps back no other one."""
        run_ids = [run_id for run_id, ticket in tickets.items() if ticket.is_valid]
        if not run_ids:
            return 0
        try:
            return self._begin(run_ids, workspace, await self._executor.claim(workspace, run_ids), tickets)
        except Exception:
            if len(run_ids) == 1:
                self._set_aside(workspace, run_ids[0])
                raise
        begun = 0
        errors: list[Exception] = []
        for run_id in run_ids:
            try:
                begun += self._begin([run_id], workspace, await self._executor.claim(workspace, [run_id]), tickets)
            except Exception as error:
                self._set_aside(workspace, run_id)
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"{len(errors)} runs could not be claimed", errors)
        return begun

    def _begin(self, run_ids: list[str], workspace: WorkspaceRef, claimed: Claimed, tickets: dict[str, Ticket]) -> int:
        for claim in claimed.claims:
            self._executor.take_up(claim, tickets.pop(claim.run.id), self._session)
        changed = {run.id for run in claimed.failed} | {claim.run.id for claim in claimed.claims}
        for run_id in run_ids:
            if run_id in changed:
                self._aside.forget(LeaseKey(workspace, run_lease(run_id)))
            else:
                # Somebody was faster, or still has its lease.
                self._set_aside(workspace, run_id)
        return len(changed)

    def _set_aside(self, workspace: WorkspaceRef, run_id: str) -> None:
        key = LeaseKey(workspace, run_lease(run_id))
        self._aside.add(key, None if self._serving else timedelta.max)
        self._left_out.add(key)
