"""What carrying out runs costs, and what a reactor keeps of a long log: `python -m benchmarks.running URL` is one."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from reflexr.core import F, Rule, by, on, run
from reflexr.sql import SqlStorage
from reflexr.workspace import ManualClock, Reactor, Workspaces

from .databases import AsyncpgConnection, connect, database, dsn_of, engine_of, url_of
from .deciding import BATCH, STEP, ServiceError, log
from .harness import Cost, Sides, benchmark, timed_async
from .memory import PAIR, counting_rules, do_nothing
from .storage import PUBLISHER, REF, events

RUNS: Final = 500
CLAIMED: Final = 10
"""How many runs a raw transaction claims, and another finishes."""

EARLY, LATE = 100_000, 1_000_000

RULE: Final = Rule(name="bench:each", when=on(ServiceError), scope=by(F.message), then=run("nothing"))


@benchmark("runs that do nothing, PostgreSQL, to raw transactions that claim 10 and finish 10", at_least=0.3)
async def runs_of_nothing() -> AsyncGenerator[Sides]:
    """Runs a second, from firing to recorded, in one process."""
    async with (
        database("postgresql") as engine,
        database("postgresql", schema=False) as other,
        SqlStorage(engine) as storage,
        AsyncExitStack() as stack,
    ):
        workspaces = Workspaces(storage, events=[ServiceError], rules=[RULE])
        reactor = Reactor(workspaces, actions={"nothing": do_nothing}, concurrency=64)
        workspace = workspaces.handle(REF, actor=PUBLISHER)
        raw = RawRuns(await connect(dsn_of(other)))
        stack.push_async_callback(raw.close)
        await raw.create()
        published = 0

        async def fire() -> None:
            nonlocal published
            # Each is of a scope of its own.
            batch = [
                one.model_copy(update={"message": f"{published + place}"}) for place, one in enumerate(events(RUNS))
            ]
            published += RUNS
            await workspace.publish_many(batch)
            await reactor.evaluate()

        async def carry_out() -> None:
            if (done := await reactor.execute()) != RUNS:
                raise ValueError(f"{done} runs were carried out, not {RUNS}")

        async def by_hand() -> None:
            for _ in range(RUNS // CLAIMED):
                await raw.finish(await raw.claim())

        yield Sides(
            ours=timed_async(carry_out, units=RUNS, before=fire),
            raw=timed_async(by_hand, units=RUNS, before=lambda: raw.fill(RUNS)),
        )


class RawRuns:
    """Runs by hand over asyncpg, with the facts that tell of them in a log."""

    def __init__(self, connection: AsyncpgConnection) -> None:
        self._connection = connection
        self._facts = [envelope.to_json() for envelope in log(CLAIMED, scopes=CLAIMED)]

    async def create(self) -> None:
        """Creates the tables, and the workspace."""
        await self._connection.execute(
            "CREATE TABLE raw_logs (tenant text, workspace text, head bigint, PRIMARY KEY (tenant, workspace));"
            "CREATE TABLE raw_events (tenant text, workspace text, seq bigint, id text, type text, envelope json,"
            " PRIMARY KEY (tenant, workspace, seq), UNIQUE (tenant, workspace, id));"
            "CREATE TABLE raw_runs (tenant text, workspace text, id bigserial, status text, lease bigint, run json,"
            " PRIMARY KEY (tenant, workspace, id));"
            "CREATE INDEX raw_runs_pending ON raw_runs (id) WHERE status = 'pending';"
            "INSERT INTO raw_logs VALUES ('bench', 'bench', 0)"
        )

    async def fill(self, number: int) -> None:
        """Adds so many runs that are pending."""
        await self._connection.execute(
            "INSERT INTO raw_runs (tenant, workspace, status, run)"
            " SELECT 'bench', 'bench', 'pending', $1::text::json FROM generate_series(1, $2)",
            self._facts[0],
            number,
        )

    async def claim(self) -> list[int]:
        """Begins runs in a transaction, and returns them."""
        await self._connection.execute("BEGIN")
        rows = await self._connection.fetch(
            "WITH due AS MATERIALIZED (SELECT tenant, workspace, id FROM raw_runs WHERE status = 'pending'"
            " ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)"
            " UPDATE raw_runs SET status = 'running', lease = 1, run = $2::text::json FROM due"
            " WHERE raw_runs.tenant = due.tenant AND raw_runs.workspace = due.workspace AND raw_runs.id = due.id"
            " RETURNING raw_runs.id",
            CLAIMED,
            self._facts[0],
        )
        await self._tell()
        return [row[0] for row in rows]

    async def finish(self, runs: Sequence[int]) -> None:
        """Records that runs succeeded, in a transaction."""
        await self._connection.execute("BEGIN")
        await self._connection.execute(
            "UPDATE raw_runs SET status = 'succeeded', lease = NULL, run = $1::text::json"
            " WHERE tenant = 'bench' AND workspace = 'bench' AND id = ANY($2)",
            self._facts[0],
            list(runs),
        )
        await self._tell()

    async def close(self) -> None:
        """Hangs up."""
        await self._connection.close()

    async def _tell(self) -> None:
        """Appends the facts, and commits."""
        ((head,),) = await self._connection.fetch(
            "UPDATE raw_logs SET head = head + $1 WHERE tenant = 'bench' AND workspace = 'bench' RETURNING head",
            CLAIMED,
        )
        await self._connection.execute(
            "INSERT INTO raw_events SELECT 'bench', 'bench', n, 'fact_' || n, 'reflexr:fact', envelope"
            " FROM unnest($1::bigint[], $2::json[]) AS facts (n, envelope)",
            list(range(head - CLAIMED + 1, head + 1)),
            self._facts,
        )
        await self._connection.execute("COMMIT")


@benchmark("resident memory of a reactor after 1,000,000 events, SQLite, to after 100,000", at_most=1.2)
async def resident_memory() -> AsyncGenerator[Sides]:
    """Bytes, of a process that evaluated them all."""
    measured: list[tuple[float, float]] = []

    async def measure() -> tuple[float, float]:
        # It takes minutes, and what it comes to is the same each time.
        if not measured:
            async with database("sqlite") as engine:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks.running", url_of(engine), stdout=PIPE
                )
                answered, _ = await process.communicate()
            early, late = map(float, answered.split())
            measured.append((early, late))
        return measured[0]

    def side(place: int) -> Cost:
        async def cost() -> float:
            return (await measure())[place]

        return cost

    yield Sides(ours=side(1), raw=side(0))


async def _evaluate(url: str) -> None:
    """Evaluates a log as it grows, and tells how much memory this process has at two places of it."""
    clock = ManualClock()
    async with SqlStorage(engine_of(url), clock=clock, listen=False) as storage:
        workspaces = Workspaces(storage, events=[ServiceError], rules=[PAIR, *counting_rules(3)])
        reactor = Reactor(workspaces, actions={"nothing": do_nothing, "page": do_nothing})
        workspace = workspaces.handle(REF, actor=PUBLISHER)
        seq = 0
        for through in (EARLY, LATE):
            while seq < through:
                clock.advance(BATCH * STEP)
                # Each is of a scope that comes only once.
                batch = [
                    ServiceError(service=f"{seq + place}", severity=8, message="x" * 110) for place in range(BATCH)
                ]
                await workspace.publish_many(batch)
                await reactor.settle()
                seq += BATCH
            sys.stdout.write(f"{_resident()}\n")


def _resident() -> int:
    """How many bytes of memory this process has, shared ones left out."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    asyncio.run(_evaluate(*sys.argv[1:]))
