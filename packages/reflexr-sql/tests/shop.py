"""What these tests publish, and the workspaces in which they do."""

from datetime import UTC, datetime, timedelta
from typing import Any

from reflexr.core import Draft, Event, RuleProgress, Run, SourceActor
from reflexr.workspace import Storage, Workspace, WorkspaceRef, Workspaces

REF = WorkspaceRef("acme", "shop")
TILL = SourceActor(name="till")
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class ShopEvent(Event, abstract=True, event_namespace="sqlshop"):
    """The shop's events."""


class Sold(ShopEvent):
    item: str


async def opened(storage: Storage, **options: Any) -> Workspace:
    return await Workspaces(storage, events=[Sold], **options).open(REF.tenant_id, REF.workspace_id, actor=TILL)


def draft(event_id: str, event_type: str = "sqlshop:sold", **fields: Any) -> Draft:
    return Draft(id=event_id, payload={"type": event_type, **fields}, actor=TILL, correlation_id=event_id)


def progress(rule: str, cursor: int, definition: str = "d1") -> RuleProgress:
    return RuleProgress(rule=rule, generation=1, cursor=cursor, definition=definition)


def run(run_id: str, rule: str = "sqlshop:restock", scope_key: str = "[]", seq: int = 1, **changes: Any) -> Run:
    return Run(
        id=run_id,
        rule=rule,
        generation=1,
        scope={},
        scope_key=scope_key,
        fired_seq=seq,
        fired_at=START,
        matched=(seq,),
        correlation_id="e1",
        depth=1,
        **changes,
    )


async def append(storage: Storage, *drafts: Draft, workspace: WorkspaceRef = REF) -> list[int]:
    async with storage.transaction(workspace) as transaction:
        return [envelope.seq for envelope in await transaction.append(drafts)]
