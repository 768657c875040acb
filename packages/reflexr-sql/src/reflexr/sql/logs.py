"""The log: appending to it and reading windows of it."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Insert, Select, Update, exists, insert, select, union_all, update
from sqlalchemy.types import TypeEngine

from reflexr.core import Draft, Envelope, stored_rule_of
from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import (
    INTEGER,
    TEXT,
    Parameters,
    Row,
    Statement,
    Statements,
    document,
    from_set,
    in_workspace,
    in_workspace_of,
    parameter,
    text_of,
    workspace_columns,
)
from reflexr.sql.tables import EVENTS, WORKSPACES
from reflexr.sql.values import MAX_INTEGER, key, read_all, within
from reflexr.sql.writing import Writing
from reflexr.workspace import LogWindow

EVENT_COLUMNS: Final[dict[str, TypeEngine[Any]]] = {
    "seq": INTEGER,
    "event_id": TEXT,
    "event_type": TEXT,
    "rule": TEXT,
    "envelope": TEXT,
}
"""What is written of an event beside its workspace: see `event_row`."""

_MOST_TYPES: Final = 50
"""Of how many event types each is read by its own range of the index; of more, all types are read and filtered."""


class Logs:
    """The statements on logs."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._new = statements.rows("events", **EVENT_COLUMNS)
        self._insert = statements(self._inserting(statements))
        if statements.is_postgresql:
            self._insert_new = statements(self._inserting_new(statements))
        envelope = text_of(EVENTS.c.envelope).label("envelope")
        self._ids = statements.rows_of_workspace("ids", event_id=TEXT)
        self._find = statements(
            statements.one_for_each(
                self._ids,
                EVENTS,
                in_workspace_of(EVENTS, self._ids),
                envelope,
                last=(EVENTS.c.event_id, self._ids.c["event_id"]),
            )
        )
        self._seqs = statements.rows_of_workspace("seqs", seq=INTEGER)
        self._by_seq = statements(
            statements.one_for_each(
                self._seqs,
                EVENTS,
                in_workspace_of(EVENTS, self._seqs),
                envelope,
                last=(EVENTS.c.seq, self._seqs.c["seq"]),
            )
        )
        self._history = statements(
            select(text_of(EVENTS.c.envelope))
            .where(in_workspace(EVENTS), EVENTS.c.rule == parameter("of_rule", TEXT))
            .order_by(EVENTS.c.seq)
        )
        self._types = statements.rows("types", event_type=TEXT)
        self._windows: dict[tuple[int | None, bool], Statement] = {}

    async def append(self, writing: Writing, workspace: Parameters, rows: Sequence[Row]) -> None:
        """Appends events, of which each row is an `event_row`, and whose ids are not in the log."""
        if self._statements.is_postgresql:
            await writing.write(self._insert, {**workspace, **self._new(rows)})
        else:
            await writing.session.execute_many(self._insert, [{**workspace, **by_column(row)} for row in rows])

    async def append_new(self, writing: Writing, workspace: Parameters, rows: Sequence[Row]) -> set[str]:
        """Does as `append` unless ids are in the log already, and returns these as an index holds them.

        PostgreSQL alone, together with all that was kept back.
        """
        return {one for (one,) in await writing.finish(self._insert_new, {**workspace, **self._new(rows)})}

    async def find(self, fetcher: Fetcher, workspace: Parameters, ids: Collection[str]) -> dict[str, Envelope]:
        """Returns the envelopes with these ids, by id."""
        if not ids:
            return {}
        rows = await fetcher.fetch(self._find, self._ids([(key(one),) for one in set(ids)], workspace))
        return {envelope.id: envelope for envelope in _envelopes(rows)}

    async def read(self, fetcher: Fetcher, workspace: Parameters, window: LogWindow) -> list[Envelope]:
        """Returns the envelopes of a window, in order."""
        types = None if window.types is None else [key(one) for one in window.types]
        limit = window.limit if window.last is None else window.last
        before = MAX_INTEGER if window.before_seq is None else within(window.before_seq)
        if types == [] or limit == 0 or before <= window.after_seq:
            return []
        parameters: dict[str, object] = {
            **workspace,
            "after": within(window.after_seq),
            "before": before,
            "at_most": MAX_INTEGER if limit is None else within(limit),
        }
        if types is not None:
            parameters |= {f"type_{number}": one for number, one in enumerate(types)}
            parameters |= self._types([(one,) for one in types])
        rows = await fetcher.fetch(self._window(types, backwards=window.last is not None), parameters)
        envelopes = _envelopes(rows)
        return envelopes if window.last is None else envelopes[::-1]

    async def read_seqs(self, fetcher: Fetcher, workspace: Parameters, seqs: Collection[int]) -> dict[int, Envelope]:
        """Returns the envelopes at these places, by place."""
        if not seqs:
            return {}
        rows = await fetcher.fetch(self._by_seq, self._seqs([(within(seq),) for seq in set(seqs)], workspace))
        return {envelope.seq: envelope for envelope in _envelopes(rows)}

    async def rule_history(self, fetcher: Fetcher, workspace: Parameters, rule: str) -> list[Envelope]:
        """Returns the envelopes that are versions of a stored rule, in order."""
        return _envelopes(await fetcher.fetch(self._history, {**workspace, "of_rule": key(rule)}))

    def _inserting(self, statements: Statements) -> Insert:
        """Returns the statement that inserts events.

        SQLite's inserts one: it takes longer to parse a set of rows than to insert them.
        """
        if not statements.is_postgresql:
            return inserting_one()
        values = {**self._new.c, "envelope": document(self._new.c["envelope"])}
        return statements.insert(EVENTS).from_select(
            ["tenant_id", "workspace_id", *values], from_set(*workspace_columns(), *values.values())
        )

    def _inserting_new(self, statements: Statements) -> Select[*tuple[Any, ...]]:
        taken = statements.one_for_each(
            self._new,
            EVENTS,
            in_workspace(EVENTS),
            EVENTS.c.event_id,
            last=(EVENTS.c.event_id, self._new.c["event_id"]),
        ).cte("taken")
        values = {**self._new.c, "envelope": document(self._new.c["envelope"])}
        inserted = statements.insert(EVENTS).from_select(
            ["tenant_id", "workspace_id", *values],
            select(*workspace_columns(), *values.values()).where(~exists(select(taken.c.event_id))),
        )
        return select(taken.c.event_id).add_cte(inserted.cte("inserted"))

    def _window(self, types: Collection[str] | None, *, backwards: bool) -> Statement:
        """Returns the statement that reads windows of so many types, from their beginning or from their end."""
        shape = (None if types is None else min(len(types), _MOST_TYPES + 1), backwards)
        if (statement := self._windows.get(shape)) is None:
            statement = self._windows[shape] = self._statements(self._reading(*shape))
        return statement

    def _reading(self, types: int | None, backwards: bool) -> Select[*tuple[Any, ...]]:
        envelope = text_of(EVENTS.c.envelope).label("envelope")
        window = (
            select(EVENTS.c.seq, envelope)
            .where(
                in_workspace(EVENTS),
                EVENTS.c.seq > parameter("after", INTEGER),
                EVENTS.c.seq < parameter("before", INTEGER),
            )
            .order_by(EVENTS.c.seq.desc() if backwards else EVENTS.c.seq)
            .limit(parameter("at_most", INTEGER))
        )
        if types is None:
            return window.with_only_columns(envelope)
        if types > _MOST_TYPES:
            return window.with_only_columns(envelope).where(self._types.holds(EVENTS.c.event_type, "event_type"))
        ranges = [
            window.where(EVENTS.c.event_type == parameter(f"type_{number}", TEXT)).subquery(f"range_{number}")
            for number in range(types)
        ]
        found = union_all(*(select(one.c.seq, one.c.envelope) for one in ranges)).subquery("found")
        return (
            select(found.c.envelope)
            .order_by(found.c.seq.desc() if backwards else found.c.seq)
            .limit(parameter("at_most", INTEGER))
        )


def event_row(seq: int, event: Envelope | Draft, text: str) -> Row:
    """Returns what is written of an event: its place, what it is found by, and its text."""
    rule = stored_rule_of(event)
    return seq, key(event.id), key(event.payload["type"]), None if rule is None else key(rule), text


def by_column(row: Row) -> dict[str, object]:
    """Returns what is written of an event as parameters."""
    return dict(zip(EVENT_COLUMNS, row, strict=True))


def moving_head(seq: ColumnElement[int], ts: ColumnElement[int]) -> Update:
    """Returns the statement that moves a log's head, after which no rule is done with the log."""
    return (
        update(WORKSPACES)
        .where(in_workspace(WORKSPACES))
        .values(head_seq=seq, head_ts=ts, settled=WORKSPACES.c.unsettled, has_log=True)
    )


def inserting_one() -> Insert:
    """Returns the statement that inserts one event."""
    tenant, workspace = workspace_columns()
    values = {name: parameter(name, kind) for name, kind in EVENT_COLUMNS.items()}
    return insert(EVENTS).values(tenant_id=tenant, workspace_id=workspace, **values).inline()


def _envelopes(rows: Sequence[Row]) -> list[Envelope]:
    return read_all(Envelope, rows)
