import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import pytest
from jsonschema import Draft202012Validator, validate
from pydantic import ValidationError

from reflexr.core.canonical import equal
from reflexr.core.decisions import DeadLetter, Firing, firing_id
from reflexr.core.envelopes import Draft, Envelope
from reflexr.core.evaluation import begin
from reflexr.core.rules import Rule
from reflexr.core.states import RuleProgress

from .hosts import PREDICATES, Host, envelopes
from .oracle import Errored, Fired, decide

CONFORMANCE: Final = Path(__file__).parent / "conformance"

type Case = Mapping[str, Any]
type Batches = Callable[[int], Iterator[int]]
"""Gives the sizes of the batches into which so many envelopes are divided."""


def whole(length: int) -> Iterator[int]:
    yield length


def one_by_one(length: int) -> Iterator[int]:
    yield from [1] * length


def random_batches(seed: int) -> Batches:
    def sizes(length: int) -> Iterator[int]:
        random = Random(seed)
        while length:
            size = random.randint(1, min(length, 4))
            yield size
            length -= size

    return sizes


MODES: Final[Mapping[str, Batches]] = {
    "whole": whole,
    "one by one": one_by_one,
    **{f"random {seed}": random_batches(seed) for seed in range(1, 5)},
}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


FILES: Final = sorted((CONFORMANCE / "cases").glob("*.json"))
CASES: Final[Mapping[str, list[Case]]] = {path.stem: read(path)["cases"] for path in FILES}


def cases(*kinds: str) -> pytest.MarkDecorator:
    chosen = [(stem, case) for stem, group in CASES.items() for case in group if case["kind"] in kinds]
    found = {f"{stem}: {case['name']}": case for stem, case in chosen}
    return pytest.mark.parametrize("case", found.values(), ids=found.keys())


modes = pytest.mark.parametrize("batches", MODES.values(), ids=MODES.keys())


@pytest.mark.parametrize("path", FILES, ids=CASES.keys())
def test_a_file_of_cases_is_as_its_schema_says(path: Path) -> None:
    schema = read(CONFORMANCE / "case.schema.json")
    Draft202012Validator.check_schema(schema)

    validate(read(path), schema, Draft202012Validator)


def test_every_case_has_a_name_of_its_own() -> None:
    for stem, group in CASES.items():
        names = [case["name"] for case in group]
        assert len(names) == len(set(names)), stem


def test_every_kind_of_case_is_run() -> None:
    kinds = {case["kind"] for group in CASES.values() for case in group}

    assert kinds == {"evaluation", "filter", "replay", "definition", "validation", "identity"}


@modes
@cases("evaluation", "filter", "replay")
def test_a_rule_decides_as_the_case_says(case: Case, batches: Batches) -> None:
    case = as_evaluation(case)
    log = envelopes(case["log"])
    host = Host(
        Rule.model_validate_json(json.dumps(case["rule"])),
        first_progress(case),
        max_depth=case.get("max_depth", 8),
    )

    for reset in case.get("resets", ()):
        advance(host, log[: reset["at_head"]], batches)
        options = {name: reset[name] for name in ("from_seq", "mode") if name in reset}
        fact = host.reset(reset["at_head"], **options)
        assert {name: fact.payload[name] for name in reset["fact"]} == reset["fact"]
        assert (fact.payload["reason"], fact.payload["generation"]) == (reset["reason"], host.progress.generation)
    advance(host, log, batches)

    expected = case["expect"]["decisions"]
    assert_firings(host.firings, [decision for decision in expected if "matched" in decision])
    assert_errors(host.errors, [decision for decision in expected if "error" in decision])
    assert_facts(host.facts, [decision for decision in expected if decision.get("fact", True)])
    if "live_states" in case["expect"]:
        assert len(host.states) == case["expect"]["live_states"]
    progress = {name: getattr(host.progress, name) for name in case["expect"].get("progress", ())}
    assert progress == case["expect"].get("progress", {})
    assert host.progress.cursor == len(log)


@cases("evaluation", "filter")
def test_the_oracle_decides_as_the_case_says(case: Case) -> None:
    case = as_evaluation(case)
    progress = first_progress(case)

    verdict = decide(
        Rule.model_validate(case["rule"]),
        envelopes(case["log"]),
        PREDICATES,
        generation=progress.generation,
        after_seq=progress.cursor,
        silent_through=progress.silent_through,
        max_depth=case.get("max_depth", 8),
    )

    expected = case["expect"]["decisions"]
    assert [as_decision(found, pinned) for found, pinned in zip(verdict.decisions, expected, strict=True)] == expected
    assert len(verdict.live_scopes) == case["expect"].get("live_states", len(verdict.live_scopes))


@cases("definition")
def test_a_definition_holds_what_the_case_says(case: Case) -> None:
    definition = Rule.model_validate(case["rule"]).definition()
    same = [Rule.model_validate(merged(case["rule"], patch)).definition() for patch in case["same"]]
    different = [Rule.model_validate(merged(case["rule"], patch)).definition() for patch in case["different"]]

    assert set(same) <= {definition}
    assert len({definition, *different}) == 1 + len(different)


@cases("validation")
def test_a_rule_is_accepted_or_refused_as_the_case_says(case: Case) -> None:
    for patch in case["accepted"]:
        rule = Rule.model_validate_json(json.dumps(merged(case["rule"], patch)))
        again = Rule.model_validate_json(rule.model_dump_json())
        assert again == rule
        assert again.definition() == rule.definition()
    texts = [json.dumps(merged(case["rule"], patch)) for patch in case["refused"]]
    for text in [*texts, *case.get("refused_texts", ())]:
        assert is_refused(text), text


@cases("identity")
def test_firing_ids_are_as_the_case_says(case: Case) -> None:
    ids = [firing_id(part["rule"], part["generation"], part["scope_key"], part["seq"]) for part in case["ids"]]

    assert ids == [part["id"] for part in case["ids"]]
    assert len(set(ids)) == len(ids)


def first_progress(case: Case) -> RuleProgress:
    rule = Rule.model_validate(case["rule"])
    begun = begin(rule, case.get("head_seq", 0))
    return RuleProgress(
        rule.name, case.get("generation", 1), begun.cursor, rule.definition(), case.get("silent_through", 0)
    )


def as_evaluation(case: Case) -> Case:
    """The case as it is, or of a table for one filter the evaluation it stands for."""
    if case["kind"] != "filter":
        return case
    events = [(event, True) for event in case["matching"]]
    for index, event in enumerate(case["others"]):
        events.insert(2 * index, (event, False))
    when = {"filter": case["filter"], "pattern": {"kind": "each"}}
    rule = {"name": "ops:table", "when": when, "then": {"action": "act"}}
    log = [
        {"at": 0, "type": event.get("type", "ops:a"), "event": {name: event[name] for name in event if name != "type"}}
        for event, _ in events
    ]
    decisions = [{"seq": seq, "matched": [seq]} for seq, (_, matches) in enumerate(events, start=1) if matches]
    return {"rule": rule, "log": log, "expect": {"decisions": decisions, "live_states": 0}}


def advance(host: Host, log: Sequence[Envelope], batches: Batches) -> None:
    rest = log[host.progress.cursor :]
    for size in batches(len(rest)) if rest else ():
        host.advance(log[host.progress.cursor : host.progress.cursor + size])


def assert_firings(firings: Sequence[Firing], expected: Sequence[Case]) -> None:
    assert [(firing.seq, list(firing.matched)) for firing in firings] == [(e["seq"], e["matched"]) for e in expected]
    for firing, pinned in zip(firings, expected, strict=True):
        for name in pinned.keys() & {"scope_key", "id", "correlation_id", "depth"}:
            assert getattr(firing, name) == pinned[name]
        if "scope" in pinned:
            assert equal(dict(firing.scope), pinned["scope"])


def assert_errors(errors: Sequence[DeadLetter], expected: Sequence[Case]) -> None:
    assert [(error.seq, error.kind) for error in errors] == [(e["seq"], e["error"]) for e in expected]
    for error, pinned in zip(errors, expected, strict=True):
        assert error.scope_key == pinned.get("scope_key", error.scope_key)
        assert error.error


def assert_facts(facts: Sequence[Draft], expected: Sequence[Case]) -> None:
    """Checks that there is one fact for each decision that is recorded, in the order of the decisions."""
    payloads = [fact.payload for fact in facts]
    assert [payload.get("matched", payload.get("seq")) for payload in payloads] == [
        pinned.get("matched", pinned["seq"]) for pinned in expected
    ]
    assert [payload["type"] for payload in payloads] == [
        "reflexr:rule_fired" if "matched" in pinned else "reflexr:rule_errored" for pinned in expected
    ]
    assert len({fact.id for fact in facts}) == len(facts)


def as_decision(decision: Fired | Errored, pinned: Case) -> Case:
    """What the oracle decided, with the fields that the case pins."""
    if isinstance(decision, Errored):
        found = {"seq": decision.seq, "error": decision.kind, "scope_key": decision.scope_key, "fact": decision.is_fact}
    else:
        found = {
            "seq": decision.seq,
            "matched": list(decision.matched),
            "scope": pinned.get("scope"),
            "scope_key": decision.scope_key,
            "id": decision.id,
            "correlation_id": decision.correlation_id,
            "depth": decision.depth,
        }
    return {name: value for name, value in found.items() if name in pinned}


def is_refused(text: str) -> bool:
    try:
        Rule.model_validate_json(text)
    except ValidationError:
        return True
    return False


def merged(document: Case, patch: Case) -> Case:
    """A JSON merge patch, as RFC 7396 defines it."""
    result = dict(document)
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        elif isinstance(change, dict):
            inner = result.get(name)
            result[name] = merged(cast("Case", inner) if isinstance(inner, dict) else {}, cast("Case", change))
        else:
            result[name] = change
    return result
