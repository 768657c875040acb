"""What it costs an agent's run to be listened to, and how soon a subscriber has what its model says.

The subscribers are in a process of their own: `python -m benchmarks.deltas URL STALLED` is one that reads and times
each delta, beside some that stall; `python -m benchmarks.deltas listen URL` is a listener on the same PostgreSQL.
"""

import asyncio
import json
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from statistics import median
from typing import Any, Final

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from reflexr.agent import AgentAction, LiveDeltas
from reflexr.core import MAX_DELTA, Delta, DeltaKind, Rule, on, run
from reflexr.sql import PostgresLiveOutput
from reflexr.workspace import DeltaListener, InMemoryStorage, Reaction, Reactor, Workspaces

from .databases import database, engine_of, url_of
from .deciding import ServiceError
from .harness import Sides, benchmark
from .memory import PUBLISHER, REF
from .streaming import EVENT, clients, connected, served, tell, told

TOKENS: Final = 100
PACE: Final = 0.01
"""How many seconds the model takes for each token: a hundred a second, as quick models do."""

STALLED: Final = 5
FILLING: Final = 3_000
"""How many large deltas are said before anything is measured, so that who stalls has stalled, and loses deltas."""

LATENCY: Final = 0.05
"""How many seconds after the model a subscriber is to have a delta, at most."""

RULE: Final = Rule(name="bench:answer", when=on(ServiceError), then=run("answer"))


@benchmark(f"deltas: the latest of {TOKENS} tokens at a subscriber, with {STALLED} that stall, to 50 ms", at_most=1)
async def latency() -> AsyncGenerator[Sides]:
    """Seconds from when the model gives a token to when a client in another process has read it."""
    workspaces = _workspaces()
    async with served(workspaces) as url, clients(url, STALLED, module="benchmarks.deltas") as process:
        reactor = _reactor(workspaces)
        await _fill(workspaces)

        async def latest() -> float:
            await _answer(workspaces, reactor)
            return (await _heard(process))["latest"]

        async def allowed() -> float:
            return LATENCY

        yield Sides(ours=latest, raw=allowed)


@benchmark(f"deltas: an agent's run with {STALLED} subscribers that stall and one that reads, to none", at_most=1.1)
async def time_of_a_run() -> AsyncGenerator[Sides]:
    """Seconds from the event to the end of the run."""
    heard, unheard = _workspaces(), _workspaces()
    async with (
        served(heard) as url,
        served(unheard),
        clients(url, STALLED, module="benchmarks.deltas") as process,
    ):
        reactors = _reactor(heard), _reactor(unheard)
        await _fill(heard)

        async def ours() -> float:
            took = await _answer(heard, reactors[0])
            await _heard(process)
            return took

        async def raw() -> float:
            return await _answer(unheard, reactors[1])

        yield Sides(ours=ours, raw=raw)


@benchmark(f"deltas: the latest of {TOKENS} in another process on the same PostgreSQL, to 50 ms", at_most=1)
async def latency_between_processes() -> AsyncGenerator[Sides]:
    """Seconds from when a run says a token to when a listener in another process takes it."""
    async with (
        database("postgresql", schema=False) as engine,
        PostgresLiveOutput(engine) as live_output,
        clients("listen", url_of(engine), module="benchmarks.deltas") as process,
    ):

        async def latest() -> float:
            while True:
                await asyncio.sleep(PACE)
                if live_output.is_heard(REF):
                    break
            for number in range(1, TOKENS + 1):
                live_output.send(REF, _delta(number, "text", f"{time.monotonic_ns()} "))
                await asyncio.sleep(PACE)
            return (await _heard(process))["latest"]

        async def allowed() -> float:
            return LATENCY

        yield Sides(ours=latest, raw=allowed)


# --- The server


def _workspaces() -> Workspaces:
    return Workspaces(InMemoryStorage(), events=[ServiceError], rules=[RULE])


def _reactor(workspaces: Workspaces) -> Reactor[None]:
    async def tokens(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for _ in range(TOKENS):
            await asyncio.sleep(PACE)
            yield f"{time.monotonic_ns()} "

    agent = Agent(FunctionModel(stream_function=tokens), deps_type=Reaction[None], capabilities=[LiveDeltas()])
    return Reactor(workspaces, actions={"answer": AgentAction(agent, name="answer")})


async def _fill(workspaces: Workspaces) -> None:
    live_output = workspaces.configuration.settings.live_output
    for number in range(1, FILLING + 1):
        live_output.send(REF, _delta(number, "thinking", "x" * MAX_DELTA))
        # The one that reads has its turn, too.
        await asyncio.sleep(0.001)


def _delta(number: int, kind: DeltaKind, text: str) -> Delta:
    return Delta(run_id="benchmark", rule=RULE.name, attempt=1, number=number, kind=kind, part=0, text=text)


async def _answer(workspaces: Workspaces, reactor: Reactor[None]) -> float:
    """Has the agent answer an event, and returns how many seconds that took."""
    start = time.perf_counter()
    await workspaces.handle(REF, actor=PUBLISHER).publish(EVENT)
    await reactor.settle()
    return time.perf_counter() - start


async def _heard(process: Process) -> dict[str, Any]:
    heard = await told(process)
    print(
        f"  {heard['number']} tokens heard, the median {heard['median'] * 1000:.1f} ms after the model,"
        f" the latest {heard['latest'] * 1000:.1f} ms",
        file=sys.stderr,
    )
    if heard["number"] != TOKENS:
        raise ValueError(f"a client that reads missed something: {heard}")
    return heard


# --- The subscribers


async def _subscribe(url: str, stalled: str) -> None:
    """Reads what is said with one client and tells how late it was after each run; the others read nothing."""
    async with AsyncExitStack() as stack:
        for _ in range(int(stalled)):
            client = await stack.enter_async_context(connected(url, {"deltas": True}, narrow=True))
            # It would read what there is before it says goodbye.
            stack.callback(client.transport.abort)
        reading = await stack.enter_async_context(connected(url, {"deltas": True}))
        tell({"connected": int(stalled) + 1})
        listening = asyncio.create_task(_listen(reading))
        await asyncio.to_thread(sys.stdin.read)
        listening.cancel()


async def _listen(client: Any) -> None:
    waits: list[float] = []
    async for text in client:
        now = time.monotonic_ns()
        frame = json.loads(text)
        if frame["type"] == "delta" and frame["delta"]["kind"] == "text":
            waits.append((now - int(frame["delta"]["text"])) / 1e9)
        elif frame["type"] == "event" and frame["envelope"]["event"]["type"] == "reflexr:run_succeeded":
            tell({"number": len(waits), "median": median(waits), "latest": max(waits)})
            waits.clear()


async def _listen_apart(url: str) -> None:
    """Takes what another process says, and tells how late it was after the last of each lot."""
    engine = engine_of(url)
    async with PostgresLiveOutput(engine) as live_output:
        with live_output.listen(REF) as listener:
            tell({"connected": 1})
            listening = asyncio.create_task(_take(listener))
            await asyncio.to_thread(sys.stdin.read)
            listening.cancel()
    await engine.dispose()


async def _take(listener: DeltaListener) -> None:
    waits: list[float] = []
    while True:
        deltas = await listener.take()
        now = time.monotonic_ns()
        waits += [(now - int(delta.text)) / 1e9 for delta in deltas]
        if deltas[-1].number == TOKENS:
            tell({"number": len(waits), "median": median(waits), "latest": max(waits)})
            waits.clear()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["listen", where]:
            asyncio.run(_listen_apart(where))
        case more:
            asyncio.run(_subscribe(*more))
