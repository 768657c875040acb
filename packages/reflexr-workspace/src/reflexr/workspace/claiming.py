"""Claiming: taking runs that are due, and their leases, in one transaction, so that nobody else carries them out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Final

from opentelemetry.trace import Link, Span

from reflexr.core import Draft, Envelope, Rule, Run, abandon, due, start
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
        abandoned: The runs whose last attempt's lease had lapsed, which was recorded as a failure.
    """

    claims: tuple[Claim, ...]
    abandoned: tuple[Run, ...]


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
        self._measure(claimed)
        return claimed

    async def _claim(self, transaction: Transaction, run_ids: Sequence[str], spans: list[Span]) -> Claimed:
        now = transaction.now
        rules = await self._configuration.rules_in(transaction)
        runs = await self._turns(transaction, rules, list((await transaction.runs(run_ids)).values()))
        facts: list[Draft] = []
        abandoned: list[Run] = []
        for run in await self._deserted(transaction, runs):
            ended = abandon(run, attempt=run.attempt, now=now, policy=rules[run.rule].retry)
            abandoned.append(ended.run)
            facts += ended.facts
        ready = {run_lease(run.id): run for run in runs if due(run, now)}
        taken = await transaction.acquire(list(ready), self._holder, self._lease_ttl) if ready else frozenset[str]()
        claims: list[Claim] = []
        starting = [run for name, run in ready.items() if name in taken]
        matched = await transaction.read_seqs({seq for run in starting for seq in run.matched}) if starting else {}
        for run in starting:
            envelopes = tuple(self._bound(matched, run))
            span = self._begin_span(transaction.workspace, run, envelopes)
            spans.append(span)
            context = span.get_span_context()
            begun = start(run, now=now, trace_id=f"{context.trace_id:032x}" if context.is_valid else None)
            traceparent = traceparent_of(span)
            facts += (fact._replace(traceparent=traceparent) for fact in begun.facts)
            claims.append(Claim(transaction.workspace, begun.run, rules[run.rule], envelopes, span, perf_counter()))
        if facts:
            await transaction.save_runs([*abandoned, *(claim.run for claim in claims)])
            await append_facts(transaction, facts)
        return Claimed(tuple(claims), tuple(abandoned))

    async def _turns(self, transaction: Transaction, rules: Mapping[str, Rule], runs: Sequence[Run]) -> list[Run]:
        """Returns the runs of enabled rules whose turn in their scope it is, in firing order."""
        admitted = [run for run in runs if run.rule in rules and rules[run.rule].enabled]
        scopes = {run.id: RunScope(run.rule, run.scope_key) for run in admitted if rules[run.rule].ordering == "scope"}
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

    def _measure(self, claimed: Claimed) -> None:
        instruments = self._configuration.instruments
        if not instruments.active:
            return
        for claim in claimed.claims:
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


def _blocks(rule: Rule) -> bool:
    return rule.ordering == "scope" and rule.on_dead_letter == "block"
