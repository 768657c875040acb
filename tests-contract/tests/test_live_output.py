"""The adapter of reflexr.workspace keeps the promises of a live output, and each is noticed when it is broken."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import ClassVar, override

import pytest

from reflexr.contracts import LiveOutputContract
from reflexr.core import Delta
from reflexr.workspace import DeltaListener, InProcessLiveOutput, LiveOutput, WorkspaceRef

from .timeless import TimelessLoop


class TestInProcessLiveOutput(LiveOutputContract):
    @override
    @asynccontextmanager
    async def live_output(self) -> AsyncGenerator[LiveOutput]:
        yield InProcessLiveOutput()


class OnTrial(LiveOutputContract):
    """Over an adapter that a test names."""

    many: ClassVar[int] = 2_000

    def __init__(self, kind: type[InProcessLiveOutput]) -> None:
        self.kind = kind

    @override
    @asynccontextmanager
    async def live_output(self) -> AsyncGenerator[LiveOutput]:
        yield self.kind()

    @override
    def event_loop(self) -> asyncio.AbstractEventLoop:
        return TimelessLoop()


class SendsNothing(InProcessLiveOutput):
    @override
    def send(self, workspace: WorkspaceRef, delta: Delta) -> None:
        """Says nothing."""


class SendsTexts(InProcessLiveOutput):
    @override
    def send(self, workspace: WorkspaceRef, delta: Delta) -> None:
        super().send(workspace, delta.model_copy(update={"kind": "text", "tool": None}))


class SendsTwice(InProcessLiveOutput):
    @override
    def send(self, workspace: WorkspaceRef, delta: Delta) -> None:
        super().send(workspace, delta)
        super().send(workspace, delta)


class MixesTenants(InProcessLiveOutput):
    @override
    def send(self, workspace: WorkspaceRef, delta: Delta) -> None:
        super().send(WorkspaceRef("contract-tenant", workspace.workspace_id), delta)


class IsHeardByNobody(InProcessLiveOutput):
    @override
    def is_heard(self, workspace: WorkspaceRef) -> bool:
        return False


class KeepsEverything(InProcessLiveOutput):
    def __init__(self) -> None:
        super().__init__(size=1_000_000)


class Changed(InProcessLiveOutput):
    """Listens with listeners of another kind."""

    @override
    @contextmanager
    def listen(self, workspace: WorkspaceRef) -> Generator[DeltaListener]:
        with super().listen(workspace) as listener:
            yield self.changed(listener)

    def changed(self, listener: DeltaListener) -> DeltaListener:
        return listener


class Passing:
    """A listener that passes on what another hears."""

    def __init__(self, listener: DeltaListener) -> None:
        self.listener = listener

    async def take(self) -> list[Delta]:
        return await self.listener.take()


class ForgetsWhenCancelled(Changed):
    class Forgetful(Passing):
        @override
        async def take(self) -> list[Delta]:
            try:
                return await self.listener.take()
            except asyncio.CancelledError:
                await self.listener.take()
                raise

    @override
    def changed(self, listener: DeltaListener) -> DeltaListener:
        return self.Forgetful(listener)


class CountsNoLoss(Changed):
    class Forgiving(Passing):
        @override
        async def take(self) -> list[Delta]:
            deltas = await super().take()
            is_long = len(deltas) > 10
            return [delta.model_copy(update={"lost": 0}) for delta in deltas] if is_long else deltas

    @override
    def changed(self, listener: DeltaListener) -> DeltaListener:
        return self.Forgiving(listener)


class HasOneListener(InProcessLiveOutput):
    """The last one who came takes it from whoever had it."""

    latest: DeltaListener | None = None

    @override
    @contextmanager
    def listen(self, workspace: WorkspaceRef) -> Generator[DeltaListener]:
        with super().listen(workspace) as listener:
            shared = self.latest = self.latest or listener
            try:
                yield shared
            finally:
                self.latest = None


class EndsForAll(InProcessLiveOutput):
    @override
    @contextmanager
    def listen(self, workspace: WorkspaceRef) -> Generator[DeltaListener]:
        with super().listen(workspace) as listener:
            self.ended = False
            try:
                yield listener
            finally:
                self.ended = True

    ended = False

    @override
    def send(self, workspace: WorkspaceRef, delta: Delta) -> None:
        if not self.ended:
            super().send(workspace, delta)


ALL = {name.removeprefix("test_") for name in dir(OnTrial) if name.startswith("test_")}

BROKEN: list[tuple[type[InProcessLiveOutput], set[str]]] = [
    (SendsNothing, ALL - {"where_somebody_listens_it_is_heard"}),
    (SendsTexts, {"a_listener_takes_what_is_said_as_it_is"}),
    (
        SendsTwice,
        ALL - {"where_somebody_listens_it_is_heard"},
    ),
    (MixesTenants, {"a_listener_hears_of_no_other_workspace"}),
    (IsHeardByNobody, {"where_somebody_listens_it_is_heard"}),
    (KeepsEverything, {"a_listener_that_falls_behind_loses_the_oldest_and_is_told_how_many"}),
    (CountsNoLoss, {"a_listener_that_falls_behind_loses_the_oldest_and_is_told_how_many"}),
    (ForgetsWhenCancelled, {"a_take_that_is_cancelled_forgets_nothing"}),
    (HasOneListener, {"every_listener_is_told"}),
    (EndsForAll, {"a_listener_that_left_takes_nothing_from_others"}),
]


def failing(kind: type[InProcessLiveOutput]) -> set[str]:
    return {name for name in ALL if fails(OnTrial(kind), f"test_{name}")}


def fails(contract: OnTrial, name: str) -> bool:
    try:
        getattr(contract, name)()
    except BaseException as error:
        # What pytest raises to fail a test is no Exception.
        return not isinstance(error, KeyboardInterrupt)
    return False


@pytest.mark.parametrize(("kind", "guarantees"), BROKEN)
def test_a_broken_promise_of_a_live_output_is_noticed(kind: type[InProcessLiveOutput], guarantees: set[str]) -> None:
    assert failing(kind) == guarantees


def test_every_guarantee_is_one_that_some_live_output_breaks() -> None:
    assert {guarantee for _, guarantees in BROKEN for guarantee in guarantees} == ALL


def test_a_live_output_that_breaks_nothing_fails_nothing() -> None:
    assert failing(InProcessLiveOutput) == set()


async def test_whoever_names_no_live_output_is_told_what_to_override() -> None:
    with pytest.raises(NotImplementedError, match="live_output"):
        async with LiveOutputContract().trial():
            pass
