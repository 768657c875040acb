"""Changes of stored rules: installing, updating and archiving them, each in one transaction.

What a stored rule may be is `reflexr.core`'s and the configuration's to say.
"""

from typing import cast

from pydantic import JsonValue

from reflexr.core import (
    MAX_ACTIVE,
    UNFINISHED,
    Draft,
    Forbidden,
    InvalidState,
    ReflexrEvent,
    Rule,
    RuleArchived,
    RuleChange,
    RuleError,
    RuleInstalled,
    RuleProgress,
    RuleVersion,
    StoredRule,
    StoredRules,
    ValidationFailed,
    cancel,
    canonical,
    check_provenance,
    check_stored,
    derived_id,
    json_text,
    json_value,
    reset,
    stored_rule_of,
)
from reflexr.workspace.configuration import Configuration, read_back
from reflexr.workspace.facts import append_facts, next_id
from reflexr.workspace.operations import stop_actions
from reflexr.workspace.operators import Operator
from reflexr.workspace.permissions import says_yes
from reflexr.workspace.statuses import no_rule
from reflexr.workspace.storage import RunQuery, Transaction


class RuleChanges:
    """Changes the stored rules of one workspace, on behalf of one actor."""

    def __init__(self, configuration: Configuration, operator: Operator, traceparent: str | None) -> None:
        """Names who changes what.

        Args:
            configuration: What stored rules may be.
            operator: Who changes the rules of which workspace.
            traceparent: The trace context of the change.
        """
        self._configuration = configuration
        self._workspace = operator.workspace
        self._actor = operator.actor
        self._operator = operator
        self._traceparent = traceparent

    async def save(self, change: RuleChange, rule: Rule) -> RuleVersion:
        """Installs or updates a rule.

        Raises:
            Forbidden: Stored rules are off, or the configuration does not allow the change.
            ValidationFailed: The rule is none that may be stored; every problem is listed.
            NotFound: The rule to update was never installed.
            InvalidState: The rule to install is active, the rule to update is archived, another version is current, or
                the workspace has as many active stored rules as it may.
        """
        config = await self._allowed(change)
        settings = self._configuration.settings
        rule = _written(rule)
        if found := [
            *rule.check(settings.registry, settings.predicates),
            *check_stored(rule, config),
            *check_provenance(change.provenance),
        ]:
            raise ValidationFailed(f"the rule {rule.name!r} cannot be stored", found)
        provenance = cast("dict[str, JsonValue]", json_value(dict(change.provenance), "provenance"))
        async with self._configuration.storage.transaction(self._workspace) as transaction:
            current = (await transaction.stored_rules((rule.name,))).get(rule.name)
            if current is not None and current.active and _same(current, rule, provenance):
                return await self._unchanged(transaction, current)
            await self._check_state(transaction, change, current)
            stored = StoredRule(rule=rule, version=1 if current is None else current.version + 1, provenance=provenance)
            await transaction.save_stored_rules((stored,))
            fact = RuleInstalled(
                rule=rule.name, version=stored.version, spec=rule.model_dump(mode="json"), provenance=provenance
            )
            return await self._record(transaction, stored, fact, current)

    async def archive(self, change: RuleChange) -> RuleVersion:
        """Archives a rule, cancels its unfinished runs and clears its state.

        Raises:
            Forbidden: Stored rules are off, or the configuration does not allow the change.
            NotFound: The rule was never installed.
            InvalidState: Another version is current.
        """
        await self._allowed(change)
        async with self._configuration.storage.transaction(self._workspace) as transaction:
            current = (await transaction.stored_rules((change.name,))).get(change.name)
            if current is None:
                raise no_rule(change.name)
            if not current.active:
                return await self._unchanged(transaction, current)
            _check_version(change, current)
            stored = current.model_copy(update={"version": current.version + 1, "status": "archived"})
            await transaction.save_stored_rules((stored,))
            await transaction.clear_states((change.name,))
            runs = await transaction.find_runs(RunQuery(rules=frozenset((change.name,)), statuses=UNFINISHED))
            ends = [
                cancel(run, now=transaction.now, actor=self._actor, reason=f"{change.name} was archived")
                for run in reversed(runs)
            ]
            await transaction.save_runs([end.run for end in ends])
            await stop_actions(transaction, runs)
            reason = None if change.reason is None else json_text(change.reason)
            fact = RuleArchived(rule=change.name, version=stored.version, reason=reason, cancelled=len(ends))
            drafts = [draft for end in ends for draft in end.facts]
            envelopes = await append_facts(transaction, [*drafts, self._draft(stored, fact)], self._traceparent)
            return RuleVersion(rule=change.name, version=stored.version, seq=envelopes[-1].seq, duplicate=False)

    async def _allowed(self, change: RuleChange) -> StoredRules:
        config = self._configuration.settings.stored_rules
        if config is None:
            raise Forbidden("stored rules are off here")
        if not await says_yes(
            config.allow(self._workspace.tenant_id, self._workspace.workspace_id, self._actor, change)
        ):
            raise Forbidden(f"this {self._actor.kind} may not {change.kind} the rule {change.name!r}")
        return config

    async def _check_state(self, transaction: Transaction, change: RuleChange, current: StoredRule | None) -> None:
        if change.kind == "update":
            if current is None:
                raise no_rule(change.name)
            if not current.active:
                raise InvalidState(f"the rule {change.name!r} is archived: install it again")
            _check_version(change, current)
            return
        if current is not None and current.active:
            raise InvalidState(
                f"the rule {change.name!r} is installed already, as version {current.version}: update it instead"
            )
        if len(await transaction.stored_rules()) >= MAX_ACTIVE:
            raise InvalidState(f"this workspace has {MAX_ACTIVE} active stored rules, the most: archive one first")

    async def _record(
        self, transaction: Transaction, stored: StoredRule, fact: ReflexrEvent, current: StoredRule | None
    ) -> RuleVersion:
        """Appends a version's fact, and begins or resets the rule there."""
        rule = stored.rule
        envelope = (await append_facts(transaction, (self._draft(stored, fact),), self._traceparent))[0]
        version = RuleVersion(rule=rule.name, version=stored.version, seq=envelope.seq, duplicate=False)
        progress = (await transaction.progress((rule.name,))).get(rule.name)
        if progress is None:
            begun = RuleProgress(rule=rule.name, generation=1, cursor=envelope.seq, definition=rule.definition())
            await transaction.save_progress((begun,))
        elif current is None or not current.active or progress.definition != rule.definition():
            fresh = reset(rule, progress, head_seq=envelope.seq, actor=self._actor)
            await transaction.clear_states((rule.name,))
            await transaction.save_progress((fresh.progress,))
            await append_facts(transaction, (fresh.fact,), self._traceparent)
        return version

    async def _unchanged(self, transaction: Transaction, current: StoredRule) -> RuleVersion:
        fact_id = _fact_id(current)
        while True:
            envelope = (await transaction.find((fact_id,)))[fact_id]
            if stored_rule_of(envelope) == current.name:
                return RuleVersion(rule=current.name, version=current.version, seq=envelope.seq, duplicate=True)
            # Somebody had taken the fact's id for an event of theirs.
            fact_id = next_id(fact_id)

    def _draft(self, stored: StoredRule, fact: ReflexrEvent) -> Draft:
        fact_id = _fact_id(stored)
        return Draft(
            id=fact_id,
            payload=fact.payload(),
            actor=self._actor,
            correlation_id=self._operator.correlation_id or fact_id,
            causation=self._operator.causation,
        )


def _fact_id(stored: StoredRule) -> str:
    return derived_id("evt", "rule_version", stored.name, stored.version)


def _written(rule: Rule) -> Rule:
    try:
        return read_back(rule)
    except RuleError as error:
        raise ValidationFailed(f"the rule {rule.name!r} cannot be stored", error.problems) from error


def _same(current: StoredRule, rule: Rule, provenance: dict[str, JsonValue]) -> bool:
    """Whether a version is this rule with this provenance, as JSON has it: `1` and `true` are two values."""
    return canonical([current.rule.model_dump(mode="json"), current.provenance]) == canonical(
        [rule.model_dump(mode="json"), provenance]
    )


def _check_version(change: RuleChange, current: StoredRule) -> None:
    if change.expected_version not in (None, current.version):
        raise InvalidState(
            f"the rule {change.name!r} is at version {current.version}, not {change.expected_version}: "
            "look at what changed, and try again"
        )
