"""What streaming costs: servers of many connections, with the clients beside them in processes of their own.

`python -m benchmarks.streaming load` is a server that publishes what a hundred clients read, and tells how much memory
it has; `read` and `idle` are clients.
"""

import asyncio
import json
import os
import resource
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from reflexr.core import PROTOCOL
from reflexr.fastapi import reflexr_router
from reflexr.workspace import InMemoryStorage, Workspaces

from .deciding import Deploy, ServiceError
from .harness import Cost, Sides, benchmark, timed_async
from .memory import PUBLISHER, REF

IDLE: Final = 1_000
PUBLISHES: Final = 500

READERS, STALLED = 95, 5
RATE: Final = 100
"""How many events are published a second."""

EARLY, LATE = 500, 2_000
OUTBOX_SIZE: Final = 500
SOCKET: Final = 65_536
"""How many bytes a socket holds, so that a client that stalls is seen to stall in time."""

EVENT: Final = ServiceError(service="auth", severity=8, message="x" * 110)


@asynccontextmanager
async def served(workspaces: Workspaces) -> AsyncGenerator[str]:
    """Serves workspaces on a real socket, and yields where they are."""
    router = reflexr_router(workspaces, resolve_actor=lambda _: (REF.tenant_id, PUBLISHER), outbox_size=OUTBOX_SIZE)
    app = FastAPI()
    app.include_router(router)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws_per_message_deflate=False))
    with socket.create_server(("127.0.0.1", 0), backlog=2 * IDLE) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET)
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}/workspaces"
        finally:
            await router.close()
            server.should_exit = True
            await running


@asynccontextmanager
async def clients(*arguments: object, module: str = "benchmarks.streaming") -> AsyncGenerator[Process]:
    """Clients in a process of their own, which are connected and caught up."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *map(str, arguments), stdin=PIPE, stdout=PIPE
    )
    try:
        await told(process)
        yield process
    finally:
        await process.communicate()


async def told(process: Process) -> Any:
    """Returns the next line of JSON that a process writes."""
    if process.stdout is None or not (line := await process.stdout.readline()):
        raise ValueError("the clients ended before they were done")
    return json.loads(line)


@benchmark("streaming: a publish with 1,000 idle connections, to none", at_most=1.3)
async def idle_connections() -> AsyncGenerator[Sides]:
    """The time of a publish; the connections are to other workspaces, in which nothing happens."""
    _allow_files()
    streamed, quiet = _workspaces(), _workspaces()
    async with served(streamed) as url, clients("idle", url, IDLE, "elsewhere"):
        yield Sides(ours=_publishing(streamed), raw=_publishing(quiet))


@benchmark("streaming: a publish with 1,000 connections that want other events, to one", at_most=1.3)
async def filtered_connections() -> AsyncGenerator[Sides]:
    """The time of a publish in the workspace that they stream."""
    _allow_files()
    many, one = _workspaces(), _workspaces()
    async with (
        served(many) as url,
        served(one) as other,
        clients("idle", url, IDLE, REF.workspace_id),
        clients("idle", other, 1, REF.workspace_id),
    ):
        yield Sides(ours=_publishing(many), raw=_publishing(one))


@benchmark("streaming: resident memory after 20 s of 100 events a second to 100 connections, to after 5 s", at_most=1.2)
async def load() -> AsyncGenerator[Sides]:
    """Bytes, of a server whose readers all got everything, and whose stalled clients were closed and resumed."""
    measured: list[tuple[float, float]] = []

    async def measure() -> tuple[float, float]:
        # What it comes to is the same each time.
        if not measured:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.streaming", "load", stdout=PIPE
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


# --- The servers


def _workspaces() -> Workspaces:
    return Workspaces(InMemoryStorage(), events=[ServiceError, Deploy])


def _publishing(workspaces: Workspaces) -> Cost:
    async def publish() -> None:
        workspace = workspaces.handle(REF, actor=PUBLISHER)
        for _ in range(PUBLISHES):
            await workspace.publish(EVENT)

    return timed_async(publish, units=PUBLISHES)


async def _load() -> None:
    """Publishes at a steady rate to clients that read and clients that stall, and tells how much memory it takes."""
    workspaces = _workspaces()
    workspace = workspaces.handle(REF, actor=PUBLISHER)
    loop = asyncio.get_running_loop()
    async with served(workspaces) as url, clients("read", url) as process:
        begun, longest = loop.time(), 0.0
        for number in range(1, LATE + 1):
            await asyncio.sleep(begun + number / RATE - loop.time())
            start = loop.time()
            await workspace.publish(EVENT)
            longest = max(longest, loop.time() - start)
            if number in (EARLY, LATE):
                sys.stdout.write(f"{_resident()}\n")
        took = loop.time() - begun
        outcome = await told(process)
    print(
        f"  {LATE} events in {took:.1f} s, the longest publish {longest * 1000:.0f} ms;"
        f" {outcome['read']} readers got all;"
        f" {outcome['resumed']} stalled clients were closed with 4429 and got the rest",
        file=sys.stderr,
    )
    if outcome != {"read": READERS, "resumed": STALLED}:
        raise ValueError(f"a client missed something: {outcome}")


def _resident() -> int:
    """How many bytes of memory this process has, shared ones left out."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- The clients


@asynccontextmanager
async def connected(
    url: str,
    hello: dict[str, Any],
    workspace_id: str = REF.workspace_id,
    *,
    narrow: bool = False,
    replayed: list[int] | None = None,
) -> AsyncGenerator[ClientConnection]:
    """A client that is caught up, perhaps with a socket that holds little; what is replayed is added to a list."""
    options: dict[str, Any] = {"compression": None, "proxy": None, "ping_interval": None, "open_timeout": None}
    if narrow:
        host, _, port = url.removeprefix("ws://").partition("/")[0].partition(":")
        stalling = socket.socket()
        stalling.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stalling.setblocking(False)
        await asyncio.get_running_loop().sock_connect(stalling, (host, int(port)))
        options |= {"sock": stalling, "max_queue": 1}
    async with connect(f"{url}/{workspace_id}/stream", subprotocols=[Subprotocol(PROTOCOL)], **options) as client:
        await client.send(json.dumps({"type": "hello", "protocol": PROTOCOL, **hello}))
        while (frame := json.loads(await client.recv()))["type"] != "replay_complete":
            if replayed is not None and frame["type"] == "event":
                replayed.append(frame["envelope"]["seq"])
        yield client


async def _seqs(client: ClientConnection, after: int) -> tuple[list[int], int | None]:
    """Returns the places that a client is sent until it has all or is closed, and with which code."""
    seqs = [after]
    try:
        while seqs[-1] < LATE:
            frame = json.loads(await client.recv())
            if frame["type"] == "event":
                seqs.append(frame["envelope"]["seq"])
    except ConnectionClosed as closed:
        return seqs[1:], None if closed.rcvd is None else closed.rcvd.code
    return seqs[1:], None


async def _read(url: str) -> None:
    """Reads everything with some clients, and with others only once those have all."""
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(connected(url, {})) for _ in range(READERS)]
        stalled = [await stack.enter_async_context(connected(url, {}, narrow=True)) for _ in range(STALLED)]
        tell({"connected": READERS + STALLED})
        everything = list(range(1, LATE + 1))
        read = await asyncio.gather(*(_seqs(client, 0) for client in readers))
        resumed = 0
        for client in stalled:
            seen, code = await _seqs(client, 0)
            rest: list[int] = []
            async with connected(url, {"resume_after_seq": len(seen)}, replayed=rest):
                pass
            resumed += (code, seen + rest) == (4429, everything)
        tell({"read": sum(seqs == everything for seqs, _ in read), "resumed": resumed})


async def _idle(url: str, number: str, workspace_id: str) -> None:
    """Connects clients that want what never comes, until this process is told to end."""
    _allow_files()
    async with AsyncExitStack() as stack:
        for _ in range(int(number)):
            await stack.enter_async_context(connected(url, {"types": [Deploy.event_type]}, workspace_id))
        tell({"connected": int(number)})
        await asyncio.to_thread(sys.stdin.read)


def tell(value: dict[str, Any]) -> None:
    """Writes a line of JSON, for whoever started this process."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _allow_files() -> None:
    """Lets this process have a file for each connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    word, *rest = sys.argv[1:]
    asyncio.run({"load": _load, "read": _read, "idle": _idle}[word](*rest))
