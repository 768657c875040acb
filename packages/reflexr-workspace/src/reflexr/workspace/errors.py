"""The exceptions of `reflexr.workspace` that are not rejections: what a programmer did wrong, or what broke.

A client's refused request is a rejection of `reflexr.core`.
"""

from collections.abc import Collection

from reflexr.core import ReflexrError


class WorkspaceError(ReflexrError):
    """The root of this distribution's exceptions."""


class StorageError(WorkspaceError):
    """A storage could not do what it was asked to, and did none of it."""


class DuplicateEventIdError(StorageError):
    """An append named an id that is already in the log, or one id twice.

    Attributes:
        ids: Those ids.
    """

    def __init__(self, ids: Collection[str]) -> None:
        self.ids = tuple(ids)
        super().__init__(
            f"these ids are already in the log, or were given twice: {', '.join(map(repr, self.ids))}: "
            "look ids up with find() in the same transaction before you append"
        )


class StoredRuleConflictError(StorageError):
    """A stored rule was saved at another version than its next.

    Attributes:
        rule: The rule's name.
        version: The version that was to be saved.
        expected: The only version that could have been.
    """

    def __init__(self, rule: str, version: int, expected: int) -> None:
        self.rule = rule
        self.version = version
        self.expected = expected
        super().__init__(f"{rule!r} was saved at version {version}, but its next version is {expected}")


class TransactionClosedError(StorageError):
    """A transaction was used after its block ended."""

    def __init__(self) -> None:
        super().__init__("the transaction's block has ended: use it inside `async with storage.transaction(...)` only")
