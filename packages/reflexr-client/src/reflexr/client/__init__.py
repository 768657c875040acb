"""Workspaces over HTTP and WebSocket: the methods of a handle, of a server elsewhere, that try again by themselves."""

from reflexr.client.arguments import EventTypes
from reflexr.client.backoff import Backoff
from reflexr.client.client import Client
from reflexr.client.credentials import Token
from reflexr.client.descriptions import ScheduleDescription, ScheduleTarget
from reflexr.client.errors import ClientError, LogReset, Unauthorized, Unavailable, UnexpectedAnswer
from reflexr.client.workspaces import RemoteWorkspace
from reflexr.core import EventLike, NewEvent, RuleDescription, RuleStatus, ScheduleStatus

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
