"""JSON values: their canonical text, their equality, and hashes of them.

What a rule decides depends on these alone: never on a locale, a hash seed or a platform.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from hashlib import sha256
from json.encoder import encode_basestring_ascii
from typing import Any, Final, cast

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_json

from reflexr.core.errors import NotJsonError

MAX_DEPTH: Final = 100
"""How many lists and objects deep a JSON value may nest."""

MAX_DIGITS: Final = 4_300
"""The longest integer, in decimal digits: what Python and its JSON readers take from text by default."""


def canonical(value: JsonValue | tuple[JsonValue, ...]) -> str:
    """Returns the one text of a JSON value.

    Keys are sorted by code point, there is no white space, everything but ASCII is escaped, and a number that is
    whole is written as an integer, so `1` and `1.0` have the same text, and `true` has another.

    Raises:
        NotJsonError: The value holds NaN, an infinity, or something that is not JSON, or nests too deep.
    """
    try:
        return _text(value)
    except (RecursionError, TypeError) as error:
        raise NotJsonError(f"the value is not JSON: {error}") from error


def canonical_list(values: Iterable[JsonValue]) -> str:
    """Returns the canonical text of the list of these values."""
    return "[" + ",".join([_text(value) for value in values]) + "]"


def digest(value: JsonValue) -> str:
    """Returns 64 hex digits that depend on the value's canonical text alone (SHA-256)."""
    return sha256(canonical(value).encode("ascii")).hexdigest()


def derived_id(prefix: str, *parts: JsonValue) -> str:
    """Returns an id, the prefix and 16 hex digits, that depends on the parts alone.

    The parts are hashed as a canonical JSON list, so different parts never read as the same text.
    """
    return f"{prefix}_{digest(list(parts))[:16]}"


def equal(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal as JSON has it.

    `True` is not `1`, `1` equals `1.0`, `"1"` is not `1`, and lists and objects compare by value.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        lefts, rights = cast("list[Any]", left), cast("list[Any]", right)
        return len(lefts) == len(rights) and all(map(equal, lefts, rights))
    if isinstance(left, dict) and isinstance(right, dict):
        items, others = cast("dict[str, Any]", left), cast("dict[str, Any]", right)
        return items.keys() == others.keys() and all(equal(item, others[key]) for key, item in items.items())
    return bool(left == right)


def check_json(value: object, place: str, depth: int = 0) -> None:
    """Checks that JSON can hold the texts and numbers in a value, and that it nests no deeper than `MAX_DEPTH`.

    Raises:
        NotJsonError: It nests deeper, or holds NaN, an infinity, a lone surrogate or an integer of over `MAX_DIGITS`
            digits, as a value or as a key; the message names the place.
    """
    if isinstance(value, str):
        if not value.isascii():
            _check_text(value, place)
    elif isinstance(value, int):
        if not -_TOO_LONG < value < _TOO_LONG:
            raise NotJsonError(f"{place} is an integer of more than {MAX_DIGITS:,} digits: use a string instead")
    elif isinstance(value, float | Decimal):
        if not (math.isfinite(value) if isinstance(value, float) else value.is_finite()):
            raise NotJsonError(f"{place} is {value!r}, which JSON cannot hold: use None or a string instead")
    elif isinstance(value, dict | list | tuple | set | frozenset):
        if depth == MAX_DEPTH:
            raise NotJsonError(f"{place} nests deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            for key, item in cast("dict[object, object]", value).items():
                if not (isinstance(key, str) and key.isascii()):
                    check_json(key, f"a key of {place}", depth + 1)
                check_json(item, f"{place}.{key}", depth + 1)
        else:
            for index, item in enumerate(cast("Iterable[object]", value)):
                check_json(item, f"{place}.{index}", depth + 1)


def check_written(
    text: str, values: Sequence[object], dump: Callable[[], Sequence[object]], place: str, depth: int = 0
) -> None:
    """Checks the JSON that models were written as, like `check_json` and much faster where nothing is wrong.

    Args:
        text: The JSON text of the models, one or a list of them.
        values: The text's values, as pydantic reads them, one for each model.
        dump: Returns each model's values as Python has them.
        place: What the models are, for the message.
        depth: How many lists and objects will be around each where it is stored.

    Raises:
        NotJsonError: As by `check_json`.
    """
    # What was read from text holds no lone surrogate and no integer that is too long. No model nests deeper than all
    # that the text opens, but for what each of the others opens at least.
    nested = depth + text.count("[") + text.count("{") - len(values) + 1
    holds_nan = "NaN" in text or "Infinity" in text
    if nested > MAX_DEPTH or holds_nan:
        for value in values:
            check_json(value, place, depth)
    # Pydantic writes a nested model's NaN as null and that of a key or a decimal as a text, so these are looked at
    # again before they are believed.
    if holds_nan or "null" in text or '"nan"' in text or 'inf"' in text:
        dumped = dump()
        if _may_hold_nan(dumped):
            for value in dumped:
                check_json(value, place, depth)


def _may_hold_nan(dumped: object) -> bool:
    try:
        text = to_json(dumped, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError):
        return True
    return b"NaN" in text or b"Infinity" in text or b'"nan"' in text or b'inf"' in text


_TOO_LONG: Final = 10**MAX_DIGITS


def _check_text(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotJsonError(
            f"{place} holds the lone surrogate {text[error.start]!r}, which is half a character and not JSON"
        ) from error


def _text(value: JsonValue | tuple[JsonValue, ...]) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return encode_basestring_ascii(value)
        case int():
            return _integer(value)
        case float():
            return _number(value)
        case list() | tuple():
            return canonical_list(value)
        case dict():
            return (
                "{" + ",".join([f"{encode_basestring_ascii(key)}:{_text(value[key])}" for key in sorted(value)]) + "}"
            )
        case _:
            raise NotJsonError(f"{value!r} is no JSON value")


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise NotJsonError(f"{value!r} is not a JSON number")
    return str(int(value)) if value.is_integer() else repr(value)


def _integer(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError as error:
        raise NotJsonError(
            f"an integer of {value.bit_length()} bits is longer than JSON readers take: {error}"
        ) from error
