"""What a surface promises of tenants and workspaces: whose it is not sees nothing of it, not even that it is there."""

import json
from typing import Any, Final

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import HOUR, START, WORKSPACE
from reflexr.contracts.surface_application import BESIDE, CHECKS, ELSEWHERE, STORED, stored_rule
from reflexr.contracts.surface_commands import ORDER
from reflexr.contracts.surface_refusals import INSTALL, judge
from reflexr.contracts.surface_trials import JsonObject, SurfaceGuarantees, SurfaceTrial
from reflexr.workspace import WorkspaceRef

OTHERS: Final = (ELSEWHERE, BESIDE)
"""Whose the workspace of a test is not."""


class SeparatingContract(SurfaceGuarantees):
    """Somebody in another tenant, or in another workspace, is answered as if there were none but theirs."""

    @guarantee()
    async def test_what_is_published_stays_in_its_workspace(self, trial: SurfaceTrial) -> None:
        """What one workspace is sent is in no other, whatever they are called, and each counts from 1."""
        for workspace in (WORKSPACE, *OTHERS):
            outcome = await trial.done({**ORDER, "id": "e1"}, trial.surface(workspace=workspace))
            assert (outcome["seq"], outcome["duplicate"]) == (1, False)
            (envelope,) = await trial.log(workspace)
            assert envelope["workspace_id"] == workspace.workspace_id

    @guarantee()
    async def test_a_workspace_is_reached_whatever_it_is_called(self, trial: SurfaceTrial) -> None:
        """A workspace is reached by its name, character for character."""
        for name in _NAMES:
            workspace = WorkspaceRef(WORKSPACE.tenant_id, name)
            await trial.done(ORDER, trial.surface(workspace=workspace))
            assert [envelope["workspace_id"] for envelope in await trial.log(workspace)] == [name]

    @guarantee(Feature.READS)
    async def test_a_workspace_whose_name_is_no_id_is_refused(self, trial: SurfaceTrial) -> None:
        """A workspace whose name holds a NUL or has 256 characters can be neither read nor changed."""
        for name in ("a\0b", "x" * 256):
            surface = trial.surface(workspace=WorkspaceRef(WORKSPACE.tenant_id, name))
            for rejection in (await trial.refused(ORDER, surface), await trial.no_read("events", surface)):
                assert rejection["type"] == "validation_failed"

    @guarantee(Feature.STREAM)
    async def test_a_stream_is_that_of_its_workspace(self, trial: SurfaceTrial) -> None:
        """A stream is that of its workspace, whatever that is called."""
        for name in _NAMES:
            workspace = WorkspaceRef(WORKSPACE.tenant_id, name)
            await trial.publish(workspace=workspace)
            async with trial.streamed(workspace=workspace) as stream:
                assert stream.welcome["workspace_id"] == name
                assert stream.replayed == await trial.log(workspace)

    @guarantee()
    async def test_commands_find_nothing_of_others(self, trial: SurfaceTrial) -> None:
        """A command that names a run, a chain or a rule of others is refused as if there was none."""
        run_id = await _fill(trial)
        chain = (await trial.run(run_id))["correlation_id"]
        for others in OTHERS:
            surface = trial.surface(workspace=others)
            for theirs, nobodys in zip(_naming(run_id, chain, STORED), _naming("r", "c", _NOBODYS), strict=True):
                refused = await trial.refused(theirs, surface)
                unknown = await trial.refused(nobodys, surface)
                assert refused["type"] == unknown["type"] == "not_found", theirs
                assert _renamed(refused, run_id, chain, STORED) == _renamed(unknown, "r", "c", _NOBODYS)
            assert (await trial.done(INSTALL, surface))["version"] == 1

    @guarantee(Feature.READS)
    async def test_reads_find_nothing_of_others(self, trial: SurfaceTrial) -> None:
        """What others have is read as if it did not exist: nothing of their events, runs, rules and dead letters."""
        await _fill(trial)
        for others in OTHERS:
            surface = trial.surface(workspace=others)
            for name, arguments in _EMPTY:
                assert await surface.read(name, **arguments) == [], name
            assert await surface.read("events") == await trial.log(others)
            head = len(await trial.log(others))
            for status in await surface.read("rule_statuses"):
                assert (status["origin"], status["cursor"] or 0, status["dead_letters"]) == ("code", head, 0)

    @guarantee(Feature.READS)
    async def test_what_others_have_is_not_found_as_what_nobody_has(self, trial: SurfaceTrial) -> None:
        """A run or a rule of others is `not_found` in the same words as one that does not exist."""
        run_id = await _fill(trial)
        for others in OTHERS:
            surface = trial.surface(workspace=others)
            for name, argument, theirs, nobodys in (("run", "run_id", run_id, "r"), ("rule", "rule", STORED, _NOBODYS)):
                refused = await trial.no_read(name, surface, **{argument: theirs})
                unknown = await trial.no_read(name, surface, **{argument: nobodys})
                assert refused["type"] == unknown["type"] == "not_found"
                assert _renamed(refused, theirs) == _renamed(unknown, nobodys)

    @guarantee(Feature.READS)
    async def test_schedules_tick_where_they_are_told_to(self, trial: SurfaceTrial) -> None:
        """A workspace has the status of those schedules alone that target it, and of their ticks in it alone."""
        await trial.publish()
        trial.clock.set(START + HOUR)
        await trial.reactor.tick()
        for workspace, names in (
            (WORKSPACE, ["hourly", "mornings", "shared"]),
            (BESIDE, ["hourly"]),
            (ELSEWHERE, ["hourly", "theirs", "shared"]),
        ):
            statuses = await trial.surface(workspace=workspace).read("schedule_statuses")
            assert [status["schedule"] for status in statuses] == names
            ticks = [envelope["event"]["schedule"] for envelope in await trial.log(workspace) if _is_tick(envelope)]
            assert {status["schedule"] for status in statuses if status["last_tick"]} == set(ticks)

    @guarantee(Feature.TENANT_READS)
    async def test_a_tenants_schedules_tell_nothing_of_another(self, trial: SurfaceTrial) -> None:
        """A tenant has those schedules alone that tick in its workspaces, and is told of no other's workspace."""
        for workspace, other, names in (
            (WORKSPACE, ELSEWHERE, ["hourly", "mornings", "shared"]),
            (ELSEWHERE, WORKSPACE, ["hourly", "theirs", "shared"]),
        ):
            schedules = await trial.surface(workspace=workspace).read("schedules")
            assert [schedule["name"] for schedule in schedules] == names
            assert other.tenant_id not in json.dumps(schedules)

    @guarantee(Feature.STREAM)
    async def test_a_stream_sends_nothing_of_others(self, trial: SurfaceTrial) -> None:
        """A stream sends what is in its own workspace alone, of the past and of what happens."""
        await trial.publish(workspace=WORKSPACE)
        for others in OTHERS:
            async with trial.streamed(workspace=others) as stream:
                assert (stream.welcome["workspace_id"], stream.welcome["head_seq"]) == (others.workspace_id, 0)
                assert (stream.replayed, stream.up_to_seq) == ([], 0)
                await trial.publish(workspace=WORKSPACE)
                await trial.publish(workspace=others)
                assert await stream.live(1) == await trial.log(others)


_NAMES: Final = ("Prod", "prod", "caf\u00e9 \U0001f44d", "a b", "100%", "a%2Fb", "a/b", "a/events", "?x=1#y", "x" * 255)
_NOBODYS: Final = "contract_stored:nobodys"

_EMPTY: Final[list[tuple[str, dict[str, Any]]]] = [
    ("events", {"types": ["contract_shop:ordered"], "last": 5}),
    ("runs", {}),
    ("runs", {"rule": "contract_shop:orders"}),
    ("dead_letters", {}),
    ("dead_letters", {"rule": CHECKS}),
    ("rule_history", {"rule": STORED}),
]


async def _fill(trial: SurfaceTrial) -> str:
    """Puts one of everything into the workspace, and returns the id of its run."""
    await trial.done(INSTALL)
    run_id = await trial.run_id("dead_lettered")
    await trial.publish_returned()
    return run_id


def _is_tick(envelope: JsonObject) -> bool:
    is_tick: bool = envelope["event"]["type"] == "reflexr:tick"
    return is_tick


def _naming(run_id: str, chain: str, rule: str) -> list[JsonObject]:
    """Returns a command of each type that names something."""
    return [
        *({"type": kind, "run_id": run_id} for kind in ("retry_run", "skip_run", "cancel_run", "resume_run")),
        judge({"kind": "run", "run_id": run_id}),
        judge({"kind": "firing", "firing_id": run_id}),
        judge({"kind": "chain", "correlation_id": chain}),
        {**ORDER, "correlation_id": chain},
        {"type": "replay_rule", "rule": rule, "from_seq": 1, "mode": "refire"},
        {"type": "update_rule", "rule": stored_rule(rule)},
        {"type": "archive_rule", "rule": rule},
    ]


def _renamed(rejection: JsonObject, *names: str) -> JsonObject:
    """Returns a rejection without the names that were given."""
    message: str = rejection["message"]
    for name in names:
        message = message.replace(f"'{name}'", "'…'")
    return {**rejection, "message": message}
