"""Answers that do not fit: what is said about them to whoever is asked again."""

from collections.abc import Iterable
from typing import Final

_SHOWN: Final = 5
"""How many names a problem lists at most."""

_LENGTH: Final = 80
"""How many characters of a name a problem shows at most."""


class UnfittingAnswer(Exception):
    """An answer does not fit what was asked; the text says what was wrong, and what would be right."""


def listed(names: Iterable[str]) -> str:
    """Returns names for a message, the first few of them and not at any length."""
    ordered = sorted(names)
    shown = [repr(name if len(name) <= _LENGTH else f"{name[:_LENGTH]}…") for name in ordered[:_SHOWN]]
    left = len(ordered) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")
