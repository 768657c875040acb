"""What evaluation decides: firings, and the envelopes that a rule could not decide on."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, Field, JsonValue

from reflexr.core.actors import SystemActor
from reflexr.core.canonical import derived_id
from reflexr.core.envelopes import Causation, Draft, Seq, UtcDatetime
from reflexr.core.facts import RuleErrored, RuleFired
from reflexr.core.names import AnyRuleName, Id

REACTOR: Final = SystemActor(name="reactor")
"""Who evaluates rules, starts runs and records what becomes of them."""


@dataclass(frozen=True, slots=True)
class Firing:
    """A rule's condition held.

    Attributes:
        id: Derived from the rule, its generation, the scope and the place, so that it is the same in every process.
            It is also the id of the run that the firing starts.
        scope: The scope's fields and their values; empty for the whole workspace.
        seq: The place of the envelope at which the rule fired.
        ts: That envelope's time.
        matched: The places of the envelopes that the firing matched, in order.
        correlation_id: The causal chain of the latest envelope it matched.
        depth: How deep the firing's facts and its run's events are in that chain, from 1.
    """

    id: str
    rule: str
    generation: int
    scope: Mapping[str, JsonValue]
    scope_key: str
    seq: int
    ts: datetime
    matched: tuple[int, ...]
    correlation_id: str
    depth: int

    @property
    def fact(self) -> Draft:
        """The `reflexr:rule_fired` event that records it."""
        fired = RuleFired(
            rule=self.rule,
            scope=dict(self.scope),
            scope_key=self.scope_key,
            firing_id=self.id,
            matched=list(self.matched),
        )
        return Draft(
            id=derived_id("evt", "fired", self.id),
            payload=fired.payload(),
            actor=REACTOR,
            correlation_id=self.correlation_id,
            causation=Causation(firing_id=self.id, run_id=self.id, depth=self.depth),
        )


def firing_id(rule: str, generation: int, scope_key: str, seq: int) -> str:
    """Returns the id of the firing of this rule's generation in this scope at this place."""
    return derived_id("fir", rule, generation, scope_key, seq)


type DeadLetterKind = Literal["predicate_failed", "scope_missing", "depth_exceeded"]
"""Why a rule could not decide: a predicate raised, the event lacks a scope field, or the firing would be too deep."""


class DeadLetter(BaseModel, frozen=True):
    """An envelope that one rule could not decide on, or a firing that was refused there.

    Attributes:
        seq: The envelope's place.
        scope_key: The scope of a refused firing; `None` where the scope was not read yet.
        ts: The envelope's time.
        error: What went wrong.
    """

    rule: AnyRuleName
    generation: int = Field(ge=1)
    seq: Seq
    scope_key: str | None
    ts: UtcDatetime
    kind: DeadLetterKind
    error: str

    def fact(self, correlation_id: Id, causation: Causation | None) -> Draft:
        """Returns the `reflexr:rule_errored` event that records it, in the causal chain of what went wrong."""
        errored = RuleErrored(rule=self.rule, seq=self.seq, error=self.error)
        return Draft(
            id=derived_id("evt", "errored", self.rule, self.generation, self.seq, self.scope_key),
            payload=errored.payload(),
            actor=REACTOR,
            correlation_id=correlation_id,
            causation=causation,
        )
