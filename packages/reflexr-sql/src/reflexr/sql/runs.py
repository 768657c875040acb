"""Runs: saving them in their lines and queues, and reading them."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    and_,
    column,
    func,
    literal,
    literal_column,
    select,
    true,
    union_all,
    update,
)

from reflexr.core import Run
from reflexr.sql.leases import RUN_LEASE
from reflexr.sql.queues import (
    DEPTH,
    Fronts,
    Line,
    Queues,
    Scope,
    Standing,
    Turn,
    line_of,
    queue_of_rule,
    queued,
    whose_turn,
)
from reflexr.sql.rules import StoredRuleFlags
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
from reflexr.sql.tables import LEASES, RUNS
from reflexr.sql.values import MAX_INTEGER, key, micros, micros_or_none, read_all, within
from reflexr.sql.writing import Writer
from reflexr.workspace import RunQuery, RunScope

_COLUMNS = (
    "run_id",
    "number",
    "rule",
    "scope",
    "status",
    "generation",
    "fired_seq",
    "line",
    "due",
    "queue",
    "stored_queue",
)


class Runs:
    """The statements on runs."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._new = statements.rows(
            "runs",
            run_id=TEXT,
            number=INTEGER,
            rule=TEXT,
            scope=TEXT,
            status=TEXT,
            generation=INTEGER,
            fired_seq=INTEGER,
            line=INTEGER,
            due=INTEGER,
            queue=TEXT,
            stored_queue=TEXT,
            run=TEXT,
        )
        self._save = self._saving(statements)
        self._but = statements.rows("but", run_id=TEXT)
        self._ids = statements.rows_of_workspace("ids", run_id=TEXT)
        self._scopes = statements.rows("scopes", rule=TEXT, scope=TEXT)
        self._lines = statements.rows_of_workspace("lines", rule=TEXT, scope=TEXT, line=INTEGER)
        self._by_id = statements(
            statements.one_for_each(
                self._ids,
                RUNS,
                in_workspace_of(RUNS, self._ids),
                text_of(RUNS.c.run).label("run"),
                last=(RUNS.c.run_id, self._ids.c["run_id"]),
            )
        )
        self._firsts_of = self._finding_firsts(statements)
        self._rules = statements.rows("rules", rule=TEXT)
        self._free = statements.rows("free", queue=TEXT)
        # With any scope: where the index of rules alone seems to be as good, SQLite goes through finished runs too.
        any_scope = RUNS.c.scope >= literal_column("''", TEXT)
        in_line = and_(RUNS.c.line.is_not(None), self._rules.holds(RUNS.c.rule, "rule"), any_scope)
        in_no_line = and_(RUNS.c.line.is_(None), self._free.holds(RUNS.c.queue, "queue"))
        self._of_rules = statements(
            union_all(*(select(*_STANDING).where(in_workspace(RUNS), where) for where in (in_line, in_no_line)))
        )
        self._moved = statements.rows_of_workspace("moved", run_id=TEXT, queue=TEXT, stored_queue=TEXT)
        self._move = statements(
            update(RUNS)
            .where(in_workspace_of(RUNS, self._moved), RUNS.c.run_id == self._moved.c["run_id"])
            .values(queue=self._moved.c["queue"], stored_queue=self._moved.c["stored_queue"])
        )
        self._statuses = statements.rows("statuses", status=TEXT)
        self._queries: dict[tuple[bool, ...], Statement] = {}

    async def save(
        self,
        writer: Writer,
        workspace: Parameters,
        runs: Collection[Run],
        *,
        now: int,
        number: int,
        flags: Mapping[str, StoredRuleFlags],
        fronts: Fronts,
    ) -> None:
        """Saves runs, new ones numbered from a number on, and has the first of their scopes found."""
        latest = {run.id: run for run in runs}
        dues = [_due(run, now) for run in latest.values()]
        standings = [_standing_of(run, due) for run, due in zip(latest.values(), dues, strict=True)]
        scopes: dict[Scope, list[Standing]] = {}
        for one in standings:
            scopes.setdefault((one.rule, one.scope), []).append(one)
        but = [one.run_id for one in standings]
        others = await self._firsts(writer, workspace, scopes, fronts, but=but)
        queues: dict[str, Queues] = {}
        moved: dict[Scope, list[Standing]] = {}
        for scope, saved in scopes.items():
            behind = others[scope]
            firsts = [*saved, *behind]
            scopes[scope] = [one._replace(queues=to) for one, to in queued(saved, firsts, flags)]
            queues.update((one.run_id, one.queues) for one in scopes[scope])
            moved[scope] = [one._replace(queues=to) for one, to in queued(behind, firsts, flags) if to != one.queues]
        rows = sorted(
            (
                one.run_id,
                number + place,
                one.rule,
                one.scope,
                run.status,
                one.place[0],
                run.fired_seq,
                one.line,
                due,
                *queues[one.run_id],
                run.model_dump_json(),
            )
            for place, (one, run, due) in enumerate(zip(standings, latest.values(), dues, strict=True))
        )
        await writer.write(self._save, {**workspace, **self._new(rows)})
        await self._move_all(writer, workspace, [one for standings in moved.values() for one in standings])
        for scope, saved in scopes.items():
            fronts.save(scope, saved, moved[scope])

    async def requeue(
        self, writer: Writer, workspace: Parameters, rules: Collection[str], flags: Mapping[str, StoredRuleFlags]
    ) -> None:
        """Has the unfinished runs of stored rules that changed found as their rules say now."""
        names = [key(rule) for rule in rules]
        free = [queue_of_rule(name, Turn.FREE) for name in names]
        parameters = {
            **workspace,
            **self._rules([(name,) for name in names]),
            **self._free([(queue,) for queue in free]),
        }
        scopes: dict[tuple[str, str], list[Standing]] = {}
        for one in map(_standing, await writer.fetch(self._of_rules, parameters)):
            scopes.setdefault((one.rule, one.scope), []).append(one)
        moved = [
            one._replace(queues=to)
            for standings in scopes.values()
            for one, to in queued(standings, standings, flags)
            if to != one.queues
        ]
        await self._move_all(writer, workspace, moved)

    async def load(self, fetcher: Fetcher, workspace: Parameters, ids: Collection[str]) -> dict[str, Run]:
        """Returns the runs with these ids, by id."""
        if not ids:
            return {}
        rows = await fetcher.fetch(self._by_id, self._ids([(key(one),) for one in set(ids)], workspace))
        return {run.id: run for run in read_all(Run, rows)}

    async def find(self, fetcher: Fetcher, workspace: Parameters, query: RunQuery) -> list[Run]:
        """Returns the runs that meet a query, newest first."""
        parameters: dict[str, object] = {
            **workspace,
            "at_most": MAX_INTEGER if query.limit is None else within(query.limit),
        }
        if query.rules is not None:
            rules = [key(rule) for rule in query.rules]
            parameters |= {"of_rule": rules[0]} if len(rules) == 1 else self._rules([(rule,) for rule in rules])
        if query.scope_key is not None:
            parameters["of_scope"] = key(query.scope_key)
        if query.statuses is not None:
            parameters |= self._statuses([(status,) for status in query.statuses])
        rows = await fetcher.fetch(self._query(query), parameters)
        return read_all(Run, rows)

    async def first(
        self,
        fetcher: Fetcher,
        workspace: Parameters,
        scopes: Collection[RunScope],
        blocking: Collection[str],
        fronts: Fronts,
    ) -> dict[RunScope, str]:
        """Returns the run whose turn it is in each of these scopes."""
        places = {(key(scope.rule), key(scope.scope_key)): scope for scope in scopes}
        firsts = await self._firsts(fetcher, workspace, places, fronts)
        turns = {scope: whose_turn(firsts[place], blocking=scope.rule in blocking) for place, scope in places.items()}
        found = {scope: turn.run_id for scope, turn in turns.items() if turn is not None}
        # A long id is in the run itself.
        digested = [run_id for run_id in found.values() if run_id.startswith("sha256:")]
        if digested:
            rows = await fetcher.fetch(self._by_id, self._ids([(one,) for one in digested], workspace))
            ids = {key(run.id): run.id for run in read_all(Run, rows)}
            found = {scope: ids.get(run_id, run_id) for scope, run_id in found.items()}
        return found

    async def _firsts(
        self,
        fetcher: Fetcher,
        workspace: Parameters,
        scopes: Collection[Scope],
        fronts: Fronts,
        but: Collection[str] = (),
    ) -> dict[Scope, list[Standing]]:
        """Returns the first run of each line of these scopes, by scope, but for some; asks for what is not known."""
        left_out = frozenset(but)
        known = {scope: fronts.firsts(scope, left_out) for scope in scopes}
        unknown = {scope: list[Standing]() for scope, firsts in known.items() if firsts is None}
        if unknown:
            parameters = {**workspace, **self._places(unknown, workspace), **self._but([(one,) for one in but])}
            for one in map(_standing, await fetcher.fetch(self._firsts_of, parameters)):
                unknown[one.rule, one.scope].append(one)
            for scope, found in unknown.items():
                fronts.add(scope, found)
                known[scope] = fronts.firsts(scope, left_out)
        return {scope: firsts or [] for scope, firsts in known.items()}

    async def _move_all(self, writer: Writer, workspace: Parameters, moved: Collection[Standing]) -> None:
        """Moves runs to their queues."""
        if rows := sorted((one.run_id, *one.queues) for one in moved):
            await writer.write(self._move, self._moved(rows, workspace))

    def _saving(self, statements: Statements) -> Statement:
        # A running run is due when its lease lapses, or at once where there is none.
        lease = select(LEASES.c.expires).where(
            in_workspace(LEASES),
            self._new.c["line"] == Line.RUNNING.value,
            LEASES.c.name == literal(RUN_LEASE, TEXT) + self._new.c["run_id"],
        )
        due = func.coalesce(lease.scalar_subquery(), self._new.c["due"])
        values = {**{one: self._new.c[one] for one in _COLUMNS}, "due": due, "run": document(self._new.c["run"])}
        insert = statements.insert(RUNS).from_select(
            ["tenant_id", "workspace_id", *values], from_set(*workspace_columns(), *values.values())
        )
        # The number and what the run was fired by stay as they are.
        changed = ("status", "line", "due", "queue", "stored_queue", "run")
        return statements(
            insert.on_conflict_do_update(
                index_elements=["tenant_id", "workspace_id", "run_id"],
                set_={one: insert.excluded[one] for one in changed},
            )
        )

    def _places(self, scopes: Collection[Scope], workspace: Parameters) -> dict[str, object]:
        """Returns the parameters that name scopes, or each of their lines where the statement does not."""
        if self._statements.is_postgresql:
            return self._scopes(list(scopes))
        return self._lines([(rule, scope, line.value) for rule, scope in scopes for line in Line], workspace)

    def _finding_firsts(self, statements: Statements) -> Statement:
        first = RUNS.alias("first")
        firsts = (
            select(*(first.c[column.name] for column in _STANDING))
            .where(~self._but.holds(first.c.run_id, "run_id"))
            .order_by(first.c.generation, first.c.fired_seq, first.c.run_id)
            .limit(literal_column(str(DEPTH)))
        )
        if statements.is_postgresql:
            lines = (
                func.unnest(literal_column(f"ARRAY{[line.value for line in Line]}"))
                .table_valued(column("line", INTEGER), name="lines")
                .render_derived()
            )
            found = firsts.where(in_workspace(first), *_of_line(first, self._scopes.c, lines.c.line)).lateral("found")
            return statements(select(*found.c).select_from(self._scopes.source.join(lines, true()).join(found, true())))
        # SQLite joins no more than tables; what depends on another row is a value, or a list of them.
        belonging = firsts.where(
            in_workspace_of(first, self._lines), *_of_line(first, self._lines.c, self._lines.c["line"])
        )
        rowids = belonging.with_only_columns(literal_column("first.rowid", INTEGER)).correlate(self._lines.source)
        is_first = literal_column(f"{RUNS.name}.rowid", INTEGER).in_(rowids)
        return statements(select(*_STANDING).join_from(self._lines.source, RUNS, is_first))

    def _query(self, query: RunQuery) -> Statement:
        single = query.rules is not None and len(query.rules) == 1
        shape = (single, query.rules is not None, query.scope_key is not None, query.statuses is not None)
        if (statement := self._queries.get(shape)) is None:
            conditions: list[ColumnElement[bool]] = [in_workspace(RUNS)]
            if single:
                conditions.append(RUNS.c.rule == parameter("of_rule", TEXT))
            elif query.rules is not None:
                conditions.append(self._rules.holds(RUNS.c.rule, "rule"))
            if query.scope_key is not None:
                conditions.append(RUNS.c.scope == parameter("of_scope", TEXT))
            if query.statuses is not None:
                conditions.append(self._statuses.holds(RUNS.c.status, "status"))
            statement = self._queries[shape] = self._statements(
                select(text_of(RUNS.c.run))
                .where(*conditions)
                .order_by(RUNS.c.number.desc())
                .limit(parameter("at_most", INTEGER))
            )
        return statement


_STANDING = (
    RUNS.c.run_id,
    RUNS.c.rule,
    RUNS.c.scope,
    RUNS.c.line,
    RUNS.c.generation,
    RUNS.c.fired_seq,
    RUNS.c.status,
    RUNS.c.due,
    RUNS.c.queue,
    RUNS.c.stored_queue,
)


def _of_line(
    run: FromClause, scope: Mapping[str, ColumnElement[Any]], line: ColumnElement[int]
) -> tuple[ColumnElement[bool], ...]:
    """Restricts runs to those of a line of a scope."""
    return run.c.rule == scope["rule"], run.c.scope == scope["scope"], run.c.line == line


def _standing(row: Row) -> Standing:
    run_id, rule, scope, line, generation, fired_seq, status, due, *queues = row
    return Standing(
        run_id,
        rule,
        scope,
        line=None if line is None else Line(line),
        place=(generation, fired_seq, run_id),
        paused=status == "paused",
        falls_due=due is not None,
        queues=Queues(*queues),
    )


def _standing_of(run: Run, due: int | None) -> Standing:
    run_id = key(run.id)
    return Standing(
        run_id,
        key(run.rule),
        key(run.scope_key),
        line=line_of(run),
        place=(within(run.generation), run.fired_seq, run_id),
        paused=run.waiting is not None,
        falls_due=due is not None,
    )


def _due(run: Run, now: int) -> int | None:
    """Returns from when on a run may start, or its answer is late, in microseconds; `None` for never.

    Of one that is running its lease says more.
    """
    if run.waiting is not None:
        return micros_or_none(run.waiting.until)
    if line_of(run) not in (Line.RUNNING, Line.WAITING):
        return None
    return min(micros(run.fired_at), now) if run.next_attempt_at is None else micros(run.next_attempt_at)
