"""What a storage promises of due runs: which may start now, under each policy, and when the next one may."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import ALPHA, BETA, GAMMA, HOUR, SECOND, START, WORKSPACE, rule, run, run_scope, stored
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.contracts.values import EVERYTHING
from reflexr.workspace import DueRun, LeaseKey, RunPolicy, WorkspaceRef, run_lease

UNORDERED = RunPolicy(unordered=frozenset({ALPHA}))
ORDERED = RunPolicy(ordered=frozenset({ALPHA}))
BLOCKING = RunPolicy(ordered=frozenset({ALPHA}), blocking=frozenset({ALPHA}))
STORED = RunPolicy(stored=frozenset({"contract"}))


class DueRunsContract(StorageGuarantees):
    """A run is due if its policy, its turn and its time allow, or if its executor is gone."""

    @guarantee()
    async def test_a_pending_run_is_due(self, trial: StorageTrial) -> None:
        """A pending run that the policy admits is due at once, and is named with its workspace and its rule."""
        await trial.save(run("r1"))
        assert await trial.storage.due_runs(UNORDERED, limit=10) == [DueRun(WORKSPACE, "r1", ALPHA)]
        assert await trial.storage.next_due(UNORDERED) == timedelta()

    @guarantee()
    async def test_a_run_is_due_whatever_is_in_it(self, trial: StorageTrial) -> None:
        """Whatever values its scope and its checkpoint hold, a run is due and has its turn, and keeps back no other."""
        odd = run("r1", scope=EVERYTHING, seq=1).model_copy(update={"checkpoint": EVERYTHING})
        again = run("r2", status="retrying", scope=EVERYTHING, seq=2, retry_at=START - SECOND)
        await trial.save(odd, again.model_copy(update={"checkpoint": EVERYTHING}), run("r3", seq=3))
        assert sorted(await trial.due(UNORDERED)) == ["r1", "r2", "r3"]
        assert sorted(await trial.due(ORDERED)) == ["r1", "r3"]
        scopes = run_scope(scope=EVERYTHING), run_scope()
        assert await trial.turns(*scopes) == {scopes[0]: "r1", scopes[1]: "r3"}
        await trial.store(rule(ALPHA))
        for limit in (1, 2, 3):
            assert len(await trial.due(STORED, limit=limit)) == min(limit, 2)

    @guarantee()
    async def test_a_run_that_ended_is_not_due(self, trial: StorageTrial) -> None:
        """A run that succeeded, was dead-lettered, cancelled or skipped is not due under any policy."""
        await trial.save(
            run("r1", status="succeeded"),
            run("r2", status="dead_lettered", seq=2),
            run("r3", status="cancelled", seq=3),
            run("r4", status="skipped", seq=4),
        )
        for policy in (UNORDERED, ORDERED, BLOCKING):
            assert await trial.due(policy) == []
            assert await trial.storage.next_due(policy) is None

    @guarantee()
    async def test_a_run_whose_rule_is_in_no_policy_is_not_due(self, trial: StorageTrial) -> None:
        """Runs of rules that the policy does not name are not due, and nobody waits for them."""
        await trial.save(run("r1"))
        for policy in (RunPolicy(), RunPolicy(unordered=frozenset({BETA})), RunPolicy(ordered=frozenset({BETA}))):
            assert await trial.due(policy) == []
            assert await trial.storage.next_due(policy) is None

    @guarantee()
    async def test_unordered_runs_are_all_due(self, trial: StorageTrial) -> None:
        """Of an unordered rule every pending run is due, whatever its scope and whatever runs beside it."""
        await trial.save(run("r1", seq=1), run("r2", seq=2), run("r3", scope="x", seq=3))
        await trial.claim(run("r0", status="running", seq=0))
        assert sorted(await trial.due(UNORDERED)) == ["r1", "r2", "r3"]

    @guarantee()
    async def test_of_ordered_runs_the_first_of_each_scope_is_due(self, trial: StorageTrial) -> None:
        """Of an ordered rule only the run whose turn it is in its scope is due, and the next one once that ended."""
        await trial.save(run("x2", scope="x", seq=2), run("x1", scope="x", seq=1), run("y1", scope="y", seq=3))
        assert sorted(await trial.due(ORDERED)) == ["x1", "y1"]
        await trial.save(run("x1", status="succeeded", scope="x", seq=1))
        assert sorted(await trial.due(ORDERED)) == ["x2", "y1"]

    @guarantee()
    async def test_a_run_that_runs_holds_back_those_of_its_scope(self, trial: StorageTrial) -> None:
        """While an ordered run is running under a live lease, no other run of its scope is due."""
        await trial.save(run("again", scope="x", seq=1))
        await trial.claim(run("runs", status="running", scope="x", seq=2))
        assert await trial.due(ORDERED) == []

    @guarantee()
    async def test_a_dead_lettered_run_holds_back_those_of_its_scope_where_it_blocks(self, trial: StorageTrial) -> None:
        """Under a policy that names the rule as blocking, a dead-lettered run holds back later runs of its scope."""
        await trial.save(run("dead", status="dead_lettered", seq=1), run("next", seq=2), run("y", scope="y", seq=3))
        assert await trial.due(BLOCKING) == ["y"]
        assert sorted(await trial.due(ORDERED)) == ["next", "y"]
        await trial.save(run("dead", status="skipped", seq=1))
        assert sorted(await trial.due(BLOCKING)) == ["next", "y"]

    @guarantee()
    async def test_one_policy_orders_some_rules_and_not_others(self, trial: StorageTrial) -> None:
        """One policy can admit rules that are unordered, ordered and blocking, each by its own order."""
        for name in (ALPHA, BETA, GAMMA):
            dead, first, second = (f"{name}-{label}" for label in ("dead", "first", "second"))
            await trial.save(run(dead, name, "dead_lettered", seq=1), run(first, name, seq=2), run(second, name, seq=3))
        policy = RunPolicy(frozenset({ALPHA}), frozenset({BETA, GAMMA}), frozenset({GAMMA}))
        assert sorted(await trial.due(policy)) == [f"{ALPHA}-first", f"{ALPHA}-second", f"{BETA}-first"]

    @guarantee()
    async def test_a_retrying_run_is_due_when_its_time_comes(self, trial: StorageTrial) -> None:
        """A retrying run is not due before its `next_attempt_at`, and due from then on."""
        async with trial.transaction() as transaction:
            now = transaction.now
            later = run("later", status="retrying", seq=1, retry_at=now + HOUR)
            soon = run("soon", status="retrying", scope="x", seq=2, retry_at=now)
            await transaction.save_runs([later, soon])
        await trial.pass_time(trial.clock_precision)
        assert await trial.due(UNORDERED) == ["soon"]
        assert await trial.due(ORDERED) == ["soon"]

    @guarantee()
    async def test_a_run_that_waits_to_be_retried_holds_back_those_of_its_scope(self, trial: StorageTrial) -> None:
        """An ordered run that is retried only later keeps its turn: the runs behind it are not due before."""
        async with trial.transaction() as transaction:
            later = run("later", status="retrying", seq=1, retry_at=transaction.now + HOUR)
            await transaction.save_runs([later, run("next", seq=2)])
        assert await trial.due(ORDERED) == []
        assert await trial.due(UNORDERED) == ["next"]

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_retrying_run_is_due_at_its_very_time(self, trial: StorageTrial) -> None:
        """A retrying run is due at the very moment that `next_attempt_at` names, and not before."""
        moment = trial.clock() + HOUR
        await trial.save(run("r1", status="retrying", retry_at=moment))
        trial.clock.set(moment - trial.clock_precision)
        assert await trial.due(ORDERED) == []
        assert await trial.storage.next_due(ORDERED) == trial.clock_precision
        trial.clock.set(moment)
        assert await trial.due(ORDERED) == ["r1"]
        assert await trial.storage.next_due(ORDERED) == timedelta()

    # --- Runs whose executor is gone

    @guarantee()
    async def test_a_running_run_with_a_live_lease_is_not_due(self, trial: StorageTrial) -> None:
        """A running run is not due while somebody holds its lease."""
        await trial.claim(run("r1", status="running"))
        assert await trial.due(UNORDERED) == []
        assert await trial.due(ORDERED) == []

    @guarantee()
    async def test_a_running_run_without_a_lease_is_due(self, trial: StorageTrial) -> None:
        """A running run whose lease was given back, or that never had one, is due again."""
        await trial.save(run("r0", status="running", scope="x"))
        await trial.claim(run("r1", status="running"))
        await trial.storage.release([LeaseKey(WORKSPACE, run_lease("r1"))], "holder")
        assert sorted(await trial.due(UNORDERED)) == ["r0", "r1"]
        assert sorted(await trial.due(ORDERED)) == ["r0", "r1"]
        assert await trial.storage.next_due(ORDERED) == timedelta()

    @guarantee()
    async def test_a_running_run_is_due_when_its_lease_lapsed(self, trial: StorageTrial) -> None:
        """A running run is due again once its lease lapsed without being renewed."""
        short = timedelta(milliseconds=20)
        await trial.claim(run("r1", status="running"), short)
        await trial.pass_time(short)
        assert await trial.due(ORDERED) == ["r1"]
        assert await trial.storage.next_due(ORDERED) == timedelta()

    @guarantee()
    async def test_a_lease_of_another_name_keeps_no_run(self, trial: StorageTrial) -> None:
        """It is the lease named `run_lease(id)` in the run's own workspace that counts, and no other."""
        await trial.save(run("r1", status="running"))
        elsewhere = WorkspaceRef(WORKSPACE.tenant_id, "another")
        keys = [LeaseKey(elsewhere, run_lease("r1")), LeaseKey(WORKSPACE, "r1"), LeaseKey(WORKSPACE, run_lease("r"))]
        await trial.storage.acquire(keys, "holder", HOUR)
        assert await trial.due(ORDERED) == ["r1"]

    @guarantee()
    async def test_a_renewed_lease_keeps_its_run(self, trial: StorageTrial) -> None:
        """A running run whose lease is renewed in time stays with its executor."""
        short = timedelta(seconds=2)
        await trial.claim(run("r1", status="running"), short)
        await trial.storage.renew([LeaseKey(WORKSPACE, run_lease("r1"))], "holder", HOUR)
        if trial.is_movable:
            trial.clock.advance(2 * short)
        assert await trial.due(ORDERED) == []

    # --- Stored rules

    @guarantee()
    async def test_runs_of_an_active_stored_rule_are_due(self, trial: StorageTrial) -> None:
        """Under a policy with its namespace, the runs of a stored rule are due if it is active and enabled there."""
        await trial.store(rule(ALPHA), rule(BETA, enabled=False))
        await trial.save(run("a1", ALPHA), run("b1", BETA), run("c1", GAMMA))
        assert await trial.due(STORED) == ["a1"]
        assert await trial.due(RunPolicy(stored=frozenset({"other"}))) == []
        assert await trial.storage.next_due(STORED) == timedelta()
        assert await trial.storage.next_due(RunPolicy(stored=frozenset({"other"}))) is None

    @guarantee()
    async def test_runs_of_an_archived_stored_rule_wait(self, trial: StorageTrial) -> None:
        """Once a stored rule is archived its runs are not due, and are again once it is installed anew."""
        await trial.store(rule(ALPHA))
        await trial.save(run("a1", ALPHA))
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([stored(rule(ALPHA), 2, is_active=False)])
        assert await trial.due(STORED) == []
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([stored(rule(ALPHA), 3)])
        assert await trial.due(STORED) == ["a1"]

    @guarantee()
    async def test_a_stored_rule_says_how_its_runs_are_ordered(self, trial: StorageTrial) -> None:
        """The runs of a stored rule are ordered, and blocked by dead-lettered ones, as its current version says."""
        rules = (
            rule(ALPHA, ordering="none"),
            rule(BETA, ordering="scope"),
            rule(GAMMA, ordering="scope", on_dead_letter="block"),
        )
        await trial.store(*rules)
        for name, label in ((ALPHA, "a"), (BETA, "b"), (GAMMA, "c")):
            await trial.save(
                run(f"{label}0", name, "dead_lettered", seq=1),
                run(f"{label}1", name, seq=2),
                run(f"{label}2", name, seq=3),
            )
        assert sorted(await trial.due(STORED)) == ["a1", "a2", "b1"]
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules(
                [stored(rule(ALPHA), 2), stored(rule(GAMMA, ordering="none"), 2), stored(rule(BETA, enabled=False), 2)]
            )
        assert sorted(await trial.due(STORED)) == ["a1", "c1", "c2"]

    @guarantee()
    async def test_a_stored_rule_counts_in_its_own_workspace(self, trial: StorageTrial) -> None:
        """A rule that is stored in one workspace makes no run of another workspace due."""
        other = WorkspaceRef(WORKSPACE.tenant_id, "another")
        await trial.store(rule(ALPHA))
        await trial.save(run("r1"), workspace=other)
        assert await trial.due(STORED) == []

    # --- Order, limits and time

    @guarantee()
    async def test_the_runs_that_waited_longest_come_first(self, trial: StorageTrial) -> None:
        """Due runs come by the time since which they may start, and a limit takes the first so many."""
        async with trial.transaction() as transaction:
            now = transaction.now
            await transaction.save_runs(
                [
                    run("third", scope=3, fired_at=now - 10 * SECOND),
                    run("first", scope=1, fired_at=now - 30 * SECOND),
                    run("second", status="retrying", scope=2, fired_at=now - HOUR, retry_at=now - 20 * SECOND),
                ]
            )
        for policy in (UNORDERED, ORDERED):
            assert await trial.due(policy) == ["first", "second", "third"]
            assert await trial.due(policy, limit=2) == ["first", "second"]
            assert await trial.due(policy, limit=0) == []

    @guarantee()
    async def test_runs_that_wait_their_turn_do_not_use_up_the_limit(self, trial: StorageTrial) -> None:
        """However many runs of a scope wait for their turn, a limit is filled with runs that may start."""
        await trial.save(*(run(f"x{seq}", scope="x", seq=seq) for seq in range(1, 51)))
        await trial.save(*(run(f"y{seq}", scope=seq, seq=seq + 100) for seq in range(3)))
        assert sorted(await trial.due(ORDERED, limit=4)) == ["x1", "y0", "y1", "y2"]

    @guarantee()
    async def test_runs_that_wait_for_their_time_do_not_use_up_the_limit(self, trial: StorageTrial) -> None:
        """However many runs wait for a later time, in whichever workspaces, a limit is filled with runs to start."""
        async with trial.transaction() as transaction:
            later = transaction.now + HOUR
        for place in _places(4):
            await trial.save(
                *(run(f"later{seq}", status="retrying", scope=seq, seq=seq, retry_at=later) for seq in range(1, 4)),
                workspace=place,
            )
        for number, place in enumerate(_places(4)[2:]):
            await trial.save(run(f"now{number}", scope="now", seq=9), workspace=place)
        for limit in (1, 2, 3):
            assert await trial.due(ORDERED, limit=limit) == ["now0", "now1"][:limit]

    @guarantee()
    async def test_due_runs_of_every_workspace_are_found(self, trial: StorageTrial) -> None:
        """Due runs are found in every tenant's workspaces."""
        places = [WorkspaceRef(tenant, name) for tenant in ("t1", "t2") for name in ("a", "b")]
        for place in places:
            await trial.save(run("r1"), workspace=place)
        found = await trial.storage.due_runs(ORDERED, limit=10)
        assert sorted(due.workspace for due in found) == places

    # --- Turns

    @guarantee()
    async def test_workspaces_take_turns(self, trial: StorageTrial) -> None:
        """A run of each workspace comes first, then a second one of each that has more: by tenant and workspace."""
        places = _places(3)
        for place, runs in zip(places, (3, 1, 2), strict=True):
            await _queue(trial, place, runs)
        expected = [places[number] for number in (0, 1, 2, 0, 2, 0)]
        for limit in (1, 2, 3, 4, 5, 6, 7):
            assert await _turns(trial, limit=limit) == expected[:limit]

    @guarantee()
    async def test_a_backlog_hides_no_other_workspace(self, trial: StorageTrial) -> None:
        """However many runs of a workspace have waited for longer, a run of another one is in an answer for both."""
        busy, other, quiet = _places(3)
        await _queue(trial, busy, 30, long_ago=HOUR)
        await _queue(trial, quiet, 1)
        assert set(await _turns(trial, limit=2)) == {busy, quiet}
        await _queue(trial, other, 30, long_ago=HOUR)
        assert set(await _turns(trial, limit=3)) == {busy, other, quiet}

    @guarantee()
    async def test_of_each_workspace_no_more_come_than_are_asked_for(self, trial: StorageTrial) -> None:
        """With `each` an answer has that many runs of a workspace at most: those that have waited longest."""
        first, second = _places(2)
        await _queue(trial, first, 3)
        await _queue(trial, second, 2)
        for limit in (3, 10):
            assert await _turns(trial, limit=limit, each=1) == [first, second]
        assert await _turns(trial, limit=10, each=2) == [first, second, first, second]
        assert await _turns(trial, limit=3, each=2) == [first, second, first]
        found = await trial.storage.due_runs(UNORDERED, limit=10, each=2)
        assert sorted(due.run_id for due in found) == ["r0", "r0", "r1", "r1"]

    @guarantee()
    async def test_turns_begin_after_a_workspace(self, trial: StorageTrial) -> None:
        """With `after` the workspaces behind that one come first, whether or not it is there, and then the others."""
        before, first, second, third = _places(4)
        for place in (first, second, third):
            await _queue(trial, place, 2)
        for after, order in (
            (before, [first, second, third]),
            (first, [second, third, first]),
            (second, [third, first, second]),
            (third, [first, second, third]),
            (WorkspaceRef(third.tenant_id, f"{third.workspace_id}a"), [first, second, third]),
        ):
            for limit in (1, 2, 3, 5, 6):
                assert await _turns(trial, limit=limit, after=after) == (2 * order)[:limit]

    @guarantee()
    async def test_whoever_goes_on_after_an_answer_leaves_out_no_workspace(self, trial: StorageTrial) -> None:
        """Who asks again and again, each time after the last workspace of the answer before, gets to all of them."""
        places = _places(5)
        for place in places:
            await _queue(trial, place, 10)
        named: list[WorkspaceRef] = []
        after: WorkspaceRef | None = None
        for _ in range(5):
            found = await _turns(trial, limit=3, after=after)
            assert len(set(found)) == 3
            named += found
            after = found[-1]
        assert named == 3 * places

    @guarantee()
    async def test_runs_can_be_left_out(self, trial: StorageTrial) -> None:
        """Runs that are to be left out are not in the answer, and use up none of its room."""
        first, second = _places(2)
        for place in (first, second):
            await _queue(trial, place, 4)
        but = [LeaseKey(first, run_lease(run_id)) for run_id in ("r0", "r1", "r2")]
        for limit in (1, 2, 4):
            found = await trial.storage.due_runs(UNORDERED, limit=limit, but_runs=but)
            assert [due.run_id for due in found if due.workspace == first] == ["r3"]
            assert len(found) == limit
        every = [*but, LeaseKey(first, run_lease("r3"))]
        assert await _turns(trial, limit=1, but_runs=every) == [second]
        assert await _turns(trial, limit=10, but_runs=every) == [second] * 4

    @guarantee()
    async def test_workspaces_can_be_left_out(self, trial: StorageTrial) -> None:
        """Workspaces that are to be left out are not in the answer, and use up none of its room."""
        first, second, third = _places(3)
        for place in (first, second, third):
            await _queue(trial, place, 3)
        for limit in (1, 2, 3, 4):
            assert await _turns(trial, limit=limit, but_workspaces=[first, third]) == [second] * min(limit, 3)
            found = await _turns(trial, limit=limit, after=third, but_workspaces=[first])
            assert sorted(found) == sorted([second, third, second, third][:limit])
        assert await _turns(trial, limit=2, but_workspaces=[first, second, third]) == []

    @guarantee()
    async def test_rules_can_be_withheld(self, trial: StorageTrial) -> None:
        """Runs of rules that a policy withholds are not due, and use up no room of other rules' runs."""
        for number, place in enumerate(_places(2)):
            await trial.save(
                *(run(f"a{seq}", ALPHA, scope=seq, seq=seq) for seq in range(1, 6)),
                run(f"b{number}", BETA, seq=9),
                workspace=place,
            )
        both = frozenset({ALPHA, BETA})
        for policy in (RunPolicy(unordered=both), RunPolicy(ordered=both, blocking=both)):
            withholding = replace(policy, withheld=frozenset({ALPHA, GAMMA}))
            assert await trial.due(withholding, limit=1) == ["b0"]
            assert await trial.due(withholding) == ["b0", "b1"]
            assert await trial.due(replace(policy, withheld=both)) == []
            assert await trial.storage.next_due(replace(policy, withheld=both)) is None

    @guarantee()
    async def test_stored_rules_can_be_withheld(self, trial: StorageTrial) -> None:
        """Runs of stored rules that a policy withholds by their names are not due either, nor in the way of others."""
        await trial.store(rule(ALPHA), rule(BETA), rule(GAMMA))
        await trial.save(
            *(run(f"a{seq}", ALPHA, scope=seq, seq=seq, fired_at=START - SECOND) for seq in range(1, 6)),
            run("b", BETA, seq=8),
            run("c", GAMMA, seq=9, fired_at=START - SECOND),
        )
        withholding = replace(STORED, withheld=frozenset({ALPHA, GAMMA}))
        for limit in (1, 3, 10):
            assert await trial.due(withholding, limit=limit) == ["b"]

    # --- When the next one may

    @guarantee()
    async def test_the_next_due_time_is_that_of_a_retry(self, trial: StorageTrial) -> None:
        """Where runs only wait to be retried, `next_due` says how long it is until the first of them."""
        async with trial.transaction() as transaction:
            now = transaction.now
            await transaction.save_runs(
                [
                    run("r1", status="retrying", scope=1, retry_at=now + 2 * HOUR),
                    run("r2", status="retrying", scope=2, retry_at=now + HOUR),
                ]
            )
        for policy in (UNORDERED, ORDERED):
            wait = await trial.storage.next_due(policy)
            assert wait is not None
            assert HOUR - timedelta(minutes=1) < wait <= HOUR

    @guarantee()
    async def test_the_next_due_time_is_that_of_a_lapse(self, trial: StorageTrial) -> None:
        """Where a run is running, `next_due` says how long it is until its lease lapses, as last renewed."""
        await trial.claim(run("r1", status="running"), HOUR)
        await trial.storage.renew([LeaseKey(WORKSPACE, run_lease("r1"))], "holder", 2 * HOUR)
        wait = await trial.storage.next_due(ORDERED)
        assert wait is not None
        assert 2 * HOUR - timedelta(minutes=1) < wait <= 2 * HOUR

    @guarantee()
    async def test_the_next_due_time_minds_turns(self, trial: StorageTrial) -> None:
        """A run that waits behind another is not what `next_due` waits for."""
        async with trial.transaction() as transaction:
            now = transaction.now
            later = run("later", status="retrying", seq=1, retry_at=now + 2 * HOUR)
            await transaction.save_runs([later, run("behind", status="retrying", seq=2, retry_at=now + HOUR)])
        wait = await trial.storage.next_due(ORDERED)
        assert wait is not None
        assert wait > HOUR

    @guarantee()
    async def test_a_wait_until_the_next_due_time_is_enough(self, trial: StorageTrial) -> None:
        """Whoever waits as long as `next_due` says finds a run that is due."""
        async with trial.transaction() as transaction:
            moment = transaction.now + timedelta(milliseconds=50)
            await transaction.save_runs([run("r1", status="retrying", retry_at=moment)])
        wait = await trial.storage.next_due(ORDERED)
        assert wait is not None
        await trial.pass_time(wait)
        await asyncio.sleep(0)
        assert await trial.due(ORDERED) == ["r1"]

    @guarantee(Feature.SHARED_DATA)
    async def test_another_storage_finds_the_same_due_runs(self, trial: StorageTrial) -> None:
        """Due runs, and runs that somebody runs, are the same for a second storage on the same data."""
        async with trial.beside() as other:
            await trial.storage.due_runs(ORDERED, limit=10)
            await trial.save(run("r1", scope="x"))
            await other.claim(run("r2", status="running", scope="y"))
            assert await trial.due(ORDERED) == await other.due(ORDERED) == ["r1"]
            await other.storage.release([LeaseKey(WORKSPACE, run_lease("r2"))], "holder")
            assert sorted(await trial.due(ORDERED)) == sorted(await other.due(ORDERED)) == ["r1", "r2"]


def _places(number: int) -> list[WorkspaceRef]:
    return [WorkspaceRef(WORKSPACE.tenant_id, f"w{place}") for place in range(number)]


async def _queue(trial: StorageTrial, workspace: WorkspaceRef, runs: int, *, long_ago: timedelta = timedelta()) -> None:
    """Has so many runs of a workspace wait, each for less long than the one before."""
    async with trial.transaction(workspace) as transaction:
        since = transaction.now - long_ago - runs * SECOND
        await transaction.save_runs(
            [run(f"r{number}", scope=number, seq=number, fired_at=since + number * SECOND) for number in range(runs)]
        )


async def _turns(trial: StorageTrial, **asked: Any) -> list[WorkspaceRef]:
    return [due.workspace for due in await trial.storage.due_runs(UNORDERED, **asked)]
