"""Storages that break one promise of an append alone each, and what exactly that is noticed by."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import override

from reflexr.core import Draft, Envelope
from reflexr.workspace import Clock, DuplicateEventIdError, Watch, WorkspaceRef

from .broken import Broken
from .dictionary_storage import Database, DictionaryStorage, Tables


class TurnsRound(DictionaryStorage):
    @override
    async def append(self, workspace: WorkspaceRef, drafts: Sequence[Draft]) -> list[Envelope]:
        twins = len({draft.id for draft in drafts}) < len(drafts)
        return (await super().append(workspace, drafts if twins else drafts[::-1]))[::-1]


class RefusesNothing(DictionaryStorage):
    @override
    async def append(self, workspace: WorkspaceRef, drafts: Sequence[Draft]) -> list[Envelope]:
        if not drafts:
            raise DuplicateEventIdError([])
        return await super().append(workspace, drafts)


class ForgetsTheCause(DictionaryStorage):
    @override
    async def append(self, workspace: WorkspaceRef, drafts: Sequence[Draft]) -> list[Envelope]:
        return await super().append(workspace, [draft._replace(causation=None) for draft in drafts])


class LeavesOutDuplicates(DictionaryStorage):
    @override
    async def append(self, workspace: WorkspaceRef, drafts: Sequence[Draft]) -> list[Envelope]:
        known = self.tables(workspace).ids
        fresh = {draft.id: draft for draft in drafts if draft.id not in known}
        return await super().append(workspace, list(fresh.values()))


class WaitsForNobody(DictionaryStorage):
    @override
    async def append(self, workspace: WorkspaceRef, drafts: Sequence[Draft]) -> list[Envelope]:
        return await self.append_alone(workspace, self.tables(workspace), drafts)


class LooksBeforeItWaits(DictionaryStorage):
    """Works on what it read before another append, whose events are lost."""

    @override
    async def append(self, workspace: WorkspaceRef, drafts: Sequence[Draft]) -> list[Envelope]:
        async with self.database.locks[workspace]:
            tables = self.tables(workspace)
        await asyncio.sleep(0)
        async with self.database.locks[workspace]:
            return await self.append_alone(workspace, tables, drafts)


class WaitsForItsOwn(DictionaryStorage):
    """Holds a workspace where the other storages on the data do not look."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.locks: defaultdict[WorkspaceRef, asyncio.Lock] = defaultdict(asyncio.Lock)

    @override
    async def append(self, workspace: WorkspaceRef, drafts: Sequence[Draft]) -> list[Envelope]:
        async with self.locks[workspace]:
            async with self.database.locks[workspace]:
                tables = self.tables(workspace)
            await asyncio.sleep(0)
            async with self.database.locks[workspace]:
                return await self.append_alone(workspace, tables, drafts)


class TellsTheTimeOfNow(DictionaryStorage):
    @override
    async def append_alone(self, workspace: WorkspaceRef, tables: Tables, drafts: Sequence[Draft]) -> list[Envelope]:
        appended = await super().append_alone(workspace, tables, drafts)
        moved = [one.model_copy(update={"ts": self.clock()}) for one in appended]
        self.tables(workspace).log[len(tables.log) :] = [one.to_json() for one in moved]
        return moved


class IsDoneWithIt(DictionaryStorage):
    """Takes what was appended alone for seen by every rule."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.alone: dict[int, int] = {}

    @override
    async def append_alone(self, workspace: WorkspaceRef, tables: Tables, drafts: Sequence[Draft]) -> list[Envelope]:
        appended = await super().append_alone(workspace, tables, drafts)
        self.alone[len(tables.log)] = len(appended)
        return appended

    @override
    def is_behind(self, tables: Tables, watch: Watch) -> bool:
        progress = {
            rule: one.moved(one.cursor + self.alone.get(one.cursor, 0)) if one.cursor else one
            for rule, one in tables.progress.items()
        }
        return super().is_behind(replace(tables, progress=progress), watch)


class KeepsNoHistoryOfIt(DictionaryStorage):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.alone: set[str] = set()

    @override
    async def append_alone(self, workspace: WorkspaceRef, tables: Tables, drafts: Sequence[Draft]) -> list[Envelope]:
        self.alone |= {draft.id for draft in drafts}
        return await super().append_alone(workspace, tables, drafts)

    @override
    async def rule_history(self, workspace: WorkspaceRef, rule: str) -> list[Envelope]:
        return [one for one in await super().rule_history(workspace, rule) if one.id not in self.alone]


class WakesNobody(DictionaryStorage):
    @override
    async def append_alone(self, workspace: WorkspaceRef, tables: Tables, drafts: Sequence[Draft]) -> list[Envelope]:
        silent = DictionaryStorage(Database(), self.clock)
        silent.database.tables[workspace] = tables
        appended = await silent.append_alone(workspace, tables, drafts)
        self.database.tables[workspace] = silent.tables(workspace)
        return appended


class AppendsOneByOne(DictionaryStorage):
    @override
    async def append_alone(self, workspace: WorkspaceRef, tables: Tables, drafts: Sequence[Draft]) -> list[Envelope]:
        appended = await super().append_alone(workspace, tables, drafts)
        log = self.tables(workspace).log
        rest = log[len(tables.log) + 1 :]
        del log[len(tables.log) + 1 :]
        for one in rest:
            await asyncio.sleep(0)
            log.append(one)
        return appended


BROKEN_APPENDS = (
    Broken(
        "turns an append round",
        TurnsRound,
        "an_append_alone_is_what_a_transaction_appends",
        "an_append_alone_has_the_time_of_the_clock_and_never_goes_back",
        "an_append_alone_refuses_ids_that_are_there",
        "appends_alone_that_come_together_leave_no_gap",
    ),
    Broken("refuses to append nothing", RefusesNothing, "an_append_of_nothing_alone_does_nothing"),
    Broken("forgets the cause of an append", ForgetsTheCause, "an_append_alone_keeps_every_value"),
    Broken(
        "leaves out the duplicates of an append",
        LeavesOutDuplicates,
        "an_append_alone_refuses_ids_that_are_there",
        "appends_alone_that_come_together_leave_no_gap",
        "appends_alone_through_two_storages_share_one_order",
    ),
    Broken("appends without waiting", WaitsForNobody, "an_append_alone_waits_for_the_transaction_before_it"),
    Broken(
        "looks before it waits to append",
        LooksBeforeItWaits,
        "appends_alone_that_come_together_leave_no_gap",
        "appends_alone_through_two_storages_share_one_order",
    ),
    Broken("waits for its own appends", WaitsForItsOwn, "appends_alone_through_two_storages_share_one_order"),
    Broken(
        "appends at the time of now",
        TellsTheTimeOfNow,
        "an_append_alone_has_the_time_of_the_clock_and_never_goes_back",
    ),
    Broken("is done with an append", IsDoneWithIt, "an_append_alone_leaves_its_workspace_behind"),
    Broken("keeps no history of an append", KeepsNoHistoryOfIt, "an_append_alone_is_part_of_a_rules_history"),
    Broken("wakes nobody after an append", WakesNobody, "an_append_alone_wakes_those_who_listen"),
    Broken(
        "appends one by one",
        AppendsOneByOne,
        "an_append_alone_that_is_cancelled_at_any_await_is_whole_or_nothing",
    ),
)
