from datetime import timedelta
from typing import Any, override

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from reflexr.core import Rule, on, predicate, run
from reflexr.telemetry import span_context_of
from reflexr.workspace import Reaction, RunFailure, Schedule, Workspaces

from .plant import ADA, Alarm, stored, stored_rules
from .reacting import Bench
from .test_evaluating import each
from .test_executing import IMMEDIATELY, Script, refuse, rule


class Traced(Bench):
    """A bench whose applications are traced and measured."""

    def __init__(self) -> None:
        super().__init__()
        self.exporter = InMemorySpanExporter()
        self._tracer_provider = TracerProvider()
        self._tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._reader = InMemoryMetricReader()
        self._meter_provider = MeterProvider([self._reader])

    @override
    def workspaces(self, *rules: Rule, **options: Any) -> Workspaces:
        providers = {"tracer_provider": self._tracer_provider, "meter_provider": self._meter_provider}
        return super().workspaces(*rules, **providers, **options)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def measured(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """The points of a metric: their attributes but for the tenant and the workspace, and their value or count."""
        data = self._reader.get_metrics_data()
        points: list[tuple[dict[str, Any], Any]] = []
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            attributes = dict(point.attributes or {})
                            assert attributes.pop("reflexr.tenant.id") == "acme"
                            assert attributes.pop("reflexr.workspace.id") == "prod"
                            points.append((attributes, getattr(point, "count", getattr(point, "value", None))))
        return points


@pytest.fixture
def bench() -> Traced:
    return Traced()


async def test_an_evaluation_that_finds_envelopes_is_a_span_whose_context_the_facts_carry(bench: Traced) -> None:
    reactor = bench.reactor(each("plant:a"), each("plant:b"))
    await bench.publish(Alarm(machine="press"))

    await reactor.evaluate()
    await reactor.evaluate()

    (span,) = bench.spans("reflexr.evaluate")
    assert span.attributes is not None
    assert span.attributes["reflexr.rules"] == ("plant:a", "plant:b")
    assert (span.attributes["reflexr.firings"], span.attributes["reflexr.event.count"]) == (2, 1)
    facts = [envelope for envelope in await bench.log() if envelope.event_type == "reflexr:rule_fired"]
    assert {fact.traceparent for fact in facts} == {named(span)}


def named(span: ReadableSpan) -> str:
    """A span's W3C trace context."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def test_each_attempt_is_a_span_of_its_own_trace_linked_to_those_that_published_what_it_matched(
    bench: Traced,
) -> None:
    inside: list[Any] = []

    async def page(reaction: Reaction[None]) -> None:
        inside.append((trace.get_current_span().get_span_context().trace_id, baggage.get_baggage("session.id")))
        if reaction.attempt == 1:
            raise OSError("no route")

    pairs = rule(when=on(Alarm).count(at_least=2, within=timedelta(minutes=1)), retry=IMMEDIATELY)
    await bench.publish(Alarm(machine="press"))
    await bench.publish(Alarm(machine="press"))
    await bench.reactor(pairs, actions={"page": page}).settle()

    spans = bench.spans("invoke_workflow plant:a")
    log = await bench.log()
    (done,) = await bench.runs()
    traces = [context.trace_id for span in spans if (context := span.get_span_context()) is not None]
    assert len(set(traces)) == 2
    assert [span.parent for span in spans] == [None, None]
    assert [f"{trace_id:032x}" for trace_id in traces] == list(done.trace_ids)
    assert inside == [(trace_id, done.correlation_id) for trace_id in traces]
    publishers = [span_context_of(log[seq - 1].traceparent) for seq in (1, 2)]
    assert [[link.context for link in span.links] for span in spans] == [publishers, publishers]
    failed, succeeded = spans
    assert not failed.status.is_ok
    assert succeeded.status.is_ok or succeeded.status.status_code is trace.StatusCode.UNSET
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "OSError"
    assert failed.attributes["reflexr.run.attempt"] == 1
    ends = [envelope for envelope in log if envelope.event_type in ("reflexr:run_retrying", "reflexr:run_succeeded")]
    assert [envelope.traceparent for envelope in ends] == [named(failed), named(succeeded)]


async def test_events_of_one_publish_are_linked_once(bench: Traced) -> None:
    pairs = rule(when=on(Alarm).count(at_least=2, within=timedelta(minutes=1)))
    await bench.publish(Alarm(machine="press"), Alarm(machine="press"))

    await bench.reactor(pairs).settle()

    (span,) = bench.spans("invoke_workflow plant:a")
    assert len(span.links) == 1


async def test_a_claim_that_does_not_commit_leaves_no_span_open(bench: Traced) -> None:
    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule())
    await reactor.evaluate()
    bench.storage.at_commit = refuse(OSError("disk full"))

    with pytest.raises(OSError, match="disk full"):
        await reactor.execute()

    assert len(bench.spans("invoke_workflow plant:a")) == 1


async def test_polling_without_work_makes_no_spans(bench: Traced) -> None:
    reactor = bench.reactor(rule(), schedules=[Schedule(name="s", every=timedelta(minutes=1))])
    await reactor.settle()

    assert bench.exporter.get_finished_spans() == ()


async def test_what_is_done_is_measured(bench: Traced) -> None:
    def broken(_: object) -> bool:
        raise ValueError

    rules = [
        rule(retry=IMMEDIATELY),
        each("plant:b", when=on(Alarm).where(predicate("broken")), then=run("page")),
    ]
    script = Script(RunFailure("no route", reason="unreachable"), None)
    schedules = [Schedule(name="s", every=timedelta(minutes=1))]
    reactor = bench.reactor(*rules, actions={"page": script}, predicates={"broken": broken}, schedules=schedules)
    await bench.publish(Alarm(machine="press"))
    bench.clock.advance(timedelta(minutes=1))

    await reactor.settle()

    assert bench.measured("reflexr.firings") == [({"reflexr.rule": "plant:a"}, 1)]
    assert bench.measured("reflexr.evaluation.errors") == [
        ({"reflexr.rule": "plant:b", "error.type": "predicate_failed"}, 1)
    ]
    retried = {"reflexr.rule": "plant:a", "reflexr.run.status": "retrying", "reflexr.reason": "unreachable"}
    succeeded = {"reflexr.rule": "plant:a", "reflexr.run.status": "succeeded", "reflexr.reason": ""}
    assert bench.measured("reflexr.runs") == [(retried, 1), (succeeded, 1)]
    assert bench.measured("reflexr.run.duration") == [(retried, 1), (succeeded, 1)]
    assert bench.measured("reflexr.run.latency") == [({"reflexr.rule": "plant:a"}, 1)]
    assert bench.measured("reflexr.ticks") == [({"reflexr.schedule": "s"}, 1)]
    assert bench.measured("reflexr.evaluation.duration")[0][1] >= 1


async def test_a_stored_rule_is_measured_as_its_namespace(bench: Traced) -> None:
    workspace = await bench.workspaces(stored_rules=stored_rules()).open("acme", "prod", actor=ADA)
    await workspace.install_rule(stored())
    await workspace.publish(Alarm(machine="press"))

    await bench.reactor(stored_rules=stored_rules()).settle()

    assert bench.measured("reflexr.firings") == [({"reflexr.rule": "chat:*"}, 1)]
