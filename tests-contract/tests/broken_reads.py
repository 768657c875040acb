"""Surfaces that break one promise each of reads."""

import json
from collections.abc import Callable
from typing import Any, override

from reflexr.contracts import SurfaceRejected

from .broken_surfaces import BrokenSurface, Change, answering, asking, changed, everywhere, having, numbers, without
from .in_process_surface import InProcessSurface

# --- What is asked


def clamped(value: Any) -> Any:
    return min(max(value, 0), 2**63 - 1) if isinstance(value, int) else value


def every(read: Change) -> type[InProcessSurface]:
    """A surface that changes the arguments of every read."""

    class Asking(InProcessSurface):
        @override
        async def read(self, name: str, **arguments: Any) -> Any:
            return await super().read(name, **read(arguments))

    return Asking


def swapped(one: str, other: str) -> Change:
    names = {one: other, other: one}
    return lambda arguments: {names.get(name, name): value for name, value in arguments.items()}


def one_of_two(arguments: Any) -> Any:
    return without("limit")(arguments) if "last" in arguments else arguments


def known_types(arguments: Any) -> Any:
    return changed("types", lambda types: [one for one in types if one.startswith("contract_shop:")])(arguments)


def known_status(arguments: Any) -> Any:
    return without("status")(arguments) if arguments.get("status") in ("unheard_of", "") else arguments


def without_nul(arguments: Any) -> Any:
    return everywhere(lambda value: value.replace("\0", "") if isinstance(value, str) else value, arguments)


class LimitsBeforeItFilters(InProcessSurface):
    @override
    async def read(self, name: str, **arguments: Any) -> Any:
        types = arguments.pop("types", None) if name == "events" else None
        answer = await super().read(name, **arguments)
        return answer if types is None else [one for one in answer if one["event"]["type"] in types]


class LimitsRunsBeforeItFilters(InProcessSurface):
    @override
    async def read(self, name: str, **arguments: Any) -> Any:
        if name != "runs":
            return await super().read(name, **arguments)
        wanted = {argument: arguments.pop(argument) for argument in ("rule",) if argument in arguments}
        return [run for run in await super().read(name, **arguments) if wanted.items() <= run.items()]


# --- What is answered


class KeepsWhatItRead(InProcessSurface):
    @override
    async def read(self, name: str, **arguments: Any) -> Any:
        memory: dict[str, Any] = vars(self.application).setdefault("memory", {})
        if name != "run":
            return await super().read(name, **arguments)
        if arguments["run_id"] not in memory:
            memory[arguments["run_id"]] = await super().read(name, **arguments)
        return memory[arguments["run_id"]]


def nothing_for_not_found(read: str) -> type[InProcessSurface]:
    """A surface that answers null for what does not exist."""

    class Nothing(InProcessSurface):
        @override
        async def read(self, name: str, **arguments: Any) -> Any:
            try:
                return await super().read(name, **arguments)
            except SurfaceRejected as rejected:
                if name == read and rejected.rejection["type"] == "not_found":
                    return None
                raise

    return Nothing


class BeginsWhatItReads(InProcessSurface):
    """Makes a workspace by reading it."""

    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        answer = await super().answer(name, arguments)
        workspace = self.application.handle((await self.open()).ref, actor=self.actor)
        if name == "rule_statuses" and await workspace.head_seq() == 0:
            await workspace.replay_rule("contract_shop:orders", from_seq=1, mode="rebuild")
        return answer


class HasNoNewWorkspaces(InProcessSurface):
    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        answer = await super().answer(name, arguments)
        if name == "dead_letters" and await (await self.open()).head_seq() == 0:
            return None
        return answer


class ListsStoredRulesToo(InProcessSurface):
    @override
    async def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        answer = await super().answer(name, arguments)
        if name == "rules":
            return list((await self.application.rules_in(await self.open())).values())
        return answer


class HasNoArchive(InProcessSurface):
    @override
    async def read(self, name: str, **arguments: Any) -> Any:
        answer = await super().read(name, **arguments)
        if name == "rule" and answer["status"] == "archived":
            raise SurfaceRejected({"type": "not_found", "message": "there is none"})
        return answer


def reversed_answer(answer: Any) -> Any:
    return answer[::-1]


def each(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda answer: [change(one) for one in answer]


def sorted_keys(answer: Any) -> Any:
    return json.loads(json.dumps(answer, sort_keys=True))


def small(answer: Any) -> Any:
    return everywhere(numbers(lambda number: number if abs(number) < 2**53 else float(number)), answer)


def of_each(change: Change) -> Callable[[Any], Any]:
    return lambda answer: [change(one) for one in answer]


def for_ever(waiting: Any) -> Any:
    return None if waiting is None else {**waiting, "until": None}


BROKEN_READS = (
    BrokenSurface(
        "ignores after_seq",
        asking("events", without("after_seq")),
        "a_read_takes_no_number_out_of_range",
        "events_are_of_the_types_that_are_named",
        "events_are_the_first_or_the_last_so_many",
        "events_are_those_between_two_places",
    ),
    BrokenSurface(
        "includes after_seq",
        asking("events", changed("after_seq", lambda seq: seq and seq - 1)),
        "a_read_takes_no_number_out_of_range",
        "events_are_of_the_types_that_are_named",
        "events_are_the_first_or_the_last_so_many",
        "events_are_those_between_two_places",
    ),
    BrokenSurface(
        "includes before_seq",
        asking("events", changed("before_seq", lambda seq: seq + 1)),
        "a_read_takes_no_number_out_of_range",
        "events_are_the_first_or_the_last_so_many",
        "events_are_those_between_two_places",
    ),
    BrokenSurface(
        "takes the first for the last",
        asking("events", swapped("limit", "last")),
        "events_are_of_the_types_that_are_named",
        "events_are_the_first_or_the_last_so_many",
    ),
    BrokenSurface(
        "ignores limits",
        asking("events", without("limit")),
        "a_read_takes_no_limit_with_last",
        "a_read_takes_no_number_out_of_range",
        "events_are_of_the_types_that_are_named",
        "events_are_the_first_or_the_last_so_many",
    ),
    BrokenSurface(
        "ignores types",
        asking("events", without("types")),
        "a_read_takes_no_type_or_status_that_is_none",
        "events_are_of_the_types_that_are_named",
        "reads_find_nothing_of_others",
    ),
    BrokenSurface(
        "limits before it filters",
        LimitsBeforeItFilters,
        "a_read_takes_no_type_or_status_that_is_none",
        "events_are_of_the_types_that_are_named",
    ),
    BrokenSurface(
        "clamps what is asked",
        every(lambda arguments: {k: clamped(v) for k, v in arguments.items()}),
        "a_read_takes_no_number_out_of_range",
    ),
    BrokenSurface("takes a limit with last", asking("events", one_of_two), "a_read_takes_no_limit_with_last"),
    BrokenSurface(
        "ignores types that are none",
        asking("events", known_types),
        "a_read_takes_no_type_or_status_that_is_none",
        "events_are_of_the_types_that_are_named",
    ),
    BrokenSurface(
        "ignores statuses that are none", asking("runs", known_status), "a_read_takes_no_type_or_status_that_is_none"
    ),
    BrokenSurface("drops nuls", every(without_nul), "a_read_takes_no_name_with_a_nul"),
    BrokenSurface(
        "answers the newest first",
        answering("events", reversed_answer),
        "events_are_of_the_types_that_are_named",
        "events_are_the_first_or_the_last_so_many",
        "events_are_the_log",
        "events_are_those_between_two_places",
        "reads_find_nothing_of_others",
    ),
    BrokenSurface("answers no cause", answering("events", each(having(causation=None))), "events_are_the_log"),
    BrokenSurface("answers sorted keys", answering("events", sorted_keys), "events_are_read_as_they_are"),
    BrokenSurface("answers floats", answering("events", small), "events_are_read_as_they_are"),
    BrokenSurface(
        "answers runs oldest first",
        answering("runs", reversed_answer),
        "runs_are_answered_newest_first",
        "runs_are_those_that_are_asked_for",
    ),
    BrokenSurface(
        "answers runs without output",
        answering("runs", each(without("output"))),
        "runs_are_answered_newest_first",
        "runs_are_those_that_are_asked_for",
    ),
    BrokenSurface(
        "ignores the rule of runs",
        asking("runs", without("rule")),
        "a_read_takes_no_name_with_a_nul",
        "every_read_is_asked_about",
        "runs_are_those_that_are_asked_for",
    ),
    BrokenSurface(
        "ignores the scope of runs",
        asking("runs", without("scope_key")),
        "a_read_takes_no_name_with_a_nul",
        "runs_are_those_that_are_asked_for",
    ),
    BrokenSurface(
        "ignores the status of runs",
        asking("runs", without("status")),
        "a_read_takes_no_type_or_status_that_is_none",
        "runs_are_those_that_are_asked_for",
        "a_paused_run_tells_what_it_asks",
    ),
    BrokenSurface(
        "limits runs before it filters",
        LimitsRunsBeforeItFilters,
        "a_read_takes_no_name_with_a_nul",
        "every_read_is_asked_about",
        "runs_are_those_that_are_asked_for",
    ),
    BrokenSurface(
        "keeps what it read", KeepsWhatItRead, "a_run_is_answered_as_it_is", "a_paused_run_tells_what_it_asks"
    ),
    BrokenSurface(
        "tells nothing of what a run asks", answering("run", having(waiting=None)), "a_paused_run_tells_what_it_asks"
    ),
    BrokenSurface(
        "tells nothing of what runs ask",
        answering("runs", of_each(having(waiting=None))),
        "a_paused_run_tells_what_it_asks",
    ),
    BrokenSurface(
        "has runs wait for ever", answering("run", changed("waiting", for_ever)), "a_paused_run_tells_what_it_asks"
    ),
    BrokenSurface("tells no answer of a run", answering("run", having(answer=None)), "a_paused_run_tells_what_it_asks"),
    BrokenSurface(
        "answers null for no run",
        nothing_for_not_found("run"),
        "a_run_is_answered_as_it_is",
        "what_others_have_is_not_found_as_what_nobody_has",
    ),
    BrokenSurface(
        "answers null for no rule",
        nothing_for_not_found("rule"),
        "a_rule_that_does_not_exist_is_not_found",
        "what_others_have_is_not_found_as_what_nobody_has",
    ),
    BrokenSurface(
        "answers code rules alone",
        answering("rule_statuses", lambda answer: answer[:3]),
        "rule_statuses_tell_how_each_rule_stands",
    ),
    BrokenSurface(
        "answers no lag", answering("rule_statuses", each(having(lag=0))), "rule_statuses_tell_how_each_rule_stands"
    ),
    BrokenSurface(
        "answers no provenance", answering("rule", having(provenance={})), "a_rule_is_answered_with_its_origin"
    ),
    BrokenSurface("has no archive", HasNoArchive, "a_rule_is_answered_with_its_origin"),
    BrokenSurface(
        "answers the newest version first", answering("rule_history", reversed_answer), "a_rule_history_is_its_versions"
    ),
    BrokenSurface(
        "answers dead letters newest first",
        answering("dead_letters", reversed_answer),
        "dead_letters_are_what_rules_could_not_decide",
    ),
    BrokenSurface(
        "ignores the rule of dead letters",
        asking("dead_letters", without("rule")),
        "a_read_takes_no_name_with_a_nul",
        "dead_letters_are_what_rules_could_not_decide",
        "every_read_is_asked_about",
    ),
    BrokenSurface(
        "answers no last tick",
        answering("schedule_statuses", each(having(last_tick=None))),
        "schedule_statuses_tell_how_each_schedule_stands",
        "schedules_tick_where_they_are_told_to",
    ),
    BrokenSurface(
        "begins what it reads",
        BeginsWhatItReads,
        "a_workspace_that_is_new_can_be_read",
        "rule_statuses_tell_how_each_rule_stands",
    ),
    BrokenSurface(
        "has no new workspaces",
        HasNoNewWorkspaces,
        "a_workspace_that_is_new_can_be_read",
        "reads_find_nothing_of_others",
    ),
    BrokenSurface("lists stored rules too", ListsStoredRulesToo, "rules_are_the_code_rules"),
    BrokenSurface(
        "lists schedules without zones",
        answering("schedules", each(having(timezone="UTC"))),
        "schedules_are_those_that_tick_in_the_tenant",
    ),
)
