import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter, ValidationError

from reflexr.core import (
    DEFAULT_REGISTRY,
    Causation,
    Draft,
    Envelope,
    EventRegistry,
    InvalidEventError,
    SystemActor,
    UnknownEvent,
    UtcDatetime,
)

from .json_values import json_values, texts
from .shop import COPIES, OrderPaid, ShopEvent, envelope

TIME: TypeAdapter[datetime] = TypeAdapter(UtcDatetime)
ZONES = [UTC, timezone(timedelta(hours=5.5)), timezone(-timedelta(hours=8))]
CAUSATION = Causation(firing_id="f", run_id="r", depth=1)
PAID: dict[str, Any] = {"type": "shop:order.paid", "order": "o1", "amount": 3}


@given(st.dictionaries(texts, json_values, max_size=3))
def test_an_envelope_comes_back_from_json_as_it_was_with_its_keys_in_their_order(event: dict[str, JsonValue]) -> None:
    stored = envelope({**event, "type": "newer:event"}, causation={"firing_id": "f", "run_id": "r", "depth": 2})
    text = stored.to_json()
    read = Envelope.model_validate_json(text)

    assert read == stored
    assert read.to_json() == text
    assert repr(read.payload) == repr({**event, "type": "newer:event"})


def test_an_envelope_is_its_wire_shape() -> None:
    stored = envelope(PAID)

    assert json.loads(stored.to_json()) == {
        "seq": 1,
        "id": "evt_1",
        "ts": "2026-01-01T00:00:00Z",
        "workspace_id": "w",
        "actor": {"kind": "system", "name": "test"},
        "causation": None,
        "correlation_id": "evt_1",
        "traceparent": None,
        "event": PAID,
    }


def test_an_envelope_is_read_without_its_events_class() -> None:
    stored = envelope({"type": "shop:order.paid", "amount": "all of it"})

    assert stored.event_type == "shop:order.paid"
    with pytest.raises(InvalidEventError, match="order: Field required"):
        _ = stored.event


def test_the_typed_event_is_built_once() -> None:
    stored = envelope(PAID)

    assert stored.event == OrderPaid(order="o1", amount=3)
    assert stored.event is stored.event


def test_an_envelope_is_of_the_classes_of_its_registry() -> None:
    stored = envelope(PAID)
    unknown = stored.bind(EventRegistry())

    assert isinstance(unknown.event, UnknownEvent)
    assert unknown.event.payload() == PAID
    assert isinstance(stored.event, OrderPaid)
    assert isinstance(unknown.bind(EventRegistry(ShopEvent)).event, OrderPaid)
    assert unknown == stored


def test_an_envelope_that_is_of_a_registry_already_is_given_back_as_it_is() -> None:
    stored = envelope(PAID)
    bound = stored.bind(EventRegistry())

    assert stored.bind(DEFAULT_REGISTRY) is stored
    assert bound.bind(bound.registry) is bound


@pytest.mark.parametrize("of", COPIES)
def test_a_copy_of_an_envelope_is_equal_and_has_the_same_event(of: Any) -> None:
    fresh, used, bound = envelope(PAID), envelope(PAID), envelope(PAID).bind(EventRegistry(ShopEvent))

    for stored in (fresh, used, bound):
        assert stored.event == OrderPaid(order="o1", amount=3)
        assert of(stored) == stored
        assert of(stored).event == stored.event


def test_a_copy_with_another_payload_has_another_event() -> None:
    stored = envelope(PAID)

    assert stored.event == OrderPaid(order="o1", amount=3)
    assert stored.model_copy(update={"payload": {**PAID, "amount": 4}}).event == OrderPaid(order="o1", amount=4)


def test_an_event_from_outside_begins_a_chain_and_one_of_a_run_is_deeper() -> None:
    assert envelope(PAID).depth == 0
    assert envelope(PAID, causation={"firing_id": "f", "run_id": "r", "depth": 3}).depth == 3


def test_what_a_newer_server_adds_to_an_envelope_is_ignored() -> None:
    assert envelope(PAID, later=1) == envelope(PAID)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        *(({"seq": seq}, "seq\n.*(greater|less) than or equal") for seq in (0, -1, 2**63)),
        *(({"seq": seq}, "seq\n.*valid integer") for seq in (None, 1.5, "x")),
        *(({"id": value}, "id\n.*1 to 255 characters") for value in ("", "a" * 256, "a\0", "\ud800", None)),
        ({"workspace_id": ""}, "workspace_id\n.*1 to 255"),
        ({"correlation_id": ""}, "correlation_id\n.*1 to 255"),
        ({"causation": {"firing_id": "f", "run_id": "r", "depth": 0}}, r"causation\.depth\n"),
        ({"causation": {"firing_id": "", "run_id": "r", "depth": 1}}, r"causation\.firing_id\n"),
        ({"actor": {"kind": "robot"}}, "actor\n"),
        ({"event": []}, "event\n.*valid dictionary"),
        ({"event": None}, "event\n.*valid dictionary"),
        ({"ts": "2026-01-01T00:00:00"}, "ts\n.*timezone"),
        ({"ts": "9999-12-31T23:59:59-05:00"}, "ts\n.*between the years 1 and 9999 in UTC"),
        ({"ts": "0001-01-01T00:00:00+05:00"}, "ts\n.*between the years 1 and 9999 in UTC"),
        *(({"ts": ts}, "ts\n") for ts in (None, "soon", float("nan"), 1e30, "\ud800")),
    ],
)
def test_what_is_no_envelope_is_refused_with_the_place(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        envelope(**{"event": PAID, **changes})


@given(st.datetimes(timezones=st.sampled_from(ZONES)))
def test_a_time_is_kept_in_utc_to_the_microsecond(time: datetime) -> None:
    try:
        expected = time.astimezone(UTC)
    except OverflowError:
        with pytest.raises(ValidationError, match="between the years 1 and 9999 in UTC"):
            TIME.validate_python(time)
        return

    kept = TIME.validate_python(time)

    assert (kept, kept.utcoffset()) == (expected, timedelta())
    assert TIME.validate_json(TIME.dump_json(kept)) == kept


def test_a_draft_is_an_envelope_but_for_its_place() -> None:
    draft = Draft(id="e", payload=PAID, actor=SystemActor(name="x"), correlation_id="e", causation=CAUSATION)

    placed = Envelope.placed(draft, seq=7, ts=datetime(2026, 1, 1, tzinfo=UTC), workspace_id="w")

    assert placed == Envelope(
        seq=7,
        id="e",
        ts=datetime(2026, 1, 1, tzinfo=UTC),
        workspace_id="w",
        actor=SystemActor(name="x"),
        correlation_id="e",
        causation=CAUSATION,
        event=PAID,
    )
    assert Envelope.model_validate_json(placed.to_json()) == placed
    assert (placed.model_fields_set, placed.model_extra) == (set(Envelope.model_fields), None)


@given(st.dictionaries(texts, json_values, max_size=3))
def test_a_drafts_text_behind_its_place_and_time_reads_as_its_envelope(event: dict[str, JsonValue]) -> None:
    draft = Draft("evt_2", {**event, "type": "newer:event"}, SystemActor(name='é"'), "evt_1", CAUSATION, "00-trace")
    time = datetime(2026, 1, 1, 0, 0, 0, 7, tzinfo=UTC)

    (text,) = Draft.texts([draft], "w")

    read = Envelope.model_validate_json('{"seq":2,"ts":"2026-01-01T00:00:00.000007Z",' + text)
    assert read == Envelope.placed(draft, seq=2, ts=time, workspace_id="w")
    assert "\n" not in text


def test_the_texts_of_drafts_of_several_origins_are_each_of_its_own() -> None:
    other = SystemActor(name="y")
    drafts = [
        Draft("1", PAID, SystemActor(name="x"), "1"),
        Draft("2\n", PAID, other, "1", CAUSATION),
        Draft("3", PAID, other, "1", CAUSATION, "00-a"),
        Draft("4", PAID, other, "1", CAUSATION, "00-b"),
        Draft("5", PAID, other, "5", None, "00-b"),
        Draft("6", PAID, other, "5", None, "00-b"),
    ]
    time = datetime(2026, 1, 1, tzinfo=UTC)

    texts = Draft.texts(drafts, 'w"')

    assert [Envelope.model_validate_json(f'{{"seq":1,"ts":"2026-01-01T00:00:00Z",{text}') for text in texts] == [
        Envelope.placed(draft, seq=1, ts=time, workspace_id='w"') for draft in drafts
    ]
