"""The log: appending to it and reading windows of it."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Select, select, union_all, update

from reflexr.core import Envelope, stored_rule_of
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
from reflexr.sql.values import MAX_INTEGER, key, micros, within
from reflexr.workspace import LogWindow

_MOST_TYPES: Final = 50
"""Of how many event types each is read by its own range of the index; of more, all types are read and filtered."""


class Logs:
    """The statements on logs."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._new = statements.rows("new", seq=INTEGER, event_id=TEXT, event_type=TEXT, rule=TEXT, envelope=TEXT)
        self._insert, self._move = self._appending(statements)
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

    async def append(
        self, fetcher: Fetcher, workspace: Parameters, envelopes: Sequence[Envelope], texts: Sequence[str]
    ) -> None:
        """Appends envelopes, as their texts, that follow the log's head, which moves to the last of them."""
        rows = [
            (
                envelope.seq,
                key(envelope.id),
                key(envelope.event_type),
                None if (rule := stored_rule_of(envelope)) is None else key(rule),
                text,
            )
            for envelope, text in zip(envelopes, texts, strict=True)
        ]
        head = {"to_seq": envelopes[-1].seq, "to_ts": micros(envelopes[-1].ts)}
        await fetcher.fetch(self._insert, {**workspace, **self._new(rows), **head})
        if self._move is not None:
            await fetcher.fetch(self._move, {**workspace, **head})

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

    def _appending(self, statements: Statements) -> tuple[Statement, Statement | None]:
        """Returns the statement that inserts events, and the one that moves the head unless the first does both."""
        columns = ("seq", "event_id", "event_type", "rule")
        insert = statements.insert(EVENTS).from_select(
            ["tenant_id", "workspace_id", *columns, "envelope"],
            from_set(*workspace_columns(), *(self._new.c[one] for one in columns), document(self._new.c["envelope"])),
        )
        move = (
            update(WORKSPACES)
            .where(in_workspace(WORKSPACES))
            .values(
                head_seq=parameter("to_seq", INTEGER),
                head_ts=parameter("to_ts", INTEGER),
                settled=WORKSPACES.c.unsettled,
                has_log=True,
            )
        )
        if statements.is_postgresql:
            return statements(insert.add_cte(move.cte("moved"))), None
        return statements(insert), statements(move)

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


def _envelopes(rows: Sequence[Row]) -> list[Envelope]:
    return [Envelope.model_validate_json(text) for (text,) in rows]
