"""Stored rules: what a workspace keeps of a rule that was installed at run time, and what such a rule may be.

A code rule may be anything that `Rule.check` accepts. A stored rule comes from a chat or an agent, so it is held to the
limits here besides. Who may change one, and when, is the configuration's `allow` and the workspace's to say.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel, Field, JsonValue
from pydantic_core import to_json

from reflexr.core.actors import Actor
from reflexr.core.conditions import Each
from reflexr.core.envelopes import Draft, Envelope
from reflexr.core.errors import NotJsonError, RuleError
from reflexr.core.facts import RuleArchived, RuleInstalled
from reflexr.core.filters import AllOf, AnyOf, Filter, Not, Predicate, Where
from reflexr.core.names import NAMESPACE_PATTERN, RESERVED_NAMESPACE
from reflexr.core.rules import Rule, load_params
from reflexr.core.values import json_value

MAX_ACTIVE: Final = 50
"""How many stored rules of a workspace may be active at once."""

MAX_FIRINGS_PER_HOUR: Final = 60
"""How often a stored rule may fire in any hour; its throttle has to see to it."""

MAX_ATTEMPTS: Final = 10
"""How often a stored rule's run may be tried."""

MAX_BACKOFF: Final = timedelta(hours=1)
"""The longest that a stored rule's run may wait between attempts."""

MAX_TIMEOUT: Final = timedelta(hours=1)
"""The longest that one attempt of a stored rule's run may take."""

MAX_WINDOW: Final = timedelta(days=31)
"""The longest window of any of a stored rule's stages."""

MAX_AT_LEAST: Final = 1_000
"""The most envelopes that a stored rule's count may wait for, since it remembers each."""

MAX_DESCRIPTION: Final = 1_000
"""The longest description of a stored rule, in characters."""

MAX_SIZE: Final = 16 * 1024
"""The largest stored rule, in bytes of its JSON in UTF-8."""

MAX_PROVENANCE: Final = 4 * 1024
"""The largest provenance of a change, in bytes of its JSON in UTF-8."""


class StoredRule(BaseModel, frozen=True):
    """The current version of a rule that a workspace keeps.

    Attributes:
        rule: The rule itself.
        version: Counted from 1: each install, update and archive is the next.
        status: Whether the rule is evaluated, or archived.
        provenance: Where this version came from; opaque to reflexr.
    """

    rule: Rule
    version: int = Field(ge=1)
    status: Literal["active", "archived"] = "active"
    provenance: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule.name

    @property
    def active(self) -> bool:
        """Whether the rule is evaluated."""
        return self.status == "active"


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A change of a stored rule that somebody asks for.

    Attributes:
        kind: What is asked for.
        name: The rule's name.
        rule: The rule as it is to be; `None` to archive it.
        provenance: Where an install or an update says it comes from.
        expected_version: The version that the change is to follow, if it says.
        reason: Why a rule is archived, if it says.
    """

    kind: Literal["install", "update", "archive"]
    name: str
    rule: Rule | None = None
    provenance: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    expected_version: int | None = None
    reason: str | None = None


type Allow = Callable[[str, str, Actor, RuleChange], bool | Awaitable[bool]]
"""Says whether an actor may make a change: takes the tenant's id, the workspace's id, the actor and the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRules:
    """What the stored rules of every workspace may be, and who may change them.

    Attributes:
        allow: Asked about each change before anything is read.
        actions: The actions that a stored rule may run, each with the model of its params, or `None` if it takes none.
        namespaces: The namespaces of stored rules' names, which no code rule may use.

    Raises:
        RuleError: There is no namespace, or one is reserved or no namespace.
    """

    allow: Allow
    actions: Mapping[str, type[BaseModel] | None]
    namespaces: frozenset[str]

    def __post_init__(self) -> None:
        problems = [
            f"namespaces: {namespace!r} is reserved or no namespace: write lower-case letters, digits and underscores"
            for namespace in sorted(self.namespaces)
            if namespace == RESERVED_NAMESPACE or re.fullmatch(NAMESPACE_PATTERN[1:-1], namespace) is None
        ]
        if not self.namespaces:
            problems.append("namespaces: stored rules need a namespace of their own, such as {'chat'}")
        if problems:
            raise RuleError(problems)
        # What is configured is copied, so that nobody widens it afterwards.
        object.__setattr__(self, "namespaces", frozenset(self.namespaces))
        object.__setattr__(self, "actions", MappingProxyType(dict(self.actions)))

    def admits(self, name: str) -> bool:
        """Whether a rule of this name is in a namespace of stored rules."""
        return name.partition(":")[0] in self.namespaces


def check_stored(rule: Rule, config: StoredRules) -> list[str]:
    """Returns every way in which a rule breaks the configuration or core's limits, each with its place and its remedy.

    What `Rule.check` finds is not repeated here.
    """
    return [*_configured(rule, config), *_filtered(rule), *_paced(rule), *_sized(rule)]


def check_provenance(provenance: Mapping[str, JsonValue]) -> list[str]:
    """Returns every reason why a change's provenance cannot be kept: it is no JSON, or larger than `MAX_PROVENANCE`."""
    try:
        # A fact's payload is around it.
        value = json_value(dict(provenance), "provenance", depth=1)
    except NotJsonError as error:
        return [str(error)]
    size = len(to_json(value))
    return [f"provenance: {size} bytes of JSON, and {MAX_PROVENANCE} are the most"] if size > MAX_PROVENANCE else []


def stored_rule_of(event: Envelope | Draft) -> str | None:
    """Returns the name of the stored rule of which an event is a version, if it is one.

    Every storage asks this, so that all of them agree on a rule's history.
    """
    return event.payload["rule"] if event.payload["type"] in _VERSIONS else None


_VERSIONS: Final = frozenset({RuleInstalled.event_type, RuleArchived.event_type})
_HOUR: Final = timedelta(hours=1)


def _configured(rule: Rule, config: StoredRules) -> Iterator[str]:
    if not config.admits(rule.name):
        allowed = " or ".join(repr(f"{namespace}:…") for namespace in sorted(config.namespaces))
        yield f"name: {rule.name!r} is in no namespace of stored rules: name it {allowed}"
    action = rule.then.action
    if action not in config.actions:
        allowed = ", ".join(map(repr, sorted(config.actions))) or "none"
        yield f"then.action: a stored rule cannot run {action!r}: the actions it can run are {allowed}"
        return
    params = config.actions[action]
    if params is None:
        if rule.then.params:
            yield f"then.params: the action {action!r} takes none: leave them out"
        return
    try:
        load_params(rule.then, params)
    except RuleError as error:
        yield from error.problems


def _filtered(rule: Rule) -> Iterator[str]:
    if rule.scope.fields:
        yield "scope.fields: a stored rule has no scope fields, so that its throttle bounds all of it: leave them out"
    yield from _filters(rule.when.filter, "when.filter")
    if rule.when.pattern.kind == "sequence":
        for index, step in enumerate(rule.when.pattern.steps):
            yield from _filters(step, f"when.pattern.steps.{index}")


def _filters(condition: Filter, place: str) -> Iterator[str]:
    match condition:
        case Predicate():
            yield f"{place}: a stored rule has no predicate, which is the application's code: compare fields instead"
        case Where(op="matches"):
            yield f"{place}.op: a stored rule has no 'matches': use 'eq', 'in' or 'contains'"
        case Not():
            yield from _filters(condition.filter, f"{place}.filter")
        case AllOf() | AnyOf():
            for index, part in enumerate(condition.of):
                yield from _filters(part, f"{place}.of.{index}")
        case _:
            return


def _paced(rule: Rule) -> Iterator[str]:
    throttle, retry = rule.when.throttle, rule.retry
    if throttle is None:
        yield (
            f"when.throttle: a stored rule fires at most {MAX_FIRINGS_PER_HOUR} times in any hour: "
            'add one, such as {"at_most": 1, "per": "PT1M"}'
        )
    else:
        # So many windows of the throttle begin in an hour, and each can let its firings through at once.
        hourly = throttle.at_most * -(-_HOUR // throttle.per)
        if hourly > MAX_FIRINGS_PER_HOUR:
            yield (
                f"when.throttle: it lets {hourly} firings through in an hour, and {MAX_FIRINGS_PER_HOUR} are the most: "
                "lower at_most or lengthen per"
            )
    for place, window in _windows(rule):
        if window > MAX_WINDOW:
            yield f"{place}: {window} is longer than {MAX_WINDOW}, the longest window of a stored rule"
    pattern = rule.when.pattern
    if pattern.kind == "count" and pattern.at_least > MAX_AT_LEAST:
        yield f"when.pattern.at_least: {pattern.at_least} is more than {MAX_AT_LEAST}, the most of a stored rule"
    if retry.max_attempts > MAX_ATTEMPTS:
        yield f"retry.max_attempts: {retry.max_attempts} is more than {MAX_ATTEMPTS}, the most of a stored rule"
    for name, wait in (("backoff", retry.backoff), ("max_backoff", retry.max_backoff)):
        if wait > MAX_BACKOFF:
            yield f"retry.{name}: {wait} is longer than {MAX_BACKOFF}, the longest of a stored rule"
    if rule.timeout is not None and rule.timeout > MAX_TIMEOUT:
        yield f"timeout: {rule.timeout} is longer than {MAX_TIMEOUT}, the longest of a stored rule"


def _windows(rule: Rule) -> Iterator[tuple[str, timedelta]]:
    when = rule.when
    if when.dedupe is not None:
        yield "when.dedupe.within", when.dedupe.within
    if not isinstance(when.pattern, Each):
        yield "when.pattern.within", when.pattern.within
    if when.throttle is not None:
        yield "when.throttle.per", when.throttle.per


def _sized(rule: Rule) -> Iterator[str]:
    if rule.description is not None and len(rule.description) > MAX_DESCRIPTION:
        yield f"description: {len(rule.description)} characters, and {MAX_DESCRIPTION} are the most of a stored rule"
    size = len(rule.model_dump_json().encode())
    if size > MAX_SIZE:
        yield f"the rule is {size} bytes of JSON, and {MAX_SIZE} are the most of a stored rule"
