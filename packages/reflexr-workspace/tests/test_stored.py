from typing import Any

import pytest

from reflexr.core import (
    MAX_ACTIVE,
    Actor,
    F,
    Forbidden,
    InvalidState,
    Needs,
    NotFound,
    RuleArchived,
    RuleChange,
    RuleInstalled,
    ScopeState,
    ValidationFailed,
    derived_id,
    on,
)
from reflexr.workspace import InMemoryStorage, ManualClock, StateChanges, Workspace

from .hesitation import HesitantStorage, cancelled_after
from .plant import (
    ADA,
    REF,
    SECOND,
    START,
    Alarm,
    Opened,
    Stopped,
    a_run,
    append,
    cause,
    opened,
    save,
    stored,
    stored_rules,
)

RULE = "chat:alarms"


@pytest.fixture
def storage() -> InMemoryStorage:
    return InMemoryStorage(clock=ManualClock(START))


@pytest.fixture
async def workspace(storage: InMemoryStorage) -> Workspace:
    return await opened(storage, stored_rules=stored_rules())


def other_definition() -> Any:
    return stored(when=on(Opened).at_most(1, per=60 * SECOND))


async def types(workspace: Workspace) -> list[str]:
    return [envelope.event_type.removeprefix("reflexr:") for envelope in await workspace.read()]


async def test_an_installed_rule_begins_at_its_fact(storage: InMemoryStorage, workspace: Workspace) -> None:
    await append(storage, "a", "b")

    version = await workspace.install_rule(stored(), provenance={"from": "chat"})

    assert (version.rule, version.version, version.seq, version.duplicate) == (RULE, 1, 3, False)
    progress = (await workspace.rule_progress())[RULE]
    assert (progress.generation, progress.cursor, progress.definition) == (1, 3, stored().definition())
    [fact] = await workspace.read(after_seq=2)
    assert (fact.actor, fact.correlation_id, fact.causation) == (ADA, fact.id, None)
    spec = stored().model_dump(mode="json")
    assert fact.event == RuleInstalled(rule=RULE, version=1, spec=spec, provenance={"from": "chat"})


async def test_a_change_that_would_leave_the_rule_as_it_is_is_a_duplicate(workspace: Workspace) -> None:
    installed = await workspace.install_rule(stored())

    for repeated in (
        await workspace.install_rule(stored()),
        await workspace.update_rule(stored(), expected_version=7),
    ):
        assert repeated == installed.model_copy(update={"duplicate": True})
    archived = await workspace.archive_rule(RULE)
    assert await workspace.archive_rule(RULE, expected_version=7) == archived.model_copy(update={"duplicate": True})
    assert await types(workspace) == ["rule_installed", "rule_archived"]


async def test_an_update_resets_the_rule_if_its_definition_changed_and_only_then(
    storage: InMemoryStorage, workspace: Workspace
) -> None:
    await workspace.install_rule(stored())
    async with storage.transaction(REF) as transaction:
        await transaction.change_states({RULE: StateChanges(saved={"k": ScopeState(fired=(START,))})})

    described = await workspace.update_rule(stored(description="more"), expected_version=1)
    moved = (await workspace.rule_progress())[RULE]
    changed = await workspace.update_rule(other_definition())

    progress = (await workspace.rule_progress())[RULE]
    assert (described.version, changed.version) == (2, 3)
    assert (moved.generation, moved.cursor) == (1, 1)
    assert (progress.generation, progress.cursor) == (2, changed.seq)
    assert await types(workspace) == ["rule_installed", "rule_installed", "rule_installed", "rule_reset"]
    async with storage.transaction(REF) as transaction:
        assert await transaction.states({RULE: Needs(frozenset({"k"}), None, ())}) == {RULE: {}}


async def test_an_archive_cancels_unfinished_runs_and_clears_state(
    storage: InMemoryStorage, workspace: Workspace
) -> None:
    await workspace.install_rule(stored())
    await save(storage, a_run("r1", rule=RULE), a_run("r2", rule=RULE, status="succeeded"), a_run("r3", rule=RULE))
    async with storage.transaction(REF) as transaction:
        await transaction.change_states({RULE: StateChanges(saved={"k": ScopeState(fired=(START,))})})

    archived = await workspace.archive_rule(RULE, expected_version=1, reason="quiet")

    assert {run.id: run.status for run in await workspace.runs()} == {
        "r1": "cancelled",
        "r2": "succeeded",
        "r3": "cancelled",
    }
    log = await workspace.read(after_seq=1)
    assert [envelope.payload.get("run_id") for envelope in log] == ["r1", "r3", None]
    assert log[-1].event == RuleArchived(rule=RULE, version=2, reason="quiet", cancelled=2)
    assert archived.seq == log[-1].seq
    async with storage.transaction(REF) as transaction:
        assert await transaction.states({RULE: Needs(frozenset({"k"}), None, ())}) == {RULE: {}}


async def test_a_rule_installed_again_is_reset_at_its_fact(workspace: Workspace) -> None:
    await workspace.install_rule(stored())
    await workspace.archive_rule(RULE)

    again = await workspace.install_rule(stored())

    progress = (await workspace.rule_progress())[RULE]
    assert (again.version, again.seq) == (3, 3)
    assert (progress.generation, progress.cursor) == (2, 3)
    history = await workspace.rule_history(RULE)
    assert [envelope.payload["version"] for envelope in history] == [1, 2, 3]
    assert await workspace.rule_history("plant:alarms") == []


async def test_a_change_in_no_state_for_it_is_refused(workspace: Workspace) -> None:
    with pytest.raises(NotFound):
        await workspace.update_rule(stored())
    with pytest.raises(NotFound):
        await workspace.archive_rule(RULE)
    await workspace.install_rule(stored())
    with pytest.raises(InvalidState, match="update it instead"):
        await workspace.install_rule(stored(description="more"))
    with pytest.raises(InvalidState, match="at version 1, not 2"):
        await workspace.update_rule(stored(description="more"), expected_version=2)
    with pytest.raises(InvalidState, match="at version 1, not 2"):
        await workspace.archive_rule(RULE, expected_version=2)
    await workspace.archive_rule(RULE)
    with pytest.raises(InvalidState, match="install it again"):
        await workspace.update_rule(stored(description="more"))


async def test_a_workspace_has_only_so_many_active_stored_rules(workspace: Workspace) -> None:
    for index in range(MAX_ACTIVE):
        await workspace.install_rule(stored(f"chat:rule-{index}"))

    with pytest.raises(InvalidState, match="archive one first"):
        await workspace.install_rule(stored())
    await workspace.update_rule(stored("chat:rule-0", description="more"))
    await workspace.archive_rule("chat:rule-1")
    await workspace.install_rule(stored())


async def test_every_problem_of_a_rule_is_listed_at_once(workspace: Workspace) -> None:
    rule = stored("plant:mine", when=on("plant:unheard"), then={"action": "wipe"})

    with pytest.raises(ValidationFailed) as refused:
        await workspace.install_rule(rule, provenance={"text": "x" * 5_000})

    for place in ("plant:unheard", "name:", "then.action:", "when.throttle:", "provenance:"):
        assert any(place in error for error in refused.value.errors), place
    assert await workspace.head_seq() == 0


async def test_stored_rules_are_off_unless_they_are_configured() -> None:
    workspace = await opened()

    with pytest.raises(Forbidden, match="off"):
        await workspace.install_rule(stored())
    with pytest.raises(Forbidden, match="off"):
        await workspace.archive_rule(RULE)


async def test_the_configuration_is_asked_whether_it_allows_the_change(storage: InMemoryStorage) -> None:
    asked: list[tuple[str, str, Actor, RuleChange]] = []

    async def allow(*question: Any) -> bool:
        asked.append(question)
        return question[3].kind == "archive"

    workspace = await opened(storage, stored_rules=stored_rules(allow))

    with pytest.raises(Forbidden, match="may not install"):
        await workspace.install_rule(stored(), provenance={"a": 1})
    with pytest.raises(NotFound):
        await workspace.archive_rule(RULE, expected_version=3, reason="why")

    assert asked == [
        ("acme", "prod", ADA, RuleChange(kind="install", name=RULE, rule=stored(), provenance={"a": 1})),
        ("acme", "prod", ADA, RuleChange(kind="archive", name=RULE, expected_version=3, reason="why")),
    ]


async def test_a_run_that_changes_a_rule_is_the_cause_of_its_fact(workspace: Workspace) -> None:
    run = workspace.caused_by(cause(), correlation_id="first")

    await run.install_rule(stored())

    [fact] = await workspace.read()
    assert (fact.causation, fact.correlation_id) == (cause(), "first")


@pytest.mark.parametrize("moments", range(16))
async def test_a_change_that_is_cancelled_at_any_moment_is_whole_or_not_there(moments: int) -> None:
    storage = HesitantStorage()
    workspace = await opened(storage, stored_rules=stored_rules())

    ended = await cancelled_after(moments, lambda: workspace.install_rule(stored()))

    assert len(await storage.stored_rules(REF)) == len(await workspace.rule_progress()) == int(ended)
    assert await workspace.head_seq() == int(ended)
    assert (await workspace.install_rule(stored())).duplicate == ended
    assert await workspace.publish(Alarm(machine="press"))


async def test_true_and_1_are_two_values_of_a_rule_and_of_its_provenance(workspace: Workspace) -> None:
    def rule(value: Any) -> Any:
        return stored(when=on(Stopped).where(F.details.eq(value)).at_most(1, per=60 * SECOND))

    await workspace.install_rule(rule(1), provenance={"checked": 1})
    changed = await workspace.update_rule(rule(True), provenance={"checked": 1})
    provenance = await workspace.update_rule(rule(True), provenance={"checked": True})
    same = await workspace.update_rule(rule(True), provenance={"checked": True})

    assert [(each.version, each.duplicate) for each in (changed, provenance, same)] == [
        (2, False),
        (3, False),
        (3, True),
    ]


async def test_ids_that_somebody_took_for_events_of_theirs_keep_no_rule_from_being_changed(
    storage: InMemoryStorage, workspace: Workspace
) -> None:
    await append(storage, *(derived_id("evt", "rule_version", RULE, version) for version in (1, 2)))

    installed = await workspace.install_rule(stored())
    again = await workspace.install_rule(stored())
    archived = await workspace.archive_rule(RULE)

    assert (installed.seq, installed.duplicate) == (3, False)
    assert (again.seq, again.duplicate) == (3, True)
    assert (await workspace.archive_rule(RULE)).seq == archived.seq == 4
    assert [fact.seq for fact in await workspace.rule_history(RULE)] == [3, 4]


async def test_a_copy_of_a_rule_with_values_that_were_never_checked_is_refused(workspace: Workspace) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await workspace.install_rule(stored().model_copy(update={"retry": None, "ordering": "none at all"}))
    assert [error.partition(":")[0] for error in refused.value.errors] == ["retry", "ordering"]

    with pytest.raises(ValidationFailed) as unwritable:
        await workspace.install_rule(stored().model_copy(update={"description": "\ud800"}))
    assert "cannot be written as JSON" in unwritable.value.errors[0]


async def test_whatever_the_reason_is_an_archive_records_it_as_text(workspace: Workspace) -> None:
    await workspace.install_rule(stored())

    await workspace.archive_rule(RULE, reason="half a \ud800")

    [_, fact] = await workspace.rule_history(RULE)
    assert fact.payload["reason"] == r"half a \ud800"


async def test_only_true_allows_a_change() -> None:
    workspace = await opened(stored_rules=stored_rules(lambda *_: "no"))

    with pytest.raises(Forbidden):
        await workspace.install_rule(stored())
