import re
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from reflexr.core import ChainTarget, NotFound, Publish, SkipRun
from reflexr.telemetry import METRICS, Counter, Histogram, Instruments
from reflexr.telemetry import attributes as names
from reflexr.workspace import InMemoryStorage, Workspace

from .hesitation import HesitantStorage
from .plant import ADA, Alarm, Verdict, opened, workspaces

HERE = {"reflexr.tenant.id": "acme", "reflexr.workspace.id": "prod"}


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> MeterProvider:
    return MeterProvider(metric_readers=[reader])


def measured(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """Each metric's points: their attributes, and the sum of a counter or the count of a histogram."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: [
            (dict(point.attributes or {}), getattr(point, "value", None) or getattr(point, "count", None))
            for point in metric.data.data_points
        ]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def test_published_events_and_duplicates_are_counted_by_type(
    reader: InMemoryMetricReader, provider: MeterProvider
) -> None:
    workspace = await opened(meter_provider=provider)

    await workspace.publish(Alarm(machine="press"), id="a")
    await workspace.publish(Alarm(machine="press"), id="a")
    with pytest.raises(NotFound):
        await workspace.publish({"type": "plant:unheard"})

    by_type = HERE | {"reflexr.event.type": "plant:alarm"}
    assert measured(reader) == {
        "reflexr.events": [(by_type, 1)],
        "reflexr.events.duplicate": [(by_type, 1)],
        "reflexr.publish.duration": [(HERE, 2)],
    }


async def test_feedback_is_counted_by_type(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    workspace = await opened(meter_provider=provider)
    await workspace.publish(Alarm(machine="press"), id="a")

    await workspace.give_feedback(Verdict(correct=True), on=ChainTarget(correlation_id="a"))

    assert measured(reader)["reflexr.feedback"] == [(HERE | {"reflexr.feedback.type": "plant_verdict"}, 1)]


async def test_commands_are_counted_by_outcome(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    host = workspaces(HesitantStorage(), meter_provider=provider)
    workspace = await host.open("acme", "prod", actor=ADA)

    await host.execute(workspace, Publish(event={"type": "plant:alarm", "machine": "press"}))
    await host.execute(workspace, SkipRun(run_id="r9"))

    assert measured(reader)["reflexr.commands"] == [
        (HERE | {"reflexr.command": "publish", "reflexr.outcome": "ok"}, 1),
        (HERE | {"reflexr.command": "skip_run", "reflexr.outcome": "not_found"}, 1),
    ]


def test_every_metric_has_an_instrument_a_unit_a_sentence_and_a_tenant(
    reader: InMemoryMetricReader, provider: MeterProvider
) -> None:
    instruments = Instruments(provider)
    known = {value for value in vars(names).values() if isinstance(value, str)}

    for name, metric in METRICS.items():
        assert name == metric.name
        assert name.startswith("reflexr.")
        assert re.fullmatch(r"s|\{[a-z]+\}", metric.unit)
        assert metric.description.endswith(".")
        assert metric.attributes[:2] == ("reflexr.tenant.id", "reflexr.workspace.id")
        assert known.issuperset(metric.attributes)
        attribute = name.removeprefix("reflexr.").replace("events.duplicate", "duplicates").replace(".", "_")
        instrument = getattr(instruments, attribute)
        record = instrument.add if metric.instrument == "counter" else instrument.record
        record(1, dict.fromkeys(metric.attributes, "x"))

    assert measured(reader).keys() == METRICS.keys()


def test_nothing_is_measured_without_an_sdk() -> None:
    assert not Instruments().active
    assert Instruments(MeterProvider()).active


async def test_a_publish_that_nobody_traces_or_measures_starts_and_records_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("telemetry was worked out for nobody")

    monkeypatch.setattr(trace.ProxyTracer, "start_span", never)
    monkeypatch.setattr(trace.ProxyTracer, "start_as_current_span", never)
    monkeypatch.setattr(Counter, "add", never)
    monkeypatch.setattr(Histogram, "record", never)
    monkeypatch.setattr(Workspace, "_attributes", never)
    workspace = await opened(InMemoryStorage())

    assert (await workspace.publish(Alarm(machine="press"))).seq == 1
