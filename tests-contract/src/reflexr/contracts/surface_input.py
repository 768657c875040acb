"""What a surface promises of bad input: it is `validation_failed`, every problem is told, and nothing has changed."""

import math
from collections.abc import Iterable
from typing import Any, Final

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.surface_application import ORDERS, STORED, stored_rule
from reflexr.contracts.surface_commands import ORDER
from reflexr.contracts.surface_refusals import INSTALL, judge, publish, publish_many
from reflexr.contracts.surface_trials import JsonObject, SurfaceGuarantees, SurfaceTrial

LARGEST: Final = 2**63 - 1

_RETRY: Final[JsonObject] = {"type": "retry_run", "run_id": "r1"}
_REPLAY: Final[JsonObject] = {"type": "replay_rule", "rule": ORDERS, "from_seq": 1, "mode": "refire"}
_RESUME: Final[JsonObject] = {"type": "resume_run", "run_id": "r1"}
_ARCHIVE: Final[JsonObject] = {"type": "archive_rule", "rule": STORED}
_RUN: Final[JsonObject] = {"kind": "run", "run_id": "r1"}

_DEEP: Final = 101
"""How many objects deep is too deep for whatever a command carries."""


def nested(depth: int) -> JsonObject:
    """Returns an object of so many objects, one in the other."""
    value: JsonObject = {}
    for _ in range(depth - 1):
        value = {"in": value}
    return value


def named(bad: str) -> Iterable[JsonObject]:
    """Yields commands each of which has something bad where it names something."""
    yield {**ORDER, "id": bad}
    yield {**ORDER, "correlation_id": bad}
    yield {"type": "publish_many", "events": [{"event": ORDER["event"], "id": bad}]}
    yield {"type": "publish_many", "events": [{"event": ORDER["event"]}], "correlation_id": bad}
    for command in ("retry_run", "skip_run", "cancel_run", "resume_run"):
        yield {"type": command, "run_id": bad}
    yield judge(_RUN, feedback_type=bad)
    yield judge({"kind": "run", "run_id": bad})
    yield judge({"kind": "firing", "firing_id": bad})
    yield judge({"kind": "chain", "correlation_id": bad})
    yield {**_REPLAY, "rule": bad}
    yield {**_ARCHIVE, "rule": bad}
    for kind in ("install_rule", "update_rule"):
        yield {"type": kind, "rule": stored_rule(bad)}


class InputContract(SurfaceGuarantees):
    """What no command or read can be."""

    @guarantee()
    async def test_no_name_holds_a_nul(self, trial: SurfaceTrial) -> None:
        """Ids and names with a NUL are refused, also that of the command itself."""
        for command in named("a\0b"):
            await refuse(trial, command)
        assert (await trial.refused(ORDER, command_id="a\0b"))["type"] == "validation_failed"

    @guarantee()
    async def test_no_text_holds_half_a_character(self, trial: SurfaceTrial) -> None:
        """Lone surrogates are refused: in ids, names, events, values, answers, reasons and provenance."""
        for command in named("a\ud800"):
            await refuse(trial, command)
        for command in (
            publish(shop="\udfff"),
            publish(details={"\ud800": 1}),
            publish(type="contract_shop:\ud800"),
            judge(_RUN, value={"correct": True, "note": "\ud800"}),
            {"type": "skip_run", "run_id": "r1", "reason": "\ud800"},
            {**_RESUME, "answer": "\ud800"},
            {**_RESUME, "answer": [{"\ud800": 1}]},
            {**_ARCHIVE, "reason": "\ud800"},
            {**INSTALL, "provenance": {"why": "\ud800"}},
        ):
            await refuse(trial, command)
        assert (await trial.refused(ORDER, command_id="\ud800"))["type"] == "validation_failed"

    @guarantee()
    async def test_an_id_has_1_to_255_characters(self, trial: SurfaceTrial) -> None:
        """Ids and names that are empty or of 256 characters are refused, and ids of 255 taken, also a command's."""
        for bad in ("", "x" * 256):
            for command in named(bad):
                await refuse(trial, command)
            assert (await trial.refused(ORDER, command_id=bad))["type"] == "validation_failed"
        for long in ("x" * 255, "\U0001f44d" * 255):
            outcome = await trial.done({**ORDER, "id": long}, command_id=long)
            assert outcome["id"] == long
        rejection = await trial.refused({"type": "retry_run", "run_id": "x" * 255})
        assert rejection["type"] == "not_found"

    @guarantee()
    async def test_no_number_is_not_a_number(self, trial: SurfaceTrial) -> None:
        """NaN and the infinities, which are no JSON, are refused wherever a command carries values."""
        for number in (math.nan, math.inf, -math.inf):
            for command in (
                publish(details={"n": number}),
                publish(details={"n": [{"in": number}]}),
                publish(amount=number),
                judge(_RUN, value={"correct": True, "note": number}),
                {**_RESUME, "answer": number},
                {**_RESUME, "answer": {"n": [number]}},
                {**_RESUME, "attempt": number},
                {**INSTALL, "provenance": {"n": number}},
                {**_REPLAY, "from_seq": number},
            ):
                await refuse(trial, command)

    @guarantee()
    async def test_no_value_nests_too_deep(self, trial: SurfaceTrial) -> None:
        """Values that nest deeper than a log can hold are refused, and the others taken."""
        for depth in (_DEEP, 5 * _DEEP):
            for command in (
                publish(details=nested(depth)),
                publish_many(ORDER["event"], {**ORDER["event"], "details": nested(depth)}),
                judge(_RUN, value={"correct": True, "note": nested(depth)}),
                {**_RESUME, "answer": nested(depth)},
                {**INSTALL, "provenance": nested(depth)},
            ):
                await refuse(trial, command)
        await trial.done(publish(details=nested(_DEEP - 11)))

    @guarantee()
    async def test_no_field_is_unknown(self, trial: SurfaceTrial) -> None:
        """Fields that a command, its target or its rule does not have are refused, and named."""
        commands: list[JsonObject] = [
            {**ORDER, "unknown": 1},
            {"type": "publish_many", "events": [], "unknown": 1},
            {"type": "publish_many", "events": [{"event": ORDER["event"], "unknown": 1}]},
            judge({**_RUN, "unknown": 1}),
            {**judge(_RUN), "unknown": 1},
            {**_RETRY, "unknown": 1},
            {"type": "skip_run", "run_id": "r1", "unknown": None},
            {"type": "cancel_run", "run_id": "r1", "unknown": {}},
            {**_RESUME, "unknown": "yes"},
            {**_REPLAY, "unknown": ""},
            {**INSTALL, "unknown": 1},
            {"type": "install_rule", "rule": stored_rule(unknown=1)},
            {"type": "update_rule", "rule": stored_rule(), "unknown": 1},
            {**_ARCHIVE, "unknown": 1},
        ]
        for command in commands:
            rejection = await refuse(trial, command)
            assert any("unknown" in error for error in rejection["errors"]), command

    @guarantee()
    async def test_everything_is_of_its_type(self, trial: SurfaceTrial) -> None:
        """What is no command, lacks a field or has something of another type in one is refused."""
        commands: list[JsonObject] = [
            {},
            {"type": "unheard_of"},
            {"type": None},
            {"type": "publish"},
            {"type": "publish", "event": []},
            {"type": "publish", "event": "contract_shop:ordered"},
            {"type": "publish", "event": {}},
            {"type": "publish", "event": {"type": 1}},
            {**ORDER, "id": 1},
            {**ORDER, "correlation_id": ["e1"]},
            {"type": "publish_many"},
            {"type": "publish_many", "events": ORDER["event"]},
            {"type": "publish_many", "events": [ORDER["event"]]},
            {"type": "publish_many", "events": [{"event": ORDER["event"]}, None]},
            judge({"kind": "unheard_of", "run_id": "r1"}),
            judge({"kind": "run"}),
            {**judge(_RUN), "target": "r1"},
            {**judge(_RUN), "value": True},
            {"type": "retry_run"},
            {"type": "retry_run", "run_id": 7},
            {"type": "retry_run", "run_id": None},
            {"type": "skip_run", "run_id": "r1", "reason": 1},
            {"type": "cancel_run", "run_id": "r1", "reason": ["late"]},
            {"type": "resume_run"},
            {"type": "resume_run", "answer": "yes"},
            {**_RESUME, "run_id": ["r1"]},
            {**_RESUME, "attempt": "1"},
            {**_RESUME, "attempt": True},
            {**_RESUME, "attempt": 1.5},
            {**_REPLAY, "from_seq": "1"},
            {**_REPLAY, "from_seq": True},
            {**_REPLAY, "from_seq": None},
            {**_REPLAY, "from_seq": 1.5},
            {**_REPLAY, "mode": "backwards"},
            {"type": "replay_rule", "rule": ORDERS, "from_seq": 1},
            {"type": "install_rule"},
            {"type": "install_rule", "rule": STORED},
            {"type": "install_rule", "rule": {"name": STORED}},
            {**INSTALL, "provenance": []},
            {"type": "update_rule", "rule": stored_rule(), "expected_version": "1"},
            {**_ARCHIVE, "rule": stored_rule()},
            {**_ARCHIVE, "rule": "no_namespace"},
        ]
        for command in commands:
            await refuse(trial, command)

    @guarantee()
    async def test_every_number_is_in_its_range(self, trial: SurfaceTrial) -> None:
        """Places, versions and attempts that are negative, or 2^63 and more, are refused."""
        await trial.publish()
        for number in (-1, LARGEST + 1, 2**64, 10**400):
            await refuse(trial, {**_REPLAY, "from_seq": number})
            await refuse(trial, {"type": "update_rule", "rule": stored_rule(), "expected_version": number})
            await refuse(trial, {**_ARCHIVE, "expected_version": number})
            await refuse(trial, {**_RESUME, "attempt": number})
        await refuse(trial, {**_ARCHIVE, "expected_version": 0})
        await refuse(trial, {**_RESUME, "attempt": 0})

    @guarantee()
    async def test_what_could_not_be_read_is_forgotten(self, trial: SurfaceTrial) -> None:
        """A command's id whose command could not be read is free: what is sent under it then is carried out."""
        await trial.refused({**ORDER, "unknown": 1}, command_id="c1")
        await trial.refused({"type": "unheard_of"}, command_id="c1")
        await trial.done(ORDER, command_id="c1")
        assert len(await trial.log()) == 1

    @guarantee(Feature.READS)
    async def test_a_read_takes_no_number_out_of_range(self, trial: SurfaceTrial) -> None:
        """A read with a number that is negative, 2^63 or more, or no number is refused, and 2^63-1 is taken."""
        await trial.publish()
        reads = [("events", name) for name in ("after_seq", "before_seq", "limit", "last")] + [("runs", "limit")]
        for read, argument in reads:
            for bad in (-1, LARGEST + 1, 10**400, "many"):
                await refuse_read(trial, read, **{argument: bad})
        for argument in ("before_seq", "limit", "last"):
            assert len(await trial.surface().read("events", **{argument: LARGEST})) == 1
        assert await trial.surface().read("events", after_seq=LARGEST) == []

    @guarantee(Feature.READS)
    async def test_a_read_takes_no_limit_with_last(self, trial: SurfaceTrial) -> None:
        """A read of the first so many and of the last so many at once is refused."""
        await refuse_read(trial, "events", limit=1, last=1)

    @guarantee(Feature.READS)
    async def test_a_read_takes_no_type_or_status_that_is_none(self, trial: SurfaceTrial) -> None:
        """A read of an event type without a namespace, or of a status that no run has, is refused."""
        for bad in (["ordered"], ["contract_shop:ordered", "Contract:Ordered"], [""]):
            await refuse_read(trial, "events", types=bad)
        for bad in ("unheard_of", ""):
            await refuse_read(trial, "runs", status=bad)

    @guarantee(Feature.READS)
    async def test_a_read_takes_no_name_with_a_nul(self, trial: SurfaceTrial) -> None:
        """A read of what is named with a NUL is refused."""
        await refuse_read(trial, "run", run_id="a\0b")
        await refuse_read(trial, "runs", rule="a\0b")
        await refuse_read(trial, "runs", scope_key="a\0b")
        await refuse_read(trial, "dead_letters", rule="a\0b")
        for read in ("rule", "rule_history"):
            await refuse_read(trial, read, rule="a\0b")


async def refuse(trial: SurfaceTrial, command: JsonObject) -> JsonObject:
    """Sends what is no command, and returns why it was refused."""
    rejection = await trial.refused(command)
    assert rejection["type"] == "validation_failed", command
    return rejection


async def refuse_read(trial: SurfaceTrial, read: str, **arguments: Any) -> None:
    """Reads what cannot be read."""
    rejection = await trial.no_read(read, **arguments)
    assert rejection["type"] == "validation_failed", (read, arguments)
