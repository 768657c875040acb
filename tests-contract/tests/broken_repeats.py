"""Surfaces that break one promise each of commands that are repeated."""

import asyncio
from itertools import count
from typing import Any, ClassVar, override

from reflexr.contracts import JsonObject
from reflexr.core import Actor, CommandFrame, CommandRejected, CommandResult, derived_id, participant
from reflexr.workspace import Workspaces

from .broken_streams import streaming
from .broken_surfaces import BrokenSurface
from .in_process_surface import InProcessStream, InProcessSurface


class Renames(InProcessSurface):
    """Carries commands out under other ids than those they were sent under."""

    fresh: ClassVar["count[int]"] = count()

    def __init__(self, application: Workspaces, tenant_id: str, workspace_id: str, actor: Actor) -> None:
        super().__init__(application, tenant_id, workspace_id, actor)
        self.connection = next(self.fresh)

    def name(self, frame: CommandFrame) -> Any:
        return next(self.fresh)

    @override
    async def result(self, frame: CommandFrame) -> CommandResult:
        name = derived_id("cmd", frame.command_id, self.name(frame))
        result = await super().result(frame.model_copy(update={"command_id": name}))
        return result.model_copy(update={"command_id": frame.command_id})


class KnowsItsOwnConnection(Renames):
    @override
    def name(self, frame: CommandFrame) -> Any:
        return self.connection


class KnowsItself(Renames):
    @override
    def name(self, frame: CommandFrame) -> Any:
        return "surface"


class KnowsCommands(Renames):
    @override
    def name(self, frame: CommandFrame) -> Any:
        return frame.command.model_dump(mode="json")


class KnowsNames(Renames):
    @override
    def name(self, frame: CommandFrame) -> Any:
        return getattr(self.actor, "name", None)


class DoesNotWait(InProcessSurface):
    """Carries a command out again that is being carried out."""

    @override
    async def result(self, frame: CommandFrame) -> CommandResult:
        running: set[str] = vars(self.application).setdefault("running", set())
        key = f"{participant(self.actor)} {frame.command_id}"
        sent = frame
        if key in running:
            sent = frame.model_copy(update={"command_id": derived_id("cmd", key, next(Renames.fresh))})
        running.add(key)
        try:
            return (await super().result(sent)).model_copy(update={"command_id": frame.command_id})
        finally:
            running.discard(key)


class GoesOnAlone(InProcessSurface):
    """Goes on with a command whose sender hung up, and knows it no more when it is sent again."""

    @override
    async def result(self, frame: CommandFrame) -> CommandResult:
        going_on: dict[str, asyncio.Task[CommandResult]] = vars(self.application).setdefault("going_on", {})
        sent = frame
        if frame.command_id in going_on:
            sent = frame.model_copy(update={"command_id": derived_id("cmd", frame.command_id)})
        task = asyncio.create_task(super().result(sent))
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            going_on[frame.command_id] = task
            raise
        return result.model_copy(update={"command_id": frame.command_id})


class Remembers(InProcessSurface):
    """Remembers the results of everybody together."""

    def key(self, frame: CommandFrame) -> Any:
        return self.tenant_id, self.workspace_id, frame.command_id

    @override
    async def result(self, frame: CommandFrame) -> CommandResult:
        memory: dict[Any, CommandResult] = vars(self.application).setdefault("memory", {})
        if self.key(frame) not in memory:
            memory[self.key(frame)] = await super().result(frame)
        return memory[self.key(frame)]


class RemembersForEveryWorkspace(Remembers):
    @override
    def key(self, frame: CommandFrame) -> Any:
        return participant(self.actor), frame.command_id


class ForgetsRefusals(InProcessSurface):
    @override
    async def result(self, frame: CommandFrame) -> CommandResult:
        refused: set[str] = vars(self.application).setdefault("refused", set())
        sent = frame
        if frame.command_id in refused:
            sent = frame.model_copy(update={"command_id": derived_id("cmd", frame.command_id, next(Renames.fresh))})
        result = await super().result(sent)
        if isinstance(result, CommandRejected):
            refused.add(frame.command_id)
        return result.model_copy(update={"command_id": frame.command_id})


class KnowsItsOwnStream(InProcessStream):
    """Takes commands on streams for others than those elsewhere."""

    @override
    async def send(self, text: str) -> None:
        await super().send(text.replace('"command_id": "c', '"command_id": "stream c'))

    @override
    async def receive(self) -> JsonObject:
        frame = await super().receive()
        if frame["type"] == "command_result":
            frame["command_id"] = frame["command_id"].removeprefix("stream ")
        return frame


BROKEN_REPEATS = (
    BrokenSurface(
        "knows no repetition",
        Renames,
        "a_participant_is_the_same_whatever_it_is_called",
        "a_repeated_command_gets_the_first_result",
        "a_repeated_refusal_is_the_first_one",
        "a_repetition_meanwhile_gets_the_first_result",
        "a_repetition_on_a_stream_gets_the_first_result",
        "a_repetition_on_another_connection_gets_the_first_result",
        "a_repetition_past_the_surface_gets_the_first_result",
        "an_id_is_all_that_a_repetition_is_known_by",
        "a_command_whose_stream_ended_is_finished",
    ),
    BrokenSurface(
        "knows its own connection",
        KnowsItsOwnConnection,
        "a_participant_is_the_same_whatever_it_is_called",
        "a_repeated_refusal_is_the_first_one",
        "a_repetition_meanwhile_gets_the_first_result",
        "a_repetition_on_a_stream_gets_the_first_result",
        "a_repetition_on_another_connection_gets_the_first_result",
        "a_repetition_past_the_surface_gets_the_first_result",
        "an_id_is_all_that_a_repetition_is_known_by",
        "a_command_whose_stream_ended_is_finished",
    ),
    BrokenSurface("knows itself", KnowsItself, "a_repetition_past_the_surface_gets_the_first_result"),
    BrokenSurface(
        "knows commands",
        KnowsCommands,
        "a_repetition_past_the_surface_gets_the_first_result",
        "an_id_is_all_that_a_repetition_is_known_by",
    ),
    BrokenSurface(
        "knows names",
        KnowsNames,
        "a_participant_is_the_same_whatever_it_is_called",
        "a_repetition_past_the_surface_gets_the_first_result",
    ),
    BrokenSurface(
        "knows its own stream", streaming(KnowsItsOwnStream), "a_repetition_on_a_stream_gets_the_first_result"
    ),
    BrokenSurface("does not wait", DoesNotWait, "a_repetition_meanwhile_gets_the_first_result"),
    BrokenSurface(
        "goes on alone",
        GoesOnAlone,
        "a_command_whose_sender_hung_up_is_carried_out_once",
    ),
    BrokenSurface(
        "remembers for everybody",
        Remembers,
        "another_participants_command_is_its_own",
        "what_breaks_is_no_answer_for_ever",
    ),
    BrokenSurface(
        "remembers for every workspace",
        RemembersForEveryWorkspace,
        "a_command_to_another_workspace_is_its_own",
        "what_breaks_is_no_answer_for_ever",
    ),
    BrokenSurface("forgets refusals", ForgetsRefusals, "a_repeated_refusal_is_the_first_one"),
)
