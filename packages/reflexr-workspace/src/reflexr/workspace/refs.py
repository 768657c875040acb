"""How what a storage keeps is named: workspaces, and the leases on something of theirs."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, order=True)
class WorkspaceRef:
    """Names one workspace of one tenant. Two tenants' workspaces of one name have nothing to do with each other."""

    tenant_id: str
    workspace_id: str


@dataclass(frozen=True, slots=True)
class LeaseKey:
    """What a lease is on: something of one workspace, such as its evaluation or one of its runs."""

    workspace: WorkspaceRef
    name: str


EVALUATION_LEASE: Final = "evaluation"
"""The name of the lease on a workspace's evaluation."""


def run_lease(run_id: str) -> str:
    """Returns the name of the lease on a run. A storage knows it: a running run without a live one is due again."""
    return f"run:{run_id}"


def schedule_lease(schedule: str) -> str:
    """Returns the name of the lease on a schedule's ticks in a workspace."""
    return f"schedule:{schedule}"
