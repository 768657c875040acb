"""Leases: who holds what until when, judged by the database's clock where it has one."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Final

from sqlalchemy import (
    ColumnElement,
    Executable,
    FromClause,
    and_,
    delete,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import INTEGER, TEXT, Statements, from_set, parameter, row_by_row
from reflexr.sql.tables import LEASES, RUNS
from reflexr.sql.values import duration_micros, key
from reflexr.workspace import LeaseKey, run_lease

RUN_LEASE: Final = run_lease("")
"""What the names of the leases on runs begin with."""

type Place = tuple[str, str, str]
"""A lease's tenant, workspace and name, as its row holds them."""


class Leases:
    """The statements on leases.

    When the lease on a running run lapses, the run is due again, which its own row says too. The row may say too early,
    never too late: it is changed after a lease was taken, and before one is given back.
    """

    def __init__(self, statements: Statements) -> None:
        table = LEASES
        place = (table.c.tenant_id, table.c.workspace_id, table.c.name)
        self._keys = statements.rows("keys", tenant=TEXT, workspace=TEXT, name=TEXT)
        holder, until = parameter("by_holder", TEXT), statements.now + parameter("ttl", INTEGER)
        # In one order everywhere, so that nobody waits for somebody who waits for him.
        rows = from_set(*self._keys.c.values(), holder.label("holder"), until.label("expires"))
        insert = statements.insert(table).from_select(
            ["tenant_id", "workspace_id", "name", "holder", "expires"], rows.order_by(*self._keys.c.values())
        )
        self._acquire = statements(
            insert.on_conflict_do_update(
                index_elements=["tenant_id", "workspace_id", "name"],
                set_={"holder": insert.excluded.holder, "expires": insert.excluded.expires},
                where=or_(table.c.expires <= statements.now, table.c.holder == insert.excluded.holder),
            ).returning(*place, table.c.expires)
        )
        held = (
            select(*place)
            .join_from(self._keys.source, table, tuple_(*place) == tuple_(*self._keys.c.values()))
            .where(table.c.holder == holder)
            .order_by(*place)
            .with_for_update(of=table)
        )
        live = held.where(table.c.expires > statements.now)
        self._renew = statements(
            update(table).where(tuple_(*place).in_(live)).values(expires=until).returning(*place, table.c.expires)
        )
        self._held = statements(held)
        self._release = statements(delete(table).where(tuple_(*place).in_(held)).returning(*place))
        self._holders = statements(
            select(table.c.name, table.c.holder)
            .join_from(self._keys.source, table, tuple_(*place) == tuple_(*self._keys.c.values()))
            .where(table.c.expires > statements.now)
        )
        self._due = statements.rows("lapsing", tenant=TEXT, workspace=TEXT, run_id=TEXT, due=INTEGER)
        if statements.is_postgresql:
            self._set_due = statements(self._setting_due(statements))
            self._set_later = statements(self._setting_due(statements, skip_locked=True))
        else:
            is_it = RUNS.c.run_id == self._due.c["run_id"]
            set_due = update(RUNS).where(self._is_working(RUNS), is_it).values(due=self._due.c["due"])
            self._set_due = self._set_later = statements(set_due)

    def _setting_due(self, statements: Statements, *, skip_locked: bool = False) -> Executable:
        """Returns what says of runs that are there when they are due, for PostgreSQL alone.

        Each is looked up row by row, and found again by the one index of a conflict. An UPDATE that joins would rather
        walk through all of a workspace for each run, where PostgreSQL believes that it has hardly any.
        """
        run = RUNS.alias("working")
        run_id = self._due.c["run_id"]
        there = [run.c[column.name] for column in RUNS.c if not column.nullable]
        belonging = (
            select(*there, self._due.c["due"].label("due"))
            .where(self._is_working(run), run.c.run_id.between(run_id, run_id))
            .order_by(run.c.run_id)
            .limit(literal_column("1"))
        )
        if skip_locked:
            belonging = belonging.with_for_update(of=run, skip_locked=True)
        insert = statements.insert(RUNS).from_select(
            [*(column.name for column in there), "due"], row_by_row(self._due, belonging)
        )
        return insert.on_conflict_do_update(
            index_elements=["tenant_id", "workspace_id", "run_id"],
            set_={"due": insert.excluded.due},
            where=RUNS.c.line == literal_column("0"),
        )

    def _is_working(self, run: FromClause) -> ColumnElement[bool]:
        return and_(
            run.c.tenant_id == self._due.c["tenant"],
            run.c.workspace_id == self._due.c["workspace"],
            # Not by the index of lines, which PostgreSQL believes to be as good in a workspace with hardly a run.
            func.coalesce(run.c.line, literal_column("-1")) == 0,
        )

    async def acquire(
        self, fetcher: Fetcher, keys: Collection[LeaseKey], holder: str, ttl: timedelta, now: int | None
    ) -> dict[LeaseKey, int]:
        """Takes the leases that nobody else holds, and returns until when each is taken, in microseconds."""
        places = places_of(keys)
        rows = await fetcher.fetch(
            self._acquire,
            {**self._keys(list(places)), "by_holder": key(holder), "ttl": duration_micros(ttl), "now": now},
        )
        return {places[tenant, workspace, name]: expires for tenant, workspace, name, expires in rows}

    async def renew(
        self, fetcher: Fetcher, keys: Collection[LeaseKey], holder: str, ttl: timedelta, now: int | None
    ) -> dict[LeaseKey, int]:
        """Extends the leases that the holder has, and returns until when, in microseconds."""
        places = places_of(keys)
        rows = await fetcher.fetch(
            self._renew,
            {**self._keys(list(places)), "by_holder": key(holder), "ttl": duration_micros(ttl), "now": now},
        )
        return {places[tenant, workspace, name]: expires for tenant, workspace, name, expires in rows}

    async def held(self, fetcher: Fetcher, keys: Collection[LeaseKey], holder: str) -> list[LeaseKey]:
        """Returns those of the leases that a holder took, whether or not they have lapsed."""
        places = places_of(keys)
        rows = await fetcher.fetch(self._held, {**self._keys(list(places)), "by_holder": key(holder)})
        return [places[tenant, workspace, name] for tenant, workspace, name in rows]

    async def release(self, fetcher: Fetcher, keys: Collection[LeaseKey], holder: str) -> list[LeaseKey]:
        """Gives back leases that a holder took, and returns them."""
        places = places_of(keys)
        rows = await fetcher.fetch(self._release, {**self._keys(list(places)), "by_holder": key(holder)})
        return [places[tenant, workspace, name] for tenant, workspace, name in rows]

    async def holders(self, fetcher: Fetcher, keys: Collection[LeaseKey], now: int | None) -> dict[str, str]:
        """Returns the holder of each of these leases of one workspace that is live, by name."""
        places = places_of(keys)
        names = {name: lease.name for (_, _, name), lease in places.items()}
        rows = await fetcher.fetch(self._holders, {**self._keys(list(places)), "now": now})
        return {names[name]: holder for name, holder in rows}

    async def set_due(self, fetcher: Fetcher, dues: Mapping[LeaseKey, int]) -> None:
        """Has the running runs of these leases found once the time has come; other leases are left alone."""
        if rows := _of_runs(dues):
            await fetcher.fetch(self._set_due, self._due(rows))

    async def set_later(self, fetcher: Fetcher, dues: Mapping[LeaseKey, int]) -> None:
        """Does as `set_due` for times that are later than those before, outside a transaction.

        A run that a transaction has at hand is passed over, as the two might wait for each other. Its row says too
        early then, until the lease is extended again.
        """
        if rows := _of_runs(dues):
            await fetcher.fetch(self._set_later, self._due(rows))


def _of_runs(dues: Mapping[LeaseKey, int]) -> list[tuple[str, str, str, int]]:
    return sorted(
        (tenant, workspace, name.removeprefix(RUN_LEASE), dues[lease])
        for (tenant, workspace, name), lease in places_of(dues).items()
        if is_of_run(lease)
    )


def is_of_run(lease: LeaseKey) -> bool:
    """Whether a lease is one on a run."""
    return lease.name.startswith(RUN_LEASE)


def places_of(keys: Collection[LeaseKey]) -> dict[Place, LeaseKey]:
    """Returns leases by what their rows hold, in one order everywhere."""
    places = {(one.workspace.tenant_id, one.workspace.workspace_id, _name(one.name)): one for one in keys}
    return dict(sorted(places.items()))


def _name(name: str) -> str:
    # That of a run's lease can be made of what the run's own row holds of its id.
    return f"{RUN_LEASE}{key(name.removeprefix(RUN_LEASE))}" if name.startswith(RUN_LEASE) else key(name)
