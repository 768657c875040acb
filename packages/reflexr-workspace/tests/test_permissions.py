import inspect
from collections.abc import Callable
from typing import Any, override

import pytest

from reflexr.core import Actor, ChainTarget, Forbidden, UserActor, ValidationFailed
from reflexr.workspace import Access, InMemoryStorage, Storage, Workspace, WorkspaceRef
from reflexr.workspace.memory_data import WorkspaceData
from reflexr.workspace.memory_transaction import MemoryTransaction
from reflexr.workspace.memory_work import Leases
from reflexr.workspace.permissions import permit

from .plant import ADA, BOB, START, Alarm, Verdict, opened, stored, stored_rules, workspaces

RULE = "plant:alarms"

METHODS: dict[str, tuple[Callable[[Workspace], Any], Access]] = {
    "publish": (lambda w: w.publish(Alarm(machine="m")), Access("reflexr:publish")),
    "publish_many": (lambda w: w.publish_many([Alarm(machine="m")]), Access("reflexr:publish")),
    "publish_within": (
        lambda w: w.publish_within(MemoryTransaction(w.ref, WorkspaceData(), Leases(), START), [Alarm(machine="m")]),
        Access("reflexr:publish"),
    ),
    "read": (lambda w: w.read(), Access("reflexr:read_events")),
    "subscribe": (lambda w: anext(w.subscribe()), Access("reflexr:read_events")),
    "head_seq": (lambda w: w.head_seq(), Access("reflexr:read_events")),
    "runs": (lambda w: w.runs(rule=RULE), Access("reflexr:read_runs", RULE)),
    "run": (lambda w: w.run("r1"), Access("reflexr:read_runs")),
    "retry_run": (lambda w: w.retry_run("r1"), Access("reflexr:retry_run")),
    "skip_run": (lambda w: w.skip_run("r1"), Access("reflexr:skip_run")),
    "cancel_run": (lambda w: w.cancel_run("r1"), Access("reflexr:cancel_run")),
    "resume_run": (lambda w: w.resume_run("r1", answer=float("nan")), Access("reflexr:resume_run")),
    "give_feedback": (
        lambda w: w.give_feedback(Verdict(correct=True), on=ChainTarget(correlation_id="c")),
        Access("reflexr:give_feedback"),
    ),
    "rule_progress": (lambda w: w.rule_progress(), Access("reflexr:read_rules")),
    "rule_statuses": (lambda w: w.rule_statuses(), Access("reflexr:read_rules")),
    "get_rule": (lambda w: w.get_rule(RULE), Access("reflexr:read_rules", RULE)),
    "rule_history": (lambda w: w.rule_history(RULE), Access("reflexr:read_rules", RULE)),
    "dead_letters": (lambda w: w.dead_letters(rule=RULE), Access("reflexr:read_dead_letters", RULE)),
    "replay_rule": (
        lambda w: w.replay_rule(RULE, from_seq=1, mode="rebuild"),
        Access("reflexr:replay_rule", RULE),
    ),
    "install_rule": (lambda w: w.install_rule(stored()), Access("reflexr:install_rule", "chat:alarms")),
    "update_rule": (lambda w: w.update_rule(stored()), Access("reflexr:update_rule", "chat:alarms")),
    "archive_rule": (lambda w: w.archive_rule("chat:alarms"), Access("reflexr:archive_rule", "chat:alarms")),
    "schedule_ticks": (lambda w: w.schedule_ticks(), Access("reflexr:read_schedules")),
    "schedule_statuses": (lambda w: w.schedule_statuses(), Access("reflexr:read_schedules")),
    "cursor": (lambda w: w.cursor("mirror"), Access("reflexr:read_cursors")),
    "save_cursor": (lambda w: w.save_cursor("mirror", 1), Access("reflexr:save_cursor")),
}
"""Every method of a handle that reads or writes, a call of it, and what is asked first."""

BINDING = {"as_actor", "caused_by"}
"""They read and write nothing: what they return asks."""


class ClosedStorage(InMemoryStorage):
    """Fails whatever is asked of it, to show that nothing was."""

    @override
    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and callable(getattr(Storage, name, None)):
            raise AssertionError(f"the storage was asked to {name}")
        return super().__getattribute__(name)


def test_every_public_method_of_a_handle_is_in_the_table() -> None:
    methods = {
        name
        for name, member in inspect.getmembers(Workspace, callable)
        if not name.startswith("_") and not isinstance(member, property)
    }

    assert methods == METHODS.keys() | BINDING


@pytest.mark.parametrize("name", METHODS)
async def test_every_method_asks_before_anything_is_read(name: str) -> None:
    asked: list[tuple[Any, ...]] = []

    def authorize(*question: Any) -> bool:
        asked.append(question)
        return question[3] == Access("reflexr:open")

    workspace = await opened(ClosedStorage(), authorize=authorize, stored_rules=stored_rules())
    call, access = METHODS[name]

    with pytest.raises(Forbidden, match=access.action):
        await call(workspace)

    assert asked == [("acme", "prod", ADA, Access("reflexr:open")), ("acme", "prod", ADA, access)]


async def test_opening_asks_the_applications_hook_and_the_surfaces() -> None:
    async def only_ada(tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> bool:
        return isinstance(actor, UserActor) and actor.id == "ada"

    def reads(tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> bool:
        return access.action in ("reflexr:open", "reflexr:read_events")

    host = workspaces(authorize=only_ada)
    with pytest.raises(Forbidden):
        await host.open("acme", "prod", actor=BOB)
    workspace = await host.open("acme", "prod", actor=ADA, authorize=reads)

    assert await workspace.head_seq() == 0
    with pytest.raises(Forbidden, match="may not 'reflexr:publish' in the workspace 'prod'"):
        await workspace.publish(Alarm(machine="m"))
    with pytest.raises(Forbidden):
        await workspace.as_actor(BOB).head_seq()


async def test_a_handle_of_the_application_itself_is_not_asked_to_open_but_each_method_is() -> None:
    asked: list[str] = []

    def authorize(tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> bool:
        asked.append(access.action)
        return True

    for host in (workspaces(authorize=authorize), workspaces()):
        handle = host.handle(WorkspaceRef("acme", "prod"), actor=ADA)
        assert await handle.head_seq() == 0

    assert asked == ["reflexr:read_events"]


def refuse(tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> bool:
    return False


async def test_a_refusal_names_the_rule_or_the_tenant_that_was_asked_about() -> None:
    with pytest.raises(Forbidden, match="on the rule 'x:y' in the workspace 'w'"):
        await permit((refuse,), "t", "w", ADA, Access("reflexr:read_rules", "x:y"))
    with pytest.raises(Forbidden, match="in the tenant 't'"):
        await permit((refuse,), "t", None, ADA, Access("reflexr:read_rules"))


@pytest.mark.parametrize("answer", [None, "no", 1, inspect.Parameter])
async def test_only_true_says_yes(answer: Any) -> None:
    def at_once(*question: Any) -> Any:
        return answer

    async def later(*question: Any) -> Any:
        return answer

    for hook in (at_once, later):
        with pytest.raises(Forbidden):
            await permit((hook,), "t", "w", ADA, Access("reflexr:open"))


async def test_what_a_hook_raises_goes_to_whoever_asked_and_nothing_is_done() -> None:
    def broken(tenant_id: str, workspace_id: str | None, actor: Actor, access: Access) -> bool:
        raise ConnectionError("the directory does not answer")

    with pytest.raises(ConnectionError):
        await workspaces(ClosedStorage(), authorize=broken).open("acme", "prod", actor=ADA)


@pytest.mark.parametrize(
    ("name", "action"), [("list_rules", "reflexr:read_rules"), ("list_schedules", "reflexr:read_schedules")]
)
async def test_what_spans_a_tenant_is_asked_about_no_workspace_by_every_hook(name: str, action: str) -> None:
    asked: list[tuple[Any, ...]] = []

    def allow(*question: Any) -> bool:
        asked.append(question)
        return True

    read = getattr(workspaces(authorize=allow), name)

    with pytest.raises(Forbidden, match=f"may not '{action}' in the tenant 'acme'"):
        await read("acme", actor=ADA, authorize=refuse)
    with pytest.raises(ValidationFailed, match="tenant_id"):
        await read("", actor=ADA)
    with pytest.raises(ValidationFailed, match="actor"):
        await read("acme", actor="ada")

    assert asked == [("acme", None, ADA, Access(action))]
