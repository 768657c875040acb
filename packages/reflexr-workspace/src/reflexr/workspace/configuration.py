"""What a `Workspaces` was built with, checked once: the rules, the event types, and what they are carried out with."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import ValidationError

from reflexr.core import (
    RESERVED_NAMESPACE,
    Event,
    EventRegistry,
    Predicates,
    Rule,
    RuleError,
    RuleProgress,
    StoredRule,
    StoredRules,
    problems,
)
from reflexr.telemetry import Instruments, Tracing
from reflexr.workspace.clocks import Clock
from reflexr.workspace.commits import SharedCommits
from reflexr.workspace.feeds import Feeds
from reflexr.workspace.live_output import LiveOutput
from reflexr.workspace.permissions import Authorize
from reflexr.workspace.publishing import Publication, Publisher, PublishRequest, publish_all, publish_at_once
from reflexr.workspace.refs import WorkspaceRef
from reflexr.workspace.storage import Storage, Transaction

if TYPE_CHECKING:
    from reflexr.workspace.schedules import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the application says; `configured` checks it.

    Attributes:
        storage: Where the workspaces are.
        events: The event classes that anybody may publish.
        emitted: The event classes that only runs may publish.
        rules: The code rules, of every workspace.
        predicates: The functions that filters name.
        stored_rules: What stored rules may be; `None` if there are none.
        schedules: What publishes ticks.
        registry: The event types that there are.
        authorize: The application's permissions.
        clock: What time it is, where a status says what comes next.
        max_depth: How deep a causal chain may get.
        live_output: What carries deltas from runs to who listens.
    """

    storage: Storage
    events: tuple[type[Event], ...]
    emitted: tuple[type[Event], ...]
    rules: tuple[Rule, ...]
    predicates: Predicates
    stored_rules: StoredRules | None
    schedules: "tuple[Schedule, ...]"
    registry: EventRegistry
    authorize: Authorize | None
    clock: Clock
    max_depth: int
    live_output: LiveOutput


class Configuration:
    """Checked settings, and what is made of them once for all handles.

    Attributes:
        settings: What the application says.
        rules: The code rules, by name, in their order.
        publisher: Which events may be published.
        publishes: The commits that publishers share.
        feeds: What subscribers follow.
        tracing: What starts spans.
        instruments: What is measured.
    """

    def __init__(self, settings: Settings, tracing: Tracing, instruments: Instruments) -> None:
        """Checks the settings.

        Raises:
            RuleError: They can never work; every problem is listed.
        """
        if problems := list(_problems(settings)):
            raise RuleError(problems)
        self.settings = settings
        self.storage = settings.storage
        self.tracing = tracing
        self.instruments = instruments
        self.rules: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in settings.rules})
        self.publisher = Publisher(
            settings.registry,
            {event.event_type: event for event in settings.events},
            {event.event_type: event for event in settings.emitted},
            settings.max_depth,
        )
        self.publishes: SharedCommits[PublishRequest, Sequence[Publication]] = SharedCommits(
            settings.storage, publish_all, at_once=publish_at_once
        )
        self.feeds = Feeds(settings.storage, settings.registry)

    async def stored_in(self, where: WorkspaceRef | Transaction) -> dict[str, StoredRule]:
        """Returns a workspace's active stored rules in the configured namespaces, by name; read anew each time."""
        stored_rules = self.settings.stored_rules
        if stored_rules is None:
            return {}
        found = await (self.storage.stored_rules(where) if isinstance(where, WorkspaceRef) else where.stored_rules())
        return {name: stored for name, stored in found.items() if stored_rules.admits(name)}

    async def rules_in(self, where: WorkspaceRef | Transaction) -> dict[str, Rule]:
        """Returns a workspace's rules, by name: the code rules, then its active stored rules."""
        stored = await self.stored_in(where)
        return {**self.rules, **{name: rule.rule for name, rule in stored.items()}}

    def is_new(self, progress: Collection[str]) -> bool:
        """Whether a workspace where these rules have begun is new to the code rules, so that all of them begin at 0.

        A stored rule stands at its installation from then on, also where no code rule has seen the log yet.
        """
        stored_rules = self.settings.stored_rules
        return all(stored_rules is not None and stored_rules.admits(name) for name in progress)

    def begun(self, progress: Collection[str]) -> dict[str, RuleProgress]:
        """Returns the progress of the code rules in a new workspace, whose log each meets at its first event."""
        return {
            name: RuleProgress(name, 1, 0, rule.definition())
            for name, rule in self.rules.items()
            if name not in progress
        }

    def rule_label(self, rule: str) -> str:
        """Returns what metrics call a rule: a stored rule is its namespace, such as `chat:*`, as that is bounded."""
        return rule if rule in self.rules else f"{rule.partition(':')[0]}:*"


def read_back(rule: Rule) -> Rule:
    """Returns a rule as it is read once it is written: a copy that was made with other values never had them checked.

    Raises:
        RuleError: It is no rule; every problem is listed.
    """
    try:
        return Rule.model_validate_json(rule.model_dump_json(warnings=False))
    except ValidationError as error:
        raise RuleError(problems(error)) from error
    except ValueError as error:
        raise RuleError([f"it cannot be written as JSON: {error}"]) from error


def _problems(settings: Settings) -> Iterator[str]:
    yield from _event_problems("events", settings.events, settings.registry)
    yield from _event_problems("emitted", settings.emitted, settings.registry)
    for event in dict.fromkeys(settings.events):
        if event in settings.emitted:
            yield f"emitted: {event.event_type!r} is in events= too: name it in one of them"
    for name in _repeated(rule.name for rule in settings.rules):
        yield f"rules: two rules are named {name!r}: a rule's name is its own"
    for rule in settings.rules:
        for problem in _rule_problems(rule, settings):
            yield f"rule {rule.name!r}: {problem}"
        if settings.stored_rules is not None and settings.stored_rules.admits(rule.name):
            yield f"rule {rule.name!r}: its namespace is one of stored rules': name the code rule in another"
    for name in _repeated(schedule.name for schedule in settings.schedules):
        yield f"schedules: two schedules are named {name!r}: a schedule's name is its own"
    for name, function in settings.predicates.items():
        if not callable(function) or iscoroutinefunction(function):
            yield f"predicates: {name!r} is {function!r}: give a plain function over an envelope, which awaits nothing"
    if not settings.max_depth >= 1:
        yield f"max_depth: {settings.max_depth!r} is less than 1, so that no run could publish"


def _rule_problems(rule: Rule, settings: Settings) -> Sequence[str]:
    try:
        return read_back(rule).check(settings.registry, settings.predicates)
    except RuleError as error:
        return error.problems


def _event_problems(place: str, events: Iterable[type[Event]], registry: EventRegistry) -> Iterator[str]:
    for name in _repeated(event.__qualname__ for event in events):
        yield f"{place}: {name} is there twice"
    for event in dict.fromkeys(events):
        if not event.event_type:
            yield f"{place}: {event.__qualname__} is an abstract base: name its event types"
        elif event.event_namespace == RESERVED_NAMESPACE:
            yield f"{place}: {event.event_type!r} is reflexr's own, which nobody publishes: leave it out"
        elif registry.get(event.event_type) is not event:
            yield f"{place}: {event.event_type!r} is in no namespace of the registry: add its base to registry="


def _repeated(names: Iterable[str]) -> Iterator[str]:
    return (name for name, count in Counter(names).items() if count > 1)
