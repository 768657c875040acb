"""How the databases go about statements at 100,000 rows a table: by ranges of indexes, and never through a table."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, Literal

import pytest
from sqlalchemy import event, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.core import Needs, Rule, StoredRule, on
from reflexr.core import run as action
from reflexr.sql import SqlStorage, create_sqlite_engine, migrate
from reflexr.sql.tables import EVENTS, RUNS, SCHEDULES, SCOPE_STATES, WORKSPACES
from reflexr.workspace import (
    Deadline,
    LeaseKey,
    LogWindow,
    ManualClock,
    RunPolicy,
    RunScope,
    StateChanges,
    Transaction,
    Watch,
    WorkspaceRef,
    run_lease,
)

from . import crowds
from .servers import database_url, server_url
from .shop import HOUR, REF, START, Sold, run

type Statistics = Literal["none", "fresh"]
"""What PostgreSQL knows of its tables: nothing yet, or all of it. SQLite gathers none by itself."""

DATABASES: Final = [("sqlite", "none"), ("postgresql", "none"), ("postgresql", "fresh")]
WATCH: Final = Watch({crowds.RULE: crowds.DEFINITION})
POLICY: Final = RunPolicy(ordered=frozenset({crowds.RULE}), blocking=frozenset({crowds.RULE}))
STORED: Final = RunPolicy(stored=frozenset({crowds.NAMESPACE}))
SOON: Final = timedelta(seconds=1)
SCOPES: Final = [RunScope(crowds.RULE, "[0]"), RunScope(crowds.RULE, "[7]")]
CHANGED: Final = StoredRule(rule=Rule(name=crowds.OTHER, when=on(Sold), then=action("page")), version=1)
IDS: Final = [f"r{number}" for number in range(2 * crowds.DUE + 1, 2 * crowds.DUE + 60)]

BIG: Final = frozenset(one.name for one in (EVENTS, WORKSPACES, RUNS, SCOPE_STATES, SCHEDULES))
"""The tables that grow. There are as many leases as there is work in hand, and few sets of rules."""

ALIASES: Final = frozenset({"first", "expired", "following", "waiting"})
"""What statements call them besides."""

type Act = Callable[[SqlStorage], Awaitable[object]]
type TransactionAct = Callable[[Transaction], Awaitable[object]]


def inside(act: TransactionAct) -> Act:
    """Does something inside a transaction, of which nothing stays."""

    async def within(storage: SqlStorage) -> None:
        with suppress(_UndoneError):
            async with storage.transaction(REF) as transaction:
                await act(transaction)
                # By the time that something is read, what was kept back is written.
                await transaction.schedule_ticks()
                raise _UndoneError

    return within


class _UndoneError(Exception):
    pass


# What is done, and the ranges by which it is: an index, and the last of the columns that bound the range.
CASES: Final[dict[str, tuple[Act, dict[str, str]]]] = {
    "a publish looks for its ids": (
        inside(lambda transaction: transaction.find(["e7", "none"])),
        {"reflexr_workspaces_pkey": "workspace_id", "reflexr_events_id": "event_id"},
    ),
    "the tail of a log": (
        lambda storage: storage.read(REF, LogWindow(last=10)),
        {"reflexr_events_pkey": "seq"},
    ),
    "what comes after a place": (
        lambda storage: storage.read(REF, LogWindow(after_seq=crowds.ROWS - 10)),
        {"reflexr_events_pkey": "seq"},
    ),
    "what comes after a place, of some types": (
        lambda storage: storage.read(
            REF, LogWindow(after_seq=100, limit=10, types=frozenset({"sqlshop:rare", "sqlshop:none"}))
        ),
        {"reflexr_events_type": "seq"},
    ),
    "the last of a type": (
        lambda storage: storage.read(REF, LogWindow(last=10, types=frozenset({"sqlshop:rare"}))),
        {"reflexr_events_type": "seq"},
    ),
    "envelopes by their places": (
        inside(lambda transaction: transaction.read_seqs([1, 500, crowds.ROWS])),
        {"reflexr_events_pkey": "seq"},
    ),
    "a stored rule's history": (
        lambda storage: storage.rule_history(REF, crowds.STORED),
        {"reflexr_events_rule": "rule"},
    ),
    "workspaces behind their rules": (
        lambda storage: storage.behind(WATCH, limit=100),
        {"reflexr_workspaces_settled": "settled"},
    ),
    "a page of workspaces": (
        lambda storage: storage.workspaces(tenant_id="tenant-7", limit=10),
        {"reflexr_workspaces_log": "workspace_id"},
    ),
    "due schedules": (
        lambda storage: storage.due_schedules({crowds.SCHEDULE: Deadline(START)}, limit=10),
        {"reflexr_schedules_last_tick": "last_tick"},
    ),
    "due runs, and those whose lease has lapsed": (
        lambda storage: storage.due_runs(POLICY, limit=2 * crowds.DUE),
        {"reflexr_runs_queue": "due"},
    ),
    "due runs of one workspace after another": (
        lambda storage: storage.due_runs(POLICY, limit=10, after=WorkspaceRef("tenant-30", "w30")),
        {"reflexr_runs_queue": "due", "reflexr_runs_turns": "due"},
    ),
    "due runs of stored rules of one workspace after another": (
        lambda storage: storage.due_runs(STORED, limit=10, after=WorkspaceRef("tenant-30", "w30")),
        {"reflexr_runs_stored_queue": "due", "reflexr_runs_stored_turns": "due"},
    ),
    "when a run is due": (
        lambda storage: storage.next_due(POLICY),
        {"reflexr_runs_queue": "queue"},
    ),
    "the runs whose turn it is": (
        inside(lambda transaction: transaction.first_runs(SCOPES)),
        {"reflexr_runs_line": "line"},
    ),
    "runs by their ids": (
        inside(lambda transaction: transaction.runs(IDS)),
        {"reflexr_runs_pkey": "run_id"},
    ),
    "runs that are saved": (
        inside(lambda transaction: transaction.save_runs([run(one, scope_key="[0]") for one in IDS])),
        {"reflexr_runs_line": "line"},
    ),
    "runs of a stored rule that changed": (
        inside(lambda transaction: transaction.save_stored_rules([CHANGED])),
        {"reflexr_runs_line": "scope", "reflexr_runs_turns": "workspace_id"},
    ),
    "what an evaluation begins with": (
        inside(lambda transaction: transaction.progress()),
        {"reflexr_runs_line": "workspace_id"},
    ),
    "leases that are renewed": (
        lambda storage: storage.renew([LeaseKey(REF, run_lease(one)) for one in IDS], "h", HOUR),
        {"reflexr_runs_pkey": "run_id"},
    ),
    "states by their scopes, and those that are due": (
        inside(lambda transaction: transaction.states({crowds.RULE: Needs(frozenset({"[7]", "[0]"}), START, ())})),
        {"reflexr_scope_states_pkey": "scope", "reflexr_scope_states_due": "due"},
    ),
    "states that have expired, and those that are dropped": (
        inside(
            lambda transaction: transaction.change_states(
                {crowds.RULE: StateChanges(dropped=frozenset({"[7]"}), expired_through=START)}
            )
        ),
        {"reflexr_scope_states_pkey": "scope", "reflexr_scope_states_expires": "expires"},
    ),
}


@pytest.mark.parametrize(("kind", "statistics"), DATABASES)
@pytest.mark.parametrize("name", CASES)
async def test_what_is_looked_for_is_found_by_the_ranges_of_its_indexes(
    kind: str, statistics: Statistics, name: str
) -> None:
    act, ranges = CASES[name]
    async with opened(kind, statistics) as engine:
        plan = await planned(engine, act)
    assert plan.walks == [], plan.text
    for index, column in ranges.items():
        assert any(column in columns for columns in plan.ranges.get(index, [])), plan.text


@pytest.mark.parametrize(("kind", "statistics"), DATABASES)
async def test_runs_whose_leases_are_renewed_are_found_by_their_ids_alone(kind: str, statistics: Statistics) -> None:
    act, _ = CASES["leases that are renewed"]
    async with opened(kind, statistics) as engine:
        plan = await planned(engine, act)
    of_runs = {index: columns for index, columns in plan.ranges.items() if index.startswith("reflexr_runs")}
    assert list(of_runs) == ["reflexr_runs_pkey"], plan.text
    assert all("run_id" in columns for columns in of_runs["reflexr_runs_pkey"]), plan.text


@pytest.mark.parametrize(("kind", "statistics"), DATABASES)
@pytest.mark.parametrize(
    ("policy", "index", "column"),
    [(POLICY, "reflexr_runs_turns", "workspace_id"), (STORED, "reflexr_runs_stored_turns", "rule")],
)
async def test_from_a_workspace_to_the_next_every_step_is_a_range_of_the_index(
    kind: str, statistics: Statistics, policy: RunPolicy, index: str, column: str
) -> None:
    async with opened(kind, statistics) as engine:
        plan = await planned(engine, lambda storage: storage.due_runs(policy, limit=10))
    # Of the first place, of the next one, and of the runs there.
    assert len(plan.ranges[index]) > 2
    assert all({"queue", "stored_queue"} & columns and column in columns for columns in plan.ranges[index]), plan.text


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_thousand_workspaces_take_turns_ten_at_a_time(kind: str) -> None:
    async with opened(kind, "none") as engine:
        storage = SqlStorage(engine, clock=ManualClock(START), listen=False)
        found: list[WorkspaceRef] = []
        for _ in range(10):
            runs = await storage.due_runs(POLICY, limit=10, after=found[-1] if found else None)
            assert len({run.workspace for run in runs}) == 10
            found += [run.workspace for run in runs]
    due = [WorkspaceRef(f"tenant-{number % 100}", f"w{number}") for number in range(10, crowds.ROWS // 100 + 1, 10)]
    assert found == sorted([REF, *due])[:100]


class Plan:
    """How a database goes about statements.

    Attributes:
        text: The plans, as the database writes them.
        walks: The tables that are gone through from one end to the other.
        ranges: The columns that bound each range of an index that is read, by index.
    """

    def __init__(self) -> None:
        self.text = ""
        self.walks: list[str] = []
        self.ranges: dict[str, list[frozenset[str]]] = {}

    def add_sqlite(self, lines: list[str]) -> None:
        """Adds what SQLite's EXPLAIN QUERY PLAN says."""
        self.text += "\n".join(lines) + "\n"
        for line in lines:
            if (walk := re.match(r"SCAN (\w+)(?! VIRTUAL TABLE)", line)) and not line.endswith(
                "VIRTUAL TABLE INDEX 1:"
            ):
                self.walks += [walk[1]] if walk[1].startswith(("reflexr_", "lease", *ALIASES)) else []
            if found := re.search(r"SEARCH .*USING (?:COVERING )?INDEX (\w+) \((.*)\)", line):
                name = re.sub(r"^sqlite_autoindex_(\w+)_\d+$", r"\1_pkey", found[1])
                bounds = re.findall(r"([\w,]+)\)?[=<>]", found[2])
                self.ranges.setdefault(name, []).append(frozenset(",".join(bounds).split(",")))

    def add_postgresql(self, node: dict[str, Any], depth: int) -> None:
        """Adds what PostgreSQL's EXPLAIN says of a step and those beneath."""
        told = ("Node Type", "Relation Name", "Index Name", "Index Cond", "Filter", "Join Filter", "Hash Cond")
        self.text += "  " * depth + ", ".join(str(node[one]) for one in told if one in node) + "\n"
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in BIG:
            self.walks.append(node["Relation Name"])
        if "Index Name" in node:
            columns = frozenset(re.findall(r"\w+", node.get("Index Cond", "")))
            self.ranges.setdefault(node["Index Name"], []).append(columns)
        for child in node.get("Plans", []):
            self.add_postgresql(child, depth + 1)


async def planned(engine: AsyncEngine, act: Act) -> Plan:
    """Does something, and returns how the database goes about each of its statements that has parameters."""
    plan = Plan()
    storage = SqlStorage(engine, clock=ManualClock(START), listen=False, direct=False)
    with recorded(engine) as statements:
        await act(storage)
    async with engine.connect() as connection:
        for statement, parameters in statements:
            if engine.dialect.name == "sqlite":
                rows = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                plan.add_sqlite([row.detail for row in rows])
            else:
                rows = await connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
                (explained,) = rows.scalar_one()
                plan.add_postgresql(explained["Plan"], depth=0)
    return plan


@contextmanager
def recorded(engine: AsyncEngine) -> Generator[list[tuple[str, Any]]]:
    """Records the statements that go through an engine, with their parameters; not those that begin a transaction."""
    statements: list[tuple[str, Any]] = []

    def record(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if not statement.startswith("BEGIN"):
            statements.append((statement, parameters))

    event.listen(engine.sync_engine, "before_cursor_execute", record)
    try:
        yield statements
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", record)


@asynccontextmanager
async def opened(kind: str, statistics: Statistics) -> AsyncGenerator[AsyncEngine]:
    """Opens an engine on a database that is full."""
    engine = _engine(_filled(kind, statistics))
    try:
        yield engine
    finally:
        await engine.dispose()


@cache
def _filled(kind: str, statistics: Statistics) -> str:
    """The URL of a database that is full, which this process keeps."""
    if kind == "sqlite":
        url = f"sqlite+aiosqlite:///{Path(mkdtemp()) / 'full.db'}"
    else:
        own = make_url(database_url())
        url = own.set(database=f"{own.database}_{statistics}").render_as_string(hide_password=False)
    with ThreadPoolExecutor(1) as threads:
        # The caller is in a loop of its own.
        threads.submit(asyncio.run, _fill(url, statistics)).result()
    return url


async def _fill(url: str, statistics: Statistics) -> None:
    if url.startswith("postgresql"):
        name = make_url(url).database
        server = create_async_engine(server_url(), isolation_level="AUTOCOMMIT")
        async with server.connect() as connection:
            await connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))
            await connection.execute(text(f'CREATE DATABASE "{name}"'))
        await server.dispose()
    engine = _engine(url)
    await migrate(engine)
    async with engine.begin() as connection:
        await crowds.fill(connection)
        if statistics == "fresh":
            await connection.execute(text("ANALYZE"))
    await engine.dispose()


def _engine(url: str) -> AsyncEngine:
    return create_sqlite_engine(url, synchronous="OFF") if url.startswith("sqlite") else create_async_engine(url)
