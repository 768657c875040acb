"""Statuses: what every surface reports about rules and schedules, computed here so that all report the same."""

from datetime import datetime

from reflexr.core import NotFound, Rule, RuleDescription, RuleProgress, RuleStatus, ScheduleStatus, StoredRule
from reflexr.workspace.configuration import Configuration
from reflexr.workspace.refs import WorkspaceRef


async def rule_statuses(configuration: Configuration, workspace: WorkspaceRef) -> list[RuleStatus]:
    """Returns the status of each of a workspace's rules: the code rules, then its active stored rules."""
    storage = configuration.storage
    stored = await configuration.stored_in(workspace)
    progress = await storage.progress(workspace)
    dead_letters = await storage.dead_letter_counts(workspace)
    # Read last, so that no cursor is ahead of it.
    head = (await storage.head(workspace)).seq
    rules: dict[str, Rule | StoredRule] = {**configuration.rules, **stored}
    return [_rule_status(rule, progress.get(name), dead_letters.get(name, 0), head) for name, rule in rules.items()]


async def describe_rule(configuration: Configuration, workspace: WorkspaceRef, name: str) -> RuleDescription:
    """Returns one of a workspace's rules, also a stored rule that was archived.

    Raises:
        NotFound: There is none of this name.
    """
    if (rule := configuration.rules.get(name)) is not None:
        return RuleDescription(rule=rule, origin="code")
    stored_rules = configuration.settings.stored_rules
    if stored_rules is not None and stored_rules.admits(name):
        stored = (await configuration.storage.stored_rules(workspace, (name,))).get(name)
        if stored is not None:
            return RuleDescription(
                rule=stored.rule,
                origin="stored",
                version=stored.version,
                status=stored.status,
                provenance=stored.provenance,
            )
    raise no_rule(name)


async def schedule_statuses(configuration: Configuration, workspace: WorkspaceRef) -> list[ScheduleStatus]:
    """Returns the status of each schedule that targets a workspace."""
    ticks = await configuration.storage.schedule_ticks(workspace)
    now = configuration.settings.clock()
    return [
        ScheduleStatus(
            schedule=schedule.name,
            last_tick=ticks.get(schedule.name),
            next_tick=schedule.next(_later(now, ticks.get(schedule.name))),
        )
        for schedule in configuration.settings.schedules
        if schedule.admits(workspace)
    ]


def no_rule(name: str) -> NotFound:
    """Returns the rejection of a rule's name that the workspace does not have."""
    return NotFound(f"there is no rule {name!r} in this workspace")


def _rule_status(rule: Rule | StoredRule, progress: RuleProgress | None, dead_letters: int, head: int) -> RuleStatus:
    stored = rule if isinstance(rule, StoredRule) else None
    definition = rule.rule if isinstance(rule, StoredRule) else rule
    return RuleStatus(
        rule=definition.name,
        origin="code" if stored is None else "stored",
        version=None if stored is None else stored.version,
        enabled=definition.enabled,
        generation=None if progress is None else progress.generation,
        cursor=None if progress is None else progress.cursor,
        lag=head if progress is None else head - progress.cursor,
        dead_letters=dead_letters,
    )


def _later(now: datetime, last: datetime | None) -> datetime:
    return now if last is None else max(now, last)
