"""Workspaces over HTTP and WebSocket: the methods of a handle, of a server elsewhere, that try again by themselves."""

from reflexr.client.arguments import EventLike, EventTypes, NewEvent
from reflexr.client.backoff import Backoff
from reflexr.client.client import Client
from reflexr.client.credentials import Token
from reflexr.client.descriptions import (
    RuleDescription,
    RuleStatus,
    ScheduleDescription,
    ScheduleStatus,
    ScheduleTarget,
)
from reflexr.client.errors import ClientError, LogReset, Unauthorized, Unavailable, UnexpectedAnswer
from reflexr.client.workspaces import RemoteWorkspace

__all__ = [
    # Clients
    "Client",
    "Token",
    "Backoff",
    "RemoteWorkspace",
    "EventLike",
    "EventTypes",
    "NewEvent",
    # What a server describes
    "RuleStatus",
    "RuleDescription",
    "ScheduleStatus",
    "ScheduleDescription",
    "ScheduleTarget",
    # Errors
    "ClientError",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "LogReset",
]
