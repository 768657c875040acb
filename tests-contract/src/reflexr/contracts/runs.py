"""What a storage promises of runs: how they are saved and found, and whose turn it is in a scope."""

from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import ALPHA, BETA, GAMMA, WORKSPACE, ids, run, run_scope, scope_key
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.core import UNFINISHED
from reflexr.workspace import RunQuery


class RunsContract(StorageGuarantees):
    """Runs are what was saved last, newest first, and each scope has one whose turn it is."""

    @guarantee()
    async def test_a_run_replaces_what_was_there(self, trial: StorageTrial) -> None:
        """A run is what was saved last under its id."""
        await trial.save(run("r1"), run("r2", seq=2))
        changed = run("r1", status="succeeded", output={"done": True})
        await trial.save(changed)
        assert await trial.storage.run(WORKSPACE, "r1") == changed
        assert await trial.storage.run(WORKSPACE, "r2") == run("r2", seq=2)

    @guarantee()
    async def test_runs_are_found_by_id(self, trial: StorageTrial) -> None:
        """Runs come by id, and the ids that are none are left out."""
        await trial.save(run("r1"), run("r2", seq=2))
        assert await trial.storage.run(WORKSPACE, "none") is None
        async with trial.transaction() as transaction:
            await transaction.save_runs([run("r3", seq=3)])
            found = await transaction.runs(["r3", "none", "r1"])
            assert found == {"r1": run("r1"), "r3": run("r3", seq=3)}

    @guarantee()
    async def test_runs_come_newest_first(self, trial: StorageTrial) -> None:
        """Runs come in the reverse order of their creation, which is the order in which they were first saved."""
        await trial.save(run("z", seq=3), run("a", seq=9))
        await trial.save(run("m", seq=1), run("z", status="cancelled", seq=3))
        assert ids(await trial.storage.runs(WORKSPACE, RunQuery())) == ["m", "a", "z"]
        async with trial.transaction() as transaction:
            await transaction.save_runs([run("b", seq=2), run("a", status="cancelled", seq=9), run("c", seq=4)])
            assert ids(await transaction.find_runs(RunQuery())) == ["c", "b", "m", "a", "z"]

    @guarantee()
    async def test_a_limit_takes_the_newest(self, trial: StorageTrial) -> None:
        """A query's `limit` takes the newest so many of the runs that meet it."""
        await trial.save(*(run(f"r{seq}", BETA if seq % 2 else ALPHA, seq=seq) for seq in range(1, 7)))
        assert ids(await trial.storage.runs(WORKSPACE, RunQuery(limit=2))) == ["r6", "r5"]
        assert ids(await trial.storage.runs(WORKSPACE, RunQuery(rules=frozenset({BETA}), limit=2))) == ["r5", "r3"]
        assert await trial.storage.runs(WORKSPACE, RunQuery(limit=0)) == []
        async with trial.transaction() as transaction:
            await transaction.save_runs([run("r7", seq=7)])
            assert ids(await transaction.find_runs(RunQuery(limit=2))) == ["r7", "r6"]

    @guarantee()
    async def test_a_query_takes_the_runs_that_meet_all_of_it(self, trial: StorageTrial) -> None:
        """A query takes the runs of its rules, its scope and its statuses; of no rules or no statuses, none."""
        saved = [
            run("r1", ALPHA, "pending", scope="x"),
            run("r2", ALPHA, "succeeded", scope="x", seq=2),
            run("r3", BETA, "pending", scope="x"),
            run("r4", ALPHA, "pending", scope="y"),
            run("r5", GAMMA, "dead_lettered", scope="y"),
        ]
        expected = {
            RunQuery(rules=frozenset({ALPHA})): ["r4", "r2", "r1"],
            RunQuery(rules=frozenset({BETA, GAMMA})): ["r5", "r3"],
            RunQuery(rules=frozenset({"contract:none"})): [],
            RunQuery(rules=frozenset()): [],
            RunQuery(scope_key=scope_key("x")): ["r3", "r2", "r1"],
            RunQuery(scope_key=scope_key("z")): [],
            RunQuery(statuses=UNFINISHED): ["r4", "r3", "r1"],
            RunQuery(statuses=frozenset()): [],
            RunQuery(frozenset({ALPHA}), scope_key("x"), frozenset({"pending", "dead_lettered"})): ["r1"],
        }
        await trial.save(*saved)
        assert {query: ids(await trial.storage.runs(WORKSPACE, query)) for query in expected} == expected
        async with trial.transaction() as transaction:
            assert {query: ids(await transaction.find_runs(query)) for query in expected} == expected

    @guarantee()
    async def test_a_query_in_a_transaction_takes_runs_as_they_are_there(self, trial: StorageTrial) -> None:
        """A transaction's query meets runs as the transaction saved them, not as they were committed."""
        await trial.save(run("r1"), run("r2", seq=2))
        async with trial.transaction() as transaction:
            await transaction.save_runs([run("r1", status="running"), run("r3", seq=3)])
            assert ids(await transaction.find_runs(RunQuery(statuses=frozenset({"pending"})))) == ["r3", "r2"]
            assert ids(await transaction.find_runs(RunQuery(statuses=frozenset({"running"})))) == ["r1"]

    @guarantee()
    async def test_a_large_number_of_runs_is_one_call(self, trial: StorageTrial) -> None:
        """5,000 runs are saved, found by id and saved again in one call each, in order."""
        saved = [run(f"r{seq}", scope=seq % 100, seq=seq) for seq in range(1, self.large + 1)]
        await trial.save(*saved)
        async with trial.transaction() as transaction:
            assert await transaction.runs([one.id for one in saved]) == {one.id: one for one in saved}
            turns = await transaction.first_runs([run_scope(scope=scope) for scope in range(100)])
            assert turns == {run_scope(scope=scope): f"r{scope or 100}" for scope in range(100)}
            await transaction.save_runs([run(one.id, status="cancelled", scope=0, seq=one.fired_seq) for one in saved])
        assert ids(await trial.storage.runs(WORKSPACE, RunQuery(limit=2))) == [f"r{self.large}", f"r{self.large - 1}"]

    # --- Whose turn it is

    @guarantee()
    async def test_the_turn_is_that_of_the_first_unfinished_run(self, trial: StorageTrial) -> None:
        """In a scope it is the turn of the first pending or retrying run, by generation and then by place."""
        await trial.save(
            run("late", generation=2, seq=1),
            run("third", seq=30),
            run("second", status="retrying", seq=20, retry_at=None),
            run("first", status="succeeded", seq=10),
        )
        assert await trial.turns(run_scope()) == {run_scope(): "second"}
        await trial.save(run("second", status="cancelled", seq=20))
        assert await trial.turns(run_scope()) == {run_scope(): "third"}
        await trial.save(run("third", status="skipped", seq=30))
        assert await trial.turns(run_scope()) == {run_scope(): "late"}

    @guarantee()
    async def test_the_turn_is_that_of_a_run_that_runs(self, trial: StorageTrial) -> None:
        """While a run of the scope is running it is its turn, also if one that was queued again stands before it."""
        await trial.save(run("again", seq=1), run("runs", status="running", seq=2))
        assert await trial.turns(run_scope()) == {run_scope(): "runs"}

    @guarantee()
    async def test_a_dead_lettered_run_has_the_turn_where_it_blocks(self, trial: StorageTrial) -> None:
        """A dead-lettered run keeps the turn of its scope if its rule is named as blocking, and else has none."""
        await trial.save(
            run("dead", status="dead_lettered", seq=1), run("next", seq=2), run("b", BETA, "dead_lettered", seq=1)
        )
        scopes = (run_scope(), run_scope(BETA))
        assert await trial.turns(*scopes, blocking=(ALPHA,)) == {run_scope(): "dead"}
        assert await trial.turns(*scopes) == {run_scope(): "next"}
        assert await trial.turns(*scopes, blocking=(BETA,)) == {run_scope(): "next", run_scope(BETA): "b"}

    @guarantee()
    async def test_a_scope_without_unfinished_runs_has_no_turn(self, trial: StorageTrial) -> None:
        """A scope whose runs have all ended, or that has none, is not in the answer."""
        await trial.save(run("r1", status="succeeded"), run("r2", status="cancelled", seq=2))
        assert await trial.turns(run_scope(), run_scope(scope="none"), run_scope(BETA)) == {}
        assert await trial.turns() == {}

    @guarantee()
    async def test_scopes_and_rules_have_turns_of_their_own(self, trial: StorageTrial) -> None:
        """Runs of another rule or another scope take nobody's turn; scopes that look alike are different."""
        names = ["a", "A", "a ", "caf\u00e9", "cafe\u0301", 1, "1", None, ""]
        await trial.save(*(run(f"r{seq}", scope=name, seq=seq) for seq, name in enumerate(names, start=1)))
        await trial.save(run("b", BETA, scope="a"))
        expected = {run_scope(scope=name): f"r{seq}" for seq, name in enumerate(names, start=1)}
        assert await trial.turns(*expected, run_scope(BETA, "a")) == {**expected, run_scope(BETA, "a"): "b"}

    @guarantee()
    async def test_a_transaction_sees_the_turns_as_it_changed_them(self, trial: StorageTrial) -> None:
        """A transaction's own runs take and give turns before it commits."""
        await trial.save(run("r1", seq=1), run("r2", seq=2))
        async with trial.transaction() as transaction:
            await transaction.save_runs([run("r0", scope="new", seq=5), run("r1", status="succeeded", seq=1)])
            scopes = (run_scope(), run_scope(scope="new"))
            assert await transaction.first_runs(scopes) == {scopes[0]: "r2", scopes[1]: "r0"}
            await transaction.save_runs([run("r2", status="cancelled", seq=2)])
            assert await transaction.first_runs(scopes) == {scopes[1]: "r0"}
