"""How many statements a call takes: the same whatever the number of what it concerns."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reflexr.core import DeadLetter, Needs, Rule, Run, ScopeState, StoredRule, Waiting, on
from reflexr.core import run as action
from reflexr.sql import SqlStorage
from reflexr.sql.sessions import AiosqliteDriver, AsyncpgDriver
from reflexr.sql.statements import Statement
from reflexr.workspace import (
    Deadline,
    LeaseKey,
    LogWindow,
    RunPolicy,
    RunQuery,
    RunScope,
    StateChanges,
    Transaction,
    Watch,
    WorkspaceRef,
    run_lease,
)

from .servers import Kind, engine_of
from .shop import HOUR, REF, START, Sold, append, draft, progress, run

FEW, MANY = 2, 60


@pytest.fixture(params=["sqlite", "postgresql"])
async def engine(request: pytest.FixtureRequest) -> AsyncGenerator[AsyncEngine]:
    kind: Kind = request.param
    async with engine_of(kind) as engine:
        yield engine


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that gets to a driver, but for those that begin and end transactions."""
    found: list[str] = []
    for driver in (AsyncpgDriver, AiosqliteDriver):
        fetch = driver.fetch

        async def counted(
            self: Any, statement: Statement, parameters: Any, fetch: Any = fetch
        ) -> Sequence[Sequence[Any]]:
            found.append(statement.text)
            return await fetch(self, statement, parameters)

        monkeypatch.setattr(driver, "fetch", counted)
    execute_many = AiosqliteDriver.execute_many

    async def counted_many(self: AiosqliteDriver, statement: Statement, parameters: Any) -> None:
        found.append(statement.text)
        await execute_many(self, statement, parameters)

    monkeypatch.setattr(AiosqliteDriver, "execute_many", counted_many)
    return found


def names(number: int) -> list[str]:
    return [f"sqlshop:rule-{one}" for one in range(number)]


def stored(name: str, version: int) -> StoredRule:
    return StoredRule(rule=Rule(name=name, when=on(Sold), then=action("page")), version=version)


def paused(rules: Sequence[str], scopes: Sequence[str]) -> list[Run]:
    """A run of each rule and scope that blocks, and one that does not."""
    return [
        run(
            f"paused{place}-{blocks}",
            rule,
            scope,
            seq=2 - blocks,
            status="paused",
            waiting=Waiting(request="go on?", since=START, until=START, blocks=blocks),
        )
        for place, (rule, scope) in enumerate(zip(rules, scopes, strict=True))
        for blocks in (False, True)
    ]


async def everything(transaction: Transaction, number: int, version: int) -> None:
    """Calls each method of a transaction once, with sets of this size."""
    rules, scopes = names(number), [f"[{one}]" for one in range(number)]
    await transaction.find([f"v{version}-{one}" for one in range(number)])
    await transaction.append([draft(f"v{version}-{one}") for one in range(number)])
    await transaction.read(LogWindow(types=frozenset({"sqlshop:sold"})))
    await transaction.read_seqs(range(number))
    await transaction.progress()
    await transaction.save_progress([progress(rule, 1) for rule in rules])
    await transaction.states(
        {rule: Needs(scope_keys=frozenset(scopes), due_through=START, admitted=()) for rule in rules}
    )
    saved = {scope: ScopeState(expires=START) for scope in scopes}
    change = StateChanges(saved=saved, dropped=frozenset({"[]", "[-1]"}), expired_through=START)
    await transaction.change_states(dict.fromkeys(rules, change))
    await transaction.clear_states(rules)
    await transaction.save_stored_rules([stored(rule, version) for rule in rules])
    runs = [run(f"r{one}", rules[one], scopes[one]) for one in range(number)]
    await transaction.save_runs([*runs, *paused(rules, scopes)])
    await transaction.runs([one.id for one in runs])
    await transaction.find_runs(RunQuery(rules=frozenset(rules), statuses=frozenset({"pending", "running"})))
    await transaction.first_runs([RunScope(one.rule, one.scope_key) for one in runs], blocking=rules)
    dead_letters = [
        DeadLetter(rule=rule, generation=1, seq=1, scope_key=None, ts=START, kind="predicate_failed", error="no")
        for rule in rules
    ]
    await transaction.add_dead_letters(dead_letters)
    await transaction.stored_rules(rules)
    await transaction.schedule_ticks()
    await transaction.save_schedule_ticks(dict.fromkeys(scopes, START))
    leases = [run_lease(one.id) for one in runs]
    await transaction.acquire(leases, "holder", HOUR)
    await transaction.holders(leases)
    await transaction.release(leases[1:], "holder")


async def test_a_transaction_takes_as_many_statements_for_many_as_for_few(
    engine: AsyncEngine, executed: list[str]
) -> None:
    taken: list[int] = []
    for place, number in enumerate((FEW, MANY)):
        executed.clear()
        storage = SqlStorage(engine, listen=False)
        async with storage.transaction(WorkspaceRef("acme", f"w{place}")) as transaction:
            await everything(transaction, number, 1)
        taken.append(len(executed))
    assert taken[0] == taken[1]
    assert taken[0] < 50


async def test_a_second_transaction_takes_no_more(engine: AsyncEngine, executed: list[str]) -> None:
    storage = SqlStorage(engine, listen=False)
    taken: list[int] = []
    for place, number in enumerate((FEW, MANY)):
        workspace = WorkspaceRef("acme", f"w{place}")
        async with storage.transaction(workspace) as transaction:
            await everything(transaction, number, 1)
        executed.clear()
        async with storage.transaction(workspace) as transaction:
            await everything(transaction, number, 2)
        taken.append(len(executed))
    assert taken[0] == taken[1]


async def test_a_firing_takes_no_more_statements_where_runs_are_paused_and_block_nobody(
    engine: AsyncEngine, executed: list[str]
) -> None:
    storage = SqlStorage(engine, listen=False)
    rules, scopes = names(MANY), ["[]"] * MANY
    taken: list[int] = []
    for place, asking in enumerate(([], [one for one in paused(rules, scopes) if one.id.endswith("False")])):
        workspace = WorkspaceRef("acme", f"w{place}")
        async with storage.transaction(workspace) as transaction:
            await transaction.append([draft("e0")])
            await transaction.save_runs(asking)
        executed.clear()
        async with storage.transaction(workspace) as transaction:
            await transaction.progress()
            await transaction.save_runs([run("r0", rules[0], scopes[0])])
        taken.append(len(executed))
    assert taken[0] == taken[1]


async def test_a_publish_is_a_lock_a_look_and_an_insert(engine: AsyncEngine, executed: list[str]) -> None:
    storage = SqlStorage(engine, listen=False)
    await append(storage, draft("e0"))
    executed.clear()
    async with storage.transaction(REF) as transaction:
        assert await transaction.find(["e1", "e2"]) == {}
        await transaction.append([draft("e1"), draft("e2")])
    # SQLite cannot move the head in the statement that inserts.
    assert len(executed) == (3 if engine.dialect.name == "postgresql" else 4)


def _leases(number: int) -> list[LeaseKey]:
    return [LeaseKey(REF, run_lease(f"r{one}")) for one in range(number)]


def _deadlines(number: int) -> dict[str, Deadline]:
    listed = {f"listed{one}": Deadline(START, frozenset({REF})) for one in range(number)}
    return {**listed, **{f"everywhere{one}": Deadline(START + timedelta(hours=1)) for one in range(number)}}


CALLS: dict[str, tuple[Callable[[SqlStorage, int], Awaitable[object]], int]] = {
    "find": (lambda storage, number: storage.find(REF, [f"e{one}" for one in range(number)]), 1),
    "read": (lambda storage, number: storage.read(REF, LogWindow(types=frozenset(names(number)))), 1),
    "stored_rules": (lambda storage, number: storage.stored_rules(REF, names(number)), 1),
    "runs": (lambda storage, number: storage.runs(REF, RunQuery(rules=frozenset(names(number)))), 1),
    "acquire": (lambda storage, number: storage.acquire(_leases(number), "holder", HOUR), 2),
    "renew": (lambda storage, number: storage.renew(_leases(number), "holder", HOUR), 2),
    "release": (lambda storage, number: storage.release(_leases(number), "holder"), 3),
    "behind": (lambda storage, number: storage.behind(Watch(dict.fromkeys(names(number), "d1")), limit=number), 4),
    "due_runs": (
        lambda storage, number: storage.due_runs(RunPolicy(unordered=frozenset(names(number))), limit=number),
        1,
    ),
    "next_due": (lambda storage, number: storage.next_due(RunPolicy(unordered=frozenset(names(number)))), 1),
    "due_schedules": (lambda storage, number: storage.due_schedules(_deadlines(number), limit=number), 5),
}


@pytest.mark.parametrize(("call", "at_most"), CALLS.values(), ids=CALLS.keys())
async def test_a_call_takes_few_statements_whatever_it_is_asked_for(
    engine: AsyncEngine,
    executed: list[str],
    call: Callable[[SqlStorage, int], Awaitable[object]],
    at_most: int,
) -> None:
    storage = SqlStorage(engine, listen=False)
    await append(storage, draft("e0"))
    taken: list[int] = []
    for number in (FEW, MANY):
        executed.clear()
        await call(storage, number)
        taken.append(len(executed))
    assert taken[0] == taken[1] <= at_most


async def test_however_many_workspaces_have_a_backlog_their_turns_take_few_statements(
    engine: AsyncEngine, executed: list[str]
) -> None:
    storage = SqlStorage(engine, listen=False)
    policy = RunPolicy(unordered=frozenset(names(1)), stored=frozenset({"chat"}))
    taken: list[int] = []
    for number in (FEW, MANY):
        for workspace in range(number):
            async with storage.transaction(WorkspaceRef("acme", f"w{workspace}")) as transaction:
                await transaction.save_runs([run(f"r{one}", names(1)[0], f"[{one}]") for one in range(number)])
        executed.clear()
        after = WorkspaceRef("acme", "w0")
        found = await storage.due_runs(policy, limit=number, after=after)
        taken.append(len(executed))
        assert len({one.workspace for one in found}) == number
    # The first runs of all; the workspaces after one, and their runs; those up to it, and theirs. Twice the steps where
    # as many as are asked for are at the end of a range.
    assert max(taken) <= 1 + 2 * (2 * 2 + 1)
