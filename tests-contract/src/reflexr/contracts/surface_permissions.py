"""What a surface promises of permissions: the application is asked about everything, before anything is done."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import WORKSPACE
from reflexr.contracts.surface_application import (
    ANOTHER,
    CHECKS,
    ORDERS,
    SOMEBODY,
    STORED,
    Ordered,
    Question,
    Returned,
    stored_rule,
)
from reflexr.contracts.surface_commands import ORDER
from reflexr.contracts.surface_refusals import INSTALL, judge, publish_many
from reflexr.contracts.surface_trials import JsonObject, StreamClosed, SurfaceGuarantees, SurfaceTrial
from reflexr.core import Actor
from reflexr.workspace import Access

MAY_NOT: Final = 4403
"""The close code of a stream that somebody may not have."""

type Read = tuple[str, dict[str, Any], Access]


class PermittingContract(SurfaceGuarantees):
    """Who may do what is the application's to say, of every command and every read."""

    @guarantee()
    async def test_every_command_is_asked_about(self, trial: SurfaceTrial) -> None:
        """The application is asked about each command: its tenant, workspace and actor, its action and its rule."""
        for command, access in await _commands(trial):
            trial.permissions.asked.clear()
            await trial.done(command)
            assert _asked(SOMEBODY, access) in trial.permissions.asked, command

    @guarantee()
    async def test_a_command_that_is_not_permitted_is_forbidden(self, trial: SurfaceTrial) -> None:
        """A command that its actor may not send is `forbidden`, and nothing is read or changed for it.

        But for where the log ends, with which a stream begins that may be what carries the command.
        """
        for command, access in await _commands(trial):
            trial.permissions.refused = {access.action}
            trial.tap.calls.clear()
            assert (await trial.refused(command))["type"] == "forbidden", command
            # A surface whose commands go over a stream has greeted whoever sends one.
            assert set(trial.tap.calls) <= {"head"}

    @guarantee()
    async def test_who_may_not_open_a_workspace_may_do_nothing_in_it(self, trial: SurfaceTrial) -> None:
        """Every command of whoever may not open the workspace is `forbidden`, and nothing is read or changed for it."""
        commands = await _commands(trial)
        trial.permissions.refused = {"reflexr:open"}
        for command, _ in commands:
            trial.permissions.asked.clear()
            trial.tap.calls.clear()
            assert (await trial.refused(command))["type"] == "forbidden"
            assert _asked(SOMEBODY, Access("reflexr:open")) in trial.permissions.asked
            assert trial.tap.calls == []

    @guarantee()
    async def test_permissions_are_asked_each_time(self, trial: SurfaceTrial) -> None:
        """What was permitted once is asked about again, so that a permission can be taken back and given again."""
        surface = trial.surface()
        await trial.done(ORDER, surface)
        trial.permissions.refused = {"reflexr:publish"}
        assert (await trial.refused(ORDER, surface))["type"] == "forbidden"
        trial.permissions.refused = set()
        await trial.done(ORDER, surface)

    @guarantee()
    async def test_a_refusal_tells_nothing_of_what_is_there(self, trial: SurfaceTrial) -> None:
        """Who may not change runs is told the same of those that exist and of those that do not."""
        run_id = await trial.run_id()
        trial.permissions.refused = {"reflexr:cancel_run"}
        refused = [await trial.refused({"type": "cancel_run", "run_id": name}) for name in (run_id, "nobody's")]
        assert refused[0] == refused[1]
        assert run_id not in refused[0]["message"]

    @guarantee(Feature.READS)
    async def test_every_read_is_asked_about(self, trial: SurfaceTrial) -> None:
        """The application is asked about each read: its tenant, workspace and actor, its action and its rule."""
        for name, arguments, access in await _reads(trial):
            trial.permissions.asked.clear()
            await trial.surface(ANOTHER).read(name, **arguments)
            assert _asked(ANOTHER, access) in trial.permissions.asked, name

    @guarantee(Feature.READS)
    async def test_a_read_that_is_not_permitted_is_forbidden(self, trial: SurfaceTrial) -> None:
        """What its actor may not read is `forbidden`, and nothing is read for it."""
        for name, arguments, access in await _reads(trial):
            for action in (access.action, "reflexr:open"):
                trial.permissions.refused = {action}
                await _unread(trial, name, arguments)

    @guarantee(Feature.READS)
    async def test_a_refused_read_tells_nothing_of_what_is_there(self, trial: SurfaceTrial) -> None:
        """Who may not read runs is told the same of those that exist and of those that do not."""
        run_id = await trial.run_id()
        trial.permissions.refused = {"reflexr:read_runs"}
        refused = [await trial.no_read("run", run_id=name) for name in (run_id, "nobody's")]
        assert refused[0] == refused[1]

    @guarantee(Feature.TENANT_READS)
    async def test_every_read_of_a_tenant_is_asked_about(self, trial: SurfaceTrial) -> None:
        """Of the reads that span a tenant the application is asked too, of no workspace, and may refuse them."""
        for name in ("rules", "schedules"):
            action = f"reflexr:read_{name}"
            trial.permissions.asked.clear()
            await trial.surface().read(name)
            asked = Question(WORKSPACE.tenant_id, None, SOMEBODY, Access(action))
            assert asked in trial.permissions.asked
            trial.permissions.refused = {action}
            await _unread(trial, name, {})

    @guarantee(Feature.STREAM)
    async def test_a_stream_is_asked_about(self, trial: SurfaceTrial) -> None:
        """The application is asked whether somebody may read events when they open a stream."""
        async with trial.streamed(ANOTHER):
            assert _asked(ANOTHER, Access("reflexr:read_events")) in trial.permissions.asked
            assert _asked(ANOTHER, Access("reflexr:open")) in trial.permissions.asked

    @guarantee(Feature.STREAM)
    async def test_a_stream_that_is_not_permitted_is_closed(self, trial: SurfaceTrial) -> None:
        """Who may not open the workspace or read its events gets nothing of the stream, which is closed with 4403."""
        await trial.publish()
        for action in ("reflexr:read_events", "reflexr:open"):
            trial.permissions.refused = {action}
            trial.tap.calls.clear()
            with pytest.raises(StreamClosed) as closed:
                await _sent(trial)
            assert closed.value.code == MAY_NOT
            assert trial.tap.calls == []

    @guarantee(Feature.STREAM)
    async def test_a_command_on_a_stream_is_asked_about(self, trial: SurfaceTrial) -> None:
        """A command on a stream is asked about as any other, and `forbidden` if the application refuses."""
        async with trial.streamed() as stream:
            trial.permissions.refused = {"reflexr:publish"}
            result = await stream.result(ORDER, "c1")
            assert (result["ok"], result["rejection"]["type"]) == (False, "forbidden")
            assert await trial.log() == []
            trial.permissions.refused = set()
            assert (await stream.result(ORDER, "c2"))["ok"] is True
        assert _asked(SOMEBODY, Access("reflexr:publish")) in trial.permissions.asked


async def _sent(trial: SurfaceTrial) -> None:
    """Opens a stream that is refused, and takes what is sent on it."""
    async with trial.surface().stream(trial.hello()) as stream:
        while True:
            frame = await stream.receive()
            assert (frame["type"], frame["rejection"]["type"]) == ("error", "forbidden")


def _asked(actor: Actor, access: Access) -> Question:
    return Question(WORKSPACE.tenant_id, WORKSPACE.workspace_id, actor, access)


async def _commands(trial: SurfaceTrial) -> list[tuple[JsonObject, Access]]:
    """Returns one command of each type, which can be carried out in this order, each with what it is asked as."""
    failed, asked = await trial.run_id("dead_lettered"), await trial.run_id("paused")
    waiting = [await trial.run_id() for _ in range(2)]
    replay: JsonObject = {"type": "replay_rule", "rule": ORDERS, "from_seq": 1, "mode": "refire"}
    update: JsonObject = {"type": "update_rule", "rule": stored_rule(description="another")}
    return [
        (ORDER, Access("reflexr:publish")),
        (publish_many(ORDER["event"]), Access("reflexr:publish")),
        (judge({"kind": "run", "run_id": failed}), Access("reflexr:give_feedback")),
        ({"type": "retry_run", "run_id": failed}, Access("reflexr:retry_run")),
        ({"type": "skip_run", "run_id": waiting[0]}, Access("reflexr:skip_run")),
        ({"type": "cancel_run", "run_id": waiting[1]}, Access("reflexr:cancel_run")),
        ({"type": "resume_run", "run_id": asked, "answer": "yes"}, Access("reflexr:resume_run")),
        (replay, Access("reflexr:replay_rule", ORDERS)),
        (INSTALL, Access("reflexr:install_rule", STORED)),
        (update, Access("reflexr:update_rule", STORED)),
        ({"type": "archive_rule", "rule": STORED}, Access("reflexr:archive_rule", STORED)),
    ]


async def _reads(trial: SurfaceTrial) -> list[Read]:
    """Returns each read of a workspace, with what there is to read, and what it is asked as."""
    run_id = await trial.run_id()
    await trial.publish_returned()
    await trial.done(INSTALL)
    return [
        ("events", {"types": [Ordered.event_type, Returned.event_type]}, Access("reflexr:read_events")),
        ("rule_statuses", {}, Access("reflexr:read_rules")),
        ("rule", {"rule": ORDERS}, Access("reflexr:read_rules", ORDERS)),
        ("rule_history", {"rule": STORED}, Access("reflexr:read_rules", STORED)),
        ("runs", {}, Access("reflexr:read_runs")),
        ("runs", {"rule": ORDERS}, Access("reflexr:read_runs", ORDERS)),
        ("run", {"run_id": run_id}, Access("reflexr:read_runs")),
        ("dead_letters", {}, Access("reflexr:read_dead_letters")),
        ("dead_letters", {"rule": CHECKS}, Access("reflexr:read_dead_letters", CHECKS)),
        ("schedule_statuses", {}, Access("reflexr:read_schedules")),
    ]


async def _unread(trial: SurfaceTrial, name: str, arguments: Mapping[str, Any]) -> None:
    trial.tap.calls.clear()
    assert (await trial.no_read(name, **arguments))["type"] == "forbidden", name
    assert trial.tap.calls == []
