"""Surfaces that break one promise each of what is said on streams: commands, errors, and what begins one."""

from typing import Any, override

from reflexr.core import (
    Envelope,
    ErrorFrame,
    EventFrame,
    Hello,
    Rejected,
    Resumption,
    ServerFrame,
    resume,
)

from .broken_streams import streaming
from .broken_surfaces import BrokenSurface
from .in_process_surface import BAD_HELLO, InProcessStream, InProcessSurface


class AnswersTheLast(InProcessStream):
    """Of commands that have come meanwhile it knows the last alone."""

    @override
    async def listen(self) -> None:
        while True:
            text = await self.received.get()
            while not self.received.empty():
                text = self.received.get_nowait()
            await self.take(text)


class EndsItsCommands(InProcessStream):
    @override
    async def take(self, text: str) -> None:
        try:
            self.answer(await self.surface.result(self.surface.frame(text)))
        except Rejected as rejected:
            self.unreadable(rejected)


class AnswersTheLastFirst(InProcessStream):
    @override
    async def listen(self) -> None:
        while True:
            texts = [await self.received.get()]
            while not self.received.empty():
                texts.append(self.received.get_nowait())
            for text in reversed(texts):
                await self.take(text)


class DoesOneThingAtATime(InProcessStream):
    """Sends nothing while it carries out a command."""

    def __init__(self, surface: InProcessSurface) -> None:
        super().__init__(surface)
        self.busy = False
        self.waiting: list[ServerFrame] = []

    @override
    async def take(self, text: str) -> None:
        self.busy = True
        await super().take(text)
        self.busy = False
        for frame in self.waiting:
            self.answer(frame)
        self.waiting.clear()

    @override
    def answer(self, frame: ServerFrame) -> None:
        if self.busy and isinstance(frame, EventFrame):
            self.waiting.append(frame)
        else:
            super().answer(frame)


class RenamesResults(InProcessStream):
    @override
    def answer(self, frame: ServerFrame) -> None:
        super().answer(frame.model_copy(update={"command_id": "c"}) if hasattr(frame, "command_id") else frame)


class TakesRefusalsForErrors(InProcessStream):
    @override
    def answer(self, frame: ServerFrame) -> None:
        rejection: Any = getattr(frame, "rejection", None)
        super().answer(frame if rejection is None else ErrorFrame(rejection=rejection))


class HidesWhatItDid(InProcessStream):
    """Tells who sent a command nothing but its result."""

    @override
    def live(self, envelope: Envelope) -> None:
        if envelope.id != "e1":
            super().live(envelope)


class EndsAtAnError(InProcessStream):
    @override
    def unreadable(self, rejected: Rejected) -> None:
        self.refuse(rejected)
        raise rejected


class IgnoresErrors(InProcessStream):
    @override
    def unreadable(self, rejected: Rejected) -> None:
        """Says nothing."""


class SpeaksEverything(InProcessStream):
    @override
    def resume(self, hello: Hello, head: int) -> Resumption:
        return resume(hello.model_copy(update={"protocol": "reflexr.v1"}), head)


class ClosesSilently(InProcessStream):
    @override
    def refuse(self, rejected: Rejected) -> None:
        self.sent.put_nowait(BAD_HELLO)


class ClosesNormally(InProcessStream):
    @override
    def refuse(self, rejected: Rejected) -> None:
        self.answer(ErrorFrame(rejection=rejected.rejection))
        self.sent.put_nowait(1000)


class TakesAnyHello(InProcessStream):
    @override
    def hello(self, text: str) -> Hello:
        try:
            return super().hello(text)
        except Rejected:
            return Hello(protocol="reflexr.v1")


BROKEN_CONVERSATIONS = (
    BrokenSurface("answers the last", streaming(AnswersTheLast), "commands_on_a_stream_are_carried_out_in_order"),
    BrokenSurface("ends its commands", streaming(EndsItsCommands), "a_command_whose_stream_ended_is_finished"),
    BrokenSurface(
        "answers the last first",
        streaming(AnswersTheLastFirst),
        "commands_on_a_stream_are_carried_out_in_order",
    ),
    BrokenSurface(
        "does one thing at a time", streaming(DoesOneThingAtATime), "a_command_that_takes_long_holds_up_no_event"
    ),
    BrokenSurface(
        "renames results",
        streaming(RenamesResults),
        "a_command_on_a_stream_is_answered_there",
        "a_command_on_a_stream_is_asked_about",
        "a_command_that_takes_long_holds_up_no_event",
        "a_command_whose_stream_ended_is_finished",
        "a_frame_that_cannot_be_read_is_an_error",
        "a_refused_command_on_a_stream_is_answered_there",
        "a_repetition_on_a_stream_gets_the_first_result",
        "commands_on_a_stream_are_carried_out_in_order",
    ),
    BrokenSurface(
        "takes refusals for errors",
        streaming(TakesRefusalsForErrors),
        "a_command_on_a_stream_is_asked_about",
        "a_command_that_takes_long_holds_up_no_event",
        "a_refused_command_on_a_stream_is_answered_there",
    ),
    BrokenSurface("hides what it did", streaming(HidesWhatItDid), "a_command_on_a_stream_is_answered_there"),
    BrokenSurface("ends at an error", streaming(EndsAtAnError), "a_frame_that_cannot_be_read_is_an_error"),
    BrokenSurface("ignores errors", streaming(IgnoresErrors), "a_frame_that_cannot_be_read_is_an_error"),
    BrokenSurface("speaks everything", streaming(SpeaksEverything), "another_protocol_is_not_spoken"),
    BrokenSurface(
        "closes silently",
        streaming(ClosesSilently),
        "a_bad_hello_is_refused",
        "a_stream_that_is_not_permitted_is_closed",
        "another_protocol_is_not_spoken",
    ),
    BrokenSurface(
        "closes normally",
        streaming(ClosesNormally),
        "a_bad_hello_is_refused",
        "a_stream_that_is_not_permitted_is_closed",
        "another_protocol_is_not_spoken",
    ),
    BrokenSurface("takes any hello", streaming(TakesAnyHello), "a_bad_hello_is_refused"),
)
