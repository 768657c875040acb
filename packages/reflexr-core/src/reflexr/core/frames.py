"""Frames: what a client and a server say to each other in `reflexr.v1`, and where a stream begins.

A client's frames refuse fields that they do not have; a server's ignore them, so that a client can meet a newer server.
Close codes and the connection itself are the surface's.
"""

import operator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, StrictBool, TypeAdapter, ValidationError

from reflexr.core.ambiguity import repeated_member
from reflexr.core.commands import Command
from reflexr.core.deltas import Delta
from reflexr.core.envelopes import Envelope, Seq
from reflexr.core.events import EventType, problems
from reflexr.core.integers import Place
from reflexr.core.messages import Message, Request
from reflexr.core.names import Id, Text
from reflexr.core.outcomes import Outcome
from reflexr.core.rejections import Rejection, UnsupportedProtocol, ValidationFailed

PROTOCOL: Final = "reflexr.v1"
"""The protocol's name, which is also the WebSocket's subprotocol."""


class Hello(Request):
    """The first frame of a client: where its stream begins and what it is sent.

    Attributes:
        protocol: What it speaks: `reflexr.v1`.
        resume_after_seq: The last place it has seen; 0 for everything.
        from_head: Whether it wants only what comes next, and nothing of the past.
        types: The event types it is sent; `None` for all.
        deltas: Whether it is sent the deltas of the runs that are at work, too.
    """

    type: Literal["hello"] = "hello"
    protocol: Text
    resume_after_seq: Place = 0
    from_head: StrictBool = False
    types: Annotated[tuple[EventType, ...], Field(min_length=1)] | None = None
    # Left out where it says nothing, as a server that does not know it would refuse it.
    deltas: StrictBool = Field(default=False, exclude_if=operator.not_)


class CommandFrame(Request):
    """A command, under an id by which a repetition of it is recognised."""

    type: Literal["command"] = "command"
    command_id: Id
    command: Command


type ClientFrame = Annotated[Hello | CommandFrame, Field(discriminator="type")]
"""What a client sends, discriminated by `type`."""


class Welcome(Message):
    """The answer to a hello.

    Attributes:
        workspace_id: The workspace whose log is streamed.
        head_seq: The last place of the log; what comes up to it is the replay.
        reset: Whether the client was ahead of the log: what it has seen is void, and it is sent everything.
    """

    type: Literal["welcome"] = "welcome"
    workspace_id: Id
    head_seq: Seq
    reset: bool


class EventFrame(Message):
    """One envelope of the log."""

    type: Literal["event"] = "event"
    envelope: Envelope


class DeltaFrame(Message):
    """A piece of what a run says while it is at work. It has no place in the log, and may be lost.

    It is sent only to a client whose hello asks for deltas.
    """

    type: Literal["delta"] = "delta"
    delta: Delta


class ReplayComplete(Message):
    """Everything up to this place was sent; what follows is live."""

    type: Literal["replay_complete"] = "replay_complete"
    up_to_seq: Seq


class CommandSucceeded(Message):
    """What came of a command that was carried out."""

    type: Literal["command_result"] = "command_result"
    command_id: Id
    ok: Literal[True] = True
    outcome: Outcome


class CommandRejected(Message):
    """Why a command was refused."""

    type: Literal["command_result"] = "command_result"
    command_id: Id
    ok: Literal[False] = False
    rejection: Rejection


type CommandResult = Annotated[CommandSucceeded | CommandRejected, Field(discriminator="ok")]
"""The answer to a command, discriminated by `ok`."""


class ErrorFrame(Message):
    """Why a frame could not be read; the connection stays."""

    type: Literal["error"] = "error"
    rejection: Rejection


type ServerFrame = Annotated[
    Welcome | EventFrame | DeltaFrame | ReplayComplete | CommandResult | ErrorFrame, Field(discriminator="type")
]
"""What a server sends, discriminated by `type`."""


def read_client_frame(text: str | bytes) -> ClientFrame:
    """Returns the frame that a client sent as JSON.

    Raises:
        ValidationFailed: It is none, and every problem is listed with its place; or an object in it has two members of
            one name.
    """
    refusal = "the frame is none that a client sends"
    frame = _read(_CLIENT_FRAME, text, refusal)
    if (name := repeated_member(text)) is not None:
        raise ValidationFailed(refusal, [f"an object has more than one member {name!r}"])
    return frame


def read_server_frame(text: str | bytes) -> ServerFrame:
    """Returns the frame that a server sent as JSON; fields that it does not have are ignored.

    Raises:
        ValidationFailed: It is none; every problem is listed with its place.
    """
    return _read(_SERVER_FRAME, text, "the frame is none that a server sends")


def write_frame(frame: ClientFrame | ServerFrame) -> str:
    """Returns a frame's JSON text, which the other side reads back."""
    return frame.model_dump_json(by_alias=True)


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a stream begins.

    Attributes:
        after_seq: The place after which the client is sent everything of its types.
        up_to_seq: The last place of the replay; what comes after it is live.
        reset: Whether what the client has seen is void.
    """

    after_seq: int
    up_to_seq: int
    reset: bool


def resume(hello: Hello, head_seq: int) -> Resumption:
    """Returns where the stream of a client begins in a log that ends at `head_seq`.

    A client ahead of the log has seen another one: it is reset and sent everything.

    Raises:
        UnsupportedProtocol: The client does not speak `reflexr.v1`.
        ValidationFailed: It wants to begin at the head and after a place at once, and would miss what is between.
    """
    if hello.protocol != PROTOCOL:
        raise UnsupportedProtocol(f"the protocol {hello.protocol!r} is not spoken here: speak {PROTOCOL!r}")
    if hello.from_head:
        if hello.resume_after_seq:
            raise ValidationFailed(
                f"resume_after_seq is {hello.resume_after_seq} and from_head is true: a client that resumes goes on "
                "after the last place it has seen, so that it misses nothing: leave from_head out"
            )
        return Resumption(after_seq=head_seq, up_to_seq=head_seq, reset=False)
    ahead = hello.resume_after_seq > head_seq
    return Resumption(after_seq=0 if ahead else hello.resume_after_seq, up_to_seq=head_seq, reset=ahead)


def _read[F](adapter: TypeAdapter[F], text: str | bytes, refusal: str) -> F:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise ValidationFailed(refusal, problems(error)) from error


_CLIENT_FRAME: Final[TypeAdapter[ClientFrame]] = TypeAdapter(ClientFrame)
_SERVER_FRAME: Final[TypeAdapter[ServerFrame]] = TypeAdapter(ServerFrame)
