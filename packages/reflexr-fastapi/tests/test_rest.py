"""Every path of the protocol over HTTP: what is published, commanded and read."""

from typing import Any
from urllib.parse import quote

import pytest

from reflexr.workspace import Pause, Reaction, Reactor

from .asking import FORBIDDEN, INVALID, INVALID_STATE, NOT_FOUND, VERDICT, a_run, execute, publish, refusal
from .ops import (
    CHECKS,
    DEAD_LETTERS,
    EVENTS,
    RULES,
    RUNS,
    SCHEDULES,
    SPIKES,
    Site,
    client_of,
    error,
    serving,
    stored_rule,
)

# --- Publishing


async def test_an_event_is_published() -> None:
    async with serving() as site:
        answer = await site.client.post(EVENTS, json={"event": error(), "id": "alert-7"})
        published = [{"type": "published", "seq": 1, "id": "alert-7", "duplicate": False}]
        assert (answer.status_code, answer.json()) == (200, published)
        again = await site.client.post(EVENTS, json={"event": error(), "id": "alert-7"})
        assert again.json() == [{**published[0], "duplicate": True}]
        (envelope,) = (await site.client.get(EVENTS)).json()
        assert envelope["actor"] == {"kind": "user", "id": "ada", "name": "Ada"}
        assert (envelope["workspace_id"], envelope["correlation_id"]) == ("prod", "alert-7")
        assert envelope["event"] == error(details=None)


async def test_several_events_are_published_together_in_a_chain_that_they_join() -> None:
    async with serving() as site:
        await site.client.post(EVENTS, json={"event": error(), "id": "first"})
        events = [{"event": error(), "id": "a"}, {"event": error(), "id": "a"}, {"event": error()}]
        answer = await site.client.post(EVENTS, json={"events": events, "correlation_id": "first"})
        assert [(one["seq"], one["duplicate"]) for one in answer.json()] == [(2, False), (2, True), (3, False)]
        log = (await site.client.get(EVENTS)).json()
        assert [envelope["correlation_id"] for envelope in log] == ["first"] * 3


async def test_one_event_joins_a_chain() -> None:
    async with serving() as site:
        await site.client.post(EVENTS, json={"event": error(), "id": "first"})
        await site.client.post(EVENTS, json={"event": error(), "correlation_id": "first"})
        assert [one["correlation_id"] for one in (await site.client.get(EVENTS)).json()] == ["first", "first"]


async def test_of_events_of_which_one_is_refused_none_is_published() -> None:
    async with serving() as site:
        events = [{"event": error()}, {"event": error(nonsense=1)}, {"event": {"type": "ops:deployed"}}]
        answer = await site.client.post(EVENTS, json={"events": events})
        assert refusal(answer) == INVALID
        assert [problem[:9] for problem in answer.json()["detail"]["errors"]] == ["events.1:", "events.2:"]
        assert (await site.client.get(EVENTS)).json() == []


async def test_no_event_is_published_by_none() -> None:
    async with serving() as site:
        answer = await site.client.post(EVENTS, json={"events": []})
        assert (answer.status_code, answer.json()) == (200, [])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"event": {"type": "ops:nothing"}}, NOT_FOUND),
        ({"event": {"type": "service.error"}}, NOT_FOUND),
        ({"event": {"type": "ops:triaged", "service": "auth"}}, FORBIDDEN),
        ({"event": {"type": "reflexr:tick"}}, FORBIDDEN),
        ({"event": {"type": "ops:deployed"}}, INVALID),
        ({"event": error(), "correlation_id": "nothing"}, NOT_FOUND),
    ],
)
async def test_what_cannot_be_published_is_refused(body: dict[str, Any], expected: tuple[int, str]) -> None:
    async with serving() as site:
        assert refusal(await site.client.post(EVENTS, json=body)) == expected


# --- Commands


async def test_every_command_is_carried_out_and_answered_with_its_result() -> None:
    async with serving() as site:
        run = await a_run(site, fails=True)
        paused = await a_paused_run(site)
        target = {"kind": "run", "run_id": run["id"]}
        archived = {"rule": "chat:errors", "expected_version": 2, "reason": "done"}
        for kind, fields, outcome in (
            ("publish", {"event": error()}, "published"),
            ("publish_many", {"events": [{"event": error()}]}, "published_many"),
            ("give_feedback", {**VERDICT, "target": target}, "recorded"),
            ("retry_run", {"run_id": run["id"]}, "run"),
            ("skip_run", {"run_id": run["id"], "reason": "known"}, "run"),
            ("retry_run", {"run_id": run["id"]}, "run"),
            ("cancel_run", {"run_id": run["id"]}, "run"),
            ("resume_run", {"run_id": paused["id"], "answer": {"restart": True}, "attempt": 1}, "run"),
            ("replay_rule", {"rule": SPIKES, "from_seq": 1, "mode": "rebuild"}, "rule"),
            ("install_rule", {"rule": stored_rule()}, "rule_version"),
            ("update_rule", {"rule": stored_rule(description="more"), "expected_version": 1}, "rule_version"),
            ("archive_rule", archived, "rule_version"),
        ):
            command_id = f"{kind} {len(site.ops.permissions.asked)}"
            answer = await execute(site, kind, command_id=command_id, **fields)
            assert answer.status_code == 200, answer.text
            result = answer.json()
            assert (result["type"], result["command_id"], result["ok"]) == ("command_result", command_id, True)
            assert result["outcome"]["type"] == outcome
            repeated = await execute(site, kind, command_id=command_id, **fields)
            assert repeated.json() == result


@pytest.mark.parametrize(
    ("type", "fields", "expected"),
    [
        ("retry_run", {"run_id": "fir_0"}, NOT_FOUND),
        ("resume_run", {"run_id": "fir_0", "answer": "yes"}, NOT_FOUND),
        ("resume_run", {"run_id": "fir_0", "attempt": 0}, INVALID),
        ("archive_rule", {"rule": "chat:nothing"}, NOT_FOUND),
        ("replay_rule", {"rule": "ops:nothing", "from_seq": 1, "mode": "refire"}, NOT_FOUND),
        ("replay_rule", {"rule": SPIKES, "from_seq": 99, "mode": "refire"}, INVALID),
        ("replay_rule", {"rule": SPIKES, "from_seq": 2**63, "mode": "refire"}, INVALID),
        ("install_rule", {"rule": stored_rule("ops:mine")}, INVALID),
        ("install_rule", {"rule": stored_rule(then={"action": "nothing"})}, INVALID),
        ("update_rule", {"rule": stored_rule()}, NOT_FOUND),
        ("give_feedback", VERDICT, NOT_FOUND),
        ("give_feedback", {**VERDICT, "feedback_type": "nothing"}, NOT_FOUND),
        ("give_feedback", {**VERDICT, "value": {}}, INVALID),
    ],
)
async def test_a_command_that_is_refused_is_answered_with_its_rejection(
    type: str, fields: dict[str, Any], expected: tuple[int, str]
) -> None:
    async with serving() as site:
        first = await execute(site, type, **fields)
        assert refusal(first) == expected
        assert (await execute(site, type, **fields)).json() == first.json()


async def test_a_run_is_in_a_state_for_some_commands_alone() -> None:
    async with serving() as site:
        run = await a_run(site)
        for kind in ("retry_run", "skip_run", "cancel_run", "resume_run"):
            assert refusal(await execute(site, kind, command_id=kind, run_id=run["id"])) == INVALID_STATE


async def test_a_paused_run_says_what_it_asks_until_it_is_answered() -> None:
    async with serving() as site:
        paused = await a_paused_run(site)
        (found,) = (await site.client.get(f"{RUNS}?status=paused")).json()
        assert found == paused == (await site.client.get(f"{RUNS}/{paused['id']}")).json()
        assert (paused["status"], paused["waiting"]["request"]) == ("paused", {"restart": "auth"})
        late = await execute(site, "resume_run", command_id="late", run_id=paused["id"], answer="yes", attempt=2)
        assert refusal(late) == INVALID_STATE
        answer = {"restart": True, "b": 1.0, "a": 10**30}
        given = await execute(site, "resume_run", run_id=paused["id"], answer=answer)
        resumed = given.json()["outcome"]["run"]
        assert resumed == (await site.client.get(f"{RUNS}/{paused['id']}")).json()
        assert (resumed["status"], resumed["waiting"], resumed["answer"]["value"]) == ("pending", None, answer)
        assert resumed["answer"]["actor"] == {"kind": "user", "id": "ada", "name": "Ada"}
        await site.ops.reactor.settle()
        ended = (await site.client.get(f"{RUNS}/{paused['id']}")).json()
        assert (ended["status"], ended["output"]) == ("succeeded", answer)


async def a_paused_run(site: Site) -> dict[str, Any]:
    async def ask(reaction: Reaction[None]) -> Any:
        return Pause({"restart": reaction.scope["service"]}) if reaction.answer is None else reaction.answer.value

    site.ops.reactor = Reactor(site.ops.workspaces, actions={"triage": ask})
    return await a_run(site)


# --- Reading


async def test_a_log_is_read_by_place_and_type() -> None:
    async with serving() as site:
        await publish(site, error(), {"type": "ops:checked"}, error(), {"type": "ops:deployed", "service": "auth"})
        for query, places in {
            "": [1, 2, 3, 4],
            "?after_seq=1": [2, 3, 4],
            "?before_seq=3": [1, 2],
            "?after_seq=1&before_seq=4": [2, 3],
            "?limit=2": [1, 2],
            "?last=2": [3, 4],
            "?after_seq=9223372036854775807": [],
            "?before_seq=0": [],
            "?limit=0": [],
            "?type=ops:service.error": [1, 3],
            "?type=ops:checked&type=ops:deployed": [2, 4],
            "?type=ops:service.error&last=1": [3],
            "?type=ops:nothing": [],
        }.items():
            answer = await site.client.get(f"{EVENTS}{query}")
            assert [envelope["seq"] for envelope in answer.json()] == places, query


async def test_rules_are_read() -> None:
    async with serving() as site:
        await publish(site, {"type": "ops:checked"})
        await site.ops.reactor.settle()
        await execute(site, "install_rule", rule=stored_rule(), provenance={"chat": "7"})
        rules = (await site.client.get("/rules")).json()
        assert [rule["name"] for rule in rules] == [SPIKES, CHECKS]
        statuses = (await site.client.get(RULES)).json()
        assert [(one["rule"], one["origin"], one["dead_letters"]) for one in statuses] == [
            (SPIKES, "code", 0),
            (CHECKS, "code", 1),
            ("chat:errors", "stored", 0),
        ]
        code = (await site.client.get(f"{RULES}/{SPIKES}")).json()
        assert (code["rule"]["name"], code["origin"], code["version"]) == (SPIKES, "code", None)
        stored = (await site.client.get(f"{RULES}/chat:errors")).json()
        assert (stored["origin"], stored["version"], stored["provenance"]) == ("stored", 1, {"chat": "7"})
        await execute(site, "archive_rule", command_id="c-2", rule="chat:errors")
        assert (await site.client.get(f"{RULES}/chat:errors")).json()["status"] == "archived"
        history = (await site.client.get(f"{RULES}/chat:errors/history")).json()
        assert [one["event"]["type"] for one in history] == ["reflexr:rule_installed", "reflexr:rule_archived"]
        assert (await site.client.get(f"{RULES}/{SPIKES}/history")).json() == []
        (letter,) = (await site.client.get(DEAD_LETTERS)).json()
        assert (letter["rule"], letter["kind"]) == (CHECKS, "predicate_failed")
        assert (await site.client.get(f"{DEAD_LETTERS}?rule={CHECKS}")).json() == [letter]
        assert (await site.client.get(f"{DEAD_LETTERS}?rule={SPIKES}")).json() == []


async def test_runs_are_read() -> None:
    async with serving() as site:
        dead = await a_run(site, fails=True)
        done = await a_run(site)
        key = quote('["auth"]')
        for query, runs in {
            "": [done, dead],
            "?limit=1": [done],
            "?status=dead_lettered": [dead],
            f"?rule={SPIKES}&status=succeeded": [done],
            f"?rule={CHECKS}": [],
            f"?scope_key={key}": [done, dead],
            "?scope_key=nothing": [],
        }.items():
            assert (await site.client.get(f"{RUNS}{query}")).json() == runs, query
        assert (await site.client.get(f"{RUNS}/{dead['id']}")).json() == dead


async def test_schedules_are_read_with_the_targets_that_are_the_callers() -> None:
    async with serving() as site, client_of(site.at, "eve") as eve:
        ours = (await site.client.get("/schedules")).json()
        assert [one["name"] for one in ours] == ["hourly", "ours", "shared"]
        assert ours[2]["targets"] == [{"tenant_id": "acme", "workspace_id": "prod"}]
        assert [one["name"] for one in (await eve.get("/schedules")).json()] == ["hourly", "theirs", "shared"]
        statuses = (await site.client.get(SCHEDULES)).json()
        assert statuses[0] == {"schedule": "hourly", "last_tick": None, "next_tick": "2026-01-01T01:00:00Z"}
        assert [one["schedule"] for one in (await eve.get(SCHEDULES)).json()] == ["hourly", "theirs", "shared"]


@pytest.mark.parametrize(
    "path",
    [f"{RUNS}/fir_0", f"{RUNS}/a/b", f"{RUNS}/%0A", f"{RULES}/ops:nothing", f"{RULES}/nothing", f"{RULES}/a%2Fb"],
)
async def test_what_is_not_there_is_not_found(path: str) -> None:
    async with serving() as site:
        assert refusal(await site.client.get(path)) == NOT_FOUND
