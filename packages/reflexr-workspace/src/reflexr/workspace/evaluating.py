"""Evaluating: rules decide on the next envelopes of a workspace's log, and what they decide is saved, at once.

What they decide is `reflexr.core`'s. Which workspaces are evaluated when is `reflexr.workspace.rounds`'s.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from logging import getLogger
from time import perf_counter
from typing import Any, Final

from reflexr.core import (
    Batch,
    DeadLetter,
    Draft,
    Envelope,
    Evaluation,
    Firing,
    Needs,
    Rule,
    RuleProgress,
    RuleSet,
    Run,
    begin,
    create_run,
    evaluate,
    needs,
    reset,
)
from reflexr.telemetry import Attributes, attributes, traceparent_of, untraced
from reflexr.workspace.configuration import Configuration
from reflexr.workspace.executing import Executor, Starting
from reflexr.workspace.facts import append_facts
from reflexr.workspace.refs import EVALUATION_LEASE, LeaseKey, WorkspaceRef
from reflexr.workspace.rounds import FIRST_DELAY, PARALLEL, Delays, Work
from reflexr.workspace.slots import EVERYWHERE
from reflexr.workspace.storage import LogWindow, StateChanges, Transaction, Watch

_LOGGER: Final = getLogger("reflexr.workspace.reactor")
_MAX_SETS: Final = 64
_MANY: Final = 1_000


class Evaluator:
    """Evaluates workspaces for one reactor."""

    def __init__(self, configuration: Configuration, *, holder: str, batch_size: int, lease_ttl: timedelta) -> None:
        """Prepares to evaluate.

        Args:
            configuration: The rules, and where the workspaces are.
            holder: Who holds the leases.
            batch_size: How many envelopes one transaction evaluates at most.
            lease_ttl: How long a lease lasts that is not renewed.
        """
        self.configuration = configuration
        self.storage = configuration.storage
        self.holder = holder
        self.batch_size = batch_size
        self.lease_ttl = lease_ttl
        stored_rules = configuration.settings.stored_rules
        self.watch: Final = Watch(
            definitions={rule.name: rule.definition() for rule in configuration.rules.values() if rule.enabled},
            stored=frozenset() if stored_rules is None else stored_rules.namespaces,
        )
        # The rules of a set are kept alive by it, so no other rule can have their identities while it is here.
        self._sets: dict[tuple[int, ...], RuleSet] = {}
        self._reported: dict[tuple[WorkspaceRef, str], str] = {}
        self._resets = Delays[tuple[WorkspaceRef, str]]()

    def rule_set(self, rules: Sequence[Rule]) -> RuleSet:
        """Returns these rules by the types that they admit, made once for as long as they are in use."""
        key = tuple(map(id, rules))
        found = self._sets.pop(key, None)
        if found is None:
            found = RuleSet(rules)
            if len(self._sets) == _MAX_SETS:
                del self._sets[next(iter(self._sets))]
        self._sets[key] = found
        return found

    def may_reset(self, workspace: WorkspaceRef, rule: str) -> bool:
        """Whether a rule of another definition may be reset to this process's now; if so, it counts as reset.

        While processes with different definitions of a rule are at work, as in a rolling deploy, each undoes what the
        other did. So the first reset is made at once, and each further one later than the last, which bounds what that
        puts into the log.
        """
        key = (workspace, rule)
        if key in self._resets:
            return False
        again = self._resets.known(key)
        delay = self._resets.add(key)
        if again:
            _LOGGER.warning(
                "%r was reset again in %s, as another process defines it otherwise; it is not again within %s",
                rule,
                workspace,
                delay,
            )
        return True

    def report(self, workspace: WorkspaceRef, rule: str, error: BaseException) -> None:
        """Reports a rule whose evaluation broke, once for as long as it breaks in the same way."""
        text = f"{type(error).__name__}: {error}"
        if self._reported.get((workspace, rule)) == text:
            return
        self._reported[workspace, rule] = text
        _LOGGER.error(
            "the evaluation of %r broke in %s; the other rules go on, and it is tried again later",
            rule,
            workspace,
            exc_info=error,
        )

    def works_again(self, workspace: WorkspaceRef, rules: Iterable[Rule]) -> None:
        """Forgets what was reported of these rules."""
        if self._reported:
            for rule in rules:
                self._reported.pop((workspace, rule.name), None)


class Evaluating:
    """The duty of evaluating every workspace where a rule has something to do."""

    name = "evaluating"

    def __init__(
        self, evaluator: Evaluator, stop: asyncio.Event | None = None, executor: Executor[Any] | None = None
    ) -> None:
        """Takes up the duty.

        Args:
            evaluator: Who evaluates.
            stop: Ends it after the batch at hand. Without one, what breaks is not tried again.
            executor: Who serves beside it: starts what is fired, where it has room, and hears of a workspace that
                changed once that was evaluated.
        """
        self._evaluator = evaluator
        self._stop = stop
        self._executor = executor
        self._aside = Delays[WorkspaceRef]()
        self._elsewhere: set[WorkspaceRef] = set()
        # Those that are being evaluated, and whether they changed meanwhile.
        self._at_hand: dict[WorkspaceRef, bool] = {}
        self._changed: set[WorkspaceRef] = set()
        self._in_vain: set[WorkspaceRef] = set()
        self._looked = True

    @property
    def contended(self) -> bool:
        """Whether a workspace was left to another reactor, which has it in hand."""
        return bool(self._elsewhere)

    @property
    def idle(self) -> bool:
        """Always: everything that it does is work that was found."""
        return True

    def heard(self, changed: frozenset[WorkspaceRef]) -> bool:
        """Takes note of workspaces that changed: they are gone to at once, and also if they were left alone.

        Not those that another reactor has in hand, as they change with each of its commits, and not those where it was
        in vain last time: these are looked for with all the others.
        """
        at_hand = changed & self._at_hand.keys()
        self._at_hand.update(dict.fromkeys(at_hand, True))
        for workspace in changed - self._elsewhere:
            self._aside.forget(workspace)
        at_once = changed - at_hand - self._elsewhere - self._in_vain - {EVERYWHERE}
        self._changed |= at_once
        others = changed - at_hand - at_once
        if others or not changed:
            self._pass_on(others)
        return at_hand != changed or not changed

    async def find(self, busy: Collection[WorkspaceRef]) -> Mapping[WorkspaceRef, Work]:
        """Returns workspaces that changed, and those that are behind; the latter at least every other time."""
        room = PARALLEL - len(busy)
        behind: Sequence[WorkspaceRef] = ()
        looks = room > 0 and not (self._changed and self._looked)
        if looks:
            behind = await self._evaluator.storage.behind(self._evaluator.watch, limit=PARALLEL + len(self._aside))
        at_once = frozenset(islice(self._changed, max(room, 0)))
        if others := frozenset(self._changed - at_once):
            self._pass_on(others)
        self._changed.clear()
        self._looked = looks
        self._in_vain.difference_update(behind)
        todo = [one for one in behind if not (one in busy or one in at_once or one in self._aside)]
        found = [*at_once, *todo][: max(room, 0)]
        # Of a change that was not passed on yet, it is once the evaluation has seen it.
        self._at_hand.update((workspace, workspace in at_once) for workspace in found)
        return {workspace: partial(self._evaluate, workspace, workspace in at_once) for workspace in found}

    async def rest(self) -> timedelta | None:
        """Returns how long it is until a workspace that was left alone is tried again."""
        return self._aside.rest()

    def failed(self, workspace: WorkspaceRef) -> None:
        """Leaves a workspace alone for a while."""
        self.set_aside(workspace)

    def set_aside(self, workspace: WorkspaceRef) -> None:
        """Leaves a workspace alone until it changes, or a while has passed."""
        self._elsewhere.discard(workspace)
        self._aside.add(workspace, timedelta.max if self._stop is None else None)

    def leave(self, workspace: WorkspaceRef) -> None:
        """Leaves a workspace to the reactor that has it in hand, and looks whether it still does in a while."""
        self._elsewhere.add(workspace)
        self._aside.add(workspace, timedelta.max if self._stop is None else FIRST_DELAY)

    def done(self, workspace: WorkspaceRef) -> None:
        """Takes note that a workspace is as it should be."""
        self._elsewhere.discard(workspace)
        self._aside.forget(workspace)

    @property
    def stopping(self) -> bool:
        """Whether no further batch is to be begun."""
        return self._stop is not None and self._stop.is_set()

    def tell(self, workspace: WorkspaceRef) -> None:
        """Tells whoever serves beside it of a workspace at hand, if that changed."""
        if self._at_hand[workspace]:
            self._at_hand[workspace] = False
            self._pass_on(frozenset({workspace}))

    def starting(self) -> AbstractContextManager[Starting[Any] | None]:
        """Gives what starts runs in the transaction that fires them, if anything does: see `Executor.starting`."""
        return nullcontext() if self._executor is None else self._executor.starting()

    async def _evaluate(self, workspace: WorkspaceRef, at_once: bool) -> int:
        """Evaluates a workspace.

        Args:
            workspace: The workspace.
            at_once: Whether it was not looked for, as it changed.
        """
        changes = 0
        try:
            changes = await _Workspace(self._evaluator, workspace, self, is_behind=not at_once).evaluate()
            # It is at hand until what it committed was heard of.
            await asyncio.sleep(0)
        finally:
            self.tell(workspace)
            del self._at_hand[workspace]
        if at_once and not changes:
            if len(self._in_vain) == _MANY:
                self._in_vain.clear()
            self._in_vain.add(workspace)
        return changes

    def _pass_on(self, changed: frozenset[WorkspaceRef]) -> None:
        if self._executor is not None:
            self._executor.hear(changed)


@dataclass(slots=True)
class _Decisions:
    """What all rules of a batch decided, to be saved at once."""

    progress: dict[str, RuleProgress] = field(default_factory=dict[str, RuleProgress])
    states: dict[str, StateChanges] = field(default_factory=dict[str, StateChanges])
    firings: list[Firing] = field(default_factory=list[Firing])
    errors: list[DeadLetter] = field(default_factory=list[DeadLetter])
    facts: list[Draft] = field(default_factory=list[Draft])
    runs: dict[str, Run] = field(default_factory=dict[str, Run])

    def add(self, rule: Rule, evaluation: Evaluation) -> None:
        self.progress[rule.name] = evaluation.progress
        self.states[rule.name] = StateChanges(evaluation.states, evaluation.dropped, evaluation.clock)
        self.firings += evaluation.firings
        self.errors += evaluation.errors
        self.facts += evaluation.facts


@dataclass(frozen=True, slots=True)
class _Group:
    """Rules that stand at one place, and the place that the next rules ahead of them stand at."""

    cursor: int
    rules: list[Rule]
    through: int


class _Workspace:
    """One evaluation of one workspace, batch after batch, until every rule is caught up."""

    def __init__(self, evaluator: Evaluator, workspace: WorkspaceRef, duty: Evaluating, *, is_behind: bool) -> None:
        self._evaluator = evaluator
        self._configuration = evaluator.configuration
        self._workspace = workspace
        self._duty = duty
        self._is_behind = is_behind
        self._starts = True
        self._has_fired = False
        self._left: set[str] = set()
        self._batches = 0
        self._changes = 0
        self._leased = False
        self._contended = False

    async def evaluate(self) -> int:
        """Evaluates the workspace, and returns how many transactions changed something."""
        try:
            while not self._duty.stopping:
                done = await self._next()
                self._duty.tell(self._workspace)
                if done:
                    break
        finally:
            if self._leased:
                key = LeaseKey(self._workspace, EVALUATION_LEASE)
                await self._evaluator.storage.release((key,), self._evaluator.holder)
        if self._contended:
            self._duty.leave(self._workspace)
        elif self._left or (self._is_behind and not self._changes):
            self._duty.set_aside(self._workspace)
        else:
            self._duty.done(self._workspace)
        return self._changes

    async def _next(self) -> bool:
        """Evaluates one batch, and returns whether that was all; runs that cannot be started keep none from firing."""
        try:
            return await self._batch()
        except Exception:
            if not (self._starts and self._has_fired):
                raise
            # Whose fault it was shows when runs are fired alone.
            self._starts = False
            return False

    async def _batch(self) -> bool:
        """Evaluates one batch, and returns whether that was all."""
        began = perf_counter()
        evaluator = self._evaluator
        self._has_fired = False
        # The span, if there is one, ends after the commit, and what was started goes on from then.
        with ExitStack() as traced:
            starting = traced.enter_context(self._duty.starting()) if self._starts else None
            async with AsyncExitStack() as stack:
                # What is found may be nothing; if it is something, it is traced from there on.
                with untraced():
                    transaction = await stack.enter_async_context(evaluator.storage.transaction(self._workspace))
                    holder = (await transaction.holders((EVALUATION_LEASE,))).get(EVALUATION_LEASE)
                    if not transaction.head.seq:
                        # It changed, but not its log, as there is none.
                        return True
                    if holder not in (None, evaluator.holder):
                        self._contended, self._leased = True, False
                        return True
                    rules = await self._configuration.rules_in(transaction)
                    stored = await transaction.progress()
                    decisions = await self._stand(transaction, rules, stored)
                    progress = stored | decisions.progress
                    group = self._next_group(rules, progress, transaction.head.seq)
                    batch = None if group is None else await self._read(transaction, group)
                traceparent = None
                if group is not None and batch is not None:
                    span = traced.enter_context(
                        self._configuration.tracing.span("reflexr.evaluate", partial(self._attributes, batch))
                    )
                    traceparent = traceparent_of(span)
                    await self._decide(transaction, group.rules, progress, batch, decisions)
                    span.set_attributes(
                        {
                            attributes.RULES: [rule.name for rule in group.rules],
                            attributes.FIRINGS: len(decisions.firings),
                        }
                    )
                    if decisions.firings:
                        self._has_fired = True
                        await self._fire(transaction, rules, batch, decisions, starting)
                appended = await self._save(transaction, decisions, traceparent)
                if group is not None and batch is not None:
                    self._pass_over(appended, group, batch, decisions)
                moved = [stands for rule, stands in decisions.progress.items() if stored.get(rule) != stands]
                if moved:
                    await transaction.save_progress(moved)
                done = self._next_group(rules, progress | decisions.progress, transaction.head.seq) is None
                await self._keep_lease(transaction, holder, done=done)
        self._batches += 1
        self._changes += bool(moved)
        if batch is not None:
            self._measure(decisions, perf_counter() - began)
        return done

    async def _stand(
        self, transaction: Transaction, rules: Mapping[str, Rule], progress: Mapping[str, RuleProgress]
    ) -> _Decisions:
        """Has the rules that are new here begin, and those whose definition changed begin afresh."""
        decisions = _Decisions()
        changed: list[str] = []
        head = transaction.head.seq
        if self._configuration.is_new(progress):
            decisions.progress.update(self._configuration.begun(progress))
        for rule in rules.values():
            if not rule.enabled or rule.name in decisions.progress:
                continue
            stands = progress.get(rule.name)
            if stands is None:
                decisions.progress[rule.name] = begin(rule, head)
            elif stands.definition != rule.definition():
                if not self._evaluator.may_reset(self._workspace, rule.name):
                    self._left.add(rule.name)
                    continue
                fresh = reset(rule, stands, head_seq=head)
                decisions.progress[rule.name] = fresh.progress
                decisions.facts.append(fresh.fact)
                changed.append(rule.name)
        if changed:
            await transaction.clear_states(changed)
        return decisions

    def _next_group(self, rules: Mapping[str, Rule], progress: Mapping[str, RuleProgress], head: int) -> _Group | None:
        """Returns the rules to evaluate next: in turn those that are furthest, and those that lag most.

        So a rule that has a long log to catch up with holds back none that keep up, nor do they hold it back.
        """
        groups: dict[int, list[Rule]] = {}
        for name, rule in rules.items():
            if rule.enabled and name not in self._left and name in progress:
                groups.setdefault(progress[name].cursor, []).append(rule)
        cursors = sorted(groups)
        behind = [cursor for cursor in cursors if cursor < head]
        if not behind:
            return None
        index = len(behind) - 1 if self._batches % 2 == 0 else 0
        through = cursors[index + 1] if index + 1 < len(cursors) else head
        return _Group(behind[index], groups[behind[index]], through)

    async def _read(self, transaction: Transaction, group: _Group) -> Batch:
        window = LogWindow(after_seq=group.cursor, before_seq=group.through + 1, limit=self._evaluator.batch_size)
        registry = self._configuration.settings.registry
        return Batch(envelope.bind(registry) for envelope in await transaction.read(window))

    async def _decide(
        self,
        transaction: Transaction,
        rules: Sequence[Rule],
        progress: Mapping[str, RuleProgress],
        batch: Batch,
        decisions: _Decisions,
    ) -> None:
        """Has the rules decide on a batch. Those that it does not touch only move their cursor."""
        settings = self._configuration.settings
        for rule in rules:
            decisions.progress[rule.name] = progress[rule.name].moved(batch.last_seq)
            decisions.states[rule.name] = StateChanges(expired_through=batch.last_ts)
        wanted: dict[str, Needs] = {}
        touched = self._evaluator.rule_set(rules).touched(batch)
        for rule in touched:
            try:
                wanted[rule.name] = needs(rule, progress[rule.name], batch, predicates=settings.predicates)
            except (Exception, asyncio.CancelledError) as error:
                # Nothing is awaited here, so it is a predicate that raised the cancellation of something of its own.
                self._break(rule, error, progress, decisions)
        asked = {name: need for name, need in wanted.items() if need.scope_keys or need.due_through is not None}
        states = await transaction.states(asked) if asked else {}
        for rule in touched:
            if (need := wanted.get(rule.name)) is None or not (need.admitted or rule.name in asked):
                continue
            try:
                evaluation = evaluate(
                    rule,
                    progress[rule.name],
                    states.get(rule.name, {}),
                    batch,
                    predicates=settings.predicates,
                    max_depth=settings.max_depth,
                    needs=need,
                )
            except (Exception, asyncio.CancelledError) as error:
                # Nothing is awaited here, so it is a predicate that raised the cancellation of something of its own.
                self._break(rule, error, progress, decisions)
            else:
                decisions.add(rule, evaluation)
        self._evaluator.works_again(self._workspace, (rule for rule in rules if rule.name not in self._left))

    def _break(
        self, rule: Rule, error: BaseException, progress: Mapping[str, RuleProgress], decisions: _Decisions
    ) -> None:
        """Sets a rule aside for this pass: it stays where it stood."""
        self._left.add(rule.name)
        self._evaluator.report(self._workspace, rule.name, error)
        decisions.progress[rule.name] = progress[rule.name]
        decisions.states.pop(rule.name)

    async def _fire(
        self,
        transaction: Transaction,
        rules: Mapping[str, Rule],
        batch: Batch,
        decisions: _Decisions,
        starting: Starting[Any] | None,
    ) -> None:
        """Makes the runs that were fired, and starts those that can be started at once."""
        decisions.runs = {firing.id: create_run(firing) for firing in decisions.firings}
        if starting is not None:
            known = {envelope.seq: envelope for envelope in batch.envelopes}
            begun = await starting.begin(transaction, list(decisions.runs.values()), rules, known)
            decisions.runs.update((claim.run.id, claim.run) for claim in begun.claims)
            decisions.facts += begun.facts

    async def _save(self, transaction: Transaction, decisions: _Decisions, traceparent: str | None) -> list[Envelope]:
        """Saves all that was decided but how far the rules have come, and returns the facts as they are in the log."""
        if decisions.states:
            await transaction.change_states(decisions.states)
        if decisions.errors:
            await transaction.add_dead_letters(decisions.errors)
        if decisions.runs:
            await transaction.save_runs(decisions.runs.values())
        return await append_facts(transaction, decisions.facts, traceparent) if decisions.facts else []

    def _pass_over(self, appended: Sequence[Envelope], group: _Group, batch: Batch, decisions: _Decisions) -> None:
        """Moves the rules past the facts just appended, at no further transaction, if those touch none of them."""
        if (
            not appended
            or appended[0].seq != batch.last_seq + 1
            or self._evaluator.rule_set(group.rules).touched(Batch(appended))
        ):
            return
        for rule in group.rules:
            if rule.name not in self._left:
                decisions.progress[rule.name] = decisions.progress[rule.name].moved(appended[-1].seq)

    async def _keep_lease(self, transaction: Transaction, holder: str | None, *, done: bool) -> None:
        """Holds the lease from one batch to the next; while one goes on, the workspace is locked anyhow."""
        evaluator = self._evaluator
        if not done:
            await transaction.acquire((EVALUATION_LEASE,), evaluator.holder, evaluator.lease_ttl)
        elif holder is not None:
            await transaction.release((EVALUATION_LEASE,), evaluator.holder)
        self._leased = not done

    def _attributes(self, batch: Batch) -> Attributes:
        return {
            attributes.TENANT: self._workspace.tenant_id,
            attributes.WORKSPACE: self._workspace.workspace_id,
            attributes.EVENT_SEQ: batch.first_seq,
            attributes.EVENT_COUNT: len(batch.envelopes),
        }

    def _measure(self, decisions: _Decisions, seconds: float) -> None:
        instruments = self._configuration.instruments
        if not instruments.active:
            return
        label = self._configuration.rule_label
        tenant, workspace = self._workspace.tenant_id, self._workspace.workspace_id
        instruments.evaluation_duration.record(
            seconds, {"reflexr.tenant.id": tenant, "reflexr.workspace.id": workspace}
        )
        for rule, count in Counter(label(firing.rule) for firing in decisions.firings).items():
            instruments.firings.add(
                count, {"reflexr.tenant.id": tenant, "reflexr.workspace.id": workspace, "reflexr.rule": rule}
            )
        for (rule, kind), count in Counter((label(error.rule), error.kind) for error in decisions.errors).items():
            instruments.evaluation_errors.add(
                count,
                {
                    "reflexr.tenant.id": tenant,
                    "reflexr.workspace.id": workspace,
                    "reflexr.rule": rule,
                    "error.type": kind,
                },
            )
