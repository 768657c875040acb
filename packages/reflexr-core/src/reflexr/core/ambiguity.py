"""Ambiguity: JSON texts in which an object has two members of one name, so that two readers may take different ones."""

import json
from collections import Counter
from typing import Any


def repeated_member(text: str | bytes) -> str | None:
    """Returns the name of a member that an object in a JSON text has more than once; `None` if there is none.

    RFC 8259 (4.) calls what receives such a text unpredictable: a proxy or a signature's check may have taken the first
    of two members, and reflexr the last.

    Args:
        text: The JSON text.

    Raises:
        ValueError: It is no JSON text.
    """
    try:
        json.loads(text, object_pairs_hook=_check, parse_int=_nothing, parse_float=_nothing)
    except _RepeatedError as repeated:
        return repeated.name
    return None


class _RepeatedError(Exception):
    """An object has a member twice."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _check(members: list[tuple[str, Any]]) -> None:
    counted = Counter(name for name, _ in members)
    if len(counted) < len(members):
        raise _RepeatedError(next(name for name, count in counted.items() if count > 1))


def _nothing(_: str) -> None:
    """What a number is read as: nobody asks for its value."""
