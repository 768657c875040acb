"""Episodes: processes at work, a killer among them, a fresh reactor that settles what is left, and the oracle."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, override

from reflexr.core import (
    ABANDONED,
    UNANSWERED,
    UNFINISHED,
    RuleErrored,
    RuleFired,
    Run,
    RunDeadLettered,
    RunPaused,
    RunResumed,
    RunRetrying,
    RunStatus,
    SourceActor,
)
from reflexr.sql import SqlStorage
from reflexr.workspace import LogWindow, Reactor, RunQuery, Storage, Watch, WorkspaceRef

from .application import Worker, reactor_of, workspaces_of
from .events import Pong
from .history import Chronicle, History, of_type
from .journal import Begun, Ended, Journal, Published, entries_of
from .killer import Ground, Killer, nursery
from .nursery import Settings, answer, engine_of
from .oracle import check_waiting, differences
from .plans import FOREVER, LEASE_TTL, WORKSPACES, Plan, chance
from .residue import residue

SETTLING: Final = timedelta(seconds=60)
"""How long the fresh reactor has at most. It has to wait for leases to lapse and for short back-offs to be over."""

QUIET: Final = timedelta(milliseconds=250)
"""For how long nothing changes before it is looked whether all is settled."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of an episode.

    Attributes:
        differences: What is not as it must be.
        deeds: What the killer did, with how often.
        counts: What happened, with how often.
    """

    differences: Sequence[str]
    deeds: Counter[str]
    counts: Counter[str]

    @override
    def __str__(self) -> str:
        """What was done, what happened, and what differs."""
        return "\n  ".join([_listed(self.deeds), _listed(self.counts), *self.differences])


async def episode(ground: Ground, plan: Plan, folder: Path, *, seconds: float, pace: float) -> Report:
    """Carries out a plan on an empty database, and has the oracle look at what is left.

    Args:
        ground: The database.
        plan: What happens.
        folder: Where the processes write down what they do, and log.
        seconds: How long it happens.
        pace: How long a publisher rests between two lots at most, in seconds.
    """
    settings = Settings(url=ground.url, folder=folder, seed=plan.seed, rules=list(plan.rules), pace=pace)
    async with nursery(settings) as wards:
        journal = Journal(settings.journal)
        killer = Killer(ground, wards, journal)
        await killer.carry_out(plan.acts, seconds)
        await wards.end()
        journal.close()
    found = list(wards.died)
    engine = engine_of(ground.url)
    async with SqlStorage(engine) as storage:
        history, unrest = await settled(storage, plan, settings.journal)
    await engine.dispose()
    found += [*differences(history), *unrest, *await residue(ground)]
    return Report(found, killer.done, counted(history))


async def settled(storage: Storage, plan: Plan, path: Path) -> tuple[History, list[str]]:
    """Has a fresh reactor do what is left to do, and returns the history, with what another finds to do after that.

    Some of those that are paused are answered in the middle of it.
    """
    journal = Journal(path)
    workspaces = workspaces_of(storage, plan.rules, ticks=False)
    watch = Watch({rule.name: rule.definition() for rule in plan.rules})

    def fresh(name: str) -> Reactor[Worker]:
        return reactor_of(workspaces, Worker(plan.seed, name, journal, alone=True), lease_ttl=LEASE_TTL)

    answerer = Worker(plan.seed, "fresh", journal)
    async with _serving(fresh("fresh")):
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLING.total_seconds()):
                await _until_settled(storage, plan, watch)
                for workspace in WORKSPACES:
                    handle = workspaces.handle(workspace, actor=SourceActor(name="fresh"))
                    await answer(handle, answerer, chance(plan.seed, "answers"))
                await _until_settled(storage, plan, watch)
    settled_at = await storage.now()
    heads = [await storage.head(workspace) for workspace in WORKSPACES]
    await fresh("another").settle()
    after = [await storage.head(workspace) for workspace in WORKSPACES]
    unrest = [
        f"{workspace}: another reactor found something to do after place {before.seq}, up to {now.seq}"
        for workspace, before, now in zip(WORKSPACES, heads, after, strict=True)
        if before != now
    ]
    journal.close()
    chronicles = [await chronicle_of(storage, workspace) for workspace in WORKSPACES]
    history = History(plan.seed, plan.rules, plan.publishers, chronicles, entries_of(path), settled_at)
    return history, unrest


@asynccontextmanager
async def _serving(reactor: Reactor[Worker]) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop))
        try:
            yield
        finally:
            stop.set()


async def _until_settled(storage: Storage, plan: Plan, watch: Watch) -> None:
    with storage.wakeups.listen() as listener:
        while await listener.wait(QUIET) or not await _is_settled(storage, plan, watch):
            pass


async def _is_settled(storage: Storage, plan: Plan, watch: Watch) -> bool:
    """Whether every rule is caught up, and every run has ended or waits for what does not come by itself soon.

    That is so at one time: everything that happens is told in a log, and no log grew meanwhile.
    """
    heads = [await storage.head(workspace) for workspace in WORKSPACES]
    return (
        not await storage.behind(watch, limit=1)
        and await _all_wait(storage, plan)
        and heads == [await storage.head(workspace) for workspace in WORKSPACES]
    )


async def _all_wait(storage: Storage, plan: Plan) -> bool:
    """Whether every run has ended or waits for what does not come by itself soon."""
    statuses = frozenset[RunStatus]({*UNFINISHED, "dead_lettered"})
    soon = await storage.now() + FOREVER / 2
    for workspace in WORKSPACES:
        runs: list[Run] = await storage.runs(workspace, RunQuery(statuses=statuses))
        if any(check_waiting(Chronicle(workspace, (), runs, {}, ()), plan.rules, soon)):
            return False
    return True


async def chronicle_of(storage: Storage, workspace: WorkspaceRef) -> Chronicle:
    """Returns what is left of a workspace."""
    return Chronicle(
        workspace,
        log=await storage.read(workspace, LogWindow()),
        runs=await storage.runs(workspace, RunQuery()),
        progress=await storage.progress(workspace),
        dead_letters=await storage.dead_letters(workspace),
    )


def counted(history: History) -> Counter[str]:
    """Returns what happened, with how often: whether an episode tells anything."""
    counts: Counter[str] = Counter()
    counts["lots published"] = sum(isinstance(entry, Published) for entry in history.journal)
    counts["lots repeated"] = sum(isinstance(entry, Published) and entry.repeated for entry in history.journal)
    for chronicle in history.chronicles:
        log, runs = chronicle.log, {run.id: run for run in chronicle.runs}
        outcomes = list(of_type(log, RunRetrying, RunDeadLettered))
        pongs = list(of_type(log, Pong))
        counts["envelopes"] += len(log)
        counts["firings"] += sum(1 for _ in of_type(log, RuleFired))
        counts["evaluation errors"] += sum(1 for _ in of_type(log, RuleErrored))
        counts["attempts abandoned"] += sum(envelope.payload.get("reason") == ABANDONED for envelope in outcomes)
        counts["pauses"] += sum(1 for _ in of_type(log, RunPaused))
        counts["pauses answered"] += sum(1 for _ in of_type(log, RunResumed))
        counts["pauses over"] += sum(envelope.payload.get("reason") == UNANSWERED for envelope in outcomes)
        counts["attempts overtaken"] += overtaken(history, chronicle.workspace)
        counts["runs retried"] += sum(run.attempt > 1 for run in runs.values())
        counts["runs resumed"] += sum(run.attempt > 1 and run.checkpoints > 0 for run in runs.values())
        counts["events emitted"] += len(pongs)
        counts["events emitted by retried runs"] += sum(runs[pong.payload["run"]].attempt > 1 for pong in pongs)
        counts.update(f"runs {run.status}" for run in runs.values())
    return counts


def overtaken(history: History, workspace: WorkspaceRef) -> int:
    """Returns how many attempts went on after the next attempt of their run had begun, in another process."""
    begun: set[tuple[str, int]] = set()
    count = 0
    for entry in history.journal:
        if isinstance(entry, Begun | Ended) and entry.workspace == workspace:
            begun.add((entry.run, entry.attempt))
            count += isinstance(entry, Ended) and (entry.run, entry.attempt + 1) in begun
    return count


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()) if count)
