"""`DBOSAction`, as the guide has it: an action whose attempts are carried out in workflows of DBOS."""

import asyncio
from contextvars import copy_context
from typing import Final

from dbos import DBOS, SetWorkflowID, WorkflowHandleAsync
from pydantic import BaseModel

from reflexr.workspace import Action, Output, Pause, Reaction

PATIENCE: Final = 30.0
"""How many seconds DBOS may take to hand over a workflow."""


class DBOSAction[Deps]:
    """An action whose attempts are carried out in a workflow of DBOS.

    What DBOS recorded of an attempt that was cut off is not done again: the next attempt, in whichever process, goes on
    with the same workflow. After an attempt that failed, and in another version of the application, it begins another.
    """

    def __init__(self, action: Action[Deps], *, name: str, queue: str) -> None:
        """Registers the workflow with DBOS, which is launched after that.

        Args:
            action: The action, such as that of an agent with the capability `DBOSDurability`.
            name: The workflow's name.
            queue: The queue of DBOS that this process listens to, and no other process.
        """
        self.params: type[BaseModel] | None = action.params
        self._queue = queue
        self._attempts: dict[str, _Attempt[Deps]] = {}

        @DBOS.workflow(name=name)
        async def workflow(workspace: str, run: str) -> Output:
            attempt = self._attempts.pop(DBOS.workflow_id or "", None)
            if attempt is None or attempt.begun.done():
                # DBOS recovers it by itself: it stays as it is, for the run's next attempt.
                raise asyncio.CancelledError
            try:
                return await action.run(attempt.begin())
            except Exception:
                raise
            except BaseException as error:
                # DBOS gave it to another process, or somebody cancelled it there: no outcome of it is waited for.
                raise asyncio.CancelledError from error

        self._workflow = workflow

    async def run(self, reaction: Reaction[Deps], /) -> Output:
        """Carries out one attempt.

        Raises:
            TimeoutError: DBOS did not hand over the workflow.
        """
        prefix = f"{reaction.idempotency_key}:{reaction.run.checkpoints}:"
        found = await DBOS.list_workflows_async(workflow_id_prefix=prefix, load_input=False, load_output=False)
        workflows = {int(one.workflow_id.removeprefix(prefix)): one for one in found}
        number = max(workflows, default=0)
        latest = workflows.get(number)
        if latest is not None and latest.status == "SUCCESS":
            handle: WorkflowHandleAsync[Output] = await DBOS.retrieve_workflow_async(latest.workflow_id)
            output = await handle.get_result()
            if reaction.answer is None or not isinstance(output, Pause):
                # The process ended before the run's output was recorded.
                return output
        elif latest is not None and latest.status != "ERROR" and latest.app_version == DBOS.application_version:
            return await self._carry_out(latest.workflow_id, reaction, again=True)
        return await self._carry_out(f"{prefix}{number + 1}", reaction, again=False)

    async def _carry_out(self, workflow_id: str, reaction: Reaction[Deps], *, again: bool) -> Output:
        attempt = self._attempts[workflow_id] = _Attempt(reaction)
        asking = asyncio.ensure_future(self._ask(workflow_id, reaction, again=again))
        try:
            handle = await asyncio.shield(asking)
            if again and (await handle.get_status()).status in {"SUCCESS", "ERROR"}:
                # It ended in the meantime.
                return await handle.get_result()
            async with asyncio.timeout(PATIENCE):
                task = await attempt.begun
            return await task
        finally:
            self._attempts.pop(workflow_id, None)
            attempt.end()
            # DBOS asks the database in a thread, which no cancellation ends.
            await asyncio.wait([asking])

    async def _ask(self, workflow_id: str, reaction: Reaction[Deps], *, again: bool) -> WorkflowHandleAsync[Output]:
        """Asks DBOS for a workflow, to go on with it again or to begin it."""
        if again:
            return await DBOS.resume_workflow_async(workflow_id, queue_name=self._queue)
        with SetWorkflowID(workflow_id):
            return await DBOS.start_workflow_async(self._workflow, reaction.workspace.workspace_id, reaction.run_id)


class _Attempt[Deps]:
    """What a workflow is given besides its arguments, which DBOS writes down."""

    def __init__(self, reaction: Reaction[Deps]) -> None:
        self.begun: asyncio.Future[asyncio.Task[Output]] = asyncio.get_running_loop().create_future()
        self._reaction = reaction
        self._context = copy_context()

    def begin(self) -> Reaction[Deps]:
        """Makes the current task the attempt's, in the context that surrounds the attempt, such as its span."""
        inside = copy_context()
        for variable, value in self._context.items():
            if variable not in inside:
                variable.set(value)
        task = asyncio.current_task()
        assert task is not None
        self.begun.set_result(task)
        return self._reaction

    def end(self) -> None:
        """Cancels the workflow's task, if it is at work: DBOS leaves the workflow as it is."""
        if self.begun.done() and not self.begun.cancelled():
            self.begun.result().cancel()
