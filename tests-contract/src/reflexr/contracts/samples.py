"""The envelopes, rules and runs that contracts put into an adapter, each valid and as plain as its test allows."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from pydantic import JsonValue

from reflexr.core import (
    Armed,
    Causation,
    DeadLetter,
    Draft,
    Needs,
    Rule,
    RuleArchived,
    RuleInstalled,
    RuleProgress,
    Run,
    RunStatus,
    ScopeState,
    StoredRule,
    SystemActor,
    UserActor,
    Waiting,
    canonical,
)
from reflexr.workspace import RunScope, WorkspaceRef

WORKSPACE: Final = WorkspaceRef("contract-tenant", "contract-workspace")
"""The workspace of most tests."""

ALPHA: Final = "contract:alpha"
BETA: Final = "contract:beta"
GAMMA: Final = "contract:gamma"
"""Rules' names, and event types too."""

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""What the clock of a test shows first."""

SECOND: Final = timedelta(seconds=1)
HOUR: Final = timedelta(hours=1)


def at(seconds: float) -> datetime:
    """Returns the time so many seconds after the start."""
    return START + timedelta(seconds=seconds)


def draft(event_id: str, event_type: str = ALPHA, **payload: Any) -> Draft:
    """Returns what is to be appended, under an id."""
    return Draft(
        id=event_id, payload={"type": event_type, **payload}, actor=UserActor(id="someone"), correlation_id=event_id
    )


def drafts(count: int, prefix: str = "e", event_type: str = ALPHA) -> list[Draft]:
    """Returns so many drafts of one type, with the ids `e1`, `e2` and so on."""
    return [draft(f"{prefix}{number}", event_type) for number in range(1, count + 1)]


def installed(event_id: str, rule: str, version: int) -> Draft:
    """Returns the fact that a version of a stored rule was installed."""
    fact = RuleInstalled(rule=rule, version=version, spec={"name": rule}, provenance={"version": version})
    return Draft(id=event_id, payload=fact.payload(), actor=SystemActor(name="contract"), correlation_id=event_id)


def archived(event_id: str, rule: str, version: int) -> Draft:
    """Returns the fact that a stored rule was archived."""
    fact = RuleArchived(rule=rule, version=version, reason=None, cancelled=0)
    return Draft(id=event_id, payload=fact.payload(), actor=SystemActor(name="contract"), correlation_id=event_id)


def causation(run_id: str = "fir_cause") -> Causation:
    """Returns a cause."""
    return Causation(firing_id=run_id, run_id=run_id, depth=2)


def progress(rule: str, cursor: int = 0, *, generation: int = 1, definition: str = "d1") -> RuleProgress:
    """Returns how far a rule has come."""
    return RuleProgress(rule, generation, cursor, definition)


def armed(due: datetime, seq: int = 1) -> ScopeState:
    """Returns a state that waits until a time, and is worth something until then and after."""
    return ScopeState(armed=Armed(seq=seq, correlation_id="chain", depth=1, due=due))


def marked(expires: datetime | None, seq: int = 1) -> ScopeState:
    """Returns a state that waits for nothing, and is worth nothing from a time on."""
    return ScopeState(marks=((seq, START),), expires=expires)


def needs(*keys: str, through: datetime | None = None) -> Needs:
    """Returns the need for the states with these keys, and for those that are due by a time."""
    return Needs(frozenset(keys), through, ())


def run(
    run_id: str,
    rule: str = ALPHA,
    status: RunStatus = "pending",
    *,
    scope: JsonValue = None,
    seq: int = 1,
    generation: int = 1,
    fired_at: datetime = START,
    retry_at: datetime | None = None,
    output: JsonValue = None,
    until: datetime | None = None,
    blocks: bool = False,
) -> Run:
    """Returns a run of a rule in the scope of one value, in a status that it could have come to."""
    attempted = status in {"running", "retrying", "paused", "succeeded", "dead_lettered"}
    ended = status in {"succeeded", "dead_lettered", "cancelled", "skipped"}
    return Run(
        id=run_id,
        rule=rule,
        generation=generation,
        scope={"value": scope},
        scope_key=scope_key(scope),
        fired_seq=seq,
        fired_at=fired_at,
        matched=(seq,),
        correlation_id="chain",
        depth=1,
        status=status,
        attempt=int(attempted),
        next_attempt_at=retry_at,
        error="no luck" if status in {"retrying", "dead_lettered"} else None,
        output=output,
        waiting=Waiting(request="go on?", since=fired_at, until=until, blocks=blocks) if status == "paused" else None,
        started_at=fired_at if attempted else None,
        finished_at=fired_at if ended else None,
    )


def scope_key(scope: JsonValue = None) -> str:
    """Returns the key of the scope of one value."""
    return canonical([scope])


def run_scope(rule: str = ALPHA, scope: JsonValue = None) -> RunScope:
    """Returns the scope of the runs that `run` makes."""
    return RunScope(rule, scope_key(scope))


def dead_letter(rule: str, seq: int, error: str = "no such key") -> DeadLetter:
    """Returns the record of an envelope that a rule could not decide on."""
    return DeadLetter(
        rule=rule, generation=1, seq=seq, scope_key=None, ts=at(seq), kind="predicate_failed", error=error
    )


def rule(
    name: str,
    *,
    enabled: bool = True,
    ordering: Literal["scope", "none"] = "scope",
    on_dead_letter: Literal["continue", "block"] = "continue",
    on_pause: Literal["continue", "block"] = "continue",
    params: Mapping[str, JsonValue] | None = None,
) -> Rule:
    """Returns a rule."""
    return Rule.model_validate(
        {
            "name": name,
            "when": {"filter": {"kind": "on", "types": [ALPHA]}},
            "then": {"action": "act", "params": dict(params or {})},
            "enabled": enabled,
            "ordering": ordering,
            "on_dead_letter": on_dead_letter,
            "on_pause": on_pause,
        }
    )


def stored(
    of: Rule, version: int = 1, *, is_active: bool = True, provenance: Mapping[str, JsonValue] | None = None
) -> StoredRule:
    """Returns a version of a stored rule."""
    return StoredRule(
        rule=of, version=version, status="active" if is_active else "archived", provenance=dict(provenance or {})
    )


def ids(found: Iterable[Run]) -> list[str]:
    """Returns the ids of runs, in their order."""
    return [one.id for one in found]


def definitions(*rules: str, definition: str = "d1") -> dict[str, str]:
    """Returns rules with the definition that `progress` gives them."""
    return dict.fromkeys(rules, definition)


def numbered(count: int, prefix: str) -> Collection[str]:
    """Returns so many names."""
    return [f"{prefix}{number}" for number in range(count)]
