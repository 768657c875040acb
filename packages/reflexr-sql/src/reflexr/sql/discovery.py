"""Discovery: where there is something to do, over all workspaces, as ranges of indexes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import (
    Select,
    and_,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    union,
    union_all,
)

from reflexr.sql.members import Known, Members, MemberSets
from reflexr.sql.queues import Line, queues_of_rules
from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import INTEGER, TEXT, Row, Statement, Statements, in_workspace_of, parameter
from reflexr.sql.tables import LEASES, RULE_PROGRESS, RUNS, SCHEDULES, WORKSPACES
from reflexr.sql.turns import Share, Turns, due_run, lease_of, may_start
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
        self._doubts = statements.rows_of_workspace("doubts", rule=TEXT, definition=TEXT)
        start = tuple_(parameter("from_digest", TEXT), parameter("from_tenant", TEXT), parameter("from", TEXT))
        self._behind = statements(
            select(*full_place, table.c.has_stored_rules)
            .where(
                table.c.has_log.is_(True),
                self._digests.holds(table.c.settled, "digest"),
                tuple_(*full_place) > start,
            )
            .order_by(*full_place)
            .limit(parameter("at_most", INTEGER))
        )
        head = select(table.c.head_seq).where(
            table.c.tenant_id == RULE_PROGRESS.c.tenant_id, table.c.workspace_id == RULE_PROGRESS.c.workspace_id
        )
        is_done = and_(
            in_workspace_of(RULE_PROGRESS, self._doubts),
            RULE_PROGRESS.c.definition == self._doubts.c["definition"],
            RULE_PROGRESS.c.cursor >= head.scalar_subquery(),
        )
        self._done = statements(
            statements.one_for_each(
                self._doubts,
                RULE_PROGRESS,
                is_done,
                RULE_PROGRESS.c.tenant_id,
                RULE_PROGRESS.c.workspace_id,
                last=(RULE_PROGRESS.c.rule, self._doubts.c["rule"]),
            )
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
        behind = {digest: members for digest, members in settled.items() if _is_behind(members, watch)}
        if not behind or limit <= 0:
            return [], START
        places = await self._places(fetcher, behind, watch, start, limit)
        if len(places) < limit and start != START:
            again = await self._places(fetcher, behind, watch, START, limit)
            places = list(dict.fromkeys([*places, *again]))[:limit]
        after = places[-1] if len(places) == limit else START
        return [WorkspaceRef(tenant, workspace) for _, tenant, workspace in places], after

    async def _places(
        self, fetcher: Fetcher, behind: Mapping[str, Members], watch: Watch, start: Place, limit: int
    ) -> list[Place]:
        """Returns the places of workspaces that are behind, in order, from a place on."""
        digests = self._digests([(one,) for one in sorted(behind)])
        found: list[Place] = []
        while True:
            place = {"from_digest": start[0], "from_tenant": start[1], "from": start[2], "at_most": within(limit)}
            page = await fetcher.fetch(self._behind, {**place, **digests})
            done = await self._done_all_the_same(fetcher, behind, watch, page)
            found += [one for digest, tenant, workspace, _ in page if (one := (digest, tenant, workspace)) not in done]
            if len(page) < limit or len(found) >= limit:
                return found[:limit]
            start = (page[-1][0], page[-1][1], page[-1][2])

    async def _done_all_the_same(
        self, fetcher: Fetcher, behind: Mapping[str, Members], watch: Watch, page: Iterable[Row]
    ) -> set[Place]:
        """Returns which of these workspaces are not behind, though the set of what is done there lacks a watched rule.

        A set lacks every rule that is stored in its workspace, or each such workspace would have a set of its own. Once
        the application has a rule of that name in its code instead, only the rule's progress says whether it is done.
        """
        doubts = {
            (digest, tenant, workspace): watch.definitions.items() - behind[digest]
            for digest, tenant, workspace, has_stored_rules in page
            if has_stored_rules and not any((one,) in behind[digest] for one in watch.stored)
        }
        rows = [
            (tenant, workspace, key(rule), definition)
            for (_, tenant, workspace), lacking in doubts.items()
            for rule, definition in lacking
        ]
        if not rows:
            return set()
        done = Counter((tenant, workspace) for tenant, workspace in await fetcher.fetch(self._done, self._doubts(rows)))
        return {place for place, lacking in doubts.items() if done[place[1:]] == len(lacking)}


class DueRuns:
    """Finds runs that may start, and paused ones that nobody answered in time."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._find: dict[_Shape, Statement] = {}
        self._next: dict[_Shape, Statement] = {}
        self._turns = Turns(statements)

    async def find(self, fetcher: Fetcher, policy: RunPolicy, share: Share, now: int | None) -> list[DueRun]:
        """Returns runs that are due now, of which workspaces take turns."""
        if share.most <= 0:
            return []
        rows: list[Row] = []
        at_most = within(share.limit + len(share.but_runs) + 1)
        for shape, names in _chunks(policy):
            if (statement := self._find.get(shape)) is None:
                statement = self._find[shape] = self._statements(self._finding(shape))
            found = await fetcher.fetch(statement, {**names, "now": now, "at_most": at_most})
            if len(found) == at_most:
                # There may be more, of others than those that have waited longest.
                return await self._turns.find(fetcher, policy, share, now)
            rows += found
        return share.in_turns(share.of(rows))

    async def next(self, fetcher: Fetcher, policy: RunPolicy, now: int | None) -> timedelta | None:
        """Returns how long it is until a run may start, or was not answered in time."""
        soonest: list[tuple[int, int]] = []
        for shape, names in _chunks(policy):
            if (statement := self._next.get(shape)) is None:
                statement = self._next[shape] = self._statements(self._looking_ahead(shape))
            soonest += [(due, at) for due, at in await fetcher.fetch(statement, {**names, "now": now})]
        return min((max(timedelta(microseconds=due - at), timedelta()) for due, at in soonest), default=None)

    def _finding(self, shape: "_Shape") -> Select[*tuple[Any, ...]]:
        due = (
            select(*due_run())
            .where(may_start(RUNS, self._statements))
            .order_by(RUNS.c.due)
            .limit(parameter("at_most", INTEGER))
        )
        # A run that is in two queues is one run: two of it would leave room for fewer.
        found = union(*_each_queue(due, shape)).subquery("found")
        return select(found).order_by(found.c.due).limit(parameter("at_most", INTEGER))

    def _looking_ahead(self, shape: "_Shape") -> Select[*tuple[Any, ...]]:
        lease = LEASES.alias("lease")
        lapses = select(lease.c.expires).where(lease_of(lease, RUNS), RUNS.c.line == Line.RUNNING.value)
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
