"""The registry of metrics: what reflexr measures, in what unit, and with which attributes.

Dashboards, views and documentation are made from `METRICS`, and instruments are made of nothing else. An attribute that
a metric does not declare is a type error where it is recorded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypedDict, cast, get_type_hints

from opentelemetry.metrics import Meter, MeterProvider, get_meter, get_meter_provider

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

# Only a call can declare keys with dots, and only a class can have a docstring: so each class has its keys from a call.
_Workspace = TypedDict("_Workspace", {"reflexr.tenant.id": str, "reflexr.workspace.id": str})
_Event = TypedDict("_Event", {"reflexr.event.type": str})
_Command = TypedDict("_Command", {"reflexr.command": str, "reflexr.outcome": str})
_Rule = TypedDict("_Rule", {"reflexr.rule": str})
_Error = TypedDict("_Error", {"error.type": str})
_Run = TypedDict("_Run", {"reflexr.run.status": str, "reflexr.reason": str})
_Schedule = TypedDict("_Schedule", {"reflexr.schedule": str})
_Feedback = TypedDict("_Feedback", {"reflexr.feedback.type": str})


class WorkspaceAttributes(_Workspace):
    """The attributes of what is measured by workspace."""


class EventAttributes(WorkspaceAttributes, _Event):
    """The attributes of what is counted by event type."""


class CommandAttributes(WorkspaceAttributes, _Command):
    """The attributes of commands; the outcome is `ok`, the type of the rejection, or `error`."""


class RuleAttributes(WorkspaceAttributes, _Rule):
    """The attributes of what is counted by rule; a stored rule is its namespace, such as `chat:*`."""


class RuleErrorAttributes(RuleAttributes, _Error):
    """The attributes of evaluation errors."""


class RunAttributes(RuleAttributes, _Run):
    """The attributes of attempts' outcomes; the reason is a stable code, or empty."""


class ScheduleAttributes(WorkspaceAttributes, _Schedule):
    """The attributes of ticks."""


class FeedbackAttributes(WorkspaceAttributes, _Feedback):
    """The attributes of feedback."""


@dataclass(frozen=True, slots=True)
class Metric[Attributes: Mapping[str, object]]:
    """What is measured.

    Attributes:
        name: The metric's name, as OpenTelemetry has it.
        instrument: Whether it counts up, or is a distribution.
        unit: The unit, in UCUM.
        description: What it says, in a sentence.
        attributes: The names of its attributes.
        buckets: The upper bounds of a distribution's buckets, as advice to the SDK.
    """

    name: str
    instrument: Literal["counter", "histogram"]
    unit: str
    description: str
    attributes: tuple[str, ...]
    buckets: tuple[float, ...] | None = None


def _counter[Attributes: Mapping[str, object]](
    attributes: type[Attributes], name: str, unit: str, description: str
) -> Metric[Attributes]:
    return Metric(name, "counter", unit, description, tuple(get_type_hints(attributes)))


def _duration[Attributes: Mapping[str, object]](
    attributes: type[Attributes], name: str, description: str
) -> Metric[Attributes]:
    return Metric(name, "histogram", "s", description, tuple(get_type_hints(attributes)), _SECONDS)


EVENTS: Final = _counter(EventAttributes, "reflexr.events", "{event}", "Events published and appended to a log.")
DUPLICATES: Final = _counter(
    EventAttributes, "reflexr.events.duplicate", "{event}", "Events published whose id was in the log already."
)
PUBLISH_DURATION: Final = _duration(
    WorkspaceAttributes, "reflexr.publish.duration", "How long a publish took until it was committed."
)
COMMANDS: Final = _counter(
    CommandAttributes, "reflexr.commands", "{command}", "Commands carried out for a surface, by outcome."
)
FEEDBACK: Final = _counter(FeedbackAttributes, "reflexr.feedback", "{feedback}", "Feedback given.")
FIRINGS: Final = _counter(RuleAttributes, "reflexr.firings", "{firing}", "Firings recorded.")
EVALUATION_ERRORS: Final = _counter(
    RuleErrorAttributes, "reflexr.evaluation.errors", "{error}", "Envelopes that a rule could not decide on."
)
EVALUATION_DURATION: Final = _duration(
    WorkspaceAttributes, "reflexr.evaluation.duration", "How long the evaluation of one batch took, with its commit."
)
RUNS: Final = _counter(
    RunAttributes, "reflexr.runs", "{run}", "Attempts of runs that ended, by what became of the run."
)
RUN_DURATION: Final = _duration(RunAttributes, "reflexr.run.duration", "How long an attempt of a run took.")
RUN_LATENCY: Final = _duration(
    RuleAttributes,
    "reflexr.run.latency",
    "How long it took from a firing's envelope to the start of its first attempt.",
)
TICKS: Final = _counter(ScheduleAttributes, "reflexr.ticks", "{tick}", "Ticks of schedules published.")

METRICS: Final[Mapping[str, Metric[Any]]] = MappingProxyType(
    {
        metric.name: metric
        for metric in cast(
            "tuple[Metric[Any], ...]",
            (
                EVENTS,
                DUPLICATES,
                PUBLISH_DURATION,
                COMMANDS,
                FEEDBACK,
                FIRINGS,
                EVALUATION_ERRORS,
                EVALUATION_DURATION,
                RUNS,
                RUN_DURATION,
                RUN_LATENCY,
                TICKS,
            ),
        )
    }
)
"""Every metric, by name."""


class Counter[Attributes: Mapping[str, object]]:
    """Counts up."""

    def __init__(self, meter: Meter, metric: Metric[Attributes]) -> None:
        self._instrument = meter.create_counter(metric.name, metric.unit, metric.description)

    def add(self, amount: int, attributes: Attributes) -> None:
        """Counts `amount` more."""
        self._instrument.add(amount, cast("Mapping[str, str]", attributes))


class Histogram[Attributes: Mapping[str, object]]:
    """Records a distribution."""

    def __init__(self, meter: Meter, metric: Metric[Attributes]) -> None:
        self._instrument = meter.create_histogram(
            metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
        )

    def record(self, value: float, attributes: Attributes) -> None:
        """Records one value, in the metric's unit."""
        self._instrument.record(value, cast("Mapping[str, str]", attributes))


class Instruments:
    """An instrument for each metric, typed by the metric's attributes."""

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        """Creates the instruments.

        Args:
            meter_provider: What measures; by default the process's, also if it is set later.
        """
        self._provider = meter_provider
        meter = get_meter("reflexr", meter_provider=meter_provider)
        self.events = Counter(meter, EVENTS)
        self.duplicates = Counter(meter, DUPLICATES)
        self.publish_duration = Histogram(meter, PUBLISH_DURATION)
        self.commands = Counter(meter, COMMANDS)
        self.feedback = Counter(meter, FEEDBACK)
        self.firings = Counter(meter, FIRINGS)
        self.evaluation_errors = Counter(meter, EVALUATION_ERRORS)
        self.evaluation_duration = Histogram(meter, EVALUATION_DURATION)
        self.runs = Counter(meter, RUNS)
        self.run_duration = Histogram(meter, RUN_DURATION)
        self.run_latency = Histogram(meter, RUN_LATENCY)
        self.ticks = Counter(meter, TICKS)

    @property
    def active(self) -> bool:
        """Whether anything measures: if not, there is no need to work out what to record."""
        provider = get_meter_provider() if self._provider is None else self._provider
        # The API's own providers, and they alone, do nothing.
        return not type(provider).__module__.startswith("opentelemetry.metrics")
