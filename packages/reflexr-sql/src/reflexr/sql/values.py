"""How values are kept in columns: times as microseconds, and names short enough for an index."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from reflexr.sql.errors import InvalidValueError, SqlStorageError

MAX_INTEGER: Final = 2**63 - 1
"""The largest whole number that a column holds, and as many rows as anybody asks for."""

LONGEST_KEY: Final = 120
"""How many bytes of a name an index holds as it is."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DIGEST: Final = "sha256:"


def micros(time: datetime) -> int:
    """Returns a time as microseconds since 1970 in UTC, which compare and add exactly in every database."""
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def micros_or_none(time: datetime | None) -> int | None:
    """Returns a time as `micros` does, and `None` as it is."""
    return None if time is None else micros(time)


def duration_micros(duration: timedelta) -> int:
    """Returns a duration in microseconds."""
    return duration // _MICROSECOND


def moment(value: int) -> datetime:
    """Returns the time that was kept as microseconds, in UTC."""
    return _EPOCH + timedelta(microseconds=value)


def key(name: str) -> str:
    """Returns what an index holds of a name: the name itself, or its digest if it is a long one.

    PostgreSQL's index rows have room for less than a third of a page. No name is the digest of another: one that looks
    like a digest is digested too.

    Raises:
        InvalidValueError: The name holds a NUL or a lone surrogate, which no database keeps.
    """
    if name.isascii() and len(name) <= LONGEST_KEY and "\0" not in name and not name.startswith(_DIGEST):
        return name
    try:
        data = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidValueError(f"{name!r} holds a lone surrogate, which the database cannot hold") from error
    if b"\0" in data:
        raise InvalidValueError(f"{name!r} holds a NUL, which the database cannot hold")
    if len(data) <= LONGEST_KEY and not name.startswith(_DIGEST):
        return name
    return f"{_DIGEST}{sha256(data).hexdigest()}"


def read_all[Model: BaseModel](model: type[Model], rows: Iterable[Sequence[Any]]) -> list[Model]:
    """Returns documents, of which each row holds one, as models.

    Raises:
        SqlStorageError: One of them is none, as something else wrote it.
    """
    return [read(model.model_validate_json, model.__name__, text) for (text,) in rows]


def read[Value](validate: Callable[[str], Value], what: str, text: str) -> Value:
    """Returns a document as what it is.

    Raises:
        SqlStorageError: It is not that, as something else wrote it.
    """
    try:
        return validate(text)
    except ValidationError as error:
        raise SqlStorageError(
            f"a {what} in the database cannot be read: {error.errors()[0]['msg']}; it begins with {text[:200]!r}"
        ) from error


def within(number: int) -> int:
    """Returns the number, or the nearest that a column holds."""
    return max(-MAX_INTEGER, min(number, MAX_INTEGER))
