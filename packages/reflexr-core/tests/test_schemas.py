import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol, cast

import pytest
from hypothesis import HealthCheck, event, given, settings
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from pydantic_core import SchemaError

from reflexr.core.durations import MAX_DURATION, parse_duration
from reflexr.core.filters import search
from reflexr.core.frames import (
    CommandRejected,
    CommandSucceeded,
    DeltaFrame,
    ErrorFrame,
    EventFrame,
    ReplayComplete,
    ServerFrame,
    Welcome,
    read_client_frame,
    read_server_frame,
    write_frame,
)
from reflexr.core.outcomes import Published, PublishedMany, Recorded, RuleReplayed, RuleVersion, RunChanged
from reflexr.core.rejections import (
    DepthExceeded,
    Forbidden,
    InvalidState,
    NotFound,
    UnsupportedProtocol,
    ValidationFailed,
)
from reflexr.core.rules import Rule
from reflexr.core.runs import answer, cancel, pause, start
from reflexr.core.schemas import JsonSchema, frames_schema, rule_schema
from reflexr.core.states import RuleProgress

from .documents import broken, client_frames, nested, rules
from .test_frames import DELTA, ENVELOPE
from .test_runs import ADA, NOW, a_run

PAUSED: Final = pause(
    start(a_run(), now=NOW).run, attempt=1, now=NOW, request={"delete": nested(97)}, until=NOW, step="ask", blocks=True
).run
SCHEMAS: Final = Path(__file__).parent.parent / "schemas"


class Validator(Protocol):
    """What is used of jsonschema's validators, whose own types are not known to the last."""

    def is_valid(self, instance: Any) -> bool: ...

    def iter_errors(self, instance: Any) -> Iterable[object]: ...


def validator(schema: Any) -> Validator:
    return cast("Validator", Draft202012Validator(schema))


RULE: Final = validator(rule_schema())
CLIENT: Final = validator({**frames_schema(), "oneOf": [{"$ref": "#/$defs/ClientFrame"}]})
SERVER: Final = validator({**frames_schema(), "oneOf": [{"$ref": "#/$defs/ServerFrame"}]})

breadth: Final = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.mark.parametrize("name", ["rule", "frames"])
def test_the_schemas_in_the_repository_are_those_of_the_models(name: str) -> None:
    schema = rule_schema() if name == "rule" else frames_schema()

    assert json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8")) == schema


@pytest.mark.parametrize("schema", [rule_schema(), frames_schema()], ids=["rule", "frames"])
def test_a_schema_is_one_of_json_schema_2020_12_and_nothing_else(schema: JsonSchema) -> None:
    Draft202012Validator.check_schema(schema)

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert str(schema["$id"]).startswith("urn:reflexr:v1:")
    assert "discriminator" not in json.dumps(schema)


def test_a_schema_says_in_words_what_each_field_is() -> None:
    schema: Any = rule_schema()

    assert schema["properties"]["timeout"]["description"] == "How long one attempt may take; `null` for any time."
    assert all("description" in field for field in schema["properties"].values())
    assert "Attributes:" not in json.dumps(schema)


def test_a_schema_is_generated_the_same_each_time() -> None:
    assert json.dumps(rule_schema()) == json.dumps(rule_schema())
    assert json.dumps(frames_schema()) == json.dumps(frames_schema())


def accepts_rule(document: Any) -> bool:
    try:
        Rule.model_validate_json(json.dumps(document))
    except ValidationError:
        return False
    return True


def accepts_frame(document: Any) -> bool:
    try:
        read_client_frame(json.dumps(document))
    except ValidationFailed:
        return False
    return True


def unsayable(document: Any) -> list[str]:
    """Returns what JSON Schema cannot say of a document, although it keeps a model from accepting it."""
    return [
        what
        for value, levels in walk(document)
        for what, found in {
            "a regular expression that does not compile": uncompilable(value),
            "a number out of a float's range": isinstance(value, int) and abs(value) >= 10**308,
            "a value that nests too deep": levels > 98,
            "a duration whose days have too many digits": isinstance(value, str) and endless(value),
        }.items()
        if found
    ]


def walk(value: Any, levels: int = 0) -> Iterator[tuple[Any, int]]:
    yield value, levels
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = list(cast("dict[str, Any]", value).values())
    elif isinstance(value, list):
        parts = cast("list[Any]", value)
    for part in parts:
        yield from walk(part, levels + 1)


def uncompilable(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    where = cast("dict[str, Any]", value)
    if where.get("op") != "matches" or not isinstance(where.get("value"), str):
        return False
    try:
        search(where["value"])
    except SchemaError:
        return True
    return False


def endless(text: str) -> bool:
    try:
        return parse_duration(text) > MAX_DURATION
    except ValueError:
        return False


@breadth
@given(rules)
def test_a_rule_that_can_be_written_is_accepted_by_its_schema_and_by_the_model(document: Any) -> None:
    assert accepts_rule(document)
    assert RULE.is_valid(document)


@breadth
@given(rules)
def test_a_rule_comes_back_as_it_was_and_its_own_json_is_valid(document: Any) -> None:
    rule = Rule.model_validate_json(json.dumps(document))

    assert Rule.model_validate_json(rule.model_dump_json()) == rule
    assert RULE.is_valid(rule.model_dump(mode="json"))


@breadth
@given(broken(rules))
def test_a_broken_rule_is_refused_by_its_schema_exactly_when_by_the_model(document: Any) -> None:
    agree(document, accepted=accepts_rule(document), valid=RULE.is_valid(document))


@breadth
@given(client_frames)
def test_a_frame_that_can_be_written_is_accepted_by_its_schema_and_by_the_model(document: Any) -> None:
    assert accepts_frame(document)
    assert CLIENT.is_valid(document)


@breadth
@given(broken(client_frames))
def test_a_broken_frame_is_refused_by_its_schema_exactly_when_by_the_model(document: Any) -> None:
    agree(document, accepted=accepts_frame(document), valid=CLIENT.is_valid(document))


def agree(document: Any, *, accepted: bool, valid: bool) -> None:
    event("accepted" if accepted else "refused")
    if valid and not accepted:
        assert unsayable(document), document
    else:
        assert accepted is valid, document


ON: Final[dict[str, Any]] = {"kind": "on", "types": ["ops:error"]}


def a_rule(when: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": "ops:spike", "when": {"filter": ON, **(when or {})}, "then": {"action": "page"}, **fields}


def where(op: Any, value: Any, field: Any = "severity") -> dict[str, Any]:
    return a_rule({"filter": {"kind": "where", "field": field, "op": op, "value": value}})


@pytest.mark.parametrize(
    "document",
    [
        a_rule(),
        a_rule(name="a:" + "b" * 98),
        a_rule(retry={"max_attempts": 3.0, "multiplier": 1}),
        a_rule(description=None, timeout=None),
        a_rule({"dedupe": None, "throttle": None}),
        a_rule(timeout="PT0.5S"),
        a_rule(timeout="P1DT36H"),
        a_rule(timeout="P2W"),
        a_rule(retry={"backoff": "PT0S"}),
        where("eq", None),
        where("lt", "a"),
        where("in", [None]),
        where("matches", "(?i)error"),
        where("exists", value=False),
        where("eq", nested(99)),
        where("eq", 1, field="labels.env"),
    ],
)
def test_a_good_rule_is_accepted_by_both(document: Any) -> None:
    assert accepts_rule(document)
    assert RULE.is_valid(document)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        a_rule(extra=1),
        a_rule(name="ops:spike\n"),
        a_rule(name="spike"),
        a_rule(name="reflexr:mine"),
        a_rule(name="a:" + "b" * 99),
        a_rule(name=None),
        a_rule(then={"action": ""}),
        a_rule(then={"action": "a\x00"}),
        a_rule(then={"action": "page", "params": []}),
        a_rule(then="page"),
        a_rule(scope=["service"]),
        a_rule(scope={"fields": [""]}),
        a_rule(retry={"max_attempts": "3"}),
        a_rule(retry={"max_attempts": True}),
        a_rule(retry={"max_attempts": 0}),
        a_rule(retry={"max_attempts": 1.5}),
        a_rule(retry={"multiplier": "2"}),
        a_rule(retry={"multiplier": True}),
        a_rule(retry={"multiplier": 0.5}),
        a_rule(retry={"backoff": 1}),
        a_rule(timeout="PT0S"),
        a_rule(timeout="PT0.000S"),
        a_rule(timeout="P1Y"),
        a_rule(timeout="P1M"),
        a_rule(timeout="pt1m"),
        a_rule(timeout="PT1M\n"),
        a_rule(timeout="-PT1M"),
        a_rule(timeout="PT\u0663S"),
        a_rule(timeout="P"),
        a_rule(timeout="PT"),
        a_rule(timeout=60),
        a_rule(enabled=1),
        a_rule(enabled="true"),
        a_rule(enabled=None),
        a_rule(ordering="SCOPE"),
        a_rule({"pattern": None}),
        a_rule({"pattern": {"at_least": 3, "within": "PT1M"}}),
        a_rule({"pattern": {"kind": "count", "at_least": 0, "within": "PT1M"}}),
        a_rule({"pattern": {"kind": "sequence", "steps": [ON], "within": "PT1M"}}),
        a_rule({"pattern": {"kind": "each", "within": "PT1M"}}),
        a_rule({"dedupe": {"key": [], "within": "PT1M"}}),
        a_rule({"throttle": {"at_most": 1}}),
        a_rule({"filter": {"types": ["ops:error"]}}),
        a_rule({"filter": {"kind": "on", "types": []}}),
        a_rule({"filter": {"kind": "on", "types": ["error"]}}),
        a_rule({"filter": {"kind": "on", "types": "ops:error"}}),
        a_rule({"filter": {"kind": "all", "of": []}}),
        a_rule({"filter": {"kind": "not"}}),
        where("like", 1),
        where(None, 1),
        where("lt", None),
        where("lt", value=True),
        where("ge", [1]),
        where("in", []),
        where("in", "abc"),
        where("matches", 1),
        where("exists", "yes"),
        where("exists", 1),
        where("eq", 1, field=""),
        where("eq", 1, field="a..b"),
        where("eq", 1, field="a\x00"),
    ],
)
def test_a_bad_rule_is_refused_by_both(document: Any) -> None:
    assert not accepts_rule(document)
    assert not RULE.is_valid(document)


@pytest.mark.parametrize(
    "document",
    [
        where("matches", "("),
        where("matches", "a(?=b)"),
        where("matches", r"(a)\1"),
        a_rule(retry={"multiplier": 10**400}),
        where("eq", nested(101)),
        a_rule(then={"action": "page", "params": {"a": nested(100)}}),
        a_rule(timeout="P99999999DT24H"),
    ],
)
def test_what_json_schema_cannot_say_is_the_models_to_refuse(document: Any) -> None:
    assert RULE.is_valid(document)
    assert not accepts_rule(document)
    assert unsayable(document)


@pytest.mark.parametrize(
    "frame",
    [
        Welcome(workspace_id="prod", head_seq=0, reset=False),
        EventFrame(envelope=ENVELOPE),
        DeltaFrame(delta=DELTA),
        ReplayComplete(up_to_seq=0),
        *(
            CommandSucceeded(command_id="c", outcome=outcome)
            for outcome in (
                Published(seq=1, id="e", duplicate=True),
                PublishedMany(published=(Published(seq=1, id="e", duplicate=True),)),
                PublishedMany(published=()),
                Recorded(seq=1, id="e"),
                RunChanged(run=cancel(start(a_run(), now=NOW, trace_id="t").run, now=NOW, actor=ADA).run),
                RunChanged(run=PAUSED),
                RunChanged(run=answer(PAUSED, now=NOW, value=[nested(97), None], actor=ADA).run),
                RuleReplayed(rule="ops:spike", progress=RuleProgress("ops:spike", 2, 0, "hash", 9)),
                RuleVersion(rule="chat:spike", version=1, seq=1, duplicate=False),
            )
        ),
        *(
            CommandRejected(command_id="c", rejection=refusal.rejection)
            for refusal in (
                NotFound("no"),
                InvalidState("no"),
                ValidationFailed("no", ["a", "b"]),
                Forbidden("no"),
                DepthExceeded(9, 8),
                UnsupportedProtocol("no"),
            )
        ),
        ErrorFrame(rejection=NotFound("no").rejection),
    ],
)
def test_what_a_server_sends_is_as_its_schema_says(frame: ServerFrame) -> None:
    document = json.loads(write_frame(frame))

    assert read_server_frame(json.dumps(document)) == frame
    assert list(SERVER.iter_errors(document)) == []
    assert list(SERVER.iter_errors({**document, "from_a_newer_server": 1})) == []
    assert not CLIENT.is_valid(document)


def test_every_model_of_a_frame_is_told_apart_by_a_field_that_is_required() -> None:
    definitions: Any = frames_schema()["$defs"]
    told_apart = {
        name: model for name, model in definitions.items() if {"type", "kind"} & set(model.get("properties", {}))
    }

    assert len(told_apart) > 30
    assert [name for name, model in told_apart.items() if not {"type", "kind"} & set(model["required"])] == []
    assert "ok" in definitions["CommandRejected"]["required"]
