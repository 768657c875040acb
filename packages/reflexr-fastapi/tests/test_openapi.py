"""The OpenAPI document is valid, has all that the router answers, and shows what it says."""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final, Protocol, cast

import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from schemathesis.specs.openapi import definitions

from reflexr.fastapi.bodies import CommandBody, PublishBody

from .ops import ops

_READS: Final = {200, 304, 401, 403, 404, 422, 503}
_WRITES: Final = {200, 401, 403, 404, 409, 413, 422, 503}

OPERATIONS: Final = {
    ("post", "/workspaces/{workspace_id}/commands"): ("execute_command", _WRITES, set[str]()),
    ("post", "/workspaces/{workspace_id}/events"): ("publish_events", _WRITES, {"idempotency-key"}),
    ("get", "/workspaces/{workspace_id}/events"): (
        "read_events",
        _READS,
        {"after_seq", "before_seq", "type", "limit", "last"},
    ),
    ("get", "/rules"): ("list_rules", _READS, set[str]()),
    ("get", "/schedules"): ("list_schedules", _READS, set[str]()),
    ("get", "/workspaces/{workspace_id}/rules"): ("rule_statuses", _READS, set[str]()),
    ("get", "/workspaces/{workspace_id}/rules/{rule}"): ("get_rule", _READS, set[str]()),
    ("get", "/workspaces/{workspace_id}/rules/{rule}/history"): ("rule_history", _READS, set[str]()),
    ("get", "/workspaces/{workspace_id}/runs"): ("list_runs", _READS, {"rule", "scope_key", "status", "limit"}),
    ("get", "/workspaces/{workspace_id}/runs/{run_id}"): ("get_run", _READS, set[str]()),
    ("get", "/workspaces/{workspace_id}/dead-letters"): ("dead_letters", _READS, {"rule", "limit"}),
    ("get", "/workspaces/{workspace_id}/schedules"): ("schedule_statuses", _READS, set[str]()),
}
"""Each operation of the protocol: what clients call it, its status codes, and its parameters beside the path's."""

_REQUESTS: Final[dict[str, TypeAdapter[Any]]] = {
    "execute_command": TypeAdapter(CommandBody),
    "publish_events": TypeAdapter(PublishBody),
}


class Validator(Protocol):
    """What is used of jsonschema's validators, whose own types are not known to the last."""

    def is_valid(self, instance: Any) -> bool: ...

    def iter_errors(self, instance: Any) -> Iterable[object]: ...


@cache
def document() -> dict[str, Any]:
    return ops().app.openapi()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def responses() -> Iterator[tuple[str, int, dict[str, Any]]]:
    for _, _, operation in operations():
        for status, response in operation["responses"].items():
            yield operation["operationId"], int(status), response


def validator(schema: Any) -> Validator:
    return cast("Validator", Draft202012Validator({**schema, "components": document()["components"]}))


def holds(value: Any, part: Any) -> bool:
    """Whether all of a JSON value is in another, which may have more fields."""
    match value, part:
        case dict(), dict():
            fields, wanted = cast("dict[str, Any]", value), cast("dict[str, Any]", part)
            return all(name in fields and holds(fields[name], field) for name, field in wanted.items())
        case list(), list():
            return all(map(holds, cast("list[Any]", value), cast("list[Any]", part)))
        case _:
            return value == part


def routes() -> dict[str, APIRoute]:
    found = [route for route in ops().router.routes if isinstance(route, APIRoute) and route.include_in_schema]
    return {str(route.operation_id): route for route in found}


def test_the_document_is_one_of_openapi() -> None:
    assert document()["openapi"].startswith("3.1.")
    openapi: Any = definitions.__dict__["OPENAPI_31"]
    assert list(cast("Validator", Draft202012Validator(openapi)).iter_errors(document())) == []
    checker: Any = Draft202012Validator
    for schema in document()["components"]["schemas"].values():
        checker.check_schema(schema)


def test_every_reference_leads_somewhere() -> None:
    names = set(re.findall(r"'#/components/schemas/([^']+)'", str(document())))
    assert names
    assert names <= document()["components"]["schemas"].keys()


def test_the_operations_are_those_of_the_protocol_with_their_status_codes() -> None:
    found = {
        (method, path): (
            operation["operationId"],
            {int(status) for status in operation["responses"]},
            {one["name"] for one in operation["parameters"] if one["in"] != "path"} - {"If-None-Match"},
        )
        for method, path, operation in operations()
    }
    assert found == OPERATIONS


def test_every_read_says_that_a_client_may_name_its_versions() -> None:
    for method, _, operation in operations():
        names = {one["name"] for one in operation["parameters"]}
        assert ("If-None-Match" in names) == (method == "get")


def test_an_operation_is_called_as_a_method_of_a_client_would_be() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)


def test_every_operation_and_every_parameter_is_described() -> None:
    for method, path, operation in operations():
        assert operation["description"].endswith("."), (method, path)
        for parameter in operation["parameters"]:
            assert parameter["description"].endswith("."), (method, path, parameter["name"])


def test_every_answer_has_a_model_and_an_example_that_is_one() -> None:
    declared = routes()
    for name, status, response in responses():
        assert response["description"]
        if status == 304:
            assert "content" not in response
            continue
        content = response["content"]["application/json"]
        assert list(validator(content["schema"]).iter_errors(content["example"])) == [], (name, status)
        route = declared[name]
        model = route.response_model if status == 200 else route.responses[status]["model"]
        adapter = TypeAdapter[Any](model)
        read = adapter.validate_json(json.dumps(content["example"]))
        assert holds(json.loads(adapter.dump_json(read, by_alias=True)), content["example"]), (name, status)


_EXAMPLES: Final = {"publish_events": 2, "execute_command": 3}


def test_every_body_has_a_model_and_examples_that_are_one() -> None:
    found: set[str] = set()
    for method, _, operation in operations():
        if method == "get":
            assert "requestBody" not in operation
            continue
        found.add(name := operation["operationId"])
        assert operation["requestBody"]["required"]
        content = operation["requestBody"]["content"]["application/json"]
        assert len(content["examples"]) == _EXAMPLES[name]
        for example in content["examples"].values():
            assert example["summary"]
            assert list(validator(content["schema"]).iter_errors(example["value"])) == []
            _REQUESTS[name].validate_python(example["value"])
    assert found == _REQUESTS.keys()


_REFUSED: Final[list[tuple[str, Any]]] = [
    ("publish_events", {}),
    ("publish_events", {"event": {}}),
    ("publish_events", {"event": {"type": "ops:checked"}, "nonsense": 1}),
    ("publish_events", {"event": {"type": "ops:checked"}, "events": []}),
    ("publish_events", {"events": [{}]}),
    ("publish_events", {"events": {}}),
    ("execute_command", {}),
    ("execute_command", {"command_id": "1", "command": {"type": "retry_run", "run_id": "1"}}),
    ("execute_command", {"type": "command", "command_id": "", "command": {"type": "retry_run", "run_id": "1"}}),
    ("execute_command", {"type": "command", "command_id": "1", "command": {"type": "retry_run"}}),
]


@pytest.mark.parametrize(("name", "body"), _REFUSED)
def test_what_the_schema_of_a_body_refuses_the_model_refuses(name: str, body: Any) -> None:
    schemas = {
        operation["operationId"]: operation["requestBody"]["content"]["application/json"]["schema"]
        for method, _, operation in operations()
        if method == "post"
    }
    assert not validator(schemas[name]).is_valid(body)
    with pytest.raises(ValueError, match="validation error"):
        _REQUESTS[name].validate_python(body)


def test_every_error_is_a_rejection_in_its_detail() -> None:
    for name, status, response in responses():
        if status >= 400:
            content = response["content"]["application/json"]
            schema = validator(content["schema"])
            assert content["example"].keys() == {"detail"}, name
            assert not schema.is_valid({"detail": "Not Found"})
            assert not schema.is_valid({"detail": {"type": "broken", "message": "?"}})


def test_the_headers_that_a_client_goes_by_are_described() -> None:
    headers = {(name, status): set(response.get("headers", {})) for name, status, response in responses()}
    for name, route in routes().items():
        assert headers[name, 401] == {"WWW-Authenticate"}
        assert headers[name, 503] == {"Retry-After"}
        if route.methods == {"GET"}:
            expected = {"ETag", "Link"} if name == "read_events" else {"ETag"}
            assert headers[name, 200] == headers[name, 304] == expected


def test_the_same_application_has_the_same_document() -> None:
    assert ops().app.openapi() == ops().app.openapi()
