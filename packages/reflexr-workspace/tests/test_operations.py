from typing import Any

import pytest

from reflexr.core import (
    ChainTarget,
    DepthExceeded,
    FeedbackGiven,
    FiringTarget,
    InvalidState,
    Needs,
    NotFound,
    RuleProgress,
    RuleReset,
    RunTarget,
    ScopeState,
    ValidationFailed,
    begin,
    reset,
    skip,
)
from reflexr.workspace import InMemoryStorage, LeaseKey, ManualClock, Reactor, StateChanges, Workspace, run_lease

from .hesitation import HesitantStorage, cancelled_after
from .plant import (
    ADA,
    REF,
    SECOND,
    START,
    Alarm,
    Missed,
    Verdict,
    a_run,
    alarms,
    append,
    cause,
    opened,
    save,
    workspaces,
)
from .reacting import nothing

RULE = "plant:alarms"


@pytest.fixture
def storage() -> InMemoryStorage:
    return InMemoryStorage(clock=ManualClock(START))


@pytest.fixture
async def workspace(storage: InMemoryStorage) -> Workspace:
    return await opened(storage)


# --- Runs


async def test_runs_are_read_through_the_handle(storage: InMemoryStorage, workspace: Workspace) -> None:
    await save(storage, a_run("r1"), a_run("r2", scope_key="[]"))

    assert [run.id for run in await workspace.runs(rule=RULE, status="pending", limit=5)] == ["r2", "r1"]
    assert [run.id for run in await workspace.runs(scope_key="[]")] == ["r2"]
    assert (await workspace.run("r1")).id == "r1"
    with pytest.raises(NotFound, match="'r9'"):
        await workspace.run("r9")


async def test_an_operation_moves_the_run_and_appends_its_fact_in_the_actors_name(
    storage: InMemoryStorage, workspace: Workspace
) -> None:
    await save(storage, a_run("r1"), a_run("r2"))

    skipped = await workspace.skip_run("r1", reason="noise")
    cancelled = await workspace.cancel_run("r2", reason="enough")
    retried = await workspace.retry_run("r2")

    assert (skipped.status, skipped.reason, skipped.finished_at) == ("skipped", "noise", START)
    assert (cancelled.status, retried.status) == ("cancelled", "pending")
    assert await workspace.run("r2") == retried
    log = await workspace.read()
    assert [envelope.event_type for envelope in log] == [
        "reflexr:run_skipped",
        "reflexr:run_cancelled",
        "reflexr:run_requeued",
    ]
    assert all((envelope.actor, envelope.correlation_id) == (ADA, "first") for envelope in log)


async def test_a_running_run_that_is_cancelled_loses_its_lease_so_that_its_executor_stops(
    storage: InMemoryStorage, workspace: Workspace
) -> None:
    lease = LeaseKey(REF, run_lease("r1"))
    await save(storage, a_run("r1", status="running", attempt=1), a_run("r2", status="running", attempt=1))
    await storage.acquire([lease], "executor", SECOND)

    await workspace.cancel_run("r1")
    await workspace.cancel_run("r2")

    assert await storage.renew([lease], "executor", SECOND) == frozenset()


async def test_an_operation_that_is_refused_changes_nothing(storage: InMemoryStorage, workspace: Workspace) -> None:
    await save(storage, a_run("r1", status="succeeded"))

    for operation in (workspace.retry_run, workspace.skip_run, workspace.cancel_run):
        with pytest.raises(InvalidState):
            await operation("r1")
        with pytest.raises(NotFound):
            await operation("r9")

    assert await workspace.head_seq() == 0


@pytest.mark.parametrize("moments", range(10))
async def test_an_operation_that_is_cancelled_at_any_moment_is_whole_or_not_there(moments: int) -> None:
    storage = HesitantStorage()
    workspace = await opened(storage)
    await save(storage, a_run("r1"))

    ended = await cancelled_after(moments, lambda: workspace.cancel_run("r1"))

    assert (await workspace.run("r1")).status == ("cancelled" if ended else "pending")
    assert await workspace.head_seq() == (1 if ended else 0)
    assert storage.sizes().callers == 0


# --- Replay


async def evaluated(storage: InMemoryStorage, count: int) -> RuleProgress:
    progress = RuleProgress(rule=RULE, generation=3, cursor=count, definition=alarms().definition())
    await append(storage, *(f"e{index}" for index in range(count)))
    async with storage.transaction(REF) as transaction:
        await transaction.save_progress([progress])
        await transaction.change_states({RULE: StateChanges(saved={"k": ScopeState(fired=(START,))})})
    return progress


async def test_a_rebuild_recomputes_silently_up_to_the_head(storage: InMemoryStorage, workspace: Workspace) -> None:
    await evaluated(storage, 5)

    progress = await workspace.replay_rule(RULE, from_seq=2, mode="rebuild")

    assert (progress.generation, progress.cursor, progress.silent_through) == (4, 1, 5)
    assert await workspace.rule_progress() == {RULE: progress}
    [fact] = await workspace.read(after_seq=5)
    assert fact.actor == ADA
    assert fact.event == RuleReset(rule=RULE, generation=4, reason="replayed", from_seq=2, silent_through=5)
    async with storage.transaction(REF) as transaction:
        assert await transaction.states({RULE: Needs(frozenset({"k"}), None, ())}) == {RULE: {}}


async def test_a_refire_fires_again_for_the_past(storage: InMemoryStorage, workspace: Workspace) -> None:
    await evaluated(storage, 5)

    progress = await workspace.replay_rule(RULE, from_seq=1, mode="refire")

    assert (progress.generation, progress.cursor, progress.silent_through) == (4, 0, 0)


async def test_a_rule_that_has_not_begun_can_be_replayed(storage: InMemoryStorage, workspace: Workspace) -> None:
    await append(storage, "a")

    assert (await workspace.replay_rule(RULE, from_seq=1, mode="refire")).cursor == 0


@pytest.mark.parametrize(
    ("arguments", "rejection"),
    [
        ({"rule": "plant:unheard", "from_seq": 1, "mode": "rebuild"}, NotFound),
        ({"rule": RULE, "from_seq": 0, "mode": "rebuild"}, ValidationFailed),
        ({"rule": RULE, "from_seq": 7, "mode": "rebuild"}, ValidationFailed),
        ({"rule": RULE, "from_seq": 1, "mode": "again"}, ValidationFailed),
    ],
)
async def test_a_replay_that_cannot_be_is_refused(
    storage: InMemoryStorage, workspace: Workspace, arguments: dict[str, Any], rejection: type[Exception]
) -> None:
    progress = await evaluated(storage, 5)

    with pytest.raises(rejection):
        await workspace.replay_rule(**arguments)

    assert await workspace.rule_progress() == {RULE: progress}
    assert await workspace.head_seq() == 5


# --- Feedback


async def test_feedback_joins_its_targets_chain(storage: InMemoryStorage, workspace: Workspace) -> None:
    await workspace.publish(Alarm(machine="press"), id="first")
    await save(storage, a_run("fir_1", chain="first"))

    on_run = await workspace.give_feedback(Verdict(correct=True), on=RunTarget(run_id="fir_1"))
    on_firing = await workspace.give_feedback(Missed(should_fire=False), on=FiringTarget(firing_id="fir_1"))
    on_chain = await workspace.give_feedback(Verdict(correct=False), on=ChainTarget(correlation_id="first"))

    assert {envelope.correlation_id for envelope in (on_run, on_firing, on_chain)} == {"first"}
    assert on_run.actor == ADA
    assert on_run.event == FeedbackGiven(
        feedback_type="plant_verdict",
        target=RunTarget(run_id="fir_1"),
        value={"correct": True, "severity": "low"},
    )
    assert await workspace.read(after_seq=1) == [on_run, on_firing, on_chain]


@pytest.mark.parametrize(
    ("feedback", "target", "rejection"),
    [
        (Verdict(correct=True), RunTarget(run_id="r9"), NotFound),
        (Missed(should_fire=True), FiringTarget(firing_id="r9"), NotFound),
        (Verdict(correct=True), ChainTarget(correlation_id="r9"), NotFound),
        (Verdict(correct=True), ChainTarget(correlation_id="second"), ValidationFailed),
        (Verdict(correct=True), FiringTarget(firing_id="fir_1"), ValidationFailed),
        (Missed(should_fire=True), RunTarget(run_id="fir_1"), ValidationFailed),
    ],
)
async def test_feedback_that_finds_no_such_target_is_refused(
    storage: InMemoryStorage, workspace: Workspace, feedback: Any, target: Any, rejection: type[Exception]
) -> None:
    await workspace.publish(Alarm(machine="press"), id="first")
    await workspace.publish(Alarm(machine="press"), id="second", correlation_id="first")
    await save(storage, a_run("fir_1"))

    with pytest.raises(rejection):
        await workspace.give_feedback(feedback, on=target)

    assert await workspace.head_seq() == 2


async def test_a_run_gives_feedback_in_its_own_name_unless_it_is_too_deep(storage: InMemoryStorage) -> None:
    workspace = await opened(storage, max_depth=2)
    await save(storage, a_run("fir_1"))
    verdict, target = Verdict(correct=True), RunTarget(run_id="fir_1")

    given = await workspace.caused_by(cause("fir_2", 2), correlation_id="other").give_feedback(verdict, on=target)

    assert (given.causation, given.correlation_id) == (cause("fir_2", 2), "first")
    with pytest.raises(DepthExceeded):
        await workspace.caused_by(cause(depth=3), correlation_id="other").give_feedback(verdict, on=target)


async def test_a_cursor_is_kept_for_a_consumer_of_the_log(workspace: Workspace) -> None:
    assert await workspace.cursor("mirror") == 0
    assert await workspace.save_cursor("mirror", 7) == 7
    assert await workspace.save_cursor("mirror", 3) == 7


async def test_ids_that_somebody_took_for_events_of_theirs_keep_no_operation_from_being_done(
    storage: InMemoryStorage, workspace: Workspace
) -> None:
    await save(storage, a_run(status="pending"))
    foretold = [
        skip(a_run(), now=START, actor=ADA).facts[0].id,
        reset(alarms(), begin(alarms(), 0), head_seq=0).fact.id,
    ]
    await append(storage, *foretold)

    assert (await workspace.skip_run("fir_1")).status == "skipped"
    assert (await workspace.replay_rule(RULE, from_seq=1, mode="refire")).generation == 2

    facts = [(fact.event_type, fact.correlation_id == fact.id) for fact in await workspace.read(after_seq=2)]
    assert facts == [("reflexr:run_skipped", False), ("reflexr:rule_reset", True)]


async def test_a_replay_in_a_new_workspace_makes_no_other_rule_miss_the_beginning() -> None:
    other = alarms("plant:others")
    host = workspaces(rules=[alarms(), other])
    workspace = await host.open("acme", "prod", actor=ADA)
    await workspace.publish(Alarm(machine="press", level=5))

    await workspace.replay_rule(RULE, from_seq=2, mode="refire")

    progress = await workspace.rule_progress()
    assert progress["plant:others"] == RuleProgress("plant:others", 1, 0, other.definition())
    await Reactor(host, actions={"page": nothing}).evaluate()
    assert [run.rule for run in await workspace.runs()] == ["plant:others"]
