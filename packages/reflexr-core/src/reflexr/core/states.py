"""What a rule remembers: its progress through a log, and one state for each scope that has something to remember."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from reflexr.core.envelopes import UtcDatetime

NOTHING_SEEN: Final[Mapping[str, datetime]] = {}
"""Stands for no dedupe keys; one object, since most states have none."""


@dataclass(frozen=True, slots=True)
class RuleProgress:
    """How far a rule has evaluated a workspace's log.

    Attributes:
        rule: The rule's name.
        generation: Counted from 1; a reset starts the next. Firings of different generations have different ids.
        cursor: The place of the last envelope that was evaluated; 0 before the first.
        definition: The hash of the condition and scope it evaluated with.
        silent_through: The last place up to which no firing is recorded, in a rebuild; else 0.
    """

    rule: str
    generation: int
    cursor: int
    definition: str
    silent_through: int = 0

    def moved(self, cursor: int) -> "RuleProgress":
        """Returns the progress with the cursor at this place."""
        return RuleProgress(self.rule, self.generation, cursor, self.definition, self.silent_through)


class Armed(NamedTuple):
    """What an absence waits with: the last envelope of the scope that passed, and until when it waits.

    Attributes:
        seq: The envelope's place.
        correlation_id: The causal chain it is of.
        depth: How deep it is in that chain.
        due: When the scope will have been quiet for long enough.
    """

    seq: int
    correlation_id: str
    depth: int
    due: UtcDatetime


class ScopeState(NamedTuple):
    """What a rule remembers of one scope. Immutable: evaluation returns a new one.

    `pydantic.TypeAdapter(ScopeState)` writes it as a JSON array, in the order of the attributes, and reads it back.

    Attributes:
        marks: The places and times of the envelopes the pattern holds: of a count those in the window, of a sequence
            those of the steps done.
        armed: What an absence waits with; `None` while it waits for nothing.
        seen: When each dedupe key last passed, oldest first.
        fired: When the firings passed that the throttle counts, oldest first.
        expires: From when on the state is worth nothing, so that dropping it changes no decision; `None` while it is
            armed.
    """

    marks: tuple[tuple[int, UtcDatetime], ...] = ()
    armed: Armed | None = None
    seen: Mapping[str, UtcDatetime] = NOTHING_SEEN
    fired: tuple[UtcDatetime, ...] = ()
    expires: UtcDatetime | None = None

    @property
    def due(self) -> datetime | None:
        """When the scope will have been quiet for long enough; evaluation needs the state once the log is there."""
        return None if self.armed is None else self.armed.due
