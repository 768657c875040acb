"""The events of the chaos: what is published from outside, and what only runs publish."""

from reflexr.core import Event


class ChaosEvent(Event, abstract=True, event_namespace="chaos"):
    """The events of the chaos."""


class Ping(ChaosEvent):
    """What publishers publish."""

    key: int
    value: int


class Loose(ChaosEvent, extra="allow"):
    """What they publish too, some of it without the key by which rules are partitioned."""

    value: int


class Pong(ChaosEvent):
    """What runs emit: the run and its step, and something for rules to decide on."""

    run: str
    step: int
    key: int
    value: int
