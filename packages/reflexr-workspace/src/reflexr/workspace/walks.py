"""What is to do in one workspace, found by looking through it: whether rules are behind, which runs and ticks are due.

A backend that knows no better walks over all of its workspaces with these. Each costs what the workspace holds of
progress, unfinished runs or ticks; `reflexr.workspace.kernel` says what the walk costs.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

from reflexr.core import UNFINISHED, Run, RunStatus, StoredRule
from reflexr.workspace.refs import run_lease
from reflexr.workspace.snapshots import Lease, Snapshot
from reflexr.workspace.storage import Deadline, DueRun, DueSchedule, RunPolicy, RunQuery, RunScope, Watch

_UNFINISHED_OR_DEAD: Final = UNFINISHED | frozenset[RunStatus]({"dead_lettered"})


async def is_behind(snapshot: Snapshot, watch: Watch) -> bool:
    """Whether one of the watched rules has something to do in a workspace, as `Storage.behind` has it."""
    head = snapshot.head.seq
    if not head:
        return False
    progress = await snapshot.progress()
    for rule, definition in watch.definitions.items():
        known = progress.get(rule)
        if known is None or known.cursor < head or known.definition != definition:
            return True
    for rule in await _enabled(snapshot, watch.stored):
        known = progress.get(rule)
        if known is None or known.cursor < head:
            return True
    return False


async def waiting_runs(snapshot: Snapshot, policy: RunPolicy) -> list[tuple[datetime, DueRun]]:
    """Returns the runs of a workspace that may start by time alone, with the time, those that wait longest first.

    That is what `Storage.due_runs` names once the time has come. Every unfinished run of the policy's rules is read.
    """
    rules, ordered, blocking = set(policy.unordered | policy.ordered), set(policy.ordered), set(policy.blocking)
    for rule, stored in (await _enabled(snapshot, policy.stored)).items():
        rules.add(rule)
        if stored.rule.ordering == "scope":
            ordered.add(rule)
        if stored.rule.on_dead_letter == "block":
            blocking.add(rule)
    rules -= policy.withheld
    if not rules:
        return []
    runs = await snapshot.find_runs(RunQuery(rules=frozenset(rules), statuses=statuses_in_order(blocking)))
    turns = turns_of(runs, blocking)
    leases = await snapshot.leases([run_lease(run.id) for run in runs if run.status == "running"])
    found = [
        (starts, run)
        for run in runs
        if (starts := _starts(run, leases.get(run_lease(run.id)), snapshot.now)) is not None
        and (run.status == "paused" or run.rule not in ordered or turns.get(_scope(run)) == run.id)
    ]
    found.sort(key=lambda one: (one[0], one[1].position, one[1].id))
    return [(starts, DueRun(snapshot.workspace, run.id, run.rule)) for starts, run in found]


async def due_schedules(snapshot: Snapshot, deadlines: Mapping[str, Deadline]) -> list[DueSchedule]:
    """Returns the schedules that have not ticked in a workspace since their deadlines."""
    ticks, has_log = await snapshot.schedule_ticks(), snapshot.head.seq > 0
    return [
        DueSchedule(snapshot.workspace, schedule, last)
        for schedule, deadline in deadlines.items()
        if (has_log if deadline.workspaces is None else snapshot.workspace in deadline.workspaces)
        and ((last := ticks.get(schedule)) is None or last < deadline.at)
    ]


def statuses_in_order(blocking: Collection[str]) -> frozenset[RunStatus]:
    """Returns the statuses of the runs that `turns_of` looks at, if these rules are blocking."""
    return _UNFINISHED_OR_DEAD if blocking else UNFINISHED


def turns_of(runs: Iterable[Run], blocking: Collection[str]) -> dict[RunScope, str]:
    """Returns whose turn it is in each scope, as `Transaction.first_runs` has it, of all runs that stand in its order.

    Args:
        runs: The unfinished runs of the scopes, and those that were dead-lettered, in any order.
        blocking: The rules of which a dead-lettered run holds back the later ones.
    """
    firsts: dict[RunScope, tuple[bool, tuple[int, int], str]] = {}
    for run in runs:
        if _holds(run, blocking):
            scope, place = _scope(run), (run.status != "running", run.position, run.id)
            firsts[scope] = min(firsts.get(scope, place), place)
    return {scope: run_id for scope, (_, _, run_id) in firsts.items()}


def _holds(run: Run, blocking: Collection[str]) -> bool:
    """Whether a run of an ordered rule holds back the later ones of its scope, as `core.holds` has it."""
    if run.waiting is not None:
        return run.waiting.blocks
    return run.unfinished or (run.status == "dead_lettered" and run.rule in blocking)


def _starts(run: Run, lease: Lease | None, now: datetime) -> datetime | None:
    """Returns from when on a run may start, or a paused one expires; `None` if that is not a matter of time."""
    match run.status:
        case "pending":
            # A log's time can be ahead of a clock that went back.
            return min(run.fired_at, now)
        case "running":
            return min(run.fired_at, now) if lease is None else lease.expires
        case "retrying":
            return run.next_attempt_at
        case _:
            return None if run.waiting is None else run.waiting.until


def _scope(run: Run) -> RunScope:
    return RunScope(run.rule, run.scope_key)


async def _enabled(snapshot: Snapshot, namespaces: Collection[str]) -> dict[str, StoredRule]:
    """Returns the stored rules of these namespaces that are active and enabled, by name."""
    stored = await snapshot.stored_rules() if namespaces else {}
    return {name: one for name, one in stored.items() if one.rule.enabled and name.partition(":")[0] in namespaces}
