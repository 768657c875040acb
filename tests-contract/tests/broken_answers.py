"""Storages that break one promise each by what one method takes, answers or leaves out."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, override
from unicodedata import normalize

from pydantic import JsonValue

from reflexr.core import DeadLetter, Draft, Envelope, Needs, RuleProgress, Run, ScopeState, StoredRule
from reflexr.workspace import (
    Clock,
    DuplicateEventIdError,
    Head,
    InProcessWakeups,
    LogWindow,
    RunPolicy,
    RunQuery,
    RunScope,
    StateChanges,
    Transaction,
    Watch,
    WorkspaceRef,
)

from .dictionary_storage import Database, DictionaryStorage, DictionaryTransaction, Tables


def answering[Kind: type](kind: Kind, method: str, change: Callable[[Any], object]) -> Kind:
    """The same class, but that one method's answers are changed."""
    inner: Callable[..., Any] = getattr(kind, method)

    async def answer(self: object, *args: object, **kwargs: object) -> object:
        return change(await inner(self, *args, **kwargs))

    return _with(kind, method, answer)


def taking[Kind: type](kind: Kind, method: str, change: Callable[[Any], object]) -> Kind:
    """The same class, but that what one method takes last is changed."""
    inner: Callable[..., Any] = getattr(kind, method)

    async def take(self: object, *args: object, **kwargs: object) -> object:
        return await inner(self, *args[:-1], change(args[-1]), **kwargs)

    return _with(kind, method, take)


def _with[Kind: type](kind: Kind, method: str, function: Callable[..., object]) -> Kind:
    changed: Any = type(kind.__name__, (kind,), {method: function})
    return changed


class WithCommitted(DictionaryTransaction):
    """Remembers what was committed when it began."""

    def __init__(self, workspace: WorkspaceRef, tables: Tables, now: datetime) -> None:
        super().__init__(workspace, tables, now)
        self.committed = tables.copy()


class FindsCommittedRuns(WithCommitted):
    @override
    async def find_runs(self, query: RunQuery) -> list[Run]:
        return self.committed.find_runs(query) if self.tables else []


class GivesCommittedTurns(WithCommitted):
    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        turns = self.committed.turns(blocking=blocking) if self.tables else {}
        return {scope: run_id for scope, run_id in turns.items() if scope in scopes}


class ReadsCommittedPlaces(WithCommitted):
    @override
    async def read_seqs(self, seqs: Collection[int]) -> dict[int, Envelope]:
        return {one.seq: one for one in self.committed.envelopes() if one.seq in seqs and self.tables}


class StandsAtTheCommittedHead(WithCommitted):
    @property
    @override
    def head(self) -> Head:
        return self.committed.head()


class Races(DictionaryStorage):
    """Reads, waits for others, and writes."""

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        self.database.locks[workspace] = asyncio.Lock()
        async with super().transaction(workspace) as transaction:
            await asyncio.sleep(0)
            yield transaction


class KeepsTheLockOfACancelledReader(DictionaryStorage):
    @override
    async def progress(self, workspace: WorkspaceRef) -> dict[str, RuleProgress]:
        await self.database.locks[workspace].acquire()
        await asyncio.sleep(0)
        self.database.locks[workspace].release()
        return await super().progress(workspace)


class RemembersWhatItRead(DictionaryStorage):
    """Never looks again at what only others change."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.read_before: dict[WorkspaceRef, dict[str, StoredRule]] = {}

    @override
    async def stored_rules(
        self, workspace: WorkspaceRef, names: Collection[str] | None = None
    ) -> dict[str, StoredRule]:
        if names is None and self.read_before.get(workspace):
            return self.read_before[workspace]
        found = await super().stored_rules(workspace, names)
        if names is None:
            self.read_before[workspace] = found
        return found

    @override
    def commit(self, workspace: WorkspaceRef, tables: Tables) -> None:
        self.read_before.clear()
        super().commit(workspace, tables)


class FindsWorkspacesByTheirCursors(DictionaryStorage):
    @override
    async def workspaces(
        self, *, tenant_id: str | None = None, after: WorkspaceRef | None = None, limit: int | None = None
    ) -> list[WorkspaceRef]:
        found = await super().workspaces(tenant_id=tenant_id, after=after, limit=limit)
        return found or [workspace for workspace, _ in self.database.cursors]


class LooksLikeTheName(DictionaryStorage):
    """Takes a rule's name for a pattern."""

    @override
    async def rule_history(self, workspace: WorkspaceRef, rule: str) -> list[Envelope]:
        pattern = re.escape(rule).replace("_", ".")
        envelopes = self.tables(workspace).envelopes()
        return [one for one in envelopes if re.fullmatch(pattern, str(one.payload.get("rule")))]


class HasOneNameForManyCursors(DictionaryStorage):
    @override
    async def cursor(self, workspace: WorkspaceRef, name: str) -> int:
        names = {known for _, known in self.database.cursors if known == name.strip().lower()}
        return max([await super().cursor(workspace, known) for known in names], default=0)


class NeverGoesBack(DictionaryStorage):
    """Remembers how far each rule ever came."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.furthest: dict[tuple[int, str], int] = {}

    @override
    def commit(self, workspace: WorkspaceRef, tables: Tables) -> None:
        super().commit(workspace, tables)
        for rule, progress in tables.progress.items():
            place = (hash(workspace), rule)
            self.furthest[place] = max(progress.cursor, self.furthest.get(place, 0))

    @override
    async def behind(self, watch: Watch, *, limit: int) -> list[WorkspaceRef]:
        found = await super().behind(watch, limit=limit)
        return [one for one in found if not self.was_done(one, watch)]

    def was_done(self, workspace: WorkspaceRef, watch: Watch) -> bool:
        tables = self.tables(workspace)
        reset = [rule for rule in watch.definitions if (known := tables.progress.get(rule)) and known.generation > 1]
        return any(self.furthest.get((hash(workspace), rule), 0) >= len(tables.log) for rule in reset)


class IsDoneOneEarly(DictionaryStorage):
    @override
    def is_behind(self, tables: Tables, watch: Watch) -> bool:
        moved = {
            rule: progress.moved(progress.cursor + 1 if progress.cursor else 0)
            for rule, progress in tables.progress.items()
        }
        return super().is_behind(replace(tables, progress=moved), watch)


class IsNeverDoneWithWhatWasStored(DictionaryStorage):
    """Takes a watched rule for a stored one wherever one of its name was ever stored."""

    @override
    def is_behind(self, tables: Tables, watch: Watch) -> bool:
        return super().is_behind(tables, watch) or not watch.definitions.keys().isdisjoint(tables.stored)


def with_stored(change: Callable[[StoredRule], StoredRule]) -> type[DictionaryStorage]:
    """A storage that takes stored rules for other than they are when it looks for work."""

    def changed(tables: Tables) -> Tables:
        rules = tables.stored_rules(tables.stored)
        return replace(tables, stored={name: change(rule).model_dump_json() for name, rule in rules.items()})

    class WithStored(DictionaryStorage):
        @override
        def is_behind(self, tables: Tables, watch: Watch) -> bool:
            return super().is_behind(changed(tables), watch)

        @override
        def admits(
            self, policy: RunPolicy, tables: Tables, run: Run, free: dict[RunScope, str], blocked: dict[RunScope, str]
        ) -> bool:
            return super().admits(policy, changed(tables), run, free, blocked)

    return WithStored


def active(stored: StoredRule) -> StoredRule:
    return stored.model_copy(update={"status": "active"})


def enabled(stored: StoredRule) -> StoredRule:
    return stored.model_copy(update={"rule": stored.rule.model_copy(update={"enabled": True})})


class StoresForEverybody(DictionaryStorage):
    @override
    def admits(
        self, policy: RunPolicy, tables: Tables, run: Run, free: dict[RunScope, str], blocked: dict[RunScope, str]
    ) -> bool:
        everybodys = {name: text for one in self.database.tables.values() for name, text in one.stored.items()}
        return super().admits(policy, replace(tables, stored=everybodys), run, free, blocked)


class AdmitsEverythingByDefault(DictionaryStorage):
    @override
    def admits(
        self, policy: RunPolicy, tables: Tables, run: Run, free: dict[RunScope, str], blocked: dict[RunScope, str]
    ) -> bool:
        return policy == RunPolicy() or super().admits(policy, tables, run, free, blocked)


class RunsWhatWasSkipped(DictionaryStorage):
    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        return run.fired_at if run.status == "skipped" else super().starts(tables, run)


class PollsAllTheTime(InProcessWakeups):
    @property
    @override
    def poll_interval(self) -> timedelta | None:
        return timedelta()


class NeverSleeps(DictionaryStorage):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(replace(database, wakeups=PollsAllTheTime()), clock)


class ReleasesWhenItCommits(DictionaryTransaction):
    def __init__(self, workspace: WorkspaceRef, tables: Tables, now: datetime) -> None:
        super().__init__(workspace, tables, now)
        self.released: set[str] = set()

    @override
    async def release(self, names: Collection[str], holder: str) -> None:
        await super().release(names, holder)
        self.released |= set(names)

    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        return await super().acquire([name for name in names if name not in self.released], holder, ttl)


class NormalisesLeases(DictionaryTransaction):
    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        got = await super().acquire([normalize("NFC", name) for name in names], holder, ttl)
        return frozenset(name for name in names if normalize("NFC", name) in got)


class LimitedTo100(DictionaryTransaction):
    """Fails where a call takes more than 100 items, as a statement with a variable for each would."""

    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        return await super().append(_few(drafts))

    @override
    async def add_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> None:
        await super().add_dead_letters(_few(dead_letters))

    @override
    async def acquire(self, names: Collection[str], holder: str, ttl: timedelta) -> frozenset[str]:
        return await super().acquire(_few(names), holder, ttl)


def _few[Items: Collection[Any]](items: Items) -> Items:
    if len(items) > 100:
        raise OverflowError(f"too many variables: {len(items)}")
    return items


class TellsTheTimeAnew(DictionaryTransaction):
    @property
    @override
    def now(self) -> datetime:
        self._now += timedelta(microseconds=1)
        return self._now


class SlowsDown(DictionaryTransaction):
    @override
    def stamp(self, head: Head) -> datetime:
        return self.now - timedelta(seconds=1) if head.seq > 3 else super().stamp(head)


class NamesAnotherWorkspace(DictionaryTransaction):
    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        known = len(self.tables.log)
        appended = await super().append(drafts)
        moved = [one.model_copy(update={"workspace_id": "workspace"}) for one in appended]
        self.tables.log[known:] = [one.to_json() for one in moved]
        return moved


class AppendsNoNothing(DictionaryTransaction):
    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        first, *others = await super().append(drafts)
        return [first, *others]


class IgnoresCase(DictionaryTransaction):
    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        known = {one.lower() for one in self.tables.ids}
        if twice := [draft.id for draft in drafts if draft.id.lower() in known and draft.id not in self.tables.ids]:
            raise DuplicateEventIdError(twice)
        if len({draft.id.lower() for draft in drafts}) < len({draft.id for draft in drafts}):
            raise DuplicateEventIdError([draft.id for draft in drafts])
        return await super().append(drafts)


class WritesWhenItCommits(DictionaryTransaction):
    """Holds on to what it was given until then."""

    def __init__(self, workspace: WorkspaceRef, tables: Tables, now: datetime) -> None:
        self.given: list[tuple[int, Draft]] = []
        super().__init__(workspace, tables, now)

    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        appended = await super().append(drafts)
        self.given += [(one.seq, draft) for one, draft in zip(appended, drafts, strict=True)]
        return appended

    @property
    @override
    def tables(self) -> Tables:
        tables = super().tables
        for seq, draft in self.given:
            envelope = Envelope.model_validate_json(tables.log[seq - 1])
            tables.log[seq - 1] = envelope.model_copy(update={"payload": draft.payload}).to_json()
        return tables


class ForgetsWhatItClearedAndSaved(DictionaryTransaction):
    def __init__(self, workspace: WorkspaceRef, tables: Tables, now: datetime) -> None:
        super().__init__(workspace, tables, now)
        self.cleared: set[str] = set()

    @override
    async def clear_states(self, rules: Collection[str]) -> None:
        self.cleared |= set(rules)
        await super().clear_states(rules)

    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        await super().change_states({rule: change for rule, change in changes.items() if rule not in self.cleared})


class DropsForEveryRule(DictionaryTransaction):
    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        rules = {rule for rule, _ in self.tables.states} - changes.keys()
        for change in changes.values():
            await super().change_states(dict.fromkeys(rules, StateChanges(dropped=change.dropped)))
        await super().change_states(changes)


class KeepsTheFirstState(DictionaryTransaction):
    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        known = self.tables.states.copy()
        await super().change_states(changes)
        self.tables.states.update((key, text) for key, text in known.items() if key in self.tables.states)


class CutsLongKeys(DictionaryTransaction):
    @override
    async def change_states(self, changes: Mapping[str, StateChanges]) -> None:
        await super().change_states(
            {
                rule: replace(change, saved={key[:4_000]: state for key, state in change.saved.items()})
                for rule, change in changes.items()
            }
        )


class LeavesOutRulesWithoutStates(DictionaryTransaction):
    @override
    async def states(self, needs: Mapping[str, Needs]) -> dict[str, dict[str, ScopeState]]:
        return {rule: states for rule, states in (await super().states(needs)).items() if states}


class KeepsTheFurthestProgress(DictionaryTransaction):
    @override
    async def save_progress(self, progress: Collection[RuleProgress]) -> None:
        known = self.tables.progress
        further = [one for one in progress if one.rule not in known or one.cursor >= known[one.rule].cursor]
        await super().save_progress(further)


class ReadsAllProgress(DictionaryTransaction):
    @override
    async def progress(self, rules: Collection[str] | None = None) -> dict[str, RuleProgress]:
        return await super().progress()


class KeepsTheFirstOutput(DictionaryTransaction):
    @override
    async def save_runs(self, runs: Collection[Run]) -> None:
        known = await self.runs([run.id for run in runs])
        await super().save_runs(
            [run.model_copy(update={"output": known[run.id].output}) if run.id in known else run for run in runs]
        )


class PutsSavedRulesLast(DictionaryTransaction):
    @override
    async def save_stored_rules(self, rules: Collection[StoredRule]) -> None:
        await super().save_stored_rules(rules)
        for rule in rules:
            self.tables.stored[rule.name] = self.tables.stored.pop(rule.name)


class ForgetsWhatRuns(DictionaryTransaction):
    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        runs = await self.find_runs(RunQuery())
        waiting = [run.model_copy(update={"status": "pending"}) if run.unfinished else run for run in runs]
        tables = Tables(runs={run.id: run.model_dump_json() for run in waiting})
        return {scope: one for scope, one in tables.turns(blocking=blocking).items() if scope in scopes}


class GivesEveryScopeATurn(DictionaryTransaction):
    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        return dict.fromkeys(scopes, "") | await super().first_runs(scopes, blocking=blocking)


class TakesScopesForOne(DictionaryTransaction):
    """Ignores case."""

    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        turns = {self.folded(scope): one for scope, one in reversed(self.tables.turns(blocking=blocking).items())}
        return {scope: turns[self.folded(scope)] for scope in scopes if self.folded(scope) in turns}

    def folded(self, scope: RunScope) -> RunScope:
        return replace(scope, scope_key=scope.scope_key.lower())


def without_empty_windows(window: LogWindow) -> LogWindow:
    return replace(window, before_seq=window.before_seq or None)


def without_traces(drafts: Sequence[Draft]) -> list[Draft]:
    return [draft._replace(traceparent=None) for draft in drafts]


def with_short_ids(drafts: Sequence[Draft]) -> list[Draft]:
    return [draft._replace(id=draft.id[:200]) for draft in drafts]


def by_id(drafts: Sequence[Draft]) -> list[Draft]:
    return sorted(drafts, key=lambda draft: draft.id)


def of_known_types(drafts: Sequence[Draft]) -> Sequence[Draft]:
    if any(draft.payload["type"].startswith("nobody:") for draft in drafts):
        raise LookupError("no class accepts this")
    return drafts


def shallow(drafts: Sequence[Draft]) -> list[Draft]:
    """Cuts off what nests deeper than 64."""
    return [draft._replace(payload={key: _cut(value, 64) for key, value in draft.payload.items()}) for draft in drafts]


def _cut(value: JsonValue, depth: int) -> JsonValue:
    if not isinstance(value, list) or len(value) != 1:
        return value
    return [_cut(value[0], depth - 1)] if depth else None


def a_moment_later(envelopes: list[Envelope]) -> list[Envelope]:
    return [one.model_copy(update={"ts": one.ts + timedelta(microseconds=1)}) for one in envelopes]


def without_steps(runs: Collection[Run]) -> list[Run]:
    return [run.model_copy(update={"step": None}) for run in runs]


def without_firings(changes: Mapping[str, StateChanges]) -> dict[str, StateChanges]:
    return {
        rule: replace(change, saved={key: state._replace(fired=()) for key, state in change.saved.items()})
        for rule, change in changes.items()
    }


def without_provenance(rules: Collection[StoredRule]) -> list[StoredRule]:
    return [rule.model_copy(update={"provenance": {}}) for rule in rules]


def with_short_errors(dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    return [one.model_copy(update={"error": one.error[:1_000]}) for one in dead_letters]


def loud_again(progress: Collection[RuleProgress]) -> list[RuleProgress]:
    return [replace(one, silent_through=0) for one in progress]


def in_another_zone(now: datetime) -> datetime:
    return now.astimezone(timezone(timedelta(hours=1)))


def of_one_tenant(found: list[Any]) -> list[Any]:
    return [due for due in found if due.workspace.tenant_id == found[0].workspace.tenant_id]


def in_order_of_name(found: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(found.items()))


def wild(workspace: WorkspaceRef) -> WorkspaceRef:
    """Takes what stands for any character for the character that the contract tries."""
    names = (re.sub(r"(?<=\dx)[%_*?]$", "y", name) for name in (workspace.tenant_id, workspace.workspace_id))
    return WorkspaceRef(*names)


def without_another(workspace: WorkspaceRef) -> WorkspaceRef:
    return replace(workspace, workspace_id=workspace.workspace_id.replace("another-workspace", "contract-workspace"))


def without_others(workspace: WorkspaceRef) -> WorkspaceRef:
    return replace(workspace, workspace_id=re.sub("^another$", "contract-workspace", workspace.workspace_id))


def no_letters(dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    return []


def before_the_beginning(seq: int) -> int:
    return seq or -1


def with_a_time(head: Head) -> Head:
    return replace(head, ts=head.ts or datetime.min.replace(tzinfo=UTC))


def half_of_it(wait: timedelta | None) -> timedelta | None:
    return None if wait is None else wait / 2


def at_least_a_moment(wait: timedelta | None) -> timedelta | None:
    return None if wait is None else max(wait, timedelta(milliseconds=1))


def one_at_least[Found](found: Found) -> Found:
    if not found:
        raise KeyError("there is none")
    return found


def nobody(_: str) -> str:
    return "nobody"
