"""Resets: a rule starts afresh, because its definition changed or because it is replayed."""

from dataclasses import dataclass
from typing import Literal

from reflexr.core.actors import Actor
from reflexr.core.canonical import derived_id
from reflexr.core.decisions import REACTOR
from reflexr.core.envelopes import Draft
from reflexr.core.facts import RuleReset
from reflexr.core.rejections import ValidationFailed
from reflexr.core.rules import Rule
from reflexr.core.states import RuleProgress

type ReplayMode = Literal["rebuild", "refire"]
"""How a rule is replayed.

`rebuild` recomputes its state up to the head without firing, `refire` fires again for the past.
"""


@dataclass(frozen=True, slots=True)
class Reset:
    """A rule's new progress, and the fact to append. The host clears the rule's states in the same transaction."""

    progress: RuleProgress
    fact: Draft


def reset(
    rule: Rule,
    progress: RuleProgress,
    *,
    head_seq: int,
    from_seq: int | None = None,
    mode: ReplayMode | None = None,
    actor: Actor = REACTOR,
) -> Reset:
    """Starts a rule afresh, with a new generation and so with new firing ids.

    Args:
        rule: The rule, as it is from now on.
        progress: How far it has come.
        head_seq: The place of the log's last envelope.
        from_seq: With `mode`, the first place to evaluate again, from 1 to the place after the last.
        mode: How the rule is replayed; `None` if its definition changed, which starts it after the head.
        actor: Who resets it.

    Raises:
        ValidationFailed: `from_seq` is no place to replay from.
    """
    first = head_seq + 1 if mode is None or from_seq is None else from_seq
    if not 1 <= first <= head_seq + 1:
        raise ValidationFailed(
            f"from_seq is 1 to {head_seq + 1}, the place after the log's last, not {first}",
            [f"from_seq: {first} is outside 1 to {head_seq + 1}"],
        )
    fresh = RuleProgress(
        rule=rule.name,
        generation=progress.generation + 1,
        cursor=first - 1,
        definition=rule.definition(),
        silent_through=head_seq if mode == "rebuild" else 0,
    )
    fact_id = derived_id("evt", "reset", rule.name, fresh.generation)
    fact = RuleReset(
        rule=rule.name,
        generation=fresh.generation,
        reason="changed" if mode is None else "replayed",
        from_seq=first,
        silent_through=fresh.silent_through,
    )
    return Reset(fresh, Draft(id=fact_id, payload=fact.payload(), actor=actor, correlation_id=fact_id))
