"""Each promise of a surface is noticed when it is broken, and it alone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import ClassVar, override

import pytest

from reflexr.contracts import Connect, Feature, SurfaceContract
from reflexr.workspace import Workspaces

from .broken_commands import BROKEN_COMMANDS, BROKEN_REFUSALS
from .broken_conversations import BROKEN_CONVERSATIONS
from .broken_input import BROKEN_INPUT
from .broken_permissions import BROKEN_PERMISSIONS
from .broken_reads import BROKEN_READS
from .broken_repeats import BROKEN_REPEATS
from .broken_streams import BROKEN_STREAMS
from .broken_surfaces import BrokenSurface
from .broken_tenants import BROKEN_TENANTS
from .in_process_surface import InProcessSurface
from .timeless import TimelessLoop

BROKEN = (
    *BROKEN_COMMANDS,
    *BROKEN_REFUSALS,
    *BROKEN_INPUT,
    *BROKEN_REPEATS,
    *BROKEN_READS,
    *BROKEN_STREAMS,
    *BROKEN_CONVERSATIONS,
    *BROKEN_PERMISSIONS,
    *BROKEN_TENANTS,
)


class Contract(SurfaceContract):
    """The whole contract, over a surface that a test names."""

    features: ClassVar[frozenset[Feature]] = frozenset(Feature)
    large: ClassVar[int] = 501

    def __init__(self, kind: type[InProcessSurface]) -> None:
        self.kind = kind

    @override
    @asynccontextmanager
    async def surface(self, application: Workspaces) -> AsyncGenerator[Connect]:
        yield partial(self.kind, application)

    @override
    def event_loop(self) -> asyncio.AbstractEventLoop:
        return TimelessLoop()


def guarantees() -> list[str]:
    return [name for name in dir(Contract) if name.startswith("test_")]


def fails(kind: type[InProcessSurface], guarantee: str) -> bool:
    try:
        getattr(Contract(kind), guarantee)()
    except BaseException as error:
        # What pytest raises to fail a test is no Exception.
        return not isinstance(error, KeyboardInterrupt)
    return False


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.what)
def test_a_broken_promise_of_a_surface_is_noticed_and_no_other_is_blamed(broken: BrokenSurface) -> None:
    assert {name for name in guarantees() if fails(broken.kind, name)} == broken.guarantees


def test_every_guarantee_is_one_that_some_surface_breaks() -> None:
    assert {guarantee for one in BROKEN for guarantee in one.guarantees} == set(guarantees())


def test_a_surface_that_breaks_nothing_fails_nothing() -> None:
    assert [name for name in guarantees() if fails(InProcessSurface, name)] == []
