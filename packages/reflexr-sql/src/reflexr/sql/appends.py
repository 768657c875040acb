"""Appends that do nothing else, and so need neither a transaction around them nor its round trips.

PostgreSQL moves the head and inserts the events in one statement, in which each event gets its place and its time.
SQLite moves the head and inserts in a transaction of its own, as it is asked in no time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, override

from pydantic_core import to_json
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Select,
    TableValuedAlias,
    Update,
    bindparam,
    column,
    exists,
    extract,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy import cast as sql_cast

from reflexr.core import Draft, Envelope, stored_rule_of
from reflexr.sql.databases import Database
from reflexr.sql.errors import DatabaseBusyError, DuplicateKeyError
from reflexr.sql.logs import Logs, by_column, event_row, inserting_one, moving_head
from reflexr.sql.sessions import Session
from reflexr.sql.statements import (
    INTEGER,
    TEXT,
    Row,
    Statements,
    document,
    in_workspace,
    named,
    parameter,
    workspace_columns,
)
from reflexr.sql.tables import EVENTS, WORKSPACES
from reflexr.sql.values import key, moment
from reflexr.workspace import DuplicateEventIdError, WorkspaceRef


class Appends(ABC):
    """The statements of appends that do nothing else."""

    @abstractmethod
    async def append(
        self, database: Database, workspace: WorkspaceRef, drafts: Sequence[Draft], committed: Callable[[], None]
    ) -> list[Envelope] | None:
        """Appends to a workspace's log, and returns the envelopes, or `None` if it could not and appended nothing.

        That is where there is no such workspace yet, or others were faster or kept it for too long: it takes a
        transaction.

        Args:
            database: Where.
            workspace: The workspace.
            drafts: What to append, at least one, of which no two have one id.
            committed: What to do once it is committed, also for a caller that was cancelled meanwhile.

        Raises:
            DuplicateEventIdError: An id is in the log already. Nothing was appended.
            DatabaseUnavailableError: The connection was lost, so that nobody knows whether it was appended.
            SqlStorageError: What went wrong; nothing was appended.
        """


def appends_of(statements: Statements, logs: Logs) -> Appends:
    """Returns the statements for a kind of database."""
    return _InOneStatement(statements) if statements.is_postgresql else _RowByRow(statements, logs)


class _InOneStatement(Appends):
    def __init__(self, statements: Statements) -> None:
        self._given = statements.rows("given", event_id=TEXT)
        # Looked for first, as a server notes each violation of a key in its own log.
        taken = statements.one_for_each(
            self._given,
            EVENTS,
            in_workspace(EVENTS),
            EVENTS.c.event_id,
            last=(EVENTS.c.event_id, self._given.c["event_id"]),
        ).cte("taken")
        nowhere: ColumnElement[Any] = literal_column("NULL", INTEGER)
        appended = _appending(statements, where=~exists(select(taken.c.event_id)))
        self._append_given = statements(appended.union_all(select(nowhere, nowhere, taken.c.event_id)))
        # For ids that nobody gave. PostgreSQL would plan the other for no ids anew each time.
        self._append_fresh = statements(_appending(statements, where=true()))

    @override
    async def append(
        self, database: Database, workspace: WorkspaceRef, drafts: Sequence[Draft], committed: Callable[[], None]
    ) -> list[Envelope] | None:
        ids = [key(draft.id) for draft in drafts]
        given = [(one,) for one, draft in zip(ids, drafts, strict=True) if not draft.fresh]
        rules = [None if rule is None else key(rule) for rule in map(stored_rule_of, drafts)]
        parameters: dict[str, object] = {
            **named(workspace),
            **self._given(given),
            "ids": ids,
            "types": [key(draft.payload["type"]) for draft in drafts],
            # What is missing at the end of an array is NULL.
            "rules": rules if any(rules) else [],
            "envelopes": "\n".join(Draft.texts(drafts, workspace.workspace_id)),
            "number": len(drafts),
            "now": database.now(),
        }

        def answered(answer: Sequence[Row]) -> None:
            if answer and answer[0][0] is not None:
                committed()

        try:
            append = self._append_given if given else self._append_fresh
            answer = await database.once(append, parameters, answered)
        except (DuplicateKeyError, DatabaseBusyError):
            # Somebody was faster, or is at it. A transaction waits for it, whatever the isolation by default is.
            return None
        if taken := {key_of for _, _, key_of in answer if key_of is not None}:
            raise DuplicateEventIdError([draft.id for draft in drafts if key(draft.id) in taken])
        return _placed(drafts, workspace, *answer[0][:2]) if answer else None


class _RowByRow(Appends):
    def __init__(self, statements: Statements, logs: Logs) -> None:
        self._logs = logs
        now = parameter("now", INTEGER)
        latest = func.max(func.coalesce(WORKSPACES.c.head_ts, now), now)
        self._move = statements(_moving(latest).returning(WORKSPACES.c.head_seq, WORKSPACES.c.head_ts))
        self._insert = statements(inserting_one())

    @override
    async def append(
        self, database: Database, workspace: WorkspaceRef, drafts: Sequence[Draft], committed: Callable[[], None]
    ) -> list[Envelope] | None:
        names = named(workspace)
        # Written before others have to wait for it.
        texts = Draft.texts(drafts, workspace.workspace_id)
        envelopes: list[Envelope] = []

        async def move(session: Session) -> Sequence[Row]:
            # The time is told once the lock is held, not before the wait for it.
            return await session.fetch(self._move, {**names, "number": len(drafts), "now": database.now()})

        def appended() -> None:
            if envelopes:
                committed()

        try:
            async with database.transaction(move, appended) as (session, moved):
                for head in moved:
                    envelopes = _placed(drafts, workspace, *head)
                    ts = to_json(envelopes[0].ts).decode()
                    rows = [
                        event_row(one.seq, one, f'{{"seq":{one.seq},"ts":{ts},{text}')
                        for one, text in zip(envelopes, texts, strict=True)
                    ]
                    await session.execute_many(self._insert, [{**names, **by_column(row)} for row in rows])
        except DuplicateKeyError:
            found = await self._logs.find(database, names, [draft.id for draft in drafts])
            raise DuplicateEventIdError([draft.id for draft in drafts if draft.id in found]) from None
        except DatabaseBusyError:
            return None
        return envelopes or None


def _moving(ts: ColumnElement[int]) -> Update:
    return moving_head(WORKSPACES.c.head_seq + parameter("number", INTEGER), ts)


def _appending(statements: Statements, *, where: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Returns the statement that moves the head where a condition holds, and inserts the events behind it.

    It answers with the head, and with NULL for an id that was there.
    """
    new = _events()
    # Read once the row is there, not before the wait for it.
    clock = sql_cast(extract("epoch", func.clock_timestamp()) * 1_000_000, BigInteger)
    head_ts = WORKSPACES.c.head_ts
    moved = (
        _moving(func.greatest(head_ts, func.coalesce(parameter("now", INTEGER), clock)))
        .where(where)
        .returning(WORKSPACES.c.head_seq, head_ts, _text_of_time(head_ts).label("time"))
        .cte("moved")
    )
    seq = moved.c.head_seq - parameter("number", INTEGER) + new.c.number
    text = func.concat('{"seq":', seq, ',"ts":"', moved.c.time, '",', new.c.envelope)
    values = {
        "seq": seq,
        "event_id": new.c.event_id,
        "event_type": new.c.event_type,
        "rule": new.c.rule,
        "envelope": document(text),
    }
    inserted = (
        statements.insert(EVENTS)
        .from_select(
            ["tenant_id", "workspace_id", *values],
            select(*workspace_columns(), *values.values()).join_from(new, moved, true()),
        )
        .cte("inserted")
    )
    nobody: ColumnElement[Any] = literal_column("NULL", TEXT)
    return select(moved.c.head_seq, moved.c.head_ts, nobody.label("taken")).add_cte(inserted)


def _events() -> TableValuedAlias:
    """Returns the events to append: an array for each column, and one text of all the envelopes' lines.

    It takes the driver longer to hand over an array of long texts than PostgreSQL to split one.
    """
    arrays = [bindparam(name, type_=ARRAY(TEXT)) for name in ("ids", "types", "rules")]
    line_break: ColumnElement[Any] = literal_column("chr(10)")
    lines = func.string_to_array(parameter("envelopes", TEXT), line_break)
    columns = [column(name, TEXT) for name in ("event_id", "event_type", "rule", "envelope")]
    unpacked = func.unnest(*arrays, lines).table_valued(*columns, with_ordinality="number", name="new")
    return unpacked.render_derived()


def _text_of_time(ts: ColumnElement[int]) -> ColumnElement[str]:
    """Returns microseconds since 1970 as JSON has them, to the microsecond."""
    epoch: ColumnElement[Any] = literal_column("TIMESTAMP 'epoch'")
    second: ColumnElement[Any] = literal_column("INTERVAL '1 second'")
    microsecond: ColumnElement[Any] = literal_column("INTERVAL '1 microsecond'")
    # An interval is multiplied by a float, which holds no more than 53 bits exactly.
    million = literal_column("1000000", INTEGER)
    time: ColumnElement[Any] = epoch + ts // million * second + ts % million * microsecond
    return func.to_char(time, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')


def _placed(drafts: Sequence[Draft], workspace: WorkspaceRef, head_seq: int, head_ts: int) -> list[Envelope]:
    """Returns the envelopes of drafts that are the last of a log."""
    ts, first = moment(head_ts), head_seq - len(drafts) + 1
    return [
        Envelope.placed(draft, seq=seq, ts=ts, workspace_id=workspace.workspace_id)
        for seq, draft in enumerate(drafts, start=first)
    ]
