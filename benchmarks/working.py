"""What reading logs, evaluating them and finding work cost in a database, by how much there is in it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from sqlalchemy import text

from reflexr.core import Rule, on, run
from reflexr.sql import SqlStorage
from reflexr.workspace import LogWindow, Reaction, Reactor, RunPolicy, Workspaces

from .databases import Kind, database
from .deciding import BATCH, ServiceError, log
from .harness import Cost, Sides, benchmark, timed_async
from .storage import REF, events, handle_on

SMALL, LARGE = 10_000, 1_000_000
STORED = "bench:stored"
POLICY = RunPolicy(unordered=frozenset({"bench:rule-0"}))
READS = 200
DUE = 50


@benchmark("a reactor over a log with 20 matching rules, PostgreSQL, to 1", at_least=0.1)
async def matching_rules_on_postgresql() -> AsyncGenerator[Sides]:
    """Envelopes a second."""
    async with _matching_rules("postgresql") as sides:
        yield sides


@benchmark("a reactor over a log with 20 matching rules, SQLite, to 1", at_least=0.1)
async def matching_rules_on_sqlite() -> AsyncGenerator[Sides]:
    """Envelopes a second."""
    async with _matching_rules("sqlite") as sides:
        yield sides


@benchmark("a pass over 10,000 idle workspaces, PostgreSQL, to 10", at_most=2)
async def idle_workspaces_on_postgresql() -> AsyncGenerator[Sides]:
    """The time of a pass of each kind that finds nothing to do."""
    async with _idle_workspaces("postgresql") as sides:
        yield sides


@benchmark("a pass over 10,000 idle workspaces, SQLite, to 10", at_most=2)
async def idle_workspaces_on_sqlite() -> AsyncGenerator[Sides]:
    """The time of a pass of each kind that finds nothing to do."""
    async with _idle_workspaces("sqlite") as sides:
        yield sides


@benchmark("the tail, a rule's history and due runs of a million events, PostgreSQL, to 10,000", at_most=1.5)
async def long_logs_on_postgresql() -> AsyncGenerator[Sides]:
    """The time of one of each."""
    async with _long_logs("postgresql") as sides:
        yield sides


@benchmark("the tail, a rule's history and due runs of a million events, SQLite, to 10,000", at_most=1.5)
async def long_logs_on_sqlite() -> AsyncGenerator[Sides]:
    """The time of one of each."""
    async with _long_logs("sqlite") as sides:
        yield sides


async def _do_nothing(reaction: Reaction[None]) -> None:
    """Is what rules run that are measured for their deciding."""


def _rules(number: int) -> list[Rule]:
    return [
        Rule(
            name=f"bench:rule-{index}",
            when=on(ServiceError).count(at_least=1_000, within=timedelta(hours=1)),
            then=run("nothing"),
        )
        for index in range(number)
    ]


def _reactor(storage: SqlStorage, rules: int) -> Reactor[None]:
    workspaces = Workspaces(storage, events=[ServiceError], rules=_rules(rules))
    return Reactor(workspaces, actions={"nothing": _do_nothing})


@asynccontextmanager
async def _matching_rules(kind: Kind) -> AsyncGenerator[Sides]:
    number = 5_000
    async with database(kind) as many, database(kind) as few, SqlStorage(many) as of_many, SqlStorage(few) as of_few:

        async def prepare(storage: SqlStorage) -> None:
            for _ in range(0, number, BATCH):
                await handle_on(storage).publish_many(events(BATCH))

        def side(storage: SqlStorage, rules: int) -> Cost:
            reactor = _reactor(storage, rules)
            return timed_async(reactor.evaluate, units=number, before=lambda: prepare(storage))

        yield Sides(ours=side(of_many, 20), raw=side(of_few, 1))


@asynccontextmanager
async def _idle_workspaces(kind: Kind) -> AsyncGenerator[Sides]:
    async with database(kind) as many, database(kind) as few, SqlStorage(many) as of_many, SqlStorage(few) as of_few:

        async def side(storage: SqlStorage, number: int) -> Cost:
            reactor = _reactor(storage, 3)
            await handle_on(storage).publish_many(events(1))
            await reactor.settle()
            async with storage.engine.begin() as connection:
                # The others are as this one is.
                await connection.execute(text(_NUMBERED.format(target=_COPIES)), {"rows": number - 1})

            async def passes() -> None:
                for _ in range(100):
                    await reactor.evaluate()
                    await reactor.execute()

            return timed_async(passes, units=100)

        yield Sides(ours=await side(of_many, 10_000), raw=await side(of_few, 10))


@asynccontextmanager
async def _long_logs(kind: Kind) -> AsyncGenerator[Sides]:
    async with (
        database(kind) as long,
        database(kind) as short,
        SqlStorage(long) as of_long,
        SqlStorage(short) as of_short,
    ):

        async def side(storage: SqlStorage, number: int) -> Cost:
            await _fill(storage, number)

            async def reads() -> None:
                for _ in range(READS):
                    found = (
                        len(await storage.read(REF, LogWindow(last=DUE))),
                        len(await storage.rule_history(REF, STORED)),
                        len(await storage.due_runs(POLICY, limit=2 * DUE)),
                    )
                    if found != (DUE, DUE, DUE):
                        raise ValueError(f"{found} of each were found, not {DUE}: this measures something else")

            return timed_async(reads, units=READS)

        yield Sides(ours=await side(of_long, LARGE), raw=await side(of_short, SMALL))


async def _fill(storage: SqlStorage, rows: int) -> None:
    """Fills a log, of which few events are of one stored rule, with as many runs, of which few are due."""
    (envelope,) = log(1, scopes=1)
    event = {"envelope": envelope.to_json(), "type": ServiceError.event_type, "each": rows // DUE, "rule": STORED}
    cast = "json" if storage.engine.dialect.name == "postgresql" else "text"
    async with storage.engine.begin() as connection:
        for target, values in ((_EVENTS, event), (_RUNS, {"due": DUE})):
            statement = _NUMBERED.format(target=target.format(cast=cast))
            await connection.execute(text(statement), {"rows": rows, **values})
        await connection.execute(text("ANALYZE"))


# One text for both databases.
_NUMBERED = """
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :rows) {target}
"""

_COPIES = """
    INSERT INTO reflexr_workspaces
    SELECT tenant_id, workspace_id || n, head_seq, head_ts, counter, settled, unsettled, ticked,
        has_stored_rules, has_log
    FROM reflexr_workspaces, numbers
"""

_EVENTS = """
    INSERT INTO reflexr_events (tenant_id, workspace_id, seq, event_id, event_type, rule, envelope)
    SELECT 'bench', 'bench', n, 'evt_' || n, CAST(:type AS text),
        CASE WHEN n % CAST(:each AS integer) = 0 THEN CAST(:rule AS text) END, CAST(CAST(:envelope AS text) AS {cast})
    FROM numbers
"""

_RUNS = """
    INSERT INTO reflexr_runs
        (tenant_id, workspace_id, run_id, number, rule, scope, status, generation, fired_seq, line, due, queue, run)
    SELECT 'bench', 'bench', 'run_' || n, n, 'bench:rule-0', '[]', 'pending', 1, n,
        CASE WHEN n <= CAST(:due AS integer) THEN 1 END,
        CASE WHEN n <= CAST(:due AS integer) THEN n END,
        CASE WHEN n <= CAST(:due AS integer) THEN '2:bench:rule-0' END,
        CAST('{{"id": "run"}}' AS {cast})
    FROM numbers
"""
