"""Storages that break one promise of rules, runs, leases or of finding work each."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, override
from unicodedata import normalize

from reflexr.core import DeadLetter, Needs, RuleProgress, Run, ScopeState, StoredRule
from reflexr.workspace import (
    Clock,
    Deadline,
    DueRun,
    DueSchedule,
    InProcessWakeups,
    LeaseKey,
    RunPolicy,
    RunQuery,
    RunScope,
    StateChanges,
    Transaction,
    Watch,
    WorkspaceRef,
    run_lease,
)

from .dictionary_storage import Database, DictionaryStorage, DictionaryTransaction, Tables

# --- Rules and their states


class PutsSavedProgressLast(DictionaryTransaction):
    @override
    async def save_progress(self, progress: Collection[RuleProgress]) -> None:
        for one in progress:
            self.tables.progress.pop(one.rule, None)
        await super().save_progress(progress)


class IsLateByAMicrosecond(DictionaryTransaction):
    @override
    async def states(self, needs: Mapping[str, Needs]) -> dict[str, dict[str, ScopeState]]:
        return await super().states({rule: self.earlier(need) for rule, need in needs.items()})

    def earlier(self, needs: Needs) -> Needs:
        through = needs.due_through
        return replace(needs, due_through=None if through is None else through - timedelta(microseconds=1))


class KeepsWhatExpiresNow(DictionaryTransaction):
    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        await super().change_states({rule: self.earlier(change) for rule, change in changes.items()})

    def earlier(self, change: StateChanges) -> StateChanges:
        through = change.expired_through
        return replace(change, expired_through=None if through is None else through - timedelta(microseconds=1))


class KeepsWhatExpired(DictionaryTransaction):
    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        await super().change_states({rule: replace(change, expired_through=None) for rule, change in changes.items()})


class ExpiresWhatItSaves(DictionaryTransaction):
    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        await super().change_states(changes)
        await super().change_states({rule: replace(change, saved={}) for rule, change in changes.items()})


class ExpiresByTheClock(DictionaryTransaction):
    @override
    async def states(self, needs: Mapping[str, Needs]) -> dict[str, dict[str, ScopeState]]:
        return {
            rule: {key: one for key, one in states.items() if one.expires is None or one.expires > self.now}
            for rule, states in (await super().states(needs)).items()
        }


class ClearsEveryRule(DictionaryTransaction):
    @override
    async def clear_states(self, rules: Collection[str]) -> None:
        await super().clear_states({rule for rule, _ in self.tables.states} if rules else ())


class DropsNothing(DictionaryTransaction):
    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        await super().change_states({rule: replace(change, dropped=frozenset()) for rule, change in changes.items()})


class SavesHalfOfARefusedSet(DictionaryTransaction):
    @override
    async def save_stored_rules(self, rules: Collection[StoredRule]) -> None:
        for rule in rules:
            await super().save_stored_rules([rule])


class SavesAnyVersion(DictionaryTransaction):
    @override
    async def save_stored_rules(self, rules: Collection[StoredRule]) -> None:
        self.tables.stored.update((rule.name, rule.model_dump_json()) for rule in rules)


class ListsWhatIsArchived(DictionaryStorage):
    @override
    async def stored_rules(
        self, workspace: WorkspaceRef, names: Collection[str] | None = None
    ) -> dict[str, StoredRule]:
        return self.tables(workspace).stored_rules(self.tables(workspace).stored if names is None else names)


class TakesTheOldestDeadLetters(DictionaryStorage):
    @override
    async def dead_letters(
        self, workspace: WorkspaceRef, *, rule: str | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        return (await super().dead_letters(workspace, rule=rule))[:limit]


class CountsEqualDeadLettersOnce(DictionaryTransaction):
    @override
    async def add_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> None:
        await super().add_dead_letters(list(dict.fromkeys(dead_letters)))


class TicksBackwards(DictionaryTransaction):
    @override
    async def save_schedule_ticks(self, ticks: Mapping[str, datetime]) -> None:
        self.tables.ticks.update(ticks)


class MovesCursorsBack(DictionaryStorage):
    @override
    async def save_cursor(self, workspace: WorkspaceRef, name: str, seq: int) -> int:
        self.database.cursors[workspace, name] = seq
        return seq


# --- Runs


class PutsSavedRunsFirst(DictionaryTransaction):
    @override
    async def save_runs(self, runs: Collection[Run]) -> None:
        for run in runs:
            self.tables.runs.pop(run.id, None)
        await super().save_runs(runs)


class LimitsTheOldestRuns(DictionaryStorage):
    @override
    async def runs(self, workspace: WorkspaceRef, query: RunQuery) -> list[Run]:
        found = await super().runs(workspace, replace(query, limit=None))
        return found if query.limit is None else found[max(len(found) - query.limit, 0) :]


class TakesNoStatusForAll(DictionaryStorage):
    @override
    async def runs(self, workspace: WorkspaceRef, query: RunQuery) -> list[Run]:
        return await super().runs(workspace, replace(query, statuses=query.statuses or None))


class OrdersRunsByPlaceAlone(DictionaryTransaction):
    """Forgets that a rule's generations come one after another."""

    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        runs = self.tables.find_runs(RunQuery())
        tables = Tables(runs={run.id: run.model_copy(update={"generation": 1}).model_dump_json() for run in runs})
        return {scope: one for scope, one in tables.turns(blocking=blocking).items() if scope in scopes}


class LetsEveryDeadLetterBlock(DictionaryTransaction):
    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        return await super().first_runs(scopes, blocking=[scope.rule for scope in scopes])


class ForgetsTheOrder(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, **asked: Any) -> list[DueRun]:
        return await super().due_runs(
            replace(policy, unordered=policy.unordered | policy.ordered, ordered=frozenset()), **asked
        )


class LetsNothingBlock(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, **asked: Any) -> list[DueRun]:
        return await super().due_runs(replace(policy, blocking=frozenset()), **asked)


class RetriesEarly(DictionaryStorage):
    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        return run.fired_at if run.status == "retrying" else super().starts(tables, run)


class RetriesAMomentLate(DictionaryStorage):
    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        starts = super().starts(tables, run)
        late = timedelta(microseconds=1 if run.status == "retrying" else 0)
        return None if starts is None else starts + late


class StealsWhatRuns(DictionaryStorage):
    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        return run.fired_at if run.status == "running" else super().starts(tables, run)


class LeavesLostRunsAlone(DictionaryStorage):
    """Looks for lapsed leases, but not for leases that are not there."""

    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        lost = run.status == "running" and run_lease(run.id) not in tables.leases
        return None if lost else super().starts(tables, run)


class LimitsBeforeItLooksWhoseTurnItIs(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, **asked: Any) -> list[DueRun]:
        everything = replace(policy, unordered=policy.unordered | policy.ordered, ordered=frozenset())
        first = await super().due_runs(everything, **asked)
        return [due for due in await super().due_runs(policy, **asked) if due in first]


class WaitsForRunsWhoseTurnItIsNot(DictionaryStorage):
    @override
    async def next_due(self, policy: RunPolicy) -> timedelta | None:
        return await super().next_due(replace(policy, unordered=policy.unordered | policy.ordered, ordered=frozenset()))


class NamesTheNewestFirst(DictionaryStorage):
    @override
    def longest_first(self, waiting: list[tuple[datetime, DueRun]]) -> list[tuple[datetime, DueRun]]:
        return super().longest_first(waiting)[::-1]


class WaitsInTheWay(DictionaryStorage):
    """Takes as many workspaces as there is room for before it looks at the time."""

    @override
    async def due_runs(self, policy: RunPolicy, *, limit: int, **asked: Any) -> list[DueRun]:
        found = await super().due_runs(policy, limit=1_000, **asked)
        later = {due.workspace for starts, due in self.waiting(policy) if starts > self.clock()}
        places = self.in_order({due.workspace for due in found} | later, asked.get("after"))[: max(limit, 0)]
        return [due for due in await super().due_runs(policy, limit=limit, **asked) if due.workspace in places]


class LetsTheLongestLineGoFirst(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, *, limit: int, **asked: Any) -> list[DueRun]:
        found = await super().due_runs(policy, limit=1_000, **asked)
        order = [due for _, due in self.longest_first(self.waiting(policy))]
        return sorted(found, key=order.index)[:limit]


class LetsEachTakeAllItsTurnsAtOnce(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, *, after: WorkspaceRef | None = None, **asked: Any) -> list[DueRun]:
        found = await super().due_runs(policy, after=after, **asked)
        order = self.in_order({due.workspace for due in found}, after)
        return sorted(found, key=lambda due: order.index(due.workspace))


class GivesEachWhatThereIsRoomFor(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, *, each: int | None = None, **asked: Any) -> list[DueRun]:
        return await super().due_runs(policy, **asked)


class BeginsAgainAndAgain(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, *, after: WorkspaceRef | None = None, **asked: Any) -> list[DueRun]:
        return await super().due_runs(policy, **asked)


class LeavesOutRunsLast(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, *, but_runs: Collection[LeaseKey] = (), **asked: Any) -> list[DueRun]:
        found = await super().due_runs(policy, **asked)
        return [due for due in found if LeaseKey(due.workspace, run_lease(due.run_id)) not in but_runs]


class LeavesOutWorkspacesLast(DictionaryStorage):
    @override
    async def due_runs(
        self, policy: RunPolicy, *, but_workspaces: Collection[WorkspaceRef] = (), **asked: Any
    ) -> list[DueRun]:
        return [due for due in await super().due_runs(policy, **asked) if due.workspace not in but_workspaces]


class WithholdsLast(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, **asked: Any) -> list[DueRun]:
        found = await super().due_runs(replace(policy, withheld=frozenset()), **asked)
        return [due for due in found if due.rule not in policy.withheld]


class WithholdsNoStoredRule(DictionaryStorage):
    @override
    def admits(
        self, policy: RunPolicy, tables: Tables, run: Run, free: dict[RunScope, str], blocked: dict[RunScope, str]
    ) -> bool:
        code = policy.withheld & (policy.unordered | policy.ordered)
        return super().admits(replace(policy, withheld=code), tables, run, free, blocked)


class WaitsForWhatIsWithheld(DictionaryStorage):
    @override
    async def next_due(self, policy: RunPolicy) -> timedelta | None:
        return await super().next_due(replace(policy, withheld=frozenset()))


class StumblesOverNul(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, **asked: Any) -> list[DueRun]:
        found = await super().due_runs(policy, **asked)
        if any("\\u0000" in self.tables(due.workspace).runs[due.run_id] for due in found):
            raise ValueError("\\u0000 cannot be converted to text")
        return found


class RunsDisabledRules(DictionaryStorage):
    @override
    def admits(
        self, policy: RunPolicy, tables: Tables, run: Run, free: dict[RunScope, str], blocked: dict[RunScope, str]
    ) -> bool:
        enabled = Tables(
            stored={
                name: stored.model_copy(
                    update={"rule": stored.rule.model_copy(update={"enabled": True})}
                ).model_dump_json()
                for name, stored in tables.stored_rules(None).items()
            }
        )
        return super().admits(policy, enabled, run, free, blocked)


# --- Leases


class GivesALeaseToAnybody(DictionaryTransaction):
    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        for name in names:
            self.tables.leases.pop(name, None)
        return await super().acquire(names, holder, ttl)


class HoldsALeaseTooLong(DictionaryTransaction):
    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        return await super().acquire(names, holder, ttl + timedelta(microseconds=1) if ttl else ttl)


class NeverExtends(DictionaryTransaction):
    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        held = await self.holders(names)
        mine = frozenset(name for name, by in held.items() if by == holder)
        return await super().acquire([name for name in names if name not in mine], holder, ttl) | mine


class RenewsWhatLapsed(DictionaryStorage):
    @override
    async def renew(self, keys: Collection[LeaseKey], holder: str, ttl: timedelta) -> frozenset[LeaseKey]:
        mine = [key for key in keys if self.tables(key.workspace).leases.get(key.name, ("",))[0] == holder]
        return await super().acquire(mine, holder, ttl)


class GivesBackForOthers(DictionaryTransaction):
    @override
    async def release(self, names: Collection[str], holder: str) -> None:
        for name in names:
            self.tables.leases.pop(name, None)


# --- Finding work


class PagesTwice(DictionaryStorage):
    @override
    async def workspaces(
        self, *, tenant_id: str | None = None, after: WorkspaceRef | None = None, limit: int | None = None
    ) -> list[WorkspaceRef]:
        found = await super().workspaces(tenant_id=tenant_id)
        return [one for one in found if after is None or one >= after][:limit]


class ForgetsWhomItTold(DictionaryStorage):
    """Names a workspace once for each place of its head."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.told: set[object] = set()

    @override
    async def behind(self, watch: Watch, *, limit: int) -> list[WorkspaceRef]:
        found = await super().behind(watch, limit=limit)
        fresh = [one for one in found if (one, self.tables(one).head(), *watch.definitions) not in self.told]
        self.told |= {(one, self.tables(one).head(), *watch.definitions) for one in fresh}
        return fresh


class LooksAtNoDefinition(DictionaryStorage):
    @override
    def is_behind(self, tables: Tables, watch: Watch) -> bool:
        known = {rule: progress.definition for rule, progress in tables.progress.items()}
        return super().is_behind(tables, replace(watch, definitions={**watch.definitions, **_known(watch, known)}))


def _known(watch: Watch, known: Mapping[str, str]) -> dict[str, str]:
    return {rule: definition for rule, definition in known.items() if rule in watch.definitions}


class LooksAtTheSlowestRule(DictionaryStorage):
    """Keeps one cursor for a workspace, which rules that nobody watches hold up."""

    @override
    def is_behind(self, tables: Tables, watch: Watch) -> bool:
        slowest = min((progress.cursor for progress in tables.progress.values()), default=0)
        return super().is_behind(tables, watch) or (bool(watch.definitions) and slowest < len(tables.log))


class LooksAtNoNewRule(DictionaryStorage):
    @override
    def is_behind(self, tables: Tables, watch: Watch) -> bool:
        known = {rule: text for rule, text in watch.definitions.items() if rule in tables.progress}
        return super().is_behind(tables, replace(watch, definitions=known))


class TicksEverywhere(DictionaryStorage):
    @override
    async def due_schedules(self, deadlines: Mapping[str, Deadline], *, limit: int) -> list[DueSchedule]:
        everywhere = {name: replace(deadline, workspaces=None) for name, deadline in deadlines.items()}
        return await super().due_schedules(everywhere, limit=limit)


class TicksTwice(DictionaryStorage):
    @override
    async def due_schedules(self, deadlines: Mapping[str, Deadline], *, limit: int) -> list[DueSchedule]:
        later = {
            name: replace(deadline, at=deadline.at + timedelta(microseconds=1)) for name, deadline in deadlines.items()
        }
        return await super().due_schedules(later, limit=limit)


# --- Workspaces that look alike


def mixes_up(alias: Callable[[WorkspaceRef], WorkspaceRef]) -> type[DictionaryStorage]:
    """A storage that takes some workspaces for one."""

    class MixesUp(DictionaryStorage):
        @override
        @asynccontextmanager
        async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
            async with super().transaction(alias(workspace)) as transaction:
                yield transaction

        @override
        def tables(self, workspace: WorkspaceRef) -> Tables:
            return super().tables(alias(workspace))

    return MixesUp


def in_lower_case(workspace: WorkspaceRef) -> WorkspaceRef:
    return WorkspaceRef(workspace.tenant_id.lower(), workspace.workspace_id.lower())


def without_spaces(workspace: WorkspaceRef) -> WorkspaceRef:
    return WorkspaceRef(workspace.tenant_id.strip(), workspace.workspace_id.strip())


def normalised(workspace: WorkspaceRef) -> WorkspaceRef:
    return WorkspaceRef(normalize("NFKC", workspace.tenant_id), normalize("NFKC", workspace.workspace_id))


def joined(workspace: WorkspaceRef) -> WorkspaceRef:
    tenant, _, name = f"{workspace.tenant_id}/{workspace.workspace_id}".rpartition("/")
    return WorkspaceRef(tenant.partition("/")[0], f"{tenant.partition('/')[2]}/{name}".lstrip("/"))


def cut(workspace: WorkspaceRef) -> WorkspaceRef:
    return WorkspaceRef(workspace.tenant_id[:254], workspace.workspace_id[:254])


def of_one_tenant(workspace: WorkspaceRef) -> WorkspaceRef:
    return replace(workspace, tenant_id=workspace.tenant_id.replace("another-tenant", "contract-tenant"))


# --- Subscriptions


class WakesNobody(DictionaryStorage):
    @override
    def commit(self, workspace: WorkspaceRef, tables: Tables) -> None:
        self.database.tables[workspace] = tables


class WakesTooEarly(DictionaryStorage):
    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        async with super().transaction(workspace) as transaction:
            yield transaction
            self.wakeups.announce([workspace])
            for _ in range(5):
                await asyncio.sleep(0)


class WakesItsOwnProcessOnly(DictionaryStorage):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(replace(database, wakeups=InProcessWakeups()), clock)


class WakesForLogsOnly(DictionaryStorage):
    @override
    def commit(self, workspace: WorkspaceRef, tables: Tables) -> None:
        grew = len(tables.log) > len(self.tables(workspace).log)
        self.database.tables[workspace] = tables
        if grew:
            self.wakeups.announce([workspace])
