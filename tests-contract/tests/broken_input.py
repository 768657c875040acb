"""Surfaces that break one promise each of bad input."""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, override

from reflexr.contracts import JsonObject, SurfaceRejected

from .broken_surfaces import BrokenSurface, everywhere_in, fields, numbers, sending, texts, without
from .in_process_surface import InProcessSurface

LARGEST: Final = 2**63 - 1


def mending_ids(change: Callable[[str], str], *, everything: bool = True) -> type[InProcessSurface]:
    """A surface that makes something of every text and of the command's id."""

    class Mending(InProcessSurface):
        @override
        async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
            mended: JsonObject = everywhere_in(texts(change))(command) if everything else command
            return await super().execute(mended, command_id=change(command_id))

    return Mending


def shallow(value: Any) -> Any:
    return {} if json.dumps(value).count("{") > 50 else value


def lax(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


class RemembersWhatCouldNotBeRead(InProcessSurface):
    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        memory: dict[str, SurfaceRejected] = vars(self.application).setdefault("memory", {})
        if command_id in memory:
            raise memory[command_id]
        try:
            return await super().execute(command, command_id=command_id)
        except SurfaceRejected as rejected:
            memory[command_id] = rejected
            raise


class PublishesAsItReads(InProcessSurface):
    """Begins a list of events before it has read all of it."""

    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        if command.get("type") == "publish_many" and isinstance(command.get("events"), list):
            for number, item in enumerate(command["events"][:-1]):
                with suppress(SurfaceRejected):
                    await super().execute({"type": "publish", **item}, command_id=f"{command_id}.{number}")
        return await super().execute(command, command_id=command_id)


BROKEN_INPUT = (
    BrokenSurface(
        "cuts off what comes after a nul",
        mending_ids(lambda text: text.partition("\0")[0] or text),
        "no_name_holds_a_nul",
        "publish_changes_no_value",
        "a_paused_run_tells_what_it_asks",
        "resume_run_answers_a_paused_run",
    ),
    BrokenSurface(
        "takes a nul in ids of commands",
        mending_ids(lambda text: text.replace("\0", ""), everything=False),
        "no_name_holds_a_nul",
    ),
    BrokenSurface(
        "replaces surrogates",
        mending_ids(lambda text: text.encode(errors="replace").decode()),
        "no_text_holds_half_a_character",
    ),
    BrokenSurface(
        "cuts ids",
        mending_ids(lambda text: text[:255]),
        "an_id_has_1_to_255_characters",
        "what_is_not_as_it_has_to_be_is_validation_failed",
    ),
    BrokenSurface(
        "takes fewer characters",
        mending_ids(lambda text: text[:100], everything=False),
        "an_id_has_1_to_255_characters",
    ),
    BrokenSurface(
        "makes null of nan",
        sending(everywhere_in(numbers(lambda n: n if math.isfinite(n) else None))),
        "every_number_is_in_its_range",
        "no_number_is_not_a_number",
    ),
    BrokenSurface("cuts off what is deep", sending(everywhere_in(shallow)), "no_value_nests_too_deep"),
    BrokenSurface(
        "ignores unknown fields",
        sending(everywhere_in(fields(without("unknown")))),
        "no_field_is_unknown",
        "what_could_not_be_read_is_forgotten",
        "what_is_not_as_it_has_to_be_is_validation_failed",
    ),
    BrokenSurface("reads texts as numbers", sending(everywhere_in(lax)), "everything_is_of_its_type"),
    BrokenSurface(
        "clamps numbers",
        sending(everywhere_in(numbers(lambda n: min(max(n, 1), LARGEST))), "replay_rule"),
        "every_number_is_in_its_range",
        "no_number_is_not_a_number",
        "what_is_not_as_it_has_to_be_is_validation_failed",
    ),
    BrokenSurface(
        "remembers what could not be read", RemembersWhatCouldNotBeRead, "what_could_not_be_read_is_forgotten"
    ),
    BrokenSurface(
        "publishes as it reads",
        PublishesAsItReads,
        "everything_is_of_its_type",
        "no_value_nests_too_deep",
        "publish_many_appends_events_together",
        "what_does_not_exist_is_not_found",
        "what_is_not_as_it_has_to_be_is_validation_failed",
        "what_nobody_may_is_forbidden",
    ),
)
