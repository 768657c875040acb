import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import pairwise
from typing import Any, override

import pytest

from reflexr.core import MAX_DELTA, Actor, Delta, Envelope, Forbidden
from reflexr.workspace import Access, InProcessLiveOutput, LiveAttempt, Reaction, WorkspaceRef

from .plant import ADA, REF, Alarm, a_run
from .reacting import IMMEDIATELY, Bench, rule

ELSEWHERE = WorkspaceRef("acme", "elsewhere")


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def heard(bench: Bench, output: InProcessLiveOutput, *says: Any) -> list[Delta]:
    """What is heard of a run whose action calls `live.send` with each of these."""

    async def page(reaction: Reaction[Any]) -> None:
        for arguments in says:
            reaction.live.send(*arguments[0], **arguments[1])

    await bench.publish(Alarm(machine="press"))
    with output.listen(REF) as listener:
        await bench.reactor(rule(), actions={"page": page}, live_output=output).settle()
        output.send(REF, LAST)
        *deltas, last = await listener.take()
    assert last is LAST
    return deltas


LAST = Delta(run_id="last", rule="plant:a", attempt=1, number=1, kind="text", part=0, text="")


def say(*text: Any, **options: Any) -> Any:
    return text, options


async def test_what_an_action_says_is_told_at_once_with_its_run_and_attempt(bench: Bench) -> None:
    output = InProcessLiveOutput()
    told: list[Delta] = []

    async def page(reaction: Reaction[Any]) -> None:
        reaction.live.send("Paging ")
        told.extend(await listener.take())
        if reaction.attempt == 1:
            raise OSError
        reaction.live.send("Ada", part=reaction.live.new_part(), kind="tool_call", tool="page")
        told.extend(await listener.take())

    await bench.publish(Alarm(machine="press"))
    with output.listen(REF) as listener:
        await bench.reactor(rule(retry=IMMEDIATELY), actions={"page": page}, live_output=output).settle()

    [run] = await bench.runs()
    shared: dict[str, Any] = {"run_id": run.id, "rule": "plant:a"}
    assert told == [
        Delta(**shared, attempt=1, number=1, kind="text", part=0, text="Paging "),
        Delta(**shared, attempt=2, number=1, kind="text", part=0, text="Paging "),
        Delta(**shared, attempt=2, number=2, kind="tool_call", part=1, text="Ada", tool="page"),
    ]
    assert run.status == "succeeded"


async def test_nothing_of_it_is_recorded(bench: Bench) -> None:
    assert await heard(bench, InProcessLiveOutput(), say("a secret"), say("another secret"))

    assert await bench.types() == ["alarm", "rule_fired", "run_started", "run_succeeded"]
    recorded = [one.to_json() for one in await bench.log()] + [run.model_dump_json() for run in await bench.runs()]
    assert not any("secret" in one for one in recorded)


async def test_what_is_long_is_told_in_several_pieces(bench: Bench) -> None:
    text = "".join(f"{number} " for number in range(1_000))
    deltas = await heard(bench, InProcessLiveOutput(), say(text, part=3, kind="thinking"), say(""))

    pieces = deltas[:-1]
    assert "".join(delta.text for delta in pieces) == text
    assert all(0 < len(delta.text) <= MAX_DELTA for delta in pieces)
    assert {(delta.part, delta.kind) for delta in pieces} == {(3, "thinking")}
    assert deltas[-1].text == ""
    assert [delta.number for delta in deltas] == [*range(1, len(deltas) + 1)]


async def test_what_no_frame_can_hold_is_told_all_the_same(bench: Bench) -> None:
    deltas = await heard(bench, InProcessLiveOutput(), say("a\ud800b\0𝄞", tool="\udfff" * 2_000))

    assert [(delta.text, delta.tool) for delta in deltas] == [("a?b\0𝄞", "?" * MAX_DELTA)]
    assert Delta.model_validate_json(deltas[0].model_dump_json()) == deltas[0]


async def test_who_comes_later_sees_that_something_was_said_before(bench: Bench) -> None:
    output = InProcessLiveOutput()
    told: list[Delta] = []

    async def page(reaction: Reaction[Any]) -> None:
        assert not reaction.live.is_heard
        reaction.live.send("x" * (MAX_DELTA + 1))
        with output.listen(REF) as listener:
            assert reaction.live.is_heard
            reaction.live.send("there")
            told.extend(await listener.take())

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(), actions={"page": page}, live_output=output).settle()

    assert [(delta.number, delta.text, delta.lost) for delta in told] == [(3, "there", 0)]


async def test_each_part_of_an_attempt_has_a_number_of_its_own(bench: Bench) -> None:
    parts: list[int] = []

    async def page(reaction: Reaction[Any]) -> None:
        parts.extend(reaction.live.new_part() for _ in range(3))

    await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))
    await bench.reactor(rule(), actions={"page": page}).settle()

    assert parts == [1, 2, 3] * 2


class FailingOutput(InProcessLiveOutput):
    """Carries nothing any more."""

    @override
    def send(self, workspace: WorkspaceRef, delta: Delta) -> None:
        if delta is not LAST:
            raise ConnectionError("the broker is gone")
        super().send(workspace, delta)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (FailingOutput(), say("a")),
        (InProcessLiveOutput(), say("a", kind="sound")),
        (InProcessLiveOutput(), say("a", part=-1)),
        (InProcessLiveOutput(), say(1)),
        (InProcessLiveOutput(), say("a", tool=1)),
    ],
)
async def test_what_cannot_be_told_is_logged_once_and_fails_no_run(
    bench: Bench, output: InProcessLiveOutput, says: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="reflexr.workspace"):
        assert await heard(bench, output, says, says) == []

    assert [record.getMessage().partition(" run ")[0] for record in caplog.records] == ["what"]
    assert await bench.statuses() == ["succeeded"]


async def test_an_action_that_is_called_by_hand_is_heard_by_nobody(bench: Bench) -> None:
    reactions: list[Reaction[Any]] = []

    async def page(reaction: Reaction[Any]) -> None:
        reactions.append(reaction)

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(), actions={"page": page}).settle()
    given = reactions[0]

    async def never(*_: Any) -> Any:
        raise NotImplementedError

    by_hand = Reaction(
        workspace=given.workspace,
        run=given.run,
        rule=given.rule,
        envelopes=given.envelopes,
        deps=None,
        params=None,
        save_checkpoint=never,
    )
    assert isinstance(by_hand.live, LiveAttempt)
    by_hand.live.send("hello")
    assert not by_hand.live.is_heard


async def test_a_thread_of_an_action_is_heard_at_once_too(bench: Bench) -> None:
    output = InProcessLiveOutput()
    told: list[str] = []

    async def page(reaction: Reaction[Any]) -> None:
        said = threading.Event()

        def call() -> None:
            reaction.live.send("from ")
            reaction.live.send("a thread")
            said.wait()

        calling = asyncio.create_task(asyncio.to_thread(call))
        try:
            while len(told) < 2:
                told.extend(delta.text for delta in await listener.take())
        finally:
            said.set()
        await calling

    await bench.publish(Alarm(machine="press"))
    with output.listen(REF) as listener:
        await bench.reactor(rule(), actions={"page": page}, live_output=output).settle()

    assert told == ["from ", "a thread"]


def test_a_thread_that_goes_on_after_its_loop_and_who_has_none_are_heard_as_far_as_somebody_is_there() -> None:
    output = InProcessLiveOutput()
    run = a_run(status="running", attempt=1)

    async def begun() -> LiveAttempt:
        return LiveAttempt(output, REF, run)

    left = asyncio.run(begun())
    thread = threading.Thread(target=left.send, args=("too late",))
    thread.start()
    thread.join()

    with output.listen(REF) as listener:
        LiveAttempt(output, REF, run).send("without a loop")
        assert [delta.text for delta in asyncio.run(listener.take())] == ["without a loop"]


# --- Subscribers in process


async def shown(stream: AsyncGenerator[Envelope | Delta], number: int) -> list[str]:
    taken = [await anext(stream) for _ in range(number)]
    return [one.text if isinstance(one, Delta) else one.event_type.partition(":")[2] for one in taken]


async def test_a_subscriber_that_asks_for_deltas_gets_them_among_the_envelopes(bench: Bench) -> None:
    output = InProcessLiveOutput()

    async def page(reaction: Reaction[Any]) -> str:
        reaction.live.send("Paging ")
        reaction.live.send("Ada")
        return "Paging Ada"

    reactor = bench.reactor(rule(), actions={"page": page}, live_output=output)
    workspaces = bench.workspaces(live_output=output)
    workspace = await workspaces.open("acme", "prod", actor=ADA)
    async with (
        aclosing(workspace.subscribe(deltas=True)) as asking,
        aclosing(workspace.subscribe(deltas=False)) as other,
        aclosing(workspace.subscribe(types=["plant:opened"], deltas=True)) as elsewhere,
    ):
        waiting = asyncio.ensure_future(shown(elsewhere, 2))
        await bench.publish(Alarm(machine="press"))
        assert await shown(asking, 1) == await shown(other, 1) == ["alarm"]
        await reactor.settle()

        said = ["rule_fired", "run_started", "Paging ", "Ada", "run_succeeded"]
        assert sorted(await shown(asking, 5)) == sorted(said)
        assert await shown(other, 3) == ["rule_fired", "run_started", "run_succeeded"]
        assert await waiting == ["Paging ", "Ada"]

    assert (len(output), len(workspaces.configuration.feeds), len(bench.storage.wakeups)) == (0, 0, 0)


async def test_deltas_are_those_of_the_workspace(bench: Bench) -> None:
    output = InProcessLiveOutput()
    workspace = await bench.workspaces(live_output=output).open("acme", "prod", actor=ADA)
    await bench.publish(Alarm(machine="press"))
    async with aclosing(workspace.subscribe(deltas=True)) as stream:
        assert await shown(stream, 1) == ["alarm"]
        waiting = asyncio.ensure_future(shown(stream, 1))
        output.send(ELSEWHERE, LAST)
        output.send(REF, LAST.model_copy(update={"text": "here"}))

        assert await waiting == ["here"]


async def test_who_may_not_read_the_log_hears_nothing_either(bench: Bench) -> None:
    output = InProcessLiveOutput()

    def authorize(tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> bool:
        return access.action != "reflexr:read_events"

    workspaces = bench.workspaces(live_output=output, authorize=authorize)
    workspace = await workspaces.open("acme", "prod", actor=ADA)
    with pytest.raises(Forbidden):
        await anext(workspace.subscribe(deltas=True))

    assert len(output) == 0


async def test_a_subscriber_that_stalls_loses_deltas_and_no_envelope_and_holds_up_no_run(bench: Bench) -> None:
    output = InProcessLiveOutput(10)
    number = 100

    async def page(reaction: Reaction[Any]) -> None:
        for _ in range(number):
            reaction.live.send("x")

    reactor = bench.reactor(rule(), actions={"page": page}, live_output=output)
    workspace = await bench.workspaces(live_output=output).open("acme", "prod", actor=ADA)
    async with aclosing(workspace.subscribe(deltas=True)) as stream:
        await bench.publish(Alarm(machine="press"))
        assert await shown(stream, 1) == ["alarm"]
        await reactor.settle()
        assert await bench.statuses() == ["succeeded"]

        taken: list[Envelope | Delta] = []
        while not any(isinstance(one, Envelope) and one.event_type.endswith("run_succeeded") for one in taken):
            taken.append(await anext(stream))

    envelopes = [one for one in taken if isinstance(one, Envelope)]
    deltas = [one for one in taken if isinstance(one, Delta)]
    assert [one.seq for one in envelopes] == [2, 3, 4]
    # It had room for ten, and the ten before may have been on their way to it.
    assert 0 < len(deltas) <= 20
    assert sum(1 + one.lost for one in deltas) <= number
    assert all(after.number == before.number + after.lost + 1 for before, after in pairwise(deltas))
