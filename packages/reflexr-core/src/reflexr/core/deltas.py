"""Deltas: pieces of what a run says while it is at work. They are told at once to who listens, and recorded nowhere.

What a run comes to is in the log; a delta is only an early view of it, and may be lost.
"""

from typing import Final, Literal

from pydantic import Field

from reflexr.core.messages import Message
from reflexr.core.names import AnyRuleName, Id, Text

MAX_DELTA: Final = 1_000
"""How many characters of text a delta has at most; what is longer is told in several."""

type DeltaKind = Literal["text", "thinking", "tool_call", "tool_result"]
"""What a delta is a piece of."""


class Delta(Message):
    """A piece of what an attempt of a run says while it is at work.

    The texts of the same `kind` and `part` of an attempt, in their order, are what it has said there so far.

    Attributes:
        run_id: The run.
        rule: Its rule.
        attempt: The attempt, from 1; the next one begins anew.
        number: The delta's place in its attempt, from 1. Where one is missing in between, it was lost.
        kind: What it is a piece of: a text, the thinking before it, the JSON of the arguments with which a tool is
            called, or the beginning of what a tool returned.
        part: Which part of what is said it belongs to, from 0. A tool's result belongs to the part that called it.
        text: The piece, perhaps empty; at most 1,000 characters.
        tool: The tool that is called; `None` where there is none.
        lost: How many deltas its reader was not given right before it, as it was too far behind.
    """

    run_id: Id
    rule: AnyRuleName
    attempt: int = Field(ge=1)
    number: int = Field(ge=1)
    kind: DeltaKind
    part: int = Field(ge=0)
    text: Text
    tool: Text | None = None
    lost: int = Field(default=0, ge=0)
