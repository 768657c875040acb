"""reflexr's workspaces over HTTP and WebSocket: a router for applications of FastAPI."""

from reflexr.fastapi.callers import ResolveActor, Unauthorized
from reflexr.fastapi.router import ReflexrRouter, reflexr_router
from reflexr.workspace import Authorize, RuleStatus, ScheduleStatus

__all__ = [
    # The router
    "reflexr_router",
    "ReflexrRouter",
    # Who calls, and what they may
    "ResolveActor",
    "Unauthorized",
    "Authorize",
    # What it reports
    "RuleStatus",
    "ScheduleStatus",
]
