import asyncio
import logging
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reflexr.core
from reflexr.core import (
    Batch,
    Envelope,
    Needs,
    Rule,
    RuleErrored,
    RuleFired,
    RuleProgress,
    RunSucceeded,
    begin,
    by,
    evaluate,
    needs,
    on,
    predicate,
    run,
)
from reflexr.workspace import EVALUATION_LEASE, LeaseKey, WorkspaceRef
from reflexr.workspace.evaluating import Evaluating, Evaluator
from reflexr.workspace.memory_transaction import MemoryTransaction
from reflexr.workspace.rounds import FIRST_DELAY, PARALLEL, Rounds
from reflexr.workspace.slots import EVERYWHERE

from .plant import ADA, REF, SECOND, Alarm, Opened, PlantEvent, Stopped, alarms, draft, stored, stored_rules
from .reacting import TTL, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def each(name: str, event: Any = Alarm, **changes: Any) -> Rule:
    return Rule.model_validate({"name": name, "when": on(event), "then": run("page")} | changes)


async def progress(bench: Bench, ref: WorkspaceRef = REF) -> dict[str, tuple[int, int]]:
    return {name: (stands.generation, stands.cursor) for name, stands in (await bench.storage.progress(ref)).items()}


def expected_facts(rules: list[Rule], log: list[Any], max_depth: int = 8) -> list[tuple[str, dict[str, Any]]]:
    """What core says each rule decides on the whole log, in one batch, by rule: the oracle."""
    batch = Batch(log)
    return [
        (rule.name, dict(fact.payload))
        for rule in rules
        for fact in evaluate(
            rule, RuleProgress(rule.name, 1, 0, rule.definition()), {}, batch, max_depth=max_depth
        ).facts
    ]


def logged_facts(rules: list[Rule], log: list[Any]) -> list[tuple[str, dict[str, Any]]]:
    types = (RuleFired.event_type, RuleErrored.event_type)
    facts = [envelope.payload for envelope in log if envelope.event_type in types]
    return [(rule.name, fact) for rule in rules for fact in facts if fact["rule"] == rule.name]


ORACLE_RULES = [
    alarms(),
    each("plant:pairs", when=on(Alarm).count(at_least=2, within=timedelta(seconds=5)), scope=by("machine")),
    each("plant:quiet", when=on(Alarm).absent(within=timedelta(seconds=4)), scope=by("machine")),
    each("plant:hidden", when=on(Stopped), scope=by("details.part")),
    each("plant:after", RuleFired, when=on(RuleFired).where(rule="plant:alarms")),
    each("plant:done", RunSucceeded, when=on(RunSucceeded)),
    each("plant:errors", RuleErrored, when=on(RuleErrored)),
]
EVENTS = st.one_of(
    st.builds(Alarm, machine=st.sampled_from(["press", "saw"]), level=st.integers(1, 5)),
    st.builds(Stopped, machine=st.just("press"), details=st.sampled_from([None, {"part": "belt"}])),
)


@given(
    st.lists(st.tuples(EVENTS, st.integers(0, 6)), max_size=12),
    st.integers(1, 7),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
async def test_evaluating_the_whole_log_again_gives_exactly_the_facts_that_are_in_it(
    events: list[tuple[PlantEvent, int]], batch_size: int, settled: list[bool]
) -> None:
    bench = Bench()
    reactor = bench.reactor(*ORACLE_RULES, batch_size=batch_size)
    for (event, seconds), settle in zip(events, settled, strict=False):
        bench.clock.advance(seconds * SECOND)
        await bench.publish(event)
        if settle:
            await reactor.settle()
    await reactor.settle()

    log = await bench.log()

    assert not log or logged_facts(ORACLE_RULES, log) == expected_facts(ORACLE_RULES, log)


async def test_a_new_workspace_meets_every_registered_rule_at_its_first_event(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))

    await bench.reactor(each("plant:a"), each("plant:off", enabled=False)).evaluate()

    assert [fact["rule"] for fact in await bench.facts("reflexr:rule_fired")] == ["plant:a", "plant:a"]
    assert (await progress(bench))["plant:off"] == (1, 0)


async def test_a_rule_that_is_added_later_begins_at_the_head_or_at_the_beginning(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(each("plant:a")).evaluate()

    await bench.reactor(each("plant:a"), each("plant:now"), each("plant:all", start="beginning")).evaluate()

    assert [fact["rule"] for fact in await bench.facts("reflexr:rule_fired")] == ["plant:a", "plant:all"]


async def test_a_disabled_rule_keeps_its_cursor_and_resumes_from_it(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(each("plant:a"), each("plant:b")).evaluate()
    before = (await progress(bench))["plant:b"]
    await bench.publish(Alarm(machine="saw"))

    await bench.reactor(each("plant:a"), each("plant:b", enabled=False)).evaluate()
    held = (await progress(bench))["plant:b"]
    await bench.reactor(each("plant:a"), each("plant:b")).evaluate()

    assert held == before
    assert [fact["rule"] for fact in await bench.facts("reflexr:rule_fired")].count("plant:b") == 2


async def test_a_disabled_rule_that_is_new_to_an_old_workspace_does_not_begin(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(each("plant:a")).evaluate()
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(each("plant:a"), each("plant:b", enabled=False)).evaluate()

    assert "plant:b" not in await progress(bench)


async def test_a_rule_that_is_gone_keeps_its_progress_and_holds_nothing_up(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(each("plant:a"), each("plant:b")).evaluate()
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(each("plant:b")).evaluate()

    stands = await progress(bench)
    assert stands["plant:a"][1] < stands["plant:b"][1] == (await bench.storage.head(REF)).seq


async def test_a_changed_definition_resets_the_rule_at_the_head_in_a_new_generation(bench: Bench) -> None:
    first = each("plant:pairs", when=on(Alarm).count(at_least=2, within=timedelta(minutes=1)))
    changed = each("plant:pairs", when=on(Alarm).count(at_least=2, within=timedelta(minutes=2)))
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(first).evaluate()
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(changed).evaluate()
    fired_for_the_past = await bench.facts("reflexr:rule_fired")
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(changed).evaluate()
    fired_with_what_it_remembered = await bench.facts("reflexr:rule_fired")
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(changed).evaluate()

    assert fired_for_the_past == fired_with_what_it_remembered == []
    assert [fact["matched"] for fact in await bench.facts("reflexr:rule_fired")] == [[4, 5]]
    reset = (await bench.facts("reflexr:rule_reset"))[0]
    assert (reset["rule"], reset["generation"], reset["reason"], reset["from_seq"]) == ("plant:pairs", 2, "changed", 3)
    assert len(await bench.facts("reflexr:rule_reset")) == 1


async def test_processes_that_define_a_rule_differently_reset_each_other_ever_more_rarely(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    reactors = [bench.reactor(each("plant:a", when=on(event))) for event in (Alarm, Opened)]
    await bench.publish(Alarm(machine="press"))

    for _ in range(20):
        for reactor in reactors:
            await reactor.settle()

    assert len(await bench.facts("reflexr:rule_reset")) == 2
    caplog.clear()
    later = partial(asyncio.get_running_loop().time)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "time", lambda: later() + FIRST_DELAY.total_seconds())
        for reactor in reactors:
            await reactor.settle()
    assert len(await bench.facts("reflexr:rule_reset")) == 3
    assert "another process defines it otherwise; it is not again within 0:00:02" in caplog.text


async def test_what_is_no_part_of_the_definition_resets_nothing(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(each("plant:a")).evaluate()

    await bench.reactor(each("plant:a", description="new", ordering="none", timeout="PT1M")).evaluate()

    assert await bench.facts("reflexr:rule_reset") == []


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
async def test_a_replayed_rule_catches_up_by_itself_and_moves_on_with_the_others(bench: Bench, batch_size: int) -> None:
    reactor = bench.reactor(each("plant:a"), each("plant:b"), batch_size=batch_size)
    await bench.publish(*[Alarm(machine="press") for _ in range(5)])
    await reactor.evaluate()

    await (await bench.workspaces(each("plant:a"), each("plant:b")).open("acme", "prod", actor=ADA)).replay_rule(
        "plant:a", from_seq=3, mode="refire"
    )
    await bench.publish(Alarm(machine="saw"))
    await reactor.evaluate()

    fired = await bench.facts("reflexr:rule_fired")
    assert [fact["matched"][0] for fact in fired if fact["rule"] == "plant:b"][:5] == [1, 2, 3, 4, 5]
    assert [fact["matched"][0] for fact in fired if fact["rule"] == "plant:a"][5:8] == [3, 4, 5]
    head = (await bench.storage.head(REF)).seq
    assert await progress(bench) == {"plant:a": (2, head), "plant:b": (1, head)}


async def test_rules_that_meet_go_on_in_one_transaction(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    remembering = on(Alarm).at_most(1, per=SECOND)
    rules = [each(f"plant:r{number}", when=remembering) for number in range(20)]
    reads: list[int] = []
    states: list[int] = []
    read, load = MemoryTransaction.read, MemoryTransaction.states

    async def counted_read(self: MemoryTransaction, window: Any) -> Any:
        reads.append(1)
        return await read(self, window)

    async def counted_states(self: MemoryTransaction, needs: Any) -> Any:
        states.append(len(needs))
        return await load(self, needs)

    monkeypatch.setattr(MemoryTransaction, "read", counted_read)
    monkeypatch.setattr(MemoryTransaction, "states", counted_states)
    await bench.publish(*[Alarm(machine="press") for _ in range(50)])

    transactions = await bench.reactor(*rules).evaluate()

    assert (transactions, len(reads), states) == (1, 1, [20])


async def test_rules_that_a_batch_does_not_touch_only_move_their_cursor(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = each("plant:idle", Stopped)
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(each("plant:a"), quiet).evaluate()
    monkeypatch.setattr("reflexr.workspace.evaluating.needs", _only_for("plant:a"))

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(each("plant:a"), quiet).evaluate()

    head = (await bench.storage.head(REF)).seq
    assert await progress(bench) == {"plant:a": (1, head), "plant:idle": (1, head)}


def _only_for(name: str) -> Any:
    def checked(rule: Rule, *arguments: Any, **options: Any) -> Any:
        assert rule.name == name
        return needs(rule, *arguments, **options)

    return checked


async def test_states_that_are_worth_nothing_go_also_where_no_envelope_touches_the_rule(bench: Bench) -> None:
    pairs = each("plant:pairs", when=on(Alarm).count(at_least=2, within=timedelta(seconds=5)), scope=by("machine"))
    reactor = bench.reactor(pairs)
    await bench.publish(*[Alarm(machine=f"m{number}") for number in range(100)])
    await reactor.evaluate()
    keys = frozenset(f'["m{number}"]' for number in range(100))
    async with bench.storage.transaction(REF) as transaction:
        before = await transaction.states({"plant:pairs": Needs(keys, None, ())})

    bench.clock.advance(timedelta(seconds=10))
    await bench.publish(Stopped(machine="press"))
    await reactor.evaluate()

    assert len(before["plant:pairs"]) == 100
    async with bench.storage.transaction(REF) as transaction:
        assert await transaction.states({"plant:pairs": Needs(keys, None, ())}) == {"plant:pairs": {}}


async def test_one_rules_facts_are_anothers_input_until_all_are_caught_up(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(each("plant:a"), each("plant:b", when=on(RuleFired).where(rule="plant:a"))).evaluate()

    assert [fact["rule"] for fact in await bench.facts("reflexr:rule_fired")] == ["plant:a", "plant:b"]


async def test_rules_that_fire_on_each_other_stop_at_the_depth_limit(bench: Bench) -> None:
    ping = each("plant:ping", when=on(RuleFired, Alarm))
    pong = each("plant:pong", when=on(RuleFired))
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(ping, pong, max_depth=4).evaluate()

    assert len(await bench.facts("reflexr:rule_fired")) == 4
    assert [letter.kind for letter in await bench.storage.dead_letters(REF)] == ["depth_exceeded"]


async def test_a_predicate_that_raises_is_an_error_of_that_rule_and_envelope_alone(bench: Bench) -> None:
    def broken(_: object) -> bool:
        raise ValueError("boom")

    rules = [each("plant:a"), each("plant:b", when=on(Alarm).where(predicate("broken")))]
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(*rules, predicates={"broken": broken}).evaluate()

    assert [fact["rule"] for fact in await bench.facts("reflexr:rule_fired")] == ["plant:a"]
    assert [fact["error"] for fact in await bench.facts("reflexr:rule_errored")] == ["ValueError: boom"]
    assert [letter.rule for letter in await bench.storage.dead_letters(REF)] == ["plant:b"]


async def test_a_predicate_that_raises_a_cancellation_of_its_own_breaks_its_rule_alone(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def cancelled(envelope: Envelope) -> bool:
        raise asyncio.CancelledError

    await bench.publish(Alarm(machine="press"))
    rules = each("plant:a", when=on(Alarm).where(predicate("cancelled"))), each("plant:b")

    await bench.reactor(*rules, predicates={"cancelled": cancelled}).settle()

    assert [fact["rule"] for fact in await bench.facts("reflexr:rule_fired")] == ["plant:b"]
    assert "the evaluation of 'plant:a' broke" in caplog.text


@pytest.mark.parametrize("function", ["needs", "evaluate"])
async def test_a_rule_whose_evaluation_breaks_is_set_aside_and_reported_once_while_the_others_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    reactor = bench.reactor(each("plant:a"), each("plant:b"))
    await bench.publish(Alarm(machine="press"))
    await reactor.evaluate()
    with monkeypatch.context() as patch:
        patch.setattr(f"reflexr.workspace.evaluating.{function}", _breaking("plant:b", function))
        for _ in range(3):
            await bench.publish(Alarm(machine="press"))
            await reactor.settle()
        fired = await bench.facts("reflexr:rule_fired")

    assert [fact["rule"] for fact in fired].count("plant:a") == 4
    assert [fact["rule"] for fact in fired].count("plant:b") == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "plant:b" in caplog.text

    await reactor.evaluate()
    assert [fact["rule"] for fact in await bench.facts("reflexr:rule_fired")].count("plant:b") == 4
    await bench.publish(Alarm(machine="press"))
    monkeypatch.setattr(f"reflexr.workspace.evaluating.{function}", _breaking("plant:b", function))
    await reactor.evaluate()
    assert len(caplog.records) == 2


def _breaking(name: str, function: str) -> Any:
    genuine = getattr(reflexr.core, function)

    def breaking(rule: Rule, *arguments: Any, **options: Any) -> Any:
        if rule.name == name:
            raise RuntimeError("a fault of ours")
        return genuine(rule, *arguments, **options)

    return breaking


async def test_an_id_that_somebody_took_for_an_event_of_theirs_keeps_no_rule_from_firing(bench: Bench) -> None:
    rule = each("plant:a")
    await bench.publish(Alarm(machine="press"))
    log = await bench.log()
    foretold = evaluate(rule, begin(rule.model_copy(update={"start": "beginning"}), 1), {}, log).facts[0].id
    async with bench.storage.transaction(REF) as transaction:
        await transaction.append([draft(foretold)])

    await bench.reactor(rule).settle()

    assert [fact["matched"] for fact in await bench.facts("reflexr:rule_fired")] == [[1], [2]]
    assert await bench.statuses() == ["succeeded", "succeeded"]


async def test_many_workspaces_are_evaluated_and_idle_ones_are_not_opened(bench: Bench) -> None:
    names = [f"w{number}" for number in range(50)]
    for name in names:
        await bench.publish(Alarm(machine="press"), workspace_id=name)
    reactor = bench.reactor(each("plant:a"))
    await reactor.evaluate()
    await bench.publish(Alarm(machine="press"), workspace_id="w7")
    opened: list[str] = []

    async def noted(ref: WorkspaceRef) -> None:
        opened.append(ref.workspace_id)

    bench.storage.before = noted
    await reactor.evaluate()

    assert opened == ["w7"]
    assert all([len(await bench.facts("reflexr:rule_fired", name)) for name in names])


async def test_only_so_many_workspaces_are_evaluated_side_by_side(bench: Bench) -> None:
    for number in range(PARALLEL + 1):
        await bench.publish(Alarm(machine="press"), workspace_id=f"w{number}")
    begun: list[WorkspaceRef] = []
    full = asyncio.Event()

    async def waiting(ref: WorkspaceRef) -> None:
        begun.append(ref)
        await full.wait()

    bench.storage.before = waiting
    rounds = Rounds(Evaluating(an_evaluator(bench)), bench.storage)

    async with asyncio.TaskGroup() as tasks:
        done = tasks.create_task(rounds.until_idle())
        # Whoever is woken now finds no room.
        for _ in range(50):
            await asyncio.sleep(0)
            rounds.wake()
        at_work = len(begun)
        full.set()

    assert (at_work, done.result()) == (PARALLEL, PARALLEL + 1)


def an_evaluator(bench: Bench) -> Evaluator:
    configuration = bench.workspaces(each("plant:a")).configuration
    return Evaluator(configuration, holder="somebody", batch_size=100, lease_ttl=TTL)


class Ears:
    """What hears beside an evaluation which workspaces changed."""

    def __init__(self) -> None:
        self.heard: list[frozenset[WorkspaceRef]] = []

    def hear(self, changed: frozenset[WorkspaceRef]) -> None:
        self.heard.append(changed)

    def starting(self) -> AbstractContextManager[None]:
        return nullcontext()


def listened(bench: Bench) -> tuple[Evaluating, Ears]:
    """The duty of a reactor that serves, and who hears of changes beside it."""
    ears = Ears()
    return Evaluating(an_evaluator(bench), asyncio.Event(), cast("Any", ears)), ears


async def test_a_change_that_there_is_no_room_to_evaluate_at_once_is_told_and_looked_for_later(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    duty, ears = listened(bench)

    looks = duty.heard(frozenset({REF}))
    found = await duty.find([WorkspaceRef("acme", f"w{number}") for number in range(PARALLEL)])

    assert (looks, dict(found), ears.heard) == (True, {}, [frozenset({REF})])
    assert list(await duty.find(())) == [REF]


async def test_a_change_of_anything_is_told_and_everything_looked_for(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    duty, ears = listened(bench)

    assert duty.heard(frozenset())
    assert ears.heard == [frozenset()]
    assert list(await duty.find(())) == [REF]
    assert Evaluating(an_evaluator(bench)).heard(frozenset())


async def test_what_is_no_workspace_is_told_and_not_evaluated(bench: Bench) -> None:
    duty, ears = listened(bench)

    assert duty.heard(frozenset({EVERYWHERE}))

    assert dict(await duty.find(())) == {}
    assert ears.heard == [frozenset({EVERYWHERE})]


async def test_a_change_while_its_workspace_is_evaluated_is_told_when_that_is_over(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    duty, ears = listened(bench)
    (work,) = (await duty.find(())).values()

    looks = duty.heard(frozenset({REF}))
    before = list(ears.heard)
    await work()

    assert (looks, before, ears.heard) == (False, [], [frozenset({REF})])


async def test_workspaces_that_changed_do_not_keep_others_from_being_looked_for(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"), workspace_id="other")
    duty, _ = listened(bench)
    other = WorkspaceRef("acme", "other")
    looked: list[set[WorkspaceRef]] = []
    for _ in range(2):
        duty.heard(frozenset({REF}))
        looked.append(set(await duty.find(())))
        for workspace in looked[-1]:
            duty.tell(workspace)

    assert looked == [{REF}, {other}]


async def test_where_it_was_in_vain_to_go_at_once_is_looked_for_until_there_was_something(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reflexr.workspace.evaluating._MANY", 1)
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(each("plant:a")).evaluate()
    duty, ears = listened(bench)

    async def changed() -> list[WorkspaceRef]:
        """Says that the workspace changed, and returns where it goes."""
        duty.heard(frozenset({REF}))
        found = await duty.find(())
        for work in found.values():
            await work()
        return list(found)

    assert await changed() == [REF]
    assert await changed() == []
    await bench.publish(Alarm(machine="press"))
    assert await changed() == [REF]
    # The first time that it looks again, as others did the work before; then it goes there at once.
    assert [await changed() for _ in range(2)] == [[REF], []]
    for number in range(2):
        duty.heard(frozenset({WorkspaceRef("acme", f"empty{number}")}))
        for work in (await duty.find(())).values():
            await work()
    assert await changed() == [REF]
    assert len(ears.heard) == 8


async def test_a_workspace_that_another_reactor_evaluates_is_left_to_it(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(each("plant:a"))
    key = LeaseKey(REF, EVALUATION_LEASE)
    await bench.storage.acquire([key], "another", TTL)

    assert await reactor.evaluate() == 0
    bench.clock.advance(TTL)
    assert await reactor.evaluate() == 1


async def test_an_evaluation_that_loses_its_lease_between_batches_stops(bench: Bench) -> None:
    await bench.publish(*[Alarm(machine="press") for _ in range(10)])
    reactor = bench.reactor(each("plant:a"), batch_size=2)
    key = LeaseKey(REF, EVALUATION_LEASE)
    batches: list[frozenset[LeaseKey]] = []

    async def taken_over(ref: WorkspaceRef) -> None:
        # Nobody can have it while it is live; once it has lapsed, somebody is faster.
        batches.append(await bench.storage.acquire([key], "another", TTL) if batches else frozenset())
        bench.clock.advance(TTL)
        if len(batches) == 2:
            await bench.storage.acquire([key], "another", TTL)

    bench.storage.before = taken_over
    evaluated = await reactor.evaluate()

    assert (evaluated, batches) == (1, [frozenset(), frozenset()])
    assert (await progress(bench))["plant:a"] == (1, 2)


async def test_the_lease_is_given_back_when_all_is_done(bench: Bench) -> None:
    await bench.publish(*[Alarm(machine="press") for _ in range(10)])

    await bench.reactor(each("plant:a"), batch_size=3).evaluate()

    async with bench.storage.transaction(REF) as transaction:
        assert await transaction.holders([EVALUATION_LEASE]) == {}


async def test_two_reactors_at_once_decide_each_thing_once(bench: Bench) -> None:
    await bench.publish(*[Alarm(machine="press") for _ in range(20)])
    one, two = (bench.reactor(each("plant:a"), batch_size=3) for _ in range(2))

    await asyncio.gather(one.settle(), two.settle())

    assert len(await bench.facts("reflexr:rule_fired")) == 20
    assert await bench.statuses() == ["succeeded"] * 20


async def test_stored_rules_are_evaluated_from_their_installation_and_no_longer_once_archived(bench: Bench) -> None:
    workspaces = bench.workspaces(each("plant:a"), stored_rules=stored_rules())
    workspace = await workspaces.open("acme", "prod", actor=ADA)
    reactor = bench.reactor(each("plant:a"), stored_rules=stored_rules())
    await workspace.publish(Alarm(machine="press"))
    await workspace.install_rule(stored())
    await workspace.publish(Alarm(machine="press"))
    await reactor.settle()
    await workspace.archive_rule("chat:alarms")
    bench.clock.advance(timedelta(hours=1))
    await workspace.publish(Alarm(machine="press"))
    await reactor.settle()

    fired = [(fact["rule"], fact["matched"]) for fact in await bench.facts("reflexr:rule_fired")]
    assert [matched for rule, matched in fired if rule == "chat:alarms"] == [[3]]
    # The code rule meets the log at its first event, though the stored rule had progress before it did.
    assert ("plant:a", [1]) in fired


async def test_a_storage_that_fails_for_one_workspace_fails_the_call_after_the_others_were_evaluated(
    bench: Bench,
) -> None:
    for name in ("a", "b", "c"):
        await bench.publish(Alarm(machine="press"), workspace_id=name)
    broken = {"b"}

    async def failing(ref: WorkspaceRef) -> None:
        if ref.workspace_id in broken:
            raise OSError(f"{ref.workspace_id} is gone")

    bench.storage.before = failing
    with pytest.raises(OSError, match="b is gone"):
        await bench.reactor(each("plant:a")).evaluate()
    assert await bench.facts("reflexr:rule_fired", "a") != []
    assert await bench.facts("reflexr:rule_fired", "c") != []

    await bench.publish(Alarm(machine="press"), workspace_id="c")
    broken.add("c")
    with pytest.raises(ExceptionGroup, match="evaluating broke 2 times"):
        await bench.reactor(each("plant:a")).evaluate()


def test_sets_of_rules_are_kept_while_they_are_in_use_and_not_without_end(bench: Bench) -> None:
    evaluator = an_evaluator(bench)
    rules = [[each("plant:a")] for _ in range(200)]

    kept = evaluator.rule_set(rules[0])

    assert evaluator.rule_set(rules[0]) is kept
    for other in rules[1:]:
        evaluator.rule_set(other)
    assert evaluator.rule_set(rules[0]) is not kept
