"""Histories: what is left of an episode, as data for the oracle."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from reflexr.core import (
    DeadLetter,
    Envelope,
    Event,
    Rule,
    RuleProgress,
    Run,
    RunDeadLettered,
    RunPaused,
    RunRetrying,
    RunSucceeded,
)
from reflexr.workspace import WorkspaceRef

from .journal import Entry

OUTCOMES: Final = frozenset(each.event_type for each in (RunRetrying, RunPaused, RunSucceeded, RunDeadLettered))
"""The facts that end an attempt."""


@dataclass(frozen=True, slots=True)
class Chronicle:
    """What is left of one workspace.

    Attributes:
        log: All of its log.
        runs: All of its runs, the newest first, as the storage has them.
        progress: How far its rules have come, by name.
        dead_letters: What its rules could not decide on, the oldest first.
    """

    workspace: WorkspaceRef
    log: Sequence[Envelope]
    runs: Sequence[Run]
    progress: Mapping[str, RuleProgress]
    dead_letters: Sequence[DeadLetter]


@dataclass(frozen=True, slots=True)
class History:
    """What is left of an episode.

    Attributes:
        settled_at: The storage's time when a fresh reactor had nothing to do any more.
        journal: What the processes wrote down, in the order in which they did.
    """

    seed: int
    rules: Sequence[Rule]
    publishers: Sequence[str]
    chronicles: Sequence[Chronicle]
    journal: Sequence[Entry]
    settled_at: datetime


def of_type(log: Iterable[Envelope], *types: type[Event]) -> Iterator[Envelope]:
    """Yields a log's envelopes of these types."""
    names = {each.event_type for each in types}
    return (envelope for envelope in log if envelope.event_type in names)
