"""How many statements a transaction takes: as many for one as for hundreds, of whatever there may be hundreds."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final

import pytest
from sqlalchemy import event

from reflexr.core import F, Rule, by, on
from reflexr.core import run as running
from reflexr.sql import SqlStorage
from reflexr.workspace import Reaction, Reactor, RunPolicy, Workspaces

from .servers import Kind, engine_of
from .shop import REF, TILL, Sold

KINDS: Final[tuple[Kind, ...]] = ("sqlite", "postgresql")
MANY: Final = 250


class Log:
    """What the databases' own drivers were told, whoever told them.

    Attributes:
        alone: The statements outside transactions.
        transactions: The statements of each transaction, from its beginning to its end.
    """

    def __init__(self) -> None:
        self.alone: list[str] = []
        self.transactions: list[list[str]] = []
        self._open: dict[object, list[str]] = {}

    def told(self, connection: object, statement: str) -> None:
        """Takes note of a statement of ours; drivers ask of types besides, once a connection."""
        if "reflexr_" not in statement and not statement.startswith(("BEGIN", "COMMIT", "ROLLBACK")):
            return
        if statement.startswith("BEGIN"):
            self._open[connection] = []
        if (transaction := self._open.get(connection)) is None:
            self.alone.append(statement)
            return
        if not _is_of(statement, transaction):
            transaction.append(statement)
        if statement.startswith(("COMMIT", "ROLLBACK")):
            self.transactions.append(self._open.pop(connection))

    async def taken(self) -> "Taken":
        """Returns what was told since it was last asked."""
        # asyncpg says so once the loop comes round.
        for _ in range(5):
            await asyncio.sleep(0)
        alone, transactions = self.alone, self.transactions
        self.alone, self.transactions = [], []
        return Taken(alone, transactions)


def _is_of(statement: str, transaction: Sequence[str]) -> bool:
    """Whether it is the statement before with other values: SQLite is handed many rows at once, and tells of each."""
    what, values, _ = statement.partition(" VALUES ")
    return values != "" and transaction[-1].startswith(what + values)


class Taken:
    """How many statements something took."""

    def __init__(self, alone: Sequence[str], transactions: Sequence[Sequence[str]]) -> None:
        self.alone = len(alone)
        self.transactions = [len(one) for one in transactions]
        self.text = "\n\n".join(["\n".join(alone), *("\n".join(one) for one in transactions)])

    @property
    def longest(self) -> int:
        """How many the longest transaction took."""
        return max(self.transactions)


@contextmanager
def logged(storage: SqlStorage) -> Generator[Log]:
    """Has the drivers of an engine's connections write down every statement that they are told."""
    log = Log()

    def connected(adapter: Any, _record: object) -> None:
        driver = adapter.driver_connection

        def told(what: Any) -> None:
            log.told(driver, what if isinstance(what, str) else what.query)

        async def trace(sqlite: Any) -> None:
            await sqlite.set_trace_callback(told)

        if storage.engine.dialect.name == "postgresql":
            driver.add_query_logger(told)
        else:
            adapter.run_async(trace)

    event.listen(storage.engine.sync_engine, "connect", connected)
    try:
        yield log
    finally:
        event.remove(storage.engine.sync_engine, "connect", connected)


@asynccontextmanager
async def shop(kind: Kind, rules: int) -> AsyncGenerator[tuple[Workspaces, Log]]:
    """Opens workspaces with so many rules, each of which fires for everything that is sold."""
    async with engine_of(kind) as engine, SqlStorage(engine, listen=False) as storage:
        with logged(storage) as log:
            # Those who are connected already say nothing.
            await engine.dispose()
            made = [
                Rule(name=f"sqlshop:rule-{number}", when=on(Sold), scope=by(F.item), then=running("nothing"))
                for number in range(rules)
            ]
            yield Workspaces(storage, events=[Sold], rules=made), log


async def nothing(reaction: Reaction[None]) -> None:
    """Is done about what is sold."""


async def publish(workspaces: Workspaces, number: int) -> None:
    handle = workspaces.handle(REF, actor=TILL)
    await handle.publish_many([Sold(item=f"item-{index}") for index in range(number)])


async def taken_by_everything(kind: Kind, *, rules: int, events: int) -> dict[str, Taken]:
    """Publishes events, evaluates them and carries out what the rules ask for; returns what each of these took."""
    async with shop(kind, rules) as (workspaces, log):
        reactor = Reactor(workspaces, actions={"nothing": nothing}, concurrency=rules * events)
        # What is done once for a workspace is not what is counted.
        await publish(workspaces, 1)
        await reactor.settle()
        await log.taken()
        found: dict[str, Taken] = {}
        await publish(workspaces, events)
        found["publish"] = await log.taken()
        await reactor.evaluate()
        found["evaluate"] = await log.taken()
        assert await reactor.execute() == rules * events
        found["execute"] = await log.taken()
        return found


@pytest.mark.parametrize("kind", KINDS)
async def test_a_transaction_takes_as_many_statements_whatever_number_of_things_it_is_about(kind: Kind) -> None:
    one = await taken_by_everything(kind, rules=1, events=1)
    assert all(taken.transactions and min(taken.transactions) > 2 for act, taken in one.items() if act != "publish")
    # Begun, moved, inserted and committed; or all of it in one.
    assert (one["publish"].transactions, one["publish"].alone) == (([4], 0) if kind == "sqlite" else ([], 1))
    # What SQLite is told as it comes, PostgreSQL is told at once.
    assert one["evaluate"].transactions == ([11] if kind == "sqlite" else [7]), one["evaluate"].text
    assert one["execute"].transactions == ([11, 10] if kind == "sqlite" else [8, 7]), one["execute"].text
    many = await taken_by_everything(kind, rules=3, events=MANY)
    for act in ("publish", "evaluate"):
        assert many[act].transactions == one[act].transactions, many[act].text
        assert many[act].alone == one[act].alone, many[act].text
    assert many["execute"].longest == one["execute"].longest, many["execute"].text
    # Commits are shared: claiming is one, and what becomes of the runs is a few.
    assert len(many["execute"].transactions) < 10, many["execute"].text


@pytest.mark.parametrize("kind", KINDS)
async def test_from_what_fires_to_the_action_it_is_one_transaction(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, idle, stop = (asyncio.Event() for _ in range(4))

    async def waits(reaction: Reaction[None]) -> None:
        begun.set()
        await go_on.wait()

    next_due = SqlStorage.next_due

    async def looked(self: SqlStorage, policy: RunPolicy) -> timedelta | None:
        due = await next_due(self, policy)
        idle.set()
        return due

    monkeypatch.setattr(SqlStorage, "next_due", looked)
    async with shop(kind, 1) as (workspaces, log):
        await publish(workspaces, 1)
        await Reactor(workspaces, actions={"nothing": nothing}).settle()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Reactor(workspaces, actions={"nothing": waits}).serve(stop))
            await idle.wait()
            await log.taken()
            await publish(workspaces, 1)
            await begun.wait()
            taken = await log.taken()
            go_on.set()
            stop.set()
    # SQLite publishes in a transaction too.
    assert taken.transactions == ([4, 12] if kind == "sqlite" else [8]), taken.text
