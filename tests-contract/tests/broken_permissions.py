"""Surfaces that break one promise each of permissions."""

from dataclasses import fields
from typing import Any, override

from reflexr.contracts import JsonObject, SurfaceRejected
from reflexr.core import Actor, CommandFrame, CommandResult, Rejected, UserActor
from reflexr.workspace import Access, Authorize, Workspace, WorkspaceRef, Workspaces

from .broken_streams import streaming
from .broken_surfaces import BrokenSurface
from .in_process_surface import BAD_HELLO, METHODS, InProcessStream, InProcessSurface


def asking_another(application: Workspaces, workspace: Workspace, authorize: Authorize | None = None) -> Workspace:
    """The same workspace, which asks somebody else for permission, or nobody."""
    settings = application.configuration.settings
    said: dict[str, Any] = {each.name: getattr(settings, each.name) for each in fields(settings)}
    said["authorize"] = authorize
    return Workspaces(**said).handle(workspace.ref, actor=workspace.actor)


class OpensUnasked(InProcessSurface):
    @override
    async def open(self) -> Workspace:
        return self.application.handle(WorkspaceRef(self.tenant_id, self.workspace_id), actor=self.actor)


class ActsUnasked(InProcessSurface):
    @override
    async def result(self, frame: CommandFrame) -> CommandResult:
        workspace = asking_another(self.application, await self.open())
        return await self.application.execute(workspace, frame.command, command_id=frame.command_id)


class AsksOnce(InProcessSurface):
    asked = False

    @override
    async def result(self, frame: CommandFrame) -> CommandResult:
        workspace = await self.open()
        if self.asked:
            workspace = asking_another(self.application, workspace)
        self.asked = True
        return await self.application.execute(workspace, frame.command, command_id=frame.command_id)


class AsksAboutNoRule(InProcessSurface):
    @override
    async def open(self) -> Workspace:
        workspace = await super().open()
        hook = self.application.configuration.settings.authorize
        assert hook is not None

        def ask(tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> Any:
            return hook(tenant_id, workspace_id, actor, Access(access.action))

        return asking_another(self.application, workspace, ask)


class AsksAboutNobody(InProcessSurface):
    """Asks about somebody without a name."""

    @override
    async def open(self) -> Workspace:
        workspace = await super().open()
        hook = self.application.configuration.settings.authorize
        assert hook is not None

        def ask(tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> Any:
            asked = UserActor(id=actor.id) if isinstance(actor, UserActor) else actor
            return hook(tenant_id, workspace_id, asked, access)

        return asking_another(self.application, workspace, ask)


def reads_unasked(read: str) -> type[InProcessSurface]:
    """A surface that asks nobody about one read."""

    class Reads(InProcessSurface):
        @override
        async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
            if name != read:
                return await super().answer(name, arguments)
            return await getattr(asking_another(self.application, await self.open()), METHODS.get(name, name))(
                **arguments
            )

    return Reads


class ReadsBeforeItAsks(InProcessSurface):
    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "schedule_statuses":
            await asking_another(self.application, await self.open()).schedule_statuses()
        return await super().answer(name, arguments)


class ListsRulesUnasked(InProcessSurface):
    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        return list(self.application.rules.values()) if name == "rules" else await super().answer(name, arguments)


class AsksAboutAWorkspace(InProcessSurface):
    """Asks about the workspace for what spans the tenant."""

    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "schedules":
            await (await self.open()).schedule_ticks()
            schedules = self.application.configuration.settings.schedules
            return [own for schedule in schedules if (own := schedule.within(self.tenant_id)) is not None]
        return await super().answer(name, arguments)


class TellsOfRuns(InProcessSurface):
    """Says of a run that somebody may not change whether it exists."""

    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        result = await super().execute(command, command_id=command_id)
        if not result["ok"] and result["rejection"]["type"] == "forbidden" and "run_id" in command:
            runs = await asking_another(self.application, await self.open()).runs()
            result["rejection"]["message"] += f" {[run.id for run in runs if run.id == command['run_id']]}"
        return result


class TellsReadersOfRuns(InProcessSurface):
    @override
    async def read(self, name: str, **arguments: Any) -> Any:
        try:
            return await super().read(name, **arguments)
        except SurfaceRejected as rejected:
            if rejected.rejection["type"] == "forbidden" and name == "run":
                rejected.rejection["message"] += arguments["run_id"]
            raise


class StreamsUnasked(InProcessStream):
    @override
    async def serve(self, text: str) -> None:
        opening = self.surface.open

        async def unasked() -> Workspace:
            return asking_another(self.surface.application, await opening())

        vars(self.surface)["open"] = unasked
        await super().serve(text)


class RefusesStreamsAsBadOnes(InProcessStream):
    @override
    def refuse(self, rejected: Rejected) -> None:
        self.sent.put_nowait(BAD_HELLO)
        super().refuse(rejected)


BROKEN_PERMISSIONS = (
    BrokenSurface(
        "opens unasked",
        OpensUnasked,
        "a_read_that_is_not_permitted_is_forbidden",
        "a_stream_is_asked_about",
        "a_stream_that_is_not_permitted_is_closed",
        "who_may_not_open_a_workspace_may_do_nothing_in_it",
    ),
    BrokenSurface(
        "acts unasked",
        ActsUnasked,
        "a_command_on_a_stream_is_asked_about",
        "a_command_that_is_not_permitted_is_forbidden",
        "a_command_that_takes_long_holds_up_no_event",
        "a_command_whose_sender_hung_up_is_carried_out_once",
        "a_command_whose_stream_ended_is_finished",
        "a_refusal_tells_nothing_of_what_is_there",
        "a_rejection_of_a_command_comes_as_it_is",
        "a_repetition_meanwhile_gets_the_first_result",
        "every_command_is_asked_about",
        "permissions_are_asked_each_time",
        "what_breaks_is_no_answer_for_ever",
    ),
    BrokenSurface("asks once", AsksOnce, "permissions_are_asked_each_time"),
    BrokenSurface("asks about no rule", AsksAboutNoRule, "every_command_is_asked_about", "every_read_is_asked_about"),
    BrokenSurface(
        "asks about nobody", AsksAboutNobody, "a_command_on_a_stream_is_asked_about", "every_command_is_asked_about"
    ),
    *(
        BrokenSurface(
            f"reads {read} unasked",
            reads_unasked(read),
            "a_read_that_is_not_permitted_is_forbidden",
            "every_read_is_asked_about",
            *more,
        )
        for read, *more in (
            ("events",),
            ("rule_statuses",),
            ("rule",),
            ("rule_history",),
            ("runs", "a_rejection_of_a_read_comes_as_it_is"),
            ("run", "a_refused_read_tells_nothing_of_what_is_there"),
            ("dead_letters",),
            ("schedule_statuses",),
        )
    ),
    BrokenSurface("reads before it asks", ReadsBeforeItAsks, "a_read_that_is_not_permitted_is_forbidden"),
    BrokenSurface("lists rules unasked", ListsRulesUnasked, "every_read_of_a_tenant_is_asked_about"),
    BrokenSurface("asks about a workspace", AsksAboutAWorkspace, "every_read_of_a_tenant_is_asked_about"),
    BrokenSurface(
        "tells of runs",
        TellsOfRuns,
        "a_command_that_is_not_permitted_is_forbidden",
        "a_refusal_tells_nothing_of_what_is_there",
    ),
    BrokenSurface("tells readers of runs", TellsReadersOfRuns, "a_refused_read_tells_nothing_of_what_is_there"),
    BrokenSurface(
        "streams unasked",
        streaming(StreamsUnasked),
        "a_command_on_a_stream_is_asked_about",
        "a_command_that_takes_long_holds_up_no_event",
        "a_command_whose_stream_ended_is_finished",
        "a_stream_is_asked_about",
        "a_stream_that_is_not_permitted_is_closed",
    ),
    BrokenSurface(
        "refuses streams as bad ones",
        streaming(RefusesStreamsAsBadOnes),
        "a_bad_hello_is_refused",
        "a_stream_that_is_not_permitted_is_closed",
        "another_protocol_is_not_spoken",
    ),
)
