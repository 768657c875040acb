"""A broken storage, and the guarantees by which exactly that is noticed."""

from collections.abc import Callable

from reflexr.workspace import Clock

from .dictionary_storage import Database, DictionaryStorage


class Broken:
    """A storage that breaks a promise.

    Attributes:
        what: What it does wrong.
        open: Opens it.
        guarantees: The guarantees that fail, and no other.
    """

    def __init__(self, what: str, open: Callable[[Database, Clock], DictionaryStorage], *guarantees: str) -> None:
        self.what = what
        self.open = open
        self.guarantees = {f"test_{guarantee}" for guarantee in guarantees}
