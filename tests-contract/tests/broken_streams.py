"""Surfaces that break one promise each of streams."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import override

from reflexr.contracts import JsonObject, SurfaceStream
from reflexr.contracts.surface_application import BESIDE, ELSEWHERE
from reflexr.core import (
    DeltaFrame,
    Envelope,
    Hello,
    ReplayComplete,
    Resumption,
    ServerFrame,
    Welcome,
    resume,
)
from reflexr.workspace import Workspace, WorkspaceRef

from .broken_surfaces import BrokenSurface
from .in_process_surface import BAD_HELLO, InProcessStream, InProcessSurface


def streaming(kind: type[InProcessStream]) -> type[InProcessSurface]:
    """A surface with streams of another kind."""

    class Streaming(InProcessSurface):
        @override
        def new_stream(self) -> InProcessStream:
            return kind(self)

    return Streaming


# --- What is sent


class KnowsNoHead(InProcessStream):
    @override
    def answer(self, frame: ServerFrame) -> None:
        super().answer(frame.model_copy(update={"head_seq": 0}) if isinstance(frame, Welcome) else frame)


class CompletesNothing(InProcessStream):
    @override
    def answer(self, frame: ServerFrame) -> None:
        if not isinstance(frame, ReplayComplete):
            super().answer(frame)


class CompletesToWhatItSent(InProcessStream):
    last = 0

    @override
    def replay(self, envelope: Envelope) -> None:
        self.last = envelope.seq
        super().replay(envelope)

    @override
    def answer(self, frame: ServerFrame) -> None:
        super().answer(
            frame.model_copy(update={"up_to_seq": self.last}) if isinstance(frame, ReplayComplete) else frame
        )


class LeavesAGap(InProcessStream):
    """Loses the first that happens."""

    lost = False

    @override
    def live(self, envelope: Envelope) -> None:
        if self.lost:
            super().live(envelope)
        self.lost = True


class SendsTwice(InProcessStream):
    @override
    def live(self, envelope: Envelope) -> None:
        super().live(envelope)
        super().live(envelope)


class ReplaysTwice(InProcessStream):
    @override
    def replay(self, envelope: Envelope) -> None:
        super().replay(envelope)
        super().replay(envelope)


class SwapsNeighbours(InProcessStream):
    held: Envelope | None = None

    @override
    def replay(self, envelope: Envelope) -> None:
        if envelope.seq % 100 == 0:
            self.held = envelope
            return
        super().replay(envelope)
        if self.held is not None:
            super().replay(self.held)
            self.held = None


class SendsOnePage(InProcessStream):
    count = 0

    @override
    def replay(self, envelope: Envelope) -> None:
        self.count += 1
        if self.count <= 500:
            super().replay(envelope)


class MissesWhatComesMeanwhile(InProcessStream):
    """Looks for the head a second time before it follows the log."""

    @override
    async def tell(self, workspace: Workspace, resumption: Resumption, types: tuple[str, ...] | None) -> None:
        head = resumption.up_to_seq
        for envelope in await workspace.read(after_seq=resumption.after_seq, before_seq=head + 1, types=types):
            self.replay(envelope)
        self.answer(ReplayComplete(up_to_seq=head))
        await workspace.read()
        async with aclosing(workspace.subscribe(after_seq=await workspace.head_seq(), types=types)) as envelopes:
            async for envelope in envelopes:
                self.live(envelope)


class SendsWithoutActor(InProcessStream):
    @override
    async def receive(self) -> JsonObject:
        frame = await super().receive()
        if frame["type"] == "event":
            frame["envelope"]["actor"]["name"] = None
        return frame


class SortsKeys(InProcessStream):
    @override
    async def receive(self) -> JsonObject:
        return json.loads(json.dumps(await super().receive(), sort_keys=True))


class TakesNewWorkspacesForNone(InProcessStream):
    @override
    def resume(self, hello: Hello, head: int) -> Resumption:
        return resume(hello.model_copy(update={"protocol": "none"}) if head == 0 else hello, head)


# --- Where it begins


class SendsTheLastSeen(InProcessStream):
    @override
    def resume(self, hello: Hello, head: int) -> Resumption:
        resumption = resume(hello, head)
        return Resumption(max(resumption.after_seq - 1, 0), resumption.up_to_seq, resumption.reset)


class SkipsTheNext(InProcessStream):
    @override
    def resume(self, hello: Hello, head: int) -> Resumption:
        resumption = resume(hello, head)
        skipped = min(resumption.after_seq + 1, head) if resumption.after_seq else 0
        return Resumption(skipped, resumption.up_to_seq, resumption.reset)


class ReplaysFromTheHead(InProcessStream):
    @override
    def resume(self, hello: Hello, head: int) -> Resumption:
        resumption = resume(hello, head)
        return Resumption(0 if hello.from_head else resumption.after_seq, head, resumption.reset)


class TellsOfNoReset(InProcessStream):
    @override
    def answer(self, frame: ServerFrame) -> None:
        super().answer(frame.model_copy(update={"reset": False}) if isinstance(frame, Welcome) else frame)


class ResetsToTheHead(InProcessStream):
    @override
    def resume(self, hello: Hello, head: int) -> Resumption:
        resumption = resume(hello, head)
        return Resumption(head, head, resumption.reset) if resumption.reset else resumption


class SendsAllTypesLive(InProcessStream):
    @override
    async def tell(self, workspace: Workspace, resumption: Resumption, types: tuple[str, ...] | None) -> None:
        head = resumption.up_to_seq
        for envelope in await workspace.read(after_seq=resumption.after_seq, before_seq=head + 1, types=types):
            self.replay(envelope)
        self.answer(ReplayComplete(up_to_seq=head))
        async with aclosing(workspace.subscribe(after_seq=head)) as envelopes:
            async for envelope in envelopes:
                self.live(envelope)


class ReplaysAllTypes(InProcessStream):
    @override
    async def tell(self, workspace: Workspace, resumption: Resumption, types: tuple[str, ...] | None) -> None:
        head = resumption.up_to_seq
        for envelope in await workspace.read(after_seq=resumption.after_seq, before_seq=head + 1):
            self.replay(envelope)
        self.answer(ReplayComplete(up_to_seq=head))
        async with aclosing(workspace.subscribe(after_seq=head, types=types)) as envelopes:
            async for envelope in envelopes:
                self.live(envelope)


# --- What runs say


class SendsNoDelta(InProcessStream):
    @override
    def wants_deltas(self, hello: Hello) -> bool:
        return False


class SendsDeltasToEverybody(InProcessStream):
    @override
    def wants_deltas(self, hello: Hello) -> bool:
        return True


class HearsTheTenant(InProcessStream):
    @override
    def heard(self, workspace: Workspace) -> list[WorkspaceRef]:
        return [workspace.ref, BESIDE]


class HearsOtherTenants(InProcessStream):
    @override
    def heard(self, workspace: Workspace) -> list[WorkspaceRef]:
        return [workspace.ref, ELSEWHERE]


class SendsDeltasAsEvents(InProcessStream):
    """Gives each the place of an envelope, too."""

    @override
    def answer(self, frame: ServerFrame) -> None:
        if isinstance(frame, DeltaFrame):
            self.sent.put_nowait(json.dumps({"type": "event", "envelope": {"seq": 1, "event": frame.delta.text}}))
        super().answer(frame)


class HasOneStream(InProcessSurface):
    """The last who came takes it from whoever had it."""

    @override
    @asynccontextmanager
    async def stream(self, hello: JsonObject) -> AsyncGenerator[SurfaceStream]:
        streams: list[InProcessStream] = vars(self.application).setdefault("streams", [])
        for stream in streams:
            stream.sent.put_nowait(BAD_HELLO)
        async with super().stream(hello) as stream:
            assert isinstance(stream, InProcessStream)
            streams.append(stream)
            yield stream


BROKEN_STREAMS = (
    BrokenSurface(
        "knows no head",
        streaming(KnowsNoHead),
        "a_stream_from_the_head_sends_nothing_of_the_past",
        "a_stream_resumes_after_a_place",
        "a_stream_sends_the_past_and_then_what_happens",
        "a_stream_that_is_ahead_of_the_log_is_reset",
    ),
    BrokenSurface(
        "completes nothing",
        streaming(CompletesNothing),
        "a_stream_that_asks_for_deltas_is_sent_what_runs_say",
        "a_stream_that_asks_for_no_deltas_is_sent_none",
        "the_deltas_of_a_stream_are_those_of_its_workspace",
        "a_command_on_a_stream_is_answered_there",
        "a_command_on_a_stream_is_asked_about",
        "a_command_that_takes_long_holds_up_no_event",
        "a_command_whose_stream_ended_is_finished",
        "a_frame_that_cannot_be_read_is_an_error",
        "a_long_log_is_sent_whole",
        "a_refused_command_on_a_stream_is_answered_there",
        "a_repetition_on_a_stream_gets_the_first_result",
        "a_stream_from_the_head_sends_nothing_of_the_past",
        "a_stream_is_asked_about",
        "a_stream_is_that_of_its_workspace",
        "a_stream_of_a_new_workspace_waits_for_its_first_event",
        "a_stream_resumes_after_a_place",
        "a_stream_sends_nothing_of_others",
        "a_stream_sends_the_past_and_then_what_happens",
        "a_stream_sends_the_types_that_it_was_asked_for",
        "a_stream_that_is_ahead_of_the_log_is_reset",
        "commands_on_a_stream_are_carried_out_in_order",
        "events_are_streamed_as_they_are",
        "every_stream_gets_everything",
        "what_is_published_while_a_stream_begins_is_sent_once",
    ),
    BrokenSurface(
        "completes to what it sent",
        streaming(CompletesToWhatItSent),
        "a_stream_from_the_head_sends_nothing_of_the_past",
        "a_stream_resumes_after_a_place",
        "a_stream_sends_the_types_that_it_was_asked_for",
    ),
    BrokenSurface(
        "leaves a gap",
        streaming(LeavesAGap),
        "a_stream_that_asks_for_deltas_is_sent_what_runs_say",
        "a_stream_that_asks_for_no_deltas_is_sent_none",
        "a_command_on_a_stream_is_answered_there",
        "a_command_that_takes_long_holds_up_no_event",
        "a_frame_that_cannot_be_read_is_an_error",
        "a_long_log_is_sent_whole",
        "a_stream_from_the_head_sends_nothing_of_the_past",
        "a_stream_of_a_new_workspace_waits_for_its_first_event",
        "a_stream_resumes_after_a_place",
        "a_stream_sends_nothing_of_others",
        "a_stream_sends_the_past_and_then_what_happens",
        "a_stream_sends_the_types_that_it_was_asked_for",
        "a_stream_that_is_ahead_of_the_log_is_reset",
        "commands_on_a_stream_are_carried_out_in_order",
        "events_are_streamed_as_they_are",
        "every_stream_gets_everything",
        "what_is_published_while_a_stream_begins_is_sent_once",
        "a_command_whose_stream_ended_is_finished",
    ),
    BrokenSurface(
        "sends twice",
        streaming(SendsTwice),
        "a_stream_that_asks_for_deltas_is_sent_what_runs_say",
        "a_stream_that_asks_for_no_deltas_is_sent_none",
        "a_frame_that_cannot_be_read_is_an_error",
        "a_long_log_is_sent_whole",
        "a_stream_sends_the_past_and_then_what_happens",
        "a_stream_sends_the_types_that_it_was_asked_for",
        "commands_on_a_stream_are_carried_out_in_order",
        "every_stream_gets_everything",
        "what_is_published_while_a_stream_begins_is_sent_once",
    ),
    BrokenSurface(
        "replays twice",
        streaming(ReplaysTwice),
        "a_long_log_is_sent_whole",
        "a_stream_is_that_of_its_workspace",
        "a_stream_resumes_after_a_place",
        "a_stream_sends_the_past_and_then_what_happens",
        "a_stream_sends_the_types_that_it_was_asked_for",
        "a_stream_that_is_ahead_of_the_log_is_reset",
        "every_stream_gets_everything",
        "what_is_published_while_a_stream_begins_is_sent_once",
    ),
    BrokenSurface("swaps neighbours", streaming(SwapsNeighbours), "a_long_log_is_sent_whole"),
    BrokenSurface("sends one page", streaming(SendsOnePage), "a_long_log_is_sent_whole"),
    BrokenSurface(
        "misses what comes meanwhile",
        streaming(MissesWhatComesMeanwhile),
        "what_is_published_while_a_stream_begins_is_sent_once",
    ),
    BrokenSurface(
        "sends without the actor's name",
        streaming(SendsWithoutActor),
        "a_stream_that_asks_for_deltas_is_sent_what_runs_say",
        "a_stream_that_asks_for_no_deltas_is_sent_none",
        "a_command_on_a_stream_is_answered_there",
        "a_stream_is_that_of_its_workspace",
        "a_stream_of_a_new_workspace_waits_for_its_first_event",
        "a_stream_sends_nothing_of_others",
        "a_stream_sends_the_past_and_then_what_happens",
        "commands_on_a_stream_are_carried_out_in_order",
        "every_stream_gets_everything",
        "a_command_whose_stream_ended_is_finished",
    ),
    BrokenSurface("sorts keys of what it sends", streaming(SortsKeys), "events_are_streamed_as_they_are"),
    BrokenSurface(
        "takes new workspaces for none",
        streaming(TakesNewWorkspacesForNone),
        "a_stream_that_asks_for_deltas_is_sent_what_runs_say",
        "a_stream_that_asks_for_no_deltas_is_sent_none",
        "the_deltas_of_a_stream_are_those_of_its_workspace",
        "a_bad_hello_is_refused",
        "a_command_on_a_stream_is_answered_there",
        "a_command_on_a_stream_is_asked_about",
        "a_command_that_takes_long_holds_up_no_event",
        "a_command_whose_stream_ended_is_finished",
        "a_frame_that_cannot_be_read_is_an_error",
        "a_refused_command_on_a_stream_is_answered_there",
        "a_repetition_on_a_stream_gets_the_first_result",
        "a_stream_is_asked_about",
        "a_stream_of_a_new_workspace_waits_for_its_first_event",
        "a_stream_sends_nothing_of_others",
        "commands_on_a_stream_are_carried_out_in_order",
        "every_stream_gets_everything",
    ),
    BrokenSurface(
        "sends the last that was seen",
        streaming(SendsTheLastSeen),
        "a_stream_from_the_head_sends_nothing_of_the_past",
        "a_stream_resumes_after_a_place",
        "every_stream_gets_everything",
        "what_is_published_while_a_stream_begins_is_sent_once",
    ),
    BrokenSurface(
        "skips the next",
        streaming(SkipsTheNext),
        "a_stream_resumes_after_a_place",
        "every_stream_gets_everything",
        "what_is_published_while_a_stream_begins_is_sent_once",
    ),
    BrokenSurface(
        "replays from the head", streaming(ReplaysFromTheHead), "a_stream_from_the_head_sends_nothing_of_the_past"
    ),
    BrokenSurface("tells of no reset", streaming(TellsOfNoReset), "a_stream_that_is_ahead_of_the_log_is_reset"),
    BrokenSurface("resets to the head", streaming(ResetsToTheHead), "a_stream_that_is_ahead_of_the_log_is_reset"),
    BrokenSurface(
        "sends all types that happen", streaming(SendsAllTypesLive), "a_stream_sends_the_types_that_it_was_asked_for"
    ),
    BrokenSurface("replays all types", streaming(ReplaysAllTypes), "a_stream_sends_the_types_that_it_was_asked_for"),
    BrokenSurface(
        "sends no delta",
        streaming(SendsNoDelta),
        "a_stream_that_asks_for_deltas_is_sent_what_runs_say",
        "the_deltas_of_a_stream_are_those_of_its_workspace",
    ),
    BrokenSurface(
        "sends deltas to everybody",
        streaming(SendsDeltasToEverybody),
        "a_stream_that_asks_for_no_deltas_is_sent_none",
    ),
    BrokenSurface(
        "sends the deltas of the tenant",
        streaming(HearsTheTenant),
        "the_deltas_of_a_stream_are_those_of_its_workspace",
    ),
    BrokenSurface(
        "sends the deltas of other tenants",
        streaming(HearsOtherTenants),
        "the_deltas_of_a_stream_are_those_of_its_workspace",
    ),
    BrokenSurface(
        "sends deltas as events",
        streaming(SendsDeltasAsEvents),
        "a_stream_that_asks_for_deltas_is_sent_what_runs_say",
    ),
    BrokenSurface(
        "has one stream",
        HasOneStream,
        "every_stream_gets_everything",
        "what_is_published_while_a_stream_begins_is_sent_once",
    ),
)
