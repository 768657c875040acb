from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reflexr.core.decisions import DeadLetter, Firing
from reflexr.core.envelopes import Draft, Envelope
from reflexr.core.evaluation import Batch, RuleSet, begin, evaluate, needs
from reflexr.core.rules import Rule
from reflexr.core.states import RuleProgress

from .hosts import PREDICATES, STATE, Host, envelope, envelopes
from .oracle import Decision, Errored, Fired, decide
from .strategies import RULE, Document, logs, rules

MAX_DEPTH = 3


@given(rules, logs, st.integers(0, 6), st.integers(1, 3))
def test_a_rule_decides_what_the_oracle_says(
    document: Document, entries: list[Document], silent_through: int, generation: int
) -> None:
    rule, log = Rule.model_validate(document), envelopes(entries)
    progress = RuleProgress(rule.name, generation, 0, rule.definition(), silent_through)
    host = Host(rule, progress, max_depth=MAX_DEPTH)

    host.advance(log)

    verdict = decide(rule, log, PREDICATES, generation=generation, silent_through=silent_through, max_depth=MAX_DEPTH)
    assert_decided(host, verdict.decisions)
    assert host.states.keys() == verdict.live_scopes


@given(rules, logs, st.data())
def test_batches_and_forgetting_change_no_decision(
    document: Document, entries: list[Document], data: st.DataObject
) -> None:
    rule, log = Rule.model_validate(document), envelopes(entries)
    host = Host(rule, begin(rule, 0), max_depth=MAX_DEPTH, forget=lambda: data.draw(st.booleans(), "forgets"))

    for batch in drawn_batches(log, data):
        host.advance(batch)
    host.forget(log[-1].ts)

    verdict = decide(rule, log, PREDICATES, max_depth=MAX_DEPTH)
    assert_decided(host, verdict.decisions)
    assert host.states.keys() == verdict.live_scopes


@given(rules, logs, st.data())
def test_no_state_counts_but_those_that_are_asked_for(
    document: Document, entries: list[Document], data: st.DataObject
) -> None:
    rule, log = Rule.model_validate(document), envelopes(entries)
    thrifty = Host(rule, begin(rule, 0), max_depth=MAX_DEPTH)
    lavish = Host(rule, begin(rule, 0), max_depth=MAX_DEPTH, shows_everything=True)

    for batch in drawn_batches(log, data):
        assert lavish.advance(batch) == thrifty.advance(batch)


@given(rules, logs)
def test_evaluation_finds_out_by_itself_what_it_needs(document: Document, entries: list[Document]) -> None:
    rule, batch = Rule.model_validate(document), Batch(envelopes(entries))
    progress = begin(rule, 0)
    wanted = needs(rule, progress, batch, predicates=PREDICATES)

    told = evaluate(rule, progress, {}, batch, predicates=PREDICATES, needs=wanted)

    assert evaluate(rule, progress, {}, batch, predicates=PREDICATES) == told


@given(rules, logs, st.data())
def test_a_scope_remembers_no_more_than_its_stages_ask(
    document: Document, entries: list[Document], data: st.DataObject
) -> None:
    rule = Rule.model_validate(document)
    host = Host(rule, begin(rule, 0), max_depth=MAX_DEPTH)
    pattern = document["when"]["pattern"]
    marks = {"count": pattern.get("at_least", 0), "sequence": len(pattern.get("steps", ()))}.get(pattern["kind"], 1)

    for batch in drawn_batches(envelopes(entries), data):
        host.advance(batch)
        for state in host.states.values():
            assert len(state.marks) < marks
            assert len(state.fired) <= document["when"].get("throttle", {}).get("at_most", 0)


@given(rules, logs, st.data())
def test_a_rule_that_was_rebuilt_goes_on_as_if_nothing_had_been(
    document: Document, entries: list[Document], data: st.DataObject
) -> None:
    rule, log = Rule.model_validate(document), envelopes(entries)
    head = data.draw(st.integers(1, len(log)), "head")
    steady, rebuilt = (Host(rule, begin(rule, 0), max_depth=MAX_DEPTH) for _ in range(2))
    steady.advance(log)
    rebuilt.advance(log[:head])
    decided_before = len(rebuilt.facts)

    rebuilt.reset(head, from_seq=1, mode="rebuild")
    for batch in drawn_batches(log, data):
        rebuilt.advance(batch)

    assert list(map(places, rebuilt.firings)) == list(map(places, steady.firings))
    assert list(map(as_errored, rebuilt.errors)) == list(map(as_errored, steady.errors))
    assert rebuilt.facts[:decided_before] == steady.facts[:decided_before]
    assert rebuilt.states.keys() == steady.states.keys()


@given(rules, logs, st.data())
def test_a_refire_decides_the_same_again_under_new_ids(
    document: Document, entries: list[Document], data: st.DataObject
) -> None:
    rule, log = Rule.model_validate(document), envelopes(entries)
    first = Host(rule, begin(rule, 0), max_depth=MAX_DEPTH)
    first.advance(log)
    again = Host(rule, first.progress, max_depth=MAX_DEPTH)

    again.reset(len(log), from_seq=1, mode="refire")
    for batch in drawn_batches(log, data):
        again.advance(batch)

    assert_decided(again, decide(rule, log, PREDICATES, generation=2, max_depth=MAX_DEPTH).decisions)
    assert list(map(places, again.firings)) == list(map(places, first.firings))
    assert not {firing.id for firing in again.firings} & {firing.id for firing in first.firings}


@given(rules, logs, st.data())
def test_a_log_that_holds_its_own_facts_gives_them_again(
    document: Document, entries: list[Document], data: st.DataObject
) -> None:
    rule = Rule.model_validate(document)
    host = Host(rule, begin(rule, 0), max_depth=MAX_DEPTH)
    log: list[Envelope] = []

    for entry in entries:
        log.append(envelope(len(log) + 1, entry))
        if data.draw(st.booleans(), "evaluates"):
            log += appended(host.advance(log[host.progress.cursor :]).facts, log[-1])
    while host.progress.cursor < len(log):
        log += appended(host.advance(log[host.progress.cursor :]).facts, log[-1])

    fresh = Host(rule, begin(rule, 0), max_depth=MAX_DEPTH)
    fresh.advance(log)
    recorded = {fact.id for fact in host.facts}
    assert fresh.facts == host.facts
    assert [fact.id for fact in fresh.facts] == [envelope.id for envelope in log if envelope.id in recorded]


@given(rules, logs, st.data())
def test_what_a_rule_does_not_admit_only_moves_its_clock(
    document: Document, entries: list[Document], data: st.DataObject
) -> None:
    known = {"kind": "on", "types": ["ops:a", "ops:b", "ops:c", "reflexr:rule_fired"]}
    document["when"]["filter"] = {"kind": "all", "of": [known, document["when"]["filter"]]}
    rule = Rule.model_validate(document)
    own_fact = {"type": "reflexr:rule_fired", "event": {"rule": RULE}}
    noise = st.lists(st.sampled_from([{"type": "ops:noise"}, own_fact]), max_size=2)
    noisy: list[Document] = []
    place: dict[int, int] = {}
    for seq, entry in enumerate(entries, start=1):
        noisy.append(entry)
        place[len(noisy)] = seq
        noisy += [{**each, "at": entry["at"]} for each in data.draw(noise, "noise")]

    quiet_host, noisy_host = (Host(rule, begin(rule, 0), max_depth=MAX_DEPTH) for _ in range(2))
    quiet_host.advance(envelopes(entries))
    noisy_host.advance(envelopes(noisy))

    assert [
        (place[firing.seq], firing.scope_key, tuple(place[seq] for seq in firing.matched))
        for firing in noisy_host.firings
    ] == list(map(places, quiet_host.firings))
    assert [(place[error.seq], error.kind) for error in noisy_host.errors] == [
        (error.seq, error.kind) for error in quiet_host.errors
    ]


@given(st.lists(rules, min_size=1, max_size=4), logs)
def test_a_rule_that_a_batch_does_not_touch_decides_and_remembers_nothing(
    documents: list[Document], entries: list[Document]
) -> None:
    all_rules = [Rule.model_validate(document) for document in documents]
    batch = Batch(envelopes(entries))

    touched = {id(rule) for rule in RuleSet(all_rules).touched(batch)}

    for rule in all_rules:
        if id(rule) not in touched:
            evaluation = evaluate(rule, begin(rule, 0), {}, batch, predicates=PREDICATES)
            assert [*evaluation.facts, *evaluation.errors, *evaluation.states, *evaluation.dropped] == []
            assert evaluation.progress.cursor == batch.last_seq


@given(rules, logs)
def test_state_is_the_same_after_json(document: Document, entries: list[Document]) -> None:
    rule = Rule.model_validate(document)

    evaluation = evaluate(rule, begin(rule, 0), {}, envelopes(entries), predicates=PREDICATES)

    for state in evaluation.states.values():
        assert STATE.validate_json(STATE.dump_json(state)) == state


def drawn_batches(log: Sequence[Envelope], data: st.DataObject) -> list[Sequence[Envelope]]:
    cuts = data.draw(st.sets(st.integers(1, len(log))), "cuts") | {len(log)}
    starts = [0, *sorted(cuts)]
    return [log[start:end] for start, end in pairwise(starts)]


def assert_decided(host: Host, decisions: Sequence[Decision]) -> None:
    assert list(map(as_fired, host.firings)) == [each for each in decisions if isinstance(each, Fired)]
    errors = [each for each in decisions if isinstance(each, Errored)]
    assert list(map(as_errored, host.errors)) == [(each.seq, each.scope_key, each.kind) for each in errors]
    assert list(map(as_fact, host.facts)) == [
        ("reflexr:rule_fired", each.id) if isinstance(each, Fired) else ("reflexr:rule_errored", each.seq)
        for each in decisions
        if isinstance(each, Fired) or each.is_fact
    ]


def places(firing: Firing) -> tuple[int, str, tuple[int, ...]]:
    return firing.seq, firing.scope_key, firing.matched


def as_fired(firing: Firing) -> Fired:
    return Fired(firing.seq, firing.scope_key, firing.matched, firing.id, firing.correlation_id, firing.depth)


def as_errored(error: DeadLetter) -> tuple[int, str | None, str]:
    return error.seq, error.scope_key, error.kind


def as_fact(fact: Draft) -> tuple[str, Any]:
    payload = fact.payload
    return payload["type"], payload["firing_id"] if payload["type"] == "reflexr:rule_fired" else payload["seq"]


def appended(facts: Sequence[Draft], last: Envelope) -> list[Envelope]:
    """The envelopes of facts that are appended behind the last one of a log, at its time."""
    return [
        Envelope(
            seq=seq,
            id=fact.id,
            ts=last.ts,
            workspace_id=last.workspace_id,
            actor=fact.actor,
            causation=fact.causation,
            correlation_id=fact.correlation_id,
            event=fact.payload,
        )
        for seq, fact in enumerate(facts, start=last.seq + 1)
    ]
