"""Where a log comes from: a file, a compressed file or the standard input, as numbered lines; and which log it is.

What the lines say is `oncall.syslog`'s and `oncall.sshd`'s.
"""

import os
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from gzip import GzipFile
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from stat import S_ISREG
from typing import Final

from reflexr.core import derived_id

MAX_LINE: Final = 65_536
"""The longest line that is read whole, in bytes; of a longer one the rest is passed over."""

STANDARD_INPUT: Final = "-"

_GZIP: Final = b"\x1f\x8b"


class LogUnreadableError(Exception):
    """A log cannot be read, or not to its end; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line, without what ends it. Bytes that are no UTF-8 are written as escapes.

    Attributes:
        number: Its number, from 1.
    """

    number: int
    text: str


class Source:
    """A log that is open.

    Attributes:
        name: What to call it in a message.
        path: Where it is, without symbolic links, if it is a file in a folder.
        written: When it was last written to; for what is no file, now.
        size: Its size in bytes, if it has one.
    """

    def __init__(
        self, name: str, stream: BufferedReader, *, path: Path | None, written: datetime, size: int | None
    ) -> None:
        self.name = name
        self.path = path
        self.written = written
        self.size = size
        self._stream = stream
        self._position = 0

    @property
    def position(self) -> int:
        """How many bytes of it were read."""
        return self._position if self.size is None else self._stream.tell()

    def lines(self) -> Iterator[Line]:
        """Yields its lines; never holds more than one of them.

        Raises:
            LogUnreadableError: It breaks off.
        """
        number = 0
        try:
            stream = self._decompressed()
            while raw := stream.readline(MAX_LINE):
                number += 1
                self._position += len(raw)
                rest = raw
                while not rest.endswith(b"\n") and len(rest) == MAX_LINE:
                    rest = stream.readline(MAX_LINE)
                    self._position += len(rest)
                yield Line(number, _text(raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw))
        except (OSError, EOFError, zlib.error) as error:
            raise LogUnreadableError(f"{self.name} cannot be read past line {number:,}: {_reason(error)}") from error

    def end(self) -> None:
        """Has it end where it is, also for whoever waits for more of it. Safe in a signal handler."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, self._stream.fileno())
        os.close(nothing)

    def _decompressed(self) -> BufferedReader | GzipFile:
        if self._stream.peek(len(_GZIP)).startswith(_GZIP):
            return GzipFile(fileobj=self._stream, mode="rb")
        return self._stream


@contextmanager
def opened(place: str) -> Generator[Source]:
    """Opens a log for the length of the block.

    Args:
        place: The path of a file, which may be compressed with gzip, or `-` for the standard input.

    Raises:
        LogUnreadableError: There is none there, or it may not be read.
    """
    name = "the standard input" if place == STANDARD_INPUT else repr(place)
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(_stream(place))
            status = os.fstat(stream.fileno())
        except (OSError, ValueError) as error:
            raise LogUnreadableError(f"{name} cannot be read: {_reason(error)}") from error
        is_file = S_ISREG(status.st_mode)
        written = datetime.fromtimestamp(status.st_mtime, UTC) if is_file else datetime.now(UTC)
        path = Path(place).resolve() if is_file and place != STANDARD_INPUT else None
        yield Source(name, stream, path=path, written=written, size=status.st_size if is_file else None)


def identified(source: Source) -> tuple[str, Iterator[Line]]:
    """Returns the id of the workspace that keeps a log, and the log's lines.

    A file is the same log as long as it is at its place, however much it grows. A stream has no place: it is the same
    log if it begins with the same line, for which this waits.

    Raises:
        LogUnreadableError: A stream breaks off before that.
    """
    lines = source.lines()
    if source.path is not None:
        # A file's name may be no text at all.
        return derived_id("file", os.fsencode(source.path).hex()), lines
    first = list(islice(lines, 1))
    return derived_id("stream", *(line.text for line in first)), chain(first, lines)


def _stream(place: str) -> BufferedReader:
    return open(0, "rb", closefd=False) if place == STANDARD_INPUT else Path(place).open("rb")


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\r\n").decode("utf-8", errors="backslashreplace")


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
