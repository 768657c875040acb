"""What is another tenant's is as good as nowhere: whatever is asked about it is answered as if it were not there.

Everything is asked of two applications, one in which another tenant has a workspace full of things, and one in which
nobody has anything. The answers are the same to the byte.
"""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from reflexr.core import PROTOCOL, FeedbackGiven, RunTarget
from reflexr.core import Rule as CoreRule
from reflexr.workspace import Workspace

from .ops import ADA, CHECKS, EVE, PROD, SPIKES, Ops, Site, Verdict, bearer, client_of, error, serving, stored_rule

_STORED: Final = "chat:errors"
_EVENT_ID: Final = "alert-7"


async def fill(application: Ops) -> str:
    """Puts one of everything into a workspace of Ada's tenant, and returns the id of its run."""
    workspace = await application.open()
    application.triage_fails = True
    await workspace.publish(error(8), id=_EVENT_ID)
    await workspace.publish({"type": "ops:checked"}, id="checked")
    await workspace.install_rule(CoreRule.model_validate(stored_rule(_STORED)), provenance={"secret": "mine"})
    # Without the ticks of schedules, which come in every tenant.
    await application.reactor.evaluate()
    await application.reactor.execute()
    (run,) = await workspace.runs()
    await workspace.give_feedback(Verdict(correct=False), on=RunTarget(run_id=run.id))
    return run.id


async def everything(workspace: Workspace) -> list[Any]:
    """Returns all that can be read of a workspace."""
    return [
        await workspace.read(),
        await workspace.runs(),
        await workspace.rule_statuses(),
        await workspace.dead_letters(),
        await workspace.rule_history(_STORED),
        await workspace.schedule_statuses(),
    ]


@asynccontextmanager
async def two() -> AsyncGenerator[tuple[Site, Site, str]]:
    """Serves the application that has everything and the one that has nothing, and tells the run's id."""
    async with serving() as full, serving() as empty:
        yield full, empty, await fill(full.ops)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields the path, the method and the description of each operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def commands(run_id: str) -> dict[str, dict[str, Any]]:
    """Returns a command of each type about what is Ada's."""
    target = {"kind": "run", "run_id": run_id}
    return {
        "publish": {"event": error(), "correlation_id": _EVENT_ID},
        "publish_many": {"events": [{"event": error(), "id": _EVENT_ID}], "correlation_id": _EVENT_ID},
        "give_feedback": {"feedback_type": "ops_verdict", "target": target, "value": {"correct": True}},
        "retry_run": {"run_id": run_id},
        "skip_run": {"run_id": run_id},
        "cancel_run": {"run_id": run_id},
        "resume_run": {"run_id": run_id, "answer": "yes", "attempt": 1},
        "replay_rule": {"rule": _STORED, "from_seq": 1, "mode": "refire"},
        "install_rule": {"rule": stored_rule(_STORED), "provenance": {}},
        "update_rule": {"rule": stored_rule(_STORED)},
        "archive_rule": {"rule": _STORED},
    }


_BODIES: Final = {
    "publish_events": [
        {"event": error(), "id": _EVENT_ID},
        {"event": error(), "id": "own", "correlation_id": _EVENT_ID},
        {"events": [{"event": error(), "id": _EVENT_ID}, {"event": error(), "id": "other"}]},
    ],
}

_VALUES: Final[dict[str, list[str]]] = {
    "workspace_id": ["prod"],
    "rule": [_STORED, SPIKES, CHECKS, "chat:nothing"],
    "after_seq": ["1"],
    "before_seq": ["2"],
    "type": ["ops:service.error", "reflexr:run_dead_lettered"],
    "limit": ["1"],
    "last": ["1"],
    "scope_key": ['["auth"]'],
    "status": ["dead_lettered"],
    "If-None-Match": ["*"],
    "idempotency-key": ["k"],
}


def requests(document: dict[str, Any], run_id: str) -> Iterator[httpx.Request]:
    """Yields requests about what is Ada's, for every operation, with each of its parameters."""
    values = {**_VALUES, "run_id": [run_id]}
    tags = set(document["components"]["schemas"]["Command"]["discriminator"]["mapping"])
    assert tags == commands(run_id).keys(), "say above what a command of a new type is about"
    for path, method, operation in operations(document):
        bodies: list[Any] = _BODIES.get(operation["operationId"], [None])
        if operation["operationId"] == "execute_command":
            bodies = [
                {"type": "command", "command_id": f"c-{kind}", "command": {"type": kind, **fields}}
                for kind, fields in commands(run_id).items()
            ]
        paths = [path]
        optional: list[dict[str, Any]] = [{"params": {}, "headers": {}}]
        for parameter in operation["parameters"]:
            name, place = parameter["name"], parameter["in"]
            if place == "path":
                paths = [one.replace(f"{{{name}}}", value) for one in paths for value in values[name]]
            else:
                kind = "params" if place == "query" else "headers"
                optional += [{"params": {}, "headers": {}, kind: {name: value}} for value in values[name]]
        for one in paths:
            for body in bodies:
                for more in optional:
                    yield httpx.Request(method.upper(), f"http://ops{one}", json=body, **more)


async def ask(client: httpx.AsyncClient, request: httpx.Request) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Asks, and returns the status, the body and the headers, but for the time of the server."""
    url = client.base_url.copy_with(raw_path=request.url.raw_path)
    headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
    answer = await client.request(request.method, url, content=request.content, headers=headers)
    kept = [(name, value) for name, value in answer.headers.multi_items() if name != "date"]
    return answer.status_code, answer.content, kept


async def test_whatever_is_asked_about_another_tenants_things_is_answered_as_if_there_were_none() -> None:
    async with two() as (full, empty, run_id):
        before = await everything(await full.ops.open())
        asked: set[str] = set()
        async with client_of(full.at, "eve") as there, client_of(empty.at, "eve") as nowhere:
            for request in requests(full.ops.app.openapi(), run_id):
                answers = await ask(there, request), await ask(nowhere, request)
                assert answers[0] == answers[1], request
                assert b"mine" not in answers[0][1]
                asked.add(f"{request.method} {request.url.path}")
        assert await everything(await full.ops.open()) == before
        assert len(asked) > 12


async def test_the_same_requests_of_its_own_tenant_are_answered_with_what_is_there() -> None:
    # Or the test above would be content with a server that tells nothing to anybody.
    async with two() as (full, empty, run_id):
        found = 0
        for request in requests(full.ops.app.openapi(), run_id):
            if request.method == "GET":
                found += await ask(full.client, request) != await ask(empty.client, request)
        assert found > 20


async def test_what_may_not_be_done_in_another_tenant_is_refused_as_if_there_were_none() -> None:
    async with two() as (full, empty, run_id):
        for action in ("open", "read_runs", "read_events", "read_rules", "retry_run", "publish"):
            full.ops.permissions.refused = empty.ops.permissions.refused = {f"reflexr:{action}"}
            async with client_of(full.at, "eve") as there, client_of(empty.at, "eve") as nowhere:
                for request in requests(full.ops.app.openapi(), run_id):
                    assert await ask(there, request) == await ask(nowhere, request), request


async def test_nobody_is_told_whether_something_is_there() -> None:
    async with (
        two() as (full, empty, run_id),
        client_of(full.at, None) as there,
        client_of(empty.at, None) as nowhere,
    ):
        for request in requests(full.ops.app.openapi(), run_id):
            answers = await ask(there, request), await ask(nowhere, request)
            assert answers[0] == answers[1]
            assert answers[0][0] == 401


async def frames(site: Site, hello: dict[str, Any], *sent: dict[str, Any]) -> list[Any]:
    """Opens Eve's stream of the workspace that is called as Ada's, and returns what comes until the last command."""
    received: list[Any] = []
    url = f"{site.at.ws}/workspaces/prod/stream"
    async with connect(
        url, subprotocols=[Subprotocol(PROTOCOL)], additional_headers=bearer("eve"), proxy=None
    ) as socket:
        await socket.send(json.dumps({"type": "hello", "protocol": PROTOCOL, **hello}))
        while not received or received[-1]["type"] != "replay_complete":
            received.append(json.loads(await socket.recv()))
        await (await site.ops.open(PROD, ADA)).publish(error(1, details="mine"))
        for frame in sent:
            await socket.send(json.dumps(frame))
            while received[-1].get("command_id") != frame["command_id"]:
                received.append(json.loads(await socket.recv()))
    return received


@pytest.mark.parametrize("hello", [{}, {"resume_after_seq": 2}, {"from_head": True}, {"types": ["ops:service.error"]}])
async def test_the_stream_of_a_workspace_has_nothing_of_another_tenants_of_the_same_name(hello: dict[str, Any]) -> None:
    async with two() as (full, empty, run_id):
        sent = [
            {"type": "command", "command_id": kind, "command": {"type": kind, **fields}}
            for kind, fields in commands(run_id).items()
        ]
        there, nowhere = await frames(full, hello, *sent), await frames(empty, hello, *sent)
        assert there == nowhere
        assert "mine" not in json.dumps(there)
        assert {frame["envelope"]["actor"]["id"] for frame in there if frame["type"] == "event"} <= {EVE.id}


async def test_what_somebody_of_another_tenant_judged_is_not_recorded() -> None:
    async with two() as (full, _, run_id):
        async with client_of(full.at, "eve") as eve:
            command = {"type": "give_feedback", **commands(run_id)["give_feedback"]}
            frame = {"type": "command", "command_id": "1", "command": command}
            assert (await eve.post("/workspaces/prod/commands", json=frame)).status_code == 404
        feedback = await (await full.ops.open()).read(types=[FeedbackGiven])
        assert [envelope.actor for envelope in feedback] == [ADA]
