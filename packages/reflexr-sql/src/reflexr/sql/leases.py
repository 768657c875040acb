"""Leases: who holds what until when, judged by the database's clock where it has one."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Final

from sqlalchemy import delete, or_, select, tuple_, update

from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import INTEGER, TEXT, Statements, from_set, parameter
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
        self._set_due = statements(
            update(RUNS)
            .where(
                RUNS.c.tenant_id == self._due.c["tenant"],
                RUNS.c.workspace_id == self._due.c["workspace"],
                RUNS.c.run_id == self._due.c["run_id"],
                RUNS.c.line == 0,
            )
            .values(due=self._due.c["due"])
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
        rows = sorted(
            (tenant, workspace, name.removeprefix(RUN_LEASE), dues[lease])
            for (tenant, workspace, name), lease in places_of(dues).items()
            if is_of_run(lease)
        )
        if rows:
            await fetcher.fetch(self._set_due, self._due(rows))


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
