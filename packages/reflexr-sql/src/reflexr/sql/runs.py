"""Runs: saving them in their lines and queues, and reading them."""

from collections.abc import Collection, Mapping

from sqlalchemy import ColumnElement, func, literal, literal_column, select, update

from reflexr.core import Run
from reflexr.sql.leases import RUN_LEASE
from reflexr.sql.queues import Line, Queues, Standing, line_of, queued, whose_turn
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
    row_by_row,
    text_of,
    workspace_columns,
)
from reflexr.sql.tables import LEASES, RUNS
from reflexr.sql.values import MAX_INTEGER, key, micros, within
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
            "new",
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
        self._scopes = statements.rows_of_workspace("scopes", rule=TEXT, scope=TEXT, line=INTEGER)
        self._by_id = statements(
            statements.one_for_each(
                self._ids,
                RUNS,
                in_workspace_of(RUNS, self._ids),
                text_of(RUNS.c.run).label("run"),
                last=(RUNS.c.run_id, self._ids.c["run_id"]),
            )
        )
        self._firsts = self._finding_firsts(statements)
        self._rules = statements.rows("rules", rule=TEXT)
        self._unfinished = statements(
            select(*_STANDING).where(
                in_workspace(RUNS), RUNS.c.line.is_not(None), self._rules.holds(RUNS.c.rule, "rule")
            )
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
        fetcher: Fetcher,
        workspace: Parameters,
        runs: Collection[Run],
        *,
        now: int,
        number: int,
        flags: Mapping[str, StoredRuleFlags],
    ) -> None:
        """Saves runs, new ones numbered from a number on, and has the first of their scopes found."""
        latest = {run.id: run for run in runs}
        numbers = {run_id: number + place for place, run_id in enumerate(latest)}
        standings = [_standing_of(run) for run in latest.values()]
        scopes: dict[tuple[str, str], list[Standing]] = {}
        for one in standings:
            scopes.setdefault((one.rule, one.scope), []).append(one)
        others = await self._first_of(fetcher, workspace, scopes, but=[one.run_id for one in standings])
        queues: dict[str, Queues] = {}
        moved: list[tuple[Standing, Queues]] = []
        for place, saved in scopes.items():
            behind = others.get(place, [])
            firsts = [*saved, *behind]
            queues.update((one.run_id, found) for one, found in queued(saved, firsts, flags))
            moved += queued(behind, firsts, flags)
        rows = sorted(
            (
                key(run.id),
                numbers[run.id],
                key(run.rule),
                key(run.scope_key),
                run.status,
                within(run.generation),
                run.fired_seq,
                line_of(run.status),
                _due(run, now),
                *queues[key(run.id)],
                run.model_dump_json(),
            )
            for run in latest.values()
        )
        await fetcher.fetch(self._save, {**workspace, **self._new(rows)})
        await self._move_all(fetcher, workspace, moved)

    async def requeue(
        self, fetcher: Fetcher, workspace: Parameters, rules: Collection[str], flags: Mapping[str, StoredRuleFlags]
    ) -> None:
        """Has the unfinished runs of stored rules that changed found as their rules say now."""
        parameters = {**workspace, **self._rules([(key(rule),) for rule in rules])}
        scopes: dict[tuple[str, str], list[Standing]] = {}
        for one in map(_standing, await fetcher.fetch(self._unfinished, parameters)):
            scopes.setdefault((one.rule, one.scope), []).append(one)
        moved = [item for standings in scopes.values() for item in queued(standings, standings, flags)]
        await self._move_all(fetcher, workspace, moved)

    async def load(self, fetcher: Fetcher, workspace: Parameters, ids: Collection[str]) -> dict[str, Run]:
        """Returns the runs with these ids, by id."""
        if not ids:
            return {}
        rows = await fetcher.fetch(self._by_id, self._ids([(key(one),) for one in set(ids)], workspace))
        return {run.id: run for run in (Run.model_validate_json(text) for (text,) in rows)}

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
        return [Run.model_validate_json(text) for (text,) in rows]

    async def first(
        self, fetcher: Fetcher, workspace: Parameters, scopes: Collection[RunScope], blocking: Collection[str]
    ) -> dict[RunScope, str]:
        """Returns the run whose turn it is in each of these scopes."""
        places = {(key(scope.rule), key(scope.scope_key)): scope for scope in scopes}
        if not places:
            return {}
        firsts = await self._first_of(fetcher, workspace, places, but=())
        turns = {
            scope: whose_turn(firsts.get(place, ()), blocking=scope.rule in blocking) for place, scope in places.items()
        }
        found = {scope: turn.run_id for scope, turn in turns.items() if turn is not None}
        # A long id is in the run itself.
        digested = [run_id for run_id in found.values() if run_id.startswith("sha256:")]
        if digested:
            rows = await fetcher.fetch(self._by_id, self._ids([(one,) for one in digested], workspace))
            ids = {key(run.id): run.id for run in (Run.model_validate_json(text) for (text,) in rows)}
            found = {scope: ids.get(run_id, run_id) for scope, run_id in found.items()}
        return found

    async def _first_of(
        self, fetcher: Fetcher, workspace: Parameters, places: Collection[tuple[str, str]], but: Collection[str]
    ) -> dict[tuple[str, str], list[Standing]]:
        """Returns the first run of each line of these scopes, by scope, but for some."""
        lines = [(rule, scope, line.value) for rule, scope in places for line in Line]
        parameters = {**workspace, **self._scopes(lines, workspace), **self._but([(one,) for one in but])}
        found: dict[tuple[str, str], list[Standing]] = {}
        for one in map(_standing, await fetcher.fetch(self._firsts, parameters)):
            found.setdefault((one.rule, one.scope), []).append(one)
        return found

    async def _move_all(
        self, fetcher: Fetcher, workspace: Parameters, moved: Collection[tuple[Standing, Queues]]
    ) -> None:
        """Moves runs to their queues, those that are not there yet."""
        if rows := sorted((one.run_id, *queues) for one, queues in moved if queues != one.queues):
            await fetcher.fetch(self._move, self._moved(rows, workspace))

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

    def _finding_firsts(self, statements: Statements) -> Statement:
        first = RUNS.alias("first")
        belonging = (
            select(*(first.c[column.name] for column in _STANDING))
            .where(
                in_workspace_of(first, self._scopes),
                first.c.rule == self._scopes.c["rule"],
                first.c.scope == self._scopes.c["scope"],
                first.c.line == self._scopes.c["line"],
                ~self._but.holds(first.c.run_id, "run_id"),
            )
            .order_by(first.c.generation, first.c.fired_seq, first.c.run_id)
            .limit(literal_column("1"))
        )
        if statements.is_postgresql:
            return statements(row_by_row(self._scopes, belonging))
        # SQLite joins no more than tables; what depends on another row is a value.
        first_id = belonging.with_only_columns(first.c.run_id).correlate(self._scopes.source).scalar_subquery()
        is_first = in_workspace_of(RUNS, self._scopes) & (RUNS.c.run_id == first_id)
        return statements(select(*_STANDING).join_from(self._scopes.source, RUNS, is_first))

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
    RUNS.c.queue,
    RUNS.c.stored_queue,
)


def _standing(row: Row) -> Standing:
    run_id, rule, scope, line, generation, fired_seq, *queues = row
    return Standing(run_id, rule, scope, Line(line), (generation, fired_seq, run_id), Queues(*queues))


def _standing_of(run: Run) -> Standing:
    run_id = key(run.id)
    place = (within(run.generation), run.fired_seq, run_id)
    return Standing(run_id, key(run.rule), key(run.scope_key), line_of(run.status), place)


def _due(run: Run, now: int) -> int | None:
    """Returns from when on a run may start, in microseconds; of one that is running its lease says more."""
    if line_of(run.status) not in (Line.RUNNING, Line.WAITING):
        return None
    return min(micros(run.fired_at), now) if run.next_attempt_at is None else micros(run.next_attempt_at)
