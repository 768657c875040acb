"""Databases with many rows, each table filled by one statement: a busy workspace, and many quiet ones beside it."""

import json
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from reflexr.core import Envelope, ScopeState
from reflexr.sql.queues import Line, Turn, queue_of_rule
from reflexr.sql.tables import (
    DOCUMENT,
    EVENTS,
    LEASES,
    MEMBERS,
    RUNS,
    SCHEDULES,
    SCOPE_STATES,
    WORKSPACES,
)
from reflexr.sql.values import micros

from .shop import REF, START, draft, run

ROWS: Final = 100_000
"""How many rows a table has."""

DUE: Final = 50
"""How many of them there is something to do for."""

RULE: Final = "sqlshop:restock"
OTHER: Final = "sqlshop:recount"
STORED: Final = "sqlshop-tenant:own"
NAMESPACE: Final = "sqlshop-tenant"
DEFINITION: Final = "d1"
SETTLED: Final = "settled"
SCHEDULE: Final = "nightly"
NOW: Final = micros(START)
SECOND: Final = 1_000_000


async def fill(connection: AsyncConnection, rows: int = ROWS) -> None:
    """Fills every table that grows. `START` is the time, and every workspace but the last few is done with its log."""
    n = literal_column("n", BigInteger)
    text = cast(n, Text)
    busy = {"tenant_id": literal(REF.tenant_id), "workspace_id": literal(REF.workspace_id)}
    late = n <= DUE
    envelope = Envelope.placed(draft("@id", item="tea"), seq=1, ts=START, workspace_id=REF.workspace_id).to_json()
    await _insert(
        connection,
        EVENTS,
        rows,
        **busy,
        seq=n,
        event_id=literal("e") + text,
        event_type=case((n % 1_000 == 0, "sqlshop:rare"), else_="sqlshop:sold"),
        rule=case((n % (rows // DUE) == 0, STORED), else_=None),
        envelope=_document(envelope.replace('"seq":1,', '"seq":@n,'), {"@id": literal("e") + text, "@n": text}),
    )
    await _insert(
        connection,
        WORKSPACES,
        rows,
        tenant_id=literal("tenant-") + cast(n % 100, Text),
        workspace_id=literal("w") + text,
        head_seq=literal(1),
        head_ts=literal(NOW),
        counter=literal(1),
        settled=case((late, ""), else_=SETTLED),
        unsettled=literal(""),
        ticked=literal(SETTLED),
        has_stored_rules=literal(False),
        has_log=literal(True),
    )
    await _insert(
        connection,
        WORKSPACES,
        1,
        **busy,
        head_seq=literal(rows),
        head_ts=literal(NOW),
        counter=literal(rows),
        settled=literal(SETTLED),
        unsettled=literal(""),
        ticked=literal(SETTLED),
        has_stored_rules=literal(False),
        has_log=literal(True),
    )
    members = [[RULE, DEFINITION], [OTHER, DEFINITION], [SCHEDULE]]
    await _insert(
        connection,
        MEMBERS,
        1,
        digest=literal(SETTLED),
        members=_document(json.dumps(members), {}),
    )
    await _insert(
        connection,
        SCHEDULES,
        rows,
        tenant_id=literal("tenant-") + cast(n % 100, Text),
        workspace_id=literal("w") + text,
        schedule=literal(SCHEDULE),
        name=literal(SCHEDULE),
        number=literal(1),
        last_tick=case((late, NOW - SECOND), else_=NOW),
    )
    await _fill_runs(connection, rows, n)
    state = TypeAdapter(ScopeState).dump_json(ScopeState()).decode()
    await _insert(
        connection,
        SCOPE_STATES,
        rows,
        **busy,
        rule=literal(RULE),
        scope=literal("[") + text + literal("]"),
        scope_key=literal("[") + text + literal("]"),
        due=case((late, NOW), (n % 2 == 0, NOW + n * SECOND), else_=None),
        expires=case((late, None), (n <= 2 * DUE, NOW), (n % 2 == 1, NOW + n * SECOND), else_=None),
        state=_document(state, {}),
    )


async def _fill_runs(connection: AsyncConnection, rows: int, n: ColumnElement[int]) -> None:
    """Many runs are finished or paused, many wait behind others or for a later time, and some may start.

    As many of these were running under a lease that has lapsed. Those that are paused are of the scope of those that
    wait behind others; half of them wait for any time. In other workspaces are a few runs each, of which some may
    start.
    """
    text = cast(n, Text)
    finished, paused = and_(n > rows // 2, n <= 3 * rows // 4), n > 3 * rows // 4
    behind, waits_for_ever = and_(n > rows // 4, n <= rows // 2), and_(paused, n % 2 == 0)
    lapsed, working = and_(n > DUE, n <= 2 * DUE), and_(n > 2 * DUE, n <= rows // 100)
    scope = case((or_(behind, paused), "[0]"), else_=literal("[") + text + literal("]"))
    busy = {"tenant_id": literal(REF.tenant_id), "workspace_id": literal(REF.workspace_id)}
    document = run("@id", rule=RULE, scope_key="@scope").model_dump_json()
    await _insert(
        connection,
        RUNS,
        rows,
        **busy,
        run_id=literal("r") + text,
        number=n,
        rule=literal(RULE),
        scope=scope,
        status=case(
            (finished, "succeeded"), (paused, "paused"), (lapsed, "running"), (working, "running"), else_="pending"
        ),
        generation=literal(1),
        fired_seq=n,
        line=case(
            (or_(finished, paused), None),
            (or_(lapsed, working), Line.RUNNING.value),
            else_=Line.WAITING.value,
        ),
        due=case((or_(finished, waits_for_ever), None), (n <= 2 * DUE, NOW - n), else_=NOW + n * SECOND),
        queue=case(
            (or_(finished, waits_for_ever), None),
            (behind, queue_of_rule(RULE, Turn.BEHIND)),
            else_=queue_of_rule(RULE, Turn.FREE),
        ),
        run=_document(document, {"@id": literal("r") + text, "@scope": scope}),
    )
    for rule, stored, time in ((RULE, None, NOW), (RULE, None, NOW + SECOND), (STORED, NAMESPACE, NOW)):
        await _insert(
            connection,
            RUNS,
            rows // 100,
            tenant_id=literal("tenant-") + cast(n % 100, Text),
            workspace_id=literal("w") + text,
            run_id=literal(f"{rule}-{time}"),
            number=literal(1),
            rule=literal(rule),
            scope=literal(str(time)),
            status=literal("pending"),
            generation=literal(1),
            fired_seq=n,
            line=literal(Line.WAITING.value),
            due=case((n % 10 == 0, NOW - 1), else_=time + n * SECOND),
            queue=literal(queue_of_rule(rule, Turn.FREE)),
            stored_queue=literal(stored, Text),
            run=_document(document, {"@id": literal(f"{rule}-{time}"), "@scope": literal(str(time))}),
        )
    await _insert(
        connection,
        LEASES,
        rows // 100,
        **busy,
        name=literal("run:r") + text,
        holder=literal("h"),
        expires=case((n <= 2 * DUE, NOW - n), else_=NOW + n * SECOND),
    )


def _document(written: str, parts: dict[str, ColumnElement[Any]]) -> ColumnElement[Any]:
    """A JSON text of which parts are different in each row."""
    document: ColumnElement[Any] = literal(written, Text)
    for part, value in parts.items():
        document = func.replace(document, part, value)
    return cast(document, DOCUMENT)


async def _insert(connection: AsyncConnection, table: Any, rows: int, **values: ColumnElement[Any]) -> None:
    """Inserts so many rows by one statement; `n` is each one's number."""
    first = select(literal(1, BigInteger).label("n")).cte("numbers", recursive=True)
    numbers = first.union_all(select(first.c.n + 1).where(first.c.n < rows))
    chosen: Select[Any] = select(*(value.label(name) for name, value in values.items())).select_from(numbers)
    await connection.execute(table.insert().from_select(list(values), chosen))
