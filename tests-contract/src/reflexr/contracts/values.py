"""What a storage promises of values: what is read is what was written, to the last digit, key and character."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pydantic import JsonValue

from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import ALPHA, WORKSPACE, at, causation, draft, progress, rule, run, stored
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.core import (
    Actor,
    AgentActor,
    Armed,
    DeadLetter,
    EvaluatorActor,
    ExternalAgentActor,
    Needs,
    RuleProgress,
    Run,
    ScopeState,
    SourceActor,
    SystemActor,
    UserActor,
)
from reflexr.workspace import LogWindow, RunQuery, StateChanges

DEEP: Final = 90
"""How many lists a deep value nests; a payload may nest 100 deep."""


def _nested(depth: int) -> JsonValue:
    value: JsonValue = "bottom"
    for _ in range(depth):
        value = [value]
    return value


_TEXTS: Final[JsonValue] = [
    "",
    " leading and trailing ",
    "quotes ' \" ` and \\ and \\u0041",
    "line\nbreaks\r\nand\ttabs",
    "caf\u00e9 and cafe\u0301",
    "\U0001f44d\U0001f3fd \u200d\ufeff",
    "\u2028\u2029\u0085",
    "%s :name ? $1 {} ${x}",
    "\ud7ff\ue000\ufffd\uffff\U0010ffff",
    "x" * 100_000,
]
_CONTROL: Final[JsonValue] = ["a\x00b", "\x00", {"nul\x00key": "\x01\x1f\x7f"}]
_INTEGERS: Final[JsonValue] = [0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**400, -(10**400) - 1]
_FLOATS: Final[JsonValue] = [0.1, -0.0, 0.0, 1e300, 5e-324, 1.7976931348623157e308, 1 / 3, 1e22, 123456789.123456789]
_WHOLE: Final[JsonValue] = {"integer": 1, "float": 1.0, "true": True, "list": [0, 0.0, False]}
_EMPTY: Final[JsonValue] = {"object": {}, "list": [], "text": "", "null": None, "lists": [[], [[]], {}], "": "no key"}
_ORDER: Final[JsonValue] = {"z": 1, "a": 2, "m": {"b": 1, "a": 2, "2": 3, "10": 4, "1": 5}, "B": 3, "": 4}
EVERYTHING: Final[JsonValue] = {
    "texts": _TEXTS,
    "control": _CONTROL,
    "integers": _INTEGERS,
    "floats": _FLOATS,
    "whole": _WHOLE,
    "empty": _EMPTY,
    "order": _ORDER,
    "deep": _nested(DEEP),
}
"""A value with whatever is easily lost."""


def written(value: object) -> str:
    """Returns a text that tells apart whatever JSON does: the order of keys, 1 and 1.0, 0.0 and -0.0."""
    return json.dumps(value)


def _texts(runs: Sequence[Run | None]) -> list[str | None]:
    return [None if one is None else one.model_dump_json() for one in runs]


def _spoil(value: JsonValue) -> None:
    """Changes a value that others might share."""
    assert isinstance(value, dict)
    inner = value["values"]
    assert isinstance(inner, list)
    inner.append("spoilt")
    value["spoilt"] = True


class ValuesContract(StorageGuarantees):
    """What is read is what was written."""

    @guarantee()
    async def test_a_payload_keeps_its_texts(self, trial: StorageTrial) -> None:
        """Every text of Unicode comes back character for character, neither trimmed nor normalised."""
        await self._keeps(trial, _TEXTS)

    @guarantee()
    async def test_a_payload_keeps_control_characters(self, trial: StorageTrial) -> None:
        """Control characters come back, NUL among them, in values and in keys."""
        await self._keeps(trial, _CONTROL)

    @guarantee()
    async def test_a_payload_keeps_integers_of_any_size(self, trial: StorageTrial) -> None:
        """Integers come back exactly, beyond 64 bits too."""
        await self._keeps(trial, _INTEGERS)

    @guarantee()
    async def test_a_payload_keeps_floats(self, trial: StorageTrial) -> None:
        """Floats come back exactly, the smallest, the largest and negative zero too."""
        await self._keeps(trial, _FLOATS)

    @guarantee()
    async def test_a_payload_keeps_one_apart_from_one_point_zero(self, trial: StorageTrial) -> None:
        """`1`, `1.0` and `true` come back as what they were."""
        await self._keeps(trial, _WHOLE)

    @guarantee()
    async def test_a_payload_keeps_what_is_empty(self, trial: StorageTrial) -> None:
        """Empty objects, lists, texts and keys come back, and a null is not a missing key."""
        await self._keeps(trial, _EMPTY)

    @guarantee()
    async def test_a_payload_keeps_the_order_of_its_keys(self, trial: StorageTrial) -> None:
        """An object's keys come back in the order in which they were written."""
        await self._keeps(trial, _ORDER)

    @guarantee()
    async def test_a_payload_keeps_its_depth(self, trial: StorageTrial) -> None:
        """A value that nests 90 deep comes back."""
        await self._keeps(trial, _nested(DEEP))

    @guarantee()
    async def test_an_envelope_keeps_who_published_it_and_why(self, trial: StorageTrial) -> None:
        """Every kind of actor, the cause, the causal chain and the trace context come back."""
        actors: list[Actor] = [
            UserActor(id="u", name="\u00c9l\u00e9onore"),
            AgentActor(rule=ALPHA, run_id="r", name="agent"),
            ExternalAgentActor(client_id="c", on_behalf_of="u"),
            SystemActor(name="system"),
            SourceActor(name="source"),
            EvaluatorActor(name="judge", version="1"),
        ]
        sent = [draft(f"e{number}")._replace(actor=actor) for number, actor in enumerate(actors)]
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        sent.append(
            draft("caused")._replace(causation=causation(), correlation_id="chain \u00e9 ' %", traceparent=trace)
        )
        await trial.append(*sent)
        read = await trial.storage.read(WORKSPACE, LogWindow())
        fields = ("id", "actor", "causation", "correlation_id", "traceparent")
        assert [[getattr(one, name) for name in fields] for one in read] == [
            [getattr(one, name) for name in fields] for one in sent
        ]

    @guarantee()
    async def test_ids_of_any_length_come_back(self, trial: StorageTrial) -> None:
        """Ids of 255 characters come back, also if each takes four bytes."""
        long = "\U0001f44d" * 255
        (appended,) = await trial.append(draft(long))
        assert await trial.storage.find(WORKSPACE, [long]) == {long: appended}

    @guarantee()
    async def test_a_run_comes_back_as_it_was_saved(self, trial: StorageTrial) -> None:
        """Every field of a run comes back: its JSON as exactly as a payload, its times to the microsecond."""
        exact = at(1.234567)
        saved = run("r1", status="running", scope=_WHOLE, output=EVERYTHING).model_copy(
            update={
                "attempt": 3,
                "requeues": 2,
                "spent": 1,
                "matched": (1, 2, 2**62),
                "fired_at": exact,
                "next_attempt_at": exact + timedelta(microseconds=1),
                "started_at": exact,
                "finished_at": exact,
                "error": "caf\u00e9 ' %s\nboom",
                "reason": "reason \U0001f44d",
                "checkpoint": EVERYTHING,
                "checkpoints": 7,
                "step": "step \u00e9",
                "trace_ids": ("a", "b"),
            }
        )
        await trial.save(saved)
        assert _texts([await trial.storage.run(WORKSPACE, "r1")]) == _texts([saved])
        assert _texts(await trial.storage.runs(WORKSPACE, RunQuery())) == _texts([saved])
        async with trial.transaction() as transaction:
            assert _texts([(await transaction.runs(["r1"]))["r1"]]) == _texts([saved])

    @guarantee()
    async def test_a_scope_state_comes_back_as_it_was_saved(self, trial: StorageTrial) -> None:
        """Every part of a scope state comes back, in order, times to the microsecond."""
        exact = at(0.000001)
        full = ScopeState(
            marks=((1, exact), (2**62, at(2))),
            armed=Armed(seq=3, correlation_id="chain \u00e9", depth=2, due=at(9.999999)),
            seen={"[2]": at(1), "[1]": exact, "": at(3)},
            fired=(exact, at(4)),
            expires=at(5.5),
        )
        states = {"[1]": full, "[2]": ScopeState(), "[3]": full._replace(armed=None)}
        async with trial.transaction() as transaction:
            await transaction.change_states({ALPHA: StateChanges(saved=states)})
        async with trial.transaction() as transaction:
            read = (await transaction.states({ALPHA: Needs(frozenset(states), None, ())}))[ALPHA]
        assert read == states
        assert list(read["[1]"].seen) == list(full.seen)

    @guarantee()
    async def test_progress_comes_back_as_it_was_saved(self, trial: StorageTrial) -> None:
        """Every field of a rule's progress comes back, up to the last place that a log can have."""
        saved = RuleProgress(ALPHA, 2**31 - 1, 2**63 - 1, "d" * 64, 2**62)
        async with trial.transaction() as transaction:
            await transaction.save_progress([saved])
        assert await trial.storage.progress(WORKSPACE) == {ALPHA: saved}

    @guarantee()
    async def test_a_stored_rule_comes_back_as_it_was_saved(self, trial: StorageTrial) -> None:
        """A stored rule comes back with its params and its provenance as exactly as a payload."""
        saved = stored(rule(ALPHA, params={"values": EVERYTHING}), provenance={"values": EVERYTHING, "b": 1, "a": 2})
        async with trial.transaction() as transaction:
            await transaction.save_stored_rules([saved])
        read = await trial.storage.stored_rules(WORKSPACE)
        assert read[ALPHA].model_dump_json() == saved.model_dump_json()

    @guarantee()
    async def test_a_dead_letter_comes_back_as_it_was_saved(self, trial: StorageTrial) -> None:
        """A dead letter comes back with its scope and its error character for character."""
        saved = DeadLetter(
            rule=ALPHA,
            generation=2,
            seq=3,
            scope_key='["\\u00e9"]',
            ts=at(0.000001),
            kind="depth_exceeded",
            error="caf\u00e9 ' %s \U0001f44d\n" + "x" * 10_000,
        )
        async with trial.transaction() as transaction:
            await transaction.add_dead_letters([saved])
        assert await trial.storage.dead_letters(WORKSPACE) == [saved]

    @guarantee()
    async def test_a_text_that_a_log_holds_no_event_for_is_read(self, trial: StorageTrial) -> None:
        """An envelope is read without its event's class, so a type that no class accepts is readable."""
        await trial.append(draft("e1", "nobody:knows.this", anything=[1, None]))
        (envelope,) = await trial.storage.read(WORKSPACE, LogWindow())
        assert envelope.payload == {"type": "nobody:knows.this", "anything": [1, None]}

    # --- No aliasing

    @guarantee()
    async def test_what_was_given_is_not_shared(self, trial: StorageTrial) -> None:
        """Changing a draft's payload or a run's output after it was handed over changes nothing in the storage."""
        sent, saved = draft("e1", values=[1]), run("r1", output={"values": [1]})
        async with trial.transaction() as transaction:
            await transaction.append([sent])
            await transaction.save_runs([saved])
            _spoil(sent.payload)
            _spoil(saved.output)
        _spoil(sent.payload)
        _spoil(saved.output)
        await self._is_unspoilt(trial)

    @guarantee()
    async def test_what_is_returned_is_not_shared(self, trial: StorageTrial) -> None:
        """Changing what an append or a read returned changes nothing in the storage."""
        async with trial.transaction() as transaction:
            (appended,) = await transaction.append([draft("e1", values=[1])])
            await transaction.save_runs([run("r1", output={"values": [1]})])
            _spoil(appended.payload)
        async with trial.transaction() as transaction:
            _spoil((await transaction.read(LogWindow()))[0].payload)
            _spoil((await transaction.runs(["r1"]))["r1"].output)
        _spoil((await trial.storage.read(WORKSPACE, LogWindow()))[0].payload)
        _spoil((await trial.storage.find(WORKSPACE, ["e1"]))["e1"].payload)
        _spoil((await trial.storage.runs(WORKSPACE, RunQuery()))[0].output)
        await self._is_unspoilt(trial)

    @guarantee()
    async def test_a_returned_mapping_is_not_shared(self, trial: StorageTrial) -> None:
        """Emptying a mapping that the storage returned changes nothing in the storage."""
        async with trial.transaction() as transaction:
            await transaction.save_progress([progress(ALPHA)])
            await transaction.save_schedule_ticks({"daily": at(1)})
            (await transaction.progress()).clear()
            (await transaction.schedule_ticks()).clear()
        (await trial.storage.progress(WORKSPACE)).clear()
        (await trial.storage.schedule_ticks(WORKSPACE)).clear()
        assert await trial.storage.progress(WORKSPACE) == {ALPHA: progress(ALPHA)}
        assert await trial.storage.schedule_ticks(WORKSPACE) == {"daily": at(1)}

    async def _keeps(self, trial: StorageTrial, value: JsonValue) -> None:
        sent = {"type": ALPHA, "value": value}
        async with trial.transaction() as transaction:
            (appended,) = await transaction.append([draft("e1", value=value)])
            assert written(appended.payload) == written(sent)
        (read,) = await trial.storage.read(WORKSPACE, LogWindow())
        assert written(read.payload) == written(sent)
        assert written((await trial.storage.find(WORKSPACE, ["e1"]))["e1"].payload) == written(sent)

    async def _is_unspoilt(self, trial: StorageTrial) -> None:
        (envelope,) = await trial.storage.read(WORKSPACE, LogWindow())
        assert envelope.payload == {"type": ALPHA, "values": [1]}
        (saved,) = await trial.storage.runs(WORKSPACE, RunQuery())
        assert saved.output == {"values": [1]}
