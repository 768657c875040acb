"""Publishing: what may be appended to a log, and what comes of events that arrive together.

Checks that need no log come first, in `Publisher`; those that do are made in the transaction that appends, in
`publish_all`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from secrets import token_hex
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from reflexr.core import (
    RESERVED_NAMESPACE,
    Causation,
    DepthExceeded,
    Draft,
    Envelope,
    Event,
    EventLike,
    EventRegistry,
    Forbidden,
    Id,
    InvalidState,
    NewEvent,
    NotFound,
    NotJsonError,
    Rejected,
    Run,
    ValidationFailed,
    json_value,
    problems,
)
from reflexr.workspace.commits import Pending
from reflexr.workspace.errors import DuplicateEventIdError, StorageError
from reflexr.workspace.operators import Operator
from reflexr.workspace.refs import WorkspaceRef
from reflexr.workspace.storage import Storage, Transaction

_ID: Final[TypeAdapter[str]] = TypeAdapter(Id)
_RESERVED: Final = f"{RESERVED_NAMESPACE}:"


@dataclass(frozen=True, slots=True)
class Publication:
    """What came of publishing an event.

    Attributes:
        envelope: The event as it is in the log.
        duplicate: Whether its id was there already, so that nothing was appended.
    """

    envelope: Envelope
    duplicate: bool

    @property
    def seq(self) -> int:
        """The event's place."""
        return self.envelope.seq

    @property
    def id(self) -> str:
        """The event's id."""
        return self.envelope.id


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """Events to append together or not at all.

    Attributes:
        drafts: The events, each allowed and valid.
        chain: The id of the first event of the chain that they join, if they name one.
        attempt: The run that publishes them and the attempt that it has to be at, if a run does.
    """

    drafts: Sequence[Draft]
    chain: str | None = None
    attempt: tuple[str, int] | None = None


class Publisher:
    """Knows which events may be published, and by whom."""

    def __init__(
        self,
        registry: EventRegistry,
        events: Mapping[str, type[Event]],
        emitted: Mapping[str, type[Event]],
        max_depth: int,
    ) -> None:
        """Creates a publisher.

        Args:
            registry: The event types that there are, for hints.
            events: The event classes that anybody may publish, by qualified type.
            emitted: Those that only runs may.
            max_depth: How deep a causal chain may get.
        """
        self._registry = registry
        self._events = events
        self._emitted = emitted
        self._max_depth = max_depth
        self._required = {
            event: frozenset(name for name, field in event.model_fields.items() if field.is_required())
            for event in (*events.values(), *emitted.values())
        }

    def request(
        self,
        operator: Operator,
        items: Sequence[NewEvent],
        *,
        chain: str | None = None,
        traceparent: str | None = None,
        many: bool = False,
    ) -> PublishRequest:
        """Returns the events as they are to be appended.

        Args:
            operator: Who publishes them.
            items: The events.
            chain: The causal chain that they name.
            traceparent: The trace context of the publish.
            many: Whether the problems of all events are listed, each with its event's place.

        Raises:
            Forbidden: One is reflexr's own, or only runs may publish it.
            NotFound: Nobody may publish its type here.
            ValidationFailed: One is no valid event of its type, or an id or the chain is none.
            DepthExceeded: The causal chain would be too deep.
        """
        own = operator.correlation_id
        if chain is not None and chain != own:
            checked_id(chain, "correlation_id")
            if own is not None:
                raise ValidationFailed(
                    "what a run publishes joins the run's causal chain",
                    [f"correlation_id: {chain!r} is not the run's chain {own!r}: leave it out"],
                )
        ids, payloads = self._checked(operator.causation, items, many=many)
        joined, causation, attempt = own or chain, operator.causation, operator.attempt
        drafts = [
            Draft(event_id, payload, operator.actor, joined or event_id, causation, traceparent, item.id is None)
            for item, event_id, payload in zip(items, ids, payloads, strict=True)
        ]
        fence = None if causation is None or attempt is None else (causation.run_id, attempt)
        return PublishRequest(drafts, chain if own is None else None, fence)

    def type_of(self, event: EventLike) -> str | None:
        """Returns an event's type if it can be published at all: what is worth naming a span after."""
        event_type = _named_type(event)
        return event_type if event_type in self._events or event_type in self._emitted else None

    def _checked(
        self, causation: Causation | None, items: Sequence[NewEvent], *, many: bool
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Returns the id and the payload of each event."""
        ids: list[str] = []
        new_ids = _new_ids(len(items))
        typed: dict[int, Event] = {}
        read: dict[int, dict[str, Any]] = {}
        errors: dict[int, Sequence[str]] = {}
        for index, item in enumerate(items):
            try:
                event_class = self._class_of(item.event, by_run=causation is not None)
                if causation is not None and causation.depth > self._max_depth:
                    raise DepthExceeded(causation.depth, self._max_depth)
                ids.append(next(new_ids) if item.id is None else checked_id(item.id, "id"))
                # What `model_construct` made may lack fields, and could then never be read as its class again.
                if isinstance(item.event, event_class) and self._required[event_class] <= vars(item.event).keys():
                    typed[index] = item.event
                else:
                    read[index] = _read(item.event, event_class)
            except ValidationFailed as failed:
                if not many:
                    raise
                errors[index] = failed.errors
        written: list[dict[str, Any]] = []
        try:
            written = self._registry.payloads(list(typed.values()))
        except NotJsonError as error:
            found = _not_json(typed)
            if not many or not found:
                raise ValidationFailed(str(error)) from error
            errors |= found
        if errors:
            raise ValidationFailed(
                "some of these events are not valid",
                [f"events.{index}: {error}" for index in sorted(errors) for error in errors[index]],
            )
        payloads = dict(zip(typed, written, strict=True)) | read
        return ids, [payloads[index] for index in range(len(items))]

    def _class_of(self, event: EventLike, *, by_run: bool) -> type[Event]:
        # Whether something is an event at all takes longer to tell: Pydantic looks at an instance in Python.
        event_type = cast("Event", event).type if type(event) in self._required else _named_type(event)
        if event_type is None:
            raise ValidationFailed(
                "an event is an object that names its type",
                ["type: a qualified event type is wanted, such as 'ops:service.error'"],
            )
        if event_type.startswith(_RESERVED):
            raise Forbidden(f"{event_type!r} is reflexr's own: only reflexr publishes it")
        if (event_class := self._events.get(event_type)) is not None:
            return event_class
        if (event_class := self._emitted.get(event_type)) is None:
            meant = "" if event_type in self._registry else self._registry.hint(event_type)
            raise NotFound(f"{event_type!r} is no event type that can be published here{meant}")
        if not by_run:
            raise Forbidden(f"{event_type!r} is published by runs alone")
        return event_class


async def publish_all(
    transaction: Transaction, pending: Sequence[Pending[PublishRequest]]
) -> list[Sequence[Publication] | Rejected]:
    """Appends the events of requests that share a transaction, in order: one look-up and one append for all of them.

    An id that is in the log already, or came earlier, appends nothing. A request that is refused appends nothing at
    all.
    """
    ids = {draft.id for item in pending for draft in item.request.drafts}
    chains = {item.request.chain for item in pending if item.request.chain is not None}
    logged = await transaction.find(ids | chains)
    acting = {item.request.attempt[0] for item in pending if item.request.attempt is not None}
    runs = await transaction.runs(acting) if acting else {}
    accepted: dict[str, Draft] = {}
    refused: dict[int, Rejected] = {}
    firsts: list[set[str]] = []
    for index, item in enumerate(pending):
        fresh: dict[str, Draft] = {}
        for draft in item.request.drafts:
            if draft.id not in logged and draft.id not in accepted:
                fresh.setdefault(draft.id, draft)
        firsts.append(set(fresh))
        if fresh and (refusal := _refusal(item.request, logged, accepted, runs)) is not None:
            refused[index] = refusal
        else:
            accepted.update(fresh)
    appended = await transaction.append(list(accepted.values())) if accepted else []
    logged.update((envelope.id, envelope) for envelope in appended)
    return [
        refused[index] if index in refused else _publications(item, logged, firsts[index])
        for index, item in enumerate(pending)
    ]


async def publish_at_once(
    storage: Storage, workspace: WorkspaceRef, pending: Sequence[Pending[PublishRequest]]
) -> list[Sequence[Publication]] | None:
    """Appends the events of requests with nothing to look up, or returns `None`: a transaction is needed.

    That is where one names a causal chain or is of a run, or an id is in the log already or there twice, or where the
    storage failed.
    """
    if any(item.request.chain is not None or item.request.attempt is not None for item in pending):
        return None
    drafts = [draft for item in pending for draft in item.request.drafts]
    try:
        appended = iter(await storage.append(workspace, drafts))
    except DuplicateEventIdError:
        return None
    except StorageError:
        # The connection may have been lost after the commit.
        for item in pending:
            item.in_doubt = True
        return None
    return [
        [Publication(envelope, duplicate=False) for envelope in islice(appended, len(item.request.drafts))]
        for item in pending
    ]


async def publish_within(transaction: Transaction, request: PublishRequest) -> Sequence[Publication]:
    """Appends the events of one request as part of a transaction that somebody else commits.

    Raises:
        Rejected: The request was refused; nothing was appended.
    """
    (outcome,) = await publish_all(transaction, [Pending(request)])
    if isinstance(outcome, Rejected):
        raise outcome
    return outcome


def checked_id(value: str, place: str) -> str:
    """Returns an id from outside.

    Raises:
        ValidationFailed: It is no id.
    """
    try:
        return _ID.validate_python(value)
    except ValidationError as error:
        raise ValidationFailed(f"{place}: an id is 1 to 255 characters, with no NUL and no lone surrogate") from error


def _named_type(event: object) -> str | None:
    """Returns the type that something names which is to be an event."""
    match event:
        case Event(type=event_type) | {"type": str(event_type)}:
            return event_type
        case _:
            return None


def _read(event: EventLike, event_class: type[Event]) -> dict[str, Any]:
    """Returns the payload of what may be no event of its class, such as what a client sent."""
    name = event_class.event_type
    try:
        value = json_value(dict(event.payload() if isinstance(event, Event) else event), name)
        # Fields that the class does not have are refused, unless it is open by its own wish.
        extra = None if event_class.model_config.get("extra") == "allow" else "forbid"
        return event_class.model_validate_json(to_json(value), extra=extra).payload()
    except NotJsonError as error:
        raise ValidationFailed(str(error)) from error
    except ValidationError as error:
        raise ValidationFailed(f"this is no valid {name!r}", problems(error)) from error


def _not_json(events: Mapping[int, Event]) -> dict[int, Sequence[str]]:
    """Returns what keeps which of these events from being JSON: none where they were iterators, written once only."""
    found: dict[int, Sequence[str]] = {}
    for index, event in events.items():
        try:
            event.payload()
        except NotJsonError as error:
            found[index] = [str(error)]
    return found


def _new_ids(number: int) -> Iterator[str]:
    """Returns so many new ids, for which the system is asked once."""
    digits = token_hex(8 * number)
    return (f"evt_{digits[first : first + 16]}" for first in range(0, len(digits), 16))


def _refusal(
    request: PublishRequest, logged: Mapping[str, Envelope], accepted: Mapping[str, Draft], runs: Mapping[str, Run]
) -> Rejected | None:
    """Returns why a request's run may not publish any more, or why the chain that it names is none."""
    if request.attempt is not None:
        run_id, attempt = request.attempt
        run = runs.get(run_id)
        if run is None or run.status != "running" or run.attempt != attempt:
            return InvalidState(f"run {run_id!r} is no longer at attempt {attempt}: it publishes nothing more")
    chain = request.chain
    if chain is None:
        return None
    first = logged.get(chain) or accepted.get(chain)
    if first is None and chain == request.drafts[0].id:
        return None
    if first is None:
        return NotFound(f"there is no causal chain {chain!r}: a chain is named by its first event's id")
    if first.correlation_id != chain:
        return ValidationFailed(
            f"{chain!r} is a later event of a causal chain",
            [f"correlation_id: {chain!r} is a later event of the chain {first.correlation_id!r}: name that one"],
        )
    return None


def _publications(item: Pending[PublishRequest], logged: Mapping[str, Envelope], first: set[str]) -> list[Publication]:
    publications: list[Publication] = []
    for draft in item.request.drafts:
        envelope = logged[draft.id]
        fresh = draft.id in first or (item.in_doubt and _same(envelope, draft))
        publications.append(Publication(envelope, duplicate=not fresh))
        first.discard(draft.id)
    return publications


def _same(envelope: Envelope, draft: Draft) -> bool:
    """Whether an envelope is what an earlier commit of this draft appended."""
    return (envelope.payload, envelope.actor, envelope.causation, envelope.correlation_id, envelope.traceparent) == (
        draft.payload,
        draft.actor,
        draft.causation,
        draft.correlation_id,
        draft.traceparent,
    )
