"""What a URL may hold: ids of any characters, queries that a path has, and methods."""

from typing import Final
from urllib.parse import quote

import pytest

from .asking import INVALID, refusal
from .ops import (
    COMMANDS,
    EVENTS,
    RULES,
    RUNS,
    SCHEDULES,
    client_of,
    command,
    error,
    ops,
    serving,
    stored_rule,
)

# --- Queries


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        (f"{EVENTS}?limit=1&last=1", "limit: give limit"),
        (f"{EVENTS}?limit=-1", "limit: A number is written in digits alone"),
        (f"{EVENTS}?limit=+1", "limit: A number is written in digits alone"),
        (f"{EVENTS}?limit=1.0", "limit: A number is written in digits alone"),
        (f"{EVENTS}?limit=1_0", "limit: A number is written in digits alone"),
        (f"{EVENTS}?limit=%D9%A1", "limit: A number is written in digits alone"),
        (f"{EVENTS}?limit=", "limit: A number is written in digits alone"),
        (f"{EVENTS}?limit=null", "limit: A number is written in digits alone"),
        (f"{EVENTS}?after_seq=9223372036854775808", "after_seq: 9223372036854775808 is no whole number"),
        (f"{EVENTS}?before_seq=9223372036854775808", "before_seq: 9223372036854775808 is no whole number"),
        (f"{EVENTS}?last={'9' * 5_000}", "last: "),
        (f"{EVENTS}?type=error", "type.0: "),
        (f"{EVENTS}?types=ops:checked", "types: this takes 'after_seq', 'before_seq', 'last', 'limit', 'type'"),
        (f"{EVENTS}?Limit=1", "Limit: this takes"),
        (f"{RUNS}?limit=9223372036854775808", "limit: 9223372036854775808 is no whole number"),
        (f"{RUNS}?status=broken", "status: "),
        (f"{RUNS}?scope_key=%00", "scope_key: "),
        (f"{RUNS}?rule=a%00", "rule: "),
        (f"{RUNS}/a%00", "run_id: An id is"),
        (f"{RUNS}/{'a' * 256}", "run_id: An id is"),
        (f"{RULES}/a%00", "rule: "),
        (f"{SCHEDULES}?limit=1", "limit: this takes none"),
        ("/rules?a=1", "a: this takes none"),
        ("/workspaces//events", "workspace_id: An id is"),
        (f"/workspaces/{'a' * 256}/events", "workspace_id: An id is"),
        ("/workspaces/a%00/events", "workspace_id: An id is"),
    ],
)
async def test_a_query_that_is_none_is_refused_and_says_why(query: str, problem: str) -> None:
    async with serving() as site:
        answer = await site.client.get(query)
        assert refusal(answer) == INVALID
        assert answer.json()["detail"]["errors"][0].startswith(problem)


# --- Ids in paths

_IDS: Final = (
    "prod",
    "a/b",
    "a/rules",
    "a/runs",
    "a/events",
    "a/runs/b",
    "a/rules/b",
    "a/rules/x:y/history",
    "rules",
    "events/events",
    "/",
    "//a//",
    "a%2Fb",
    "a b+c",
    "..",
    "a/../b",
    "a?b#c",
    "a&b=c;d",
    "ünïcödé 🦊",
    "a\nb",
    "\n",
    "a\\b",
    "{workspace_id}",
    "a" * 255,
)


@pytest.mark.parametrize("workspace_id", _IDS)
async def test_a_workspace_may_have_any_id(workspace_id: str) -> None:
    async with serving() as site:
        # A client takes dots for steps through folders, unless they are written in full.
        base = f"/workspaces/{quote(workspace_id, safe='').replace('.', '%2E')}"
        answer = await site.client.post(f"{base}/events", json={"event": error(8)})
        assert answer.status_code == 200, answer.text
        await site.ops.reactor.settle()
        installed = await site.client.post(f"{base}/commands", json=command("install_rule", rule=stored_rule()))
        assert installed.status_code == 200, installed.text
        envelopes = (await site.client.get(f"{base}/events")).json()
        assert {envelope["workspace_id"] for envelope in envelopes} == {workspace_id}
        assert [one["rule"] for one in (await site.client.get(f"{base}/rules")).json()][2] == "chat:errors"
        (run,) = (await site.client.get(f"{base}/runs")).json()
        assert (await site.client.get(f"{base}/runs/{run['id']}")).json() == run
        assert (await site.client.get(f"{base}/rules/chat:errors")).json()["version"] == 1
        assert len((await site.client.get(f"{base}/rules/chat:errors/history")).json()) == 1
        assert (await site.client.get(f"{base}/dead-letters")).json() == []
        assert (await site.client.get(f"{base}/schedules")).status_code == 200
        where = {workspace for _, workspace, _, _ in site.ops.permissions.asked}
        assert where == {workspace_id}


async def test_the_router_is_served_under_any_prefix() -> None:
    async with serving(ops(prefix="/api/v1")) as site:
        assert (await site.client.post(f"/api/v1{EVENTS}", json={"event": error()})).status_code == 200
        answer = await site.client.get(f"/api/v1{EVENTS}?limit=1")
        assert answer.links["next"]["url"] == "?after_seq=1&limit=1"
        assert (await site.client.put(f"/api/v1{EVENTS}")).headers["allow"] == "GET, POST"
        assert (await site.client.get(EVENTS)).status_code == 404
        path = site.ops.app.url_path_for("read_events", workspace_id="a/b")
        assert path == "/api/v1/workspaces/a/b/events"


# --- Methods


@pytest.mark.parametrize(
    ("path", "allowed"),
    [(EVENTS, "GET, POST"), (COMMANDS, "POST"), (RUNS, "GET"), (f"{RUNS}/fir_0", "GET"), ("/rules", "GET")],
)
@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "BREW"])
async def test_a_method_that_a_path_does_not_have_is_told_which_it_has(path: str, allowed: str, method: str) -> None:
    async with serving() as site, client_of(site.at, None) as nobody:
        for client in (site.client, nobody):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
