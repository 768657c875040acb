"""What a surface promises of repetitions: a command is carried out once for each id of a participant in a workspace."""

import asyncio
from typing import Final

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import WORKSPACE
from reflexr.contracts.surface_application import ANOTHER, BESIDE, ELSEWHERE, SOMEBODY, STORED, stored_rule
from reflexr.contracts.surface_commands import ORDER
from reflexr.contracts.surface_refusals import INSTALL, publish
from reflexr.contracts.surface_trials import SurfaceGuarantees, SurfaceTrial
from reflexr.core import Actor, ExternalAgentActor, Publish, SourceActor, UserActor

_TURNS: Final = 5


class RepeatingContract(SurfaceGuarantees):
    """Whoever sends a command again, not knowing what became of it, is told what became of it."""

    @guarantee()
    async def test_a_repeated_command_gets_the_first_result(self, trial: SurfaceTrial) -> None:
        """A command that is sent again under its id is answered with its first result, and not carried out again."""
        surface = trial.surface()
        results = [await trial.execute(surface, ORDER, "c1") for _ in range(3)]
        assert results[0]["ok"] is True
        assert results[1:] == results[:1] * 2
        assert len(await trial.log()) == 1

    @guarantee()
    async def test_an_id_is_all_that_a_repetition_is_known_by(self, trial: SurfaceTrial) -> None:
        """Another command under an id that was used is not carried out: the answer is the first one's result."""
        first = await trial.execute(trial.surface(), ORDER, "c1")
        assert await trial.execute(trial.surface(), publish(amount=2), "c1") == first
        assert len(await trial.log()) == 1

    @guarantee()
    async def test_a_repeated_refusal_is_the_first_one(self, trial: SurfaceTrial) -> None:
        """A command that was refused is refused again under its id, also where it would be carried out by now."""
        update = {"type": "update_rule", "rule": stored_rule(description="another")}
        refused = await trial.execute(trial.surface(), update, "c1")
        assert refused["rejection"]["type"] == "not_found"
        await trial.done(INSTALL)
        assert await trial.execute(trial.surface(), update, "c1") == refused
        assert (await trial.done(update, command_id="c2"))["version"] == 2

    @guarantee()
    async def test_a_repetition_on_another_connection_gets_the_first_result(self, trial: SurfaceTrial) -> None:
        """A command that is sent again over another connection of the same participant gets the first result."""
        first, second = trial.surface(), trial.surface()
        result = await trial.execute(first, {"type": "archive_rule", "rule": STORED}, "c1")
        assert await trial.execute(second, {"type": "archive_rule", "rule": STORED}, "c1") == result
        published = await trial.execute(second, ORDER, "c2")
        assert await trial.execute(first, ORDER, "c2") == published
        assert len(await trial.log()) == 1

    @guarantee()
    async def test_a_repetition_past_the_surface_gets_the_first_result(self, trial: SurfaceTrial) -> None:
        """A command that was carried out elsewhere in the application gets its first result on the surface."""
        workspace = trial.application.handle(WORKSPACE, actor=SOMEBODY)
        command = Publish(event=ORDER["event"])
        first = await trial.application.execute(workspace, command, command_id="c1")
        assert await trial.execute(trial.surface(), ORDER, "c1") == first.model_dump(mode="json")
        assert len(await trial.log()) == 1

    @guarantee()
    async def test_a_repetition_meanwhile_gets_the_first_result(self, trial: SurfaceTrial) -> None:
        """A command that is sent again while it is carried out waits for that, and gets the first result."""
        hold = trial.permissions.hold("reflexr:publish")
        first = asyncio.create_task(trial.execute(trial.surface(), ORDER, "c1"))
        await hold.reached.wait()
        repeated = [asyncio.create_task(trial.execute(trial.surface(), ORDER, "c1")) for _ in range(3)]
        await _give_way(trial)
        assert not any(task.done() for task in (first, *repeated))
        hold.let_go()
        results = await asyncio.gather(first, *repeated)
        assert results[0]["ok"] is True
        assert results[1:] == results[:1] * 3
        assert len(await trial.log()) == 1
        assert len(trial.permissions.questions("reflexr:publish")) == 1

    @guarantee()
    async def test_a_command_whose_sender_hung_up_is_carried_out_once(self, trial: SurfaceTrial) -> None:
        """A command that is sent again since its sender hung up meanwhile is carried out, and once."""
        hold = trial.permissions.hold("reflexr:publish")
        first = asyncio.create_task(trial.execute(trial.surface(), ORDER, "c1"))
        await hold.reached.wait()
        first.cancel()
        await asyncio.wait([first])
        hold.let_go()
        await trial.done(ORDER, command_id="c1")
        assert len(await trial.log()) == 1

    @guarantee()
    async def test_another_participants_command_is_its_own(self, trial: SurfaceTrial) -> None:
        """Commands of different participants have nothing to do with each other, whatever their ids."""
        actors: list[Actor] = [
            SOMEBODY,
            ANOTHER,
            SourceActor(name=SOMEBODY.id),
            ExternalAgentActor(client_id=SOMEBODY.id),
            ExternalAgentActor(client_id=SOMEBODY.id, on_behalf_of=ANOTHER.id),
        ]
        outcomes = [await trial.done(ORDER, trial.surface(actor), "c1") for actor in actors]
        assert [outcome["seq"] for outcome in outcomes] == [1, 2, 3, 4, 5]

    @guarantee()
    async def test_a_participant_is_the_same_whatever_it_is_called(self, trial: SurfaceTrial) -> None:
        """Whoever has been given another name meanwhile is still the same participant."""
        outcomes = [
            await trial.done(ORDER, trial.surface(UserActor(id="u1", name=name)), "c1") for name in ("Ada", "Bea")
        ]
        assert outcomes[0] == outcomes[1]
        assert len(await trial.log()) == 1

    @guarantee()
    async def test_a_command_to_another_workspace_is_its_own(self, trial: SurfaceTrial) -> None:
        """Commands to different workspaces or tenants have nothing to do with each other, whatever their ids."""
        for workspace in (WORKSPACE, BESIDE, ELSEWHERE):
            await trial.done(ORDER, trial.surface(workspace=workspace), "c1")
            assert len(await trial.log(workspace)) == 1

    @guarantee(Feature.STREAM)
    async def test_a_repetition_on_a_stream_gets_the_first_result(self, trial: SurfaceTrial) -> None:
        """A command that is sent again on a stream gets the first result, and the other way round."""
        async with trial.streamed(from_head=True) as stream:
            first = await trial.execute(trial.surface(), ORDER, "c1")
            assert await stream.result(ORDER, "c1") == first
            second = await stream.result(ORDER, "c2")
        assert await trial.execute(trial.surface(), ORDER, "c2") == second
        assert len(await trial.log()) == 2

    @guarantee(Feature.STREAM)
    async def test_a_command_whose_stream_ended_is_finished(self, trial: SurfaceTrial) -> None:
        """A command that was begun is finished also where its stream ends, and sent again gets its result."""
        hold = trial.permissions.hold("reflexr:publish")
        async with trial.streamed() as stream:
            await stream.command(ORDER, "c1")
            await hold.reached.wait()
        async with trial.streamed(from_head=True) as stream:
            hold.let_go()
            assert await stream.live(1) == await trial.log()
            assert (await stream.result(ORDER, "c1"))["outcome"]["seq"] == 1
        assert len(await trial.log()) == 1


async def _give_way(trial: SurfaceTrial) -> None:
    """Does as much through the surface as those who ask need to come to where they have to wait."""
    for _ in range(_TURNS):
        await trial.execute(trial.surface(ANOTHER), {"type": "retry_run", "run_id": "nobody's"})
