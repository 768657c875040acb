from typing import Any, Final

import pytest
from pydantic import TypeAdapter, ValidationError

from reflexr.core.commands import (
    MAX_BATCH,
    ArchiveRule,
    CancelRun,
    Command,
    GiveFeedback,
    InstallRule,
    Publish,
    PublishMany,
    ReplayRule,
    ResumeRun,
    RetryRun,
    SkipRun,
    UpdateRule,
)
from reflexr.core.envelopes import MAX_SEQ

from .json_values import NOT_JSON, nested

COMMAND: TypeAdapter[Command] = TypeAdapter(Command)
RULE: Final = {
    "name": "chat:spike",
    "when": {"filter": {"kind": "on", "types": ["ops:error"]}},
    "then": {"action": "page"},
}
TARGET: Final = {"kind": "firing", "firing_id": "fir_1"}
EXAMPLES: Final[list[tuple[type, dict[str, Any]]]] = [
    (Publish, {"type": "publish", "event": {"type": "ops:error", "n": 1}, "id": "e", "correlation_id": "c"}),
    (
        PublishMany,
        {
            "type": "publish_many",
            "events": [{"event": {"type": "ops:error"}, "id": "e"}, {"event": {"type": "ops:error"}}],
            "correlation_id": "c",
        },
    ),
    (GiveFeedback, {"type": "give_feedback", "feedback_type": "triage", "target": TARGET, "value": {"ok": True}}),
    (RetryRun, {"type": "retry_run", "run_id": "fir_1"}),
    (SkipRun, {"type": "skip_run", "run_id": "fir_1", "reason": "old"}),
    (CancelRun, {"type": "cancel_run", "run_id": "fir_1", "reason": "old"}),
    (ResumeRun, {"type": "resume_run", "run_id": "fir_1", "answer": {"ok": [True, None]}, "attempt": 2}),
    (ReplayRule, {"type": "replay_rule", "rule": "ops:spike", "from_seq": 3, "mode": "refire"}),
    (InstallRule, {"type": "install_rule", "rule": RULE, "provenance": {"thread": "t"}}),
    (UpdateRule, {"type": "update_rule", "rule": RULE, "expected_version": 2, "provenance": {"thread": "t"}}),
    (ArchiveRule, {"type": "archive_rule", "rule": "chat:spike", "expected_version": 2, "reason": "old"}),
]
OPTIONAL: Final = {"id", "correlation_id", "reason", "provenance", "expected_version", "answer", "attempt"}


@pytest.mark.parametrize(("command_class", "wire"), EXAMPLES, ids=lambda value: str(value)[:40])
def test_a_command_is_read_by_its_type_and_written_as_it_was(command_class: type, wire: dict[str, Any]) -> None:
    command = COMMAND.validate_python(wire)

    assert type(command) is command_class
    assert COMMAND.validate_json(COMMAND.dump_json(command)) == command
    assert COMMAND.dump_python(command, mode="json", exclude_unset=True) == {**wire}


@pytest.mark.parametrize("wire", [wire for _, wire in EXAMPLES], ids=lambda wire: wire["type"])
def test_a_command_refuses_a_field_it_does_not_have(wire: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        COMMAND.validate_python({**wire, "extra": 1})


@pytest.mark.parametrize(
    ("wire", "field"),
    [(wire, field) for _, wire in EXAMPLES for field in wire],
    ids=lambda value: value if isinstance(value, str) else value["type"],
)
def test_a_command_needs_every_field_but_the_optional_ones(wire: dict[str, Any], field: str) -> None:
    without = {name: value for name, value in wire.items() if name != field}

    if field in OPTIONAL:
        assert COMMAND.validate_python(without).type == wire["type"]
    else:
        with pytest.raises(ValidationError, match=r"Field required|Unable to extract tag"):
            COMMAND.validate_python(without)


@pytest.mark.parametrize("event", [{}, {"type": 1}, {"type": None}, [], "ops:error", None])
def test_an_event_is_an_object_with_a_type(event: object) -> None:
    with pytest.raises(ValidationError, match="event"):
        COMMAND.validate_python({"type": "publish", "event": event})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_an_event_with_a_number_that_json_does_not_have_is_refused(number: str) -> None:
    with pytest.raises(ValidationError, match=r"n is (nan|inf|-inf), which JSON cannot hold"):
        COMMAND.validate_json(f'{{"type": "publish", "event": {{"type": "ops:error", "n": {number}}}}}')


def test_an_event_nests_no_deeper_than_a_log_can_hold() -> None:
    deep = "[" * 99 + "]" * 99

    assert COMMAND.validate_json(f'{{"type": "publish", "event": {{"type": "ops:error", "n": {deep[1:-1]}}}}}')
    with pytest.raises(ValidationError, match="nests deeper"):
        COMMAND.validate_json(f'{{"type": "publish", "event": {{"type": "ops:error", "n": {deep}}}}}')


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "", "yes", [], {}, {"type": 1}, nested(98)], ids=repr)
def test_a_run_is_answered_with_any_json_value(value: object) -> None:
    command = COMMAND.validate_python({"type": "resume_run", "run_id": "fir_1", "answer": value})

    assert isinstance(command, ResumeRun)
    assert (command.answer, command.attempt) == (value, None)
    assert COMMAND.validate_json(COMMAND.dump_json(command)) == command


def test_a_run_is_answered_with_nothing_where_there_is_nothing_to_say() -> None:
    assert COMMAND.validate_python({"type": "resume_run", "run_id": "fir_1"}) == ResumeRun(run_id="fir_1", answer=None)


@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
def test_an_answer_that_json_cannot_hold_is_refused_with_its_place(value: object, problem: str) -> None:
    with pytest.raises(ValidationError, match=rf"answer\n.*({problem})"):
        COMMAND.validate_python({"type": "resume_run", "run_id": "fir_1", "answer": {"x": value}})


@pytest.mark.parametrize("text", ["NaN", "-Infinity", '"\\ud800"', "[" * 99 + "]" * 99, "[" * 10_000, "1" * 4301])
def test_the_text_of_an_answer_that_no_run_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        COMMAND.validate_json(f'{{"type": "resume_run", "run_id": "fir_1", "answer": {text}}}')


@pytest.mark.parametrize("attempt", [0, -1, 1.5, "1", True, 2**63])
def test_an_attempt_that_no_run_can_have_had_is_refused(attempt: object) -> None:
    with pytest.raises(ValidationError, match="attempt"):
        COMMAND.validate_python({"type": "resume_run", "run_id": "fir_1", "attempt": attempt})


@pytest.mark.parametrize("event_id", ["", "a\x00", "a" * 256, 7])
def test_an_id_that_no_log_could_keep_is_refused(event_id: object) -> None:
    with pytest.raises(ValidationError, match="An id is 1 to 255 characters"):
        COMMAND.validate_python({"type": "publish", "event": {"type": "ops:error"}, "id": event_id})


@pytest.mark.parametrize("seq", [0, 1, MAX_SEQ, 7.0])
def test_a_rule_is_replayed_from_any_place_of_a_log(seq: float) -> None:
    command = COMMAND.validate_python({"type": "replay_rule", "rule": "ops:spike", "from_seq": seq, "mode": "rebuild"})

    assert isinstance(command, ReplayRule)
    assert command.from_seq == seq


@pytest.mark.parametrize("seq", [-1, MAX_SEQ + 1, "3", True, 1.5, None])
def test_a_place_that_no_log_can_have_is_refused(seq: object) -> None:
    with pytest.raises(ValidationError, match="from_seq"):
        COMMAND.validate_python({"type": "replay_rule", "rule": "ops:spike", "from_seq": seq, "mode": "rebuild"})


@pytest.mark.parametrize("version", [0, -1, "1", True])
def test_a_version_that_no_rule_can_have_is_refused(version: object) -> None:
    with pytest.raises(ValidationError, match="expected_version"):
        COMMAND.validate_python({"type": "archive_rule", "rule": "chat:spike", "expected_version": version})


def test_a_rule_that_is_none_is_refused_with_the_place_of_what_is_wrong() -> None:
    with pytest.raises(ValidationError, match=r"rule\.when\.filter"):
        COMMAND.validate_python({"type": "install_rule", "rule": {**RULE, "when": {"filter": {"kind": "maybe"}}}})


def test_a_command_of_no_type_is_refused_with_the_types_there_are() -> None:
    with pytest.raises(ValidationError, match=r"publish.*archive_rule"):
        COMMAND.validate_python({"type": "explode"})


def test_a_batch_has_at_most_so_many_events() -> None:
    event = {"event": {"type": "ops:error"}}

    assert COMMAND.validate_python({"type": "publish_many", "events": [event] * MAX_BATCH})
    with pytest.raises(ValidationError, match="at most 10000 items"):
        COMMAND.validate_python({"type": "publish_many", "events": [event] * (MAX_BATCH + 1)})
