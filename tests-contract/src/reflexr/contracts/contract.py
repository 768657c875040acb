"""`Contract`, of which each contract suite is one, and `guarantee`, which makes a test of each of its promises."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from reflexr.contracts.adapters import Feature

NEEDS = "reflexr_contract"
"""The marker of each guarantee; its arguments are the features that it asks of an adapter."""


class Contract[Trial]:
    """A port's promises, each a test over a fresh adapter.

    A test opens what its contract puts on trial, and runs in an event loop of its own, so it needs no other plugin of
    pytest. Whoever owns an adapter derives a class named `Test…` and overrides the one factory.

    Attributes:
        features: What the adapter can do beyond what every adapter has to.
        clock_precision: How exactly the adapter's clock tells the time, from a microsecond.
        patience: How long one guarantee may take before something is taken to wait for ever.
        soon: How long a wake-up is waited for before it is taken to be lost.
    """

    features: ClassVar[frozenset[Feature]] = frozenset()
    clock_precision: ClassVar[timedelta] = timedelta.resolution
    patience: ClassVar[timedelta] = timedelta(seconds=30)
    soon: ClassVar[timedelta] = timedelta(seconds=10)

    def trial(self) -> AbstractAsyncContextManager[Trial]:
        """Opens what one guarantee is tried on. To be overridden by each contract."""
        raise self.missing("trial")

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Returns a new event loop for one guarantee: asyncio's own, for whoever does not override it."""
        return asyncio.new_event_loop()

    def missing(self, factory: str) -> NotImplementedError:
        """Returns the error of a contract that was derived without its factory.

        No factory is abstract: pytest leaves out abstract classes without a word.
        """
        return NotImplementedError(f"{type(self).__name__} has nothing to try: override {factory}()")


def guarantee[C: Contract[Any]](
    *needs: Feature,
) -> Callable[[Callable[[C, Any], Awaitable[None]]], Callable[[C], None]]:
    """Makes a test of a coroutine function that takes what is on trial, and whose docstring is the guarantee.

    Args:
        needs: The features without which the guarantee is not asked of an adapter.
    """

    def decorate(check: Callable[[C, Any], Awaitable[None]]) -> Callable[[C], None]:
        def test(self: C) -> None:
            __tracebackhide__ = True
            with asyncio.Runner(loop_factory=self.event_loop) as runner:
                failure = runner.run(_try(self, check))
            if failure is not None:
                # Raised out here, so that the report shows the guarantee's own lines and not those of an event loop.
                raise failure

        # Not what functools.wraps does: pytest would look for a fixture named as the argument that the test hides.
        test.__name__, test.__qualname__, test.__doc__ = _names(check)
        test.__module__ = check.__module__
        return pytest.mark.reflexr_contract(*needs)(test)

    return decorate


async def _try[C: Contract[Any]](contract: C, check: Callable[[C, Any], Awaitable[None]]) -> BaseException | None:
    __tracebackhide__ = True
    patience = asyncio.timeout(contract.patience.total_seconds())
    try:
        async with patience, contract.trial() as trial:
            await check(contract, trial)
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # What pytest itself raises, to fail or to skip a test, is no Exception.
        if isinstance(error, TimeoutError) and patience.expired():
            late = AssertionError(f"something was still waiting after {contract.patience}")
            late.__cause__ = error
            return late
        return error
    return None


def _names(check: Callable[..., object]) -> tuple[str, str, str | None]:
    return check.__name__, check.__qualname__, check.__doc__
