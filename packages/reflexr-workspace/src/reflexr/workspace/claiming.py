"""Claiming: taking runs and their leases in one transaction, so that nobody else carries them out.

Runs that are due are claimed in a transaction of their own, those that were just fired in the one that fires them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Final

from opentelemetry.trace import Link, Span

from reflexr.core import Draft, Envelope, Rule, Run, abandon, due, expire, overdue, start
from reflexr.telemetry import Attributes, attributes, span_context_of, traceparent_of
from reflexr.workspace.configuration import Configuration
from reflexr.workspace.facts import append_facts
from reflexr.workspace.refs import LeaseKey, WorkspaceRef, run_lease
from reflexr.workspace.storage import RunPolicy, RunScope, Transaction


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt of a run, begun and leased.

    Attributes:
        workspace: The workspace.
        run: The run, at this attempt.
        rule: Its rule, as it was when the attempt began.
        envelopes: What the firing matched.
        span: The attempt's span, which whoever carries it out ends.
        began: When it began, by the process's performance counter.
    """

    workspace: WorkspaceRef
    run: Run
    rule: Rule
    envelopes: tuple[Envelope, ...]
    span: Span
    began: float

    @property
    def key(self) -> LeaseKey:
        """The attempt's lease."""
        return LeaseKey(self.workspace, run_lease(self.run.id))


@dataclass(frozen=True, slots=True)
class Claimed:
    """What came of claiming runs.

    Attributes:
        claims: The attempts that were begun.
        failed: The runs of which a failure was recorded: their attempt's lease had lapsed, or nobody had answered them
            in time.
    """

    claims: tuple[Claim, ...]
    failed: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """Attempts that were begun, as far as they are not saved yet.

    Attributes:
        claims: The attempts.
        facts: What tells of them.
    """

    claims: tuple[Claim, ...] = ()
    facts: tuple[Draft, ...] = ()


class Claimer:
    """Claims runs for one reactor."""

    def __init__(self, configuration: Configuration, *, holder: str, lease_ttl: timedelta) -> None:
        """Prepares to claim.

        Args:
            configuration: The rules, and where the runs are.
            holder: Who holds the leases.
            lease_ttl: How long a lease lasts that is not renewed.
        """
        self._configuration = configuration
        self._holder = holder
        self._lease_ttl = lease_ttl
        stored_rules = configuration.settings.stored_rules
        rules = [rule for rule in configuration.rules.values() if rule.enabled]
        self.policy: Final = RunPolicy(
            unordered=frozenset(rule.name for rule in rules if rule.ordering == "none"),
            ordered=frozenset(rule.name for rule in rules if rule.ordering == "scope"),
            blocking=frozenset(rule.name for rule in rules if _blocks(rule)),
            stored=frozenset() if stored_rules is None else stored_rules.namespaces,
        )

    async def claim(self, workspace: WorkspaceRef, run_ids: Sequence[str]) -> Claimed:
        """Begins the next attempt of those of these runs whose turn it is and that nobody has.

        An attempt whose lease has lapsed is recorded as abandoned, and its run starts again when its back-off is over.
        A paused run that nobody has answered in time is dead-lettered.

        Raises:
            StorageError: The storage could not. Nothing was claimed.
        """
        spans: list[Span] = []
        try:
            async with self._configuration.storage.transaction(workspace) as transaction:
                claimed = await self._claim(transaction, run_ids, spans)
        except BaseException:
            for span in spans:
                span.end()
            raise
        self.measure(claimed.claims)
        return claimed

    async def next_of(self, transaction: Transaction, fired: Sequence[Run], rules: Mapping[str, Rule]) -> list[Run]:
        """Returns those of the runs that were just fired whose turn it is: they may start at once.

        Args:
            transaction: The transaction that fires them, where they are not saved yet.
            fired: The runs, of rules that are enabled.
            rules: The workspace's rules.
        """
        scopes = {run.id: RunScope(run.rule, run.scope_key) for run in fired if rules[run.rule].ordering == "scope"}
        blocking = {run.rule for run in fired if _blocks(rules[run.rule])}
        taken = set(await transaction.first_runs(set(scopes.values()), blocking=blocking) if scopes else ())
        turns: list[Run] = []
        for run in sorted(fired, key=lambda one: one.position):
            scope = scopes.get(run.id)
            if scope not in taken:
                turns.append(run)
            if scope is not None:
                taken.add(scope)
        return turns

    async def begin(
        self,
        transaction: Transaction,
        runs: Sequence[Run],
        rules: Mapping[str, Rule],
        known: Mapping[int, Envelope],
        spans: list[Span],
    ) -> Begun:
        """Begins an attempt of those of these runs of which nobody has the lease. The caller saves them.

        Args:
            transaction: Where their leases are taken.
            runs: The runs, whose turn it is.
            rules: The workspace's rules.
            known: Envelopes of the log that need not be read, by place.
            spans: Where the attempts' spans are added, so that whoever cannot commit ends them.
        """
        leases = {run_lease(run.id): run for run in runs}
        if not leases:
            return Begun()
        taken = await transaction.acquire(list(leases), self._holder, self._lease_ttl)
        starting = [run for name, run in leases.items() if name in taken]
        unknown = {seq for run in starting for seq in run.matched if seq not in known}
        matched = {**known, **(await transaction.read_seqs(unknown) if unknown else {})}
        claims: list[Claim] = []
        facts: list[Draft] = []
        for run in starting:
            envelopes = tuple(self._bound(matched, run))
            span = self._begin_span(transaction.workspace, run, envelopes)
            spans.append(span)
            context = span.get_span_context()
            trace_id = f"{context.trace_id:032x}" if context.is_valid else None
            begun = start(run, now=transaction.now, trace_id=trace_id)
            traceparent = traceparent_of(span)
            facts += (fact._replace(traceparent=traceparent) for fact in begun.facts)
            claims.append(Claim(transaction.workspace, begun.run, rules[run.rule], envelopes, span, perf_counter()))
        return Begun(tuple(claims), tuple(facts))

    def measure(self, claims: Sequence[Claim]) -> None:
        """Records how long runs waited for their first attempt."""
        instruments = self._configuration.instruments
        if not instruments.active:
            return
        for claim in claims:
            started_at = claim.run.started_at
            if claim.run.attempt == 1 and started_at is not None:
                instruments.run_latency.record(
                    max((started_at - claim.run.fired_at).total_seconds(), 0),
                    {
                        "reflexr.tenant.id": claim.workspace.tenant_id,
                        "reflexr.workspace.id": claim.workspace.workspace_id,
                        "reflexr.rule": self._configuration.rule_label(claim.run.rule),
                    },
                )

    async def _claim(self, transaction: Transaction, run_ids: Sequence[str], spans: list[Span]) -> Claimed:
        now = transaction.now
        rules = await self._configuration.rules_in(transaction)
        runs = await self._turns(transaction, rules, list((await transaction.runs(run_ids)).values()))
        failures = [
            abandon(run, attempt=run.attempt, now=now, policy=rules[run.rule].retry)
            for run in await self._deserted(transaction, runs)
        ]
        failures += (expire(run, now=now) for run in runs if overdue(run, now))
        failed = tuple(failure.run for failure in failures)
        facts = [fact for failure in failures for fact in failure.facts]
        begun = await self.begin(transaction, [run for run in runs if due(run, now)], rules, {}, spans)
        facts += begun.facts
        if facts:
            await transaction.save_runs([*failed, *(claim.run for claim in begun.claims)])
            await append_facts(transaction, facts)
        return Claimed(begun.claims, failed)

    async def _turns(self, transaction: Transaction, rules: Mapping[str, Rule], runs: Sequence[Run]) -> list[Run]:
        """Returns the runs of enabled rules whose turn in their scope it is, or that are paused, in firing order."""
        admitted = [run for run in runs if run.rule in rules and rules[run.rule].enabled]
        scopes = {
            run.id: RunScope(run.rule, run.scope_key)
            for run in admitted
            if run.status != "paused" and rules[run.rule].ordering == "scope"
        }
        blocking = {run.rule for run in admitted if _blocks(rules[run.rule])}
        first = await transaction.first_runs(set(scopes.values()), blocking=blocking) if scopes else {}
        turns = [run for run in admitted if run.id not in scopes or first.get(scopes[run.id]) == run.id]
        return sorted(turns, key=lambda run: run.position)

    async def _deserted(self, transaction: Transaction, runs: Sequence[Run]) -> list[Run]:
        """Returns those of the runs that are running with no live lease."""
        running = [run for run in runs if run.status == "running"]
        if not running:
            return []
        holders = await transaction.holders([run_lease(run.id) for run in running])
        return [run for run in running if run_lease(run.id) not in holders]

    def _bound(self, matched: Mapping[int, Envelope], run: Run) -> Iterator[Envelope]:
        registry = self._configuration.settings.registry
        return (matched[seq].bind(registry) for seq in run.matched)

    def _begin_span(self, workspace: WorkspaceRef, run: Run, envelopes: Sequence[Envelope]) -> Span:
        def details() -> Attributes:
            return {
                attributes.TENANT: workspace.tenant_id,
                attributes.WORKSPACE: workspace.workspace_id,
                attributes.RULE: run.rule,
                attributes.RUN: run.id,
                attributes.RUN_ATTEMPT: run.attempt + 1,
                attributes.SESSION: run.correlation_id,
            }

        def links() -> list[Link]:
            # Events that were published together share a span.
            published = dict.fromkeys(envelope.traceparent for envelope in envelopes)
            return [Link(context) for context in map(span_context_of, published) if context is not None]

        return self._configuration.tracing.begin(f"invoke_workflow {run.rule}", details, links=links)


def _blocks(rule: Rule) -> bool:
    return rule.ordering == "scope" and rule.on_dead_letter == "block"
