"""Turns: where more runs may start than are asked for, those of one workspace after another.

An index holds the runs of a queue by workspace and by the time from which each may start. So one probe leads from a
workspace to the next, past all of its runs, and says from when on the first run there may start.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, FromClause, Select, and_, case, func, literal, literal_column, or_, select, tuple_

from reflexr.sql.leases import RUN_LEASE
from reflexr.sql.queues import Line, queues_of_rules
from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import INTEGER, TEXT, Row, Statements, parameter, row_by_row
from reflexr.sql.tables import LEASES, RUNS
from reflexr.sql.values import MAX_INTEGER, within
from reflexr.workspace import DueRun, LeaseKey, RunPolicy, WorkspaceRef, run_lease

_LAST: Final = "\U0010ffff"
"""Behind every rule's name."""


@dataclass(frozen=True, slots=True)
class Share:
    """What is asked for of the runs that may start.

    Attributes:
        limit: How many at most.
        each: How many of one workspace at most.
        after: The workspace after which to begin.
        withheld: The rules whose runs are left out.
        but_runs: The runs that are left out, by their leases.
        but_workspaces: The workspaces that are left out.
    """

    limit: int
    each: int | None = None
    after: WorkspaceRef | None = None
    withheld: frozenset[str] = frozenset()
    but_runs: AbstractSet[LeaseKey] = frozenset()
    but_workspaces: AbstractSet[WorkspaceRef] = frozenset()

    @property
    def most(self) -> int:
        """How many of one workspace at most."""
        return self.limit if self.each is None else min(self.each, self.limit)

    def of(self, rows: Iterable[Row]) -> dict[WorkspaceRef, list[DueRun]]:
        """Returns the runs of these rows that are asked for, by workspace; those that have waited longest first."""
        # The sort is stable: runs of equal times come as the database gave them. One may be in two queues.
        found: dict[WorkspaceRef, dict[DueRun, None]] = {}
        for _, tenant, workspace, run_id, rule in sorted(rows, key=lambda row: row[0]):
            run = DueRun(WorkspaceRef(tenant, workspace), run_id, rule)
            if self._admits(run):
                found.setdefault(run.workspace, {})[run] = None
        return {workspace: list(islice(runs, self.most)) for workspace, runs in found.items()}

    def in_turns(self, found: Mapping[WorkspaceRef, Sequence[DueRun]]) -> list[DueRun]:
        """Returns as many of these runs as are asked for: one of each workspace in turn, and again."""
        after = self.after
        places = sorted(found, key=lambda one: (after is not None and one <= after, one))
        turns = zip_longest(*(found[place] for place in places[: self.limit]))
        return list(islice((run for turn in turns for run in turn if run is not None), self.limit))

    def _admits(self, run: DueRun) -> bool:
        return (
            run.workspace not in self.but_workspaces
            and run.rule not in self.withheld
            and LeaseKey(run.workspace, run_lease(run.run_id)) not in self.but_runs
        )


class Turns:
    """The statements that go from one workspace to the next."""

    def __init__(self, statements: Statements) -> None:
        self._rules = _Queues(statements, "queue", by_rule=False)
        self._stored = _Queues(statements, "stored_queue", by_rule=True)

    async def find(self, fetcher: Fetcher, policy: RunPolicy, share: Share, now: int | None) -> list[DueRun]:
        """Returns runs that may start now, of which workspaces take turns."""
        found = await self._passed(fetcher, policy, share, now, start=share.after)
        if len(found) < share.limit and share.after is not None:
            found |= await self._passed(fetcher, policy, share, now, end=share.after)
        return share.in_turns(found)

    async def _passed(
        self,
        fetcher: Fetcher,
        policy: RunPolicy,
        share: Share,
        now: int | None,
        *,
        start: WorkspaceRef | None = None,
        end: WorkspaceRef | None = None,
    ) -> dict[WorkspaceRef, list[DueRun]]:
        """Returns the runs of the first workspaces after one, and up to another, that have any."""
        begin = ("", "", "") if start is None else (start.tenant_id, start.workspace_id, _LAST)
        queues = ((self._rules, queues_of_rules(policy)), (self._stored, sorted(policy.stored)))
        ahead = {(kind, name): begin for kind, names in queues for name in names}
        # One more than there is room for: what the last step comes to is known in part only.
        steps = share.limit + 1
        passed: dict[WorkspaceRef, list[_Cell]] = {}
        found: dict[WorkspaceRef, list[DueRun]] = {}
        while ahead and len(found) < share.limit:
            cells, ahead = await _walk(fetcher, ahead, steps, now)
            for cell in cells:
                passed.setdefault(cell.workspace, []).append(cell)
            # Of this workspace, and of those behind it, there may be more.
            horizon = min((WorkspaceRef(tenant, workspace) for tenant, workspace, _ in ahead.values()), default=None)
            known = sorted(one for one in passed if horizon is None or one < horizon)
            places = {place: passed.pop(place) for place in known}
            wanted = [
                admitted
                for place, cells in places.items()
                if place not in share.but_workspaces
                and (end is None or place <= end)
                and (admitted := [cell for cell in cells if cell.rule not in share.withheld])
            ]
            while wanted and len(found) < share.limit:
                batch, wanted = wanted[: share.limit - len(found)], wanted[share.limit - len(found) :]
                found |= share.of(await _take(fetcher, batch, share, now))
            if end is not None and horizon is not None and end < horizon:
                break
            steps *= 2
        return found


class _Cell(NamedTuple):
    """Where runs may start: those of one queue in one workspace, and of one rule where the queue holds several."""

    kind: "_Queues"
    queue: str
    workspace: WorkspaceRef
    rule: str


type _Place = tuple[str, str, str]
"""A tenant, a workspace and a rule."""


class _Queues:
    """The statements on one kind of queues.

    Attributes:
        starts: Where to go on in each of some queues.
        walk: Goes from one workspace, or rule of one, to the next, so many steps.
        cells: Where to take runs from.
        take: Takes those that have waited longest.
    """

    def __init__(self, statements: Statements, column: str, *, by_rule: bool) -> None:
        self._column = column
        self._by_rule = by_rule
        self._place = ("tenant_id", "workspace_id", "rule") if by_rule else ("tenant_id", "workspace_id")
        columns = {"queue": TEXT, "tenant_id": TEXT, "workspace_id": TEXT, **({"rule": TEXT} if by_rule else {})}
        self.starts = statements.rows("starts", **columns)
        self.walk = statements(self._walking(statements))
        self.cells = statements.rows("cells", **columns)
        self.take = statements(self._taking(statements))

    def row(self, queue: str, place: _Place) -> tuple[str, ...]:
        """Returns a row of `starts` or of `cells`."""
        return (queue, *place[: len(self._place)])

    def _walking(self, statements: Statements) -> Select[*tuple[Any, ...]]:
        answers = (*self._place, "due")
        start = self.starts.c
        first = select(
            start["queue"].label("queue"),
            *(self._following(start["queue"], [start[one] for one in self._place], one) for one in answers),
            literal_column("1", INTEGER).label("step"),
        ).cte("walked", recursive=True)
        walked = first.union_all(
            select(
                first.c.queue,
                *(self._following(first.c.queue, [first.c[one] for one in self._place], one) for one in answers),
                first.c.step + literal_column("1", INTEGER),
            ).where(first.c.tenant_id.is_not(None), first.c.step < parameter("steps", INTEGER))
        )
        is_due = walked.c.due <= statements.now
        rule = walked.c.rule if self._by_rule else literal_column("''", TEXT)
        return select(
            walked.c.queue,
            walked.c.tenant_id,
            walked.c.workspace_id,
            rule.label("rule"),
            is_due.label("is_due"),
            walked.c.step,
        ).where(walked.c.tenant_id.is_not(None), or_(is_due, walked.c.step == parameter("steps", INTEGER)))

    def _following(
        self, queue: ColumnElement[Any], place: Sequence[ColumnElement[Any]], answer: str
    ) -> ColumnElement[Any]:
        """Selects a column of the first run behind a place."""
        run = RUNS.alias("following")
        columns = [*(run.c[one] for one in self._place), run.c.due]
        # What is computed has no affinity: SQLite bounds a range of an index by no second column that has one. And it
        # begins such a range with what is equal, to go through it: no run of a place is due at the last of all times.
        last = (*(one.concat(literal_column("''")) for one in place), literal_column(str(MAX_INTEGER), INTEGER))
        return (
            select(run.c[answer])
            .where(run.c[self._column] == queue, tuple_(*columns) > tuple_(*last))
            .order_by(*columns)
            .limit(literal_column("1"))
            .scalar_subquery()
            .label(answer)
        )

    def _taking(self, statements: Statements) -> Select[*tuple[Any, ...]]:
        cell = self.cells.c
        if statements.is_postgresql:
            here = and_(*(RUNS.c[one] == cell[one] for one in self._place))
            waiting = select(*due_run()).where(RUNS.c[self._column] == cell["queue"], here, may_start(RUNS, statements))
            return row_by_row(self.cells, waiting.order_by(RUNS.c.due).limit(parameter("at_most", INTEGER)))
        # SQLite joins no more than tables; what depends on another row is a value, or a list of them.
        run = RUNS.alias("waiting")
        waiting = (
            select(literal_column("waiting.rowid", INTEGER))
            .select_from(run)
            .where(
                run.c[self._column] == cell["queue"],
                *(run.c[one] == cell[one] for one in self._place),
                may_start(run, statements),
            )
            .order_by(run.c.due)
            .limit(parameter("at_most", INTEGER))
            .correlate(self.cells.source)
        )
        is_waiting = literal_column(f"{RUNS.name}.rowid", INTEGER).in_(waiting)
        return select(*due_run()).join_from(self.cells.source, RUNS, is_waiting)


def may_start(run: FromClause, statements: Statements) -> ColumnElement[bool]:
    """Restricts the runs of a queue to those that may start now, and paused ones that nobody answered in time."""
    lease = LEASES.alias("lease")
    # A value, not EXISTS, for which PostgreSQL may rather read every lease that there is.
    until = func.coalesce(select(lease.c.expires).where(lease_of(lease, run)).scalar_subquery(), literal(0, INTEGER))
    # One in no line is not running either.
    is_waiting = run.c.line.is_distinct_from(Line.RUNNING.value)
    return and_(run.c.due <= statements.now, or_(is_waiting, until <= statements.now))


def lease_of(lease: FromClause, run: FromClause) -> ColumnElement[bool]:
    """Restricts leases to that on a run."""
    return and_(
        lease.c.tenant_id == run.c.tenant_id,
        lease.c.workspace_id == run.c.workspace_id,
        lease.c.name == literal(RUN_LEASE, TEXT) + run.c.run_id,
    )


def due_run() -> tuple[ColumnElement[Any], ...]:
    """Returns what is selected of a run that may start."""
    # A long id is in the run itself. Of another run nothing is parsed: PostgreSQL refuses a document that holds U+0000.
    is_digest = func.substr(RUNS.c.run_id, literal_column("1"), literal_column("7")) == literal_column("'sha256:'")
    written = RUNS.c.run.op("->>", return_type=TEXT)(literal_column("'id'"))
    run_id = case((is_digest, written), else_=RUNS.c.run_id)
    return RUNS.c.due, RUNS.c.tenant_id, RUNS.c.workspace_id, run_id.label("id"), RUNS.c.rule


async def _walk(
    fetcher: Fetcher, starts: Mapping[tuple[_Queues, str], _Place], steps: int, now: int | None
) -> tuple[list[_Cell], dict[tuple[_Queues, str], _Place]]:
    """Returns where runs may start, so many steps from a place on in each queue, and where to go on in which."""
    cells: list[_Cell] = []
    ahead: dict[tuple[_Queues, str], _Place] = {}
    for kind in dict.fromkeys(kind for kind, _ in starts):
        rows = [kind.row(queue, place) for (of, queue), place in starts.items() if of is kind]
        parameters = {**kind.starts(rows), "steps": within(steps), "now": now}
        for queue, *place, is_due, step in await fetcher.fetch(kind.walk, parameters):
            tenant, workspace, rule = place
            if is_due:
                cells.append(_Cell(kind, queue, WorkspaceRef(tenant, workspace), rule))
            if step == steps:
                ahead[kind, queue] = (tenant, workspace, rule)
    return cells, ahead


async def _take(fetcher: Fetcher, places: Sequence[Sequence[_Cell]], share: Share, now: int | None) -> list[Row]:
    """Returns the runs of some workspaces that have waited longest: of each as many as there may be room for."""
    left_out = Counter(lease.workspace for lease in share.but_runs)
    # Each of the others has a run too, unless that is left out.
    most = share.most if left_out else min(share.most, share.limit - len(places) + 1)
    at_most = within(most + max(left_out.values(), default=0))
    cells = [cell for place in places for cell in place]
    rows: list[Row] = []
    for kind in dict.fromkeys(cell.kind for cell in cells):
        of_kind = [
            kind.row(cell.queue, (cell.workspace.tenant_id, cell.workspace.workspace_id, cell.rule))
            for cell in cells
            if cell.kind is kind
        ]
        rows += await fetcher.fetch(kind.take, {**kind.cells(of_kind), "at_most": at_most, "now": now})
    return rows
