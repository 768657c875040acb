"""Spans and metrics of reflexr, over OpenTelemetry's API alone.

The registry of metrics is `reflexr.telemetry.metrics`; the names of attributes are `reflexr.telemetry.attributes`.
"""

from reflexr.telemetry import attributes, metrics
from reflexr.telemetry.attributes import Attributes, actor_attributes
from reflexr.telemetry.metrics import (
    METRICS,
    CommandAttributes,
    Counter,
    EventAttributes,
    FeedbackAttributes,
    Histogram,
    Instruments,
    Metric,
    RuleAttributes,
    RuleErrorAttributes,
    RunAttributes,
    ScheduleAttributes,
    WorkspaceAttributes,
)
from reflexr.telemetry.tracing import (
    Tracing,
    in_session,
    record_exception,
    span_context_of,
    traceparent_of,
    untraced,
)

__all__ = [
    # Spans
    "Attributes",
    "Tracing",
    "actor_attributes",
    "attributes",
    "in_session",
    "record_exception",
    "span_context_of",
    "traceparent_of",
    "untraced",
    # Metrics
    "METRICS",
    "Counter",
    "Histogram",
    "Instruments",
    "Metric",
    "metrics",
    # Attributes of metrics
    "CommandAttributes",
    "EventAttributes",
    "FeedbackAttributes",
    "RuleAttributes",
    "RuleErrorAttributes",
    "RunAttributes",
    "ScheduleAttributes",
    "WorkspaceAttributes",
]
