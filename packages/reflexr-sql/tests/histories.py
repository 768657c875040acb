"""A history of the chaos that is as it must be, and has all that can be tampered with."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from reflexr.core import (
    Rule,
    SourceActor,
)
from reflexr.workspace import InMemoryStorage, ManualClock, NewEvent

from .chaos.application import Worker, reactor_of, workspaces_of
from .chaos.episodes import chronicle_of
from .chaos.history import History
from .chaos.journal import Journal, Published, entries_of
from .chaos.nursery import answer
from .chaos.plans import WORKSPACES, chance, lot_of, rules_of

SEED: Final = 1
LOTS: Final = 60
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
PUBLISHERS: Final = ("publisher-0", "publisher-1")
NOTHING: Final = {"type": "chaos:nothing"}
"""What stands in for an event that is taken out of a log: nobody publishes it, and no rule watches it."""


async def made(path: Path) -> History:
    """What becomes of two publishers and a reactor to which nothing happens but that actions fail."""
    clock, journal, rules = ManualClock(START), Journal(path), [tame(rule) for rule in rules_of(SEED)]
    storage = InMemoryStorage(clock=clock)
    workspaces = workspaces_of(storage, rules, ticks=True)
    reactor = reactor_of(workspaces, Worker(SEED, "reactor-0.1", journal))
    answerer = Worker(SEED, "publisher-0.1", journal)
    for number in range(LOTS):
        publisher = PUBLISHERS[number % 2]
        lot = lot_of(SEED, publisher, number // 2)
        await workspaces.handle(lot.workspace, actor=SourceActor(name=publisher)).publish_many(
            [NewEvent(event, id=event_id) for event_id, event in lot.events.items()]
        )
        journal.write(Published(by=publisher, number=number // 2))
        clock.advance(timedelta(milliseconds=100))
        await reactor.settle()
        # Of those that ask later, nobody tells the answer: some wait for ever.
        if number < LOTS // 2:
            await answer(workspaces.handle(lot.workspace, actor=SourceActor(name=publisher)), answerer, chance(number))
    fresh = reactor_of(workspaces_of(storage, rules, ticks=False), Worker(SEED, "fresh", journal))
    for _ in range(20):
        clock.advance(timedelta(seconds=1))
        await fresh.settle()
    journal.close()
    chronicles = [await chronicle_of(storage, workspace) for workspace in WORKSPACES]
    return History(SEED, rules, PUBLISHERS, chronicles, entries_of(path), clock())


def tame(rule: Rule) -> Rule:
    """The rule, of which no attempt takes any time."""
    params = {**rule.then.params, "hangs": 0.0, "blocks": 0.0, "slow": 0.0, "slowest": 0.0}
    return rule.model_copy(update={"then": rule.then.model_copy(update={"params": params})})
