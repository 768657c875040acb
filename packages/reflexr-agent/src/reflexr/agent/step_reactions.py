"""Reactions in the hands of one step of a graph."""

from datetime import timedelta
from typing import Any, NoReturn, override

from pydantic import BaseModel, JsonValue

from reflexr.agent.graph_questions import Inquiry
from reflexr.core import Answer
from reflexr.workspace import Reaction, WorkspaceError


class StepReaction[Deps](Reaction[Deps]):
    """The attempt's reaction, for one execution of one step.

    Branches of a fork take turns as they come, so what a step emits has its id from the step and its own turns: a step
    that is run again emits nothing twice, whatever ran beside it, and no step gets an id that was another's.
    """

    def __init__(self, reaction: Reaction[Deps], inquiry: Inquiry) -> None:
        """Hands a reaction to a step.

        Args:
            reaction: The attempt's.
            inquiry: What the execution of the step asks, and is known by at every attempt.
        """
        super().__init__(
            workspace=reaction.workspace,
            run=reaction.run,
            rule=reaction.rule,
            envelopes=reaction.envelopes,
            deps=reaction.deps,
            params=reaction.params,
            save_checkpoint=_refuse,
            live=reaction.live,
        )
        self._answer = reaction.answer
        self._inquiry = inquiry
        self._turn = 0

    async def ask(self, request: BaseModel | JsonValue, *, answer_timeout: timedelta | None = None) -> Answer:
        """Returns the answer to a question, for which the run pauses if there is none yet.

        Then this execution of the step is over. What runs beside it goes on, to its end or to its own question, and is
        saved; the run asks what all of them ask, as `StepQuestions`. Once it is answered, the step runs again from its
        beginning, and is told the answer here, at every further attempt too: so until it has ended, it asks the same
        in the same order. An answer that does not suit it, it asks for again.

        Args:
            request: What it asks, as JSON or a pydantic model.
            answer_timeout: How long the run waits at most each time that it asks, more than 0; then it is dead-lettered
                as `unanswered`. `None` for any time. Of several questions, the shortest counts.

        Raises:
            NotJsonError: The request is neither JSON nor a pydantic model.
            WorkspaceError: The timeout is not more than 0.
        """
        return self._inquiry.ask(request, answer_timeout)

    @override
    def _next_place(self) -> tuple[str | int, int]:
        turn, self._turn = self._turn, self._turn + 1
        return self._inquiry.execution, turn


async def _refuse(*_: Any) -> NoReturn:
    raise WorkspaceError("a graph saves its own checkpoints: keep what a later step needs in its state or its inputs")
