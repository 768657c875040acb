"""Answers: what a server's JSON means. Each is read here, and fields that this version does not know are ignored."""

from typing import Final

from pydantic import TypeAdapter, ValidationError

from reflexr.client.descriptions import ScheduleDescription
from reflexr.client.errors import ClientError, Unauthorized, UnexpectedAnswer
from reflexr.core import (
    CommandRejected,
    CommandResult,
    DeadLetter,
    Envelope,
    Outcome,
    Published,
    Rejected,
    Rejection,
    Rule,
    RuleDescription,
    RuleStatus,
    Run,
    ScheduleStatus,
    problems,
    rejected,
)

_COMMAND_RESULT: Final[TypeAdapter[CommandResult]] = TypeAdapter(CommandResult)
_REJECTION: Final[TypeAdapter[Rejection]] = TypeAdapter(Rejection)
_PUBLISHED: Final[TypeAdapter[list[Published]]] = TypeAdapter(list[Published])
_OBJECT: Final[TypeAdapter[dict[str, object]]] = TypeAdapter(dict[str, object])

ENVELOPES: Final[TypeAdapter[list[Envelope]]] = TypeAdapter(list[Envelope])
RUNS: Final[TypeAdapter[list[Run]]] = TypeAdapter(list[Run])
RUN: Final[TypeAdapter[Run]] = TypeAdapter(Run)
RULES: Final[TypeAdapter[list[Rule]]] = TypeAdapter(list[Rule])
RULE_STATUSES: Final[TypeAdapter[list[RuleStatus]]] = TypeAdapter(list[RuleStatus])
RULE: Final[TypeAdapter[RuleDescription]] = TypeAdapter(RuleDescription)
DEAD_LETTERS: Final[TypeAdapter[list[DeadLetter]]] = TypeAdapter(list[DeadLetter])
SCHEDULES: Final[TypeAdapter[list[ScheduleDescription]]] = TypeAdapter(list[ScheduleDescription])
SCHEDULE_STATUSES: Final[TypeAdapter[list[ScheduleStatus]]] = TypeAdapter(list[ScheduleStatus])

_LONGEST_EXCERPT: Final = 200


def read_answer[T](adapter: TypeAdapter[T], content: bytes, what: str) -> T:
    """Returns what an answer holds.

    Raises:
        UnexpectedAnswer: It holds something else.
    """
    try:
        return adapter.validate_json(content, extra="ignore")
    except ValidationError as error:
        found = "; ".join(problems(error)[:3])
        raise UnexpectedAnswer(f"the answer to {what} is none of reflexr.v1: {found}: {_excerpt(content)}") from error


def read_published(content: bytes, count: int, what: str) -> list[Published]:
    """Returns what came of so many events that were to be appended together.

    Raises:
        UnexpectedAnswer: It is no such answer, or one for more or fewer.
    """
    published = read_answer(_PUBLISHED, content, what)
    if len(published) != count:
        raise UnexpectedAnswer(f"the answer to {what} with {count} events is for {len(published)}")
    return published


def first(published: Published) -> Published:
    """Returns what came of an event whose id was made for one call, over all the tries of that.

    What was there already is what an earlier try appended.
    """
    return published.model_copy(update={"duplicate": False})


def read_outcome[O: Outcome](content: bytes, kind: type[O], what: str) -> O:
    """Returns the outcome of a command.

    Raises:
        Rejected: The command was refused.
        UnexpectedAnswer: It is no result of such a command.
    """
    result = read_answer(_COMMAND_RESULT, content, what)
    if isinstance(result, CommandRejected):
        raise rejected(result.rejection)
    if not isinstance(result.outcome, kind):
        raise UnexpectedAnswer(f"the answer to {what} is the outcome of another command: {_excerpt(content)}")
    return result.outcome


def refusal(status_code: int, content: bytes, what: str) -> Rejected | ClientError:
    """Returns what an answer with an error's status means."""
    detail = _detail(content)
    if status_code == 401:
        return Unauthorized(_message(detail) or "the server does not know who asks: give a token that it accepts")
    try:
        return rejected(_REJECTION.validate_python(detail, extra="ignore"))
    except ValidationError:
        return UnexpectedAnswer(f"{what} was answered with status {status_code}: {_excerpt(content)}", status_code)


def json_object(content: bytes) -> dict[str, object]:
    """Returns the JSON object of an answer; an empty one if it is none."""
    try:
        return _OBJECT.validate_json(content)
    except ValidationError:
        return {}


def _detail(content: bytes) -> object:
    match json_object(content):
        case {"detail": detail}:
            return detail
        case _:
            return None


def _message(detail: object) -> str | None:
    match detail:
        case str(message) | {"message": str(message)}:
            return message
        case _:
            return None


def _excerpt(content: bytes) -> str:
    text = content.decode(errors="backslashreplace")
    return repr(text if len(text) <= _LONGEST_EXCERPT else f"{text[:_LONGEST_EXCERPT]}…")
