"""How work is found: leases, due runs, rules that are behind, and due schedules."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, override

import pytest

from reflexr.core import RuleProgress, Run, StoredRule
from reflexr.workspace import (
    Deadline,
    DueSchedule,
    InMemoryStorage,
    LeaseKey,
    ManualClock,
    RunPolicy,
    Watch,
    WorkspaceRef,
    run_lease,
)
from reflexr.workspace.memory_data import RunRow, WorkspaceData
from reflexr.workspace.memory_work import Behind, DueRuns, Leases

from .plant import REF, SECOND, START, a_run, append, save, stored

RULE = "plant:alarms"
OTHER = WorkspaceRef("acme", "test")
EVALUATION = LeaseKey(REF, "evaluation")
ORDERED = RunPolicy(ordered=frozenset({RULE}))
BLOCKING = RunPolicy(ordered=frozenset({RULE}), blocking=frozenset({RULE}))
UNORDERED = RunPolicy(unordered=frozenset({RULE}))
STORED = RunPolicy(stored=frozenset({"chat"}))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def storage(clock: ManualClock) -> InMemoryStorage:
    return InMemoryStorage(clock=clock)


async def due(storage: InMemoryStorage, policy: RunPolicy, limit: int = 99) -> list[str]:
    return [run.run_id for run in await storage.due_runs(policy, limit=limit)]


async def claim(storage: InMemoryStorage, *names: str, holder: str = "me", seconds: int = 30) -> Collection[str]:
    async with storage.transaction(REF) as transaction:
        return await transaction.acquire(names, holder, seconds * SECOND)


# --- Leases


async def test_a_lease_is_one_holders_until_it_lapses(storage: InMemoryStorage, clock: ManualClock) -> None:
    assert await storage.acquire([EVALUATION], "a", 10 * SECOND) == {EVALUATION}
    assert await storage.acquire([EVALUATION], "b", 10 * SECOND) == frozenset()
    clock.advance(timedelta(seconds=9.999))
    assert await storage.acquire([EVALUATION], "b", 10 * SECOND) == frozenset()
    clock.advance(timedelta(seconds=0.001))
    assert await storage.acquire([EVALUATION], "b", 10 * SECOND) == {EVALUATION}
    assert await storage.renew([EVALUATION], "a", 10 * SECOND) == frozenset()


async def test_a_lease_that_is_renewed_in_time_is_kept_and_one_that_lapsed_is_lost(
    storage: InMemoryStorage, clock: ManualClock
) -> None:
    await storage.acquire([EVALUATION], "a", 10 * SECOND)
    clock.advance(9 * SECOND)
    assert await storage.renew([EVALUATION, LeaseKey(REF, "x")], "a", 10 * SECOND) == {EVALUATION}
    clock.advance(9 * SECOND)
    assert await storage.acquire([EVALUATION], "b", SECOND) == frozenset()
    clock.advance(SECOND)
    assert await storage.renew([EVALUATION], "a", 10 * SECOND) == frozenset()


async def test_a_lease_is_given_back_by_its_holder_alone(storage: InMemoryStorage) -> None:
    await storage.acquire([EVALUATION], "a", 10 * SECOND)

    await storage.release([EVALUATION], "b")
    assert await storage.acquire([EVALUATION], "b", SECOND) == frozenset()
    await storage.release([EVALUATION, EVALUATION], "a")
    assert await storage.acquire([EVALUATION], "b", SECOND) == {EVALUATION}


async def test_leases_that_lapsed_are_forgotten(storage: InMemoryStorage, clock: ManualClock) -> None:
    await storage.acquire([LeaseKey(REF, str(index)) for index in range(100)], "a", SECOND)
    clock.advance(SECOND)

    await storage.acquire([EVALUATION], "a", SECOND)

    assert storage.sizes().leases == 1


async def test_a_lease_taken_in_a_transaction_is_in_force_once_it_commits(storage: InMemoryStorage) -> None:
    async with storage.transaction(REF) as transaction:
        assert await transaction.acquire(["evaluation", "x"], "a", 10 * SECOND) == {"evaluation", "x"}
        assert await transaction.acquire(["x"], "b", 10 * SECOND) == frozenset()
        await transaction.release(["x", "y"], "a")
        assert await transaction.holders(["evaluation", "x", "y"]) == {"evaluation": "a"}
        # Nobody slips in between.
        assert await storage.acquire([EVALUATION], "b", SECOND) == frozenset()

    assert await storage.acquire([EVALUATION, LeaseKey(REF, "x")], "b", SECOND) == {LeaseKey(REF, "x")}


async def test_a_lease_released_in_a_transaction_can_be_taken_again_in_it(storage: InMemoryStorage) -> None:
    await storage.acquire([EVALUATION], "a", 10 * SECOND)
    async with storage.transaction(REF) as transaction:
        await transaction.release(["evaluation"], "a")
        assert await transaction.acquire(["evaluation"], "b", SECOND) == {"evaluation"}

    assert await storage.renew([EVALUATION], "b", SECOND) == {EVALUATION}
    async with storage.transaction(REF) as transaction:
        await transaction.release(["evaluation"], "b")
    assert storage.sizes().leases == 0


async def test_a_release_does_not_take_a_lease_that_changed_hands_before_the_commit(
    storage: InMemoryStorage, clock: ManualClock
) -> None:
    await storage.acquire([EVALUATION], "a", SECOND)
    async with storage.transaction(REF) as transaction:
        await transaction.release(["evaluation"], "a")
        clock.advance(SECOND)
        assert await storage.acquire([EVALUATION], "b", SECOND) == {EVALUATION}

    assert await storage.renew([EVALUATION], "b", SECOND) == {EVALUATION}


# --- Due runs


async def test_of_an_ordered_scope_only_the_first_unfinished_run_is_due(storage: InMemoryStorage) -> None:
    await save(storage, a_run("r2", seq=2), a_run("r1", seq=1), a_run("s1", scope_key='["saw"]'))

    assert sorted(await due(storage, ORDERED)) == ["r1", "s1"]
    assert sorted(await due(storage, UNORDERED)) == ["r1", "r2", "s1"]
    assert await due(storage, RunPolicy()) == []
    assert len(await due(storage, UNORDERED, limit=2)) == 2

    await save(storage, a_run("r1", seq=1, status="succeeded"))
    assert sorted(await due(storage, ORDERED)) == ["r2", "s1"]


async def test_a_dead_lettered_run_blocks_its_scope_where_the_rule_says_so(storage: InMemoryStorage) -> None:
    await save(storage, a_run("r1", seq=1, status="dead_lettered"), a_run("r2", seq=2))

    assert await due(storage, ORDERED) == ["r2"]
    assert await due(storage, BLOCKING) == []
    assert await due(storage, UNORDERED) == ["r2"]

    await save(storage, a_run("r1", seq=1, status="skipped"))
    assert await due(storage, BLOCKING) == ["r2"]


async def test_a_retrying_run_is_due_from_its_time_on_and_holds_back_the_later_ones(
    storage: InMemoryStorage, clock: ManualClock
) -> None:
    retrying = a_run("r1", seq=1, status="retrying", next_attempt_at=START + 10 * SECOND)
    await save(storage, retrying, a_run("r2", seq=2))

    assert await due(storage, ORDERED) == []
    assert await storage.next_due(ORDERED) == 10 * SECOND
    clock.advance(10 * SECOND)
    assert await due(storage, ORDERED) == ["r1"]
    assert await storage.next_due(ORDERED) == timedelta(0)
    assert await storage.next_due(RunPolicy()) is None


async def test_a_running_run_is_due_again_once_no_live_lease_is_on_it(
    storage: InMemoryStorage, clock: ManualClock
) -> None:
    await save(storage, a_run("r1"))
    async with storage.transaction(REF) as transaction:
        await transaction.acquire([run_lease("r1")], "a", 10 * SECOND)
        await transaction.save_runs([a_run("r1", status="running", attempt=1), a_run("r2", seq=2)])

    assert await due(storage, ORDERED) == []
    assert await storage.next_due(ORDERED) == 10 * SECOND
    key = LeaseKey(REF, run_lease("r1"))
    clock.advance(5 * SECOND)
    await storage.renew([key], "a", 10 * SECOND)
    assert await storage.next_due(ORDERED) == 10 * SECOND
    clock.advance(10 * SECOND)
    assert await due(storage, ORDERED) == ["r1"]

    await storage.acquire([key], "b", 10 * SECOND)
    assert await due(storage, ORDERED) == []
    with storage.wakeups.listen() as listener:
        await storage.release([key], "b")
        assert await listener.wait() == {REF}
    assert await due(storage, ORDERED) == ["r1"]


async def test_those_that_have_waited_longest_come_first(storage: InMemoryStorage, clock: ManualClock) -> None:
    def late(run_id: str, seconds: int, rule: str = RULE) -> Run:
        at = START + seconds * SECOND
        return a_run(run_id, rule=rule, scope_key=run_id, status="retrying", next_attempt_at=at)

    runs = [
        a_run("new").model_copy(update={"fired_at": START + 5 * SECOND}),
        late("third", 9),
        late("first", 1),
        late("second", 3, rule="plant:other"),
    ]
    clock.advance(20 * SECOND)
    await save(storage, *runs)

    policy = RunPolicy(ordered=frozenset({RULE, "plant:other"}))
    assert await due(storage, policy) == ["first", "second", "new", "third"]
    assert await due(storage, policy, limit=2) == ["first", "second"]


def saved(data: WorkspaceData, index: DueRuns, *runs: Run) -> None:
    for run in runs:
        data.runs.save(RunRow.of(run), run.model_dump_json())
    index.update(REF, data, [run.id for run in runs], START)


def test_runs_whose_turn_it_is_not_are_out_of_the_way_and_those_that_ended_are_forgotten() -> None:
    data, index = WorkspaceData(), DueRuns(Leases())
    pending = [a_run(f"r{number}", seq=number) for number in range(1_000)]

    saved(data, index, *pending)
    assert (len(index.rules[RULE].free), len(index.rules[RULE].waiting)) == (1, 999)
    saved(data, index, *(run.model_copy(update={"status": "succeeded"}) for run in pending))

    assert index.rules == {}


@pytest.mark.parametrize(
    ("changes", "status", "expected"),
    [
        ({}, "active", ["r1"]),
        ({"ordering": "none"}, "active", ["r1", "r2"]),
        ({"enabled": False}, "active", []),
        ({}, "archived", []),
    ],
)
async def test_a_stored_rules_runs_are_carried_out_as_its_workspace_says(
    storage: InMemoryStorage, changes: dict[str, Any], status: str, expected: list[str]
) -> None:
    await save(storage, *(a_run(f"r{index}", rule="chat:alarms", seq=index) for index in (1, 2)))
    rule = StoredRule.model_validate({"rule": stored(**changes), "version": 1, "status": status})
    async with storage.transaction(REF) as transaction:
        await transaction.save_stored_rules([rule])

    assert sorted(await due(storage, STORED)) == expected
    assert await due(storage, RunPolicy(stored=frozenset({"other"}))) == []


async def test_a_stored_rule_that_blocks_holds_back_the_runs_behind_a_dead_lettered_one(
    storage: InMemoryStorage,
) -> None:
    async with storage.transaction(REF) as transaction:
        await transaction.save_stored_rules([StoredRule(rule=stored(on_dead_letter="block"), version=1)])
    dead = a_run("r1", rule="chat:alarms", seq=1, status="dead_lettered")
    await save(storage, dead, a_run("r2", rule="chat:alarms", seq=2))
    assert await due(storage, STORED) == []

    await save(storage, dead.model_copy(update={"status": "skipped"}))
    assert await due(storage, STORED) == ["r2"]

    await save(storage, a_run("r2", rule="chat:alarms", seq=2, status="succeeded"))
    assert await due(storage, STORED) == []


# --- Rules that are behind


def watch(definition: str = "d", *rules: str, stored: Collection[str] = ()) -> Watch:
    return Watch(dict.fromkeys(rules or (RULE,), definition), frozenset(stored))


async def evaluate(storage: InMemoryStorage, ref: WorkspaceRef, rule: str = RULE, cursor: int | None = None) -> None:
    async with storage.transaction(ref) as transaction:
        head = transaction.head.seq if cursor is None else cursor
        await transaction.save_progress([RuleProgress(rule=rule, generation=1, cursor=head, definition="d")])


async def test_a_workspace_is_behind_until_its_rules_stand_at_its_head(storage: InMemoryStorage) -> None:
    assert await storage.behind(watch(), limit=9) == []
    await storage.save_cursor(OTHER, "mirror", 1)
    await append(storage, "a")
    assert await storage.behind(watch(), limit=9) == [REF]
    assert await storage.behind(watch(), limit=9) == [REF]

    await evaluate(storage, REF)
    assert await storage.behind(watch(), limit=9) == []
    await append(storage, "b")
    assert await storage.behind(watch(), limit=9) == [REF]


async def test_a_rule_of_another_definition_or_with_no_progress_is_behind(storage: InMemoryStorage) -> None:
    await append(storage, "a")
    await evaluate(storage, REF)

    assert await storage.behind(watch("changed"), limit=9) == [REF]
    assert await storage.behind(watch("d", RULE, "plant:new"), limit=9) == [REF]
    assert await storage.behind(watch(), limit=9) == []


async def test_two_processes_with_different_rules_miss_nothing(storage: InMemoryStorage) -> None:
    old, new = watch(), watch("d", RULE, "plant:new")
    for turn in range(3):
        await append(storage, f"e{turn}")
        assert await storage.behind(old, limit=9) == [REF]
        await evaluate(storage, REF)
        assert await storage.behind(old, limit=9) == []
        assert await storage.behind(new, limit=9) == [REF]
        await evaluate(storage, REF, "plant:new")
        assert await storage.behind(new, limit=9) == []


async def test_a_limit_leaves_no_workspace_out_for_ever(storage: InMemoryStorage) -> None:
    for name in "abc":
        await append(storage, "e", ref=WorkspaceRef("acme", name))

    seen = [await storage.behind(watch(), limit=1) for _ in range(3)]

    assert sorted(ref.workspace_id for refs in seen for ref in refs) == ["a", "b", "c"]


async def test_stored_rules_are_behind_while_they_are_active_and_enabled(storage: InMemoryStorage) -> None:
    chat, nothing = watch(stored=["chat"]), Watch({})
    await append(storage, "a")
    await evaluate(storage, REF)
    async with storage.transaction(REF) as transaction:
        await transaction.save_stored_rules([StoredRule(rule=stored(), version=1)])
    assert await storage.behind(chat, limit=9) == [REF]
    assert await storage.behind(nothing, limit=9) == []

    await evaluate(storage, REF, "chat:alarms", cursor=0)
    assert await storage.behind(chat, limit=9) == [REF]
    await evaluate(storage, REF, "chat:alarms")
    assert await storage.behind(chat, limit=9) == []

    async with storage.transaction(REF) as transaction:
        await transaction.save_stored_rules([StoredRule(rule=stored(enabled=False), version=2)])
    await append(storage, "b")
    await evaluate(storage, REF)
    assert await storage.behind(chat, limit=9) == []


class Watched(dict[WorkspaceRef, WorkspaceData]):
    """Remembers which workspaces were looked at."""

    def __init__(self, count: int) -> None:
        super().__init__((WorkspaceRef("acme", f"w{index}"), WorkspaceData()) for index in range(count))
        self.seen: list[str] = []

    @override
    def __getitem__(self, key: WorkspaceRef) -> WorkspaceData:
        self.seen.append(key.workspace_id)
        return super().__getitem__(key)


def test_a_pass_looks_only_at_workspaces_that_changed() -> None:
    workspaces = Watched(50)
    index = Behind(workspaces)
    assert index.find(watch(), 9) == []
    assert len(workspaces.seen) == 50
    workspaces.seen.clear()

    index.changed(WorkspaceRef("acme", "w7"))

    assert index.find(watch(), 9) == []
    assert workspaces.seen == ["w7"]


def test_only_so_many_sets_of_rules_are_remembered_and_a_forgotten_one_looks_at_everything() -> None:
    workspaces = Watched(1)
    index = Behind(workspaces)
    for number in range(17):
        index.find(watch(str(number)), 9)
    workspaces.seen.clear()

    index.find(watch("16"), 9)
    assert workspaces.seen == []
    index.find(watch("0"), 9)
    assert workspaces.seen == ["w0"]


# --- Due schedules


def deadline(at: datetime, *workspaces: WorkspaceRef) -> dict[str, Deadline]:
    return {"s": Deadline(at, frozenset(workspaces) if workspaces else None)}


async def test_a_schedule_is_due_in_every_workspace_with_a_log_where_it_has_not_ticked(
    storage: InMemoryStorage,
) -> None:
    await append(storage, "a")
    await storage.save_cursor(WorkspaceRef("acme", "empty"), "mirror", 1)
    assert await storage.due_schedules(deadline(START), limit=9) == [DueSchedule(REF, "s", None)]
    assert await storage.due_schedules(deadline(START), limit=0) == []

    async with storage.transaction(REF) as transaction:
        await transaction.save_schedule_ticks({"s": START})
    await append(storage, "a", ref=OTHER)
    assert await storage.due_schedules(deadline(START), limit=9) == [DueSchedule(OTHER, "s", None)]
    later = deadline(START + SECOND)
    assert set(await storage.due_schedules(later, limit=9)) == {
        DueSchedule(REF, "s", START),
        DueSchedule(OTHER, "s", None),
    }
    assert len(await storage.due_schedules(later, limit=1)) == 1


async def test_a_schedule_with_targets_is_due_in_those_alone_with_or_without_a_log(storage: InMemoryStorage) -> None:
    await append(storage, "a")
    target = WorkspaceRef("acme", "listed")

    assert await storage.due_schedules(deadline(START, target), limit=9) == [DueSchedule(target, "s", None)]
    async with storage.transaction(target) as transaction:
        await transaction.save_schedule_ticks({"s": START})
    assert await storage.due_schedules(deadline(START, target), limit=9) == []
    later = await storage.due_schedules(deadline(START + SECOND, target), limit=9)
    assert later == [DueSchedule(target, "s", START)]
