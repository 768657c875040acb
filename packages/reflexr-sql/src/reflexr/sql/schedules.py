"""The last ticks of schedules, and the cursors of a log's other consumers."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import case, select

from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import (
    INTEGER,
    TEXT,
    Parameters,
    Statements,
    from_set,
    in_workspace,
    parameter,
    workspace_columns,
)
from reflexr.sql.tables import CURSORS, SCHEDULES
from reflexr.sql.values import key, micros, moment, within


class Ticks:
    """The statements on schedules' last ticks."""

    def __init__(self, statements: Statements) -> None:
        table = SCHEDULES
        self._new = statements.rows("new", schedule=TEXT, name=TEXT, number=INTEGER, last_tick=INTEGER)
        columns = ("schedule", "name", "number", "last_tick")
        insert = statements.insert(table).from_select(
            ["tenant_id", "workspace_id", *columns],
            from_set(*workspace_columns(), *(self._new.c[one] for one in columns)),
        )
        self._save = statements(
            insert.on_conflict_do_update(
                index_elements=["tenant_id", "workspace_id", "schedule"],
                set_={"last_tick": insert.excluded.last_tick},
                where=insert.excluded.last_tick > table.c.last_tick,
            )
        )
        self._select = statements(
            select(table.c.name, table.c.last_tick).where(in_workspace(table)).order_by(table.c.number)
        )

    async def keys(self, fetcher: Fetcher, workspace: Parameters) -> list[str]:
        """Returns the schedules that ticked, as an index holds their names."""
        return [key(name) for name, _ in await fetcher.fetch(self._select, workspace)]

    async def load(self, fetcher: Fetcher, workspace: Parameters) -> dict[str, datetime]:
        """Returns the time of each schedule's last tick, by name, in the order of creation."""
        return {name: moment(last) for name, last in await fetcher.fetch(self._select, workspace)}

    async def save(self, fetcher: Fetcher, workspace: Parameters, ticks: Mapping[str, datetime], number: int) -> None:
        """Saves ticks that are later than what is known, new schedules numbered from a number on."""
        rows = [(key(name), name, number + place, micros(at)) for place, (name, at) in enumerate(ticks.items())]
        await fetcher.fetch(self._save, {**workspace, **self._new(rows)})


class Cursors:
    """The statements on the cursors of a log's consumers."""

    def __init__(self, statements: Statements) -> None:
        table = CURSORS
        self._select = statements(
            select(table.c.seq).where(in_workspace(table), table.c.name == parameter("of_consumer", TEXT))
        )
        insert = statements.insert(table).from_select(
            ["tenant_id", "workspace_id", "name", "seq"],
            from_set(
                *workspace_columns(), parameter("of_consumer", TEXT).label("name"), parameter("to", INTEGER).label("to")
            ),
        )
        further = case((insert.excluded.seq > table.c.seq, insert.excluded.seq), else_=table.c.seq)
        self._save = statements(
            insert.on_conflict_do_update(
                index_elements=["tenant_id", "workspace_id", "name"], set_={"seq": further}
            ).returning(table.c.seq)
        )

    async def load(self, fetcher: Fetcher, workspace: Parameters, name: str) -> int:
        """Returns where a consumer stands."""
        rows = await fetcher.fetch(self._select, {**workspace, "of_consumer": key(name)})
        return rows[0][0] if rows else 0

    async def save(self, fetcher: Fetcher, workspace: Parameters, name: str, seq: int) -> int:
        """Moves a consumer's cursor forward, and returns where it is then."""
        rows = await fetcher.fetch(self._save, {**workspace, "of_consumer": key(name), "to": within(seq)})
        return rows[0][0]
