"""`Workspace`: one workspace in the hands of one actor. Every method asks the application's permissions first.

What the methods do is in the modules they call; here is who may, what is traced, and what is checked of their
arguments.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import replace
from datetime import datetime
from time import perf_counter
from typing import Any, Literal, overload

from opentelemetry.trace import Span, SpanKind
from pydantic import JsonValue

from reflexr.core import (
    Actor,
    Causation,
    DeadLetter,
    Delta,
    Envelope,
    EventLike,
    Feedback,
    NewEvent,
    NotFound,
    ReplayMode,
    Rule,
    RuleChange,
    RuleDescription,
    RuleProgress,
    RuleStatus,
    RuleVersion,
    Run,
    RunStatus,
    ScheduleStatus,
    Target,
    Transition,
    ValidationFailed,
    cancel,
    retry,
    skip,
)
from reflexr.core import answer as answer_run
from reflexr.telemetry import actor_attributes, traceparent_of
from reflexr.telemetry import attributes as names
from reflexr.workspace import arguments, operations, permissions, statuses
from reflexr.workspace.arguments import EventTypes
from reflexr.workspace.configuration import Configuration
from reflexr.workspace.errors import WorkspaceError
from reflexr.workspace.live_output import with_deltas
from reflexr.workspace.operators import Operator, checked_actor, checked_causation
from reflexr.workspace.permissions import Access, Authorize, permit
from reflexr.workspace.publishing import Publication, checked_id, publish_within
from reflexr.workspace.refs import WorkspaceRef
from reflexr.workspace.storage import Transaction
from reflexr.workspace.stored import RuleChanges


class Workspace:
    """One workspace of one tenant, in the hands of one actor.

    `Workspaces.open` returns it. Every method raises `Forbidden`, before anything is read, if the application's
    `authorize` does not let the actor do it.
    """

    def __init__(self, configuration: Configuration, operator: Operator, authorize: tuple[Authorize, ...]) -> None:
        self._configuration = configuration
        self._operator = operator
        self._authorize = authorize

    @property
    def tenant_id(self) -> str:
        """The tenant whose workspace it is."""
        return self._operator.workspace.tenant_id

    @property
    def workspace_id(self) -> str:
        """The workspace's id, its own within the tenant."""
        return self._operator.workspace.workspace_id

    @property
    def ref(self) -> WorkspaceRef:
        """How a storage names the workspace."""
        return self._operator.workspace

    @property
    def actor(self) -> Actor:
        """Who acts."""
        return self._operator.actor

    @property
    def causation(self) -> Causation | None:
        """The run that acts, if one does."""
        return self._operator.causation

    def as_actor(self, actor: Actor) -> "Workspace":
        """Returns the same workspace in the hands of another actor, whose permissions are asked from then on.

        Raises:
            ValidationFailed: The actor is none.
        """
        checked_actor(actor)
        return Workspace(self._configuration, replace(self._operator, actor=actor), self._authorize)

    def caused_by(self, causation: Causation, *, correlation_id: str, attempt: int | None = None) -> "Workspace":
        """Returns the workspace for a run: what it publishes records its cause and continues its causal chain.

        Args:
            causation: The run.
            correlation_id: Its causal chain.
            attempt: The attempt at which the run acts: what is published when it is at it no more is refused.

        Raises:
            ValidationFailed: The causation or the chain's id is none.
        """
        checked_causation(causation)
        checked_id(correlation_id, "correlation_id")
        operator = replace(self._operator, causation=causation, correlation_id=correlation_id, attempt=attempt)
        return Workspace(self._configuration, operator, self._authorize)

    # --- Publishing

    async def publish(
        self, event: EventLike, *, id: str | None = None, correlation_id: str | None = None
    ) -> Publication:
        """Appends an event to the log; one whose id is there already appends nothing.

        Publishes that arrive together share a commit, each with its own outcome.

        Args:
            event: The event, or its JSON object with its `type`, which may have no other fields than its class.
            id: The event's id, 1 to 255 characters; by default a new one. Publish again under it to be sure.
            correlation_id: The causal chain to join, by its first event's id; by default a new one, or the run's.

        Raises:
            NotFound: The event's type is none of those that may be published, or the chain does not exist.
            Forbidden: The type is reflexr's own, or one that only runs publish.
            ValidationFailed: The event, an id or the chain is not what it has to be.
            DepthExceeded: The run's causal chain would be too deep.
            InvalidState: The run that publishes is no longer at the attempt at which it does.
        """
        event_type = self._configuration.publisher.type_of(event)
        name = f"reflexr.publish {event_type}" if event_type else "reflexr.publish"
        publications = await self._publish(name, (NewEvent(event, id),), correlation_id, many=False)
        return publications[0]

    async def publish_many(
        self, events: Sequence[EventLike | NewEvent], *, correlation_id: str | None = None
    ) -> list[Publication]:
        """Appends events to the log, in order and all or none.

        Args:
            events: The events, each as in `publish`, or a `NewEvent` with its id. Those whose id is there already, or
                came earlier in the list, append nothing.
            correlation_id: The causal chain that all of them join; by default each begins its own, or joins the run's.

        Raises:
            Rejected: As `publish`. Of events that are not valid, every problem is listed with its place.
        """
        items = arguments.new_events(events)
        return await self._publish("reflexr.publish_many", items, correlation_id, many=True)

    async def publish_within(
        self, transaction: Transaction, events: Sequence[EventLike | NewEvent], *, correlation_id: str | None = None
    ) -> list[Publication]:
        """Appends events as part of a transaction at hand, in order and all or none: they are there once it commits.

        Such a transaction is the storage's own, or one that is joined to the application's, as `reflexr.sql` offers:
        then the events and the application's rows are there together or not at all.

        Args:
            transaction: An open transaction on this workspace.
            events: The events, as in `publish_many`.
            correlation_id: The causal chain that all of them join, as in `publish_many`.

        Raises:
            Rejected: As `publish_many`.
            WorkspaceError: The transaction is another workspace's.
        """
        if transaction.workspace != self.ref:
            raise WorkspaceError(f"the transaction is on {transaction.workspace!r}: open one on {self.ref!r}")
        items = arguments.new_events(events)
        return await self._publish("reflexr.publish_within", items, correlation_id, many=True, within=transaction)

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
        await self._permit(permissions.READ_EVENTS)
        registry = self._configuration.settings.registry
        window = arguments.log_window(
            registry, after_seq=after_seq, before_seq=before_seq, types=types, limit=limit, last=last
        )
        envelopes = await self._configuration.storage.read(self.ref, window)
        return [envelope.bind(registry) for envelope in envelopes]

    @overload
    def subscribe(
        self, *, after_seq: int = ..., types: EventTypes | None = ..., deltas: Literal[False] = ...
    ) -> AsyncGenerator[Envelope]: ...

    @overload
    def subscribe(
        self, *, after_seq: int = ..., types: EventTypes | None = ..., deltas: bool
    ) -> AsyncGenerator[Envelope | Delta]: ...

    async def subscribe(
        self, *, after_seq: int = 0, types: EventTypes | None = None, deltas: bool = False
    ) -> AsyncGenerator[Envelope | Delta]:
        """Yields the log's envelopes after a place, then those to come, each once and in order, without end.

        Close the generator, or cancel the task that awaits it, to end the subscription.

        With `deltas` it yields among them what runs say while they are at work, whatever the types, from when the first
        is asked for. Deltas are lost while the subscriber is behind; envelopes never are.

        Raises:
            ValidationFailed: As `read`.
        """
        await self._permit(permissions.READ_EVENTS)
        window = arguments.log_window(self._configuration.settings.registry, after_seq=after_seq, types=types)
        feed = self._configuration.feeds.follow(self.ref, window.after_seq, window.types)
        # A generator that is not closed goes on listening until it is collected.
        live_output = self._configuration.settings.live_output
        following = with_deltas(feed, live_output, self.ref) if deltas else feed
        async with aclosing(feed), aclosing(following):
            async for one in following:
                yield one

    async def head_seq(self) -> int:
        """Returns the place of the log's last envelope: 0 if it holds none."""
        await self._permit(permissions.READ_EVENTS)
        return (await self._configuration.storage.head(self.ref)).seq

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
        await self._permit(permissions.READ_RUNS, rule)
        arguments.checked_texts(rule=rule, scope_key=scope_key)
        query = arguments.run_query(rule=rule, scope_key=scope_key, status=status, limit=limit)
        return await self._configuration.storage.runs(self.ref, query)

    async def run(self, run_id: str) -> Run:
        """Returns one run.

        Raises:
            NotFound: There is no such run.
        """
        await self._permit(permissions.READ_RUNS)
        arguments.checked_texts(run_id=run_id)
        run = await self._configuration.storage.run(self.ref, run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r} in this workspace")
        return run

    async def retry_run(self, run_id: str) -> Run:
        """Queues a run again that was dead-lettered, cancelled or skipped, and returns it as it is then.

        Raises:
            NotFound: There is no such run.
            InvalidState: The run has not ended, or has succeeded.
        """
        return await self._change_run(permissions.RETRY_RUN, run_id, lambda run, _: retry(run, actor=self.actor))

    async def skip_run(self, run_id: str, *, reason: str | None = None) -> Run:
        """Gives up a run that waits or is dead-lettered, so that it holds back no later one, and returns it.

        Raises:
            NotFound: There is no such run.
            InvalidState: The run is running, or has ended in another way.
        """
        return await self._change_run(
            permissions.SKIP_RUN,
            run_id,
            lambda run, transaction: skip(run, now=transaction.now, actor=self.actor, reason=reason),
        )

    async def cancel_run(self, run_id: str, *, reason: str | None = None) -> Run:
        """Ends a run that has not ended, and returns it. If it is running, its action is stopped.

        Raises:
            NotFound: There is no such run.
            InvalidState: The run has ended.
        """
        return await self._change_run(
            permissions.CANCEL_RUN,
            run_id,
            lambda run, transaction: cancel(run, now=transaction.now, actor=self.actor, reason=reason),
        )

    async def resume_run(self, run_id: str, *, answer: JsonValue = None, attempt: int | None = None) -> Run:
        """Answers a paused run, and returns it as it is then: it starts again once it is its turn.

        Args:
            run_id: The run, whose `waiting` says what it asks.
            answer: The answer, which is its action's to understand.
            attempt: The attempt whose question it answers, the run's `attempt` when that was read. Without it the
                answer is to whatever the run asks now.

        Raises:
            NotFound: There is no such run.
            InvalidState: The run is not paused, or by now asks something else than that attempt did.
            ValidationFailed: The answer is not JSON, or the attempt no whole number from 1.
        """
        return await self._change_run(
            permissions.RESUME_RUN,
            run_id,
            lambda run, transaction: answer_run(
                run, now=transaction.now, value=answer, actor=self.actor, attempt=attempt
            ),
            check=lambda: arguments.checked_answer(answer, attempt),
        )

    async def give_feedback(self, feedback: Feedback, *, on: Target) -> Envelope:
        """Records a judgement of a run, a firing or a causal chain, and returns its fact, which joins that chain.

        Args:
            feedback: The judgement.
            on: What it is about; a chain is named by its first event's id.

        Raises:
            ValidationFailed: It is no feedback or no target, feedback of this type is not given on such a target, or
                the chain is named by a later event.
            NotFound: There is no such target.
            DepthExceeded: The run that gives it is too deep in its own chain.
        """
        arguments.checked_feedback(feedback, on)
        feedback_type = feedback.feedback_type
        with self._span(f"reflexr.feedback {feedback_type}", {names.FEEDBACK_TYPE: feedback_type}) as span:
            await self._permit(permissions.GIVE_FEEDBACK)
            envelope = await operations.give_feedback(
                self._configuration, self._operator, feedback, on, traceparent_of(span)
            )
            span.set_attribute(names.SESSION, envelope.correlation_id)
        if (instruments := self._configuration.instruments).active:
            instruments.feedback.add(
                1,
                {
                    "reflexr.tenant.id": self.tenant_id,
                    "reflexr.workspace.id": self.workspace_id,
                    "reflexr.feedback.type": feedback_type,
                },
            )
        return envelope.bind(self._configuration.settings.registry)

    # --- Rules

    async def rule_progress(self) -> dict[str, RuleProgress]:
        """Returns how far each rule has come that has begun here, by name."""
        await self._permit(permissions.READ_RULES)
        return await self._configuration.storage.progress(self.ref)

    async def rule_statuses(self) -> list[RuleStatus]:
        """Returns how each of the workspace's rules stands: the code rules, then its active stored rules."""
        await self._permit(permissions.READ_RULES)
        return await statuses.rule_statuses(self._configuration, self.ref)

    async def get_rule(self, rule: str) -> RuleDescription:
        """Returns one of the workspace's rules, also a stored rule that was archived.

        Raises:
            NotFound: There is no such rule.
        """
        await self._permit(permissions.READ_RULES, rule)
        arguments.checked_texts(rule=rule)
        return await statuses.describe_rule(self._configuration, self.ref, rule)

    async def rule_history(self, rule: str) -> list[Envelope]:
        """Returns a stored rule's versions, oldest first: the facts that installed, updated and archived it.

        An archived rule keeps its history; that of a rule that was never stored is empty.
        """
        await self._permit(permissions.READ_RULES, rule)
        arguments.checked_texts(rule=rule)
        envelopes = await self._configuration.storage.rule_history(self.ref, rule)
        return [envelope.bind(self._configuration.settings.registry) for envelope in envelopes]

    async def dead_letters(self, *, rule: str | None = None, limit: int | None = None) -> list[DeadLetter]:
        """Returns the envelopes that rules could not decide on, oldest first.

        Args:
            rule: Only those of this rule.
            limit: The newest so many.

        Raises:
            ValidationFailed: The limit is no whole number from 0 to 2^63-1.
        """
        await self._permit(permissions.READ_DEAD_LETTERS, rule)
        arguments.checked_texts(rule=rule)
        if limit is not None:
            arguments.checked_number("limit", limit)
        return await self._configuration.storage.dead_letters(self.ref, rule=rule, limit=limit)

    async def replay_rule(self, rule: str, *, from_seq: int, mode: ReplayMode) -> RuleProgress:
        """Has a rule evaluate the log again, and returns where it stands then.

        Args:
            rule: The rule's name.
            from_seq: The first place to evaluate, from 1 to the place after the log's last.
            mode: `rebuild` recomputes the rule's state without firing up to the head; `refire` fires again for the
                past.

        Raises:
            NotFound: The workspace has no such rule.
            ValidationFailed: `from_seq` is no such place, or the mode is none.
        """
        with self._span("reflexr.replay_rule", {names.RULE: rule}) as span:
            await self._permit(permissions.REPLAY_RULE, rule)
            arguments.checked_texts(rule=rule)
            arguments.checked_number("from_seq", from_seq)
            if mode not in ("rebuild", "refire"):
                raise ValidationFailed(f"mode: {mode!r} is neither 'rebuild' nor 'refire'")
            return await operations.replay_rule(
                self._configuration,
                self._operator,
                rule,
                from_seq=from_seq,
                mode=mode,
                traceparent=traceparent_of(span),
            )

    async def install_rule(self, rule: Rule, *, provenance: Mapping[str, Any] | None = None) -> RuleVersion:
        """Stores a rule in the workspace, which begins at its fact. Storing what is stored already changes nothing.

        Args:
            rule: The rule.
            provenance: Where it comes from; a JSON object of at most 4 KiB, opaque to reflexr.

        Raises:
            Forbidden: Stored rules are off, or the configuration does not allow the change.
            ValidationFailed: The rule or the provenance cannot be stored; every problem is listed.
            InvalidState: The rule is active already, or the workspace has as many as it may.
        """
        change = RuleChange(kind="install", name=rule.name, rule=rule, provenance=provenance or {})
        return await self._change_rule(permissions.INSTALL_RULE, change, lambda changes: changes.save(change, rule))

    async def update_rule(
        self, rule: Rule, *, expected_version: int | None = None, provenance: Mapping[str, Any] | None = None
    ) -> RuleVersion:
        """Stores a rule's next version; it is reset at its fact if its definition changed.

        Args:
            rule: The rule as it is to be.
            expected_version: The version it is to follow; by default whichever is current.
            provenance: Where the version comes from; a JSON object of at most 4 KiB, opaque to reflexr.

        Raises:
            Forbidden: Stored rules are off, or the configuration does not allow the change.
            ValidationFailed: The rule or the provenance cannot be stored; every problem is listed.
            NotFound: The rule was never installed.
            InvalidState: The rule is archived, or another version is current.
        """
        change = RuleChange(
            kind="update", name=rule.name, rule=rule, provenance=provenance or {}, expected_version=expected_version
        )
        return await self._change_rule(permissions.UPDATE_RULE, change, lambda changes: changes.save(change, rule))

    async def archive_rule(
        self, rule: str, *, expected_version: int | None = None, reason: str | None = None
    ) -> RuleVersion:
        """Ends a stored rule: its unfinished runs are cancelled and its state is cleared.

        Args:
            rule: The rule's name.
            expected_version: The version to end; by default whichever is current.
            reason: Why.

        Raises:
            Forbidden: Stored rules are off, or the configuration does not allow the change.
            NotFound: The rule was never installed.
            InvalidState: Another version is current.
        """
        change = RuleChange(kind="archive", name=rule, expected_version=expected_version, reason=reason)
        return await self._change_rule(permissions.ARCHIVE_RULE, change, lambda changes: changes.archive(change))

    # --- Schedules and cursors

    async def schedule_ticks(self) -> dict[str, datetime]:
        """Returns when each schedule last ticked here, by name."""
        await self._permit(permissions.READ_SCHEDULES)
        return await self._configuration.storage.schedule_ticks(self.ref)

    async def schedule_statuses(self) -> list[ScheduleStatus]:
        """Returns how each schedule stands that targets the workspace."""
        await self._permit(permissions.READ_SCHEDULES)
        return await statuses.schedule_statuses(self._configuration, self.ref)

    async def cursor(self, name: str) -> int:
        """Returns where a consumer of the log stands, such as a mirror: 0 if it saved no place yet."""
        await self._permit(permissions.READ_CURSORS)
        arguments.checked_texts(name=name)
        return await self._configuration.storage.cursor(self.ref, name)

    async def save_cursor(self, name: str, seq: int) -> int:
        """Moves a consumer's cursor forward, never back, and returns where it is then.

        Raises:
            ValidationFailed: The name is no id, or the place is no whole number from 0 to 2^63-1.
        """
        await self._permit(permissions.SAVE_CURSOR)
        arguments.checked_cursor(name, seq)
        return await self._configuration.storage.save_cursor(self.ref, name, seq)

    # --- Inside

    async def _permit(self, action: str, rule: str | None = None) -> None:
        if self._authorize:
            await permit(self._authorize, self.tenant_id, self.workspace_id, self.actor, Access(action, rule))

    def _span(
        self, name: str, more: names.Attributes, *, kind: SpanKind = SpanKind.INTERNAL
    ) -> AbstractContextManager[Span]:
        return self._configuration.tracing.span(name, lambda: {**self._attributes(), **more}, kind=kind)

    def _attributes(self) -> names.Attributes:
        session = self._operator.correlation_id
        return {
            names.TENANT: self.tenant_id,
            names.WORKSPACE: self.workspace_id,
            **actor_attributes(self.actor),
            **({} if session is None else {names.SESSION: session}),
        }

    async def _publish(
        self,
        name: str,
        items: Sequence[NewEvent],
        correlation_id: str | None,
        *,
        many: bool,
        within: Transaction | None = None,
    ) -> list[Publication]:
        instruments = self._configuration.instruments
        began = perf_counter() if instruments.active else 0.0
        with self._span(name, {names.EVENT_COUNT: len(items)}, kind=SpanKind.PRODUCER) as span:
            await self._permit(permissions.PUBLISH)
            request = self._configuration.publisher.request(
                self._operator, items, chain=correlation_id, traceparent=traceparent_of(span), many=many
            )
            if not request.drafts:
                return []
            if within is None:
                published = await self._configuration.publishes.submit(self.ref, request)
            else:
                published = await publish_within(within, request)
            if span.is_recording():
                first = published[0].envelope
                span.set_attribute(names.SESSION, first.correlation_id)
                span.set_attribute(names.EVENT_SEQ, first.seq)
                span.set_attribute(names.DUPLICATE, published[0].duplicate)
        if instruments.active:
            self._measure(published, perf_counter() - began)
        registry = self._configuration.settings.registry
        return [
            item if (bound := item.envelope.bind(registry)) is item.envelope else Publication(bound, item.duplicate)
            for item in published
        ]

    def _measure(self, published: Sequence[Publication], seconds: float) -> None:
        instruments = self._configuration.instruments
        for item in published:
            counter = instruments.duplicates if item.duplicate else instruments.events
            counter.add(
                1,
                {
                    "reflexr.tenant.id": self.tenant_id,
                    "reflexr.workspace.id": self.workspace_id,
                    "reflexr.event.type": item.envelope.event_type,
                },
            )
        instruments.publish_duration.record(
            seconds, {"reflexr.tenant.id": self.tenant_id, "reflexr.workspace.id": self.workspace_id}
        )

    async def _change_run(
        self,
        action: str,
        run_id: str,
        move: Callable[[Run, Transaction], Transition],
        *,
        check: Callable[[], None] | None = None,
    ) -> Run:
        with self._span(action.replace(":", "."), {names.RUN: run_id}) as span:
            await self._permit(action)
            arguments.checked_texts(run_id=run_id)
            if check is not None:
                check()
            run = await operations.change_run(self._configuration, self._operator, run_id, move, traceparent_of(span))
            span.set_attributes({names.RULE: run.rule, names.RUN_STATUS: run.status, names.SESSION: run.correlation_id})
            return run

    async def _change_rule(
        self, action: str, change: RuleChange, make: Callable[[RuleChanges], Awaitable[RuleVersion]]
    ) -> RuleVersion:
        with self._span(action.replace(":", "."), {names.RULE: change.name}) as span:
            await self._permit(action, change.name)
            arguments.checked_texts(rule=change.name)
            if change.expected_version is not None:
                arguments.checked_number("expected_version", change.expected_version)
            changes = RuleChanges(self._configuration, self._operator, traceparent_of(span))
            return await make(changes)
