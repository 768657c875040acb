"""The model by itself: what it answers is what each storage is held to."""

from datetime import timedelta
from typing import Any

import pytest

from reflexr.contracts import samples
from reflexr.contracts.model import REFUSED, Entry, Model, ModelWorkspace, Share
from reflexr.contracts.samples import ALPHA, BETA, START, WORKSPACE, at, run_scope, scope_key
from reflexr.core import UNFINISHED, Run, RunStatus
from reflexr.workspace import (
    Deadline,
    DueRun,
    DueSchedule,
    LeaseKey,
    LogWindow,
    RunPolicy,
    RunQuery,
    StateChanges,
    Watch,
    WorkspaceRef,
    run_lease,
)

OTHER = WorkspaceRef("contract-tenant", "other")
MINUTE = timedelta(minutes=1)
UNORDERED = RunPolicy(unordered=frozenset({ALPHA}))
ORDERED = RunPolicy(ordered=frozenset({ALPHA}))
BLOCKING = RunPolicy(ordered=frozenset({ALPHA}), blocking=frozenset({ALPHA}))
STORED = RunPolicy(stored=frozenset({"contract"}))
STORED_WATCH = Watch({}, frozenset({"contract"}))


def workspace_with(*runs: Run) -> ModelWorkspace:
    return ModelWorkspace(runs={run.id: run for run in runs})


def model_of(workspace: ModelWorkspace) -> Model:
    model = Model()
    model.workspaces[WORKSPACE] = workspace
    return model


def log(*types: str) -> list[Entry]:
    return [Entry(seq, f"e{seq}", event_type) for seq, event_type in enumerate(types, 1)]


def seqs(workspace: ModelWorkspace, **window: Any) -> list[int]:
    return [entry.seq for entry in workspace.read(LogWindow(**window))]


# --- The log


def test_what_is_appended_takes_the_next_places() -> None:
    workspace = ModelWorkspace()
    assert workspace.append(samples.drafts(2)) == log(ALPHA, ALPHA)
    assert workspace.append([samples.draft("e3", BETA)]) == [Entry(3, "e3", BETA)]
    assert workspace.append([]) == []
    assert workspace.log == log(ALPHA, ALPHA, BETA)


@pytest.mark.parametrize("ids", [["e2", "e1"], ["e2", "e2"]])
def test_an_id_that_is_there_already_or_twice_is_refused_with_all_beside_it(ids: list[str]) -> None:
    workspace = ModelWorkspace(log=log(ALPHA))
    assert workspace.append([samples.draft(one) for one in ids]) == REFUSED
    assert workspace.log == log(ALPHA)


def test_a_window_is_bounded_at_both_ends_by_type_and_by_number() -> None:
    workspace = ModelWorkspace(log=log(ALPHA, BETA, ALPHA, BETA))
    assert seqs(workspace) == [1, 2, 3, 4]
    assert seqs(workspace, after_seq=1, before_seq=4) == [2, 3]
    assert seqs(workspace, types=frozenset({BETA}), limit=1) == [2]
    assert seqs(workspace, types=frozenset[str]()) == []
    assert seqs(workspace, before_seq=4, last=2) == [2, 3]
    assert seqs(workspace, last=9) == [1, 2, 3, 4]
    assert seqs(workspace, last=0) == []


# --- States


def test_states_are_saved_dropped_and_expire() -> None:
    workspace = ModelWorkspace()
    kept, lapsed, dropped = samples.marked(at(2)), samples.marked(at(1)), samples.marked(None)
    workspace.change_states(ALPHA, StateChanges({"[1]": kept, "[2]": lapsed, "[3]": dropped}, frozenset(), None))
    workspace.change_states(ALPHA, StateChanges({}, frozenset({"[3]"}), at(1)))
    assert workspace.states == {ALPHA: {"[1]": kept}}


def test_states_are_found_by_key_and_by_timer() -> None:
    armed, marked, later = samples.armed(at(1)), samples.marked(None), samples.armed(at(9))
    workspace = ModelWorkspace(states={ALPHA: {"[1]": armed, "[2]": marked, "[3]": later}})
    assert workspace.find_states(ALPHA, samples.needs("[2]")) == {"[2]": marked}
    assert workspace.find_states(ALPHA, samples.needs(through=at(1))) == {"[1]": armed}
    assert workspace.find_states(ALPHA, samples.needs("[3]", through=at(1))) == {"[1]": armed, "[3]": later}
    assert workspace.find_states(BETA, samples.needs("[1]")) == {}


# --- Stored rules, schedules and leases


def test_the_versions_of_a_stored_rule_follow_each_other() -> None:
    workspace = ModelWorkspace()
    first, second = (samples.stored(samples.rule(ALPHA), version) for version in (1, 2))
    assert workspace.save_stored(second) == REFUSED
    assert workspace.save_stored(first) is None
    assert workspace.save_stored(first) == REFUSED
    assert workspace.save_stored(second) is None
    assert workspace.stored == {ALPHA: second}


def test_a_tick_only_moves_forward() -> None:
    workspace = ModelWorkspace()
    for moment in (at(2), at(1)):
        workspace.tick("daily", moment)
    assert workspace.ticks == {"daily": at(2)}


def test_a_lease_excludes_others_until_it_ends() -> None:
    workspace = ModelWorkspace()
    assert workspace.acquire(["a"], "first", MINUTE, START) == {"a"}
    assert workspace.acquire(["a", "b"], "second", MINUTE, START) == {"b"}
    assert workspace.acquire(["a"], "first", MINUTE, START + MINUTE / 2) == {"a"}
    assert workspace.acquire(["a"], "second", MINUTE, START + MINUTE) == frozenset()
    assert workspace.acquire(["a"], "second", MINUTE, START + 1.5 * MINUTE) == {"a"}


def test_only_who_has_a_lease_renews_it_or_gives_it_back() -> None:
    workspace = ModelWorkspace()
    workspace.acquire(["a"], "first", MINUTE, START)
    assert workspace.renew(["a", "b"], "first", 2 * MINUTE, START) == {"a"}
    assert workspace.renew(["a"], "second", MINUTE, START) == frozenset()
    workspace.release(["a", "b"], "second", START)
    assert workspace.holder("a", START + MINUTE) == "first"
    workspace.release(["a", "b"], "first", START)
    assert workspace.holder("a", START) is None
    assert workspace.leases == {}


# --- Runs


def test_runs_are_found_newest_first_by_rule_scope_and_status() -> None:
    workspace = workspace_with(
        samples.run("r1", scope="x"), samples.run("r2", BETA, "running"), samples.run("r3", status="cancelled")
    )
    assert samples.ids(workspace.find_runs(RunQuery())) == ["r3", "r2", "r1"]
    assert samples.ids(workspace.find_runs(RunQuery(limit=2))) == ["r3", "r2"]
    assert samples.ids(workspace.find_runs(RunQuery(rules=frozenset({BETA})))) == ["r2"]
    assert samples.ids(workspace.find_runs(RunQuery(scope_key=scope_key("x")))) == ["r1"]
    assert samples.ids(workspace.find_runs(RunQuery(statuses=UNFINISHED))) == ["r2", "r1"]


@pytest.mark.parametrize(
    ("statuses", "free", "blocking"),
    [
        (("pending", "running"), "r2", "r2"),
        (("dead_lettered", "pending"), "r2", "r1"),
        (("retrying", "pending"), "r1", "r1"),
        (("paused", "pending"), "r2", "r2"),
        (("pending", "paused"), "r1", "r1"),
        (("paused", "paused"), None, None),
        (("succeeded", "cancelled"), None, None),
    ],
)
def test_it_is_the_turn_of_the_run_that_runs_or_else_of_the_first_that_holds_up_the_others(
    statuses: tuple[RunStatus, RunStatus], free: str | None, blocking: str | None
) -> None:
    first, second = statuses
    workspace = workspace_with(samples.run("r1", status=first), samples.run("r2", status=second, seq=2))
    assert workspace.turn(run_scope(), blocking=False) == free
    assert workspace.turn(run_scope(), blocking=True) == blocking
    assert workspace.turn(run_scope(BETA), blocking=False) is None


@pytest.mark.parametrize(
    ("statuses", "turn"), [(("paused", "pending"), "r1"), (("pending", "paused"), "r1"), (("paused", "running"), "r2")]
)
def test_a_paused_run_that_blocks_keeps_its_turn(statuses: tuple[RunStatus, RunStatus], turn: str) -> None:
    first, second = statuses
    workspace = workspace_with(
        samples.run("r1", status=first, blocks=True), samples.run("r2", status=second, seq=2, blocks=True)
    )
    assert workspace.turn(run_scope(), blocking=False) == workspace.turn(run_scope(), blocking=True) == turn


@pytest.mark.parametrize("policy", [UNORDERED, ORDERED, BLOCKING, STORED])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_paused_run_is_due_in_the_end_whatever_the_order(policy: RunPolicy, blocks: bool) -> None:
    workspace = workspace_with(samples.run("r1"), samples.run("r2", status="paused", seq=2, until=at(5), blocks=blocks))
    if policy.stored:
        workspace.save_stored(samples.stored(samples.rule(ALPHA)))
    model = model_of(workspace)
    assert model.due(policy) == {DueRun(WORKSPACE, "r1", ALPHA): START, DueRun(WORKSPACE, "r2", ALPHA): at(5)}
    assert model.due(RunPolicy()) == {}


def test_a_run_starts_at_once_or_at_its_next_attempt_or_when_its_lease_or_its_pause_ends_or_never() -> None:
    workspace = ModelWorkspace()
    workspace.acquire([run_lease("leased")], "first", MINUTE, START)
    assert workspace.starts(samples.run("r"), START) == START
    assert workspace.starts(samples.run("r", status="retrying", retry_at=at(5)), START) == at(5)
    assert workspace.starts(samples.run("leased", status="running"), START) == START + MINUTE
    assert workspace.starts(samples.run("r", status="running"), START) == START
    assert workspace.starts(samples.run("r", status="paused", until=at(5)), START) == at(5)
    assert workspace.starts(samples.run("r", status="paused"), START) is None
    assert workspace.starts(samples.run("r", status="succeeded"), START) is None


@pytest.mark.parametrize(
    ("policy", "due"),
    [
        (UNORDERED, {"r2", "r3"}),
        (ORDERED, {"r2"}),
        (BLOCKING, set[str]()),
        (RunPolicy(), set[str]()),
        (RunPolicy(unordered=frozenset({ALPHA}), withheld=frozenset({ALPHA})), set[str]()),
    ],
)
def test_a_rule_of_the_applications_own_has_its_runs_due_in_its_order(policy: RunPolicy, due: set[str]) -> None:
    model = model_of(
        workspace_with(
            samples.run("r1", status="dead_lettered"),
            samples.run("r2", seq=2),
            samples.run("r3", status="pending", seq=3),
        )
    )
    assert model.due(policy) == {DueRun(WORKSPACE, run, ALPHA): START for run in due}


@pytest.mark.parametrize(
    ("changes", "is_active", "due"),
    [
        ({"ordering": "none"}, True, {"r2", "r3"}),
        ({"ordering": "scope"}, True, {"r2"}),
        ({"ordering": "scope", "on_dead_letter": "block"}, True, set[str]()),
        ({"ordering": "none", "enabled": False}, True, set[str]()),
        ({"ordering": "none"}, False, set[str]()),
    ],
)
def test_a_stored_rule_has_its_runs_due_as_it_says_itself_while_it_is_active(
    changes: dict[str, object], is_active: bool, due: set[str]
) -> None:
    workspace = workspace_with(
        samples.run("r1", status="dead_lettered"), samples.run("r2", seq=2), samples.run("r3", seq=3)
    )
    rule = samples.rule(ALPHA).model_copy(update=changes)
    workspace.save_stored(samples.stored(rule, is_active=is_active))
    model = model_of(workspace)
    assert {run.run_id for run in model.due(STORED)} == due
    assert model.due(RunPolicy(stored=frozenset({"another"}))) == {}


# --- Turns


def due(workspace: WorkspaceRef, *run_ids: str) -> set[DueRun]:
    return {DueRun(workspace, run_id, ALPHA) for run_id in run_ids}


@pytest.mark.parametrize(
    ("share", "turns"),
    [
        (Share(9), [WORKSPACE, OTHER, OTHER]),
        (Share(2), [WORKSPACE, OTHER]),
        (Share(0), []),
        (Share(9, each=1), [WORKSPACE, OTHER]),
        (Share(9, after=WORKSPACE), [OTHER, WORKSPACE, OTHER]),
        (Share(9, but_workspaces=frozenset({OTHER})), [WORKSPACE]),
        (Share(9, but_runs=frozenset({LeaseKey(OTHER, run_lease("r2"))})), [WORKSPACE, OTHER]),
    ],
)
def test_workspaces_take_turns_until_nothing_is_left_or_it_is_enough(share: Share, turns: list[WorkspaceRef]) -> None:
    assert Model().turns(due(WORKSPACE, "r1") | due(OTHER, "r2", "r3"), share) == turns


def test_nobody_has_a_turn_where_nothing_is_due() -> None:
    assert Model().turns([], Share(9)) == []


# --- Workspaces


def test_a_rule_is_behind_where_it_is_new_or_has_more_to_read_or_was_changed() -> None:
    workspace = ModelWorkspace(log=log(ALPHA, ALPHA))
    model, watch = model_of(workspace), Watch(samples.definitions(ALPHA))
    assert model.behind(watch) == {WORKSPACE}
    for progress, is_behind in (
        (samples.progress(ALPHA, 1), True),
        (samples.progress(ALPHA, 2), False),
        (samples.progress(ALPHA, 2, definition="d2"), True),
    ):
        workspace.progress[ALPHA] = progress
        assert model.behind(watch) == ({WORKSPACE} if is_behind else set())


def test_a_stored_rule_is_behind_while_it_is_active_whatever_its_definition() -> None:
    workspace = ModelWorkspace(log=log(ALPHA))
    model = model_of(workspace)
    assert model.behind(STORED_WATCH) == set()
    workspace.save_stored(samples.stored(samples.rule(ALPHA)))
    assert model.behind(STORED_WATCH) == {WORKSPACE}
    assert model.behind(Watch({}, frozenset({"another"}))) == set()
    workspace.progress[ALPHA] = samples.progress(ALPHA, 1, definition="d2")
    assert model.behind(STORED_WATCH) == set()
    workspace.progress.clear()
    workspace.save_stored(samples.stored(samples.rule(ALPHA), 2, is_active=False))
    assert model.behind(STORED_WATCH) == set()


def test_a_schedule_is_due_where_it_has_not_ticked_since_its_deadline() -> None:
    model = model_of(ModelWorkspace(log=log(ALPHA)))
    everywhere, there = Deadline(at(5)), Deadline(at(5), frozenset({OTHER}))
    assert model.due_schedules({"daily": everywhere}) == {DueSchedule(WORKSPACE, "daily", None)}
    assert model.due_schedules({"daily": there}) == {DueSchedule(OTHER, "daily", None)}
    model[WORKSPACE].tick("daily", at(4))
    assert model.due_schedules({"daily": everywhere}) == {DueSchedule(WORKSPACE, "daily", at(4))}
    model[WORKSPACE].tick("daily", at(5))
    assert model.due_schedules({"daily": everywhere}) == set()


def test_a_workspace_is_there_once_it_has_a_log_and_a_copy_of_it_is_another() -> None:
    model = Model()
    copied = model.copied(WORKSPACE)
    copied.append(samples.drafts(1))
    assert model.logs() == []
    model.workspaces[WORKSPACE] = copied
    assert model.logs() == [WORKSPACE]
