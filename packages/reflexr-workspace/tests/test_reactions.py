from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from reflexr.core import InvalidState, ValidationFailed, derived_id, on
from reflexr.workspace import (
    Pause,
    Publication,
    Reaction,
    Reactor,
)

from .plant import REF, Alarm, Opened, Repaired, Stopped
from .reacting import IMMEDIATELY, Bench, rule


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Thread(BaseModel):
    thread: str


async def test_an_action_is_given_the_run_its_rule_its_matched_events_and_the_deps(bench: Bench) -> None:
    given: list[Any] = []

    async def page(reaction: Reaction[str]) -> None:
        given.append(
            (
                reaction.deps,
                reaction.run_id == reaction.run.id,
                reaction.rule.name,
                dict(reaction.scope),
                reaction.attempt,
                reaction.events,
                [envelope.seq for envelope in reaction.envelopes],
                reaction.params,
                reaction.workspace.ref,
            )
        )

    pairs = rule(when=on(Alarm).count(at_least=2, within=timedelta(minutes=1)))
    await bench.publish(Alarm(machine="press", level=1), Stopped(machine="saw"), Alarm(machine="press", level=2))
    await Reactor(bench.workspaces(pairs), actions={"page": page}, deps="pager").settle()

    events = (Alarm(machine="press", level=1), Alarm(machine="press", level=2))
    assert given == [("pager", True, "plant:a", {"machine": "press"}, 1, events, [1, 3], None, REF)]


async def test_the_idempotency_key_is_the_same_at_every_attempt_and_no_other_runs_of_any_workspace(
    bench: Bench,
) -> None:
    keys: list[tuple[str, str]] = []

    async def page(reaction: Reaction[None]) -> None:
        keys.append((reaction.run_id, reaction.idempotency_key))
        if reaction.attempt == 1:
            raise OSError

    for workspace_id in ("north", "south"):
        await bench.publish(Alarm(machine="press"), workspace_id=workspace_id)
    await bench.reactor(rule(retry=IMMEDIATELY), actions={"page": page}).settle()

    assert len(keys) == 4
    assert len({run_id for run_id, _ in keys}) == 1
    assert len({key for _, key in keys}) == 2


async def test_what_an_action_publishes_names_the_run_as_its_cause_and_joins_its_chain(bench: Bench) -> None:
    async def page(reaction: Reaction[None]) -> None:
        await reaction.workspace.publish(Repaired(machine="press"), id="by hand")
        await reaction.emit(Repaired(machine="press"))

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(), actions={"page": page}).settle()

    log = await bench.log()
    (run,) = await bench.runs()
    repaired = [envelope for envelope in log if envelope.event_type == "plant:repaired"]
    assert len(repaired) == 2
    for envelope in repaired:
        assert envelope.causation == run.causation
        assert envelope.correlation_id == log[0].correlation_id
        assert envelope.actor.model_dump() == {
            "kind": "agent",
            "rule": "plant:a",
            "run_id": run.id,
            "name": "page",
        }


async def test_what_is_emitted_under_a_key_is_there_once_in_whatever_order_it_comes(bench: Bench) -> None:
    async def emit(reaction: Reaction[None]) -> None:
        machines = ["a", "b"] if reaction.attempt == 1 else ["c", "b", "a"]
        for machine in machines:
            await reaction.emit(Repaired(machine=machine), key=machine)
        if reaction.attempt == 1:
            await reaction.checkpoint("emitted")
            raise OSError

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(retry=IMMEDIATELY), actions={"page": emit}).settle()

    assert [event["machine"] for event in await bench.facts("plant:repaired")] == ["a", "b", "c"]


async def test_what_is_emitted_after_an_answer_is_no_repetition_of_another_event(bench: Bench) -> None:
    async def ask(reaction: Reaction[None]) -> Pause | None:
        if reaction.answer is None:
            await reaction.emit(Repaired(machine="asked"))
            return Pause("?")
        await reaction.emit(Opened())
        return None

    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule(), actions={"page": ask})
    await reactor.settle()
    await (await bench.open()).resume_run((await bench.runs())[0].id)
    await reactor.settle()

    assert [name for name in await bench.types() if name in {"repaired", "opened"}] == ["repaired", "opened"]


@pytest.mark.parametrize("key", ["", "x" * 256, "\0", "\ud800"])
async def test_a_key_that_is_none_is_refused(bench: Bench, key: str) -> None:
    async def emit(reaction: Reaction[None]) -> str:
        with pytest.raises(ValidationFailed, match="key: an id is 1 to 255 characters"):
            await reaction.emit(Repaired(machine="a"), key=key)
        return "refused"

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(), actions={"page": emit}).settle()

    assert [run.output for run in await bench.runs()] == ["refused"]


async def test_an_attempt_that_is_made_again_emits_nothing_twice(bench: Bench) -> None:
    async def page(reaction: Reaction[None]) -> None:
        for machine in ("a", "b"):
            await reaction.emit(Repaired(machine=machine))
        if reaction.attempt == 1:
            raise OSError
        await reaction.emit(Repaired(machine="c"))

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(retry=IMMEDIATELY), actions={"page": page}).settle()

    assert [fact["machine"] for fact in await bench.facts("plant:repaired")] == ["a", "b", "c"]


async def test_an_event_that_somebody_published_under_a_foretold_id_takes_the_place_of_none(bench: Bench) -> None:
    emitted: list[Publication] = []

    async def emit(reaction: Reaction[None]) -> None:
        emitted.append(await reaction.emit(Repaired(machine="a")))
        if reaction.attempt == 1:
            raise OSError

    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule(retry=IMMEDIATELY), actions={"page": emit})
    await reactor.evaluate()
    (run,) = await bench.runs()
    foretold = derived_id("evt", "emitted", run.id, 0, 0)
    await (await bench.open()).publish(Opened(), id=foretold)

    await reactor.settle()

    assert [(each.id != foretold, each.duplicate) for each in emitted] == [(True, False), (True, True)]
    assert [fact["machine"] for fact in await bench.facts("plant:repaired")] == ["a"]


async def test_an_attempt_resumes_from_the_last_checkpoint_and_reuses_no_earlier_id(bench: Bench) -> None:
    resumed: list[Any] = []

    async def page(reaction: Reaction[None]) -> None:
        if reaction.run.checkpoint is None:
            await reaction.emit(Repaired(machine="before"))
            await reaction.checkpoint("repaired", Thread(thread="t1"))
        resumed.append((reaction.attempt, reaction.run.step, reaction.run.checkpoint))
        await reaction.emit(Repaired(machine="after"))
        if reaction.attempt == 1:
            raise OSError

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(retry=IMMEDIATELY), actions={"page": page}).settle()

    assert [fact["machine"] for fact in await bench.facts("plant:repaired")] == ["before", "after"]
    assert resumed == [(1, "repaired", {"thread": "t1"}), (2, "repaired", {"thread": "t1"})]
    assert [fact["step"] for fact in await bench.facts("reflexr:run_progressed")] == ["repaired"]


async def test_an_attempt_that_was_taken_over_can_save_no_checkpoint(bench: Bench) -> None:
    refused: list[str] = []

    async def page(reaction: Reaction[None]) -> None:
        async with bench.storage.transaction(REF) as transaction:
            runs = await transaction.runs([reaction.run_id])
            await transaction.save_runs([runs[reaction.run_id].model_copy(update={"attempt": 2})])
        try:
            await reaction.checkpoint("late", {"n": 1})
        except InvalidState as error:
            refused.append(str(error))

    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule(), actions={"page": page})
    await reactor.evaluate()
    await reactor.execute()

    assert len(refused) == 1
    assert "only that attempt's outcome counts" in refused[0]
    assert await bench.statuses() == ["running"]


async def test_params_are_read_as_the_model_that_the_action_declares_and_no_other(bench: Bench) -> None:
    async def plain(reaction: Reaction[None]) -> None:
        reaction.params_as(Thread)

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(), actions={"page": plain}).settle()

    assert "the action's params are none, not Thread" in str((await bench.runs())[0].error)
