"""How the tests ask for something over HTTP, and read why it was refused."""

from typing import Any, Final

import httpx

from .ops import COMMANDS, EVENTS, RUNS, Site, command, error

NOT_FOUND: Final = (404, "not_found")
INVALID_STATE: Final = (409, "invalid_state")
INVALID: Final = (422, "validation_failed")
FORBIDDEN: Final = (403, "forbidden")

VERDICT: Final[dict[str, Any]] = {
    "feedback_type": "ops_verdict",
    "target": {"kind": "run", "run_id": "fir_0"},
    "value": {"correct": True},
}


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Returns the status code and the type of a refusal, which is all that its body has but for why."""
    body = answer.json()
    assert body.keys() == {"detail"}
    assert body["detail"]["message"]
    return answer.status_code, body["detail"]["type"]


async def publish(site: Site, *events: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await site.client.post(EVENTS, json={"events": [{"event": event} for event in events]})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def execute(site: Site, type: str, *, command_id: str = "c-1", **fields: Any) -> httpx.Response:
    return await site.client.post(COMMANDS, json=command(type, command_id=command_id, **fields))


async def a_run(site: Site, *, fails: bool = False) -> dict[str, Any]:
    site.ops.triage_fails = fails
    await publish(site, error(8))
    await site.ops.reactor.settle()
    return (await site.client.get(f"{RUNS}?limit=1")).json()[0]


async def keyed(client: httpx.AsyncClient, key: str, *events: dict[str, Any]) -> httpx.Response:
    """Publishes under a key: one event alone, or several."""
    items = [{"event": event} for event in events]
    body = {"events": items} if len(items) > 1 else items[0]
    return await client.post(EVENTS, json=body, headers={"idempotency-key": key})
