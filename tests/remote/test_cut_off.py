"""A subscriber that is cut off again and again sees each event once and in order."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from random import Random
from typing import Final

import pytest

from reflexr.client import Backoff, Client
from reflexr.core import Event, EventRegistry, SourceActor
from reflexr.workspace import InMemoryStorage, Workspace, Workspaces

from .cutting import relay
from .served import served, token_of

EVENTS: Final = 20_000
CUTS: Final = 200
LOT: Final = EVENTS // CUTS
GREETED: Final = 0.8
"""How many of the cuts come after something was received, and not before the welcome."""

REGISTRY: Final = EventRegistry()
SOMEBODY: Final = SourceActor(name="somebody")


class Weather(Event, abstract=True, event_namespace="weather", registry=REGISTRY):
    """What a station measures."""


class Measured(Weather):
    number: int


class Subscriber:
    """Follows the log to its end, and says when it has got something since it was asked."""

    def __init__(self, client: Client) -> None:
        self.seen: list[int] = []
        self.got = asyncio.Event()
        self._client = client

    async def follow(self) -> None:
        async with aclosing(self._client.workspace("station").subscribe()) as envelopes:
            async for envelope in envelopes:
                assert envelope.seq == len(self.seen) + 1
                self.seen.append(envelope.payload["number"])
                self.got.set()
                if len(self.seen) == EVENTS:
                    return


@pytest.mark.timeout(300)  # 20,000 events through a socket that is cut off 200 times
async def test_a_client_that_is_cut_off_200_times_sees_each_of_20000_events_once_and_in_order() -> None:
    workspaces = Workspaces(InMemoryStorage(), events=[Measured], registry=REGISTRY)
    station = await workspaces.open("acme", "station", actor=SOMEBODY)
    random = Random(20_000)
    # It may be cut off before it was welcomed, too, as often as chance has it.
    backoff = Backoff(longest=timedelta(milliseconds=4), attempts=CUTS + 1, within=timedelta(hours=1))

    async with served(workspaces) as port, relay(port, random) as way:
        url = f"http://127.0.0.1:{way.port}"
        async with (
            Client(url, token=token_of("acme", SOMEBODY), backoff=backoff, registry=REGISTRY) as client,
            asyncio.TaskGroup() as tasks,
        ):
            subscriber = Subscriber(client)
            tasks.create_task(subscriber.follow())
            for number in range(CUTS):
                subscriber.got.clear()
                publishing = tasks.create_task(publish(station, number))
                await way.is_open()
                if random.random() < GREETED:
                    await subscriber.got.wait()
                for _ in range(random.randrange(100)):
                    await asyncio.sleep(0)
                way.cut()
                await publishing
            # Before the last one nobody has seen all, and so there was always somebody to cut off.
            await station.publish(Measured(number=EVENTS - 1))
    assert subscriber.seen == list(range(EVENTS))
    assert way.cuts >= CUTS


async def publish(station: Workspace, number: int) -> None:
    """Publishes what falls to one cut, in a few batches."""
    for first in range(number * LOT, (number + 1) * LOT, LOT // 4):
        numbers = range(first, min(first + LOT // 4, EVENTS - 1))
        await station.publish_many([Measured(number=each) for each in numbers])
