"""What an adapter declares about itself, beyond what every adapter has to do.

The package imports this module before every other: pytest learns here that the others assert, and shows the values
that failed.
"""

from enum import StrEnum
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    *(f"{__package__}.{module.stem}" for module in Path(__file__).parent.glob("*.py") if module != Path(__file__))
)


class Feature(StrEnum):
    """What an adapter can do that not every one can. What it declares is held to it; what it does not is not asked."""

    MOVABLE_CLOCK = "movable_clock"
    """Its time is that of the clock that the factory is given."""

    PARALLEL_WORKSPACES = "parallel_workspaces"
    """Transactions of different workspaces do not wait for each other."""

    SHARED_DATA = "shared_data"
    """A second adapter on the same data, as another process would have it, sees what the first one committed."""

    SHARED_WAKEUPS = "shared_wakeups"
    """What one of them announces wakes the listeners of the other, before they look by themselves."""

    READS = "reads"
    """A surface reads workspaces: their events, rules, runs, dead letters and schedules."""

    TENANT_READS = "tenant_reads"
    """A surface reads what spans a tenant: the code rules, and the schedules that tick in it."""

    STREAM = "stream"
    """A surface streams logs, in frames, and takes commands in between."""

    QUESTIONS = "questions"
    """An action can ask somebody before it does its work, and is answered while its run is paused."""
