"""Envelopes and runs, as a workspace would hold them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from oncall.events import LoginAccepted, LoginFailed
from oncall.timeline import Decision
from reflexr.core import (
    DEFAULT_REGISTRY,
    Batch,
    Envelope,
    Event,
    Rule,
    Run,
    SourceActor,
    begin,
    create_run,
    evaluate,
)

MIDNIGHT = datetime(2025, 3, 3, tzinfo=UTC)
ATTACKER = "192.0.2.1"
OTHER = "198.51.100.2"


def at(seconds: float) -> datetime:
    return MIDNIGHT + timedelta(seconds=seconds)


def failure(address: str = ATTACKER, user: str = "root", *, exists: bool = True) -> LoginFailed:
    return LoginFailed(address=address, port=22, user=user, method="password", host="gate", user_exists=exists)


def acceptance(address: str = ATTACKER, user: str = "root") -> LoginAccepted:
    return LoginAccepted(address=address, port=22, user=user, method="password", host="gate")


def log(*events: tuple[float, Event]) -> list[Envelope]:
    """The log in which these events happened so many seconds after midnight."""
    return [
        Envelope(
            seq=seq,
            id=f"evt_{seq}",
            ts=at(seconds),
            workspace_id="ssh",
            actor=SourceActor(name="sshd"),
            correlation_id=f"evt_{seq}",
            event=event.payload(),
        ).bind(DEFAULT_REGISTRY)
        for seq, (seconds, event) in enumerate(events, start=1)
    ]


def fire(rule: Rule, envelopes: Sequence[Envelope]) -> list[Run]:
    """What a rule decides about a log."""
    return [create_run(firing) for firing in evaluate(rule, begin(rule, 0), {}, Batch(envelopes)).firings]


def decide(rule: Rule, envelopes: Sequence[Envelope]) -> list[Decision]:
    by_seq = {envelope.seq: envelope for envelope in envelopes}
    return [Decision(rule, run, tuple(by_seq[seq] for seq in run.matched)) for run in fire(rule, envelopes)]
