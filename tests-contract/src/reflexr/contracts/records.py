"""What a storage promises of stored rules, dead letters, schedules' ticks and the cursors of a log's consumers."""

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.comparisons import first_difference
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import ALPHA, BETA, GAMMA, WORKSPACE, at, dead_letter, draft, rule, stored
from reflexr.contracts.trials import StorageGuarantees, StorageTrial, together
from reflexr.workspace import StoredRuleConflictError, WorkspaceRef


class RecordsContract(StorageGuarantees):
    """Stored rules move version by version, ticks and cursors only forward, and dead letters are kept in order."""

    # --- Stored rules

    @guarantee()
    async def test_a_stored_rule_is_its_latest_version(self, trial: StorageTrial) -> None:
        """A stored rule is read as its current version."""
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([stored(rule(ALPHA)), stored(rule(BETA))])
        second = stored(rule(ALPHA, enabled=False), 2, provenance={"why": "second thoughts"})
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([second])
            assert await transaction.stored_rules() == {ALPHA: second, BETA: stored(rule(BETA))}
        assert await trial.storage.stored_rules(WORKSPACE) == {ALPHA: second, BETA: stored(rule(BETA))}

    @guarantee()
    async def test_stored_rules_come_in_the_order_of_their_first_version(self, trial: StorageTrial) -> None:
        """Stored rules come in the order in which they were first installed."""
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([stored(rule(GAMMA)), stored(rule(ALPHA))])
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([stored(rule(BETA)), stored(rule(GAMMA), 2)])
            assert list(await transaction.stored_rules()) == [GAMMA, ALPHA, BETA]
        assert list(await trial.storage.stored_rules(WORKSPACE)) == [GAMMA, ALPHA, BETA]
        assert list(await trial.storage.stored_rules(WORKSPACE, [BETA, GAMMA])) == [GAMMA, BETA]

    @guarantee()
    async def test_archived_rules_are_read_by_name_only(self, trial: StorageTrial) -> None:
        """Without names the active rules come; with names these come, archived ones too; unknown names are left out."""
        retired = stored(rule(ALPHA), 2, is_active=False)
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([stored(rule(ALPHA)), stored(rule(BETA))])
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([retired])
            assert list(await transaction.stored_rules()) == [BETA]
            assert await transaction.stored_rules([ALPHA, GAMMA]) == {ALPHA: retired}
        assert list(await trial.storage.stored_rules(WORKSPACE)) == [BETA]
        assert await trial.storage.stored_rules(WORKSPACE, [ALPHA, GAMMA]) == {ALPHA: retired}
        assert await trial.storage.stored_rules(WORKSPACE, []) == {}

    @guarantee()
    async def test_a_version_follows_the_one_before_it(self, trial: StorageTrial) -> None:
        """A version that is not the next raises `StoredRuleConflictError`, with the next in it; the first is 1."""
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([stored(rule(ALPHA))])
        async with trial.transaction() as transaction:
            for wrong in (1, 3):
                with pytest.raises(StoredRuleConflictError) as refused:
                    await transaction.save_stored_rules([stored(rule(ALPHA), wrong)])
                assert (refused.value.rule, refused.value.version, refused.value.expected) == (ALPHA, wrong, 2)
            with pytest.raises(StoredRuleConflictError) as refused:
                await transaction.save_stored_rules([stored(rule(BETA), 2)])
            assert refused.value.expected == 1
        assert await trial.storage.stored_rules(WORKSPACE) == {ALPHA: stored(rule(ALPHA))}

    @guarantee()
    async def test_a_refused_version_saves_none_of_its_set(self, trial: StorageTrial) -> None:
        """Where one version of a set is refused none is saved, and the transaction can go on."""
        async with trial.transaction() as transaction:
            with pytest.raises(StoredRuleConflictError):
                await transaction.save_stored_rules([stored(rule(ALPHA)), stored(rule(BETA), 2)])
            await transaction.save_stored_rules([stored(rule(GAMMA))])
            assert list(await transaction.stored_rules()) == [GAMMA]
        assert list(await trial.storage.stored_rules(WORKSPACE)) == [GAMMA]

    @guarantee()
    async def test_a_transaction_saves_one_version_after_another(self, trial: StorageTrial) -> None:
        """Within a transaction a version follows the one that the transaction saved."""
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([stored(rule(ALPHA))])
            await transaction.save_stored_rules([stored(rule(ALPHA, enabled=False), 2)])
            with pytest.raises(StoredRuleConflictError):
                await transaction.save_stored_rules([stored(rule(ALPHA), 2)])
        assert await trial.storage.stored_rules(WORKSPACE) == {ALPHA: stored(rule(ALPHA, enabled=False), 2)}

    # --- Dead letters

    @guarantee()
    async def test_dead_letters_come_oldest_first(self, trial: StorageTrial) -> None:
        """Dead letters come in the order in which they were recorded; a limit takes the newest, still in that order."""
        letters = [dead_letter(BETA if seq % 2 else ALPHA, seq) for seq in (5, 3, 4, 1, 2)]
        async with trial.transaction() as transaction:
            await transaction.add_dead_letters(letters[:3])
        async with trial.transaction() as transaction:
            await transaction.add_dead_letters(letters[3:])
        assert await trial.storage.dead_letters(WORKSPACE) == letters
        assert await trial.storage.dead_letters(WORKSPACE, limit=2) == letters[-2:]
        assert await trial.storage.dead_letters(WORKSPACE, limit=0) == []
        assert await trial.storage.dead_letters(WORKSPACE, rule=BETA) == [letters[0], letters[1], letters[3]]
        assert await trial.storage.dead_letters(WORKSPACE, rule=BETA, limit=2) == [letters[1], letters[3]]
        assert await trial.storage.dead_letters(WORKSPACE, rule=GAMMA) == []

    @guarantee()
    async def test_dead_letters_are_counted_by_rule(self, trial: StorageTrial) -> None:
        """Each rule that has dead letters is counted with how many, equal ones too; the others are left out."""
        async with trial.transaction() as transaction:
            await transaction.add_dead_letters([dead_letter(ALPHA, 1), dead_letter(BETA, 1), dead_letter(ALPHA, 1)])
        assert await trial.storage.dead_letter_counts(WORKSPACE) == {ALPHA: 2, BETA: 1}
        assert len(await trial.storage.dead_letters(WORKSPACE)) == 3

    @guarantee()
    async def test_a_large_number_of_dead_letters_is_one_call(self, trial: StorageTrial) -> None:
        """5,000 dead letters are recorded in one call, in order."""
        letters = [dead_letter(ALPHA, seq) for seq in range(1, self.large + 1)]
        async with trial.transaction() as transaction:
            await transaction.add_dead_letters(letters)
        assert first_difference(await trial.storage.dead_letters(WORKSPACE), letters) is None

    # --- Ticks

    @guarantee()
    async def test_a_tick_is_saved_to_the_microsecond(self, trial: StorageTrial) -> None:
        """A schedule's last tick is the time that was saved, to the microsecond, by the schedule's name."""
        exact = at(1.234567)
        async with trial.transaction() as transaction:
            await transaction.save_schedule_ticks({"daily": exact, "hourly": at(2)})
            assert await transaction.schedule_ticks() == {"daily": exact, "hourly": at(2)}
        assert await trial.storage.schedule_ticks(WORKSPACE) == {"daily": exact, "hourly": at(2)}

    @guarantee()
    async def test_a_tick_moves_only_forward(self, trial: StorageTrial) -> None:
        """A tick that is earlier than the one that was saved changes nothing."""
        async with trial.transaction() as transaction:
            await transaction.save_schedule_ticks({"daily": at(5), "hourly": at(5)})
        async with trial.transaction() as transaction:
            await transaction.save_schedule_ticks({"daily": at(4), "hourly": at(6)})
            await transaction.save_schedule_ticks({"hourly": at(5.5)})
            assert await transaction.schedule_ticks() == {"daily": at(5), "hourly": at(6)}
        assert await trial.storage.schedule_ticks(WORKSPACE) == {"daily": at(5), "hourly": at(6)}

    @guarantee()
    async def test_ticks_come_in_the_order_of_creation(self, trial: StorageTrial) -> None:
        """Ticks come in the order in which the schedules first ticked."""
        async with trial.transaction() as transaction:
            await transaction.save_schedule_ticks({"z": at(1), "a": at(1)})
        async with trial.transaction() as transaction:
            await transaction.save_schedule_ticks({"m": at(1), "z": at(2)})
            assert list(await transaction.schedule_ticks()) == ["z", "a", "m"]
        assert list(await trial.storage.schedule_ticks(WORKSPACE)) == ["z", "a", "m"]

    # --- Cursors

    @guarantee()
    async def test_a_cursor_begins_at_zero(self, trial: StorageTrial) -> None:
        """A consumer that saved no place yet stands at 0."""
        assert await trial.storage.cursor(WORKSPACE, "mirror") == 0

    @guarantee()
    async def test_a_cursor_moves_only_forward(self, trial: StorageTrial) -> None:
        """A cursor stays where the furthest save put it, and every save returns where it is."""
        saved = [await trial.storage.save_cursor(WORKSPACE, "mirror", seq) for seq in (3, 2, 3, 7, 0)]
        assert saved == [3, 3, 3, 7, 7]
        assert await trial.storage.cursor(WORKSPACE, "mirror") == 7

    @guarantee()
    async def test_of_cursors_saved_at_once_the_furthest_stays(self, trial: StorageTrial) -> None:
        """Of many who save a cursor at once the furthest wins, in whatever order they come."""
        await together(trial.storage.save_cursor(WORKSPACE, "mirror", seq * 7 % 20) for seq in range(20))
        assert await trial.storage.cursor(WORKSPACE, "mirror") == 19

    @guarantee()
    async def test_consumers_have_cursors_of_their_own(self, trial: StorageTrial) -> None:
        """Cursors of other names, and of other workspaces, stay where they are."""
        other = WorkspaceRef(WORKSPACE.tenant_id, "another")
        await trial.storage.save_cursor(WORKSPACE, "mirror", 2**63 - 1)
        assert await trial.storage.cursor(WORKSPACE, "Mirror") == 0
        assert await trial.storage.cursor(WORKSPACE, "mirror ") == 0
        assert await trial.storage.cursor(other, "mirror") == 0
        assert await trial.storage.cursor(WORKSPACE, "mirror") == 2**63 - 1

    @guarantee()
    async def test_a_cursor_is_saved_beside_a_log(self, trial: StorageTrial) -> None:
        """A cursor can be saved before there is a log, which makes none, and is the same once there is one."""
        await trial.storage.save_cursor(WORKSPACE, "mirror", 1)
        assert await trial.storage.workspaces() == []
        await trial.append(draft("e1"))
        assert await trial.storage.cursor(WORKSPACE, "mirror") == 1

    @guarantee(Feature.SHARED_DATA)
    async def test_a_cursor_is_that_of_every_storage(self, trial: StorageTrial) -> None:
        """A cursor is one and the same for a second storage on the same data."""
        async with trial.beside() as other:
            assert await other.storage.save_cursor(WORKSPACE, "mirror", 5) == 5
            assert await trial.storage.save_cursor(WORKSPACE, "mirror", 4) == 5
            assert await trial.storage.cursor(WORKSPACE, "mirror") == 5
