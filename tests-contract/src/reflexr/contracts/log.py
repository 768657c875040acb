"""What a storage promises of a log: places, times, ids, windows, and the history of stored rules."""

from datetime import timedelta

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.comparisons import first_difference
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import ALPHA, BETA, GAMMA, WORKSPACE, archived, draft, drafts, installed
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.workspace import DuplicateEventIdError, Head, LogWindow


class LogContract(StorageGuarantees):
    """A log is append-only and ordered, without gaps; its windows are exact."""

    # --- Appending

    @guarantee()
    async def test_a_log_begins_empty(self, trial: StorageTrial) -> None:
        """A workspace that nobody wrote to reads as an empty log, in a transaction and outside."""
        async with trial.transaction() as transaction:
            assert transaction.head == Head(0, None)
            assert await transaction.read(LogWindow()) == []
        assert await trial.storage.head(WORKSPACE) == Head(0, None)
        assert await trial.storage.read(WORKSPACE, LogWindow()) == []

    @guarantee()
    async def test_places_run_from_one_without_a_gap(self, trial: StorageTrial) -> None:
        """Appended envelopes get the places 1, 2, 3 …, in the order given, however transactions divide them."""
        first = await trial.append(draft("z"), draft("a"), draft("m"))
        async with trial.transaction() as transaction:
            second = await transaction.append(drafts(1, "b"))
            third = await transaction.append(drafts(2, "c"))
        placed = [(envelope.seq, envelope.id) for envelope in [*first, *second, *third]]
        assert placed == [(1, "z"), (2, "a"), (3, "m"), (4, "b1"), (5, "c1"), (6, "c2")]

    @guarantee()
    async def test_an_append_that_is_rolled_back_leaves_no_gap(self, trial: StorageTrial) -> None:
        """The place of an envelope whose transaction rolled back goes to the next one that is appended."""
        await trial.append(*drafts(2))
        async with trial.rolled_back() as transaction:
            await transaction.append([draft("gone")])
        (envelope,) = await trial.append(draft("next"))
        assert envelope.seq == 3

    @guarantee()
    async def test_what_append_returns_is_what_is_read(self, trial: StorageTrial) -> None:
        """An append returns the envelopes exactly as every later read returns them."""
        appended = await trial.append(*drafts(3))
        assert await trial.storage.read(WORKSPACE, LogWindow()) == appended
        async with trial.transaction() as transaction:
            assert await transaction.read(LogWindow()) == appended

    @guarantee()
    async def test_an_envelope_names_its_workspace(self, trial: StorageTrial) -> None:
        """An envelope names the workspace whose log holds it."""
        (envelope,) = await trial.append(draft("e1"))
        assert envelope.workspace_id == WORKSPACE.workspace_id

    @guarantee()
    async def test_the_head_is_the_last_envelope(self, trial: StorageTrial) -> None:
        """The head is the place and the time of the last envelope, also of one just appended by the transaction."""
        async with trial.transaction() as transaction:
            appended = await transaction.append(drafts(3))
            assert transaction.head == Head(3, appended[-1].ts)
        assert await trial.storage.head(WORKSPACE) == Head(3, appended[-1].ts)
        async with trial.transaction() as transaction:
            assert transaction.head == Head(3, appended[-1].ts)

    @guarantee()
    async def test_an_append_of_nothing_does_nothing(self, trial: StorageTrial) -> None:
        """An empty append returns nothing and leaves the head where it is."""
        await trial.append(draft("e1"))
        async with trial.transaction() as transaction:
            assert await transaction.append([]) == []
            assert transaction.head.seq == 1
        assert await trial.ids() == ["e1"]

    @guarantee()
    async def test_a_large_append_is_one_call(self, trial: StorageTrial) -> None:
        """5,000 envelopes are appended, found by id and read by place in one call each."""
        batch = drafts(self.large)
        appended = await trial.append(*batch)
        assert first_difference((envelope.seq for envelope in appended), range(1, self.large + 1)) is None
        async with trial.transaction() as transaction:
            found = await transaction.find([one.id for one in batch])
            assert len(found) == len(appended)
            assert first_difference((found.get(one.id) for one in appended), appended) is None
            assert len(await transaction.read_seqs(range(1, self.large + 1))) == self.large

    # --- Times

    @guarantee()
    async def test_an_envelope_has_the_time_of_its_transaction(self, trial: StorageTrial) -> None:
        """The `ts` of an envelope is the transaction's `now`, in UTC, for all that it appends."""
        async with trial.transaction() as transaction:
            appended = await transaction.append(drafts(2))
            now = transaction.now
        assert [envelope.ts for envelope in appended] == [now, now]
        assert now.utcoffset() == timedelta()

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_envelope_has_the_time_of_the_clock(self, trial: StorageTrial) -> None:
        """The `ts` of an envelope is what the clock shows, as exactly as the clock's declared precision."""
        trial.clock.advance(timedelta(days=40, microseconds=123_457))
        (envelope,) = await trial.append(draft("e1"))
        assert abs(envelope.ts - trial.clock()) < trial.clock_precision

    @guarantee()
    async def test_ts_does_not_decrease(self, trial: StorageTrial) -> None:
        """An envelope's `ts` is at or after that of the envelope before it."""
        for number in range(5):
            await trial.append(draft(f"e{number}"))
            await trial.pass_time(trial.clock_precision)
        times = [envelope.ts for envelope in await trial.storage.read(WORKSPACE, LogWindow())]
        assert times == sorted(times)

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_ts_does_not_decrease_when_the_clock_goes_back(self, trial: StorageTrial) -> None:
        """After the clock went back, an envelope gets the `ts` of the one before it."""
        (before,) = await trial.append(draft("e1"))
        trial.clock.set(trial.clock() - timedelta(hours=1))
        (after,) = await trial.append(draft("e2"))
        assert after.ts == before.ts

    # --- Ids

    @guarantee()
    async def test_an_id_that_is_in_the_log_is_refused(self, trial: StorageTrial) -> None:
        """An append that names an id of the log raises `DuplicateEventIdError` with that id, and appends nothing."""
        await trial.append(draft("e1"), draft("e2"))
        async with trial.transaction() as transaction:
            with pytest.raises(DuplicateEventIdError) as refused:
                await transaction.append([draft("new"), draft("e2")])
            assert refused.value.ids == ("e2",)
        assert await trial.ids() == ["e1", "e2"]

    @guarantee()
    async def test_an_id_that_is_given_twice_is_refused(self, trial: StorageTrial) -> None:
        """An append that names one id twice raises `DuplicateEventIdError`, and appends nothing."""
        async with trial.transaction() as transaction:
            with pytest.raises(DuplicateEventIdError) as refused:
                await transaction.append([draft("twin"), draft("e1"), draft("twin")])
            assert refused.value.ids == ("twin",)
        assert await trial.ids() == []

    @guarantee()
    async def test_an_id_that_the_transaction_appended_is_refused(self, trial: StorageTrial) -> None:
        """An id that the same transaction appended counts as one of the log."""
        async with trial.transaction() as transaction:
            await transaction.append([draft("e1")])
            with pytest.raises(DuplicateEventIdError):
                await transaction.append([draft("e1")])
        assert await trial.ids() == ["e1"]

    @guarantee()
    async def test_a_transaction_goes_on_after_a_refused_append(self, trial: StorageTrial) -> None:
        """A refused append takes no place, and the transaction commits what it did before and after."""
        async with trial.transaction() as transaction:
            await transaction.append([draft("e1")])
            with pytest.raises(DuplicateEventIdError):
                await transaction.append([draft("e1"), draft("lost")])
            (envelope,) = await transaction.append([draft("e2")])
        assert envelope.seq == 2
        assert await trial.ids() == ["e1", "e2"]

    @guarantee()
    async def test_ids_are_told_apart_by_every_character(self, trial: StorageTrial) -> None:
        """Ids that differ in case, in trailing spaces or in Unicode normalisation are different ids."""
        names = ["id", "ID", "id ", " id", "caf\u00e9", "cafe\u0301", "i%", "i_", "\u00df", "ss", "\ufb01", "fi"]
        await trial.append(*(draft(name) for name in names))
        found = await trial.storage.find(WORKSPACE, names)
        assert {name: found[name].seq for name in names} == {name: seq for seq, name in enumerate(names, start=1)}

    @guarantee()
    async def test_find_returns_what_the_log_holds(self, trial: StorageTrial) -> None:
        """`find` returns the envelopes by id, and leaves out the ids that the log does not hold."""
        first, second = await trial.append(draft("e1"), draft("e2"))
        assert await trial.storage.find(WORKSPACE, ["e2", "none", "e1"]) == {"e1": first, "e2": second}
        assert await trial.storage.find(WORKSPACE, []) == {}
        async with trial.transaction() as transaction:
            assert await transaction.find({"e1", "none"}) == {"e1": first}
            assert await transaction.find([]) == {}

    # --- Windows

    @guarantee()
    async def test_a_window_excludes_both_of_its_ends(self, trial: StorageTrial) -> None:
        """A window takes in the places with `after_seq < seq < before_seq`, in the log's order."""
        await trial.append(*drafts(6))
        assert await trial.ids(after_seq=2) == ["e3", "e4", "e5", "e6"]
        assert await trial.ids(before_seq=3) == ["e1", "e2"]
        assert await trial.ids(after_seq=2, before_seq=5) == ["e3", "e4"]
        assert await trial.ids(after_seq=3, before_seq=4) == []

    @guarantee()
    async def test_a_window_may_reach_beyond_the_log(self, trial: StorageTrial) -> None:
        """Where a window reaches beyond the log, or ends before it begins, the rest of it is empty."""
        await trial.append(*drafts(3))
        assert await trial.ids(after_seq=3) == []
        assert await trial.ids(after_seq=2**62) == []
        assert await trial.ids(after_seq=1, before_seq=2**63 - 1) == ["e2", "e3"]
        assert await trial.ids(after_seq=2, before_seq=1) == []
        assert await trial.ids(before_seq=0) == []

    @guarantee()
    async def test_a_window_admits_the_types_that_it_names(self, trial: StorageTrial) -> None:
        """A window takes in the envelopes of exactly the types it names, in the log's order; of no types, none."""
        types = [ALPHA, BETA, GAMMA, ALPHA, BETA, GAMMA]
        await trial.append(*(draft(f"e{number}", name) for number, name in enumerate(types, start=1)))
        assert await trial.ids(types=frozenset({ALPHA})) == ["e1", "e4"]
        assert await trial.ids(types=frozenset({GAMMA, ALPHA})) == ["e1", "e3", "e4", "e6"]
        assert await trial.ids(types=frozenset({"contract:none"})) == []
        assert await trial.ids(types=frozenset()) == []
        assert await trial.ids(after_seq=1, before_seq=6, types=frozenset({ALPHA, GAMMA})) == ["e3", "e4"]

    @guarantee()
    async def test_a_limit_takes_the_first(self, trial: StorageTrial) -> None:
        """A window's `limit` takes the first so many of those that it admits."""
        await trial.append(*(draft(f"e{number}", BETA if number % 2 else ALPHA) for number in range(1, 9)))
        assert await trial.ids(limit=2) == ["e1", "e2"]
        assert await trial.ids(limit=2, after_seq=3) == ["e4", "e5"]
        assert await trial.ids(limit=2, types=frozenset({ALPHA})) == ["e2", "e4"]
        assert await trial.ids(limit=0) == []
        assert len(await trial.ids(limit=100)) == 8

    @guarantee()
    async def test_last_takes_the_last_in_the_order_of_the_log(self, trial: StorageTrial) -> None:
        """A window's `last` takes the last so many of those that it admits, still in the log's order."""
        await trial.append(*(draft(f"e{number}", BETA if number % 2 else ALPHA) for number in range(1, 9)))
        assert await trial.ids(last=2) == ["e7", "e8"]
        assert await trial.ids(last=2, before_seq=5) == ["e3", "e4"]
        assert await trial.ids(last=2, types=frozenset({ALPHA})) == ["e6", "e8"]
        assert await trial.ids(last=0) == []
        assert len(await trial.ids(last=100)) == 8

    @guarantee()
    async def test_a_transaction_reads_what_it_appended(self, trial: StorageTrial) -> None:
        """A transaction's windows and finds take in what it appended itself, after what was there."""
        await trial.append(*drafts(3, "old"))
        async with trial.transaction() as transaction:
            await transaction.append([draft("new1", BETA), draft("new2")])
            windows = {
                "all": LogWindow(),
                "limit": LogWindow(after_seq=2, limit=2),
                "last": LogWindow(last=3),
                "before": LogWindow(after_seq=2, before_seq=5),
                "types": LogWindow(types=frozenset({BETA})),
            }
            read = {name: [one.id for one in await transaction.read(window)] for name, window in windows.items()}
            assert read == {
                "all": ["old1", "old2", "old3", "new1", "new2"],
                "limit": ["old3", "new1"],
                "last": ["old3", "new1", "new2"],
                "before": ["old3", "new1"],
                "types": ["new1"],
            }
            assert list(await transaction.find(["new2"])) == ["new2"]

    @guarantee()
    async def test_envelopes_are_read_by_place(self, trial: StorageTrial) -> None:
        """`read_seqs` returns the envelopes at these places, the transaction's own too, and leaves out other places."""
        await trial.append(*drafts(3))
        async with trial.transaction() as transaction:
            await transaction.append([draft("own")])
            found = await transaction.read_seqs([4, 2, 9, 0])
            assert {seq: envelope.id for seq, envelope in found.items()} == {2: "e2", 4: "own"}
            assert await transaction.read_seqs([]) == {}

    # --- The history of a stored rule

    @guarantee()
    async def test_a_history_is_the_versions_of_one_rule(self, trial: StorageTrial) -> None:
        """A rule's history is the envelopes of its versions, its archiving too, oldest first, and nothing else."""
        await trial.append(
            installed("a1", ALPHA, 1),
            draft("other", ALPHA, rule=ALPHA),
            installed("b1", BETA, 1),
            installed("a2", ALPHA, 2),
        )
        await trial.append(archived("a3", ALPHA, 3), installed("a4", ALPHA, 4))
        history = await trial.storage.rule_history(WORKSPACE, ALPHA)
        assert [envelope.id for envelope in history] == ["a1", "a2", "a3", "a4"]

    @guarantee()
    async def test_a_rule_without_versions_has_no_history(self, trial: StorageTrial) -> None:
        """The history of a rule that was never stored is empty."""
        await trial.append(installed("a1", ALPHA, 1))
        assert await trial.storage.rule_history(WORKSPACE, BETA) == []
        assert await trial.storage.rule_history(WORKSPACE, "contract:alph_") == []
