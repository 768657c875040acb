"""What a storage promises of what rules remember: their progress, and the states of their scopes with their timers."""

from datetime import timedelta

from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import ALPHA, BETA, GAMMA, HOUR, WORKSPACE, armed, at, marked, needs, numbered, progress
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.core import Needs, ScopeState
from reflexr.workspace import StateChanges, WorkspaceRef

type States = dict[str, dict[str, ScopeState]]


class StatesContract(StorageGuarantees):
    """Progress and states are what was saved last, timers are exact, and what is worth nothing is gone."""

    # --- Progress

    @guarantee()
    async def test_progress_replaces_what_was_there(self, trial: StorageTrial) -> None:
        """A rule's progress is the one that was saved last, also one that goes back."""
        async with trial.transaction() as transaction:
            await transaction.save_progress([progress(ALPHA, 5), progress(BETA, 3)])
        async with trial.transaction() as transaction:
            await transaction.save_progress([progress(ALPHA, 2, generation=2, definition="d2")])
        expected = {ALPHA: progress(ALPHA, 2, generation=2, definition="d2"), BETA: progress(BETA, 3)}
        assert await trial.storage.progress(WORKSPACE) == expected
        async with trial.transaction() as transaction:
            assert await transaction.progress() == expected

    @guarantee()
    async def test_progress_comes_in_the_order_of_creation(self, trial: StorageTrial) -> None:
        """Progress comes in the order in which the rules first had any, however often it is saved again."""
        async with trial.transaction() as transaction:
            await transaction.save_progress([progress(GAMMA), progress(ALPHA)])
        async with trial.transaction() as transaction:
            await transaction.save_progress([progress(BETA), progress(GAMMA, 1)])
            assert list(await transaction.progress()) == [GAMMA, ALPHA, BETA]
        assert list(await trial.storage.progress(WORKSPACE)) == [GAMMA, ALPHA, BETA]

    @guarantee()
    async def test_progress_is_read_of_the_rules_that_are_named(self, trial: StorageTrial) -> None:
        """A transaction reads the progress of the rules that it names, and leaves out those that have none."""
        async with trial.transaction() as transaction:
            await transaction.save_progress([progress(ALPHA), progress(BETA)])
        async with trial.transaction() as transaction:
            await transaction.save_progress([progress(BETA, 4)])
            assert await transaction.progress([BETA, GAMMA]) == {BETA: progress(BETA, 4)}
            assert await transaction.progress([]) == {}

    # --- States by key

    @guarantee()
    async def test_states_are_read_by_key(self, trial: StorageTrial) -> None:
        """Of each rule asked about the states with these keys come back, and the rule also if there are none."""
        await _change(trial, {ALPHA: StateChanges(saved={"[1]": marked(at(1)), "[2]": marked(at(2))})})
        asked = {ALPHA: needs("[2]", "[9]"), BETA: needs("[1]")}
        assert await _states(trial, asked) == {ALPHA: {"[2]": marked(at(2))}, BETA: {}}

    @guarantee()
    async def test_a_state_replaces_what_was_there(self, trial: StorageTrial) -> None:
        """A scope's state is the one that was saved last."""
        await _change(trial, {ALPHA: StateChanges(saved={"[1]": marked(at(1), 1)})})
        await _change(trial, {ALPHA: StateChanges(saved={"[1]": marked(at(2), 2)})})
        assert await _states(trial, {ALPHA: needs("[1]")}) == {ALPHA: {"[1]": marked(at(2), 2)}}

    @guarantee()
    async def test_a_dropped_state_is_gone(self, trial: StorageTrial) -> None:
        """A dropped state is not found, neither by key nor by its timer; dropping what is not there does nothing."""
        await _change(trial, {ALPHA: StateChanges(saved={"[1]": armed(at(1)), "[2]": armed(at(1))})})
        await _change(trial, {ALPHA: StateChanges(dropped=frozenset({"[1]", "[9]"}))})
        found = await _states(trial, {ALPHA: needs("[1]", "[2]", through=at(9))})
        assert found == {ALPHA: {"[2]": armed(at(1))}}

    @guarantee()
    async def test_rules_have_states_of_their_own(self, trial: StorageTrial) -> None:
        """Two rules' states of one scope key have nothing to do with each other."""
        await _change(
            trial,
            {
                ALPHA: StateChanges(saved={"[1]": marked(at(1), 1), "[2]": armed(at(1))}),
                BETA: StateChanges(saved={"[1]": marked(at(1), 2), "[2]": armed(at(1))}),
            },
        )
        await _change(trial, {ALPHA: StateChanges(dropped=frozenset({"[1]"}), expired_through=at(9))})
        found = await _states(trial, {ALPHA: needs("[1]"), BETA: needs("[1]")})
        assert found == {ALPHA: {}, BETA: {"[1]": marked(at(1), 2)}}

    @guarantee()
    async def test_scope_keys_are_told_apart_by_every_character(self, trial: StorageTrial) -> None:
        """Scope keys that differ in case, spaces, normalisation or by one character of thousands are different keys."""
        long = "x" * 5_000
        keys = [
            '["a"]',
            '["A"]',
            '["a "]',
            '["\u00e9"]',
            '["e\u0301"]',
            '["%"]',
            '["_"]',
            f'["{long}"]',
            f'["{long}y"]',
        ]
        await _change(
            trial, {ALPHA: StateChanges(saved={key: marked(at(9), seq) for seq, key in enumerate(keys, start=1)})}
        )
        found = (await _states(trial, {ALPHA: needs(*keys)}))[ALPHA]
        assert {key: state.marks[0][0] for key, state in found.items()} == {
            key: seq for seq, key in enumerate(keys, start=1)
        }
        assert list((await _states(trial, {ALPHA: needs(keys[-1])}))[ALPHA]) == [keys[-1]]

    @guarantee()
    async def test_a_large_number_of_states_is_one_call(self, trial: StorageTrial) -> None:
        """5,000 states are saved, read and dropped in one call each."""
        keys = numbered(self.large, "scope ")
        await _change(trial, {ALPHA: StateChanges(saved=dict.fromkeys(keys, marked(at(9))))})
        assert (await _states(trial, {ALPHA: needs(*keys)}))[ALPHA].keys() == set(keys)
        await _change(trial, {ALPHA: StateChanges(dropped=frozenset(keys))})
        assert await _states(trial, {ALPHA: needs(*keys)}) == {ALPHA: {}}

    # --- Timers

    @guarantee()
    async def test_states_that_are_due_are_read_without_their_keys(self, trial: StorageTrial) -> None:
        """States with a `due` at or before `due_through` come back, at that very microsecond too; no others."""
        tick = timedelta(microseconds=1)
        states = {"[1]": armed(at(5) - tick), "[2]": armed(at(5)), "[3]": armed(at(5) + tick), "[4]": marked(at(1))}
        await _change(trial, {ALPHA: StateChanges(saved=states)})
        assert (await _states(trial, {ALPHA: needs(through=at(5))}))[ALPHA].keys() == {"[1]", "[2]"}
        assert (await _states(trial, {ALPHA: needs("[3]", through=at(5) - tick)}))[ALPHA].keys() == {"[1]", "[3]"}
        assert await _states(trial, {ALPHA: needs()}) == {ALPHA: {}}

    @guarantee()
    async def test_a_timer_moves_with_its_state(self, trial: StorageTrial) -> None:
        """A state that is saved again is due when it says now: later, earlier or never."""
        await _change(trial, {ALPHA: StateChanges(saved=dict.fromkeys(["[1]", "[2]", "[3]"], armed(at(5))))})
        moved = {"[1]": armed(at(9)), "[2]": armed(at(1)), "[3]": marked(at(9))}
        await _change(trial, {ALPHA: StateChanges(saved=moved)})
        assert (await _states(trial, {ALPHA: needs(through=at(8))}))[ALPHA].keys() == {"[2]"}
        assert (await _states(trial, {ALPHA: needs(through=at(9))}))[ALPHA].keys() == {"[1]", "[2]"}

    @guarantee()
    async def test_each_rule_has_a_time_of_its_own(self, trial: StorageTrial) -> None:
        """One call asks for several rules' timers, each through a time of its own."""
        saved = StateChanges(saved={"[1]": armed(at(1)), "[2]": armed(at(2))})
        await _change(trial, {ALPHA: saved, BETA: saved, GAMMA: saved})
        asked = {ALPHA: needs(through=at(1)), BETA: needs(through=at(2)), GAMMA: needs("[2]")}
        found = await _states(trial, asked)
        assert {rule: states.keys() for rule, states in found.items()} == {
            ALPHA: {"[1]"},
            BETA: {"[1]", "[2]"},
            GAMMA: {"[2]"},
        }

    # --- States that are worth nothing

    @guarantee()
    async def test_a_state_that_expired_is_gone(self, trial: StorageTrial) -> None:
        """States that expire at or before `expired_through` are gone, at that very microsecond too; no others."""
        tick = timedelta(microseconds=1)
        states = {"[1]": marked(at(5) - tick), "[2]": marked(at(5)), "[3]": marked(at(5) + tick), "[4]": marked(None)}
        await _change(trial, {ALPHA: StateChanges(saved=states)})
        await _change(trial, {ALPHA: StateChanges(expired_through=at(5))})
        assert (await _states(trial, {ALPHA: needs(*states)}))[ALPHA].keys() == {"[3]", "[4]"}

    @guarantee()
    async def test_an_expired_state_is_gone_for_its_own_transaction(self, trial: StorageTrial) -> None:
        """A transaction that lets states expire does not find them any more, whether committed or its own."""
        await _change(trial, {ALPHA: StateChanges(saved={"[1]": marked(at(1)), "[2]": marked(at(9))})})
        async with trial.transaction() as transaction:
            await transaction.change_states({ALPHA: StateChanges(saved={"[3]": marked(at(1)), "[4]": marked(at(9))})})
            await transaction.change_states({ALPHA: StateChanges(expired_through=at(5))})
            found = await transaction.states({ALPHA: needs("[1]", "[2]", "[3]", "[4]")})
            assert found[ALPHA].keys() == {"[2]", "[4]"}
        assert (await _states(trial, {ALPHA: needs("[1]", "[2]", "[3]", "[4]")}))[ALPHA].keys() == {"[2]", "[4]"}

    @guarantee()
    async def test_a_state_that_is_saved_while_others_expire_stays(self, trial: StorageTrial) -> None:
        """It is every other state that expires: one that the same change saves stays, whatever its `expires`."""
        await _change(trial, {ALPHA: StateChanges(saved={"[1]": marked(at(1)), "[2]": marked(at(1))})})
        await _change(trial, {ALPHA: StateChanges(saved={"[1]": marked(at(2), 7)}, expired_through=at(5))})
        assert await _states(trial, {ALPHA: needs("[1]", "[2]")}) == {ALPHA: {"[1]": marked(at(2), 7)}}

    @guarantee()
    async def test_a_state_does_not_expire_by_the_clock(self, trial: StorageTrial) -> None:
        """Only `expired_through` lets states expire: time alone drops and hides none."""
        async with trial.transaction() as transaction:
            past = transaction.now - HOUR
            await transaction.change_states({ALPHA: StateChanges(saved={"[1]": marked(past)})})
        await trial.pass_time(timedelta(milliseconds=1))
        assert await _states(trial, {ALPHA: needs("[1]")}) == {ALPHA: {"[1]": marked(past)}}

    @guarantee()
    async def test_clearing_drops_every_state_of_a_rule(self, trial: StorageTrial) -> None:
        """Clearing drops all states of the rules named, timers and all, and no other rule's."""
        saved = StateChanges(saved={"[1]": armed(at(1)), "[2]": marked(None)})
        await _change(trial, {ALPHA: saved, BETA: saved})
        async with trial.transaction() as transaction:
            await transaction.clear_states([ALPHA])
            assert await transaction.states({ALPHA: needs("[2]", through=at(9))}) == {ALPHA: {}}
        found = await _states(trial, {rule: needs("[2]", through=at(9)) for rule in (ALPHA, BETA)})
        assert found == {ALPHA: {}, BETA: saved.saved}

    @guarantee()
    async def test_what_is_saved_after_clearing_stays(self, trial: StorageTrial) -> None:
        """A state that is saved after its rule was cleared, in the same transaction, is there."""
        await _change(trial, {ALPHA: StateChanges(saved={"[1]": armed(at(1)), "[2]": armed(at(1))})})
        async with trial.transaction() as transaction:
            await transaction.clear_states([ALPHA])
            await transaction.change_states({ALPHA: StateChanges(saved={"[2]": marked(at(9))})})
        assert await _states(trial, {ALPHA: needs("[1]", "[2]", through=at(9))}) == {ALPHA: {"[2]": marked(at(9))}}

    @guarantee()
    async def test_a_transaction_reads_the_states_that_it_changed(self, trial: StorageTrial) -> None:
        """A transaction finds the states that it saved, by key and by timer, and not those that it dropped or moved."""
        committed = {"[1]": armed(at(1)), "[2]": armed(at(1)), "[3]": armed(at(1))}
        await _change(trial, {ALPHA: StateChanges(saved=committed)})
        async with trial.transaction() as transaction:
            changes = StateChanges(saved={"[2]": armed(at(9)), "[4]": armed(at(2))}, dropped=frozenset({"[3]"}))
            await transaction.change_states({ALPHA: changes})
            due = await transaction.states({ALPHA: needs(through=at(5))})
            known = await transaction.states({ALPHA: needs("[2]", "[3]", "[4]")})
        assert due[ALPHA] == {"[1]": armed(at(1)), "[4]": armed(at(2))}
        assert known[ALPHA] == {"[2]": armed(at(9)), "[4]": armed(at(2))}

    @guarantee()
    async def test_workspaces_have_states_of_their_own(self, trial: StorageTrial) -> None:
        """A rule's states in two workspaces have nothing to do with each other."""
        other = WorkspaceRef(WORKSPACE.tenant_id, "another")
        await _change(trial, {ALPHA: StateChanges(saved={"[1]": armed(at(1))})})
        async with trial.transaction(other) as transaction:
            assert await transaction.states({ALPHA: needs("[1]", through=at(9))}) == {ALPHA: {}}
            await transaction.clear_states([ALPHA])
        assert await _states(trial, {ALPHA: needs("[1]")}) == {ALPHA: {"[1]": armed(at(1))}}


async def _change(trial: StorageTrial, changes: dict[str, StateChanges]) -> None:
    async with trial.transaction() as transaction:
        await transaction.change_states(changes)


async def _states(trial: StorageTrial, asked: dict[str, Needs]) -> States:
    async with trial.transaction() as transaction:
        return await transaction.states(asked)
