"""Failures of agents that have a stable reason, whichever model they come from."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from pydantic_ai.exceptions import (
    AgentRunError,
    ContentFilterError,
    ModelContextWindowExceededError,
    UsageLimitExceeded,
)

from reflexr.workspace import RunFailure

USAGE_LIMIT_EXCEEDED: Final = "usage_limit_exceeded"
"""The reason of an attempt whose agent used more than its limits allow. Permanent: another would spend it again."""

CONTENT_FILTERED: Final = "content_filtered"
"""The reason of an attempt whose model, or its provider, refused the content. Permanent."""

CONTEXT_WINDOW_EXCEEDED: Final = "context_window_exceeded"
"""The reason of an attempt that told the model more than it takes. Permanent."""

_REASONS: Final[tuple[tuple[type[AgentRunError], str], ...]] = (
    (UsageLimitExceeded, USAGE_LIMIT_EXCEEDED),
    (ContentFilterError, CONTENT_FILTERED),
    (ModelContextWindowExceededError, CONTEXT_WINDOW_EXCEEDED),
)


@contextmanager
def agent_failures() -> Generator[None]:
    """Runs a block in which what makes an agent's run pointless to try again fails the run of its action for good.

    Raises:
        RunFailure: With the reason `usage_limit_exceeded`, `content_filtered` or `context_window_exceeded`.
    """
    try:
        yield
    except AgentRunError as error:
        for kind, reason in _REASONS:
            if isinstance(error, kind):
                raise RunFailure(error.message, reason=reason, permanent=True) from error
        raise
