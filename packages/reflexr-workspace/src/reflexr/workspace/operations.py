"""Operations on runs and rules, and feedback: core's decisions applied in one transaction, attributed to an actor."""

from collections.abc import Callable, Iterable
from secrets import token_hex

from reflexr.core import (
    DepthExceeded,
    Envelope,
    Feedback,
    FiringTarget,
    NotFound,
    ReplayMode,
    RuleProgress,
    Run,
    RunTarget,
    Target,
    Transition,
    ValidationFailed,
    begin,
    feedback_given,
    reset,
)
from reflexr.workspace.configuration import Configuration
from reflexr.workspace.facts import append_facts
from reflexr.workspace.operators import Operator
from reflexr.workspace.refs import run_lease
from reflexr.workspace.statuses import no_rule
from reflexr.workspace.storage import Transaction


async def change_run(
    configuration: Configuration,
    operator: Operator,
    run_id: str,
    move: Callable[[Run, Transaction], Transition],
    traceparent: str | None,
) -> Run:
    """Applies a transition to a run and appends its facts.

    Raises:
        NotFound: There is no such run.
        InvalidState: The run is in no state for it.
    """
    async with configuration.storage.transaction(operator.workspace) as transaction:
        run = await _run(transaction, run_id)
        moved = move(run, transaction)
        await transaction.save_runs((moved.run,))
        await append_facts(transaction, moved.facts, traceparent)
        await stop_actions(transaction, (run,))
    return moved.run


async def stop_actions(transaction: Transaction, runs: Iterable[Run]) -> None:
    """Takes away the leases of runs that were running: an executor that finds its lease gone stops the action."""
    running = [run_lease(run.id) for run in runs if run.status == "running"]
    if running:
        leases = await transaction.holders(running)
        for holder in sorted(set(leases.values())):
            await transaction.release([lease for lease, by in leases.items() if by == holder], holder)


async def replay_rule(
    configuration: Configuration,
    operator: Operator,
    name: str,
    *,
    from_seq: int,
    mode: ReplayMode,
    traceparent: str | None,
) -> RuleProgress:
    """Resets a rule to evaluate the log again from a place, and clears its states.

    Raises:
        NotFound: The workspace has no such rule.
        ValidationFailed: `from_seq` is no place of the log.
    """
    async with configuration.storage.transaction(operator.workspace) as transaction:
        rule = (await configuration.rules_in(transaction)).get(name)
        if rule is None:
            raise no_rule(name)
        head = transaction.head.seq
        progress = await transaction.progress()
        # From here on the workspace is new no more, so the other rules have to begin now.
        begun = configuration.begun(progress) if configuration.is_new(progress) else {}
        stands = progress.get(name) or begun.get(name) or begin(rule, head)
        fresh = reset(rule, stands, head_seq=head, from_seq=from_seq, mode=mode, actor=operator.actor)
        await transaction.clear_states((name,))
        await transaction.save_progress(list({**begun, name: fresh.progress}.values()))
        await append_facts(transaction, (fresh.fact,), traceparent)
    return fresh.progress


async def give_feedback(
    configuration: Configuration, operator: Operator, feedback: Feedback, target: Target, traceparent: str | None
) -> Envelope:
    """Records feedback in its target's causal chain.

    Raises:
        ValidationFailed: Feedback of this type is not given on such a target, or the chain is named by a later event.
        NotFound: There is no such target.
        DepthExceeded: The run that gives it is too deep in its own chain.
    """
    limit = configuration.settings.max_depth
    if operator.causation is not None and operator.causation.depth > limit:
        raise DepthExceeded(operator.causation.depth, limit)
    event_id = f"evt_{token_hex(8)}"
    # What the log is not needed for is refused before anything is read.
    draft = feedback_given(
        feedback,
        target,
        event_id=event_id,
        actor=operator.actor,
        correlation_id=event_id,
        causation=operator.causation,
    )
    async with configuration.storage.transaction(operator.workspace) as transaction:
        chain = await _chain(transaction, target)
        joined = draft._replace(correlation_id=chain, traceparent=traceparent)
        return (await transaction.append((joined,)))[0]


async def _chain(transaction: Transaction, target: Target) -> str:
    match target:
        case RunTarget():
            return (await _run(transaction, target.run_id)).correlation_id
        case FiringTarget():
            # A firing and the run that it starts have one id.
            runs = await transaction.runs((target.firing_id,))
            if target.firing_id not in runs:
                raise NotFound(f"there is no firing {target.firing_id!r} in this workspace")
            return runs[target.firing_id].correlation_id
        case _:
            return await _first_of_chain(transaction, target.correlation_id)


async def _first_of_chain(transaction: Transaction, correlation_id: str) -> str:
    first = (await transaction.find((correlation_id,))).get(correlation_id)
    if first is None:
        raise NotFound(f"there is no causal chain {correlation_id!r} in this workspace")
    if first.correlation_id != first.id:
        raise ValidationFailed(
            f"{first.id!r} is a later event of a causal chain",
            [f"target.correlation_id: {first.id!r} is of the chain {first.correlation_id!r}: name that one"],
        )
    return first.id


async def _run(transaction: Transaction, run_id: str) -> Run:
    run = (await transaction.runs((run_id,))).get(run_id)
    if run is None:
        raise NotFound(f"there is no run {run_id!r} in this workspace")
    return run
