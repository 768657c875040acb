import asyncio
from typing import Any, override

import pytest

from reflexr.core import (
    ArchiveRule,
    CancelRun,
    Command,
    CommandRejected,
    CommandResult,
    CommandSucceeded,
    EventToPublish,
    GiveFeedback,
    InstallRule,
    NotFoundRejection,
    Publish,
    Published,
    PublishedMany,
    PublishMany,
    ReplayRule,
    ResumeRun,
    RetryRun,
    RunTarget,
    SkipRun,
    UpdateRule,
    ValidationFailedRejection,
    Waiting,
)
from reflexr.workspace import (
    CommandFailed,
    CommandKey,
    InMemoryCommandResults,
    InMemoryStorage,
    StorageError,
    Workspace,
    WorkspaceError,
    WorkspaceRef,
    Workspaces,
)

from .hesitation import HesitantStorage, cancelled_after
from .plant import ADA, BOB, REF, START, a_run, save, stored, stored_rules, workspaces

PUBLISH = Publish(event={"type": "plant:alarm", "machine": "press"})


async def host(storage: InMemoryStorage | None = None, **options: Any) -> tuple[Workspaces, Workspace]:
    made = workspaces(storage, **options)
    return made, await made.open("acme", "prod", actor=ADA)


def outcome(result: CommandResult) -> Any:
    assert isinstance(result, CommandSucceeded), result
    return result.outcome


async def test_each_command_is_carried_out_and_answered_with_its_outcome() -> None:
    storage = InMemoryStorage()
    made, workspace = await host(storage, stored_rules=stored_rules())
    paused = a_run("r3", status="paused", attempt=1, waiting=Waiting(request="?", since=START))
    await save(storage, a_run("r1"), a_run("r2"), paused)

    async def execute(command: Command) -> dict[str, Any]:
        return outcome(await made.execute(workspace, command)).model_dump()

    published = await execute(PUBLISH.model_copy(update={"id": "a"}))
    assert published == {"type": "published", "seq": 1, "id": "a", "duplicate": False}
    both = PublishMany(
        events=(EventToPublish(event=PUBLISH.event, id="a"), EventToPublish(event=PUBLISH.event, id="b"))
    )
    assert (await execute(both))["published"] == (
        {"type": "published", "seq": 1, "id": "a", "duplicate": True},
        {"type": "published", "seq": 2, "id": "b", "duplicate": False},
    )
    feedback = GiveFeedback(feedback_type="plant_verdict", target=RunTarget(run_id="r1"), value={"correct": True})
    assert (await execute(feedback))["seq"] == 3
    assert (await execute(SkipRun(run_id="r1", reason="why")))["run"]["status"] == "skipped"
    assert (await execute(CancelRun(run_id="r2")))["run"]["status"] == "cancelled"
    assert (await execute(RetryRun(run_id="r2")))["run"]["status"] == "pending"
    resumed = (await execute(ResumeRun(run_id="r3", answer=[1], attempt=1)))["run"]
    assert (resumed["status"], resumed["answer"]["value"]) == ("pending", [1])
    replayed = await execute(ReplayRule(rule="plant:alarms", from_seq=1, mode="refire"))
    assert (replayed["rule"], replayed["progress"]["cursor"]) == ("plant:alarms", 0)
    assert (await execute(InstallRule(rule=stored(), provenance={"a": 1})))["version"] == 1
    assert (await execute(UpdateRule(rule=stored(description="more"), expected_version=1)))["version"] == 2
    assert (await execute(ArchiveRule(rule="chat:alarms", expected_version=2)))["version"] == 3


async def test_of_events_that_are_published_together_none_is_there_if_one_is_refused() -> None:
    made, workspace = await host()
    command = PublishMany(events=(EventToPublish(event=PUBLISH.event), EventToPublish(event={"type": "plant:alarm"})))

    result = await made.execute(workspace, command, command_id="lot")

    assert isinstance(result, CommandRejected)
    assert isinstance(result.rejection, ValidationFailedRejection)
    assert result.rejection.errors[0].startswith("events.1: machine: ")
    assert await workspace.head_seq() == 0


async def test_events_that_are_published_together_again_are_there_once_and_answered_the_same() -> None:
    made, workspace = await host()
    command = PublishMany(events=(EventToPublish(event=PUBLISH.event), EventToPublish(event=PUBLISH.event)))

    first = outcome(await made.execute(workspace, command, command_id="lot"))
    again = outcome(await made.execute(workspace, command, command_id="lot"))

    assert isinstance(first, PublishedMany)
    assert again == first
    assert await workspace.head_seq() == 2


class MortalResults(InMemoryCommandResults):
    """Ends a claim without the result, as a process does that dies before it can remember it."""

    @override
    async def finish(self, key: CommandKey, result: CommandResult) -> None:
        await self.abandon(key)


@pytest.mark.parametrize("command", [PUBLISH, PublishMany(events=(EventToPublish(event=PUBLISH.event),) * 2)])
async def test_a_repeated_command_publishes_nothing_twice_though_its_result_was_lost(command: Command) -> None:
    made, workspace = await host(results=MortalResults())

    await made.execute(workspace, command, command_id="c1")
    head = await workspace.head_seq()
    await made.execute(workspace, command, command_id="c1")
    again = await workspace.head_seq()
    await made.execute(workspace.as_actor(BOB), command, command_id="c1")
    await made.execute(workspace, command, command_id="c2")
    await made.execute(workspace, command)

    assert (again, await workspace.head_seq()) == (head, 4 * head)


async def test_a_refusal_is_an_answer_and_not_an_exception() -> None:
    made, workspace = await host()

    result = await made.execute(workspace, SkipRun(run_id="r9"), command_id="c1")

    assert isinstance(result, CommandRejected)
    assert (result.command_id, result.rejection.type) == ("c1", "not_found")


@pytest.mark.parametrize("bad", ["", "x" * 256, "\ud800"])
async def test_a_command_id_that_is_none_is_an_answer_too(bad: str) -> None:
    made, workspace = await host()

    result = await made.execute(workspace, PUBLISH, command_id=bad)

    assert isinstance(result, CommandRejected)
    assert result.rejection.type == "validation_failed"
    assert await workspace.head_seq() == 0


async def test_a_repeated_command_gives_the_first_result_whatever_it_was() -> None:
    storage = InMemoryStorage()
    made, workspace = await host(storage)

    first = await made.execute(workspace, PUBLISH, command_id="c1")
    refused = await made.execute(workspace, SkipRun(run_id="r9"), command_id="c2")
    await save(storage, a_run("r9"))

    assert await made.execute(workspace, PUBLISH, command_id="c1") == first
    assert await made.execute(workspace, SkipRun(run_id="r9"), command_id="c2") == refused
    assert await workspace.head_seq() == 1


async def test_commands_without_an_id_are_each_carried_out() -> None:
    made, workspace = await host()

    results = [await made.execute(workspace, PUBLISH) for _ in range(2)]

    assert [outcome(result).seq for result in results] == [1, 2]
    assert results[0].command_id != results[1].command_id


async def test_the_same_id_of_another_participant_or_workspace_is_another_command() -> None:
    made, workspace = await host()
    test = await made.open("acme", "test", actor=ADA)
    tenant = await made.open("globex", "prod", actor=ADA)

    for other in (workspace, workspace.as_actor(BOB), test, tenant):
        result = outcome(await made.execute(other, PUBLISH, command_id="c1"))
        assert isinstance(result, Published)
        assert not result.duplicate

    assert await workspace.head_seq() == 2


async def test_a_repetition_that_arrives_meanwhile_waits_for_the_first_result() -> None:
    made, workspace = await host(HesitantStorage())

    results = await asyncio.gather(*(made.execute(workspace, PUBLISH, command_id="c1") for _ in range(5)))

    assert all(result == results[0] for result in results)
    assert await workspace.head_seq() == 1


@pytest.mark.parametrize("moments", range(10))
async def test_a_command_that_is_cancelled_lets_a_repetition_carry_it_out(moments: int) -> None:
    made, workspace = await host(HesitantStorage())
    command = PUBLISH.model_copy(update={"id": "a"})

    ended = await cancelled_after(moments, lambda: made.execute(workspace, command, command_id="c1"))
    result = outcome(await made.execute(workspace, command, command_id="c1"))

    assert await workspace.head_seq() == 1
    assert (result.seq, result.duplicate) == (1, False)
    assert ended in (True, False)


async def test_a_repetition_that_waits_carries_the_command_out_if_the_first_is_cancelled() -> None:
    made, workspace = await host(HesitantStorage())
    first = asyncio.create_task(made.execute(workspace, PUBLISH, command_id="c1"))
    await asyncio.sleep(0)
    second = asyncio.create_task(made.execute(workspace, PUBLISH, command_id="c1"))
    await asyncio.sleep(0)

    first.cancel()

    assert outcome(await second).seq == 1


class BrokenStorage(InMemoryStorage):
    """Fails until it is mended."""

    broken = True

    @override
    def transaction(self, workspace: WorkspaceRef) -> Any:
        if self.broken:
            raise StorageError("the disk is full")
        return super().transaction(workspace)


async def test_what_breaks_is_logged_and_answered_and_a_repetition_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    storage = BrokenStorage()
    made, workspace = await host(storage)

    result = await made.execute(workspace, PUBLISH, command_id="c1")
    storage.broken = False

    assert isinstance(result, CommandFailed)
    assert result.rejection.type == "invalid_state"
    assert "the disk is full" not in result.rejection.message
    assert "the disk is full" in caplog.text
    assert outcome(await made.execute(workspace, PUBLISH, command_id="c1")).seq == 1


class UnaskedResults(InMemoryCommandResults):
    """Is asked for no result."""

    @override
    async def claim(self, key: CommandKey) -> CommandResult | None:
        raise NotImplementedError


async def test_of_a_command_without_an_id_nothing_is_remembered() -> None:
    made, workspace = await host(results=UnaskedResults())
    results = [await made.execute(workspace, PUBLISH) for _ in range(2)]
    assert [isinstance(result, CommandSucceeded) for result in results] == [True, True]
    assert results[0].command_id != results[1].command_id
    assert len(await workspace.read()) == 2


class ForgetfulResults(InMemoryCommandResults):
    @override
    async def finish(self, key: CommandKey, result: CommandResult) -> None:
        await self.abandon(key)
        raise StorageError("not remembered")


async def test_a_result_that_cannot_be_remembered_is_given_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    made, workspace = await host(results=ForgetfulResults())

    assert outcome(await made.execute(workspace, PUBLISH, command_id="c1")).seq == 1
    assert "was not remembered" in caplog.text


async def test_those_who_wait_for_a_result_get_it_also_where_none_is_kept() -> None:
    made, workspace = await host(HesitantStorage(), results=InMemoryCommandResults(max_results=0))

    results = await asyncio.gather(*(made.execute(workspace, PUBLISH, command_id="c1") for _ in range(3)))

    assert [outcome(result).seq for result in results] == [1, 1, 1]


def test_no_memory_is_smaller_than_none() -> None:
    with pytest.raises(WorkspaceError, match="max_results: -1"):
        InMemoryCommandResults(max_results=-1)


async def test_only_the_latest_results_are_remembered() -> None:
    results = InMemoryCommandResults(max_results=2)
    keys = [CommandKey(REF, "ada", str(index)) for index in range(3)]
    answers = [CommandRejected(command_id=key.command_id, rejection=NotFoundRejection(message="no")) for key in keys]
    for key, answer in zip(keys[:2], answers, strict=False):
        assert await results.claim(key) is None
        await results.finish(key, answer)

    assert await results.claim(keys[0]) == answers[0]
    assert await results.claim(keys[2]) is None
    await results.finish(keys[2], answers[2])

    assert len(results) == 2
    assert await results.claim(keys[0]) == answers[0]
    assert await results.claim(keys[1]) is None
    await results.abandon(keys[1])
    assert await results.claim(keys[1]) is None
