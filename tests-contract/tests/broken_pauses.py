"""Storages that break one promise of paused runs each, and what exactly that is noticed by."""

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, override

from reflexr.core import Run
from reflexr.workspace import Clock, DueRun, LeaseKey, RunPolicy, RunQuery, RunScope, WorkspaceRef, run_lease

from .breakages import over
from .broken import Broken
from .broken_answers import taking
from .broken_logs import changed, large_integers_to_floats, sorted_keys
from .dictionary_storage import Database, DictionaryStorage, DictionaryTransaction, Tables, read_all

# --- What comes back


def saving(change: Callable[[Run], Run]) -> type[DictionaryStorage]:
    """A storage that changes runs before it saves them."""
    return over(taking(DictionaryTransaction, "save_runs", lambda runs: [change(run) for run in runs]))


def waiting(**changes: Callable[[Any], Any]) -> Callable[[Run], Run]:
    """Changes what a run waits for."""
    return lambda run: changing(run, "waiting", changes)


def answer(**changes: Callable[[Any], Any]) -> Callable[[Run], Run]:
    """Changes what a run was told."""
    return lambda run: changing(run, "answer", changes)


def changing(run: Run, name: str, changes: dict[str, Callable[[Any], Any]]) -> Run:
    part: Any = getattr(run, name)
    if part is None:
        return run
    fields = {field: change(getattr(part, field)) for field, change in changes.items()}
    return run.model_copy(update={name: part.model_copy(update=fields)})


def nothing(_: object) -> None:
    return None


def no(_: object) -> bool:
    return False


def to_the_second(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(microsecond=0)


def with_floats(value: object) -> object:
    return changed(value, large_integers_to_floats)


def sorted_by_key(value: object) -> object:
    return changed(value, sorted_keys)


def without_a_name(actor: Any) -> Any:
    return actor.model_copy(update={"name": None}) if actor.kind == "user" else actor


def without_answers_of_null(run: Run) -> Run:
    is_null = run.answer is not None and run.answer.value is None
    return run.model_copy(update={"answer": None}) if is_null else run


class WithKnown(DictionaryTransaction):
    """Looks at what was saved of a run before it saves more."""

    @override
    async def save_runs(self, runs: Collection[Run]) -> None:
        known = await self.runs([run.id for run in runs])
        await super().save_runs([self.replaced(known[run.id], run) if run.id in known else run for run in runs])

    def replaced(self, known: Run, run: Run) -> Run:
        return run


class ForgetsNoAnswer(WithKnown):
    @override
    def replaced(self, known: Run, run: Run) -> Run:
        return run.model_copy(update={"answer": run.answer or known.answer})


class SharesWhatIsAsked(DictionaryStorage):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.shared: dict[str, Run] = {}

    @override
    async def runs(self, workspace: WorkspaceRef, query: RunQuery) -> list[Run]:
        found = await super().runs(workspace, query)
        return [
            self.shared.setdefault(run.model_dump_json(), run) if run.waiting or run.answer else run for run in found
        ]


class FindsNoPausedRuns(DictionaryStorage):
    @override
    async def runs(self, workspace: WorkspaceRef, query: RunQuery) -> list[Run]:
        return [run for run in await super().runs(workspace, query) if query.statuses is None or run.waiting is None]


# --- Whose turn it is


def blocking(blocks: Callable[[Tables, Run], bool]) -> type[DictionaryStorage]:
    """A storage that has an idea of its own of which paused runs block."""

    def seen(tables: Tables) -> Tables:
        runs = tables.find_runs(RunQuery())[::-1]
        texts = {
            run.id: changing(run, "waiting", {"blocks": lambda _, run=run: blocks(tables, run)}).model_dump_json()
            for run in runs
        }
        return replace(tables, runs=texts)

    class Transaction(DictionaryTransaction):
        @override
        async def first_runs(
            self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()
        ) -> dict[RunScope, str]:
            turns = seen(self.tables).turns(blocking=blocking)
            return {scope: run_id for scope, run_id in turns.items() if scope in scopes}

    class Storage(over(Transaction)):
        @override
        def admits(
            self, policy: RunPolicy, tables: Tables, run: Run, free: dict[RunScope, str], blocked: dict[RunScope, str]
        ) -> bool:
            other = seen(tables)
            return super().admits(policy, other, run, other.turns(blocking=()), other.turns())

    return Storage


def never(_: Tables, run: Run) -> bool:
    return False


def always(_: Tables, run: Run) -> bool:
    return True


def as_its_rule_says(tables: Tables, run: Run) -> bool:
    stored = tables.stored_rules([run.rule]).get(run.rule)
    if stored is None:
        return run.waiting is not None and run.waiting.blocks
    return stored.rule.on_pause == "block"


class PutsPausesBeforeWhatRuns(DictionaryTransaction):
    @override
    async def first_runs(self, scopes: Collection[RunScope], *, blocking: Collection[str] = ()) -> dict[RunScope, str]:
        turns = await super().first_runs(scopes, blocking=blocking)
        runs = self.tables.find_runs(RunQuery())
        running = {run.id for run in runs if run.status == "running"}
        for run in runs:
            scope = RunScope(run.rule, run.scope_key)
            if turns.get(scope) in running and run.waiting is not None and run.waiting.blocks:
                turns[scope] = run.id
        return turns


class QueuesWhatIsAnsweredLast(WithKnown):
    @override
    def replaced(self, known: Run, run: Run) -> Run:
        is_answered = known.status == "paused" and run.status == "pending"
        return run.model_copy(update={"fired_seq": run.fired_seq + 1_000}) if is_answered else run


class EndsNoPauseThatBlocks(WithKnown):
    @override
    def replaced(self, known: Run, run: Run) -> Run:
        blocks = known.waiting is not None and known.waiting.blocks
        return known if blocks and not run.unfinished else run


# --- When it is due


class EndsNoPause(DictionaryStorage):
    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        return None if run.status == "paused" else super().starts(tables, run)


class EndsPausesAtOnce(DictionaryStorage):
    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        starts = super().starts(tables, run)
        return run.fired_at if run.status == "paused" and starts is not None else starts


class EndsPausesForAnyTime(DictionaryStorage):
    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        return (super().starts(tables, run) or run.fired_at) if run.status == "paused" else super().starts(tables, run)


class EndsPausesAMomentLate(DictionaryStorage):
    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        starts = super().starts(tables, run)
        late = timedelta(microseconds=1 if run.status == "paused" else 0)
        return None if starts is None else starts + late


class EndsWhatWasPaused(DictionaryStorage):
    """Never forgets until when a run once waited."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.until: dict[str, datetime] = {}

    @override
    def commit(self, workspace: WorkspaceRef, tables: Tables) -> None:
        for run in read_all(Run, tables.runs.values()):
            if run.waiting is not None and run.waiting.until is not None:
                self.until[run.id] = run.waiting.until
        super().commit(workspace, tables)

    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        return super().starts(tables, run) or (None if run.waiting else self.until.get(run.id))

    @override
    def admits(
        self, policy: RunPolicy, tables: Tables, run: Run, free: dict[RunScope, str], blocked: dict[RunScope, str]
    ) -> bool:
        ended = not run.unfinished and run.id in self.until
        known = run.model_copy(update={"status": "paused"}) if ended else run
        return super().admits(policy, tables, known, free, blocked)


def in_turn(*, blocks: bool) -> type[DictionaryStorage]:
    """A storage that ends paused runs, all or those that block, only when it is their turn."""

    class InTurn(DictionaryStorage):
        @override
        def admits(
            self, policy: RunPolicy, tables: Tables, run: Run, free: dict[RunScope, str], blocked: dict[RunScope, str]
        ) -> bool:
            waits = run.waiting is not None and run.waiting.blocks >= blocks
            known = run.model_copy(update={"status": "pending"}) if waits else run
            return super().admits(policy, tables, known, free, blocked)

    return InTurn


class WaitsForPausesInTurn(DictionaryStorage):
    """Tells how long to wait as if a paused run waited for its turn."""

    @override
    async def next_due(self, policy: RunPolicy) -> timedelta | None:
        storage = in_turn(blocks=False)(self.database, self.clock)
        return await storage.next_due(policy)


def admitting(change: Callable[[RunPolicy, Tables, Run], tuple[RunPolicy, Tables]]) -> type[DictionaryStorage]:
    """A storage that goes by another policy, or by other rules, for paused runs."""

    class Admitting(DictionaryStorage):
        @override
        def admits(
            self, policy: RunPolicy, tables: Tables, run: Run, free: dict[RunScope, str], blocked: dict[RunScope, str]
        ) -> bool:
            if run.status == "paused":
                policy, tables = change(policy, tables, run)
            return super().admits(policy, tables, run, free, blocked)

    return Admitting


def of_every_rule(policy: RunPolicy, tables: Tables, run: Run) -> tuple[RunPolicy, Tables]:
    is_stored = bool(policy.stored)
    return (policy if is_stored else replace(policy, unordered=policy.unordered | {run.rule})), tables


def withholding_nothing(policy: RunPolicy, tables: Tables, run: Run) -> tuple[RunPolicy, Tables]:
    return replace(policy, withheld=frozenset()), tables


def of_disabled_rules(policy: RunPolicy, tables: Tables, run: Run) -> tuple[RunPolicy, Tables]:
    rules = tables.stored_rules(None).items()
    enabled = {
        name: stored.model_copy(update={"rule": stored.rule.model_copy(update={"enabled": True})}).model_dump_json()
        for name, stored in rules
    }
    return policy, replace(tables, stored=enabled)


class LeavesOutNoPausedRun(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, *, but_runs: Collection[LeaseKey] = (), **asked: Any) -> list[DueRun]:
        paused = {
            LeaseKey(place, run_lease(run.id))
            for place, tables in self.database.tables.items()
            for run in read_all(Run, tables.runs.values())
            if run.status == "paused"
        }
        return await super().due_runs(policy, but_runs=[key for key in but_runs if key not in paused], **asked)


# --- Order, limits and many


class GoesByFirings(DictionaryStorage):
    """Has paused runs wait since they were fired."""

    @override
    def longest_first(self, waiting: list[tuple[datetime, DueRun]]) -> list[tuple[datetime, DueRun]]:
        return sorted(super().longest_first(waiting), key=self.since)

    def since(self, due: tuple[datetime, DueRun]) -> datetime:
        starts, run = due
        found = Run.model_validate_json(self.tables(run.workspace).runs[run.run_id])
        return found.fired_at if found.status == "paused" else starts


class KeepsRoomForPauses(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, *, limit: int, **asked: Any) -> list[DueRun]:
        found = await super().due_runs(policy, limit=limit, **asked)
        due = {run.run_id for run in found}
        runs = [run for tables in self.database.tables.values() for run in read_all(Run, tables.runs.values())]
        waiting = [run for run in runs if run.status == "paused" and run.id not in due]
        return found[: max(limit - len(waiting), 1)] if waiting else found


class EndsAHundredPauses(DictionaryStorage):
    @override
    async def due_runs(self, policy: RunPolicy, **asked: Any) -> list[DueRun]:
        found = await super().due_runs(policy, **asked)
        paused = [
            due
            for due in found
            if Run.model_validate_json(self.tables(due.workspace).runs[due.run_id]).status == "paused"
        ]
        return [due for due in found if due not in paused[100:]]


class EndsItsOwnPausesOnly(DictionaryStorage):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        self.own: set[str] = set()

    @override
    def commit(self, workspace: WorkspaceRef, tables: Tables) -> None:
        self.own.update(run.id for run in read_all(Run, tables.runs.values()))
        super().commit(workspace, tables)

    @override
    def starts(self, tables: Tables, run: Run) -> datetime | None:
        return None if run.status == "paused" and run.id not in self.own else super().starts(tables, run)


BROKEN_PAUSES = (
    Broken(
        "forgets requests",
        saving(waiting(request=nothing)),
        "a_run_that_waits_no_more_says_so",
        "what_a_paused_run_asks_is_not_shared",
        "what_a_paused_run_waits_for_comes_back_as_it_was_saved",
    ),
    Broken(
        "makes floats of what is asked",
        saving(waiting(request=with_floats)),
        "what_a_paused_run_waits_for_comes_back_as_it_was_saved",
    ),
    Broken(
        "sorts what is asked",
        saving(waiting(request=sorted_by_key)),
        "what_a_paused_run_waits_for_comes_back_as_it_was_saved",
    ),
    Broken(
        "waits since a second",
        saving(waiting(since=to_the_second)),
        "what_a_paused_run_waits_for_comes_back_as_it_was_saved",
    ),
    Broken(
        "waits until a second",
        saving(waiting(until=to_the_second)),
        "what_a_paused_run_waits_for_comes_back_as_it_was_saved",
    ),
    Broken(
        "forgets what blocks",
        saving(waiting(blocks=no)),
        "a_paused_run_that_blocks_does_so_until_it_has_ended",
        "a_paused_run_that_blocks_keeps_its_turn",
        "a_run_itself_says_whether_its_pause_blocks",
        "a_run_that_is_answered_has_its_place_again",
        "another_storage_finds_the_same_paused_runs",
        "what_a_paused_run_waits_for_comes_back_as_it_was_saved",
    ),
    Broken(
        "forgets what was answered",
        saving(answer(value=nothing)),
        "a_run_that_waits_no_more_says_so",
        "an_answer_comes_back_as_it_was_saved",
        "what_a_paused_run_asks_is_not_shared",
    ),
    Broken("makes floats of answers", saving(answer(value=with_floats)), "an_answer_comes_back_as_it_was_saved"),
    Broken("sorts answers", saving(answer(value=sorted_by_key)), "an_answer_comes_back_as_it_was_saved"),
    Broken("forgets who answered", saving(answer(actor=without_a_name)), "an_answer_comes_back_as_it_was_saved"),
    Broken("forgets when it was answered", saving(answer(at=to_the_second)), "an_answer_comes_back_as_it_was_saved"),
    Broken("takes answers of null for none", saving(without_answers_of_null), "an_answer_comes_back_as_it_was_saved"),
    Broken("forgets no answer", over(ForgetsNoAnswer), "a_run_that_waits_no_more_says_so"),
    Broken("shares what is asked", SharesWhatIsAsked, "what_a_paused_run_asks_is_not_shared"),
    Broken(
        "finds no paused runs", FindsNoPausedRuns, "a_large_number_of_paused_runs_is_one_call", "paused_runs_are_found"
    ),
    Broken(
        "lets no pause block",
        blocking(never),
        "a_paused_run_that_blocks_does_so_until_it_has_ended",
        "a_paused_run_that_blocks_keeps_its_turn",
        "a_run_itself_says_whether_its_pause_blocks",
        "a_run_that_is_answered_has_its_place_again",
        "another_storage_finds_the_same_paused_runs",
    ),
    Broken(
        "lets every pause block",
        blocking(always),
        "a_large_number_of_paused_runs_is_one_call",
        "a_paused_run_that_does_not_block_is_passed_over",
        "a_run_itself_says_whether_its_pause_blocks",
        "a_run_that_is_answered_has_its_place_again",
        "another_storage_finds_the_same_paused_runs",
        "paused_runs_that_still_have_time_do_not_use_up_the_limit",
        "a_paused_run_is_due_whatever_it_asks",
    ),
    Broken(
        "lets pauses block as their rule says", blocking(as_its_rule_says), "a_run_itself_says_whether_its_pause_blocks"
    ),
    Broken(
        "puts pauses before what runs",
        over(PutsPausesBeforeWhatRuns),
        "a_run_that_runs_has_the_turn_before_a_paused_one",
    ),
    Broken(
        "queues what is answered last", over(QueuesWhatIsAnsweredLast), "a_run_that_is_answered_has_its_place_again"
    ),
    Broken(
        "ends no pause that blocks",
        over(EndsNoPauseThatBlocks),
        "a_paused_run_that_blocks_does_so_until_it_has_ended",
        "a_paused_run_that_ended_holds_back_nobody",
    ),
    Broken(
        "ends no pause",
        EndsNoPause,
        "a_large_number_of_paused_runs_is_one_call",
        "a_paused_run_is_due_at_the_very_time_until_which_it_waits",
        "a_paused_run_that_blocks_does_so_until_it_has_ended",
        "a_paused_run_that_still_has_time_is_not_due",
        "a_paused_run_whose_time_is_over_is_due",
        "a_paused_run_whose_time_is_over_waits_for_no_turn",
        "another_storage_finds_the_same_paused_runs",
        "paused_runs_can_be_left_out",
        "paused_runs_of_rules_in_no_policy_are_not_due",
        "paused_runs_of_stored_rules_are_due_while_these_are_enabled",
        "paused_runs_that_still_have_time_do_not_use_up_the_limit",
        "the_next_due_time_minds_pauses_that_wait_for_no_turn",
        "what_waited_longest_comes_first_among_paused_runs_too",
        "who_has_been_answered_is_due_by_its_turn_alone",
        "a_paused_run_is_due_whatever_it_asks",
    ),
    Broken(
        "ends pauses at once",
        EndsPausesAtOnce,
        "a_paused_run_is_due_at_the_very_time_until_which_it_waits",
        "a_paused_run_that_still_has_time_is_not_due",
        "a_paused_run_whose_time_is_over_is_due",
        "paused_runs_can_be_left_out",
        "paused_runs_that_still_have_time_do_not_use_up_the_limit",
        "the_next_due_time_minds_pauses_that_wait_for_no_turn",
        "what_waited_longest_comes_first_among_paused_runs_too",
        "who_has_been_answered_is_due_by_its_turn_alone",
    ),
    Broken(
        "ends pauses for any time",
        EndsPausesForAnyTime,
        "a_paused_run_that_blocks_keeps_its_turn",
        "a_paused_run_that_does_not_block_is_passed_over",
        "a_paused_run_that_still_has_time_is_not_due",
        "a_paused_run_that_waits_for_any_time_is_never_due",
        "a_paused_run_whose_time_is_over_waits_for_no_turn",
        "a_run_itself_says_whether_its_pause_blocks",
        "a_run_that_runs_has_the_turn_before_a_paused_one",
        "another_storage_finds_the_same_paused_runs",
        "paused_runs_that_still_have_time_do_not_use_up_the_limit",
    ),
    Broken(
        "ends pauses a moment late",
        EndsPausesAMomentLate,
        "a_large_number_of_paused_runs_is_one_call",
        "a_paused_run_is_due_at_the_very_time_until_which_it_waits",
        "a_paused_run_that_still_has_time_is_not_due",
        "a_paused_run_whose_time_is_over_waits_for_no_turn",
        "another_storage_finds_the_same_paused_runs",
        "paused_runs_can_be_left_out",
        "paused_runs_of_rules_in_no_policy_are_not_due",
        "paused_runs_of_stored_rules_are_due_while_these_are_enabled",
        "paused_runs_that_still_have_time_do_not_use_up_the_limit",
        "the_next_due_time_minds_pauses_that_wait_for_no_turn",
        "a_paused_run_is_due_whatever_it_asks",
    ),
    Broken(
        "ends what was paused",
        EndsWhatWasPaused,
        "a_paused_run_that_blocks_does_so_until_it_has_ended",
        "a_paused_run_that_ended_holds_back_nobody",
        "who_has_been_answered_is_due_by_its_turn_alone",
    ),
    Broken(
        "ends pauses in turn",
        in_turn(blocks=False),
        "a_large_number_of_paused_runs_is_one_call",
        "a_paused_run_is_due_at_the_very_time_until_which_it_waits",
        "a_paused_run_whose_time_is_over_is_due",
        "a_paused_run_whose_time_is_over_waits_for_no_turn",
        "paused_runs_can_be_left_out",
        "paused_runs_of_rules_in_no_policy_are_not_due",
        "paused_runs_of_stored_rules_are_due_while_these_are_enabled",
        "paused_runs_that_still_have_time_do_not_use_up_the_limit",
        "the_next_due_time_minds_pauses_that_wait_for_no_turn",
        "what_waited_longest_comes_first_among_paused_runs_too",
        "who_has_been_answered_is_due_by_its_turn_alone",
        "a_paused_run_is_due_whatever_it_asks",
    ),
    Broken(
        "ends pauses that block in turn",
        in_turn(blocks=True),
        "a_paused_run_whose_time_is_over_waits_for_no_turn",
        "the_next_due_time_minds_pauses_that_wait_for_no_turn",
    ),
    Broken(
        "waits for pauses in turn",
        WaitsForPausesInTurn,
        "a_paused_run_is_due_at_the_very_time_until_which_it_waits",
        "the_next_due_time_minds_pauses_that_wait_for_no_turn",
    ),
    Broken(
        "ends pauses of every rule",
        admitting(of_every_rule),
        "a_paused_run_is_due_at_the_very_time_until_which_it_waits",
        "paused_runs_of_rules_in_no_policy_are_not_due",
    ),
    Broken(
        "withholds no pause",
        admitting(withholding_nothing),
        "paused_runs_of_rules_in_no_policy_are_not_due",
        "paused_runs_of_stored_rules_are_due_while_these_are_enabled",
    ),
    Broken(
        "ends pauses of disabled rules",
        admitting(of_disabled_rules),
        "paused_runs_of_stored_rules_are_due_while_these_are_enabled",
    ),
    Broken("leaves out no paused run", LeavesOutNoPausedRun, "paused_runs_can_be_left_out"),
    Broken("goes by firings", GoesByFirings, "what_waited_longest_comes_first_among_paused_runs_too"),
    Broken(
        "keeps room for pauses",
        KeepsRoomForPauses,
        "paused_runs_can_be_left_out",
        "paused_runs_that_still_have_time_do_not_use_up_the_limit",
        "what_waited_longest_comes_first_among_paused_runs_too",
        "a_paused_run_is_due_whatever_it_asks",
    ),
    Broken("ends a hundred pauses", EndsAHundredPauses, "a_large_number_of_paused_runs_is_one_call"),
    Broken("ends its own pauses only", EndsItsOwnPausesOnly, "another_storage_finds_the_same_paused_runs"),
)
