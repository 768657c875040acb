"""Storages that break one promise of logs or of values each."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast, override
from unicodedata import normalize

from reflexr.core import Draft, Envelope, RuleProgress
from reflexr.workspace import (
    Clock,
    DuplicateEventIdError,
    Head,
    LogWindow,
    WorkspaceRef,
)

from .dictionary_storage import Database, DictionaryStorage, DictionaryTransaction, Tables

# --- The log


class LeavesGaps(DictionaryStorage):
    """Takes places from a sequence that no rollback gives back."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.places: dict[WorkspaceRef, int] = {}

    @override
    def begin(self, workspace: WorkspaceRef, tables: Tables) -> DictionaryTransaction:
        return _Gapped(workspace, tables, self.clock(), self.places)


class _Gapped(DictionaryTransaction):
    def __init__(self, workspace: WorkspaceRef, tables: Tables, now: datetime, places: dict[WorkspaceRef, int]) -> None:
        super().__init__(workspace, tables, now)
        self.places = places

    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        known = self.tables.head().seq
        appended = await super().append(drafts)
        first = max(self.places.get(self.workspace, 0), known)
        self.places[self.workspace] = first + len(appended)
        moved = [one.model_copy(update={"seq": first + number}) for number, one in enumerate(appended, start=1)]
        self.tables.log[known:] = [one.to_json() for one in moved]
        return moved


class GoesBackInTime(DictionaryTransaction):
    @override
    def stamp(self, head: Head) -> datetime:
        return self.now


class StampsEachByItself(DictionaryTransaction):
    @override
    def stamp(self, head: Head) -> datetime:
        return super().stamp(head) + timedelta(microseconds=1)


class AppendsBeforeItRefuses(DictionaryTransaction):
    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        try:
            return await super().append(drafts)
        except DuplicateEventIdError as error:
            await super().append([draft for draft in drafts if draft.id not in error.ids])
            raise


class TakesADuplicateForTheFirst(DictionaryTransaction):
    """Says nothing of an id that is there, and appends it not."""

    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        return await super().append([draft for draft in drafts if draft.id not in self.tables.ids])


class TakesTwinsForOne(DictionaryTransaction):
    @override
    async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
        return await super().append(list({draft.id: draft for draft in drafts}.values()))


class IncludesTheEndOfAWindow(DictionaryStorage):
    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        before = None if window.before_seq is None else window.before_seq + 1
        return await super().read(workspace, replace(window, before_seq=before))


class LimitsBeforeItFilters(DictionaryStorage):
    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        found = await super().read(workspace, replace(window, types=None))
        return [one for one in found if window.types is None or one.event_type in window.types]


class ReadsTheLastBackwards(DictionaryStorage):
    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        found = await super().read(workspace, window)
        return found if window.last is None else found[::-1]


class TakesNoTypesForAll(DictionaryStorage):
    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        return await super().read(workspace, replace(window, types=window.types or None))


class ReadsWhatWasCommitted(DictionaryTransaction):
    def __init__(self, workspace: WorkspaceRef, tables: Tables, now: datetime) -> None:
        super().__init__(workspace, tables, now)
        self.committed = tables.copy()

    @override
    async def read(self, window: LogWindow) -> list[Envelope]:
        return self.committed.window(window) if self.tables else []


class ForgetsWhatWasArchived(DictionaryStorage):
    @override
    async def rule_history(self, workspace: WorkspaceRef, rule: str) -> list[Envelope]:
        found = await super().rule_history(workspace, rule)
        return [one for one in found if one.event_type != "reflexr:rule_archived"]


# --- Values


def changes(change: Callable[[object], object]) -> type[DictionaryTransaction]:
    """A transaction that changes the values of the payloads that it appends."""

    class Changes(DictionaryTransaction):
        @override
        async def append(self, drafts: Sequence[Draft]) -> list[Envelope]:
            payloads = [cast("dict[str, Any]", changed(draft.payload, change)) for draft in drafts]
            pairs = zip(drafts, payloads, strict=True)
            return await super().append([draft._replace(payload=payload) for draft, payload in pairs])

    return Changes


def changed(value: object, change: Callable[[object], object]) -> object:
    match value:
        case dict():
            items = cast("dict[str, object]", value).items()
            return change({key: changed(item, change) for key, item in items})
        case list():
            return [changed(item, change) for item in cast("list[object]", value)]
        case _:
            return change(value)


def large_integers_to_floats(value: object) -> object:
    return float(value) if isinstance(value, int) and 2**63 <= abs(value) < 2**65 else value


def whole_floats_to_integers(value: object) -> object:
    return int(value) if value == 1 and isinstance(value, float) else value


def no_negative_zero(value: object) -> object:
    return abs(value) if value == 0 and isinstance(value, float) else value


def sorted_keys(value: object) -> object:
    if not isinstance(value, dict) or "z" not in value:
        return cast("object", value)
    return dict(sorted(cast("dict[str, object]", value).items()))


def without_nul(value: object) -> object:
    return value.replace("\x00", "") if isinstance(value, str) else value


def composed(value: object) -> object:
    return normalize("NFC", value) if isinstance(value, str) else value


def without_empty_objects(value: object) -> object:
    return None if value == {} else value


class CutsMicroseconds(DictionaryTransaction):
    @override
    async def save_schedule_ticks(self, ticks: Mapping[str, datetime]) -> None:
        await super().save_schedule_ticks({name: at.replace(microsecond=0) for name, at in ticks.items()})


class SharesItsMappings(DictionaryStorage):
    @override
    async def progress(self, workspace: WorkspaceRef) -> dict[str, RuleProgress]:
        return self.tables(workspace).progress


class SharesItsEnvelopes(DictionaryStorage):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.read_before: dict[tuple[WorkspaceRef, str], Envelope] = {}

    @override
    async def find(self, workspace: WorkspaceRef, ids: Collection[str]) -> dict[str, Envelope]:
        return {one: self.shared(workspace, envelope) for one, envelope in (await super().find(workspace, ids)).items()}

    @override
    async def read(self, workspace: WorkspaceRef, window: LogWindow) -> list[Envelope]:
        return [self.shared(workspace, envelope) for envelope in await super().read(workspace, window)]

    def shared(self, workspace: WorkspaceRef, envelope: Envelope) -> Envelope:
        return self.read_before.setdefault((workspace, envelope.id), envelope)
