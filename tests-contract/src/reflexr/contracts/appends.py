"""What a storage promises of an append that is all its transaction does, however it is carried out."""

import asyncio
from datetime import timedelta

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.cancellation import Moment, cancel_at_each_await
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import ALPHA, WORKSPACE, causation, definitions, draft, drafts, installed, progress
from reflexr.contracts.trials import StorageGuarantees, StorageTrial, give_way, together
from reflexr.contracts.values import EVERYTHING, written
from reflexr.core import UserActor
from reflexr.workspace import DuplicateEventIdError, Head, LogWindow, Watch, WorkspaceRef

OTHER = WorkspaceRef(WORKSPACE.tenant_id, "contract-workspace 2")


class AppendContract(StorageGuarantees):
    """An append alone is what a transaction that does nothing else would have appended."""

    @guarantee()
    async def test_an_append_alone_is_what_a_transaction_appends(self, trial: StorageTrial) -> None:
        """Alone or in a transaction, envelopes get the next places, and come back as they are read later."""
        first = await trial.storage.append(WORKSPACE, [draft("z"), draft("a")])
        second = await trial.append(draft("m"))
        third = await trial.storage.append(WORKSPACE, [draft("b")])
        await trial.storage.append(OTHER, [draft("z")])
        appended = [*first, *second, *third]
        assert [(one.seq, one.id, one.workspace_id) for one in appended] == [
            (seq, event_id, WORKSPACE.workspace_id) for seq, event_id in enumerate("zamb", start=1)
        ]
        assert await trial.storage.read(WORKSPACE, LogWindow()) == appended
        assert await trial.storage.find(WORKSPACE, ["b", "z"]) == {"b": appended[3], "z": appended[0]}
        assert await trial.storage.head(WORKSPACE) == Head(4, appended[3].ts)
        assert await trial.storage.workspaces() == [WORKSPACE, OTHER]

    @guarantee()
    async def test_an_append_of_nothing_alone_does_nothing(self, trial: StorageTrial) -> None:
        """An empty append returns nothing, and makes no workspace."""
        assert await trial.storage.append(WORKSPACE, []) == []
        assert await trial.storage.workspaces() == []

    @guarantee()
    async def test_an_append_alone_keeps_every_value(self, trial: StorageTrial) -> None:
        """What an append alone wrote comes back to the last digit, key and character."""
        actor = UserActor(id="u \u00e9 ' %", name='{"seq":1}')
        sent = draft("\U0001f44d" * 255, values=EVERYTHING)._replace(
            actor=actor, causation=causation(), correlation_id='chain "', traceparent="00-trace"
        )
        await trial.storage.append(WORKSPACE, [draft("before")])
        await trial.storage.append(WORKSPACE, [sent])
        (read,) = await trial.storage.read(WORKSPACE, LogWindow(after_seq=1))
        assert written(read.payload) == written(sent.payload)
        assert (read.id, read.actor, read.causation, read.correlation_id, read.traceparent) == (
            sent.id,
            sent.actor,
            sent.causation,
            sent.correlation_id,
            sent.traceparent,
        )

    @guarantee()
    async def test_an_append_alone_refuses_ids_that_are_there(self, trial: StorageTrial) -> None:
        """An append that names an id of the log, or one twice, raises with that id, and appends nothing."""
        await trial.storage.append(WORKSPACE, [draft("e1"), draft("e2")])
        for again in ([draft("new"), draft("e2")], [draft("e2"), draft("new"), draft("e2")]):
            with pytest.raises(DuplicateEventIdError) as refused:
                await trial.storage.append(WORKSPACE, again)
            assert refused.value.ids == ("e2",)
        with pytest.raises(DuplicateEventIdError):
            await trial.storage.append(OTHER, [draft("twin"), draft("twin")])
        assert (await trial.ids(), await trial.ids(OTHER)) == (["e1", "e2"], [])
        (after,) = await trial.storage.append(WORKSPACE, [draft("e3")])
        assert after.seq == 3

    @guarantee()
    async def test_an_append_alone_waits_for_the_transaction_before_it(self, trial: StorageTrial) -> None:
        """An append that comes while a transaction is open is placed after all that the transaction appends."""
        async with trial.transaction() as transaction:
            await transaction.append([draft("e1")])
            alone = asyncio.create_task(trial.storage.append(WORKSPACE, [draft("e2")]))
            await give_way(transaction, alone)
            assert not alone.done()
            await transaction.append([draft("e3")])
        (appended,) = await alone
        assert (appended.seq, await trial.ids()) == (3, ["e1", "e3", "e2"])

    @guarantee()
    async def test_appends_alone_that_come_together_leave_no_gap(self, trial: StorageTrial) -> None:
        """Of appends and transactions at once each is whole, one after another, and of one id one is refused."""

        async def contend(number: int) -> bool:
            batch = [draft(f"a{number}"), draft("wanted"), draft(f"b{number}")]
            try:
                await (trial.append(*batch) if number % 3 == 0 else trial.storage.append(WORKSPACE, batch))
            except DuplicateEventIdError:
                return False
            return True

        async def append(number: int) -> bool:
            await trial.storage.append(WORKSPACE, drafts(2, f"c{number}"))
            return True

        done = await together([each(number) for number in range(8) for each in (contend, append)])
        assert sum(done) == 9
        log = await trial.storage.read(WORKSPACE, LogWindow())
        assert [one.seq for one in log] == list(range(1, 20))
        ids = [one.id for one in log]
        places = [ids.index(f"c{number}1") for number in range(8)]
        assert [ids[place + 1] for place in places] == [f"c{number}2" for number in range(8)]

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_append_alone_has_the_time_of_the_clock_and_never_goes_back(self, trial: StorageTrial) -> None:
        """The `ts` of an append alone is what the clock shows, or that of the envelope before it if that is later."""
        trial.clock.advance(timedelta(days=40, microseconds=123_457))
        (first,) = await trial.storage.append(WORKSPACE, [draft("e1")])
        assert abs(first.ts - trial.clock()) < trial.clock_precision
        trial.clock.advance(timedelta(microseconds=1))
        (second,) = await trial.storage.append(WORKSPACE, [draft("e2")])
        assert abs(second.ts - trial.clock()) < trial.clock_precision
        trial.clock.set(trial.clock() - timedelta(hours=1))
        third = await trial.storage.append(WORKSPACE, drafts(2, "back"))
        assert [one.ts for one in third] == [second.ts, second.ts]
        assert await trial.storage.read(WORKSPACE, LogWindow()) == [first, second, *third]

    @guarantee()
    async def test_an_append_alone_leaves_its_workspace_behind(self, trial: StorageTrial) -> None:
        """A workspace whose rules were done is behind them after an append alone."""
        watch = Watch(definitions(ALPHA))
        await trial.storage.append(WORKSPACE, [draft("e1")])
        assert await trial.storage.behind(watch, limit=10) == [WORKSPACE]
        async with trial.transaction() as transaction:
            await transaction.save_progress([progress(ALPHA, 1)])
        assert await trial.storage.behind(watch, limit=10) == []
        await trial.storage.append(WORKSPACE, [draft("e2")])
        assert await trial.storage.behind(watch, limit=10) == [WORKSPACE]

    @guarantee()
    async def test_an_append_alone_is_part_of_a_rules_history(self, trial: StorageTrial) -> None:
        """A version of a stored rule that was appended alone is in the rule's history."""
        await trial.append(installed("v1", ALPHA, 1))
        await trial.storage.append(WORKSPACE, [draft("e1"), installed("v2", ALPHA, 2)])
        assert [one.id for one in await trial.storage.rule_history(WORKSPACE, ALPHA)] == ["v1", "v2"]

    @guarantee()
    async def test_an_append_alone_wakes_those_who_listen(self, trial: StorageTrial) -> None:
        """An append alone wakes the listeners of its workspace and those of all, and no others."""
        await trial.append(draft("e1"))
        with (
            trial.storage.wakeups.listen(WORKSPACE) as mine,
            trial.storage.wakeups.listen() as every,
            trial.storage.wakeups.listen(OTHER) as others,
        ):
            await trial.storage.append(WORKSPACE, [draft("e2")])
            assert await mine.wait(self.soon) == {WORKSPACE}
            assert await every.wait(self.soon) == {WORKSPACE}
            await trial.storage.append(OTHER, [draft("e1")])
            assert await others.wait(self.soon) == {OTHER}

    @guarantee()
    async def test_an_append_alone_that_is_cancelled_at_any_await_is_whole_or_nothing(
        self, trial: StorageTrial
    ) -> None:
        """An append whose caller is cancelled leaves no lock, and all of its envelopes or none."""
        moments: list[Moment] = ["waiting", "answered"]
        for moment in moments:
            place = WorkspaceRef(WORKSPACE.tenant_id, moment)
            await trial.storage.append(place, [draft("first")])

            async def append(number: int, place: WorkspaceRef = place) -> None:
                await trial.storage.append(place, drafts(3, f"{number}-"))

            expected = 1
            async for number in cancel_at_each_await(append, moment):
                await trial.storage.append(place, [draft(f"after {number}")])
                log = await trial.storage.read(place, LogWindow())
                assert [one.seq for one in log] == list(range(1, len(log) + 1))
                assert len(log) - expected in {1, 4}
                expected = len(log)

    @guarantee(Feature.SHARED_DATA)
    async def test_appends_alone_through_two_storages_share_one_order(self, trial: StorageTrial) -> None:
        """Appends alone through two storages on the same data at once leave no gap, and no id is there twice."""
        async with trial.beside() as other:

            async def contend(storage_trial: StorageTrial, name: str) -> int:
                refused = 0
                for number in range(10):
                    try:
                        await storage_trial.storage.append(
                            WORKSPACE, [draft(f"{name}{number}"), draft(f"both{number}")]
                        )
                    except DuplicateEventIdError:
                        refused += 1
                return refused

            assert sum(await together([contend(trial, "a"), contend(other, "b")])) == 10
        log = await trial.storage.read(WORKSPACE, LogWindow())
        assert [one.seq for one in log] == list(range(1, 21))
        assert len({one.id for one in log}) == 20
        assert [one.ts for one in log] == sorted(one.ts for one in log)
