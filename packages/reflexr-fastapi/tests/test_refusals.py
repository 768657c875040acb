"""Whoever may not is refused, and what breaks tells nothing of itself."""

from datetime import timedelta
from typing import Any, Final, override

import pytest

from reflexr.core import Actor, UserActor
from reflexr.fastapi import reflexr_router
from reflexr.workspace import InMemoryStorage, StorageError, WorkspaceError, WorkspaceRef, Workspaces

from .asking import FORBIDDEN, VERDICT, execute, keyed, publish, refusal
from .ops import (
    COMMANDS,
    DEAD_LETTERS,
    EVENTS,
    RULES,
    RUNS,
    SCHEDULES,
    SPIKES,
    client_of,
    command,
    error,
    ops,
    serving,
    stored_rule,
)

# --- Permissions


@pytest.mark.parametrize(
    ("action", "method", "path", "body"),
    [
        ("read_events", "GET", EVENTS, None),
        ("read_rules", "GET", "/rules", None),
        ("read_rules", "GET", RULES, None),
        ("read_rules", "GET", f"{RULES}/{SPIKES}", None),
        ("read_rules", "GET", f"{RULES}/{SPIKES}/history", None),
        ("read_schedules", "GET", "/schedules", None),
        ("read_schedules", "GET", SCHEDULES, None),
        ("read_runs", "GET", RUNS, None),
        ("read_runs", "GET", f"{RUNS}/fir_0", None),
        ("read_dead_letters", "GET", DEAD_LETTERS, None),
        ("publish", "POST", EVENTS, {"event": error()}),
        ("publish", "POST", COMMANDS, command("publish", event=error())),
        ("publish", "POST", COMMANDS, command("publish_many", events=[{"event": error()}])),
        ("give_feedback", "POST", COMMANDS, command("give_feedback", **VERDICT)),
        ("retry_run", "POST", COMMANDS, command("retry_run", run_id="fir_0")),
        ("skip_run", "POST", COMMANDS, command("skip_run", run_id="fir_0")),
        ("cancel_run", "POST", COMMANDS, command("cancel_run", run_id="fir_0")),
        ("resume_run", "POST", COMMANDS, command("resume_run", run_id="fir_0", answer="yes")),
        ("replay_rule", "POST", COMMANDS, command("replay_rule", rule=SPIKES, from_seq=1, mode="refire")),
        ("install_rule", "POST", COMMANDS, command("install_rule", rule=stored_rule())),
        ("update_rule", "POST", COMMANDS, command("update_rule", rule=stored_rule())),
        ("archive_rule", "POST", COMMANDS, command("archive_rule", rule="chat:errors")),
    ],
)
async def test_whoever_may_not_is_refused(action: str, method: str, path: str, body: Any) -> None:
    async with serving() as site:
        site.ops.permissions.refused = {f"reflexr:{action}"}
        answer = await site.client.request(method, path, json=body)
        assert refusal(answer) == FORBIDDEN
        assert f"'reflexr:{action}'" in answer.json()["detail"]["message"]
        if "/workspaces" in path:
            site.ops.permissions.refused = {"reflexr:open"}
            assert "'reflexr:open'" in (await site.client.request(method, path, json=body)).json()["detail"]["message"]
        site.ops.permissions.refused = set()
        assert (await site.client.get(EVENTS)).json() == []


# --- What breaks


_METHODS: Final = {
    "append",
    "dead_letters",
    "head",
    "progress",
    "read",
    "rule_history",
    "run",
    "runs",
    "schedule_ticks",
    "stored_rules",
    "transaction",
}


class BrokenStorage(InMemoryStorage):
    """A storage of which every method fails, telling why."""

    @override
    def __getattribute__(self, name: str) -> Any:
        if name in _METHODS:
            raise StorageError("postgres://secret@db.internal refused the connection")
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    "path",
    [
        EVENTS,
        RULES,
        f"{RULES}/chat:errors",
        f"{RULES}/{SPIKES}/history",
        RUNS,
        f"{RUNS}/fir_0",
        DEAD_LETTERS,
        SCHEDULES,
    ],
)
async def test_a_storage_that_does_not_answer_is_to_be_asked_again_and_tells_nothing_of_itself(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ops(BrokenStorage())) as site:
        answer = await site.client.get(f"{path}?token=secret")
    assert refusal(answer) == (503, "invalid_state")
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["detail"]["message"] == "the storage does not answer: try again"
    (record,) = [one for one in caplog.records if one.name == "reflexr.fastapi"]
    assert record.getMessage() == f"GET {path} could not be answered"
    assert record.exc_info


async def test_a_command_that_the_storage_does_not_carry_out_is_to_be_tried_again_and_tells_nothing_of_it() -> None:
    async with serving(ops(BrokenStorage())) as site:
        for answer in (await execute(site, "publish", event=error()), await keyed(site.client, "k", error())):
            assert refusal(answer) == (503, "invalid_state")
            assert answer.headers["retry-after"] == "1"
            assert "secret" not in answer.text


async def test_rules_of_the_code_are_read_without_a_storage() -> None:
    async with serving(ops(BrokenStorage())) as site:
        assert (await site.client.get("/rules")).status_code == 200
        assert (await site.client.get(f"{RULES}/{SPIKES}")).status_code == 200


@pytest.mark.parametrize("options", [{"max_body": 0}, {"outbox_size": 0}])
def test_a_limit_is_at_least_one(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(WorkspaceError, match=f"{name}: 0 is less than 1"):
        ops(**options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"resolve_actor": "ada"}, "resolve_actor: 'ada' cannot be called"),
        ({"resolve_actor": None}, "resolve_actor: None cannot be called"),
        ({"authorize": True}, "authorize: True cannot be called"),
        ({"credentials": "token"}, r"credentials: give a list of query parameters, such as \['token'\]"),
    ],
)
def test_a_hook_that_can_never_be_asked_is_refused_when_the_router_is_built(options: Any, problem: str) -> None:
    def resolve_actor(_: object) -> tuple[str, Actor]:
        return "acme", UserActor(id="ada")

    given: dict[str, Any] = {"resolve_actor": resolve_actor, **options}
    with pytest.raises(WorkspaceError, match=problem):
        reflexr_router(Workspaces(InMemoryStorage()), **given)


def test_a_client_has_some_time_to_say_hello() -> None:
    with pytest.raises(WorkspaceError, match=r"hello_timeout: .* is not longer than zero"):
        ops(hello_timeout=timedelta())


async def test_what_is_published_is_the_workspaces_of_the_callers_tenant() -> None:
    async with serving() as site, client_of(site.at, "eve") as eve:
        await publish(site, error())
        assert (await eve.get(EVENTS)).json() == []
        assert len(await (await site.ops.open(WorkspaceRef("acme", "prod"))).read()) == 1
