"""Cursors: where a subscriber stands in a log, and what each frame of a stream means for it. Nothing here does I/O."""

from reflexr.client.arguments import EventTypes, built, checked_numbers, type_names
from reflexr.client.errors import LogReset
from reflexr.core import MAX_SEQ, PROTOCOL, Envelope, EventFrame, Hello, ReplayComplete, ServerFrame, Welcome, resume


class StreamBrokenError(Exception):
    """A stream cannot go on as it is, and is to be opened again from the last good place. It never leaves the package.

    Attributes:
        violation: Whether the server broke the protocol, so that opening it again helps only if it does not again.
    """

    def __init__(self, reason: str, *, violation: bool = False) -> None:
        super().__init__(reason)
        self.violation = violation


class StreamCursor:
    """The place up to which a subscriber has everything, over all the connections that its subscription needs.

    What it lets through grows by `seq`, so no envelope comes twice. Where the subscriber wants every type it grows by
    one, so none is missing. Where it wants some, a server that leaves one of them out cannot be told from a log that
    has none.
    """

    def __init__(
        self,
        workspace_id: str,
        *,
        after_seq: int,
        from_head: bool,
        types: EventTypes | None,
        deltas: bool = False,
    ) -> None:
        """Begins after a place, or at the head of the log as it is when the stream is first open.

        Raises:
            ValidationFailed: The place is none, it comes with `from_head`, or a type is none.
        """
        checked_numbers(after_seq=after_seq)
        names = type_names(types)
        fields = {
            "protocol": PROTOCOL,
            "resume_after_seq": after_seq,
            "from_head": from_head,
            "types": names,
            "deltas": deltas,
        }
        self._hello = built("this is no subscription", lambda: Hello.model_validate(fields))
        # The server would refuse what this refuses.
        resume(self._hello, MAX_SEQ)
        self._workspace_id = workspace_id
        self._filtered = names is not None

    @property
    def after_seq(self) -> int | None:
        """The place up to which the subscriber has everything; `None` while it waits to be told where the head is."""
        return None if self._hello.from_head else self._hello.resume_after_seq

    def hello(self) -> Hello:
        """Returns the first frame of the next connection, which asks for what comes after the cursor."""
        return self._hello

    def begin(self, frame: ServerFrame) -> None:
        """Takes the answer to `hello`.

        Raises:
            LogReset: The log ends before the cursor.
            StreamBrokenError: The frame is no such answer.
        """
        if not isinstance(frame, Welcome):
            raise StreamBrokenError(f"a {frame.type!r} frame came where 'welcome' was due", violation=True)
        if frame.workspace_id != self._workspace_id:
            raise StreamBrokenError(f"this is the stream of the workspace {frame.workspace_id!r}", violation=True)
        after_seq = self._hello.resume_after_seq
        if frame.reset:
            raise LogReset(after_seq, frame.head_seq)
        if frame.head_seq < after_seq:
            raise StreamBrokenError(f"the log ends at {frame.head_seq} and was not reset", violation=True)
        if self._hello.from_head:
            self._move(frame.head_seq)

    def take(self, frame: ServerFrame) -> Envelope | None:
        """Returns the envelope that a frame brings, and moves past it; `None` if it brings none, or one that came.

        Raises:
            StreamBrokenError: One is missing before it, or the frame comes at the wrong time.
        """
        match frame:
            case EventFrame(envelope=envelope):
                if envelope.seq <= self._hello.resume_after_seq:
                    return None
                if not self._filtered:
                    self._expect(envelope.seq - 1, f"the envelope {envelope.seq}")
                self._move(envelope.seq)
                return envelope
            case ReplayComplete(up_to_seq=seq):
                if not self._filtered:
                    self._expect(seq, f"the end of the replay, {seq},")
                self._move(max(seq, self._hello.resume_after_seq))
            case Welcome():
                raise StreamBrokenError("a second 'welcome' frame came", violation=True)
            case _:
                pass
        return None

    def _expect(self, seq: int, what: str) -> None:
        if seq > self._hello.resume_after_seq:
            raise StreamBrokenError(f"{what} came right after {self._hello.resume_after_seq}", violation=True)

    def _move(self, seq: int) -> None:
        # Validated where it came from.
        self._hello = self._hello.model_copy(update={"resume_after_seq": seq, "from_head": False})
