"""What evaluating costs in workspaces in memory: the reactor, its passes, and what it keeps."""

from collections.abc import AsyncGenerator
from datetime import timedelta

from reflexr.core import Batch, F, Needs, Rule, RuleProgress, SourceActor, by, evaluate, needs, on, run
from reflexr.workspace import InMemoryStorage, Reaction, Reactor, StateChanges, WorkspaceRef, Workspaces

from .deciding import BATCH, Deploy, ServiceError, in_batches, log
from .harness import Sides, benchmark, timed_async

MILLION = 1_000_000
BLOCK = 20_000
REF = WorkspaceRef("bench", "bench")
PUBLISHER = SourceActor(name="bench")

PAIR = Rule(
    name="bench:pair",
    when=on(ServiceError).count(at_least=2, within=timedelta(minutes=1)),
    scope=by(F.service),
    then=run("page"),
)


class OneTimers:
    """A rule over a log in which every envelope is of a scope of its own, with its states in a storage in memory."""

    def __init__(self) -> None:
        self.storage = InMemoryStorage()
        self.progress = RuleProgress(PAIR.name, 1, 0, PAIR.definition())

    async def see(self, batch: Batch) -> None:
        """Evaluates one batch in one transaction."""
        needed = needs(PAIR, self.progress, batch)
        async with self.storage.transaction(REF) as transaction:
            states = (await transaction.states({PAIR.name: needed}))[PAIR.name]
            evaluation = evaluate(PAIR, self.progress, states, batch, needs=needed)
            changes = StateChanges(evaluation.states, evaluation.dropped, evaluation.clock)
            await transaction.change_states({PAIR.name: changes})
        self.progress = evaluation.progress

    async def see_all(self, batches: list[Batch]) -> None:
        """Evaluates batches one after another."""
        for batch in batches:
            await self.see(batch)

    def next_block(self) -> list[Batch]:
        """The next envelopes of its log, each of another scope."""
        return [Batch(part) for part in in_batches(log(BLOCK, 10 * MILLION, after=self.progress.cursor))]

    async def live(self) -> int:
        """How many scopes have a state."""
        seen = frozenset(f'["service-{index}"]' for index in range(self.progress.cursor))
        async with self.storage.transaction(REF) as transaction:
            return len((await transaction.states({PAIR.name: Needs(seen, None, ())}))[PAIR.name])


@benchmark("memory: scopes seen once, after a million of them to the first", at_most=1.3)
async def scopes_seen_once() -> AsyncGenerator[Sides]:
    """The time of an envelope of a scope that is seen once; what is left of a million of them is the last window's."""
    old = OneTimers()
    while old.progress.cursor < MILLION:
        await old.see_all(old.next_block())
    live = await old.live()
    if live > 60 * 10 + BATCH:
        raise ValueError(f"{live} states are kept of scopes whose windows have nearly all passed")
    young = OneTimers()
    blocks: dict[OneTimers, list[Batch]] = {}

    async def prepare(one: OneTimers) -> None:
        blocks[one] = one.next_block()

    yield Sides(
        ours=timed_async(lambda: old.see_all(blocks[old]), units=BLOCK, before=lambda: prepare(old)),
        raw=timed_async(lambda: young.see_all(blocks[young]), units=BLOCK, before=lambda: prepare(young)),
    )


async def do_nothing(reaction: Reaction[None]) -> None:
    """Is what rules run that are measured for their deciding."""


def counting_rules(number: int) -> list[Rule]:
    return [
        Rule(
            name=f"bench:rule-{index}",
            when=on(ServiceError).count(at_least=1_000, within=timedelta(hours=1)),
            then=run("nothing"),
        )
        for index in range(number)
    ]


async def _behind(rules: list[Rule], events: int) -> Reactor[None]:
    """A reactor of a workspace in which so many events are still to be evaluated."""
    workspaces = Workspaces(InMemoryStorage(), events=[ServiceError, Deploy], rules=rules)
    handle = workspaces.handle(REF, actor=PUBLISHER)
    for part in range(0, events, BATCH):
        await handle.publish_many(
            [
                ServiceError(service=f"service-{index % 100}", severity=8, message="x" * 110)
                for index in range(part, part + BATCH)
            ]
        )
    return Reactor(workspaces, actions={"nothing": do_nothing})


@benchmark("memory: a reactor over a log with 20 matching rules, to 1", at_least=0.1)
async def matching_rules() -> AsyncGenerator[Sides]:
    """Envelopes a second."""
    events = 10_000
    reactors: dict[int, Reactor[None]] = {}

    async def prepare(number: int) -> None:
        reactors[number] = await _behind(counting_rules(number), events)

    async def caught_up(number: int) -> None:
        await reactors[number].evaluate()

    yield Sides(
        ours=timed_async(lambda: caught_up(20), units=events, before=lambda: prepare(20)),
        raw=timed_async(lambda: caught_up(1), units=events, before=lambda: prepare(1)),
    )


@benchmark("memory: a pass over 10,000 idle workspaces, to 10", at_most=2)
async def idle_workspaces() -> AsyncGenerator[Sides]:
    """The time of a pass of each kind that finds nothing to do."""

    async def idle(number: int) -> Reactor[None]:
        workspaces = Workspaces(InMemoryStorage(), events=[ServiceError], rules=counting_rules(3))
        for index in range(number):
            handle = workspaces.handle(WorkspaceRef("bench", f"workspace-{index}"), actor=PUBLISHER)
            await handle.publish(ServiceError(service="auth", severity=8, message="x"))
        reactor = Reactor(workspaces, actions={"nothing": do_nothing})
        await reactor.settle()
        return reactor

    async def passes(reactor: Reactor[None]) -> None:
        for _ in range(100):
            await reactor.evaluate()
            await reactor.execute()

    many, few = await idle(10_000), await idle(10)
    yield Sides(ours=timed_async(lambda: passes(many), units=100), raw=timed_async(lambda: passes(few), units=100))
