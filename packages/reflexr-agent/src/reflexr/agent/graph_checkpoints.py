"""Checkpoints of graphs: what is saved on a run, and what another attempt, in any process, reads from it."""

from typing import Any, Literal, Self

from pydantic import BaseModel, JsonValue

from reflexr.agent.graph_questions import Asked, Given, questions_of
from reflexr.core import Answer


class Place(BaseModel, extra="forbid"):
    """A step that is to run next, with nothing beside it.

    Attributes:
        node: The step.
        inputs: Its inputs.
    """

    node: str
    inputs: JsonValue


class Done(BaseModel, extra="forbid"):
    """A step that has run.

    Attributes:
        node: The step.
        execution: Which of its executions it was.
        output: What it returned.
    """

    node: str
    execution: str
    output: JsonValue


class GraphCheckpoint(BaseModel, extra="forbid"):
    """Where a graph stands.

    Attributes:
        version: The version of this form.
        graph: The action whose graph it is.
        origin: How many checkpoints the run had when the graph last began from its start.
        section: How many places it has passed since.
        at: The last place where nothing ran beside another; `None` for the graph's start.
        done: The steps that have run since that place, in the order in which they ended.
        state: The graph's state.
        fresh: Whether nothing of it could be saved, so that the graph goes on from its start with a state of its own.
        asked: What the run asks, if it pauses.
        given: The answers to steps that have not ended, by the questions' keys.
    """

    version: Literal[1] = 1
    graph: str
    origin: int
    section: int
    at: Place | None
    done: tuple[Done, ...]
    state: JsonValue
    fresh: bool = False
    asked: tuple[Asked, ...] = ()
    given: dict[str, Given] = {}


class Position:
    """Where a graph goes on from, in values of the graph's own types.

    Attributes:
        origin: As in the checkpoint.
        section: As in the checkpoint.
        at: As in the checkpoint.
        inputs: The inputs of the step that is to run next, or of the graph at its start.
        done: As in the checkpoint, by execution.
        outputs: What those steps returned, by execution.
        state: The graph's state; at its start the action makes it.
        saved: The checkpoint.
        given: As in the checkpoint, with what the run has been told since.
    """

    def __init__(self, saved: GraphCheckpoint) -> None:
        """Takes over what is plain in a checkpoint."""
        self.saved = saved
        self.origin = saved.origin
        self.section = saved.section
        self.at = saved.at
        self.done = {done.execution: done for done in saved.done}
        self.given = saved.given
        self.state: Any = None
        self.inputs: Any = None
        self.outputs: dict[str, Any] = {}

    @classmethod
    def start(cls, graph: str, origin: int) -> Self:
        """Begins at a graph's start."""
        return cls(GraphCheckpoint(graph=graph, origin=origin, section=0, at=None, done=(), state=None, fresh=True))

    def tell(self, answer: Answer) -> None:
        """Takes what the run was told for the answers to what it asks, or to some of it.

        Raises:
            UnfittingAnswer: It does not answer that.
        """
        answers = questions_of(self.saved.asked).answers(answer.value)
        self.given = self.given | {
            asked.question.key: Given(
                section=asked.section,
                execution=asked.execution,
                request=asked.question.request,
                answer=answer.model_copy(update={"value": answers[asked.question.key]}),
            )
            for asked in self.saved.asked
            if asked.question.key in answers
        }

    def move(self, place: Place) -> None:
        """Goes on from a later place, before which nothing has to be known any more."""
        self.at = place
        self.section += 1
        self.done = {}
        self.outputs = {}
