"""`RemoteWorkspace`: one workspace of a server, with the methods that a handle has in process.

What carries requests and streams is in the modules it calls; here is what is asked, and what the answer is read as.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, overload

from pydantic import JsonValue, TypeAdapter

from reflexr.client import answers, arguments
from reflexr.client.arguments import EventTypes
from reflexr.client.cursors import StreamCursor
from reflexr.client.requests import Requests
from reflexr.client.streams import Streams
from reflexr.core import (
    ArchiveRule,
    CancelRun,
    Command,
    DeadLetter,
    Delta,
    Envelope,
    EventLike,
    EventRegistry,
    Feedback,
    InstallRule,
    NewEvent,
    Outcome,
    Published,
    Recorded,
    ReplayMode,
    ReplayRule,
    ResumeRun,
    RetryRun,
    Rule,
    RuleDescription,
    RuleProgress,
    RuleReplayed,
    RuleStatus,
    RuleVersion,
    Run,
    RunChanged,
    RunStatus,
    ScheduleStatus,
    SkipRun,
    Target,
    UpdateRule,
)


class RemoteWorkspace:
    """One workspace of a server, in the hands of one participant. `Client.workspace` returns it.

    Every method raises what the handle's raises in process: `Forbidden` if the participant may not do it, and the other
    rejections as they are named there. Besides, every method raises `Unauthorized` if the server does not know who
    asks, `Unavailable` if it was not reached or did not answer, and `UnexpectedAnswer` if what answers is no such
    server.

    A method that changes something takes a `command_id`, by which the server recognises a repetition and gives the
    first result; by default a new one, which covers the repetitions that the client makes by itself. Give your own to
    go on where a process died.
    """

    def __init__(self, workspace_id: str, requests: Requests, streams: Streams, registry: EventRegistry) -> None:
        self._workspace_id = workspace_id
        self._requests = requests
        self._streams = streams
        self._registry = registry

    @property
    def workspace_id(self) -> str:
        """The workspace's id, its own within the participant's tenant."""
        return self._workspace_id

    # --- Publishing

    async def publish(
        self,
        event: EventLike,
        *,
        id: str | None = None,
        correlation_id: str | None = None,
        command_id: str | None = None,
    ) -> Published:
        """Appends an event to the log; one whose id is there already appends nothing.

        Args:
            event: The event, or its JSON object with its `type`, which may have no other fields than its class.
            id: The event's id, 1 to 255 characters; by default a new one.
            correlation_id: The causal chain to join, by its first event's id; by default a new one.
            command_id: What a repetition is recognised by.

        Raises:
            NotFound: The event's type is none of those that may be published, or the chain does not exist.
            Forbidden: The type is reflexr's own, or one that only runs publish.
            ValidationFailed: The event, an id or the chain is not what it has to be.
        """
        command = arguments.publish_command(event, id, correlation_id)
        published = await self._command(lambda: command, Published, command_id)
        return published if id is not None else answers.first(published)

    async def publish_many(
        self,
        events: Sequence[EventLike | NewEvent],
        *,
        correlation_id: str | None = None,
        command_id: str | None = None,
    ) -> list[Published]:
        """Appends events to the log, in order and all or none.

        Args:
            events: The events, each as in `publish`, or a `NewEvent` with its id. Those whose id is there already, or
                came earlier in the list, append nothing. With none, nothing is asked.
            correlation_id: The causal chain that all of them join; by default each begins its own.
            command_id: What a repetition is recognised by; it travels in a header, so it is ASCII with no spaces.

        Raises:
            Rejected: As `publish`. Of events that are not valid, every problem is listed with its place.
        """
        batch = arguments.batch(events, correlation_id, command_id)
        return await self._requests.publish(batch, *self._path("events")) if batch.commands else []

    # --- The log

    async def read(
        self,
        *,
        after_seq: int = 0,
        before_seq: int | None = None,
        types: EventTypes | None = None,
        limit: int | None = None,
        last: int | None = None,
    ) -> list[Envelope]:
        """Returns the log's envelopes with `after_seq < seq < before_seq`, oldest first.

        Args:
            after_seq: The place before the first.
            before_seq: The place after the last; by default the log's end.
            types: The event types to read; by default all.
            limit: The first so many.
            last: The last so many, still oldest first; not together with `limit`.

        Raises:
            ValidationFailed: A number is no whole number from 0 to 2^63-1, `limit` comes with `last`, or a type is
                none.
        """
        parameters = arguments.window(after_seq=after_seq, before_seq=before_seq, types=types, limit=limit, last=last)
        envelopes = await self._requests.get(answers.ENVELOPES, *self._path("events"), parameters=parameters)
        return self._bound(envelopes)

    @overload
    def subscribe(
        self,
        *,
        after_seq: int = ...,
        from_head: bool = ...,
        types: EventTypes | None = ...,
        deltas: Literal[False] = ...,
    ) -> AsyncGenerator[Envelope]: ...

    @overload
    def subscribe(
        self, *, after_seq: int = ..., from_head: bool = ..., types: EventTypes | None = ..., deltas: bool
    ) -> AsyncGenerator[Envelope | Delta]: ...

    async def subscribe(
        self, *, after_seq: int = 0, from_head: bool = False, types: EventTypes | None = None, deltas: bool = False
    ) -> AsyncGenerator[Envelope | Delta]:
        """Yields the log's envelopes after a place, then those to come, each once and in order, without end.

        It goes on by itself where it was, whatever becomes of its connections and of the server. Close the generator,
        or cancel the task that awaits it, to end the subscription.

        With `deltas` it yields among them what runs say while they are at work, from the end of the past on. Deltas are
        lost while the subscriber is behind or not connected; envelopes never are.

        Args:
            after_seq: The place after which it begins.
            from_head: Whether it begins at the log's head instead, as that is when the first envelope is asked for.
            types: The event types to yield, at least one; by default all.
            deltas: Whether to yield deltas, too: those of all runs, whatever the types.

        Raises:
            LogReset: The log ends before the place after which it was to go on, so it is another one now.
            ValidationFailed: `after_seq` is no whole number from 0 to 2^63-1, it comes with `from_head`, or a type is
                none.
            Unavailable: The stream could not be opened a first time; later it is tried without end.
            UnexpectedAnswer: The server breaks the protocol at one place, as often and as long as the back-off allows.
        """
        cursor = StreamCursor(self._workspace_id, after_seq=after_seq, from_head=from_head, types=types, deltas=deltas)
        # A generator that is not closed keeps its connection until it is collected.
        async with aclosing(self._streams.follow(self._workspace_id, cursor)) as following:
            async for one in following:
                yield one.bind(self._registry) if isinstance(one, Envelope) else one

    async def head_seq(self) -> int:
        """Returns the place of the log's last envelope: 0 if it holds none."""
        newest = await self.read(last=1)
        return newest[-1].seq if newest else 0

    # --- Runs

    async def runs(
        self,
        *,
        rule: str | None = None,
        scope_key: str | None = None,
        status: RunStatus | None = None,
        limit: int | None = None,
    ) -> list[Run]:
        """Returns runs, newest first.

        Args:
            rule: Only those of this rule.
            scope_key: Only those of this scope, which is the canonical JSON of the list of its values.
            status: Only those in this status.
            limit: The newest so many.

        Raises:
            ValidationFailed: The limit is no whole number from 0 to 2^63-1, or the status is none.
        """
        arguments.checked_numbers(limit=limit)
        return await self._get(answers.RUNS, "runs", rule=rule, scope_key=scope_key, status=status, limit=limit)

    async def run(self, run_id: str) -> Run:
        """Returns one run.

        Raises:
            NotFound: There is no such run.
        """
        return await self._get(answers.RUN, "runs", arguments.named(run_id, "run"))

    async def retry_run(self, run_id: str, *, command_id: str | None = None) -> Run:
        """Queues a run again that was dead-lettered, cancelled or skipped, and returns it as it is then.

        Raises:
            NotFound: There is no such run.
            InvalidState: The run has not ended, or has succeeded.
        """
        return (await self._command(lambda: RetryRun(run_id=run_id), RunChanged, command_id)).run

    async def skip_run(self, run_id: str, *, reason: str | None = None, command_id: str | None = None) -> Run:
        """Gives up a run that waits or is dead-lettered, so that it holds back no later one, and returns it.

        Raises:
            NotFound: There is no such run.
            InvalidState: The run is running, or has ended otherwise.
        """
        return (await self._command(lambda: SkipRun(run_id=run_id, reason=reason), RunChanged, command_id)).run

    async def cancel_run(self, run_id: str, *, reason: str | None = None, command_id: str | None = None) -> Run:
        """Ends a run that has not ended, and returns it. If it is running, its action is stopped.

        Raises:
            NotFound: There is no such run.
            InvalidState: The run has ended.
        """
        return (await self._command(lambda: CancelRun(run_id=run_id, reason=reason), RunChanged, command_id)).run

    async def resume_run(
        self, run_id: str, *, answer: JsonValue = None, attempt: int | None = None, command_id: str | None = None
    ) -> Run:
        """Answers a paused run, and returns it as it is then: it starts again once it is its turn.

        Args:
            run_id: The run, whose `waiting` says what it asks.
            answer: The answer, which is its action's to understand.
            attempt: The attempt whose question it answers, the run's `attempt` when that was read. Without it the
                answer is to whatever the run asks now.
            command_id: What a repetition is recognised by; by default a new one.

        Raises:
            NotFound: There is no such run.
            InvalidState: The run is not paused, or by now asks something else than that attempt did.
            ValidationFailed: The answer is not JSON, or the attempt no whole number from 1.
        """
        return (
            await self._command(
                lambda: ResumeRun(run_id=run_id, answer=answer, attempt=attempt), RunChanged, command_id
            )
        ).run

    async def give_feedback(self, feedback: Feedback, *, on: Target, command_id: str | None = None) -> Recorded:
        """Records a judgement of a run, a firing or a causal chain, and returns the place and the id of its fact.

        Args:
            feedback: The judgement.
            on: What it is about; a chain is named by its first event's id.
            command_id: What a repetition is recognised by.

        Raises:
            ValidationFailed: It is no feedback or no target, feedback of this type is not given on such a target, or
                the chain is named by a later event.
            NotFound: There is no such target, or the server has no such type of feedback.
        """
        return await self._command(lambda: arguments.feedback_command(feedback, on), Recorded, command_id)

    # --- Rules

    async def rule_statuses(self) -> list[RuleStatus]:
        """Returns how each of the workspace's rules stands: the code rules, then its active stored rules."""
        return await self._get(answers.RULE_STATUSES, "rules")

    async def get_rule(self, rule: str) -> RuleDescription:
        """Returns one of the workspace's rules, also a stored rule that was archived.

        Raises:
            NotFound: There is no such rule.
        """
        return await self._get(answers.RULE, "rules", arguments.named(rule, "rule"))

    async def rule_history(self, rule: str) -> list[Envelope]:
        """Returns a stored rule's versions, oldest first: the facts that installed, updated and archived it.

        An archived rule keeps its history; that of a rule that was never stored is empty.
        """
        return self._bound(await self._get(answers.ENVELOPES, "rules", arguments.named(rule, "rule"), "history"))

    async def dead_letters(self, *, rule: str | None = None, limit: int | None = None) -> list[DeadLetter]:
        """Returns the envelopes that rules could not decide on, oldest first.

        Args:
            rule: Only those of this rule.
            limit: The newest so many.

        Raises:
            ValidationFailed: The limit is no whole number from 0 to 2^63-1.
        """
        arguments.checked_numbers(limit=limit)
        return await self._get(answers.DEAD_LETTERS, "dead-letters", rule=rule, limit=limit)

    async def replay_rule(
        self, rule: str, *, from_seq: int, mode: ReplayMode, command_id: str | None = None
    ) -> RuleProgress:
        """Has a rule evaluate the log again, and returns where it stands then.

        Args:
            rule: The rule's name.
            from_seq: The first place to evaluate, from 1 to the place after the log's last.
            mode: `rebuild` recomputes the rule's state without firing up to the head; `refire` fires again for the
                past.
            command_id: What a repetition is recognised by.

        Raises:
            NotFound: The workspace has no such rule.
            ValidationFailed: `from_seq` is no such place, or the mode is none.
        """
        replayed = await self._command(
            lambda: ReplayRule(rule=rule, from_seq=from_seq, mode=mode), RuleReplayed, command_id
        )
        return replayed.progress

    async def install_rule(
        self, rule: Rule, *, provenance: Mapping[str, Any] | None = None, command_id: str | None = None
    ) -> RuleVersion:
        """Stores a rule in the workspace, which begins at its fact. Storing what is stored already changes nothing.

        Args:
            rule: The rule.
            provenance: Where it comes from; a JSON object of at most 4 KiB, opaque to reflexr.
            command_id: What a repetition is recognised by.

        Raises:
            Forbidden: Stored rules are off, or the configuration does not allow the change.
            ValidationFailed: The rule or the provenance cannot be stored; every problem is listed.
            InvalidState: The rule is active already, or the workspace has as many as it may.
        """
        return await self._command(
            lambda: InstallRule(rule=rule, provenance=dict(provenance or {})), RuleVersion, command_id
        )

    async def update_rule(
        self,
        rule: Rule,
        *,
        expected_version: int | None = None,
        provenance: Mapping[str, Any] | None = None,
        command_id: str | None = None,
    ) -> RuleVersion:
        """Stores a rule's next version; it is reset at its fact if its definition changed.

        Args:
            rule: The rule as it is to be.
            expected_version: The version it is to follow; by default whichever is current.
            provenance: Where the version comes from; a JSON object of at most 4 KiB, opaque to reflexr.
            command_id: What a repetition is recognised by.

        Raises:
            Forbidden: Stored rules are off, or the configuration does not allow the change.
            ValidationFailed: The rule or the provenance cannot be stored; every problem is listed.
            NotFound: The rule was never installed.
            InvalidState: The rule is archived, or another version is current.
        """
        return await self._command(
            lambda: UpdateRule(rule=rule, expected_version=expected_version, provenance=dict(provenance or {})),
            RuleVersion,
            command_id,
        )

    async def archive_rule(
        self,
        rule: str,
        *,
        expected_version: int | None = None,
        reason: str | None = None,
        command_id: str | None = None,
    ) -> RuleVersion:
        """Ends a stored rule: its unfinished runs are cancelled and its state is cleared.

        Args:
            rule: The rule's name.
            expected_version: The version to end; by default whichever is current.
            reason: Why.
            command_id: What a repetition is recognised by.

        Raises:
            Forbidden: Stored rules are off, or the configuration does not allow the change.
            NotFound: The rule was never installed.
            InvalidState: Another version is current.
        """
        return await self._command(
            lambda: ArchiveRule(rule=rule, expected_version=expected_version, reason=reason), RuleVersion, command_id
        )

    async def schedule_statuses(self) -> list[ScheduleStatus]:
        """Returns how each schedule stands that targets the workspace."""
        return await self._get(answers.SCHEDULE_STATUSES, "schedules")

    # --- Inside

    def _path(self, *segments: str) -> tuple[str, ...]:
        return ("workspaces", self._workspace_id, *segments)

    async def _get[T](self, adapter: TypeAdapter[T], *segments: str, **parameters: str | int | None) -> T:
        arguments.checked_texts(**{name: value for name, value in parameters.items() if not isinstance(value, int)})
        return await self._requests.get(adapter, *self._path(*segments), parameters=parameters)

    async def _command[O: Outcome](self, command: Callable[[], Command], kind: type[O], command_id: str | None) -> O:
        frame = arguments.command_frame(command, command_id)
        return await self._requests.command(frame, kind, *self._path("commands"))

    def _bound(self, envelopes: list[Envelope]) -> list[Envelope]:
        return [envelope.bind(self._registry) for envelope in envelopes]
