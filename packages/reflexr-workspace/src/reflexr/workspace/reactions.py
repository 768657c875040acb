"""Reactions: what an action is given, and what it can do in the name of its run."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from pydantic import BaseModel, JsonValue

from reflexr.core import Answer, Envelope, Event, EventLike, Rule, Run, derived_id, json_value, model_value
from reflexr.workspace.errors import WorkspaceError
from reflexr.workspace.facts import next_id
from reflexr.workspace.handles import Workspace
from reflexr.workspace.live_attempts import LiveAttempt
from reflexr.workspace.live_output import InProcessLiveOutput
from reflexr.workspace.publishing import Publication, checked_id

type SaveCheckpoint = Callable[[str, JsonValue], Awaitable[Run]]
"""Saves a step and a value on the run, and returns the run as it then is."""


class Reaction[Deps]:
    """One attempt of a run, in the hands of its action."""

    def __init__(
        self,
        *,
        workspace: Workspace,
        run: Run,
        rule: Rule,
        envelopes: Sequence[Envelope],
        deps: Deps,
        params: BaseModel | None,
        save_checkpoint: SaveCheckpoint,
        live: LiveAttempt | None = None,
    ) -> None:
        """Puts together what an attempt needs; the reactor does.

        Args:
            workspace: The workspace, in the hands of the run.
            run: The run, at this attempt.
            rule: The rule that fired, as it is now.
            envelopes: What the firing matched.
            deps: What the application gave the reactor.
            params: The rule's params, as the action's model.
            save_checkpoint: Saves a checkpoint.
            live: Tells what the attempt says while it is at work; by default nobody hears it.
        """
        self._workspace = workspace
        self._run = run
        self._rule = rule
        self._envelopes = tuple(envelopes)
        self._deps = deps
        self._params = params
        self._save_checkpoint = save_checkpoint
        self._live = LiveAttempt(InProcessLiveOutput(), workspace.ref, run) if live is None else live
        self._attempt = run.attempt
        self._answer = run.answer
        self._emitted = 0

    @property
    def workspace(self) -> Workspace:
        """The workspace, in the hands of the run: what it publishes names the run as its cause and joins its chain."""
        return self._workspace

    @property
    def run(self) -> Run:
        """The run as it was when the attempt began, with the checkpoints saved since."""
        return self._run

    @property
    def run_id(self) -> str:
        """The run's id, the same at every attempt and its own in the workspace; others' runs may have it elsewhere."""
        return self._run.id

    @property
    def idempotency_key(self) -> str:
        """What to key by whatever the action does outside: the same at every attempt, and no other run's anywhere."""
        return derived_id("key", self._workspace.tenant_id, self._workspace.workspace_id, self._run.id)

    @property
    def rule(self) -> Rule:
        """The rule that fired, as it is now."""
        return self._rule

    @property
    def scope(self) -> Mapping[str, JsonValue]:
        """The scope's fields and their values; empty for the whole workspace."""
        return self._run.scope

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt

    @property
    def answer(self) -> Answer | None:
        """What the run was told, if it paused and its action has saved no checkpoint since; `None` if it asked nothing.

        It is the same throughout the attempt. What of it is needed after the next checkpoint belongs into that.
        """
        return self._answer

    @property
    def envelopes(self) -> tuple[Envelope, ...]:
        """The envelopes that the firing matched, in the log's order."""
        return self._envelopes

    @property
    def events(self) -> tuple[Event, ...]:
        """Their typed events.

        Raises:
            InvalidEventError: An event's class no longer accepts it.
        """
        return tuple(envelope.event for envelope in self._envelopes)

    @property
    def live(self) -> LiveAttempt:
        """What tells subscribers that ask for it what the attempt says while it is at work, and records none of it."""
        return self._live

    @property
    def deps(self) -> Deps:
        """What the application gave the reactor."""
        return self._deps

    @property
    def params(self) -> BaseModel | None:
        """The rule's params as the action's model; `None` if the action takes none."""
        return self._params

    def params_as[Params: BaseModel](self, model: type[Params]) -> Params:
        """Returns the params as the model that the action declares.

        Raises:
            WorkspaceError: The action declares another model, or none.
        """
        if isinstance(self._params, model):
            return self._params
        declared = "none" if self._params is None else type(self._params).__name__
        raise WorkspaceError(
            f"the action's params are {declared}, not {model.__name__}: read them as the model it declares"
        )

    async def emit(self, event: EventLike, *, key: str | None = None) -> Publication:
        """Publishes an event under an id derived from the run, so that an attempt that is made again appends it once.

        Args:
            event: The event.
            key: What tells the event from all others of the run, at every attempt, 1 to 255 characters. By default its
                place: how many were emitted before it since the last checkpoint. That is for an action that emits the
                same events in the same order each time; one that emits from several tasks at once gives keys.

        Raises:
            Rejected: As `Workspace.publish`. The event's place is used up all the same.
            ValidationFailed: The key is none.
        """
        place = self._next_place() if key is None else ("key", checked_id(key, "key"))
        event_id = derived_id("evt", "emitted", self._run.id, *place)
        while True:
            publication = await self._workspace.publish(event, id=event_id)
            found = publication.envelope
            is_own = found.causation is not None and found.causation.run_id == self._run.id
            if is_own and found.event_type == _type_of(event):
                return publication
            # The id can be foretold, and somebody took it for an event of theirs; or, after an answer, the run emits
            # something else in this place.
            event_id = next_id(event_id)

    def _next_place(self) -> tuple[str | int, int]:
        """Returns the place of the next event that is emitted with no key, the same at every attempt."""
        emitted, self._emitted = self._emitted, self._emitted + 1
        return self._run.checkpoints, emitted

    async def checkpoint(self, step: str, state: BaseModel | JsonValue = None) -> None:
        """Saves what the next attempt can resume from, as `run.checkpoint` after `run.step`.

        The fact `reflexr:run_progressed` records it.

        Args:
            step: The step that is done.
            state: What to resume from.

        Raises:
            InvalidState: The run is no longer at this attempt: it was cancelled, or the lease was lost. Stop.
            NotJsonError: The state is neither JSON nor a pydantic model.
        """
        place = f"the checkpoint of run {self._run.id!r}"
        value = (
            model_value(state, place, depth=1) if isinstance(state, BaseModel) else json_value(state, place, depth=1)
        )
        self._run = await self._save_checkpoint(step, value)
        self._emitted = 0


def _type_of(event: EventLike) -> object:
    """Returns the type of an event that was published."""
    return event.event_type if isinstance(event, Event) else event["type"]
