"""An agent's answer that is heard while the model gives it: by a client of a server, on real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import httpx
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from reflexr.agent import AgentAction, LiveDeltas
from reflexr.client import Client
from reflexr.core import Delta, Event, F, Rule, RunSucceeded, SourceActor, UserActor, by, on, run
from reflexr.workspace import InMemoryStorage, Reaction, Reactor, Workspaces

from .served import served, token_of

NOTHING_YET = "… "
PIECES = ("It ", "is ", "the ", "disk.")


class LiveEvent(Event, abstract=True, event_namespace="live"):
    """What happens to hosts."""


class Failed(LiveEvent):
    host: str


async def test_a_client_hears_an_answer_while_the_model_gives_it_and_then_the_log_goes_on() -> None:
    heard = asyncio.Queue[str]()

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        while heard.empty():
            # Nobody may be listening yet, and nothing tells the model when somebody does.
            yield NOTHING_YET
            await asyncio.sleep(0.01)
        for piece in PIECES:
            yield piece
            # The model gives no further piece before the client has this one.
            while (last := await heard.get()) != piece:
                assert last == NOTHING_YET

    agent = Agent(FunctionModel(stream_function=stream), deps_type=Reaction[None], capabilities=[LiveDeltas()])
    action = AgentAction(agent, name="explain")
    rule = Rule(name="live:explain", when=on(Failed), scope=by(F.host), then=run(action))
    workspaces = Workspaces(InMemoryStorage(), events=[Failed], rules=[rule])
    reactor = Reactor(workspaces, actions={"explain": action}, deps=None)

    async with served(workspaces) as port, httpx.AsyncClient() as http:
        client = Client(f"http://127.0.0.1:{port}", token=token_of("acme", UserActor(id="ada")), http=http)
        following = client.workspace("ops").subscribe(deltas=True)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks, aclosing(following):
            tasks.create_task(reactor.serve(stop))
            publisher = await workspaces.open("acme", "ops", actor=SourceActor(name="web"))
            await publisher.publish(Failed(host="db1"))
            said: list[Delta] = []
            async for one in following:
                if isinstance(one, Delta):
                    said.append(one)
                    heard.put_nowait(one.text)
                elif isinstance(one.event, RunSucceeded):
                    break
            stop.set()
        (ended,) = await client.workspace("ops").runs()

    assert {(delta.run_id, delta.lost) for delta in said} == {(ended.id, 0)}
    assert [delta.number for delta in said] == [*range(said[0].number, said[0].number + len(said))]
    assert [delta.text for delta in said if delta.text != NOTHING_YET] == list(PIECES)
    assert isinstance(ended.output, str)
    assert ended.output.endswith("".join(delta.text for delta in said))
