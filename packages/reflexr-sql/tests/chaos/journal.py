"""The journal: what processes did, written at once and never rewritten, so that it survives whoever wrote it.

All processes append to one file, so the order of its lines is the order in which it all happened.
"""

import os
import time
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from reflexr.workspace import WorkspaceRef


class _Entry(BaseModel, frozen=True):
    """What every entry says.

    Attributes:
        by: The process.
        at: When it was written, for people: it is the order that counts.
    """

    by: str
    at: float = Field(default_factory=time.time)


class Begun(_Entry, frozen=True):
    """An action began an attempt."""

    what: Literal["begun"] = "begun"
    workspace: WorkspaceRef
    run: str
    attempt: int


class Ended(_Entry, frozen=True):
    """An action ended an attempt, however it did."""

    what: Literal["ended"] = "ended"
    workspace: WorkspaceRef
    run: str
    attempt: int


class Published(_Entry, frozen=True):
    """A publisher was told that its lot of this number is in the log; `repeated` if it was there already."""

    what: Literal["published"] = "published"
    number: int
    repeated: bool = False


class Answered(_Entry, frozen=True):
    """A publisher was told that its answer to what an attempt asked is in the log."""

    what: Literal["answered"] = "answered"
    workspace: WorkspaceRef
    run: str
    attempt: int


class Done(_Entry, frozen=True):
    """The killer did something."""

    what: Literal["done"] = "done"
    deed: str


class Trouble(_Entry, frozen=True):
    """Something went wrong in a process that nothing of the chaos explains."""

    what: Literal["trouble"] = "trouble"
    text: str


type Kind = Begun | Ended | Published | Answered | Done | Trouble

type Entry = Annotated[Kind, Field(discriminator="what")]

_ENTRY: Final[TypeAdapter[Kind]] = TypeAdapter(Entry)


class Journal:
    """The journal, open for writing in one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, entry: Kind) -> None:
        """Appends an entry, whole or not at all."""
        os.write(self._file, entry.model_dump_json().encode() + b"\n")

    def close(self) -> None:
        """Closes it."""
        os.close(self._file)


def entries_of(path: Path) -> list[Kind]:
    """Returns what is written in a journal, in the order in which it was."""
    return [_ENTRY.validate_json(line) for line in path.read_bytes().splitlines()] if path.exists() else []
