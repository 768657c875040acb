"""Broken storages: what each does wrong, and the guarantees by which exactly that is noticed; here of logs."""

from typing import override

from reflexr.workspace import WorkspaceRef

from . import broken_logs as logs
from . import broken_transactions as transactions
from .broken import Broken
from .dictionary_storage import DictionaryStorage, DictionaryTransaction, Tables


def over(transaction: type[DictionaryTransaction]) -> type[DictionaryStorage]:
    """A storage whose transactions are of this class."""

    class Over(DictionaryStorage):
        @override
        def begin(self, workspace: WorkspaceRef, tables: Tables) -> DictionaryTransaction:
            return transaction(workspace, tables, self.clock())

    return Over


BROKEN_LOGS = (
    Broken(
        "never waits",
        transactions.NeverWaits,
        "a_lease_that_a_transaction_takes_is_not_given_away_meanwhile",
        "a_transaction_that_is_cancelled_while_it_waits_is_out_of_the_way",
        "a_transaction_waits_for_that_of_another_storage",
        "a_transaction_waits_for_the_one_before_it",
        "no_write_is_lost",
    ),
    Broken("waits for itself only", transactions.WaitsForItselfOnly, "a_transaction_waits_for_that_of_another_storage"),
    Broken(
        "lets the last in first",
        transactions.LetsTheLastInFirst,
        "transactions_take_turns_in_the_order_in_which_they_waited",
    ),
    Broken("holds up everybody", transactions.HoldsUpEverybody, "another_workspace_is_not_held_up"),
    Broken(
        "commits what raised",
        transactions.CommitsWhatRaised,
        "a_block_that_raises_changes_nothing",
        "a_subscriber_gets_nothing_of_a_rollback",
        "a_transaction_that_raises_takes_and_gives_back_no_lease",
        "a_workspace_that_a_block_left_is_free",
        "an_append_that_is_rolled_back_leaves_no_gap",
    ),
    Broken(
        "commits what was cancelled",
        transactions.CommitsWhatWasCancelled,
        "a_block_that_is_cancelled_changes_nothing",
        "a_transaction_that_is_cancelled_at_any_await_is_whole_or_nothing",
        "a_transaction_that_is_cancelled_when_answered_is_whole_or_nothing",
    ),
    Broken(
        "commits in two steps",
        transactions.CommitsInTwoSteps,
        "a_transaction_that_is_cancelled_at_any_await_is_whole_or_nothing",
        "a_transaction_that_is_cancelled_when_answered_is_whole_or_nothing",
    ),
    Broken(
        "keeps the lock of the cancelled",
        transactions.KeepsTheLockOfTheCancelled,
        "a_lease_or_cursor_that_is_cancelled_at_any_await_is_whole_or_nothing",
        "a_transaction_that_is_cancelled_at_any_await_is_whole_or_nothing",
        "a_transaction_that_is_cancelled_when_answered_is_whole_or_nothing",
        "a_transaction_that_is_cancelled_while_it_waits_is_out_of_the_way",
    ),
    Broken(
        "keeps the lock of what raised",
        transactions.KeepsTheLockOfWhatRaised,
        "a_block_that_raises_changes_nothing",
        "a_subscriber_gets_nothing_of_a_rollback",
        "a_transaction_that_raises_takes_and_gives_back_no_lease",
        "a_workspace_that_a_block_left_is_free",
        "an_append_that_is_rolled_back_leaves_no_gap",
        "appends_alone_that_come_together_leave_no_gap",
    ),
    Broken(
        "shows what is not committed",
        transactions.ShowsWhatIsNotCommitted,
        "a_block_that_is_cancelled_changes_nothing",
        "a_block_that_raises_changes_nothing",
        "a_commit_wakes_those_who_listen",
        "a_transaction_that_is_cancelled_at_any_await_is_whole_or_nothing",
        "a_transaction_that_is_cancelled_when_answered_is_whole_or_nothing",
        "nobody_sees_a_part_of_a_transaction",
    ),
    Broken("wraps errors", transactions.WrapsErrors, "an_error_of_the_block_passes_through"),
    Broken(
        "goes on after its block", over(transactions.GoesOnAfterItsBlock), "a_transaction_is_of_no_use_after_its_block"
    ),
    Broken(
        "makes workspaces of nothing",
        transactions.MakesWorkspacesOfNothing,
        "a_schedule_is_due_where_it_did_not_tick_since",
        "a_transaction_that_writes_nothing_changes_nothing",
        "a_workspace_without_a_log_is_not_behind",
        "workspaces_with_a_log_are_found",
        "an_append_of_nothing_alone_does_nothing",
    ),
    Broken(
        "leaves gaps",
        logs.LeavesGaps,
        "a_transaction_that_is_cancelled_at_any_await_is_whole_or_nothing",
        "a_transaction_that_is_cancelled_when_answered_is_whole_or_nothing",
        "an_append_that_is_rolled_back_leaves_no_gap",
    ),
    Broken("goes back in time", over(logs.GoesBackInTime), "ts_does_not_decrease_when_the_clock_goes_back"),
    Broken(
        "stamps each by itself",
        over(logs.StampsEachByItself),
        "an_envelope_has_the_time_of_its_transaction",
        "an_envelope_has_the_time_of_the_clock",
        "ts_does_not_decrease_when_the_clock_goes_back",
    ),
    Broken(
        "appends before it refuses",
        over(logs.AppendsBeforeItRefuses),
        "a_transaction_goes_on_after_a_refused_append",
        "an_id_that_is_given_twice_is_refused",
        "an_id_that_is_in_the_log_is_refused",
    ),
    Broken(
        "takes a duplicate for the first",
        over(logs.TakesADuplicateForTheFirst),
        "a_transaction_goes_on_after_a_refused_append",
        "an_id_that_is_in_the_log_is_refused",
        "an_id_that_the_transaction_appended_is_refused",
        "appends_alone_that_come_together_leave_no_gap",
    ),
    Broken("takes twins for one", over(logs.TakesTwinsForOne), "an_id_that_is_given_twice_is_refused"),
    Broken(
        "includes the end of a window",
        logs.IncludesTheEndOfAWindow,
        "a_window_admits_the_types_that_it_names",
        "a_window_excludes_both_of_its_ends",
        "last_takes_the_last_in_the_order_of_the_log",
    ),
    Broken(
        "limits before it filters",
        logs.LimitsBeforeItFilters,
        "a_limit_takes_the_first",
        "last_takes_the_last_in_the_order_of_the_log",
    ),
    Broken("reads the last backwards", logs.ReadsTheLastBackwards, "last_takes_the_last_in_the_order_of_the_log"),
    Broken("takes no types for all", logs.TakesNoTypesForAll, "a_window_admits_the_types_that_it_names"),
    Broken("reads what was committed", over(logs.ReadsWhatWasCommitted), "a_transaction_reads_what_it_appended"),
    Broken("forgets what was archived", logs.ForgetsWhatWasArchived, "a_history_is_the_versions_of_one_rule"),
    Broken(
        "cuts microseconds",
        over(logs.CutsMicroseconds),
        "a_schedule_that_ticked_is_due_no_more",
        "a_tick_is_saved_to_the_microsecond",
    ),
    Broken("shares its mappings", logs.SharesItsMappings, "a_returned_mapping_is_not_shared"),
    Broken("shares its envelopes", logs.SharesItsEnvelopes, "what_is_returned_is_not_shared"),
    Broken(
        "values large integers to floats",
        over(logs.changes(logs.large_integers_to_floats)),
        "a_payload_keeps_integers_of_any_size",
    ),
    Broken(
        "values whole floats to integers",
        over(logs.changes(logs.whole_floats_to_integers)),
        "a_payload_keeps_one_apart_from_one_point_zero",
    ),
    Broken("values no negative zero", over(logs.changes(logs.no_negative_zero)), "a_payload_keeps_floats"),
    Broken("values sorted keys", over(logs.changes(logs.sorted_keys)), "a_payload_keeps_the_order_of_its_keys"),
    Broken("values without nul", over(logs.changes(logs.without_nul)), "a_payload_keeps_control_characters"),
    Broken("values composed", over(logs.changes(logs.composed)), "a_payload_keeps_its_texts"),
    Broken(
        "values without empty objects", over(logs.changes(logs.without_empty_objects)), "a_payload_keeps_what_is_empty"
    ),
)
