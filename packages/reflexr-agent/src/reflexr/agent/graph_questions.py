"""Questions of a graph's steps: what a run asks while it is paused, and how an answer is understood.

A question is known by its step's execution and by how many that one asked before, at every attempt. So a step that runs
again from its beginning, and asks the same in the same order, is told what was answered.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, cast

from pydantic import BaseModel, JsonValue
from pydantic_core import to_json

from reflexr.agent.answers import UnfittingAnswer, listed
from reflexr.core import Answer, NotJsonError, json_value, model_value
from reflexr.workspace import Pause

_DEPTH: Final = 5
"""How many lists and objects are around a request or an answer, where a run is stored."""


class StepQuestion(BaseModel, frozen=True):
    """What one step asks.

    Attributes:
        key: What it is answered by: the step, its execution, and the number of the question.
        step: The step.
        request: What it asks.
    """

    key: str
    step: str
    request: JsonValue


class StepQuestions(BaseModel, frozen=True):
    """What a run of a `GraphAction` asks while it is paused, as its `waiting.request`.

    The answer is JSON: an object whose only member is `answers`, itself an object with the answer to each key, or to
    some, and then the run asks for the others again. If there is one question, any other answer is that to it.

    Attributes:
        questions: What is asked, by one step or by several side by side.
        problem: What was wrong with the last answer, and what would be right; `None` if nothing was.
    """

    questions: tuple[StepQuestion, ...]
    problem: str | None = None

    def answers(self, answer: JsonValue) -> dict[str, JsonValue]:
        """Returns what is answered, by key.

        Raises:
            UnfittingAnswer: It does not answer these questions.
        """
        keys = [question.key for question in self.questions]
        found = answer["answers"] if isinstance(answer, dict) and answer.keys() == {"answers"} else None
        if not isinstance(found, dict):
            if len(keys) > 1:
                raise UnfittingAnswer(f'answer with {{"answers": {{…}}}}, by the key of each question: {listed(keys)}')
            found = {keys[0]: answer}
        if unknown := found.keys() - set(keys):
            raise UnfittingAnswer(f"there are no such questions: {listed(unknown)}; asked are {listed(keys)}")
        if not found:
            raise UnfittingAnswer(f"nothing is answered; asked are {listed(keys)}")
        try:
            return {key: json_value(value, f"the answer to {listed([key])}", _DEPTH) for key, value in found.items()}
        except NotJsonError as error:
            raise UnfittingAnswer(str(error)) from error


class Asked(BaseModel, extra="forbid"):
    """A question that was asked.

    Attributes:
        question: The question.
        section: How many places the graph had passed.
        execution: The execution of the step.
        timeout: How long it may wait; `None` for any time.
    """

    question: StepQuestion
    section: int
    execution: str
    timeout: timedelta | None


class Given(BaseModel, extra="forbid"):
    """An answer that was given.

    Attributes:
        section: As of the question.
        execution: As of the question.
        request: What was asked.
        answer: The answer.
    """

    section: int
    execution: str
    request: JsonValue
    answer: Answer


class Inquiry:
    """What one execution of a step asks, in its order."""

    def __init__(self, step: str, section: int, execution: str, given: Mapping[str, Given]) -> None:
        """Begins an execution.

        Args:
            step: The step.
            section: How many places the graph has passed.
            execution: The execution.
            given: What has been answered, by key.
        """
        self.execution = execution
        self.open: list[Asked] = []
        self._step = step
        self._section = section
        self._given = given
        self._asked = 0

    def ask(self, request: BaseModel | JsonValue, timeout: timedelta | None) -> Answer:
        """Returns the answer to the next question.

        Raises:
            StepAsks: There is none yet.
            NotJsonError: The request is neither JSON nor a pydantic model.
            WorkspaceError: The timeout is not more than 0.
        """
        place = f"what step {self._step!r} asks"
        written = (
            model_value(request, place, _DEPTH)
            if isinstance(request, BaseModel)
            else json_value(request, place, _DEPTH)
        )
        timeout = Pause(written, timeout=timeout).timeout
        number, self._asked = self._asked, self._asked + 1
        key = f"{self._step}:{self.execution}:{number}"
        given = self._given.get(key)
        # An answer is to what was asked: a step that asks something else by now has none.
        if given is not None and to_json(given.request) == to_json(written):
            return given.answer
        self.open.append(
            Asked(
                question=StepQuestion(key=key, step=self._step, request=written),
                section=self._section,
                execution=self.execution,
                timeout=timeout,
            )
        )
        raise StepAsks


class StepAsks(BaseException):
    """A step asks for what is not answered yet, so this execution of it is over."""


class GraphPaused(Exception):
    """Nothing of a graph goes on any more, as steps ask for something."""

    def __init__(self, pause: Pause) -> None:
        """Takes what the action returns."""
        super().__init__()
        self.pause = pause


def only_asks(error: BaseException) -> bool:
    """Whether an error says only that a step asks, also if several of its tasks do at once."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(only_asks, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return isinstance(error, StepAsks)


def questions_of(asked: Sequence[Asked]) -> StepQuestions:
    """Returns what is asked, as whoever is to answer reads it."""
    return StepQuestions(questions=tuple(each.question for each in asked))


def timeout_of(asked: Sequence[Asked]) -> timedelta | None:
    """Returns how long all of them may wait: as long as the first whose time is over."""
    return min((each.timeout for each in asked if each.timeout is not None), default=None)
