from collections.abc import Mapping
from typing import Any, override

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN, Link, NonRecordingSpan, SpanKind, StatusCode

from reflexr.core import ChainTarget, Forbidden, NotFound, ValidationFailed
from reflexr.telemetry import Tracing, in_session, span_context_of, traceparent_of, untraced
from reflexr.workspace import InMemoryStorage, Workspace

from .plant import Alarm, Verdict, a_run, cause, opened, save, stored, stored_rules

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
async def workspace(provider: TracerProvider) -> Workspace:
    return await opened(InMemoryStorage(), tracer_provider=provider, stored_rules=stored_rules())


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


WHO = {
    "reflexr.tenant.id": "acme",
    "reflexr.workspace.id": "prod",
    "reflexr.actor.kind": "user",
    "reflexr.actor.id": '["user","ada"]',
}


async def test_a_publish_is_a_producer_span_in_its_chains_session(
    workspace: Workspace, exporter: InMemorySpanExporter
) -> None:
    published = await workspace.publish(Alarm(machine="press"), id="a")

    [span] = exporter.get_finished_spans()
    assert (span.name, span.kind) == ("reflexr.publish plant:alarm", SpanKind.PRODUCER)
    assert attributes(span) == WHO | {
        "session.id": "a",
        "reflexr.event.count": 1,
        "reflexr.event.seq": 1,
        "reflexr.duplicate": False,
    }
    context = span.get_span_context()
    assert context is not None
    assert published.envelope.traceparent == traceparent_of(NonRecordingSpan(context))
    linked = span_context_of(published.envelope.traceparent)
    assert linked is not None
    assert (linked.trace_id, linked.span_id, linked.is_remote) == (context.trace_id, context.span_id, True)


async def test_events_published_together_share_one_span(workspace: Workspace, exporter: InMemorySpanExporter) -> None:
    published = await workspace.publish_many([Alarm(machine="a"), Alarm(machine="b")])

    [span] = exporter.get_finished_spans()
    assert (span.name, attributes(span)["reflexr.event.count"]) == ("reflexr.publish_many", 2)
    assert published[0].envelope.traceparent == published[1].envelope.traceparent is not None


async def test_a_type_that_nobody_may_publish_names_no_span(
    workspace: Workspace, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(NotFound):
        await workspace.publish({"type": "plant:anything_at_all"})

    [span] = exporter.get_finished_spans()
    assert span.name == "reflexr.publish"
    assert attributes(span)["error.type"] == "not_found"
    assert (span.status.status_code, span.events) == (StatusCode.ERROR, ())


async def test_every_other_write_is_a_span_too(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    storage = InMemoryStorage()
    workspace = await opened(storage, tracer_provider=provider, stored_rules=stored_rules())
    await workspace.publish(Alarm(machine="press"), id="first")
    await save(storage, a_run("r1"))
    exporter.clear()

    await workspace.give_feedback(Verdict(correct=True), on=ChainTarget(correlation_id="first"))
    await workspace.skip_run("r1")
    await workspace.retry_run("r1")
    await workspace.cancel_run("r1")
    await workspace.replay_rule("plant:alarms", from_seq=1, mode="rebuild")
    await workspace.install_rule(stored())
    await workspace.update_rule(stored(description="more"))
    await workspace.archive_rule("chat:alarms")

    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [
        "reflexr.feedback plant_verdict",
        "reflexr.skip_run",
        "reflexr.retry_run",
        "reflexr.cancel_run",
        "reflexr.replay_rule",
        "reflexr.install_rule",
        "reflexr.update_rule",
        "reflexr.archive_rule",
    ]
    assert all(attributes(span).items() >= WHO.items() for span in spans)
    assert [attributes(span).get("session.id") for span in spans[:4]] == ["first"] * 4
    facts = await workspace.read(after_seq=1)
    traces = {fact.traceparent for fact in facts}
    assert len(facts) == 8
    assert None not in traces
    assert len(traces) == 8


async def test_what_a_run_publishes_is_in_the_runs_session_from_the_start(
    workspace: Workspace, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(ValidationFailed):
        await workspace.caused_by(cause(), correlation_id="first").publish({"type": "plant:alarm"})

    assert attributes(exporter.get_finished_spans()[0])["session.id"] == "first"


async def test_reads_are_no_spans(workspace: Workspace, exporter: InMemorySpanExporter) -> None:
    await workspace.read()
    await workspace.rule_statuses()

    assert exporter.get_finished_spans() == ()


def test_what_breaks_ends_a_span_with_its_trace_and_a_refusal_without(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    tracing = Tracing(provider)
    for error in (ZeroDivisionError("no"), Forbidden("not you")):
        with pytest.raises(type(error)), tracing.span("work", dict):
            raise error

    broken, refused = exporter.get_finished_spans()
    assert (attributes(broken)["error.type"], attributes(refused)["error.type"]) == ("ZeroDivisionError", "forbidden")
    assert [event.name for event in broken.events] == ["exception"]
    assert refused.events == ()
    assert [span.status.description for span in (broken, refused)] == ["ZeroDivisionError: no", "not you"]


def test_a_span_can_link_to_those_it_follows_from(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    linked = span_context_of(TRACEPARENT)
    assert linked is not None

    with Tracing(provider).span("work", dict, kind=SpanKind.CONSUMER, links=(Link(linked),)):
        pass

    [span] = exporter.get_finished_spans()
    assert [link.context for link in span.links] == [linked]
    assert span.kind is SpanKind.CONSUMER


@pytest.mark.parametrize("text", [None, "", "nonsense", f"00-{'0' * 32}-{'0' * 16}-01"])
def test_a_text_that_is_no_trace_context_names_no_span(text: str | None) -> None:
    assert span_context_of(text) is None


def test_a_trace_context_is_written_as_it_is_read() -> None:
    context = span_context_of(TRACEPARENT)
    assert context is not None

    assert traceparent_of(NonRecordingSpan(context)) == TRACEPARENT
    assert traceparent_of(INVALID_SPAN) is None


async def test_without_an_sdk_nothing_is_traced_but_a_callers_context_is_carried() -> None:
    def never() -> dict[str, str | bool | int | float]:
        raise AssertionError("attributes were made for nobody")

    workspace = await opened()
    context = span_context_of(TRACEPARENT)
    assert context is not None

    with Tracing().span("work", never) as span, trace.use_span(NonRecordingSpan(context)):
        published = await workspace.publish(Alarm(machine="press"))

    assert not span.is_recording()
    assert published.envelope.traceparent == TRACEPARENT
    assert (await workspace.publish(Alarm(machine="press"))).envelope.traceparent is None


def test_polls_are_not_traced(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    tracing = Tracing(provider)

    with untraced(), tracing.span("poll", dict):
        pass
    with tracing.span("work", dict):
        pass

    assert [span.name for span in exporter.get_finished_spans()] == ["work"]


def test_a_session_is_in_the_baggage_of_its_block_alone() -> None:
    with in_session("first"):
        assert baggage.get_baggage("session.id") == "first"

    assert baggage.get_baggage("session.id") is None


class Mute(Exception):
    @override
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_an_exception_whose_text_cannot_be_had_ends_its_span_by_its_type_and_goes_on(
    exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    with pytest.raises(Mute), Tracing(provider).span("work", dict):
        raise Mute

    [span] = exporter.get_finished_spans()
    assert (attributes(span), span.status.description) == ({"error.type": "Mute"}, "Mute")
    [event] = span.events
    assert (event.name, event.attributes) == ("exception", {"exception.type": "Mute"})
