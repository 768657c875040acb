"""What the tests of agents and graphs share: a harbour's events, and a reactor that acts on them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.messages import ModelMessage, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from reflexr.agent import function_model
from reflexr.core import Event, RetryPolicy, Rule, Run, UserActor, by, on, run
from reflexr.workspace import InMemoryStorage, ManualClock, Reactor, Storage, Workspace, Workspaces

START = datetime(2026, 1, 1, tzinfo=UTC)
ADA = UserActor(id="ada")
SECOND = timedelta(seconds=1)


class HarbourEvent(Event, abstract=True, event_namespace="harbour"):
    """The harbour's events."""


class Arrived(HarbourEvent):
    ship: str
    note: str = ""


class Moored(HarbourEvent):
    ship: str
    berth: int = 1


class Warned(HarbourEvent, extra="allow"):
    """Open for fields of any name."""


def rule(name: str = "harbour:a", **changes: Any) -> Rule:
    """A rule that calls the pilot at each arrival."""
    values = {"name": name, "when": on(Arrived), "scope": by("ship"), "then": run("pilot")} | changes
    return Rule.model_validate({"retry": RetryPolicy(backoff=SECOND)} | values)


class Harbour:
    """One storage, its clock, and reactors over it, each as another process would have it."""

    def __init__(self, storage: Storage | None = None) -> None:
        self.clock = ManualClock(START)
        self.storage = InMemoryStorage(clock=self.clock) if storage is None else storage
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def workspaces(self, *rules: Rule, **options: Any) -> Workspaces:
        settings: dict[str, Any] = {"events": [Arrived], "emitted": [Moored, Warned], **options}
        return Workspaces(self.storage, rules=rules, tracer_provider=self.tracer_provider, **settings)

    def reactor(self, action: Any, *rules: Rule, deps: Any = None, **options: Any) -> Reactor[Any]:
        return Reactor(self.workspaces(*(rules or (rule(),)), **options), actions={"pilot": action}, deps=deps)

    async def open(self, **options: Any) -> Workspace:
        return await self.workspaces(**options).open("acme", "north", actor=ADA)

    async def publish(self, *events: Event) -> None:
        await (await self.open()).publish_many(list(events))

    async def act(self, action: Any, *rules: Rule, deps: Any = None, **options: Any) -> Run:
        """Lets a reactor of its own act until there is nothing to do now, and returns the run as it is then."""
        await self.reactor(action, *rules, deps=deps, **options).settle()
        return (await self.runs())[-1]

    async def act_again(self, action: Any, *rules: Rule, deps: Any = None, **options: Any) -> Run:
        """As `act`, once the next attempt is due."""
        self.clock.advance(timedelta(hours=1))
        return await self.act(action, *rules, deps=deps, **options)

    async def runs(self) -> list[Run]:
        """The runs in the order in which they were created."""
        return (await (await self.open()).runs())[::-1]

    async def log(self, *types: type[Event]) -> list[dict[str, Any]]:
        """The payloads of the log's events of these types."""
        return [envelope.payload for envelope in await (await self.open()).read(types=types)]

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


class Script:
    """A model whose answers are written beforehand; what it was asked and offered is kept."""

    def __init__(self, *answers: ModelResponse | ToolCallPart | str | BaseException) -> None:
        self.answers = list(answers)
        self.asked: list[list[ModelMessage]] = []
        self.offered: list[AgentInfo] = []

    @property
    def model(self) -> FunctionModel:
        return function_model(self)

    async def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(list(messages))
        self.offered.append(info)
        match self.answers.pop(0):
            case BaseException() as error:
                raise error
            case str() as text:
                return ModelResponse([TextPart(text)])
            case ToolCallPart() as call:
                return ModelResponse([call])
            case ModelResponse() as response:
                return response

    @property
    def prompt(self) -> str:
        """What it was asked first."""
        (part,) = [part for part in self.parts(0) if isinstance(part, UserPromptPart)]
        assert isinstance(part.content, str)
        return part.content

    def told(self, number: int) -> Any:
        """What the tool said that the answer of this number called."""
        return self.returned(number).content

    def returned(self, number: int) -> "ToolReturnPart[Any]":
        """What came of the call that the answer of this number made."""
        (returned,) = [part for part in self.parts(number + 1) if type(part) is ToolReturnPart]
        return returned

    def parts(self, number: int) -> Sequence[Any]:
        message = self.asked[number][-1]
        assert isinstance(message, ModelRequest)
        return message.parts


def call(tool: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments)
