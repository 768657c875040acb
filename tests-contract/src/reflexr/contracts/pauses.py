"""What a storage promises of paused runs: they come back whole, keep their place or none, and are due in the end."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pydantic import JsonValue

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import (
    ALPHA,
    BETA,
    GAMMA,
    HOUR,
    SECOND,
    START,
    WORKSPACE,
    at,
    rule,
    run,
    run_scope,
    scope_key,
)
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.contracts.values import EVERYTHING
from reflexr.core import (
    UNFINISHED,
    Actor,
    Answer,
    ExternalAgentActor,
    Run,
    RunStatus,
    SystemActor,
    UserActor,
    Waiting,
)
from reflexr.workspace import LeaseKey, RunPolicy, RunQuery, WorkspaceRef, run_lease

UNORDERED: Final = RunPolicy(unordered=frozenset({ALPHA}))
ORDERED: Final = RunPolicy(ordered=frozenset({ALPHA}))
BLOCKING: Final = RunPolicy(ordered=frozenset({ALPHA}), blocking=frozenset({ALPHA}))
STORED: Final = RunPolicy(stored=frozenset({"contract"}))
CODE: Final = (UNORDERED, ORDERED, BLOCKING)

PAUSED: Final = RunQuery(statuses=frozenset({"paused"}))

NOTHING: Final = timedelta()


class PausedRunsContract(StorageGuarantees):
    """A paused run waits for an answer, for as long as it says, and is due when that is over."""

    # --- What comes back

    @guarantee()
    async def test_what_a_paused_run_waits_for_comes_back_as_it_was_saved(self, trial: StorageTrial) -> None:
        """A paused run comes back with its request as exactly as a payload, its times, and whether it blocks."""
        since, until = at(1.234567), at(9.999999)
        waiting = [
            Waiting(request=EVERYTHING, since=since, until=until, blocks=True),
            Waiting(request=EVERYTHING, since=since, until=until),
            Waiting(request={"question": None, "choices": []}, since=since, blocks=True),
            *(Waiting(request=request, since=since) for request in _PLAIN),
        ]
        saved = [run(f"r{seq}", status="paused", seq=seq) for seq in range(len(waiting))]
        saved = [one.model_copy(update={"waiting": it}) for one, it in zip(saved, waiting, strict=True)]
        await _keeps(trial, saved)

    @guarantee()
    async def test_an_answer_comes_back_as_it_was_saved(self, trial: StorageTrial) -> None:
        """A run comes back with its answer as exactly as a payload, who gave it and when, whatever its status."""
        actors: list[Actor] = [
            UserActor(id="u", name="\u00c9l\u00e9onore"),
            ExternalAgentActor(client_id="c", on_behalf_of="u"),
            SystemActor(name="system"),
        ]
        answers = [Answer(value=EVERYTHING, actor=actor, at=at(1.234567)) for actor in actors]
        answers += [Answer(value=value, actor=actors[0], at=at(2)) for value in _PLAIN]
        statuses: list[RunStatus] = ["pending", "running", "retrying", "succeeded", "dead_lettered", "cancelled"]
        saved = [run(f"r{seq}", status=statuses[seq % len(statuses)], seq=seq) for seq in range(len(answers))]
        saved = [one.model_copy(update={"answer": it}) for one, it in zip(saved, answers, strict=True)]
        await _keeps(trial, saved)

    @guarantee()
    async def test_a_run_that_waits_no_more_says_so(self, trial: StorageTrial) -> None:
        """A run that is saved without what it waited for, or without its answer, has none of it any more."""
        answered = Answer(value={"yes": True}, actor=UserActor(id="u"), at=START)
        await trial.save(run("r1", status="paused", until=at(5), blocks=True))
        await trial.save(run("r1").model_copy(update={"answer": answered}))
        found = await trial.storage.run(WORKSPACE, "r1")
        assert found is not None
        assert (found.status, found.waiting, found.answer) == ("pending", None, answered)
        await trial.save(run("r1", status="paused"))
        assert await trial.storage.run(WORKSPACE, "r1") == run("r1", status="paused")

    @guarantee()
    async def test_what_a_paused_run_asks_is_not_shared(self, trial: StorageTrial) -> None:
        """Changing a request or an answer that was handed over, or returned, changes nothing in the storage."""
        asked: list[JsonValue] = [1]
        told: list[JsonValue] = [2]
        await trial.save(
            run("r1", status="paused").model_copy(update={"waiting": Waiting(request=asked, since=START)}),
            run("r2", seq=2).model_copy(
                update={"answer": Answer(value=told, actor=UserActor(id="u"), at=START)},
            ),
        )
        _spoil(asked)
        _spoil(told)
        for _ in range(2):
            async with trial.transaction() as transaction:
                inside = await transaction.runs(["r1", "r2"])
            outside = {one.id: one for one in await trial.storage.runs(WORKSPACE, RunQuery())}
            for found in (inside, outside):
                waiting, answer = found["r1"].waiting, found["r2"].answer
                assert waiting is not None
                assert answer is not None
                assert (waiting.request, answer.value) == ([1], [2])
                _spoil(waiting.request)
                _spoil(answer.value)

    @guarantee()
    async def test_paused_runs_are_found(self, trial: StorageTrial) -> None:
        """Paused runs are found by their status, as unfinished ones too, in a transaction as they are there."""
        await trial.save(
            run("r1", status="paused"),
            run("r2", BETA, "paused", scope="x", seq=2, until=at(9), blocks=True),
            run("r3", seq=3),
        )
        assert [one.id for one in await trial.storage.runs(WORKSPACE, PAUSED)] == ["r2", "r1"]
        query = replace(PAUSED, rules=frozenset({BETA}), scope_key=scope_key("x"))
        assert [one.id for one in await trial.storage.runs(WORKSPACE, query)] == ["r2"]
        unfinished = RunQuery(statuses=UNFINISHED)
        assert [one.id for one in await trial.storage.runs(WORKSPACE, unfinished)] == ["r3", "r2", "r1"]
        async with trial.transaction() as transaction:
            await transaction.save_runs([run("r1"), run("r3", status="paused", seq=3)])
            assert [one.id for one in await transaction.find_runs(PAUSED)] == ["r3", "r2"]

    # --- Whose turn it is

    @guarantee()
    async def test_a_paused_run_that_blocks_keeps_its_turn(self, trial: StorageTrial) -> None:
        """A paused run that blocks has its turn as a pending one does, by its place, and holds back the later ones."""
        await trial.save(
            run("first", status="paused", seq=1, blocks=True),
            run("second", seq=2),
            run("other", BETA, "paused", seq=5, blocks=True),
            run("before", BETA, seq=4),
        )
        scopes = (run_scope(), run_scope(BETA))
        for blocking in ((), (ALPHA, BETA)):
            turns = await trial.turns(*scopes, blocking=blocking)
            assert turns == {scopes[0]: "first", scopes[1]: "before"}
        await trial.save(run("before", BETA, "succeeded", seq=4))
        assert await trial.turns(*scopes) == {scopes[0]: "first", scopes[1]: "other"}
        assert await trial.due(ORDERED) == []
        assert await trial.due(BLOCKING) == []
        assert await trial.due(UNORDERED) == ["second"]

    @guarantee()
    async def test_a_paused_run_that_does_not_block_is_passed_over(self, trial: StorageTrial) -> None:
        """A paused run that does not block has no turn: the later ones of its scope have theirs."""
        await trial.save(
            run("first", status="paused", seq=1),
            run("second", seq=2),
            run("third", seq=3),
            run("alone", BETA, "paused", until=at(5)),
        )
        for blocking in ((), (ALPHA, BETA)):
            assert await trial.turns(run_scope(), run_scope(BETA), blocking=blocking) == {run_scope(): "second"}
        for policy in (ORDERED, BLOCKING):
            assert await trial.due(policy) == ["second"]

    @guarantee()
    async def test_a_run_that_runs_has_the_turn_before_a_paused_one(self, trial: StorageTrial) -> None:
        """While a run of the scope is running it is its turn, also if a paused one that blocks stands before it."""
        await trial.save(run("asks", status="paused", seq=1, blocks=True))
        await trial.claim(run("runs", status="running", seq=2))
        assert await trial.turns(run_scope()) == {run_scope(): "runs"}
        assert await trial.due(ORDERED) == []

    @guarantee()
    async def test_a_run_that_is_answered_has_its_place_again(self, trial: StorageTrial) -> None:
        """A paused run that is pending again stands where it stood, whatever became of the later ones."""
        await trial.save(run("x1", status="paused", scope="x", seq=1), run("x2", scope="x", seq=2))
        await trial.save(run("y1", status="paused", scope="y", seq=3, blocks=True), run("y2", scope="y", seq=4))
        scopes = (run_scope(scope="x"), run_scope(scope="y"))
        assert await trial.turns(*scopes) == {scopes[0]: "x2", scopes[1]: "y1"}
        async with trial.transaction() as transaction:
            await transaction.save_runs([run("x1", scope="x", seq=1), run("y1", scope="y", seq=3)])
            assert await transaction.first_runs(scopes) == {scopes[0]: "x1", scopes[1]: "y1"}
        assert sorted(await trial.due(ORDERED)) == ["x1", "y1"]
        await trial.claim(run("x2", status="running", scope="x", seq=2))
        assert await trial.turns(*scopes) == {scopes[0]: "x2", scopes[1]: "y1"}
        assert await trial.due(ORDERED) == ["y1"]

    @guarantee()
    async def test_a_paused_run_that_ended_holds_back_nobody(self, trial: StorageTrial) -> None:
        """A paused run that blocked gives its turn to the next once it is cancelled, skipped or dead-lettered."""
        ended: list[RunStatus] = ["cancelled", "skipped", "dead_lettered"]
        for status in ended:
            await trial.save(
                run(f"{status}1", status="paused", scope=status, seq=1, until=START, blocks=True),
                run(f"{status}2", scope=status, seq=2),
            )
            await trial.save(run(f"{status}1", status=status, scope=status, seq=1))
        turns = {run_scope(scope=status): f"{status}2" for status in ended}
        assert await trial.turns(*turns) == turns
        assert sorted(await trial.due(ORDERED)) == sorted(turns.values())

    # --- When it is due

    @guarantee()
    async def test_a_paused_run_that_waits_for_any_time_is_never_due(self, trial: StorageTrial) -> None:
        """A paused run that does not say until when it waits is due under no policy, however much time passes."""
        await trial.store(rule(BETA, ordering="none"), rule(GAMMA))
        for number, name in enumerate((ALPHA, BETA, GAMMA)):
            await trial.save(
                run(f"{name}1", name, "paused", seq=number),
                run(f"{name}2", name, "paused", scope="x", seq=number, blocks=True),
            )
        for _ in range(2):
            for policy in (*CODE, STORED):
                assert await trial.due(policy) == []
                assert await trial.storage.next_due(policy) is None
            if trial.is_movable:
                trial.clock.advance(10_000 * HOUR)

    @guarantee()
    async def test_a_paused_run_that_still_has_time_is_not_due(self, trial: StorageTrial) -> None:
        """A paused run is not due before the time until which it waits; `next_due` says how long that is."""
        async with trial.transaction() as transaction:
            now = transaction.now
            await transaction.save_runs(
                [
                    run("later", status="paused", seq=1, until=now + 3 * HOUR),
                    run("sooner", status="paused", seq=2, until=now + 2 * HOUR, blocks=True),
                    run("never", status="paused", seq=3),
                ]
            )
        for policy in CODE:
            assert await trial.due(policy) == []
            wait = await trial.storage.next_due(policy)
            assert wait is not None
            assert 2 * HOUR - timedelta(minutes=1) < wait <= 2 * HOUR

    @guarantee()
    async def test_a_paused_run_whose_time_is_over_is_due(self, trial: StorageTrial) -> None:
        """A paused run is due once the time until which it waits has come, whether or not it blocks."""
        async with trial.transaction() as transaction:
            now = transaction.now
            await transaction.save_runs(
                [
                    run("r1", status="paused", until=now),
                    run("r2", status="paused", seq=2, until=now, blocks=True),
                    run("r3", status="paused", seq=3, until=now + HOUR),
                ]
            )
        await trial.pass_time(trial.clock_precision)
        for policy in CODE:
            assert sorted(await trial.due(policy)) == ["r1", "r2"]
            assert await trial.storage.next_due(policy) == NOTHING

    @guarantee()
    async def test_a_paused_run_is_due_whatever_it_asks(self, trial: StorageTrial) -> None:
        """Whatever is asked or answered, a run is due when it is, has its turn, and keeps back no other."""
        asking = Waiting(request=EVERYTHING, since=START, until=START)
        told = Answer(value=EVERYTHING, actor=UserActor(id="u"), at=START)
        await trial.store(rule(BETA))
        for name in (ALPHA, BETA):
            await trial.save(
                run(f"{name}1", name, "paused").model_copy(update={"waiting": asking}),
                run(f"{name}2", name, seq=2).model_copy(update={"answer": told}),
                run(f"{name}3", name, scope="x", seq=3),
            )
            for policy in (ORDERED, BLOCKING) if name == ALPHA else (STORED,):
                assert sorted(await trial.due(policy)) == [f"{name}{number}" for number in (1, 2, 3)]
                assert len(await trial.due(policy, limit=2)) == 2
            assert await trial.turns(run_scope(name)) == {run_scope(name): f"{name}2"}

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_paused_run_is_due_at_the_very_time_until_which_it_waits(self, trial: StorageTrial) -> None:
        """A paused run is due at the very moment that `until` names, and not before; `next_due` names that moment."""
        moment = trial.clock() + HOUR
        await trial.store(rule(BETA))
        for name in (ALPHA, BETA):
            await trial.save(run(name, name, "paused", until=moment))
        policies = ((UNORDERED, ALPHA), (ORDERED, ALPHA), (BLOCKING, ALPHA), (STORED, BETA))
        trial.clock.set(moment - trial.clock_precision)
        for policy, _ in policies:
            assert await trial.due(policy) == []
            assert await trial.storage.next_due(policy) == trial.clock_precision
        trial.clock.set(moment)
        for policy, due in policies:
            assert await trial.due(policy) == [due]
            assert await trial.storage.next_due(policy) == NOTHING

    @guarantee()
    async def test_a_paused_run_whose_time_is_over_waits_for_no_turn(self, trial: StorageTrial) -> None:
        """A paused run whose time is over is due behind whatever else of its scope, whether or not it blocks."""
        async with trial.transaction() as transaction:
            later = transaction.now + HOUR
        over: set[str] = set()
        for status in _BEFORE:
            for blocks in (False, True):
                scope = f"{status} {blocks}"
                over.add(f"behind {scope}")
                await trial.save(
                    run(f"behind {scope}", status="paused", scope=scope, seq=2, until=START, blocks=blocks)
                )
                put = trial.claim if status == "running" else trial.save
                retry_at = later if status == "retrying" else None
                await put(run(f"before {scope}", status=status, scope=scope, retry_at=retry_at, blocks=True))
        for policy in (ORDERED, BLOCKING):
            assert set(await trial.due(policy)) == over | {"before pending False", "before pending True"}

    @guarantee()
    async def test_the_next_due_time_minds_pauses_that_wait_for_no_turn(self, trial: StorageTrial) -> None:
        """What `next_due` says minds a paused run that will be due behind others of its scope, blocking or not."""
        for number, blocks in enumerate((False, True)):
            place = WorkspaceRef(WORKSPACE.tenant_id, f"w{number}")
            name = f"contract:rule{number}"
            async with trial.transaction(place) as transaction:
                now = transaction.now
                await transaction.save_runs(
                    [
                        run("ahead", name, "retrying", seq=1, retry_at=now + 3 * HOUR),
                        run("asks", name, "paused", seq=2, until=now + 2 * HOUR, blocks=blocks),
                        run("behind", name, "retrying", seq=3, retry_at=now + HOUR),
                    ]
                )
            wait = await trial.storage.next_due(RunPolicy(ordered=frozenset({name})))
            assert wait is not None
            assert HOUR < wait <= 2 * HOUR

    @guarantee()
    async def test_a_paused_run_that_blocks_does_so_until_it_has_ended(self, trial: StorageTrial) -> None:
        """A paused run that blocks holds back the later ones also when its time is over, until it was dead-lettered."""
        await trial.save(run("asks", status="paused", until=START - HOUR, blocks=True), run("next", seq=2))
        assert await trial.due(ORDERED) == ["asks"]
        await trial.save(run("asks", status="dead_lettered"))
        assert await trial.due(ORDERED) == ["next"]
        assert await trial.due(BLOCKING) == []

    @guarantee()
    async def test_who_has_been_answered_is_due_by_its_turn_alone(self, trial: StorageTrial) -> None:
        """A run that is paused no more is due for no time until which it once waited, and for a new one when it is."""
        over = START - HOUR
        for number, status in enumerate(_AFTER):
            await trial.save(run(f"r{number}", status="paused", scope=status, seq=2, until=over))
            await trial.save(run(f"r{number}", status=status, scope=status, seq=2))
        await trial.save(
            run("ahead", scope="queued", seq=1),
            run("queued", status="paused", scope="queued", seq=2, until=over),
            run("again", status="paused", scope="again", until=over),
        )
        assert sorted(await trial.due(ORDERED)) == ["again", "ahead", "queued"]
        await trial.save(
            run("queued", scope="queued", seq=2),
            run("again", status="paused", scope="again", until=START + 10**5 * HOUR),
        )
        assert await trial.due(ORDERED) == ["ahead"]
        await trial.save(run("ahead", status="succeeded", scope="queued", seq=1))
        assert await trial.due(ORDERED) == ["queued"]

    # --- Under which policies

    @guarantee()
    async def test_paused_runs_of_rules_in_no_policy_are_not_due(self, trial: StorageTrial) -> None:
        """A paused run whose time is over is not due where its rule is not named, or is withheld; nobody waits."""
        await trial.save(run("r1", status="paused", until=START), run("r2", status="paused", seq=2, until=START + HOUR))
        for policy in (
            RunPolicy(),
            RunPolicy(unordered=frozenset({BETA})),
            RunPolicy(ordered=frozenset({BETA})),
            STORED,
            *(replace(policy, withheld=frozenset({ALPHA})) for policy in CODE),
        ):
            assert await trial.due(policy) == []
            assert await trial.storage.next_due(policy) is None
        assert "r1" in await trial.due(ORDERED)

    @guarantee()
    async def test_paused_runs_can_be_left_out(self, trial: StorageTrial) -> None:
        """Paused runs, and their workspaces, can be left out, and then use up no room."""
        elsewhere = WorkspaceRef(WORKSPACE.tenant_id, "z-elsewhere")
        for place in (WORKSPACE, elsewhere):
            await trial.save(
                *(run(f"r{seq}", status="paused", seq=seq, until=START - seq * SECOND) for seq in range(3)),
                workspace=place,
            )
        but = [LeaseKey(WORKSPACE, run_lease(run_id)) for run_id in ("r1", "r2")]
        for limit, places in ((1, [WORKSPACE]), (2, [WORKSPACE, elsewhere]), (9, [WORKSPACE, *3 * [elsewhere]])):
            found = await trial.storage.due_runs(ORDERED, limit=limit, but_runs=but)
            assert [due.workspace for due in found] == places
            assert found[0].run_id == "r0"
        found = await trial.storage.due_runs(ORDERED, limit=2, but_workspaces=[WORKSPACE])
        assert [(due.workspace, due.run_id) for due in found] == [(elsewhere, "r2"), (elsewhere, "r1")]

    @guarantee()
    async def test_paused_runs_of_stored_rules_are_due_while_these_are_enabled(self, trial: StorageTrial) -> None:
        """Paused runs of a stored rule are due while it is active and enabled, and again once it is anew."""
        await trial.store(rule(ALPHA), rule(BETA, enabled=False), rule("other:alpha"))
        for name in (ALPHA, BETA, GAMMA, "other:alpha"):
            await trial.save(run(f"{name}1", name, seq=1), run(f"{name}2", name, "paused", seq=2, until=START))
        both = [f"{ALPHA}1", f"{ALPHA}2"]
        assert sorted(await trial.due(STORED)) == both
        assert await trial.due(replace(STORED, withheld=frozenset({ALPHA}))) == []
        await trial.store(rule(ALPHA, enabled=False), version=2)
        assert await trial.due(STORED) == []
        assert await trial.storage.next_due(STORED) is None
        await trial.store(rule(ALPHA), version=3)
        assert sorted(await trial.due(STORED)) == both
        assert await trial.storage.next_due(STORED) == NOTHING
        await trial.store(rule(ALPHA), version=4, is_active=False)
        assert await trial.due(STORED) == []
        await trial.store(rule(ALPHA, ordering="none"), version=5)
        assert sorted(await trial.due(STORED)) == both

    @guarantee()
    async def test_a_run_itself_says_whether_its_pause_blocks(self, trial: StorageTrial) -> None:
        """Whether a paused run of a stored rule blocks is what it said when it paused, not what its rule says now."""
        await trial.store(rule(ALPHA, on_pause="block"), rule(BETA), rule(GAMMA, ordering="none", on_pause="block"))
        for name, blocks in ((ALPHA, False), (BETA, True), (GAMMA, True)):
            await trial.save(run(f"{name}1", name, "paused", seq=1, blocks=blocks), run(f"{name}2", name, seq=2))
        assert sorted(await trial.due(STORED)) == [f"{ALPHA}2", f"{GAMMA}2"]
        await trial.store(rule(ALPHA), rule(BETA), version=2)
        assert sorted(await trial.due(STORED)) == [f"{ALPHA}2", f"{GAMMA}2"]

    # --- Order, limits and many

    @guarantee()
    async def test_what_waited_longest_comes_first_among_paused_runs_too(self, trial: StorageTrial) -> None:
        """Paused runs are due since the time until which they waited, and come by that among others, up to a limit."""
        async with trial.transaction() as transaction:
            now = transaction.now
            await transaction.save_runs(
                [
                    run("third", status="paused", scope=3, fired_at=now - HOUR, until=now - 10 * SECOND, blocks=True),
                    run("second", scope=2, fired_at=now - 20 * SECOND),
                    run("first", status="paused", scope=1, fired_at=now - HOUR, until=now - 30 * SECOND),
                ]
            )
        for policy in (UNORDERED, ORDERED):
            assert await trial.due(policy) == ["first", "second", "third"]
            assert await trial.due(policy, limit=2) == ["first", "second"]
            assert await trial.due(policy, limit=0) == []

    @guarantee()
    async def test_paused_runs_that_still_have_time_do_not_use_up_the_limit(self, trial: StorageTrial) -> None:
        """However many runs are paused, in one scope or in many, a limit is filled with runs that may start."""
        async with trial.transaction() as transaction:
            later = transaction.now + HOUR
        many = range(1, 51)
        await trial.save(
            *(run(f"any{seq}", status="paused", scope="x", seq=seq) for seq in many),
            *(run(f"later{seq}", status="paused", scope=seq, seq=seq, until=later, blocks=True) for seq in many),
            run("x", scope="x", seq=99),
            run("y", scope="y", seq=98),
            run("over", status="paused", scope=1, seq=97, until=START),
        )
        for policy in CODE:
            assert sorted(await trial.due(policy, limit=3)) == ["over", "x", "y"]

    @guarantee()
    async def test_a_large_number_of_paused_runs_is_one_call(self, trial: StorageTrial) -> None:
        """5,000 paused runs of a scope are saved in one call, found, and due together when their time is over."""
        many = range(1, self.large + 1)
        await trial.save(*(run(f"r{seq}", status="paused", seq=seq, until=START) for seq in many))
        assert len(await trial.storage.runs(WORKSPACE, PAUSED)) == self.large
        assert set(await trial.due(ORDERED, limit=self.large + 1)) == {f"r{seq}" for seq in many}
        assert await trial.turns(run_scope()) == {}
        await trial.save(*(run(f"r{seq}", seq=seq) for seq in many))
        assert await trial.due(ORDERED) == ["r1"]

    @guarantee(Feature.SHARED_DATA)
    async def test_another_storage_finds_the_same_paused_runs(self, trial: StorageTrial) -> None:
        """Which paused runs are due, and hold back others, is the same for a second storage on the same data."""
        async with trial.beside() as other:
            await trial.save(run("r1", status="paused", until=START, blocks=True), run("r2", seq=2))
            assert await trial.due(ORDERED) == await other.due(ORDERED) == ["r1"]
            assert await other.turns(run_scope()) == {run_scope(): "r1"}
            await other.save(run("r1", status="paused", blocks=False))
            assert await trial.due(ORDERED) == await other.due(ORDERED) == ["r2"]


_PLAIN: Final[tuple[JsonValue, ...]] = (None, False, 0, "", [], {}, 1.0, -0.0, "a\x00b", 10**400, [{"z": 1, "a": 2}])
"""Values of every kind, those that are easily taken for nothing among them."""

_BEFORE: Final[tuple[RunStatus, ...]] = ("pending", "running", "retrying", "paused", "dead_lettered")
"""In which statuses a run may stand before another of its scope."""

_AFTER: Final[tuple[RunStatus, ...]] = ("succeeded", "dead_lettered", "cancelled", "skipped")


async def _keeps(trial: StorageTrial, saved: list[Run]) -> None:
    texts = {one.id: one.model_dump_json() for one in saved}
    async with trial.transaction() as transaction:
        await transaction.save_runs(saved)
        assert _texts((await transaction.runs(list(texts))).values()) == texts
        assert _texts(await transaction.find_runs(RunQuery())) == texts
    assert _texts(await trial.storage.runs(WORKSPACE, RunQuery())) == texts
    for run_id, text in texts.items():
        found = await trial.storage.run(WORKSPACE, run_id)
        assert found is not None
        assert found.model_dump_json() == text


def _texts(runs: Iterable[Run]) -> dict[str, str]:
    return {one.id: one.model_dump_json() for one in runs}


def _spoil(value: JsonValue) -> None:
    assert isinstance(value, list)
    value.append("spoilt")
