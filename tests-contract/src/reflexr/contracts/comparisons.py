"""Comparisons of what is long."""

from collections.abc import Iterable
from itertools import zip_longest


def first_difference[T](found: Iterable[T], expected: Iterable[T]) -> tuple[int, T | None, T | None] | None:
    """Returns where two long lists differ first, with what each has there; `None` if they are equal.

    To assert that they are equal would have pytest write down all differences where it shortens none, as on CI: of two
    lists of thousands that takes it minutes.
    """
    pairs = enumerate(zip_longest(found, expected))
    return next(((place, one, other) for place, (one, other) in pairs if one != other), None)
