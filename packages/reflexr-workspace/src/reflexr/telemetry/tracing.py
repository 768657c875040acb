"""Spans: who did what in which workspace and causal chain, and the trace context that envelopes carry.

Only OpenTelemetry's API is used: without an SDK nothing is recorded, and next to nothing is spent.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from opentelemetry import baggage, context, trace
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from reflexr.core import Rejected
from reflexr.telemetry.attributes import ERROR_TYPE, SESSION, Attributes


class Tracing:
    """Starts spans."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """Creates what starts spans.

        Args:
            tracer_provider: What traces; by default the process's, also if it is set later.
        """
        self._provider = tracer_provider
        self._tracer = trace.get_tracer("reflexr", tracer_provider=tracer_provider)

    @property
    def active(self) -> bool:
        """Whether anything traces."""
        provider = trace.get_tracer_provider() if self._provider is None else self._provider
        # The API's own providers, and they alone, record nothing.
        return not type(provider).__module__.startswith("opentelemetry.trace")

    def span(
        self,
        name: str,
        attributes: Callable[[], Attributes],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: tuple[Link, ...] = (),
    ) -> AbstractContextManager[Span]:
        """Runs a block in a span, which is its current one.

        An exception ends the span as an error: a rejection by its type, anything else with its trace. If nothing
        traces, the block runs in the span that is current anyhow.

        Args:
            name: The span's name.
            attributes: Makes the attributes, if anything traces.
            kind: The span's kind.
            links: Other spans that this one follows from.
        """
        if not self.active:
            return nullcontext(trace.get_current_span())
        return self._span(name, attributes(), kind, links)

    def begin(
        self,
        name: str,
        attributes: Callable[[], Attributes],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Callable[[], Sequence[Link]] = tuple,
    ) -> Span:
        """Returns a span that begins a trace of its own. The caller makes it the current one, and ends it.

        If nothing traces, the span is one that records nothing.

        Args:
            name: The span's name.
            attributes: Makes the attributes, if anything traces.
            kind: The span's kind.
            links: Makes the links to the spans that this one follows from, if anything traces.
        """
        if not self.active:
            return trace.INVALID_SPAN
        return self._tracer.start_span(name, context.Context(), kind, attributes(), links())

    @contextmanager
    def _span(self, name: str, attributes: Attributes, kind: SpanKind, links: tuple[Link, ...]) -> Generator[Span]:
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes=attributes, links=links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except Rejected as rejected:
                span.set_attribute(ERROR_TYPE, rejected.rejection.type)
                span.set_status(Status(StatusCode.ERROR, str(rejected)))
                raise
            except Exception as error:
                span.set_attribute(ERROR_TYPE, type(error).__qualname__)
                record_exception(span, error)
                span.set_status(Status(StatusCode.ERROR, _described(error)))
                raise


def record_exception(span: Span, error: BaseException) -> None:
    """Records an exception on a span with its trace; one whose text cannot be had, by its type alone."""
    try:
        span.record_exception(error)
    except Exception:
        span.add_event("exception", {"exception.type": type(error).__qualname__})


def traceparent_of(span: Span) -> str | None:
    """Returns the W3C trace context of a span, or `None` if it has none."""
    span_context = span.get_span_context()
    if not span_context.is_valid:
        return None
    return f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}-{span_context.trace_flags:02x}"


def span_context_of(traceparent: str | None) -> SpanContext | None:
    """Returns the span that a W3C trace context names, to link to; `None` if it names none."""
    if traceparent is None:
        return None
    carried = _PROPAGATOR.extract({"traceparent": traceparent}, context.Context())
    span_context = trace.get_current_span(carried).get_span_context()
    return span_context if span_context.is_valid else None


def untraced() -> AbstractContextManager[None]:
    """Runs a block in which a parent-based sampler, the SDK's default, records no span.

    For polls: looking for work is not worth a trace, the work that is found is. Metrics are recorded as ever.
    """
    return _attached(trace.set_span_in_context(_UNSAMPLED))


def in_session(correlation_id: str) -> AbstractContextManager[None]:
    """Runs a block with the causal chain in OpenTelemetry's baggage, for processors that copy it onto every span."""
    return _attached(baggage.set_baggage(SESSION, correlation_id))


def _described(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


_PROPAGATOR: Final = TraceContextTextMapPropagator()
_UNSAMPLED: Final = NonRecordingSpan(SpanContext(trace_id=1, span_id=1, is_remote=False))


@contextmanager
def _attached(attached: context.Context) -> Generator[None]:
    token = context.attach(attached)
    try:
        yield
    finally:
        context.detach(token)
