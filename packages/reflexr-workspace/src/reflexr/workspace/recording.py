"""Recording: what becomes of runs while they are carried out, saved with its facts, many at once."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from logging import getLogger
from typing import Final

from reflexr.core import Draft, InvalidState, NotFound, Rejected, Run, Transition
from reflexr.workspace.commits import Pending, SharedCommits
from reflexr.workspace.facts import append_facts
from reflexr.workspace.refs import WorkspaceRef, run_lease
from reflexr.workspace.storage import Storage, Transaction

_LOGGER: Final = getLogger("reflexr.workspace.reactor")

FIRST_DELAY: Final = timedelta(milliseconds=100)
"""How long it is until what the storage did not record is tried again; each further time twice as long."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one attempt has to record of its run.

    Attributes:
        run_id: The run.
        move: Core's transition, which refuses an attempt that is not the run's.
        traceparent: The trace context of the attempt.
        ends: Whether the attempt is over, so that its lease is given back.
    """

    run_id: str
    move: Callable[[Run, datetime], Transition]
    traceparent: str | None
    ends: bool


class Recorder:
    """Records what becomes of runs: what arrives while a commit of its workspace is in flight shares the next."""

    def __init__(self, storage: Storage, *, holder: str, patience: timedelta) -> None:
        """Creates a recorder.

        Args:
            storage: Where the runs are.
            holder: Who holds their leases.
            patience: How long to try where the storage fails: no longer than a lease lasts.
        """
        self._holder = holder
        self._patience = patience
        self._commits: SharedCommits[Step, Run] = SharedCommits(storage, self._record)

    async def record(self, workspace: WorkspaceRef, step: Step) -> Run:
        """Records a step, and returns the run as it then is.

        Raises:
            InvalidState: The run is no longer at the attempt. Nothing was recorded.
            StorageError: The storage could not commit it.
        """
        return await self._commits.submit(workspace, step)

    async def insist(self, workspace: WorkspaceRef, step: Step) -> Run | None:
        """Records a step, again and again where the storage fails, and returns the run as it then is.

        `None` if the run is no longer at the attempt, or the storage failed for too long: then the run's lease
        lapses, and whoever finds it counts the attempt as abandoned.
        """
        delay = FIRST_DELAY
        deadline = asyncio.get_running_loop().time() + self._patience.total_seconds()
        while True:
            try:
                return await self.record(workspace, step)
            except Rejected as refused:
                _LOGGER.info("nothing more is recorded of an attempt in %s: %s", workspace, refused)
                return None
            except Exception:
                if asyncio.get_running_loop().time() + delay.total_seconds() >= deadline:
                    _LOGGER.exception(
                        "run %r in %s: its attempt is given up, as it could not be recorded", step.run_id, workspace
                    )
                    return None
                _LOGGER.exception("run %r in %s could not be recorded; next try in %s", step.run_id, workspace, delay)
                await asyncio.sleep(delay.total_seconds())
                delay *= 2

    async def _record(self, transaction: Transaction, pending: Sequence[Pending[Step]]) -> list[Run | Rejected]:
        runs = await transaction.runs({item.request.run_id for item in pending})
        results: list[Run | Rejected] = []
        moved: dict[str, Run] = {}
        facts: list[Draft] = []
        ended: list[str] = []
        for item in pending:
            step = item.request
            result = _moved(runs.get(step.run_id), step, transaction.now)
            if isinstance(result, Transition):
                runs[step.run_id] = moved[step.run_id] = result.run
                facts += (fact._replace(traceparent=step.traceparent) for fact in result.facts)
                results.append(result.run)
                if step.ends:
                    ended.append(run_lease(step.run_id))
            else:
                results.append(result)
        if moved:
            await transaction.save_runs(list(moved.values()))
            await append_facts(transaction, facts)
        if ended:
            await transaction.release(ended, self._holder)
        return results


def _moved(run: Run | None, step: Step, now: datetime) -> Transition | Rejected:
    if run is None:
        return NotFound(f"there is no run {step.run_id!r} any more")
    try:
        return step.move(run, now)
    except InvalidState as refused:
        return refused
