"""The `RunContext` port: what surrounds each attempt of a run to attribute it, and the default."""

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reflexr.workspace.reactions import Reaction


class RunContext(Protocol):
    """Opens a context around each attempt, inside its span."""

    def __call__(self, reaction: "Reaction[Any]", /) -> AbstractAsyncContextManager[object]:
        """Returns the context of one attempt.

        The action runs inside it, and what the action raises, a cancellation included, passes through it. An attempt
        whose context raises has failed; one whose action raised has failed also if the context swallows that. The
        action runs in a task of its own: it sees the context's variables, and the context none that the action sets.
        """
        ...


@asynccontextmanager
async def no_run_context(reaction: "Reaction[Any]", /) -> "AsyncGenerator[None]":
    """Opens a context that does nothing: the default."""
    yield
