"""What a storage promises of finding work: workspaces, those behind their rules, and schedules that are due."""

from datetime import datetime, timedelta

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import ALPHA, BETA, WORKSPACE, at, definitions, draft, progress, rule, run, stored
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.core import RuleProgress
from reflexr.workspace import Deadline, DueSchedule, Watch, WorkspaceRef

OTHER = WorkspaceRef(WORKSPACE.tenant_id, "contract-workspace 2")
WATCH = Watch(definitions(ALPHA))


class DiscoveryContract(StorageGuarantees):
    """Work is found by whoever can do it, until it is done, and only then no more."""

    # --- Workspaces

    @guarantee()
    async def test_workspaces_with_a_log_are_found(self, trial: StorageTrial) -> None:
        """The workspaces are those with a log: runs, progress or leases alone make none."""
        await trial.append(draft("e1"))
        await trial.save(run("r1"), workspace=OTHER)
        assert await trial.storage.workspaces() == [WORKSPACE]

    @guarantee()
    async def test_workspaces_are_ordered_and_paged(self, trial: StorageTrial) -> None:
        """Workspaces come by tenant and then by workspace, in pages that leave out none and name none twice."""
        places = [WorkspaceRef(tenant, name) for tenant in ("t1", "t2", "t3") for name in ("a", "b", "c")]
        for place in (places[4], *places[:4], *places[5:]):
            await trial.append(draft("e1"), workspace=place)
        assert await trial.storage.workspaces() == places
        assert await trial.storage.workspaces(limit=2) == places[:2]
        assert await trial.storage.workspaces(after=places[1], limit=3) == places[2:5]
        assert await trial.storage.workspaces(after=places[-1]) == []
        assert await trial.storage.workspaces(after=WorkspaceRef("t1", "bb")) == places[2:]
        assert await trial.storage.workspaces(limit=0) == []

    @guarantee()
    async def test_workspaces_of_one_tenant_are_found(self, trial: StorageTrial) -> None:
        """A tenant's workspaces are that tenant's alone, also in pages."""
        places = [WorkspaceRef(tenant, name) for tenant in ("t", "t1", "T") for name in ("a", "b")]
        for place in places:
            await trial.append(draft("e1"), workspace=place)
        assert await trial.storage.workspaces(tenant_id="t") == places[:2]
        assert await trial.storage.workspaces(tenant_id="t", after=places[0]) == places[1:2]
        assert await trial.storage.workspaces(tenant_id="t", after=places[1]) == []
        assert await trial.storage.workspaces(tenant_id="none") == []

    @guarantee()
    async def test_pages_hold_every_workspace_whatever_its_name(self, trial: StorageTrial) -> None:
        """Paging one by one finds every workspace once, in the order of all, also where names look alike."""
        names = ["a", "A", "a ", "a/b", "%", "_", "caf\u00e9", "cafe\u0301", "\U0001f44d", "z"]
        for name in names:
            await trial.append(draft("e1"), workspace=WorkspaceRef("t", name))
        every = await trial.storage.workspaces()
        paged: list[WorkspaceRef] = []
        while page := await trial.storage.workspaces(after=paged[-1] if paged else None, limit=1):
            paged += page
            assert len(paged) <= len(names)
        assert paged == every
        assert {place.workspace_id for place in every} == set(names)

    # --- Behind

    @guarantee()
    async def test_a_workspace_is_behind_until_its_rules_are_done(self, trial: StorageTrial) -> None:
        """A workspace is behind while a watched rule's cursor is before the log's head, and no longer."""
        await trial.append(draft("e1"), draft("e2"))
        await _save(trial, progress(ALPHA, 1))
        assert await trial.storage.behind(WATCH, limit=10) == [WORKSPACE]
        await _save(trial, progress(ALPHA, 2))
        assert await trial.storage.behind(WATCH, limit=10) == []
        await trial.append(draft("e3"))
        assert await trial.storage.behind(WATCH, limit=10) == [WORKSPACE]

    @guarantee()
    async def test_a_rule_that_is_new_has_something_to_do(self, trial: StorageTrial) -> None:
        """A workspace is behind where a watched rule has no progress, though others have."""
        await trial.append(draft("e1"))
        assert await trial.storage.behind(WATCH, limit=10) == [WORKSPACE]
        await _save(trial, progress(ALPHA, 1))
        assert await trial.storage.behind(Watch(definitions(ALPHA, BETA)), limit=10) == [WORKSPACE]

    @guarantee()
    async def test_a_rule_that_changed_has_something_to_do(self, trial: StorageTrial) -> None:
        """A workspace is behind where a watched rule's progress is of another definition, though it is at the head."""
        await trial.append(draft("e1"))
        await _save(trial, progress(ALPHA, 1))
        assert await trial.storage.behind(Watch(definitions(ALPHA, definition="d2")), limit=10) == [WORKSPACE]

    @guarantee()
    async def test_a_workspace_without_a_log_is_not_behind(self, trial: StorageTrial) -> None:
        """Where there is no log there is nothing to evaluate."""
        await trial.save(run("r1"))
        assert await trial.storage.behind(WATCH, limit=10) == []

    @guarantee()
    async def test_rules_that_nobody_watches_have_nothing_to_do(self, trial: StorageTrial) -> None:
        """Progress of rules that are not watched makes no workspace behind, nor does watching nothing."""
        await trial.append(draft("e1"))
        await _save(trial, progress(ALPHA, 1), progress(BETA, 0))
        assert await trial.storage.behind(WATCH, limit=10) == []
        assert await trial.storage.behind(Watch({}), limit=10) == []

    @guarantee()
    async def test_those_who_watch_different_rules_miss_nothing(self, trial: StorageTrial) -> None:
        """Whoever asks with other rules, before or after, keeps nobody from finding what is theirs to do."""
        await trial.append(draft("e1"))
        alpha, beta = WATCH, Watch(definitions(BETA))
        await _save(trial, progress(ALPHA, 1), progress(BETA, 0))
        assert await trial.storage.behind(alpha, limit=10) == []
        assert await trial.storage.behind(beta, limit=10) == [WORKSPACE]
        await _save(trial, progress(BETA, 1))
        assert await trial.storage.behind(beta, limit=10) == []
        await trial.append(draft("e2"))
        await _save(trial, progress(BETA, 2))
        assert await trial.storage.behind(beta, limit=10) == []
        assert await trial.storage.behind(alpha, limit=10) == [WORKSPACE]

    @guarantee()
    async def test_a_workspace_stays_in_the_answer_until_it_is_done(self, trial: StorageTrial) -> None:
        """Who asks again finds the workspace again, whatever became of the first answer."""
        await trial.append(draft("e1"))
        answers = [await trial.storage.behind(WATCH, limit=10) for _ in range(3)]
        assert answers == [[WORKSPACE]] * 3

    @guarantee()
    async def test_a_reset_rule_has_something_to_do(self, trial: StorageTrial) -> None:
        """A rule whose cursor went back makes its workspace behind again."""
        await trial.append(draft("e1"))
        await _save(trial, progress(ALPHA, 1))
        assert await trial.storage.behind(WATCH, limit=10) == []
        await _save(trial, progress(ALPHA, 0, generation=2))
        assert await trial.storage.behind(WATCH, limit=10) == [WORKSPACE]

    @guarantee()
    async def test_of_many_workspaces_none_is_left_out_for_ever(self, trial: StorageTrial) -> None:
        """With a limit each answer has that many at most, and whoever does what it finds gets to all of them."""
        places = [WorkspaceRef("t", f"w{number}") for number in range(7)]
        for place in places:
            await trial.append(draft("e1"), workspace=place)
        done: list[WorkspaceRef] = []
        while found := await trial.storage.behind(WATCH, limit=3):
            assert len(found) <= 3
            for place in found:
                await _save(trial, progress(ALPHA, 1), workspace=place)
            done += found
            assert len(done) <= len(places), "what was done is found again"
        assert sorted(done) == places
        assert await trial.storage.behind(WATCH, limit=0) == []

    @guarantee()
    async def test_stored_rules_have_something_to_do(self, trial: StorageTrial) -> None:
        """A workspace is behind where a stored rule of a watched namespace is, if it is active and enabled there."""
        await trial.append(draft("e1"))
        await trial.append(draft("e1"), workspace=OTHER)
        await _store(trial, 1, is_active=True)
        mine, others = Watch({}, frozenset({"contract"})), Watch({}, frozenset({"contrac"}))
        assert await trial.storage.behind(mine, limit=10) == [WORKSPACE]
        assert await trial.storage.behind(others, limit=10) == []
        await _save(trial, progress(ALPHA, 0, definition="another one does not matter"))
        assert await trial.storage.behind(mine, limit=10) == [WORKSPACE]
        await _save(trial, progress(ALPHA, 1, definition="another one does not matter"))
        assert await trial.storage.behind(mine, limit=10) == []

    @guarantee()
    async def test_archived_and_disabled_stored_rules_have_nothing_to_do(self, trial: StorageTrial) -> None:
        """A stored rule that is archived or disabled makes no workspace behind, and does again once it is not."""
        await trial.append(draft("e1"))
        watch = Watch({}, frozenset({"contract"}))
        await _store(trial, 1, is_active=True, enabled=False)
        assert await trial.storage.behind(watch, limit=10) == []
        await _store(trial, 2, is_active=False)
        assert await trial.storage.behind(watch, limit=10) == []
        await _store(trial, 3, is_active=True)
        assert await trial.storage.behind(watch, limit=10) == [WORKSPACE]

    @guarantee()
    async def test_a_rule_that_was_stored_once_can_be_done(self, trial: StorageTrial) -> None:
        """A watched rule whose name a stored rule has too is done as any other, and hides none that is behind."""
        *done, behind = (WorkspaceRef("t", f"w{number}") for number in range(4))
        for place in (*done, behind):
            await trial.append(draft("e1"), draft("e2"), workspace=place)
            await _save(trial, progress(ALPHA, 0 if place == behind else 2), workspace=place)
            async with trial.transaction(place) as transaction:
                await transaction.save_stored_rules([stored(rule(ALPHA), 1, is_active=place != done[0])])
        assert await trial.storage.behind(WATCH, limit=1) == [behind]
        await _save(trial, progress(ALPHA, 2), workspace=behind)
        assert await trial.storage.behind(WATCH, limit=1) == []

    # --- Schedules

    @guarantee()
    async def test_a_schedule_is_due_where_it_did_not_tick_since(self, trial: StorageTrial) -> None:
        """A schedule is due where there is a log and its last tick is before the deadline, or it had none."""
        ticked, late, never = (WorkspaceRef("t", name) for name in ("ticked", "late", "never"))
        for place, tick in ((ticked, at(10)), (late, at(9))):
            await _tick(trial, place, daily=tick)
        await trial.append(draft("e1"), workspace=never)
        await trial.save(run("r1"), workspace=WorkspaceRef("t", "no log"))
        found = await trial.storage.due_schedules({"daily": Deadline(at(10))}, limit=10)
        assert _by_place(found) == [DueSchedule(late, "daily", at(9)), DueSchedule(never, "daily", None)]

    @guarantee()
    async def test_a_schedule_that_ticked_is_due_no_more(self, trial: StorageTrial) -> None:
        """Once its tick is saved a schedule is due again only for a later deadline, be it by a microsecond."""
        await _tick(trial, WORKSPACE, daily=at(10))
        assert await trial.storage.due_schedules({"daily": Deadline(at(10))}, limit=10) == []
        later = at(10) + timedelta(microseconds=1)
        due = DueSchedule(WORKSPACE, "daily", at(10))
        assert await trial.storage.due_schedules({"daily": Deadline(later)}, limit=10) == [due]
        await _tick(trial, WORKSPACE, daily=later)
        assert await trial.storage.due_schedules({"daily": Deadline(later)}, limit=10) == []

    @guarantee()
    async def test_schedules_have_ticks_and_deadlines_of_their_own(self, trial: StorageTrial) -> None:
        """Several schedules are asked about at once, each by its own deadline and its own ticks."""
        await _tick(trial, WORKSPACE, daily=at(10), hourly=at(5))
        deadlines = {"daily": Deadline(at(10)), "hourly": Deadline(at(8)), "yearly": Deadline(at(1))}
        found = await trial.storage.due_schedules(deadlines, limit=10)
        assert sorted((due.schedule, due.last) for due in found if due.last is not None) == [("hourly", at(5))]
        assert {due.schedule for due in found} == {"hourly", "yearly"}
        assert await trial.storage.due_schedules({}, limit=10) == []

    @guarantee()
    async def test_a_schedule_is_due_in_its_targets_only(self, trial: StorageTrial) -> None:
        """A schedule with targets is due in these alone, also where one has no log yet, and in none if it has none."""
        unborn = WorkspaceRef("t", "no log yet")
        await _tick(trial, WORKSPACE, daily=at(1))
        await trial.append(draft("e1"), workspace=OTHER)
        targets = frozenset({WORKSPACE, unborn})
        found = await trial.storage.due_schedules({"daily": Deadline(at(5), targets)}, limit=10)
        assert _by_place(found) == [DueSchedule(WORKSPACE, "daily", at(1)), DueSchedule(unborn, "daily", None)]
        assert await trial.storage.due_schedules({"daily": Deadline(at(5), frozenset())}, limit=10) == []

    @guarantee()
    async def test_a_limit_leaves_out_no_due_schedule_for_ever(self, trial: StorageTrial) -> None:
        """With a limit each answer has that many at most, and whoever lets what it finds tick gets to all of them."""
        places = [WorkspaceRef("t", f"w{number}") for number in range(5)]
        for place in places:
            await trial.append(draft("e1"), workspace=place)
        deadlines = {"daily": Deadline(at(1)), "hourly": Deadline(at(1))}
        done: list[tuple[WorkspaceRef, str]] = []
        while found := await trial.storage.due_schedules(deadlines, limit=3):
            assert len(found) <= 3
            for due in found:
                await _tick(trial, due.workspace, append=False, **{due.schedule: at(1)})
                done.append((due.workspace, due.schedule))
            assert len(done) <= 2 * len(places), "what ticked is found again"
        assert sorted(done) == [(place, schedule) for place in places for schedule in ("daily", "hourly")]
        assert await trial.storage.due_schedules({"daily": Deadline(at(9))}, limit=0) == []

    # --- Two storages on the same data

    @guarantee(Feature.SHARED_DATA)
    async def test_another_storage_finds_the_same_work(self, trial: StorageTrial) -> None:
        """What one storage committed makes workspaces behind and schedules due for a second one that asked before."""
        async with trial.beside() as other:
            assert await other.storage.behind(WATCH, limit=10) == []
            assert await other.storage.due_schedules({"daily": Deadline(at(1))}, limit=10) == []
            await trial.append(draft("e1"))
            assert await other.storage.workspaces() == [WORKSPACE]
            assert await other.storage.behind(WATCH, limit=10) == [WORKSPACE]
            due = DueSchedule(WORKSPACE, "daily", None)
            assert await other.storage.due_schedules({"daily": Deadline(at(1))}, limit=10) == [due]
            await _save(trial, progress(ALPHA, 1))
            await _tick(trial, WORKSPACE, append=False, daily=at(1))
            assert await other.storage.behind(WATCH, limit=10) == []
            assert await other.storage.due_schedules({"daily": Deadline(at(1))}, limit=10) == []


async def _save(trial: StorageTrial, *saved: RuleProgress, workspace: WorkspaceRef = WORKSPACE) -> None:
    async with trial.transaction(workspace) as transaction:
        await transaction.save_progress(saved)


async def _store(trial: StorageTrial, version: int, *, is_active: bool, enabled: bool = True) -> None:
    async with trial.transaction() as transaction:
        await transaction.save_stored_rules([stored(rule(ALPHA, enabled=enabled), version, is_active=is_active)])


async def _tick(trial: StorageTrial, workspace: WorkspaceRef, *, append: bool = True, **ticks: datetime) -> None:
    async with trial.transaction(workspace) as transaction:
        if append:
            await transaction.append([draft(f"tick {transaction.head.seq}")])
        await transaction.save_schedule_ticks(ticks)


def _by_place(found: list[DueSchedule]) -> list[DueSchedule]:
    return sorted(found, key=lambda due: due.workspace)
