"""`LiveAttempt`: what one attempt of a run says while it is at work, to whoever listens."""

import asyncio
import threading
from contextlib import suppress
from itertools import count
from logging import getLogger
from typing import Final

from reflexr.core import MAX_DELTA, Delta, DeltaKind, Run
from reflexr.workspace.live_output import LiveOutput
from reflexr.workspace.refs import WorkspaceRef

_LOGGER: Final = getLogger("reflexr.workspace")


class LiveAttempt:
    """Tells what an attempt says to who listens to its workspace, and goes on at once, whoever that is.

    Nothing of it is recorded, and nothing of it may be lost on which somebody depends: what has to be known is
    published, or is the run's output.
    """

    def __init__(self, output: LiveOutput, workspace: WorkspaceRef, run: Run) -> None:
        """Speaks for an attempt.

        Args:
            output: What carries the deltas.
            workspace: The run's workspace.
            run: The run, at the attempt.
        """
        self._output = output
        self._workspace = workspace
        self._run_id, self._rule, self._attempt = run.id, run.rule, run.attempt
        self._thread = threading.get_ident()
        self._loop = _running_loop()
        self._numbers = count(1)
        self._parts = count(1)
        self._has_failed = False

    @property
    def is_heard(self) -> bool:
        """Whether somebody may listen; what is costly to tell need not be made for nobody."""
        return self._output.is_heard(self._workspace)

    def new_part(self) -> int:
        """Returns a part of what is said that nobody else of the attempt has: 1, then 2, and so on."""
        return next(self._parts)

    def send(self, text: str, *, kind: DeltaKind = "text", part: int = 0, tool: str | None = None) -> None:
        """Tells a piece of a text, or what else it is a piece of. Never waits, and never raises.

        It may be called from any thread, such as one of `asyncio.to_thread`.

        Args:
            text: The piece. One that is longer than 1,000 characters is told in several.
            kind: What it is a piece of.
            part: Which part of what is said it goes on with; by default one that is the attempt's own.
            tool: The tool that is called, where one is.
        """
        if self._loop is None or threading.get_ident() == self._thread:
            self._tell(text, kind, part, tool)
            return
        # A thread may go on where the event loop, and all who listened, have ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell, text, kind, part, tool)

    def _tell(self, text: str, kind: DeltaKind, part: int, tool: str | None) -> None:
        try:
            self._make(text, kind, part, tool)
        except Exception:
            if not self._has_failed:
                _LOGGER.exception("what run %r in %s says is not told", self._run_id, self._workspace)
            self._has_failed = True

    def _make(self, text: str, kind: DeltaKind, part: int, tool: str | None) -> None:
        is_heard = self.is_heard
        for start in range(0, len(text) or 1, MAX_DELTA):
            # Also where nobody hears it, so that who comes later sees that something was said before.
            number = next(self._numbers)
            if is_heard:
                delta = Delta(
                    run_id=self._run_id,
                    rule=self._rule,
                    attempt=self._attempt,
                    number=number,
                    kind=kind,
                    part=part,
                    text=_sayable(text[start : start + MAX_DELTA]),
                    tool=None if tool is None else _sayable(tool[:MAX_DELTA]),
                )
                self._output.send(self._workspace, delta)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _sayable(text: str) -> str:
    """Returns a text without lone surrogates, which a model may give and no frame may hold."""
    return text.encode(errors="replace").decode()
