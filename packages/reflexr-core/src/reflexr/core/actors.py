"""Who did something: the closed family of actors that envelopes name."""

from typing import Annotated, Literal

from pydantic import Field

from reflexr.core.canonical import canonical_list
from reflexr.core.messages import Message
from reflexr.core.names import AnyRuleName, Id


class UserActor(Message):
    """A person."""

    kind: Literal["user"] = "user"
    id: Id
    name: Id | None = None


class AgentActor(Message):
    """A rule's run: the agent, graph or function that a firing started."""

    kind: Literal["agent"] = "agent"
    rule: AnyRuleName
    run_id: Id
    name: Id


class ExternalAgentActor(Message):
    """An agent outside reflexr, such as an MCP client, perhaps on behalf of a person."""

    kind: Literal["external_agent"] = "external_agent"
    client_id: Id
    name: Id | None = None
    on_behalf_of: Id | None = None


class SystemActor(Message):
    """A part of reflexr, such as the reactor or a schedule."""

    kind: Literal["system"] = "system"
    name: Id


class SourceActor(Message):
    """A system that publishes events, such as a monitoring service."""

    kind: Literal["source"] = "source"
    name: Id


class EvaluatorActor(Message):
    """A judge or a decision model, by name and version."""

    kind: Literal["evaluator"] = "evaluator"
    name: Id
    version: Id


type Actor = Annotated[
    UserActor | AgentActor | ExternalAgentActor | SystemActor | SourceActor | EvaluatorActor,
    Field(discriminator="kind"),
]
"""Any actor, discriminated by `kind`."""


def participant(actor: Actor) -> str:
    """Returns the text that tells one participant from every other.

    A participant is who repeats a command: the same user, client, run, source, system or evaluator, whatever name it
    shows. Texts of different participants differ, also when their ids look alike.
    """
    match actor:
        case UserActor():
            identity = [actor.id]
        case AgentActor():
            identity = [actor.rule, actor.run_id]
        case ExternalAgentActor():
            identity = [actor.client_id, actor.on_behalf_of]
        case SystemActor() | SourceActor():
            identity = [actor.name]
        case _:
            identity = [actor.name, actor.version]
    return canonical_list([actor.kind, *identity])
