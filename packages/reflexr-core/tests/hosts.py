"""A host of one rule over one log, as small as a host can be: it keeps everything as JSON text between two batches.

What to save and what to forget is core's to say; a host only does it. Real hosts live above core.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import TypeAdapter

from reflexr.core.decisions import DeadLetter, Firing
from reflexr.core.envelopes import Draft, Envelope
from reflexr.core.evaluation import Batch, Evaluation, evaluate, needs
from reflexr.core.resets import reset
from reflexr.core.rules import Rule
from reflexr.core.states import RuleProgress, ScopeState

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of an envelope `at` 0."""

STATE: Final = TypeAdapter(ScopeState)
PROGRESS: Final = TypeAdapter(RuleProgress)


def severity_at_least_5(envelope: Envelope) -> bool:
    return envelope.payload["severity"] >= 5


def raises(envelope: Envelope) -> bool:
    raise LookupError("this predicate always fails")


PREDICATES: Final[Mapping[str, Callable[[Envelope], bool]]] = {
    "always": lambda envelope: True,
    "never": lambda envelope: False,
    "raises": raises,
    "severity_at_least_5": severity_at_least_5,
}
"""The predicates that an application brings."""

type Forget = Callable[[], bool]
"""Whether the host drops the states that are worth nothing now, or puts it off."""


def envelope(seq: int, entry: Mapping[str, Any]) -> Envelope:
    """The envelope of a log entry: `at` seconds after the start, of a `type`, with the fields of its `event`."""
    event_id = entry.get("id", f"evt_{seq}")
    depth = entry.get("depth", 0)
    document = {
        "seq": seq,
        "id": event_id,
        "ts": (START + timedelta(microseconds=round(entry["at"] * 1_000_000))).isoformat(),
        "workspace_id": "conformance",
        "actor": {"kind": "source", "name": "conformance"},
        "causation": {"firing_id": "fir_cause", "run_id": "fir_cause", "depth": depth} if depth else None,
        "correlation_id": entry.get("correlation_id", event_id),
        "event": {"type": entry["type"], **entry.get("event", {})},
    }
    return Envelope.model_validate_json(json.dumps(document))


def envelopes(log: Iterable[Mapping[str, Any]]) -> list[Envelope]:
    return [envelope(seq, entry) for seq, entry in enumerate(log, start=1)]


class Host:
    """Evaluates one rule batch by batch.

    Attributes:
        firings: Every firing so far.
        errors: Every dead letter so far.
        facts: Every fact so far, in order.
    """

    def __init__(
        self,
        rule: Rule,
        progress: RuleProgress,
        *,
        max_depth: int = 8,
        forget: Forget = lambda: True,
        shows_everything: bool = False,
    ) -> None:
        self._rule_text = rule.model_dump_json()
        self._progress_text = PROGRESS.dump_json(progress)
        self._states: dict[str, bytes] = {}
        self._max_depth = max_depth
        self._forget = forget
        self._shows_everything = shows_everything
        self.firings: list[Firing] = []
        self.errors: list[DeadLetter] = []
        self.facts: list[Draft] = []

    @property
    def progress(self) -> RuleProgress:
        return PROGRESS.validate_json(self._progress_text)

    @property
    def states(self) -> dict[str, ScopeState]:
        return {key: STATE.validate_json(text) for key, text in self._states.items()}

    def advance(self, log: Sequence[Envelope]) -> Evaluation:
        """Evaluates the next envelopes in one batch, and saves what core returns."""
        rule, progress, batch = Rule.model_validate_json(self._rule_text), self.progress, Batch(log)
        wanted = needs(rule, progress, batch, predicates=PREDICATES)
        through = wanted.due_through
        loaded = {
            key: state
            for key, state in self.states.items()
            if self._shows_everything
            or key in wanted.scope_keys
            or (through is not None and state.due is not None and state.due <= through)
        }
        evaluation = evaluate(
            rule, progress, loaded, batch, predicates=PREDICATES, max_depth=self._max_depth, needs=wanted
        )
        self._save(evaluation)
        return evaluation

    def reset(self, head_seq: int, **options: Any) -> Draft:
        """Starts the rule's next generation, with no state."""
        begun = reset(Rule.model_validate_json(self._rule_text), self.progress, head_seq=head_seq, **options)
        self._progress_text = PROGRESS.dump_json(begun.progress)
        self._states.clear()
        return begun.fact

    def forget(self, clock: datetime) -> None:
        """Drops every state that is worth nothing at this time."""
        for key, state in self.states.items():
            if state.expires is not None and state.expires <= clock:
                del self._states[key]

    def _save(self, evaluation: Evaluation) -> None:
        assert not evaluation.states.keys() & evaluation.dropped
        self._progress_text = PROGRESS.dump_json(evaluation.progress)
        self._states.update((key, STATE.dump_json(state)) for key, state in evaluation.states.items())
        for key in evaluation.dropped:
            self._states.pop(key, None)
        if self._forget():
            self.forget(evaluation.clock)
        self.firings += evaluation.firings
        self.errors += evaluation.errors
        self.facts += evaluation.facts
