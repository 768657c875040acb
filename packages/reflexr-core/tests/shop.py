"""The events of a small shop, for tests that need typed events."""

import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any, Final

from pydantic import BaseModel, Field

from reflexr.core import Envelope, Event


class ShopEvent(Event, abstract=True, event_namespace="shop"):
    pass


class Address(BaseModel):
    city: str
    zone: int | None = None


class OrderPlaced(ShopEvent):
    order: str
    total: float = 0.0
    labels: dict[str, str] = Field(default_factory=dict)
    address: Address | None = None


class OrderPaid(ShopEvent, name="order.paid"):
    order: str
    amount: int = 0


def envelope(event: dict[str, Any], **changes: Any) -> Envelope:
    """Returns a stored event: the first of its log unless the changes say otherwise."""
    document: dict[str, Any] = {
        "seq": 1,
        "id": "evt_1",
        "ts": "2026-01-01T00:00:00Z",
        "workspace_id": "w",
        "actor": {"kind": "system", "name": "test"},
        "correlation_id": "evt_1",
        "event": event,
    }
    return Envelope.model_validate({**document, **changes})


def pickled(value: Any) -> Any:
    """Returns what comes out of another process."""
    return pickle.loads(pickle.dumps(value))


COPIES: Final[list[Callable[[Any], Any]]] = [copy, deepcopy, pickled]
"""The ways in which Python copies a value."""
