import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from reflexr.core import Armed, DeadLetter, Needs, RuleProgress, Run, ScopeState, StoredRule
from reflexr.workspace import (
    DuplicateEventIdError,
    Head,
    InMemoryStorage,
    LogWindow,
    ManualClock,
    RunQuery,
    RunScope,
    Sizes,
    StateChanges,
    StoredRuleConflictError,
    TransactionClosedError,
    WorkspaceRef,
)

from .plant import REF, SECOND, START, a_run, append, draft, save, stored

RULE = "plant:alarms"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def storage(clock: ManualClock) -> InMemoryStorage:
    return InMemoryStorage(clock=clock)


def needs(*keys: str, due_through: Any = None) -> dict[str, Needs]:
    return {RULE: Needs(frozenset(keys), due_through, ())}


def armed(due: int) -> ScopeState:
    return ScopeState(armed=Armed(seq=1, correlation_id="c", depth=0, due=START + due * SECOND))


# --- The log


async def test_places_have_no_gap_and_times_never_decrease_even_if_the_clock_goes_back(
    storage: InMemoryStorage, clock: ManualClock
) -> None:
    await append(storage, "a")
    clock.set(START - timedelta(hours=1))
    await append(storage, "b", "c")

    envelopes = await storage.read(REF, LogWindow())

    assert [(envelope.seq, envelope.id, envelope.ts) for envelope in envelopes] == [
        (1, "a", START),
        (2, "b", START),
        (3, "c", START),
    ]
    assert await storage.head(REF) == Head(3, START)


async def test_an_id_that_is_in_the_log_or_twice_in_an_append_is_an_error_and_appends_nothing(
    storage: InMemoryStorage,
) -> None:
    await append(storage, "a")

    async with storage.transaction(REF) as transaction:
        await transaction.append([draft("b")])
        for ids in (["x", "a"], ["x", "b"], ["x", "x"]):
            with pytest.raises(DuplicateEventIdError) as refused:
                await transaction.append([draft(event_id) for event_id in ids])
            assert refused.value.ids == (ids[1],)

    assert [envelope.id for envelope in await storage.read(REF, LogWindow())] == ["a", "b"]


async def test_a_transaction_reads_its_own_writes_and_nobody_else_does_before_it_commits(
    storage: InMemoryStorage,
) -> None:
    await append(storage, "a")

    async with storage.transaction(REF) as transaction:
        assert await transaction.append([]) == []
        await transaction.append([draft("b"), draft("c", kind="plant:repaired")])

        assert transaction.head.seq == 3
        assert set(await transaction.find(["a", "b", "x"])) == {"a", "b"}
        assert list(await transaction.read_seqs([0, 1, 3, 4])) == [1, 3]
        assert [envelope.seq for envelope in await transaction.read(LogWindow(limit=2))] == [1, 2]
        assert [envelope.seq for envelope in await transaction.read(LogWindow(last=2))] == [2, 3]
        window = LogWindow(before_seq=3, types=frozenset({"plant:alarm"}))
        assert [envelope.seq for envelope in await transaction.read(window)] == [1, 2]
        assert (await storage.head(REF)).seq == 1
        assert set(await storage.find(REF, ["a", "b"])) == {"a"}

    assert (await storage.head(REF)).seq == 3


@pytest.mark.parametrize(
    ("window", "seqs"),
    [
        (LogWindow(), [1, 2, 3, 4, 5, 6]),
        (LogWindow(after_seq=2, before_seq=5), [3, 4]),
        (LogWindow(after_seq=6), []),
        (LogWindow(after_seq=5, before_seq=2), []),
        (LogWindow(limit=2), [1, 2]),
        (LogWindow(limit=0), []),
        (LogWindow(last=2), [5, 6]),
        (LogWindow(last=0), []),
        (LogWindow(last=99), [1, 2, 3, 4, 5, 6]),
        (LogWindow(types=frozenset({"plant:alarm"})), [1, 3, 5]),
        (LogWindow(types=frozenset()), []),
        (LogWindow(types=frozenset({"plant:alarm", "plant:opened"}), after_seq=1, limit=3), [2, 3, 4]),
        (LogWindow(types=frozenset({"plant:alarm", "plant:unheard"}), last=2, before_seq=5), [1, 3]),
    ],
)
async def test_a_window_is_read_in_the_logs_order(storage: InMemoryStorage, window: LogWindow, seqs: list[int]) -> None:
    async with storage.transaction(REF) as transaction:
        kinds = ["plant:alarm", "plant:opened"] * 3
        await transaction.append([draft(f"e{index}", kind=kind) for index, kind in enumerate(kinds)])

    assert [envelope.seq for envelope in await storage.read(REF, window)] == seqs


async def test_nothing_that_is_returned_is_shared_with_the_storage(storage: InMemoryStorage) -> None:
    mutable = draft("a")
    async with storage.transaction(REF) as transaction:
        appended = (await transaction.append([mutable]))[0]
        mutable.payload["machine"] = "changed"
        appended.payload["machine"] = "changed"
        (await transaction.find(["a"]))["a"].payload["machine"] = "changed"
        run = a_run()
        await transaction.save_runs([run])
        run.scope["machine"] = "changed"

    (await storage.read(REF, LogWindow()))[0].payload["machine"] = "changed"
    assert (await storage.read(REF, LogWindow()))[0].payload["machine"] == "press"
    assert (await storage.run(REF, "fir_1")) == a_run()


async def test_two_tenants_workspaces_of_one_name_have_nothing_to_do_with_each_other(storage: InMemoryStorage) -> None:
    other = WorkspaceRef("globex", "prod")
    await append(storage, "a")
    await append(storage, "a", "b", ref=other)

    assert (await storage.head(REF)).seq == 1
    assert await storage.workspaces() == [REF, other]
    assert await storage.workspaces(tenant_id="globex") == [other]
    assert await storage.workspaces(after=REF) == [other]
    assert await storage.workspaces(limit=1) == [REF]


# --- Transactions


async def test_a_block_that_raises_changes_nothing(storage: InMemoryStorage) -> None:
    async def work() -> None:
        async with storage.transaction(REF) as transaction:
            await transaction.append([draft("a")])
            await transaction.save_runs([a_run()])
            await transaction.acquire(["evaluation"], "me", SECOND)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()

    assert await storage.head(REF) == Head()
    assert await storage.runs(REF, RunQuery()) == []
    assert await storage.workspaces() == []
    assert storage.sizes() == Sizes()


async def test_transactions_of_one_workspace_take_turns_in_the_order_they_came(storage: InMemoryStorage) -> None:
    order: list[str] = []

    async def work(name: str) -> None:
        async with storage.transaction(REF) as transaction:
            order.append(f"{name} began at {transaction.head.seq}")
            await asyncio.sleep(0)
            await transaction.append([draft(name)])

    await asyncio.gather(work("a"), work("b"), work("c"))

    assert order == ["a began at 0", "b began at 1", "c began at 2"]
    assert storage.sizes().callers == 0


async def test_transactions_of_other_workspaces_are_not_held_up(storage: InMemoryStorage) -> None:
    async with storage.transaction(REF):
        await append(storage, "a", ref=WorkspaceRef("acme", "test"))

    assert await storage.workspaces() == [WorkspaceRef("acme", "test")]


async def test_a_transaction_that_is_cancelled_while_it_waits_leaves_no_lock(storage: InMemoryStorage) -> None:
    async with storage.transaction(REF):
        waiting = asyncio.create_task(append(storage, "never"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    await append(storage, "a")
    assert [envelope.id for envelope in await storage.read(REF, LogWindow())] == ["a"]
    assert storage.sizes().callers == 0


async def test_a_transaction_is_of_no_use_after_its_block(storage: InMemoryStorage) -> None:
    async with storage.transaction(REF) as transaction:
        assert transaction.workspace == REF
        assert transaction.now == START

    with pytest.raises(TransactionClosedError):
        await transaction.append([draft("a")])


# --- Rules


def progress(rule: str, cursor: int) -> RuleProgress:
    return RuleProgress(rule=rule, generation=1, cursor=cursor, definition="d")


async def test_progress_is_saved_by_rule_in_the_order_of_creation(storage: InMemoryStorage) -> None:
    async with storage.transaction(REF) as transaction:
        await transaction.save_progress([progress("x:b", 1), progress("x:a", 1)])
        await transaction.save_progress([progress("x:b", 2)])
        assert await transaction.progress(["x:b", "x:c"]) == {"x:b": progress("x:b", 2)}

    assert list((await storage.progress(REF)).items()) == [("x:b", progress("x:b", 2)), ("x:a", progress("x:a", 1))]
    async with storage.transaction(REF) as transaction:
        assert list(await transaction.progress()) == ["x:b", "x:a"]


async def test_states_are_found_by_key_and_by_when_they_are_due(storage: InMemoryStorage) -> None:
    async with storage.transaction(REF) as transaction:
        saved = {"a": armed(1), "b": armed(5), "c": ScopeState(fired=(START,))}
        await transaction.change_states({RULE: StateChanges(saved=saved)})
        assert await transaction.states(needs("c", "x", due_through=START + SECOND)) == {
            RULE: {"a": saved["a"], "c": saved["c"]}
        }

    async with storage.transaction(REF) as transaction:
        assert await transaction.states(needs("c", "x", due_through=START + SECOND)) == {
            RULE: {"a": saved["a"], "c": saved["c"]}
        }
        assert await transaction.states({"plant:other": Needs(frozenset({"a"}), START, ())}) == {"plant:other": {}}
        # What was due is moved by this transaction, and what was not becomes due.
        moved = {"a": armed(9), "b": armed(0)}
        await transaction.change_states({RULE: StateChanges(saved=moved, dropped=frozenset({"c"}))})
        assert await transaction.states(needs("c", due_through=START + SECOND)) == {RULE: {"b": moved["b"]}}


async def test_states_that_have_expired_are_really_gone(storage: InMemoryStorage) -> None:
    def until(seconds: int) -> ScopeState:
        return ScopeState(fired=(START,), expires=START + seconds * SECOND)

    async with storage.transaction(REF) as transaction:
        saved = {f"k{index}": until(index) for index in range(1_000)}
        await transaction.change_states({RULE: StateChanges(saved=saved)})

    async with storage.transaction(REF) as transaction:
        await transaction.change_states({RULE: StateChanges(saved={"fresh": until(5), "other": until(2_000)})})
        gone = StateChanges(saved={"k1": until(3_000)}, expired_through=START + 998 * SECOND)
        await transaction.change_states({RULE: gone})
        await transaction.change_states({RULE: StateChanges(expired_through=START)})
        seen = await transaction.states(needs("fresh", "k1", "k2", "k999", "other"))
        assert set(seen[RULE]) == {"k1", "k999", "other"}

    assert storage.sizes().states == 3
    async with storage.transaction(REF) as transaction:
        await transaction.change_states({RULE: StateChanges(expired_through=START + 9_999 * SECOND)})
    assert storage.sizes().states == 0


async def test_a_batch_over_a_hundred_thousand_armed_scopes_costs_what_it_touches(storage: InMemoryStorage) -> None:
    async with storage.transaction(REF) as transaction:
        saved = {f"k{index}": armed(100 + index) for index in range(100_000)}
        await transaction.change_states({RULE: StateChanges(saved=saved)})

    called = 0

    def count(self: TypeAdapter[Any], *arguments: Any, **options: Any) -> Any:
        nonlocal called
        called += 1
        return validate(self, *arguments, **options)

    validate = TypeAdapter[Any].validate_json
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TypeAdapter, "validate_json", count)
        async with storage.transaction(REF) as transaction:
            found = await transaction.states(needs("k99999", due_through=START + 102 * SECOND))

    assert set(found[RULE]) == {"k0", "k1", "k2", "k99999"}
    assert called == 4


async def test_clearing_a_rule_drops_its_states_and_no_others(storage: InMemoryStorage) -> None:
    other = "plant:other"
    async with storage.transaction(REF) as transaction:
        await transaction.change_states({rule: StateChanges(saved={"a": armed(1)}) for rule in (RULE, other)})

    async with storage.transaction(REF) as transaction:
        await transaction.clear_states([RULE])
        assert await transaction.states(needs("a", due_through=START + SECOND)) == {RULE: {}}
        await transaction.change_states({RULE: StateChanges(saved={"b": armed(2)})})

    async with storage.transaction(REF) as transaction:
        everything = Needs(frozenset({"a", "b"}), None, ())
        found = await transaction.states({RULE: everything, other: everything})
        assert {rule: set(states) for rule, states in found.items()} == {RULE: {"b"}, other: {"a"}}


async def test_dead_letters_are_kept_in_order_and_counted_by_rule(storage: InMemoryStorage) -> None:
    def letter(rule: str, seq: int) -> DeadLetter:
        return DeadLetter(
            rule=rule, generation=1, seq=seq, scope_key=None, ts=START, kind="scope_missing", error="no machine"
        )

    letters = [letter("x:a", 1), letter("x:b", 2), letter("x:a", 3)]
    async with storage.transaction(REF) as transaction:
        await transaction.add_dead_letters(letters)

    assert await storage.dead_letters(REF) == letters
    assert await storage.dead_letters(REF, rule="x:a") == [letters[0], letters[2]]
    assert await storage.dead_letters(REF, limit=2) == letters[1:]
    assert await storage.dead_letters(REF, rule="x:a", limit=0) == []
    assert await storage.dead_letters(REF, rule="x:c") == []
    assert await storage.dead_letter_counts(REF) == {"x:a": 2, "x:b": 1}


async def test_a_stored_rule_is_saved_at_its_next_version_alone(storage: InMemoryStorage) -> None:
    first = StoredRule(rule=stored(), version=1)
    second = StoredRule(rule=stored(description="more"), version=2, status="archived")
    async with storage.transaction(REF) as transaction:
        for wrong in ([second], [first, first]):
            with pytest.raises(StoredRuleConflictError):
                await transaction.save_stored_rules(wrong)
        await transaction.save_stored_rules([first])
        assert await transaction.stored_rules() == {"chat:alarms": first}

    assert await storage.stored_rules(REF) == {"chat:alarms": first}
    async with storage.transaction(REF) as transaction:
        with pytest.raises(StoredRuleConflictError) as refused:
            await transaction.save_stored_rules([first])
        assert refused.value.expected == 2
        await transaction.save_stored_rules([second])

    assert await storage.stored_rules(REF) == {}
    assert await storage.stored_rules(REF, ["chat:alarms", "chat:x"]) == {"chat:alarms": second}


# --- Runs


async def test_runs_are_read_newest_first_whatever_was_saved_again(storage: InMemoryStorage) -> None:
    await save(storage, a_run("r1"), a_run("r2", rule="plant:other"), a_run("r3", scope_key="[]"))
    await save(storage, a_run("r1", status="succeeded"))

    async def ids(query: RunQuery) -> list[str]:
        found = [run.id for run in await storage.runs(REF, query)]
        async with storage.transaction(REF) as transaction:
            assert [run.id for run in await transaction.find_runs(query)] == found
        return found

    assert await ids(RunQuery()) == ["r3", "r2", "r1"]
    assert await ids(RunQuery(limit=2)) == ["r3", "r2"]
    assert await ids(RunQuery(rules=frozenset({RULE}))) == ["r3", "r1"]
    assert await ids(RunQuery(statuses=frozenset({"succeeded", "running"}))) == ["r1"]
    assert await ids(RunQuery(scope_key="[]")) == ["r3"]
    assert await storage.run(REF, "r9") is None


async def test_a_transaction_finds_the_runs_it_saved_in_their_place(storage: InMemoryStorage) -> None:
    await save(storage, a_run("r1"), a_run("r2"))

    async with storage.transaction(REF) as transaction:
        await transaction.save_runs([a_run("r3"), a_run("r1", status="cancelled"), a_run("r4")])

        assert [run.id for run in await transaction.find_runs(RunQuery())] == ["r4", "r3", "r2", "r1"]
        pending = RunQuery(statuses=frozenset({"pending"}), limit=2)
        assert [run.id for run in await transaction.find_runs(pending)] == ["r4", "r3"]
        assert {run.id: run.status for run in (await transaction.runs(["r1", "r2", "r9"])).values()} == {
            "r1": "cancelled",
            "r2": "pending",
        }


SCOPE = RunScope(RULE, '["press"]')


async def turns(storage: InMemoryStorage, *changed: Run, blocking: bool = False) -> str | None:
    """Whose turn it is, as a transaction sees it that changed these runs and then changes its mind."""
    found: list[str | None] = []
    with suppress(InterruptedError):
        async with storage.transaction(REF) as transaction:
            await transaction.save_runs(changed)
            first = await transaction.first_runs([SCOPE], blocking=[RULE] if blocking else [])
            found.append(first.get(SCOPE))
            raise InterruptedError
    return found[0]


async def test_it_is_the_first_unfinished_runs_turn(storage: InMemoryStorage) -> None:
    assert await turns(storage) is None
    await save(storage, a_run("r2", seq=2), a_run("r1", seq=1), a_run("r3", seq=3))

    assert await turns(storage) == "r1"
    assert await turns(storage, a_run("r1", status="succeeded")) == "r2"
    assert await turns(storage, a_run("r1", status="succeeded"), a_run("r0", seq=0)) == "r0"
    assert await turns(storage, a_run("r3", seq=3, status="running")) == "r3"


async def test_a_dead_lettered_run_has_the_turn_only_where_it_blocks(storage: InMemoryStorage) -> None:
    await save(storage, a_run("r1", seq=1, status="dead_lettered"), a_run("r2", seq=2))

    assert await turns(storage) == "r2"
    assert await turns(storage, blocking=True) == "r1"
    assert await turns(storage, a_run("r1", seq=1, status="skipped"), blocking=True) == "r2"
    assert await turns(storage, a_run("r2", seq=2, status="dead_lettered")) is None


async def test_a_scope_whose_runs_have_all_ended_is_forgotten(storage: InMemoryStorage) -> None:
    await save(storage, a_run("r1"), a_run("r2"))
    await save(storage, a_run("r1", status="succeeded"), a_run("r2", status="skipped"))

    assert storage.sizes().open_scopes == 0
    await save(storage, a_run("r2"))
    assert await turns(storage) == "r2"
    await save(storage, a_run("r3", status="succeeded"))
    assert await turns(storage) == "r2"


# --- Schedules and cursors


async def test_a_schedules_last_tick_never_goes_back(storage: InMemoryStorage) -> None:
    async with storage.transaction(REF) as transaction:
        await transaction.save_schedule_ticks({"a": START, "b": START})
        await transaction.save_schedule_ticks({"a": START - SECOND, "b": START + SECOND})

    assert await storage.schedule_ticks(REF) == {"a": START, "b": START + SECOND}


async def test_a_cursor_only_moves_forward(storage: InMemoryStorage) -> None:
    assert await storage.cursor(REF, "mirror") == 0
    assert await storage.save_cursor(REF, "mirror", 5) == 5
    assert await storage.save_cursor(REF, "mirror", 3) == 5
    assert await storage.cursor(REF, "mirror") == 5
    assert await storage.workspaces() == []


async def test_what_a_transaction_writes_is_not_lost_to_a_cursor_saved_meanwhile(storage: InMemoryStorage) -> None:
    async with storage.transaction(REF) as transaction:
        await transaction.append([draft("a")])
        await storage.save_cursor(REF, "mirror", 1)

    assert (await storage.head(REF)).seq == 1
    assert await storage.cursor(REF, "mirror") == 1


async def test_a_commit_wakes_listeners_at_once_and_an_idle_transaction_wakes_nobody(storage: InMemoryStorage) -> None:
    with storage.wakeups.listen() as listener:
        async with storage.transaction(REF) as transaction:
            await transaction.read(LogWindow())
        assert await listener.wait(timedelta(0)) == frozenset()

        await append(storage, "a")
        assert await listener.wait() == {REF}
