"""Discovery: where there is something to do, over all workspaces, as ranges of indexes."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    union,
    union_all,
)

from reflexr.sql.leases import RUN_LEASE
from reflexr.sql.members import Known, Members, MemberSets
from reflexr.sql.queues import Line, queues_of_rules
from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import INTEGER, TEXT, Row, Statement, Statements, parameter
from reflexr.sql.tables import LEASES, RUNS, SCHEDULES, WORKSPACES
from reflexr.sql.values import MAX_INTEGER, key, micros, moment, within
from reflexr.workspace import Deadline, DueRun, DueSchedule, RunPolicy, Watch, WorkspaceRef

_MOST_QUEUES: Final = 200
"""How many queues one statement looks at; SQLite takes no more than 500."""

type Place = tuple[str, str, str]
"""Where a page of workspaces ended: the digest, the tenant and the workspace."""

START: Final[Place] = ("", "", "")
"""Before every workspace."""


class Workspaces:
    """Finds workspaces: all of them, and those that are behind."""

    def __init__(self, statements: Statements, members: MemberSets) -> None:
        table = WORKSPACES
        self._members = members
        place = (table.c.tenant_id, table.c.workspace_id)
        after_tenant, after = parameter("after_tenant", TEXT), parameter("after", TEXT)
        pages = select(*place).where(table.c.has_log.is_(True)).order_by(*place).limit(parameter("at_most", INTEGER))
        self._all = statements(pages.where(tuple_(*place) > tuple_(after_tenant, after)))
        self._of_tenant = statements(pages.where(table.c.tenant_id == after_tenant, table.c.workspace_id > after))
        self._digests = statements.rows("digests", digest=TEXT)
        full_place = (table.c.settled, *place)
        start = tuple_(parameter("from_digest", TEXT), parameter("from_tenant", TEXT), parameter("from", TEXT))
        self._behind = statements(
            select(*full_place)
            .where(
                table.c.has_log.is_(True),
                self._digests.holds(table.c.settled, "digest"),
                tuple_(*full_place) > start,
            )
            .order_by(*full_place)
            .limit(parameter("at_most", INTEGER))
        )

    async def all(
        self, fetcher: Fetcher, tenant_id: str | None, after: WorkspaceRef | None, limit: int | None
    ) -> list[WorkspaceRef]:
        """Returns the workspaces with a log, by tenant and workspace."""
        start = WorkspaceRef("", "") if after is None else after
        if tenant_id is not None:
            if start.tenant_id > tenant_id:
                return []
            start = WorkspaceRef(tenant_id, start.workspace_id if start.tenant_id == tenant_id else "")
        at_most = MAX_INTEGER if limit is None else within(limit)
        rows = await fetcher.fetch(
            self._all if tenant_id is None else self._of_tenant,
            {"after_tenant": start.tenant_id, "after": start.workspace_id, "at_most": at_most},
        )
        return [WorkspaceRef(tenant, workspace) for tenant, workspace in rows]

    async def behind(
        self, fetcher: Fetcher, known: Known, watch: Watch, start: Place, limit: int
    ) -> tuple[list[WorkspaceRef], Place]:
        """Returns workspaces where one of the watched rules has something to do, and where to go on looking.

        Those after `start` come first, so that each has its turn where there are more than the limit.
        """
        settled = await self._members.settled(fetcher, known)
        behind = sorted(digest for digest, members in settled.items() if _is_behind(members, watch))
        if not behind or limit <= 0:
            return [], START
        rows = list(await self._page(fetcher, behind, start, limit))
        if len(rows) < limit and start != START:
            found = {tuple(row) for row in rows}
            again = await self._page(fetcher, behind, START, limit)
            rows = [*rows, *(row for row in again if tuple(row) not in found)][:limit]
        after = (rows[-1][0], rows[-1][1], rows[-1][2]) if len(rows) == limit else START
        return [WorkspaceRef(tenant, workspace) for _, tenant, workspace in rows], after

    async def _page(self, fetcher: Fetcher, digests: Iterable[str], start: Place, limit: int) -> Sequence[Row]:
        parameters = {"from_digest": start[0], "from_tenant": start[1], "from": start[2], "at_most": within(limit)}
        return await fetcher.fetch(self._behind, {**parameters, **self._digests([(one,) for one in digests])})


class DueRuns:
    """Finds runs that may start."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._find: dict[_Shape, Statement] = {}
        self._next: dict[_Shape, Statement] = {}

    async def find(self, fetcher: Fetcher, policy: RunPolicy, limit: int, now: int | None) -> list[DueRun]:
        """Returns runs that may start now, those that have waited longest first."""
        if limit <= 0:
            return []
        rows: list[Row] = []
        for shape, names in _chunks(policy):
            if (statement := self._find.get(shape)) is None:
                statement = self._find[shape] = self._statements(self._finding(shape))
            rows += await fetcher.fetch(statement, {**names, "now": now, "at_most": within(limit)})
        # The sort is stable: runs of equal times come as the database gave them. One may be in two queues.
        rows.sort(key=lambda row: row[0])
        found = dict.fromkeys(
            DueRun(WorkspaceRef(tenant, workspace), run_id, rule) for _, tenant, workspace, run_id, rule in rows
        )
        return list(found)[:limit]

    async def next(self, fetcher: Fetcher, policy: RunPolicy, now: int | None) -> timedelta | None:
        """Returns how long it is until a run may start."""
        soonest: list[tuple[int, int]] = []
        for shape, names in _chunks(policy):
            if (statement := self._next.get(shape)) is None:
                statement = self._next[shape] = self._statements(self._looking_ahead(shape))
            soonest += [(due, at) for due, at in await fetcher.fetch(statement, {**names, "now": now})]
        return min((max(timedelta(microseconds=due - at), timedelta()) for due, at in soonest), default=None)

    def _finding(self, shape: "_Shape") -> Select[*tuple[Any, ...]]:
        lease = LEASES.alias("lease")
        # A value, not EXISTS, for which PostgreSQL may rather read every lease that there is.
        until = func.coalesce(
            select(lease.c.expires).where(_lease_of_run(lease)).scalar_subquery(), literal(0, INTEGER)
        )
        run_id = RUNS.c.run.op("->>", return_type=TEXT)(literal_column("'id'"))
        due = (
            select(RUNS.c.due, RUNS.c.tenant_id, RUNS.c.workspace_id, run_id.label("id"), RUNS.c.rule)
            .where(
                RUNS.c.due <= self._statements.now,
                or_(RUNS.c.line != Line.RUNNING.value, until <= self._statements.now),
            )
            .order_by(RUNS.c.due)
            .limit(parameter("at_most", INTEGER))
        )
        # A run that is in two queues is one run: two of it would leave room for fewer.
        found = union(*_each_queue(due, shape)).subquery("found")
        return select(found).order_by(found.c.due).limit(parameter("at_most", INTEGER))

    def _looking_ahead(self, shape: "_Shape") -> Select[*tuple[Any, ...]]:
        lease = LEASES.alias("lease")
        lapses = select(lease.c.expires).where(_lease_of_run(lease), RUNS.c.line == Line.RUNNING.value)
        first = (
            select(func.coalesce(lapses.scalar_subquery(), RUNS.c.due).label("due"))
            .order_by(RUNS.c.due)
            .limit(literal_column("1"))
        )
        found = union_all(*_each_queue(first, shape)).subquery("found")
        return select(found.c.due, self._statements.now.label("now")).order_by(found.c.due).limit(literal_column("1"))


class DueSchedules:
    """Finds workspaces where schedules have not ticked since their deadlines."""

    def __init__(self, statements: Statements, members: MemberSets) -> None:
        self._members = members
        self._deadlines = statements.rows("deadlines", schedule=TEXT, at=INTEGER)
        at_most = parameter("at_most", INTEGER)
        ticked = (SCHEDULES.c.tenant_id, SCHEDULES.c.workspace_id)
        is_late = and_(
            SCHEDULES.c.schedule == self._deadlines.c["schedule"], SCHEDULES.c.last_tick < self._deadlines.c["at"]
        )
        late = statements.for_each(
            self._deadlines,
            SCHEDULES,
            is_late,
            SCHEDULES.c.schedule,
            *ticked,
            SCHEDULES.c.last_tick,
            order=SCHEDULES.c.last_tick,
        ).subquery("late")
        self._late = statements(
            select(*late.c)
            .join_from(
                late,
                WORKSPACES,
                and_(WORKSPACES.c.tenant_id == late.c.tenant_id, WORKSPACES.c.workspace_id == late.c.workspace_id),
            )
            .where(WORKSPACES.c.has_log.is_(True))
            .limit(at_most)
        )
        self._lacking = statements.rows("lacking", schedule=TEXT, digest=TEXT)
        never = and_(WORKSPACES.c.ticked == self._lacking.c["digest"], WORKSPACES.c.has_log.is_(True))
        self._never = statements(
            statements.for_each(
                self._lacking,
                WORKSPACES,
                never,
                self._lacking.c["schedule"].label("schedule"),
                WORKSPACES.c.tenant_id,
                WORKSPACES.c.workspace_id,
                order=WORKSPACES.c.tenant_id,
            ).limit(at_most)
        )
        self._targets = statements.rows("targets", schedule=TEXT, tenant=TEXT, workspace=TEXT, at=INTEGER)
        target = self._targets.c
        self._listed = statements(
            select(target["schedule"], target["tenant"], target["workspace"], SCHEDULES.c.last_tick)
            .join_from(
                self._targets.source,
                SCHEDULES,
                and_(
                    SCHEDULES.c.tenant_id == target["tenant"],
                    SCHEDULES.c.workspace_id == target["workspace"],
                    SCHEDULES.c.schedule == target["schedule"],
                ),
                isouter=True,
            )
            .where(or_(SCHEDULES.c.last_tick.is_(None), SCHEDULES.c.last_tick < target["at"]))
            .limit(at_most)
        )

    async def find(
        self, fetcher: Fetcher, known: Known, deadlines: Mapping[str, Deadline], limit: int
    ) -> list[DueSchedule]:
        """Returns where schedules have not ticked since their deadlines."""
        if limit <= 0:
            return []
        names = {key(name): name for name in deadlines}
        everywhere = {key(name): micros(one.at) for name, one in deadlines.items() if one.workspaces is None}
        listed = [
            (key(name), workspace.tenant_id, workspace.workspace_id, micros(one.at))
            for name, one in deadlines.items()
            for workspace in sorted(one.workspaces or ())
        ]
        rows: list[Row] = []
        if listed:
            rows += await fetcher.fetch(self._listed, {**self._targets(listed), "at_most": within(limit)})
        if everywhere:
            rows += await fetcher.fetch(
                self._late, {**self._deadlines(list(everywhere.items())), "at_most": within(limit)}
            )
            ticked = await self._members.ticked(fetcher, known)
            lacking = [
                (name, digest) for name in everywhere for digest, members in ticked.items() if (name,) not in members
            ]
            if lacking:
                never = await fetcher.fetch(self._never, {**self._lacking(lacking), "at_most": within(limit)})
                rows += [(*row, None) for row in never]
        return [
            DueSchedule(WorkspaceRef(tenant, workspace), names[name], None if last is None else moment(last))
            for name, tenant, workspace, last in rows[:limit]
        ]


def _is_behind(settled: Members, watch: Watch) -> bool:
    """Whether one of the watched rules has something to do, where these are done and these namespaces are not."""
    return not settled.issuperset(watch.definitions.items()) or any((one,) in settled for one in watch.stored)


type _Shape = tuple[int, int]
"""How many queues of rules, and of stored rules' namespaces, a statement looks at."""


def _each_queue(runs: Select[*tuple[Any, ...]], shape: _Shape) -> Iterable[Select[*tuple[Any, ...]]]:
    """Restricts a selection of runs to each of so many queues in turn."""
    for column, name, number in ((RUNS.c.queue, "rule", shape[0]), (RUNS.c.stored_queue, "stored", shape[1])):
        for place in range(number):
            queue = runs.where(column == parameter(f"{name}_{place}", TEXT))
            yield select(queue.subquery(f"{name}_{place}"))


def _chunks(policy: RunPolicy) -> Iterable[tuple[_Shape, dict[str, str]]]:
    """Yields the queues that a policy admits, as many at a time as a statement looks at, by its parameters' names."""
    rules, stored = queues_of_rules(policy), sorted(policy.stored)
    for start in range(0, max(len(rules), len(stored)), _MOST_QUEUES):
        chunks = (("rule", rules[start : start + _MOST_QUEUES]), ("stored", stored[start : start + _MOST_QUEUES]))
        names = {f"{name}_{place}": queue for name, chunk in chunks for place, queue in enumerate(chunk)}
        yield (len(chunks[0][1]), len(chunks[1][1])), names


def _lease_of_run(lease: Any) -> ColumnElement[bool]:
    return and_(
        lease.c.tenant_id == RUNS.c.tenant_id,
        lease.c.workspace_id == RUNS.c.workspace_id,
        lease.c.name == literal(RUN_LEASE, TEXT) + RUNS.c.run_id,
    )
