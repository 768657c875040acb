import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from reflexr.client import Client, ClientError, ScheduleDescription, ScheduleTarget
from reflexr.core import Rule, ValidationFailed

from .answering import Answering, answer
from .test_workspaces import NEWER_RULE, rule


async def test_the_code_rules_are_read_also_those_of_a_newer_server() -> None:
    server = Answering(answer([NEWER_RULE, json.loads(rule("ops:other").model_dump_json())]))
    async with server.client() as client:
        rules = await client.rules()
    assert server.request.url == "https://rules.example/api/rules"
    assert rules == [rule(), rule("ops:other")]
    assert all(isinstance(one, Rule) for one in rules)


async def test_the_schedules_are_read_also_those_of_a_newer_server() -> None:
    targets = [{"tenant_id": "acme", "workspace_id": "prod", "of_a_newer_server": 1}]
    server = Answering(
        answer([{"name": "hourly", "every": "PT1H", "of_a_newer_server": 1}, {"name": "daily", "targets": targets}])
    )
    async with server.client() as client:
        schedules = await client.schedules()
    assert server.request.url == "https://rules.example/api/schedules"
    assert schedules == [
        ScheduleDescription(name="hourly", every=timedelta(hours=1)),
        ScheduleDescription(name="daily", targets=frozenset({ScheduleTarget(tenant_id="acme", workspace_id="prod")})),
    ]


async def test_a_client_that_was_given_stays_open_and_its_own_is_closed() -> None:
    async with httpx.AsyncClient() as http:
        async with Client("http://host", http=http):
            pass
        assert not http.is_closed
    own = Client("http://host")
    await own.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await own.rules()


def test_a_workspace_knows_its_id_and_nothing_else_is_one() -> None:
    client = Client("http://host", http=httpx.AsyncClient())
    assert client.workspace("a/b").workspace_id == "a/b"
    for wrong in ("", "x" * 256, "\0", "\ud800"):
        with pytest.raises(ValidationFailed, match="workspace_id"):
            client.workspace(wrong)


@pytest.mark.parametrize("wrong", [{"timeout": timedelta()}, {"keepalive": timedelta(seconds=-1)}])
def test_a_duration_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match=next(iter(wrong))):
        Client("http://host", **wrong)
