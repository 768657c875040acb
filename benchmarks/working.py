"""What reading logs, evaluating them and finding work cost in a database, by how much there is in it."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sized
from contextlib import asynccontextmanager

from sqlalchemy import text

from reflexr.sql import SqlStorage
from reflexr.workspace import LogWindow, Reactor, RunPolicy, Workspaces

from .databases import Kind, database, on_each_database
from .deciding import BATCH, ServiceError, log
from .harness import Cost, Sides, timed_async
from .memory import counting_rules, do_nothing
from .storage import REF, events, handle_on

SMALL, LARGE = 10_000, 1_000_000
STORED = "bench:stored"
POLICY = RunPolicy(unordered=frozenset({"bench:rule-0"}))
QUESTIONS = 100
FOUND = 50


@on_each_database("a reactor over a log with 20 matching rules, {}, to 1", at_least=0.1)
async def matching_rules(kind: Kind) -> AsyncGenerator[Sides]:
    """Envelopes a second."""
    number = 5_000
    async with database(kind) as many, database(kind) as few, SqlStorage(many) as of_many, SqlStorage(few) as of_few:

        async def prepare(storage: SqlStorage) -> None:
            for _ in range(0, number, BATCH):
                await handle_on(storage).publish_many(events(BATCH))

        def side(storage: SqlStorage, number_of_rules: int) -> Cost:
            reactor = _reactor(storage, number_of_rules)
            return timed_async(reactor.evaluate, units=number, before=lambda: prepare(storage))

        yield Sides(ours=side(of_many, 20), raw=side(of_few, 1))


@on_each_database("a pass over 10,000 idle workspaces, {}, to 10", at_most=2)
async def idle_workspaces(kind: Kind) -> AsyncGenerator[Sides]:
    """The time of a pass of each kind that finds nothing to do."""
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


@on_each_database("the tail of a log of 1,000,000 events, {}, to one of 10,000", at_most=1.5)
async def tail_of_a_long_log(kind: Kind) -> AsyncGenerator[Sides]:
    """The time of a read of the last events."""
    async with _large_and_small(kind, _EVENTS, lambda storage: storage.read(REF, LogWindow(last=FOUND))) as sides:
        yield sides


@on_each_database("the history of a rule in a log of 1,000,000 events, {}, to one of 10,000", at_most=1.5)
async def history_in_a_long_log(kind: Kind) -> AsyncGenerator[Sides]:
    """The time of a read of the few events that are of the rule."""
    async with _large_and_small(kind, _EVENTS, lambda storage: storage.rule_history(REF, STORED)) as sides:
        yield sides


@on_each_database("due runs among 1,000,000, {}, to among 10,000", at_most=1.5)
async def due_among_many_runs(kind: Kind) -> AsyncGenerator[Sides]:
    """The time of a look for the few runs that may start."""
    async with _large_and_small(kind, _RUNS, lambda storage: storage.due_runs(POLICY, limit=2 * FOUND)) as sides:
        yield sides


def _reactor(storage: SqlStorage, number_of_rules: int) -> Reactor[None]:
    workspaces = Workspaces(storage, events=[ServiceError], rules=counting_rules(number_of_rules))
    return Reactor(workspaces, actions={"nothing": do_nothing})


@asynccontextmanager
async def _large_and_small(
    kind: Kind, rows: str, ask: Callable[[SqlStorage], Awaitable[Sized]]
) -> AsyncGenerator[Sides]:
    """A question to a database with many rows of a kind beside the same to one with few; both find as many."""
    async with (
        database(kind) as large,
        database(kind) as small,
        SqlStorage(large) as of_large,
        SqlStorage(small) as of_small,
    ):

        async def side(storage: SqlStorage, number: int) -> Cost:
            await _fill(storage, rows, number)

            async def questions() -> None:
                for _ in range(QUESTIONS):
                    if (found := len(await ask(storage))) != FOUND:
                        raise ValueError(f"{found} were found, not {FOUND}: this measures something else")

            return timed_async(questions, units=QUESTIONS)

        yield Sides(ours=await side(of_large, LARGE), raw=await side(of_small, SMALL))


async def _fill(storage: SqlStorage, rows: str, number: int) -> None:
    """Inserts so many rows by one statement."""
    (envelope,) = log(1, scopes=1)
    filling = {"rows": number, "found": FOUND, "rule": STORED, "type": ServiceError.event_type}
    document = "json" if storage.engine.dialect.name == "postgresql" else "text"
    statement = text(_NUMBERED.format(target=rows.format(document=document)))
    async with storage.engine.begin() as connection:
        await connection.execute(statement, {**filling, "envelope": envelope.to_json()})
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

# Few of them are of one stored rule.
_EVENTS = """
    INSERT INTO reflexr_events (tenant_id, workspace_id, seq, event_id, event_type, rule, envelope)
    SELECT 'bench', 'bench', n, 'evt_' || n, CAST(:type AS text),
        CASE WHEN n % (:rows / CAST(:found AS integer)) = 0 THEN CAST(:rule AS text) END,
        CAST(CAST(:envelope AS text) AS {document})
    FROM numbers
"""

# Few of them may start; the others are finished.
_RUNS = """
    INSERT INTO reflexr_runs
        (tenant_id, workspace_id, run_id, number, rule, scope, status, generation, fired_seq, line, due, queue, run)
    SELECT 'bench', 'bench', 'run_' || n, n, 'bench:rule-0', '[' || n || ']',
        CASE WHEN n <= CAST(:found AS integer) THEN 'pending' ELSE 'succeeded' END,
        1, n,
        CASE WHEN n <= CAST(:found AS integer) THEN 1 END,
        CASE WHEN n <= CAST(:found AS integer) THEN n END,
        CASE WHEN n <= CAST(:found AS integer) THEN '0:bench:rule-0' END,
        CAST('{{"id": "run_' || n || '"}}' AS {document})
    FROM numbers
"""
