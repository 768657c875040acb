"""Outcomes: what came of a command that was carried out, as it travels."""

from typing import Annotated, Literal

from pydantic import Field

from reflexr.core.envelopes import Seq
from reflexr.core.messages import Message
from reflexr.core.names import AnyRuleName, Id
from reflexr.core.runs import Run
from reflexr.core.states import RuleProgress


class Published(Message):
    """An event is in the log.

    Attributes:
        seq: Its place.
        id: Its id.
        duplicate: Whether it was there already, so that nothing was appended.
    """

    type: Literal["published"] = "published"
    seq: Seq
    id: Id
    duplicate: bool


class PublishedMany(Message):
    """Events are in the log, each as its `published` has it, in the order in which they were given."""

    type: Literal["published_many"] = "published_many"
    published: tuple[Published, ...]


class Recorded(Message):
    """Feedback is in the log.

    Attributes:
        seq: The place of its fact.
        id: The id of its fact.
    """

    type: Literal["recorded"] = "recorded"
    seq: Seq
    id: Id


class RunChanged(Message):
    """A run was retried, skipped or cancelled: this is what it is now."""

    type: Literal["run"] = "run"
    run: Run


class RuleReplayed(Message):
    """A rule evaluates the log again, from this progress on."""

    type: Literal["rule"] = "rule"
    rule: AnyRuleName
    progress: RuleProgress


class RuleVersion(Message):
    """A stored rule was installed, updated or archived.

    Attributes:
        rule: Its name.
        version: The version that is current now.
        seq: The place of the version's fact.
        duplicate: Whether it was so already, so that nothing was changed.
    """

    type: Literal["rule_version"] = "rule_version"
    rule: AnyRuleName
    version: int = Field(ge=1)
    seq: Seq
    duplicate: bool


type Outcome = Annotated[
    Published | PublishedMany | Recorded | RunChanged | RuleReplayed | RuleVersion, Field(discriminator="type")
]
"""Any outcome, discriminated by `type`."""
