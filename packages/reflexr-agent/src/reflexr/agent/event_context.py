"""`EventContext`: the capability that gives an agent the log it reacts to, and lets it publish what it may.

What the tools do is here; what a model is told of events is `reflexr.agent.firing`'s.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, Final, Literal, override

from opentelemetry.trace import get_current_span
from pydantic import Field, ValidationError
from pydantic.json_schema import models_json_schema
from pydantic_ai import FunctionToolset, ModelRetry, RunContext, Tool, ToolDefinition, ToolFailed
from pydantic_ai.capabilities import AbstractCapability
from pydantic_core import to_json

from reflexr.agent.firing import MAX_CHARACTERS, envelopes_text
from reflexr.core import (
    DepthExceeded,
    Event,
    Forbidden,
    NotFound,
    NotJsonError,
    Rejected,
    ValidationFailed,
    json_value,
    problems,
)
from reflexr.telemetry import attributes
from reflexr.workspace import Reaction

DEFAULT_READ_LIMIT: Final = 20
"""How many events `read_events` gives at once at most, by default."""

_REFUSED: Final = (DepthExceeded, Forbidden, NotFound)
"""What another try of the model's would not change."""


@dataclass
class EventContext(AbstractCapability[Reaction[Any]]):
    """Gives an agent the tools `read_events` and `emit_event`, and says on its span whose run it is.

    `read_events` reads the workspace's log, a window at a time. `emit_event` publishes in the run's name, and only
    events of the types that are listed here, whose JSON schemas are in the tool's definition. A call that is not valid
    goes back to the model with what is wrong, as often as the agent's retries allow; one that nothing can make right,
    such as an event that would be too deep in its chain, fails without using these up.

    The span that is pydantic-ai's own of the agent's run gets the tenant, the workspace, the rule, the run, the attempt
    and the causal chain.

    Attributes:
        emit: The event types that the agent may publish; without any there is no `emit_event`.
        read: The event types that it may read, by qualified name or as classes; by default all. Without any there is no
            `read_events`.
        read_limit: How many events it is given at once at most, at least 1.
        read_characters: How many characters of each it is shown at most.
    """

    emit: Sequence[type[Event]] = ()
    read: Collection[type[Event] | str] | None = None
    _: KW_ONLY
    read_limit: int = DEFAULT_READ_LIMIT
    read_characters: int = MAX_CHARACTERS

    def __post_init__(self) -> None:
        """Checks what it was given.

        Raises:
            ValueError: A type that may be emitted is abstract, `read` is one text, or a limit is less than 1.
        """
        for event in self.emit:
            if not event.event_type:
                raise ValueError(f"emit: {event.__qualname__} is no event type: list the types themselves")
        if isinstance(self.read, str):
            raise ValueError(f"read: give a list of event types, such as [{self.read!r}]")
        for name, limit in (("read_limit", self.read_limit), ("read_characters", self.read_characters)):
            if limit < 1:
                raise ValueError(f"{name}: {limit!r} is less than 1")

    @override
    async def before_run(self, ctx: RunContext[Reaction[Any]]) -> None:
        """Says on the current span whose run it is."""
        reaction = ctx.deps
        get_current_span().set_attributes(
            {
                attributes.TENANT: reaction.workspace.tenant_id,
                attributes.WORKSPACE: reaction.workspace.workspace_id,
                attributes.RULE: reaction.rule.name,
                attributes.RUN: reaction.run_id,
                attributes.RUN_ATTEMPT: reaction.attempt,
                attributes.SESSION: reaction.run.correlation_id,
            }
        )

    @override
    def get_toolset(self) -> FunctionToolset[Reaction[Any]]:
        """Returns the tools."""
        readable = None if self.read is None else frozenset(map(_type_of, self.read))
        tools: list[Tool[Reaction[Any]]] = []
        if readable != frozenset():
            tools.append(_reading(readable, self.read_limit, self.read_characters))
        if self.emit:
            tools.append(_emitting({event.event_type: event for event in self.emit}))
        return FunctionToolset(tools)


def _type_of(event: type[Event] | str) -> str:
    return event if isinstance(event, str) else event.event_type


def _reading(readable: frozenset[str] | None, most: int, characters: int) -> Tool[Reaction[Any]]:
    async def read_events(
        ctx: RunContext[Reaction[Any]],
        *,
        after_seq: Annotated[int, Field(ge=0)] = 0,
        before_seq: Annotated[int, Field(ge=1)] | None = None,
        types: list[str] | None = None,
        take: Literal["first", "last"] = "last",
        limit: Annotated[int, Field(ge=1)] = most,
    ) -> str:
        """Reads events of the workspace's log, oldest first.

        Args:
            ctx: The run.
            after_seq: Only events with a greater `seq`.
            before_seq: Only events with a smaller `seq`; by default up to the log's end.
            types: Only events of these types, such as `shop:order_placed`; by default of any.
            take: Which events of the window, if there are more than the limit.
            limit: How many events at most.
        """
        number = min(limit, most)
        window = {"limit": number} if take == "first" else {"last": number}
        with _Refusals():
            envelopes = await ctx.deps.workspace.read(
                after_seq=after_seq, before_seq=before_seq, types=_readable(types, readable), **window
            )
        return envelopes_text(envelopes, max_characters=characters)

    described = "any type" if readable is None else f"these types: {', '.join(sorted(readable))}"
    return Tool(
        read_events,
        takes_ctx=True,
        description=(
            f"Reads events of the workspace's log, oldest first, at most {most} at a time. Events of {described}."
        ),
    )


def _readable(types: list[str] | None, readable: frozenset[str] | None) -> Collection[str] | None:
    """Returns the types to read.

    Raises:
        ModelRetry: One may not be read.
    """
    if readable is None or types is None:
        return readable if types is None else types
    if refused := sorted(set(types) - readable):
        raise ModelRetry(f"Events of {_listed(refused)} cannot be read, only of {_listed(sorted(readable))}.")
    return types


def _emitting(events: Mapping[str, type[Event]]) -> Tool[Reaction[Any]]:
    schema = _schema(events)

    async def emit_event(ctx: RunContext[Reaction[Any]], event: Any) -> str:
        checked = _checked(events, event)
        with _Refusals():
            publication = await ctx.deps.emit(checked)
        if publication.duplicate:
            return (
                "Nothing was published: an earlier attempt of this run published this event in its place.\n"
                f"{envelopes_text([publication.envelope])}"
            )
        return f"Published with seq {publication.seq}."

    async def with_schema(_: RunContext[Reaction[Any]], definition: ToolDefinition) -> ToolDefinition:
        return replace(definition, parameters_json_schema=schema)

    return Tool(
        emit_event,
        takes_ctx=True,
        description=f"Publishes an event to the workspace's log. Its type is one of {_listed(events)}.",
        prepare=with_schema,
        # An event's id follows from its turn, so turns are taken in the order of the calls.
        sequential=True,
    )


def _checked(events: Mapping[str, type[Event]], value: object) -> Event:
    """Returns the event that a model wants to publish, checked before it takes its turn as publishing would check it.

    Raises:
        ModelRetry: It may not publish it, or it is not valid.
    """
    match value:
        case {"type": str(event_type)} if event_type in events:
            event_class = events[event_type]
        case _:
            raise ModelRetry(f'The event needs a "type", which is one of {_listed(events)}.')
    extra = None if event_class.model_config.get("extra") == "allow" else "forbid"
    try:
        return event_class.model_validate_json(to_json(json_value(value, "the event")), extra=extra)
    except NotJsonError as error:
        raise ModelRetry(f"The event is not valid: {error}.") from error
    except ValidationError as error:
        raise ModelRetry(f"The event is not valid: {'; '.join(problems(error))}.") from error


def _schema(events: Mapping[str, type[Event]]) -> dict[str, Any]:
    """Returns the JSON schema of the arguments: an event of one of these types, and its type with it."""
    references, definitions = models_json_schema([(event, "validation") for event in events.values()])
    shapes = {name: dict(shape) for name, shape in definitions["$defs"].items()}
    for reference in references.values():
        shape = shapes[reference["$ref"].rpartition("/")[2]]
        shape["required"] = sorted({"type", *shape.get("required", ())})
    choices = [references[event, "validation"] for event in events.values()]
    return {
        "type": "object",
        "properties": {"event": choices[0] if len(choices) == 1 else {"anyOf": choices}},
        "required": ["event"],
        "additionalProperties": False,
        "$defs": shapes,
    }


class _Refusals:
    """Tells a model what was refused: to try again, or that it cannot be."""

    def __enter__(self) -> None:
        """Begins to listen."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        """Turns a rejection into what the model is told. That the attempt is over is not the model's to know."""
        if isinstance(error, ValidationFailed):
            raise ModelRetry(_refusal(error)) from error
        if isinstance(error, _REFUSED):
            raise ToolFailed(_refusal(error)) from error


def _refusal(error: Rejected) -> str:
    return f"That was refused: {error}"


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))
