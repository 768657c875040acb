"""Operators: who does something to a workspace, and what leads to it."""

from dataclasses import dataclass

from reflexr.core import Actor, Causation
from reflexr.workspace.refs import WorkspaceRef


@dataclass(frozen=True, slots=True)
class Operator:
    """Who does something to a workspace, and what leads to it.

    Attributes:
        workspace: The workspace.
        actor: Who acts.
        causation: The run that acts, if one does.
        correlation_id: That run's causal chain.
    """

    workspace: WorkspaceRef
    actor: Actor
    causation: Causation | None = None
    correlation_id: str | None = None
