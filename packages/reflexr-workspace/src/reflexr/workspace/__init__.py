"""Workspaces and the reactor: logs that rules watch, and runs that are durable, over a storage of your choice."""

from reflexr.core import EventLike, NewEvent, RuleDescription, RuleStatus, ScheduleStatus
from reflexr.workspace.actions import Action, ActionFunction, FunctionAction, Output, with_params
from reflexr.workspace.clocks import Clock, ManualClock, system_clock
from reflexr.workspace.commands import CommandFailed, CommandKey, CommandResults, InMemoryCommandResults
from reflexr.workspace.errors import (
    DuplicateEventIdError,
    StorageError,
    StoredRuleConflictError,
    TransactionClosedError,
    WorkspaceError,
)
from reflexr.workspace.failures import RunFailure
from reflexr.workspace.handles import Workspace
from reflexr.workspace.kernel import StorageKernel, TransactionKernel
from reflexr.workspace.live_attempts import LiveAttempt
from reflexr.workspace.live_output import DeltaListener, InProcessLiveOutput, LiveOutput
from reflexr.workspace.memory import InMemoryStorage, Sizes
from reflexr.workspace.pauses import Pause, ResumeAction
from reflexr.workspace.permissions import Access, Authorize
from reflexr.workspace.publishing import Publication
from reflexr.workspace.reactions import Reaction
from reflexr.workspace.reactor import Reactor
from reflexr.workspace.refs import EVALUATION_LEASE, LeaseKey, WorkspaceRef, run_lease, schedule_lease
from reflexr.workspace.run_contexts import RunContext, no_run_context
from reflexr.workspace.schedules import Schedule
from reflexr.workspace.snapshots import Lease, Snapshot
from reflexr.workspace.storage import (
    Deadline,
    DueRun,
    DueSchedule,
    Head,
    LogWindow,
    RunPolicy,
    RunQuery,
    RunScope,
    StateChanges,
    Storage,
    Transaction,
    Watch,
)
from reflexr.workspace.wakeups import InProcessWakeups, Listener, Wakeups
from reflexr.workspace.workspaces import Workspaces

__all__ = [
    # Workspaces
    "Workspaces",
    "Workspace",
    "EventLike",
    "NewEvent",
    "Publication",
    "RuleStatus",
    "RuleDescription",
    "ScheduleStatus",
    # Permissions
    "Authorize",
    "Access",
    # The reactor
    "Reactor",
    "Reaction",
    "Action",
    "ActionFunction",
    "FunctionAction",
    "Output",
    "with_params",
    "Pause",
    "ResumeAction",
    "RunFailure",
    "RunContext",
    "no_run_context",
    "Schedule",
    # Commands
    "CommandResults",
    "CommandKey",
    "CommandFailed",
    "InMemoryCommandResults",
    # Storage
    "Storage",
    "Transaction",
    "InMemoryStorage",
    "Sizes",
    "WorkspaceRef",
    "Head",
    "LogWindow",
    "RunQuery",
    "RunScope",
    "StateChanges",
    "Watch",
    "RunPolicy",
    "DueRun",
    "Deadline",
    "DueSchedule",
    "LeaseKey",
    "EVALUATION_LEASE",
    "run_lease",
    "schedule_lease",
    # Backends of few methods
    "StorageKernel",
    "TransactionKernel",
    "Snapshot",
    "Lease",
    # Wake-ups
    "Wakeups",
    "Listener",
    "InProcessWakeups",
    # Live output
    "LiveOutput",
    "DeltaListener",
    "InProcessLiveOutput",
    "LiveAttempt",
    # Clocks
    "Clock",
    "ManualClock",
    "system_clock",
    # Errors
    "WorkspaceError",
    "StorageError",
    "DuplicateEventIdError",
    "StoredRuleConflictError",
    "TransactionClosedError",
]
