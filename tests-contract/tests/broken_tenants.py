"""Surfaces that break one promise each of tenants and workspaces."""

from typing import Any, Final, override

from reflexr.contracts import JsonObject, SurfaceRejected
from reflexr.core import NotFound
from reflexr.workspace import Workspace, WorkspaceRef

from .broken_permissions import asking_another
from .broken_streams import streaming
from .broken_surfaces import BrokenSurface
from .in_process_surface import InProcessStream, InProcessSurface

HERE: Final = WorkspaceRef("contract-tenant", "contract-workspace")


class HasOneTenant(InProcessSurface):
    @override
    async def open(self) -> Workspace:
        return await self.application.open(HERE.tenant_id, self.workspace_id, actor=self.actor)


class HasOneWorkspace(InProcessSurface):
    @override
    async def open(self) -> Workspace:
        return await self.application.open(self.tenant_id, HERE.workspace_id, actor=self.actor)


class KnowsNoCase(InProcessSurface):
    @override
    async def open(self) -> Workspace:
        return await self.application.open(self.tenant_id, self.workspace_id.lower(), actor=self.actor)


class TakesAnyName(InProcessSurface):
    @override
    async def open(self) -> Workspace:
        name = self.workspace_id.replace("\0", "")[:255]
        return await self.application.open(self.tenant_id, name, actor=self.actor)


class LooksElsewhere(InProcessSurface):
    """Looks in another tenant for what there is none of here."""

    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        answer = await super().answer(name, arguments)
        if name == "dead_letters" and not answer:
            return await self.application.handle(HERE, actor=self.actor).dead_letters(**arguments)
        return answer


class FindsRunsElsewhere(InProcessSurface):
    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        try:
            return await super().answer(name, arguments)
        except NotFound:
            if name == "run":
                return await self.application.handle(HERE, actor=self.actor).run(**arguments)
            raise


class TellsWhoseItIs(InProcessSurface):
    """Says of what others have that it is theirs."""

    @override
    async def read(self, name: str, **arguments: Any) -> Any:
        try:
            return await super().read(name, **arguments)
        except SurfaceRejected as rejected:
            raise SurfaceRejected(await self.told(rejected.rejection, arguments.get("run_id"))) from rejected

    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        result = await super().execute(command, command_id=command_id)
        return (
            result
            if result["ok"]
            else {**result, "rejection": await self.told(result["rejection"], command.get("run_id"))}
        )

    async def told(self, rejection: JsonObject, run_id: Any) -> JsonObject:
        if rejection["type"] == "not_found":
            runs = await asking_another(self.application, self.application.handle(HERE, actor=self.actor)).runs()
            if run_id in {run.id for run in runs}:
                return {"type": "forbidden", "message": "that is somebody else's"}
        return rejection


class ListsAllSchedules(InProcessSurface):
    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        answer = await super().answer(name, arguments)
        return list(self.application.configuration.settings.schedules) if name == "schedules" else answer


class ListsAllTargets(InProcessSurface):
    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        answer = await super().answer(name, arguments)
        if name == "schedules":
            names = {schedule.name for schedule in answer}
            return [one for one in self.application.configuration.settings.schedules if one.name in names]
        return answer


class TellsOfAllSchedules(InProcessSurface):
    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        answer = await super().answer(name, arguments)
        if name == "schedule_statuses":
            known = {one.schedule for one in answer}
            every = self.application.configuration.settings.schedules
            return [*answer, *({"schedule": one.name, "last_tick": None} for one in every if one.name not in known)]
        return answer


class StreamsFromElsewhere(InProcessStream):
    @override
    async def serve(self, text: str) -> None:
        self.surface.workspace_id = HERE.workspace_id
        await super().serve(text)


BROKEN_TENANTS = (
    BrokenSurface(
        "has one tenant",
        HasOneTenant,
        "a_command_to_another_workspace_is_its_own",
        "a_stream_sends_nothing_of_others",
        "commands_find_nothing_of_others",
        "reads_find_nothing_of_others",
        "schedules_tick_where_they_are_told_to",
        "what_is_published_stays_in_its_workspace",
        "what_others_have_is_not_found_as_what_nobody_has",
    ),
    BrokenSurface(
        "has one workspace",
        HasOneWorkspace,
        "a_command_to_another_workspace_is_its_own",
        "a_stream_is_that_of_its_workspace",
        "a_stream_sends_nothing_of_others",
        "a_workspace_is_reached_whatever_it_is_called",
        "a_workspace_whose_name_is_no_id_is_refused",
        "commands_find_nothing_of_others",
        "reads_find_nothing_of_others",
        "schedules_tick_where_they_are_told_to",
        "what_is_published_stays_in_its_workspace",
        "what_others_have_is_not_found_as_what_nobody_has",
    ),
    BrokenSurface(
        "knows no case",
        KnowsNoCase,
        "a_stream_is_that_of_its_workspace",
        "a_workspace_is_reached_whatever_it_is_called",
    ),
    BrokenSurface("takes any name", TakesAnyName, "a_workspace_whose_name_is_no_id_is_refused"),
    BrokenSurface("looks elsewhere", LooksElsewhere, "reads_find_nothing_of_others"),
    BrokenSurface("finds runs elsewhere", FindsRunsElsewhere, "what_others_have_is_not_found_as_what_nobody_has"),
    BrokenSurface(
        "tells whose it is",
        TellsWhoseItIs,
        "commands_find_nothing_of_others",
        "what_others_have_is_not_found_as_what_nobody_has",
    ),
    BrokenSurface(
        "lists all schedules",
        ListsAllSchedules,
        "a_tenants_schedules_tell_nothing_of_another",
        "schedules_are_those_that_tick_in_the_tenant",
    ),
    BrokenSurface("lists all targets", ListsAllTargets, "a_tenants_schedules_tell_nothing_of_another"),
    BrokenSurface(
        "tells of all schedules",
        TellsOfAllSchedules,
        "schedule_statuses_tell_how_each_schedule_stands",
        "schedules_tick_where_they_are_told_to",
    ),
    BrokenSurface(
        "streams from elsewhere",
        streaming(StreamsFromElsewhere),
        "a_stream_is_that_of_its_workspace",
        "a_stream_sends_nothing_of_others",
    ),
)
