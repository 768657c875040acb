import json
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qsl

import httpx
import pytest

from reflexr.client import NewEvent, RemoteWorkspace, RuleDescription, RuleStatus, ScheduleStatus
from reflexr.core import (
    DeadLetter,
    Event,
    EventRegistry,
    Feedback,
    NotFound,
    Published,
    Recorded,
    Rule,
    RuleProgress,
    RuleVersion,
    Run,
    RunTarget,
    UnknownEvent,
    ValidationFailed,
)

from .answering import Answering, answer, published, result
from .logs import envelope

REGISTRY = EventRegistry()


class WorkspaceTestEvent(Event, abstract=True, event_namespace="clienttests", registry=REGISTRY):
    pass


class Alarm(WorkspaceTestEvent):
    service: str
    load: float = 0.5


class Verdict(Feedback, name="clienttests.verdict", targets={"run"}):
    correct: bool
    score: float = 1.0


def rule(name: str = "ops:spike") -> Rule:
    return Rule.model_validate(
        {
            "name": name,
            "when": {"filter": {"kind": "on", "types": ["clienttests:alarm"]}},
            "then": {"action": "triage"},
            "timeout": "PT5M",
        }
    )


RUN: Final = {
    "id": "fir_1",
    "rule": "ops:spike",
    "generation": 1,
    "scope": {"service": "auth"},
    "scope_key": '["auth"]',
    "fired_seq": 3,
    "fired_at": "2026-01-01T00:00:00Z",
    "matched": [1, 2, 3],
    "correlation_id": "e-3",
    "depth": 1,
    "status": "pending",
    "of_a_newer_server": 1,
}
PROGRESS: Final = {"rule": "ops:spike", "generation": 2, "cursor": 0, "definition": "d", "of_a_newer_server": 1}
VERSION: Final = {"rule": "ops:spike", "version": 2, "seq": 9, "duplicate": False, "of_a_newer_server": 1}
NEWER_RULE: Final = {**json.loads(rule().model_dump_json()), "of_a_newer_server": 1}
STATUS: Final = {
    "rule": "ops:spike",
    "origin": "code",
    "version": None,
    "enabled": True,
    "generation": None,
    "cursor": None,
    "lag": 4,
    "dead_letters": 0,
    "of_a_newer_server": 1,
}
DEAD_LETTER: Final = {
    "rule": "ops:spike",
    "generation": 1,
    "seq": 3,
    "scope_key": None,
    "ts": "2026-01-01T00:00:00Z",
    "kind": "scope_missing",
    "error": "no field",
    "of_a_newer_server": 1,
}
SCHEDULE_STATUS: Final = {"schedule": "hourly", "last_tick": None, "next_tick": "2026-01-01T01:00:00Z", "newer": 1}
RECORDED: Final = {"type": "recorded", "seq": 5, "id": "evt_1"}

type Call = Callable[[RemoteWorkspace], Awaitable[Any]]

COMMANDS: dict[str, tuple[Call, dict[str, Any], dict[str, Any], Any]] = {
    "publish": (
        lambda w: w.publish(Alarm(service="auth"), id="a-1", correlation_id="e-1"),
        {
            "type": "publish",
            "event": {"type": "clienttests:alarm", "service": "auth", "load": 0.5},
            "id": "a-1",
            "correlation_id": "e-1",
        },
        {**published(4, "a-1", duplicate=True), "of_a_newer_server": 1},
        Published(seq=4, id="a-1", duplicate=True),
    ),
    "give_feedback": (
        lambda w: w.give_feedback(Verdict(correct=True), on=RunTarget(run_id="fir_1")),
        {
            "type": "give_feedback",
            "feedback_type": "clienttests.verdict",
            "target": {"kind": "run", "run_id": "fir_1"},
            "value": {"correct": True, "score": 1.0},
        },
        RECORDED,
        Recorded(seq=5, id="evt_1"),
    ),
    "retry_run": (
        lambda w: w.retry_run("fir_1"),
        {"type": "retry_run", "run_id": "fir_1"},
        {"type": "run", "run": RUN},
        Run.model_validate(RUN),
    ),
    "resume_run": (
        lambda w: w.resume_run("fir_1", answer={"approved": True}, attempt=2),
        {"type": "resume_run", "run_id": "fir_1", "answer": {"approved": True}, "attempt": 2},
        {"type": "run", "run": RUN},
        Run.model_validate(RUN),
    ),
    "skip_run": (
        lambda w: w.skip_run("fir_1", reason="late"),
        {"type": "skip_run", "run_id": "fir_1", "reason": "late"},
        {"type": "run", "run": RUN},
        Run.model_validate(RUN),
    ),
    "cancel_run": (
        lambda w: w.cancel_run("fir_1"),
        {"type": "cancel_run", "run_id": "fir_1", "reason": None},
        {"type": "run", "run": RUN},
        Run.model_validate(RUN),
    ),
    "replay_rule": (
        lambda w: w.replay_rule("ops:spike", from_seq=1, mode="refire"),
        {"type": "replay_rule", "rule": "ops:spike", "from_seq": 1, "mode": "refire"},
        {"type": "rule", "rule": "ops:spike", "progress": PROGRESS},
        RuleProgress("ops:spike", 2, 0, "d"),
    ),
    "install_rule": (
        lambda w: w.install_rule(rule(), provenance={"by": "chat"}),
        {"type": "install_rule", "rule": json.loads(rule().model_dump_json()), "provenance": {"by": "chat"}},
        {"type": "rule_version", **VERSION},
        RuleVersion(rule="ops:spike", version=2, seq=9, duplicate=False),
    ),
    "update_rule": (
        lambda w: w.update_rule(rule(), expected_version=1),
        {
            "type": "update_rule",
            "rule": json.loads(rule().model_dump_json()),
            "expected_version": 1,
            "provenance": {},
        },
        {"type": "rule_version", **VERSION},
        RuleVersion(rule="ops:spike", version=2, seq=9, duplicate=False),
    ),
    "archive_rule": (
        lambda w: w.archive_rule("ops:spike", expected_version=1, reason="old"),
        {"type": "archive_rule", "rule": "ops:spike", "expected_version": 1, "reason": "old"},
        {"type": "rule_version", **VERSION},
        RuleVersion(rule="ops:spike", version=2, seq=9, duplicate=False),
    ),
}


@pytest.mark.parametrize(("call", "command", "outcome", "returned"), COMMANDS.values(), ids=COMMANDS)
async def test_a_method_gives_its_command_and_returns_its_outcome(
    call: Call, command: dict[str, Any], outcome: dict[str, Any], returned: Any
) -> None:
    server = Answering(result(outcome))
    async with server.client() as client:
        assert await call(client.workspace("prod")) == returned
    assert server.request.method == "POST"
    assert server.request.url == "https://rules.example/api/workspaces/prod/commands"
    assert server.request.headers["Content-Type"] == "application/json"
    (body,) = server.bodies
    assert body["type"] == "command"
    assert body["command_id"].startswith("cmd_")
    assert body["command"] == command


GIVEN_IDS: dict[str, tuple[Call, dict[str, Any]]] = {
    "publish": (lambda w: w.publish({"type": "ops:beat"}, command_id="c ü"), published()),
    "give_feedback": (
        lambda w: w.give_feedback(Verdict(correct=True), on=RunTarget(run_id="r"), command_id="c ü"),
        RECORDED,
    ),
    "retry_run": (lambda w: w.retry_run("r", command_id="c ü"), {"type": "run", "run": RUN}),
    "resume_run": (lambda w: w.resume_run("r", command_id="c ü"), {"type": "run", "run": RUN}),
    "skip_run": (lambda w: w.skip_run("r", command_id="c ü"), {"type": "run", "run": RUN}),
    "cancel_run": (lambda w: w.cancel_run("r", command_id="c ü"), {"type": "run", "run": RUN}),
    "replay_rule": (
        lambda w: w.replay_rule("ops:spike", from_seq=1, mode="rebuild", command_id="c ü"),
        {"type": "rule", "rule": "ops:spike", "progress": PROGRESS},
    ),
    "install_rule": (lambda w: w.install_rule(rule(), command_id="c ü"), {"type": "rule_version", **VERSION}),
    "update_rule": (lambda w: w.update_rule(rule(), command_id="c ü"), {"type": "rule_version", **VERSION}),
    "archive_rule": (lambda w: w.archive_rule("ops:spike", command_id="c ü"), {"type": "rule_version", **VERSION}),
}


@pytest.mark.parametrize(("call", "outcome"), GIVEN_IDS.values(), ids=GIVEN_IDS)
async def test_a_command_that_has_an_id_keeps_it(call: Call, outcome: dict[str, Any]) -> None:
    server = Answering(result(outcome))
    async with server.client() as client:
        await call(client.workspace("prod"))
    assert server.bodies[0]["command_id"] == "c ü"


async def test_each_command_has_an_id_of_its_own() -> None:
    server = Answering(result(published()))
    async with server.client() as client:
        for _ in range(3):
            await client.workspace("prod").publish({"type": "ops:beat"})
    assert len({body["command_id"] for body in server.bodies}) == 3


READS: dict[str, tuple[Call, str, list[tuple[str, str]], Any, Any]] = {
    "read": (lambda w: w.read(), "events", [("after_seq", "0")], [], []),
    "read-window": (
        lambda w: w.read(after_seq=1, before_seq=9, types=[Alarm, "ops:beat"], limit=5),
        "events",
        [("after_seq", "1"), ("before_seq", "9"), ("type", "clienttests:alarm"), ("type", "ops:beat"), ("limit", "5")],
        [json.loads(envelope(2).to_json()) | {"of_a_newer_server": 1}],
        [envelope(2)],
    ),
    "read-no-type": (lambda w: w.read(types=[]), "events", [("after_seq", "0"), ("limit", "0")], [], []),
    "read-last-of-no-type": (
        lambda w: w.read(types=[], last=3),
        "events",
        [("after_seq", "0"), ("last", "0")],
        [],
        [],
    ),
    "head_seq": (
        lambda w: w.head_seq(),
        "events",
        [("after_seq", "0"), ("last", "1")],
        [json.loads(envelope(7).to_json())],
        7,
    ),
    "head_seq-of-an-empty-log": (lambda w: w.head_seq(), "events", [("after_seq", "0"), ("last", "1")], [], 0),
    "runs": (lambda w: w.runs(), "runs", [], [RUN], [Run.model_validate(RUN)]),
    "runs-of": (
        lambda w: w.runs(rule="ops:spike", scope_key='["a&b"]', status="pending", limit=3),
        "runs",
        [("rule", "ops:spike"), ("scope_key", '["a&b"]'), ("status", "pending"), ("limit", "3")],
        [],
        [],
    ),
    "run": (lambda w: w.run("a/b?c"), "runs/a%2Fb%3Fc", [], RUN, Run.model_validate(RUN)),
    "rule_statuses": (lambda w: w.rule_statuses(), "rules", [], [STATUS], [RuleStatus.model_validate(STATUS)]),
    "get_rule": (
        lambda w: w.get_rule("ops:spike"),
        "rules/ops%3Aspike",
        [],
        {"rule": NEWER_RULE, "origin": "code", "of_a_newer_server": 1},
        RuleDescription(rule=rule(), origin="code"),
    ),
    "rule_history": (
        lambda w: w.rule_history("ops:spike"),
        "rules/ops%3Aspike/history",
        [],
        [json.loads(envelope(2).to_json())],
        [envelope(2)],
    ),
    "dead_letters": (
        lambda w: w.dead_letters(),
        "dead-letters",
        [],
        [DEAD_LETTER],
        [DeadLetter.model_validate(DEAD_LETTER)],
    ),
    "dead_letters-of": (
        lambda w: w.dead_letters(rule="ops:spike", limit=2),
        "dead-letters",
        [("rule", "ops:spike"), ("limit", "2")],
        [],
        [],
    ),
    "schedule_statuses": (
        lambda w: w.schedule_statuses(),
        "schedules",
        [],
        [SCHEDULE_STATUS],
        [ScheduleStatus.model_validate(SCHEDULE_STATUS)],
    ),
}


@pytest.mark.parametrize(("call", "path", "query", "body", "returned"), READS.values(), ids=READS)
async def test_a_read_asks_for_its_path_and_returns_what_is_there(
    call: Call, path: str, query: list[tuple[str, str]], body: Any, returned: Any
) -> None:
    server = Answering(answer(body))
    async with server.client() as client:
        assert await call(client.workspace("a b/c")) == returned
    assert server.request.method == "GET"
    target, _, asked = server.request.url.raw_path.decode("ascii").partition("?")
    assert target == f"/api/workspaces/a%20b%2Fc/{path}"
    assert parse_qsl(asked, strict_parsing=bool(asked)) == query


async def test_envelopes_are_read_with_the_registry_of_the_client() -> None:
    alarm = envelope(1, "clienttests:alarm").model_copy(
        update={"payload": {"type": "clienttests:alarm", "service": "auth"}}
    )
    server = Answering(httpx.Response(200, content=f"[{alarm.to_json()}]"))
    async with server.client(registry=REGISTRY) as client:
        workspace = client.workspace("prod")
        assert [one.event for one in await workspace.read()] == [Alarm(service="auth")]
        assert [one.event for one in await workspace.rule_history("ops:spike")] == [Alarm(service="auth")]
    async with server.client() as client:
        assert [type(one.event) for one in await client.workspace("prod").read()] == [UnknownEvent]


async def test_publish_many_asks_for_all_events_at_once_under_ids_of_their_own() -> None:
    server = Answering(answer([published(1, "a"), published(2, "b"), published(3, "c", duplicate=True)]))
    async with server.client() as client:
        returned = await client.workspace("prod").publish_many(
            [{"type": "ops:beat"}, Alarm(service="auth"), NewEvent({"type": "ops:beat"}, "c")],
            correlation_id="e-1",
            command_id="c-1",
        )
    assert returned == [
        Published(seq=1, id="a", duplicate=False),
        Published(seq=2, id="b", duplicate=False),
        Published(seq=3, id="c", duplicate=True),
    ]
    assert server.request.url == "https://rules.example/api/workspaces/prod/events"
    assert server.request.headers["Idempotency-Key"] == "c-1"
    (body,) = server.bodies
    ids = [event.pop("id") for event in body["events"]]
    assert len(set(ids)) == 3
    assert [one.startswith("evt_") for one in ids[:2]] == [True, True]
    assert ids[2] == "c"
    assert body == {
        "events": [
            {"event": {"type": "ops:beat"}},
            {"event": {"type": "clienttests:alarm", "service": "auth", "load": 0.5}},
            {"event": {"type": "ops:beat"}},
        ],
        "correlation_id": "e-1",
    }


async def test_what_an_earlier_try_appended_is_no_duplicate_where_the_event_had_no_id_of_its_own() -> None:
    server = Answering(httpx.ReadTimeout("lost"), result(published(1, "x", duplicate=True)))
    async with server.client() as client:
        assert not (await client.workspace("prod").publish({"type": "ops:beat"})).duplicate
    assert len({body["command"]["id"] for body in server.bodies}) == 1
    server = Answering(answer([published(1, "x", duplicate=True), published(2, "y", duplicate=True)]))
    async with server.client() as client:
        events = [NewEvent({"type": "ops:beat"}), NewEvent({"type": "ops:beat"}, "y")]
        assert [one.duplicate for one in await client.workspace("prod").publish_many(events)] == [False, True]


async def test_nothing_to_publish_asks_for_nothing() -> None:
    server = Answering(answer([]))
    async with server.client() as client:
        assert await client.workspace("prod").publish_many([]) == []
    assert server.requests == []


def untyped(value: Any) -> Any:
    """What a caller without a type checker may give."""
    return value


NAN: Final = float("nan")

BAD: dict[str, tuple[Call, str]] = {
    "event-no-object": (lambda w: w.publish(untyped(5)), "event: "),
    "event-no-type": (lambda w: w.publish({"service": "auth"}), "an object with its type"),
    "event-no-json": (lambda w: w.publish({"type": "ops:beat", "at": untyped(object())}), "event.at"),
    "event-nan": (lambda w: w.publish({"type": "ops:beat", "n": NAN}), "nan"),
    "event-class-nan": (lambda w: w.publish(Alarm(service="auth", load=NAN)), "nan"),
    "event-surrogate": (lambda w: w.publish({"type": "ops:beat", "t": "\ud800"}), "surrogate"),
    "event-deep": (lambda w: w.publish({"type": "ops:beat", "t": deep(200)}), "nests deeper"),
    "id": (lambda w: w.publish({"type": "ops:beat"}, id=""), "id: An id is 1 to 255 characters"),
    "chain": (lambda w: w.publish({"type": "ops:beat"}, correlation_id="x" * 256), "correlation_id: An id is"),
    "command-id": (lambda w: w.publish({"type": "ops:beat"}, command_id=""), "command_id: An id is"),
    "many-no-list": (lambda w: w.publish_many(untyped({"type": "ops:beat"})), "events: one dict is no list"),
    "many-text": (lambda w: w.publish_many(untyped("ops:beat")), "events: one str is no list"),
    "many-event": (lambda w: w.publish_many(untyped(Alarm(service="auth"))), "events: one Alarm is no list"),
    "many-bad": (
        lambda w: w.publish_many([{"type": "ops:beat"}, {}, NewEvent({"type": "ops:beat"}, "")]),
        r"events\.1: event: .*; events\.2: id: ",
    ),
    "many-chain": (lambda w: w.publish_many([{"type": "ops:beat"}], correlation_id="\ud800"), "correlation_id"),
    "many-command-id": (lambda w: w.publish_many([], command_id="c ü"), "ASCII with no spaces"),
    "many-no-command-id": (lambda w: w.publish_many([], command_id=""), "command_id"),
    "feedback": (
        lambda w: w.give_feedback(untyped({"correct": True}), on=RunTarget(run_id="r")),
        "feedback: .* is no feedback",
    ),
    "feedback-nan": (
        lambda w: w.give_feedback(Verdict(correct=True, score=NAN), on=RunTarget(run_id="r")),
        "nan",
    ),
    "target": (lambda w: w.give_feedback(Verdict(correct=True), on=untyped("fir_1")), "target: "),
    "run-id": (lambda w: w.retry_run(""), "run_id: "),
    "reason": (lambda w: w.skip_run("r", reason="\ud800"), "reason: "),
    "rule-name": (lambda w: w.archive_rule("spike"), "rule: A rule's name is"),
    "from-seq": (lambda w: w.replay_rule("ops:spike", from_seq=-1, mode="refire"), "from_seq: "),
    "mode": (lambda w: w.replay_rule("ops:spike", from_seq=1, mode=untyped("again")), "mode: "),
    "rule": (lambda w: w.install_rule(untyped("ops:spike")), "rule: "),
    "provenance": (lambda w: w.update_rule(rule(), provenance={"x": NAN}), "provenance: "),
    "version": (lambda w: w.archive_rule("ops:spike", expected_version=0), "expected_version: "),
    "after-seq": (lambda w: w.read(after_seq=-1, limit=True), "after_seq: -1 .*: limit: True is no whole number"),
    "types": (lambda w: w.read(types="ops:beat"), "types: give a list"),
    "type": (lambda w: w.read(types=["alarm"]), "did you mean 'clienttests:alarm'"),
    "limit": (lambda w: w.runs(limit=2**63), "limit: 9223372036854775808 is no whole number"),
    "letters": (lambda w: w.dead_letters(limit=untyped("1")), "limit: '1' is no whole number"),
    "scope-key": (lambda w: w.runs(scope_key="\ud800"), "scope_key: .* lone surrogate"),
    "status": (lambda w: w.runs(status=untyped(["pending"])), "status: .* is no text"),
    "run-name": (lambda w: w.run("\0"), "run: .* holds a NUL"),
    "history-name": (lambda w: w.rule_history("\udfff"), "rule: .* lone surrogate"),
}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(("call", "complaint"), BAD.values(), ids=BAD)
async def test_what_can_never_be_right_is_refused_before_it_is_sent(call: Call, complaint: str) -> None:
    server = Answering(answer([]))
    async with server.client() as client:
        with pytest.raises(ValidationFailed, match=f"(?i){complaint}"):
            await call(client.workspace("prod"))
    assert server.requests == []


NAMELESS: dict[str, Call] = {
    "run": lambda w: w.run(""),
    "rule": lambda w: w.get_rule(""),
    "history": lambda w: w.rule_history(""),
}


@pytest.mark.parametrize("call", NAMELESS.values(), ids=NAMELESS)
async def test_nothing_has_an_empty_name(call: Call) -> None:
    server = Answering(answer([]))
    async with server.client() as client:
        with pytest.raises(NotFound, match="there is no r"):
            await call(client.workspace("prod"))
    assert server.requests == []
