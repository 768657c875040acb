"""The workspace's row: taking it is the lock, and it holds what a transaction knows from its beginning."""

from dataclasses import dataclass

from sqlalchemy import BigInteger, extract, func, select, update
from sqlalchemy import cast as sql_cast

from reflexr.sql.members import NOBODY
from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import (
    BOOLEAN,
    INTEGER,
    TEXT,
    Parameters,
    Statements,
    in_workspace,
    parameter,
)
from reflexr.sql.tables import WORKSPACES
from reflexr.sql.writing import Writer

_COLUMNS = ("head_seq", "head_ts", "counter", "settled", "unsettled", "ticked", "has_stored_rules")


@dataclass(slots=True)
class WorkspaceRow:
    """What a workspace's row holds.

    Attributes:
        head_seq: The place of the log's last envelope.
        head_ts: Its time, in microseconds.
        counter: The number of what is created next.
        settled: The digest of the rules that are done with the log.
        unsettled: That of what is left of them once the log grows.
        ticked: That of the schedules that ticked.
        has_stored_rules: Whether a rule was ever stored.
        now: What time it is, in microseconds.
    """

    head_seq: int
    head_ts: int | None
    counter: int
    settled: str
    unsettled: str
    ticked: str
    has_stored_rules: bool
    now: int


class Clocks:
    """The statement that asks what time it is."""

    def __init__(self, statements: Statements) -> None:
        self._now = statements(select(statements.now))

    async def now(self, fetcher: Fetcher) -> int:
        """Returns what time it is by the database's clock, in microseconds."""
        return (await fetcher.fetch(self._now, {}))[0][0]


class Locks:
    """The statements on workspaces' rows."""

    def __init__(self, statements: Statements) -> None:
        table = WORKSPACES
        columns = [table.c[one] for one in _COLUMNS]
        self._head = statements(select(table.c.head_seq, table.c.head_ts).where(in_workspace(table)))
        locked = select(*columns).where(in_workspace(table)).with_for_update()
        if statements.is_postgresql:
            # The time is told once the row is there, not before the wait for it.
            held = locked.cte("held").prefix_with("MATERIALIZED", dialect="postgresql")
            now = sql_cast(extract("epoch", func.clock_timestamp()) * 1_000_000, BigInteger)
            self._lock = statements(select(*held.c, now))
        else:
            self._lock = statements(locked)
        new = {
            "head_seq": 0,
            "counter": 0,
            "settled": NOBODY,
            "unsettled": NOBODY,
            "ticked": NOBODY,
            "has_stored_rules": False,
            "has_log": False,
        }
        insert = statements.insert(table).values(
            tenant_id=parameter("tenant", TEXT), workspace_id=parameter("workspace", TEXT), **new
        )
        self._create = statements(insert.on_conflict_do_nothing(index_elements=["tenant_id", "workspace_id"]))
        self._update = statements(
            update(table)
            .where(in_workspace(table))
            .values(
                head_seq=parameter("to_seq", INTEGER),
                head_ts=parameter("to_ts", INTEGER),
                has_log=parameter("to_seq", INTEGER) > 0,
                counter=parameter("to_counter", INTEGER),
                settled=parameter("to_settled", TEXT),
                unsettled=parameter("to_unsettled", TEXT),
                ticked=parameter("to_ticked", TEXT),
                has_stored_rules=parameter("to_has_stored_rules", BOOLEAN),
            )
        )

    async def take(self, fetcher: Fetcher, workspace: Parameters) -> WorkspaceRow:
        """Waits for a workspace's row, which is made if there is none, and keeps it until the transaction ends."""
        while not (rows := await fetcher.fetch(self._lock, workspace)):
            await fetcher.fetch(self._create, workspace)
        head_seq, head_ts, counter, settled, unsettled, ticked, has_stored_rules, *now = rows[0]
        return WorkspaceRow(
            head_seq=head_seq,
            head_ts=head_ts,
            counter=counter,
            settled=settled,
            unsettled=unsettled,
            ticked=ticked,
            has_stored_rules=bool(has_stored_rules),
            now=now[0] if now else 0,
        )

    async def head(self, fetcher: Fetcher, workspace: Parameters) -> tuple[int, int | None]:
        """Returns the place and the time of a log's last envelope."""
        rows = await fetcher.fetch(self._head, workspace)
        return (rows[0][0], rows[0][1]) if rows else (0, None)

    async def save(self, writer: Writer, workspace: Parameters, row: WorkspaceRow) -> None:
        """Saves a row."""
        await writer.write(
            self._update,
            {
                **workspace,
                "to_seq": row.head_seq,
                "to_ts": row.head_ts,
                "to_counter": row.counter,
                "to_settled": row.settled,
                "to_unsettled": row.unsettled,
                "to_ticked": row.ticked,
                "to_has_stored_rules": row.has_stored_rules,
            },
        )
