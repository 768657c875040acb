"""Paused runs in a database: what very many of them cost the others of their scope, which is nothing."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from typing import Any, Final

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reflexr.core import Rule, Run, StoredRule, Waiting, on
from reflexr.core import run as action
from reflexr.sql import SqlStorage
from reflexr.workspace import DueRun, ManualClock, RunPolicy, RunScope

from .servers import Kind, engine_of
from .shop import HOUR, REF, START, Sold, run
from .test_plans import Act, inside, recorded
from .test_reacting import KINDS, multiply_runs

RULE: Final = "sqlshop:restock"
SCOPE: Final = RunScope(RULE, "[]")
ORDERED: Final = RunPolicy(ordered=frozenset({RULE}), blocking=frozenset({RULE}))
UNORDERED: Final = RunPolicy(unordered=frozenset({RULE}))

STORED: Final = RunPolicy(stored=frozenset({"sqlshop"}))
LATER: Final = START + HOUR


def paused(run_id: str, seq: int = 1, until: datetime | None = LATER) -> Run:
    return run(run_id, RULE, seq=seq, status="paused", waiting=Waiting(request="go on?", since=START, until=until))


def stored(version: int) -> StoredRule:
    rule = Rule(name=RULE, when=on(Sold), then=action("act"), on_dead_letter="block")
    return StoredRule(rule=rule, version=version)


ACTS: Final[dict[str, Act]] = {
    "a run is fired": inside(lambda transaction: transaction.save_runs([run("new", seq=9)])),
    "a run starts": inside(lambda transaction: transaction.save_runs([run("first", seq=2, status="running")])),
    "a run ends": inside(lambda transaction: transaction.save_runs([run("first", seq=2, status="succeeded")])),
    "one more is paused": inside(lambda transaction: transaction.save_runs([paused("first", seq=2)])),
    "a paused run is answered": inside(lambda transaction: transaction.save_runs([run("asks")])),
    "an evaluation begins": inside(lambda transaction: transaction.progress()),
    "whose turn it is": inside(lambda transaction: transaction.first_runs([SCOPE], blocking=[RULE])),
    "what is due in order": lambda storage: storage.due_runs(ORDERED, limit=10),
    "what is due": lambda storage: storage.due_runs(UNORDERED, limit=10),
    "what is due, one workspace after another": lambda storage: storage.due_runs(UNORDERED, limit=1),
    "what is due of stored rules": lambda storage: storage.due_runs(STORED, limit=10),
    "what is due of them, one workspace after another": lambda storage: storage.due_runs(STORED, limit=1),
    "when something is due": lambda storage: storage.next_due(ORDERED),
    "when something of stored rules is due": lambda storage: storage.next_due(STORED),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_hundred_thousand_paused_runs_of_a_scope_cost_the_others_nothing(kind: Kind) -> None:
    alone, among = await costs(kind, ACTS, many=False), await costs(kind, ACTS, many=True)
    assert all(alone.values())
    assert {name: taken for name, taken in among.items() if taken > alone[name]} == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_paused_runs_that_wait_for_any_time_cost_nothing_when_their_rule_changes(kind: Kind) -> None:
    acts = {"changes": inside(lambda transaction: transaction.save_stored_rules([stored(2)]))}
    alone, among = [await costs(kind, acts, until=None, many=many) for many in (False, True)]
    assert 0 < among["changes"] <= alone["changes"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_is_due_whatever_it_asks(kind: Kind) -> None:
    asks = Waiting(request="a\x00b", since=START, until=START)
    async with engine_of(kind) as engine:
        storage = SqlStorage(engine, clock=ManualClock(START), listen=False)
        async with storage.transaction(REF) as transaction:
            await transaction.save_runs([run("asks", RULE, status="paused", waiting=asks)])
        assert await storage.due_runs(ORDERED, limit=1) == [DueRun(REF, "asks", RULE)]


async def costs(kind: Kind, acts: Mapping[str, Act], *, until: datetime | None = LATER, many: bool) -> dict[str, int]:
    """Returns what each act takes where one run of a scope is paused, or very many are, and three are pending."""
    async with engine_of(kind) as engine:
        storage = SqlStorage(engine, clock=ManualClock(START), listen=False, direct=False)
        async with storage.transaction(REF) as transaction:
            await transaction.save_stored_rules([stored(1)])
            await transaction.save_runs([paused("asks", until=until)])
        if many:
            await multiply_runs(engine)
        async with storage.transaction(REF) as transaction:
            await transaction.save_runs(
                [run("first", seq=2), run("second", seq=3), run("elsewhere", scope_key="[1]", seq=4)]
            )
        return {name: await cost(engine, storage, act) for name, act in acts.items()}


async def cost(engine: AsyncEngine, storage: SqlStorage, act: Act) -> int:
    """Returns what an act takes: the rows that PostgreSQL reads, or the steps that SQLite makes."""
    with recorded(engine) as statements:
        await act(storage)
    if engine.dialect.name == "sqlite":
        return steps(str(engine.url.database), statements)
    async with engine.connect() as connection:
        plans = [
            (await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)).scalar_one()
            for statement, parameters in statements
        ]
        await connection.rollback()
    return sum(rows_read(plan["Plan"]) for (plan,) in plans)


def steps(path: str, statements: list[tuple[str, Any]]) -> int:
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(sqlite3.connect(path)) as connection:
        connection.set_progress_handler(step, 1)
        for statement, parameters in statements:
            connection.execute(statement, parameters).fetchall()
    return count


def rows_read(node: dict[str, Any]) -> int:
    read = (
        sum(node.get(name, 0) for name in ("Actual Rows", "Rows Removed by Filter")) if "Relation Name" in node else 0
    )
    return round(read * node["Actual Loops"]) + sum(map(rows_read, node.get("Plans", ())))
