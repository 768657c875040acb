"""Graphs of any make go on where they were, wherever they are broken off."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_graph import GraphBuilder, ReduceFirstValue, StepContext, reduce_list_append

from reflexr.agent import GraphAction
from reflexr.core import RetryPolicy, Run
from reflexr.workspace import Reaction

from .harbour import SECOND, Arrived, Harbour, Moored, rule
from .routes import Builder, Fork, Loop, Map, Route
from .test_graphs import Rope, Storm, fails_once, finish, harbour, steps_of
from .voyage import BRANCHES, RESULT, Log, voyage

__all__ = ["harbour"]

OFTEN = rule(retry=RetryPolicy(max_attempts=100, backoff=SECOND))
LONG_ENOUGH = 300
"""How many turns of the event loop everything gets to go as far as it comes: a save takes some ten."""


class Breaker:
    """Counts steps, and breaks the graph off where some begin, once each, when nothing else goes on any more.

    Each step emits an event too.
    """

    def __init__(self, *at: int) -> None:
        self.did: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.emitted: dict[int, str] = {}
        self._at = set(at)

    async def __call__(self, step: str, reaction: Reaction[Any]) -> None:
        self.did[step] += 1
        publication = await reaction.emit(Moored(ship=step))
        assert publication.envelope.payload["ship"] == step
        self.emitted[publication.seq] = step
        if self.did.total() in self._at:
            self.broken[step] += 1
            for _ in range(LONG_ENOUGH):
                await asyncio.sleep(0)
            raise Storm(step)
        # Branches overtake each other.
        for _ in range(len(step) % 3):
            await asyncio.sleep(0)


async def sailed(route: Route, breaker: Breaker) -> Run:
    sea = Harbour()
    await sea.publish(Arrived(ship="Argo"))
    action = GraphAction(Builder(breaker).build(["begin", route]), name="route", inputs=lambda _: "")
    run = await sea.act(action, OFTEN)
    while run.status == "retrying":
        run = await sea.act_again(action, OFTEN)
    return run


STEP = st.sampled_from("ab")
BRANCH = st.one_of(STEP, st.lists(STEP, min_size=1, max_size=3))
# Not one fork right within another: which join then gets what depends on the time that each takes.
ROUTES: st.SearchStrategy[Any] = st.lists(
    st.one_of(
        STEP,
        st.builds(Fork, st.tuples(BRANCH, BRANCH)),
        st.builds(Fork, st.tuples(BRANCH, BRANCH, BRANCH)),
        st.builds(Map, BRANCH, st.integers(1, 3)),
    ),
    min_size=1,
    max_size=3,
)


# What a join gets is in the order in which its branches ended, and comes in that order again.
@given(ROUTES, st.sets(st.integers(1, 30), max_size=4))
@example(Fork((Map("a", 3), Map("a", 1))), {8, 16})
@settings(max_examples=50)
async def test_wherever_a_graph_is_broken_off_only_the_steps_that_were_running_are_repeated(
    route: Route, at: set[int]
) -> None:
    calm, broken = Breaker(), Breaker(*at)

    expected, run = await sailed(route, calm), await sailed(route, broken)

    assert (run.status, run.output) == ("succeeded", expected.output)
    assert broken.did == calm.did + broken.broken
    assert Counter(broken.emitted.values()) == calm.did


@pytest.mark.parametrize(
    "route",
    [
        Loop(["a", Fork(("b", "c")), "d"], 3),
        Fork((Fork((Fork(("a", "b")), "c")), [Map("d", 3), "e"])),
        Map(Map(["a", "b"], 3), 3),
        [Fork(("a", "b")), Fork(("c", "d"))],
    ],
)
async def test_a_graph_that_is_broken_off_at_every_step_comes_to_the_same(route: Route) -> None:
    calm = Breaker()
    expected = await sailed(route, calm)
    # Each attempt gets one execution further.
    broken = Breaker(*range(1, 2 * calm.did.total(), 2))

    run = await sailed(route, broken)

    assert (run.status, run.output) == ("succeeded", expected.output)
    assert broken.did == calm.did + broken.broken
    assert Counter(broken.emitted.values()) == calm.did


async def test_many_branches_are_saved_and_none_is_repeated(harbour: Harbour) -> None:
    calm, broken = Breaker(), Breaker(250)

    expected, run = await sailed(Map("a", 200), calm), await sailed(Map("a", 200), broken)

    assert (run.output, run.attempt) == (expected.output, 2)
    assert broken.did == calm.did + broken.broken
    assert Counter(broken.emitted.values()) == calm.did


@pytest.mark.parametrize("turns", range(40, 400, 20))
async def test_a_reactor_that_is_stopped_at_any_moment_leaves_a_graph_that_goes_on(
    harbour: Harbour, turns: int
) -> None:
    did: Counter[str] = Counter()

    async def do(step: str, _: Reaction[Any]) -> None:
        did[step] += 1
        await asyncio.sleep(0)

    action = GraphAction(voyage(do), name="voyage", state=Log, inputs=lambda _: "Argo")
    acting = asyncio.create_task(harbour.act(action))
    for _ in range(turns):
        await asyncio.sleep(0)
    acting.cancel()
    await asyncio.wait([acting])

    await harbour.act(action)
    finished = await harbour.act_again(action)

    assert (finished.status, finished.output) == ("succeeded", RESULT)
    repeated = {step for step, times in did.items() if times > 1}
    assert max(did.values()) <= 2
    assert repeated <= BRANCHES or len(repeated) == 1


# --- Branches whose outputs do not last, streams and joins that do not wait


async def test_where_a_branchs_output_does_not_last_the_whole_fork_is_repeated(harbour: Harbour) -> None:
    graph = GraphBuilder(deps_type=Reaction[Any], output_type=int)
    did: Counter[str] = Counter()
    lost = asyncio.Event()

    @graph.step
    async def begin(ctx: StepContext[None, Reaction[Any], None]) -> int:
        did["begin"] += 1
        return 1

    @graph.step
    async def rope(ctx: StepContext[None, Reaction[Any], int]) -> Rope:
        did["rope"] += 1
        lost.set()
        return Rope()

    @graph.step
    async def number(ctx: StepContext[None, Reaction[Any], int]) -> int:
        await lost.wait()
        did["number"] += 1
        return ctx.inputs

    @graph.step
    async def count(ctx: StepContext[None, Reaction[Any], list[Any]]) -> int:
        fails_once(did, "count")
        return len(ctx.inputs)

    join = graph.join(reduce_list_append, initial_factory=list[Any])
    graph.add(
        graph.edge_from(graph.start_node).to(begin),
        graph.edge_from(begin).to(rope, number),
        graph.edge_from(rope, number).to(join),
        graph.edge_from(join).to(count),
        graph.edge_from(count).to(graph.end_node),
    )

    finished = await finish(harbour, GraphAction(graph.build(), name="rope"))

    assert (finished.output, did) == (2, {"begin": 1, "rope": 2, "number": 2, "count": 2})


async def test_a_stream_is_repeated_from_before_it_and_what_comes_after_it_is_not(harbour: Harbour) -> None:
    graph = GraphBuilder(deps_type=Reaction[Any], output_type=int)
    did: Counter[str] = Counter()

    @graph.step
    async def begin(ctx: StepContext[None, Reaction[Any], None]) -> int:
        did["begin"] += 1
        return 3

    @graph.stream
    async def numbers(ctx: StepContext[None, Reaction[Any], int]) -> AsyncIterator[int]:
        did["numbers"] += 1
        for number in range(ctx.inputs):
            yield number

    @graph.step
    async def double(ctx: StepContext[None, Reaction[Any], int]) -> int:
        did["double"] += 1
        if did["double"] == 2:
            raise Storm
        return 2 * ctx.inputs

    @graph.step
    async def total(ctx: StepContext[None, Reaction[Any], list[int]]) -> int:
        did["total"] += 1
        return sum(ctx.inputs)

    @graph.step
    async def last(ctx: StepContext[None, Reaction[Any], int]) -> int:
        fails_once(did, "last")
        return ctx.inputs

    join = graph.join(reduce_list_append, initial_factory=list[int])
    graph.add(
        graph.edge_from(graph.start_node).to(begin),
        graph.edge_from(begin).to(numbers),
        graph.edge_from(numbers).map().to(double),
        graph.edge_from(double).to(join),
        graph.edge_from(join).to(total),
        graph.edge_from(total).to(last),
        graph.edge_from(last).to(graph.end_node),
    )

    finished = await finish(harbour, GraphAction(graph.build(), name="stream"))

    assert (finished.status, did["begin"], did["numbers"], did["last"]) == ("succeeded", 1, 2, 2)


async def test_a_branch_that_a_join_did_not_wait_for_is_not_missed(harbour: Harbour) -> None:
    graph = GraphBuilder(deps_type=Reaction[Any], output_type=str)
    did: Counter[str] = Counter()
    stopped = asyncio.Event()

    @graph.step
    async def fast(ctx: StepContext[None, Reaction[Any], None]) -> str:
        did["fast"] += 1
        return "fast"

    @graph.step
    async def slow(ctx: StepContext[None, Reaction[Any], None]) -> str:
        did["slow"] += 1
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    @graph.step
    async def end(ctx: StepContext[None, Reaction[Any], str]) -> str:
        await stopped.wait()
        return ctx.inputs

    @graph.step
    async def after(ctx: StepContext[None, Reaction[Any], str]) -> str:
        fails_once(did, "after")
        return ctx.inputs

    join = graph.join(ReduceFirstValue[str](), initial="none")
    graph.add(
        graph.edge_from(graph.start_node).to(fast, slow),
        graph.edge_from(fast, slow).to(join),
        graph.edge_from(join).to(end),
        graph.edge_from(end).to(after),
        graph.edge_from(after).to(graph.end_node),
    )

    finished = await finish(harbour, GraphAction(graph.build(), name="first"))

    assert (finished.output, did) == ("fast", {"fast": 1, "slow": 1, "after": 2})
    assert "end" in await steps_of(harbour)
