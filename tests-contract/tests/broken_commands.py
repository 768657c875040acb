"""Surfaces that break one promise each of commands, and of what is refused."""

import json
from contextlib import suppress
from typing import Any, override

from reflexr.contracts import JsonObject, SurfaceRejected
from reflexr.core import CommandFrame, CommandRejected, CommandResult, InvalidState, UserActor

from .broken_surfaces import (
    BrokenSurface,
    Change,
    changed,
    everywhere_in,
    having,
    numbers,
    refusing,
    sending,
    telling,
    without,
)
from .in_process_surface import InProcessSurface

# --- Commands


class ForgetsNames(InProcessSurface):
    @override
    async def result(self, frame: CommandFrame) -> CommandResult:
        workspace = await self.open()
        if isinstance(self.actor, UserActor):
            workspace = workspace.as_actor(UserActor(id=self.actor.id))
        return await self.application.execute(workspace, frame.command, command_id=frame.command_id)


class TellsRunsAsTheyWere(InProcessSurface):
    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        before: Any = None
        with suppress(SurfaceRejected, UnicodeEncodeError):
            before = await self.read("run", run_id=str(command.get("run_id")))
        result = await super().execute(command, command_id=command_id)
        if result["ok"] and result["outcome"]["type"] == "run":
            result["outcome"]["run"] = before
        return result


class TellsTheHead(InProcessSurface):
    """Takes what is last in the log for what it has appended."""

    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        result = await super().execute(command, command_id=command_id)
        if result["ok"] and not result["outcome"].get("duplicate", True):
            result["outcome"]["seq"] = await (await self.open()).head_seq()
        return result


def kind(name: str, change: Change) -> Change:
    return lambda value: change(value) if value["type"] == name else value


def large_to_float(number: float) -> float:
    return float(number) if abs(number) > 2**53 else number


def backwards(events: Any) -> Any:
    return list(reversed(events))


def no_duplicates(published: list[JsonObject]) -> list[JsonObject]:
    return [{**one, "duplicate": False} for one in published]


BROKEN_COMMANDS = (
    BrokenSurface(
        "loses the flag of a duplicate",
        telling(kind("published", having(duplicate=False))),
        "publish_of_an_id_that_is_there_is_a_duplicate",
    ),
    BrokenSurface(
        "loses the flag of a duplicate of many",
        telling(changed("published", no_duplicates)),
        "publish_many_appends_events_together",
    ),
    BrokenSurface(
        "loses the flag of a duplicate rule",
        telling(kind("rule_version", having(duplicate=False))),
        "archive_rule_ends_a_rule",
        "install_rule_of_what_is_installed_is_a_duplicate",
    ),
    BrokenSurface(
        "tells no id",
        telling(kind("published", having(id="evt_0"))),
        "a_repetition_on_a_stream_gets_the_first_result",
        "a_repetition_past_the_surface_gets_the_first_result",
        "an_id_has_1_to_255_characters",
        "publish_appends_an_event",
        "publish_gives_an_event_an_id",
        "what_commands_do_is_there_when_they_are_answered",
    ),
    BrokenSurface(
        "tells the place before",
        telling(changed("seq", lambda seq: seq - 1)),
        "a_repetition_on_a_stream_gets_the_first_result",
        "a_repetition_past_the_surface_gets_the_first_result",
        "another_participants_command_is_its_own",
        "archive_rule_ends_a_rule",
        "give_feedback_records_it",
        "install_rule_stores_a_rule",
        "publish_appends_an_event",
        "update_rule_stores_the_next_version",
        "what_commands_do_is_there_when_they_are_answered",
        "what_is_published_stays_in_its_workspace",
    ),
    BrokenSurface("tells the head", TellsTheHead, "what_commands_do_is_there_when_they_are_answered"),
    BrokenSurface(
        "tells runs as they were",
        TellsRunsAsTheyWere,
        "a_command_that_is_not_permitted_is_forbidden",
        "cancel_run_ends_a_run",
        "resume_run_answers_a_paused_run",
        "retry_run_queues_a_run_again",
        "skip_run_gives_a_run_up",
    ),
    BrokenSurface("tells a wrong fact", telling(kind("recorded", having(id="evt_0"))), "give_feedback_records_it"),
    BrokenSurface("tells no progress", telling(having(progress=None)), "replay_rule_has_a_rule_evaluate_the_log_again"),
    BrokenSurface(
        "tells the version before",
        telling(changed("version", lambda version: version - 1 or 1)),
        "a_repeated_refusal_is_the_first_one",
        "archive_rule_ends_a_rule",
        "update_rule_stores_the_next_version",
    ),
    BrokenSurface(
        "forgets the ids of events",
        sending(without("id"), "publish"),
        "an_id_has_1_to_255_characters",
        "everything_is_of_its_type",
        "no_name_holds_a_nul",
        "no_text_holds_half_a_character",
        "publish_appends_an_event",
        "publish_joins_the_chain_that_it_names",
        "publish_many_appends_events_together",
        "publish_of_an_id_that_is_there_is_a_duplicate",
    ),
    BrokenSurface(
        "forgets chains",
        sending(without("correlation_id"), "publish"),
        "an_id_has_1_to_255_characters",
        "commands_find_nothing_of_others",
        "everything_is_of_its_type",
        "no_name_holds_a_nul",
        "no_text_holds_half_a_character",
        "publish_joins_the_chain_that_it_names",
        "what_does_not_exist_is_not_found",
        "what_is_not_as_it_has_to_be_is_validation_failed",
    ),
    BrokenSurface(
        "publishes many backwards",
        sending(changed("events", backwards), "publish_many"),
        "publish_many_appends_events_together",
    ),
    BrokenSurface(
        "makes floats of large numbers",
        sending(everywhere_in(numbers(large_to_float))),
        "every_number_is_in_its_range",
        "publish_changes_no_value",
        "a_paused_run_tells_what_it_asks",
        "resume_run_answers_a_paused_run",
    ),
    BrokenSurface(
        "sorts keys",
        sending(lambda value: json.loads(json.dumps(value, sort_keys=True))),
        "publish_changes_no_value",
        "a_paused_run_tells_what_it_asks",
        "resume_run_answers_a_paused_run",
    ),
    BrokenSurface(
        "forgets names of actors",
        ForgetsNames,
        "a_command_is_attributed_to_who_sent_it",
        "a_command_on_a_stream_is_asked_about",
        "every_command_is_asked_about",
    ),
    BrokenSurface(
        "forgets reasons of skips",
        sending(without("reason"), "skip_run"),
        "everything_is_of_its_type",
        "no_text_holds_half_a_character",
        "skip_run_gives_a_run_up",
    ),
    BrokenSurface(
        "forgets reasons of cancellations",
        sending(without("reason"), "cancel_run"),
        "cancel_run_ends_a_run",
        "everything_is_of_its_type",
    ),
    BrokenSurface(
        "forgets reasons of archives",
        sending(without("reason"), "archive_rule"),
        "archive_rule_ends_a_rule",
        "no_text_holds_half_a_character",
    ),
    BrokenSurface(
        "forgets answers",
        sending(without("answer"), "resume_run"),
        "a_paused_run_tells_what_it_asks",
        "no_number_is_not_a_number",
        "no_text_holds_half_a_character",
        "no_value_nests_too_deep",
        "resume_run_answers_a_paused_run",
    ),
    BrokenSurface(
        "takes answers of null for none",
        sending(changed("answer", lambda answer: answer or ""), "resume_run"),
        "resume_run_answers_a_paused_run",
    ),
    BrokenSurface(
        "answers whatever is asked",
        sending(without("attempt"), "resume_run"),
        "every_number_is_in_its_range",
        "everything_is_of_its_type",
        "no_number_is_not_a_number",
        "what_is_in_no_state_for_it_is_invalid_state",
    ),
    BrokenSurface(
        "fires again whatever it is asked",
        sending(having(mode="refire"), "replay_rule"),
        "everything_is_of_its_type",
        "replay_rule_has_a_rule_evaluate_the_log_again",
    ),
    BrokenSurface(
        "forgets provenance",
        sending(without("provenance")),
        "a_rule_is_answered_with_its_origin",
        "everything_is_of_its_type",
        "install_rule_stores_a_rule",
        "no_number_is_not_a_number",
        "no_text_holds_half_a_character",
        "no_value_nests_too_deep",
        "update_rule_stores_the_next_version",
        "what_is_not_as_it_has_to_be_is_validation_failed",
    ),
    BrokenSurface(
        "expects no version",
        sending(without("expected_version")),
        "every_number_is_in_its_range",
        "everything_is_of_its_type",
        "what_is_in_no_state_for_it_is_invalid_state",
    ),
)

# --- Refusals


class TellsWhatBroke(InProcessSurface):
    @override
    async def result(self, frame: CommandFrame) -> CommandResult:
        workspace = await self.open()
        result = await self.application.execute(workspace, frame.command, command_id=frame.command_id)
        if isinstance(result, CommandRejected) and "RuntimeError" in result.rejection.message:
            problem = InvalidState(f"password=hunter2 was refused: {result.rejection.message}")
            return CommandRejected(command_id=frame.command_id, rejection=problem.rejection)
        return result


class RemembersWhatBroke(InProcessSurface):
    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        memory: dict[str, JsonObject] = vars(self.application).setdefault("memory", {})
        if command_id in memory:
            return memory[command_id]
        result = await super().execute(command, command_id=command_id)
        if "could not be carried out" in result.get("rejection", {}).get("message", ""):
            memory[command_id] = result
        return result


class RenamesRefusals(InProcessSurface):
    """Answers a refused command under an id of its own."""

    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        result = await super().execute(command, command_id=command_id)
        return result if result["ok"] else {**result, "command_id": "another"}


class ForgetsErrorsOfReads(InProcessSurface):
    @override
    async def read(self, name: str, **arguments: Any) -> Any:
        try:
            return await super().read(name, **arguments)
        except SurfaceRejected as rejected:
            raise SurfaceRejected(without("errors")(rejected.rejection)) from rejected


def retyped(old: str, new: str) -> Change:
    return kind(old, having(type=new))


BROKEN_REFUSALS = (
    BrokenSurface(
        "says invalid_state for not_found",
        refusing(retyped("not_found", "invalid_state")),
        "a_rejection_of_a_command_comes_as_it_is",
        "a_repeated_refusal_is_the_first_one",
        "an_id_has_1_to_255_characters",
        "commands_find_nothing_of_others",
        "what_does_not_exist_is_not_found",
    ),
    BrokenSurface(
        "says not_found for invalid_state",
        refusing(retyped("invalid_state", "not_found")),
        "a_rejection_of_a_command_comes_as_it_is",
        "what_breaks_is_no_answer_for_ever",
        "what_is_in_no_state_for_it_is_invalid_state",
    ),
    BrokenSurface(
        "says invalid_state for validation_failed",
        refusing(retyped("validation_failed", "invalid_state")),
        "a_rejection_of_a_command_comes_as_it_is",
        "a_workspace_whose_name_is_no_id_is_refused",
        "an_id_has_1_to_255_characters",
        "every_number_is_in_its_range",
        "everything_is_of_its_type",
        "no_field_is_unknown",
        "no_name_holds_a_nul",
        "no_number_is_not_a_number",
        "no_text_holds_half_a_character",
        "no_value_nests_too_deep",
        "what_is_not_as_it_has_to_be_is_validation_failed",
    ),
    BrokenSurface(
        "says not_found for forbidden",
        refusing(retyped("forbidden", "not_found")),
        "a_command_that_is_not_permitted_is_forbidden",
        "a_rejection_of_a_command_comes_as_it_is",
        "permissions_are_asked_each_time",
        "what_nobody_may_is_forbidden",
        "who_may_not_open_a_workspace_may_do_nothing_in_it",
    ),
    BrokenSurface(
        "forgets the errors",
        refusing(without("errors")),
        "a_rejection_of_a_command_comes_as_it_is",
        "a_workspace_whose_name_is_no_id_is_refused",
        "an_id_has_1_to_255_characters",
        "every_number_is_in_its_range",
        "every_problem_is_told",
        "everything_is_of_its_type",
        "no_field_is_unknown",
        "no_name_holds_a_nul",
        "no_number_is_not_a_number",
        "no_text_holds_half_a_character",
        "no_value_nests_too_deep",
        "what_could_not_be_read_is_forgotten",
        "what_is_not_as_it_has_to_be_is_validation_failed",
    ),
    BrokenSurface(
        "renames refusals",
        RenamesRefusals,
        "a_command_that_is_not_permitted_is_forbidden",
        "a_refusal_tells_nothing_of_what_is_there",
        "a_rejection_of_a_command_comes_as_it_is",
        "an_id_has_1_to_255_characters",
        "commands_find_nothing_of_others",
        "every_problem_is_told",
        "permissions_are_asked_each_time",
        "what_does_not_exist_is_not_found",
        "what_is_in_no_state_for_it_is_invalid_state",
        "what_is_not_as_it_has_to_be_is_validation_failed",
        "what_nobody_may_is_forbidden",
    ),
    BrokenSurface(
        "forgets the errors of reads",
        ForgetsErrorsOfReads,
        "a_read_takes_no_limit_with_last",
        "a_read_takes_no_name_with_a_nul",
        "a_read_takes_no_number_out_of_range",
        "a_read_takes_no_type_or_status_that_is_none",
        "a_rejection_of_a_read_comes_as_it_is",
        "a_workspace_whose_name_is_no_id_is_refused",
    ),
    BrokenSurface(
        "tells the first error alone",
        refusing(changed("errors", lambda errors: errors[:1])),
        "a_rejection_of_a_command_comes_as_it_is",
        "every_problem_is_told",
    ),
    BrokenSurface("forgets the depth", refusing(without("depth", "limit")), "a_rejection_of_a_command_comes_as_it_is"),
    BrokenSurface("says nothing but no", refusing(having(message="no")), "a_rejection_of_a_command_comes_as_it_is"),
    BrokenSurface(
        "says nothing",
        refusing(having(message="")),
        "a_command_that_is_not_permitted_is_forbidden",
        "a_refusal_tells_nothing_of_what_is_there",
        "a_rejection_of_a_command_comes_as_it_is",
        "a_workspace_whose_name_is_no_id_is_refused",
        "an_id_has_1_to_255_characters",
        "commands_find_nothing_of_others",
        "every_number_is_in_its_range",
        "every_problem_is_told",
        "everything_is_of_its_type",
        "no_field_is_unknown",
        "no_name_holds_a_nul",
        "no_number_is_not_a_number",
        "no_text_holds_half_a_character",
        "no_value_nests_too_deep",
        "permissions_are_asked_each_time",
        "what_could_not_be_read_is_forgotten",
        "what_does_not_exist_is_not_found",
        "what_is_in_no_state_for_it_is_invalid_state",
        "what_is_not_as_it_has_to_be_is_validation_failed",
        "what_nobody_may_is_forbidden",
        "who_may_not_open_a_workspace_may_do_nothing_in_it",
    ),
    BrokenSurface("tells what broke", TellsWhatBroke, "what_breaks_is_no_answer_for_ever"),
    BrokenSurface("remembers what broke", RemembersWhatBroke, "what_breaks_is_no_answer_for_ever"),
)
