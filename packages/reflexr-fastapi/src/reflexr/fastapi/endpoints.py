"""Endpoints: each asks a handle, or hands it a command, and writes what comes back."""

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Header, Path, Query, Request
from fastapi.responses import Response
from pydantic import BeforeValidator, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from reflexr.core import (
    CommandRejected,
    CommandResult,
    CommandSucceeded,
    EventType,
    Id,
    InvalidState,
    Outcome,
    Published,
    PublishedMany,
    RunStatus,
)
from reflexr.fastapi import answers, bodies
from reflexr.fastapi.answers import answered, pages
from reflexr.fastapi.bodies import CommandBody, PublishBody, publishing
from reflexr.fastapi.refusals import refused, unavailable
from reflexr.fastapi.routes import caller_of
from reflexr.workspace import Authorize, CommandFailed, Workspace, Workspaces


def _digits(value: Any) -> Any:
    # Pydantic also reads "1_0", " 1" and "1.0", which no document of an API says.
    if isinstance(value, str) and not (value.isascii() and value.isdecimal()):
        raise PydanticCustomError("number", "A number is written in digits alone, such as 50")
    return value


# The limit is told as a format, as the document holds bounds as floats, which miss it by some hundreds.
type Number = Annotated[
    int, BeforeValidator(_digits), WithJsonSchema({"type": "integer", "minimum": 0, "format": "int64"})
]
"""A whole number in a query; the handle checks its range."""

type Name = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""A text in a URL that names something."""

WorkspaceId = Annotated[Id, Path(description="The workspace's id, within the caller's tenant.", examples=["prod"])]
RunId = Annotated[Id, Path(description="The run's id.", examples=["fir_0123456789abcdef"])]
RuleName = Annotated[Name, Path(description="The rule's name.", examples=["ops:error-spike"])]
RuleFilter = Annotated[Name | None, Query(description="Only those of this rule.")]
IdempotencyKey = Annotated[
    Id | None, Header(description="What a repetition of the request is recognised by: it publishes nothing twice.")
]


class Endpoints:
    """The endpoints over one application's workspaces."""

    def __init__(self, workspaces: Workspaces, authorize: Authorize | None) -> None:
        """Prepares to answer.

        Args:
            workspaces: The workspaces.
            authorize: Permissions to ask besides the application's.
        """
        self._workspaces: Final = workspaces
        self._authorize: Final = authorize

    # --- Writing

    async def execute_command(
        self, request: Request, workspace_id: WorkspaceId, frame: Annotated[CommandBody, bodies.COMMAND_BODY]
    ) -> Response:
        """Carries out a command. A repetition under its `command_id` is answered with the first result."""
        workspace = await self._open(request, workspace_id)
        result = await self._workspaces.execute(workspace, frame.command, command_id=frame.command_id)
        return _answer(result, lambda succeeded: succeeded.model_dump_json(by_alias=True))

    async def publish_events(
        self,
        request: Request,
        workspace_id: WorkspaceId,
        body: Annotated[PublishBody, bodies.PUBLISH_BODY],
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Appends events to the workspace's log, in order and all or none; the answer has what came of each."""
        workspace = await self._open(request, workspace_id)
        result = await self._workspaces.execute(workspace, publishing(body), command_id=idempotency_key)
        return _answer(result, lambda succeeded: answers.PUBLISHED.dump_json(_published(succeeded.outcome)))

    # --- Reading

    async def read_events(
        self,
        request: Request,
        workspace_id: WorkspaceId,
        *,
        after_seq: Annotated[Number, Query(description="The place before the first.")] = 0,
        before_seq: Annotated[Number | None, Query(description="The place after the last.")] = None,
        types: Annotated[list[EventType] | None, Query(alias="type", description="Only those of these types.")] = None,
        limit: Annotated[Number | None, Query(description="The first so many.")] = None,
        last: Annotated[Number | None, Query(description="The last so many; not together with `limit`.")] = None,
    ) -> Response:
        """The log's envelopes with `after_seq < seq < before_seq`, oldest first; `Link` leads to the pages beside."""
        workspace = await self._open(request, workspace_id)
        envelopes = await workspace.read(
            after_seq=after_seq, before_seq=before_seq, types=types, limit=limit, last=last
        )
        links = pages(request, envelopes, limit=limit, last=last)
        return answered(request, answers.ENVELOPES, envelopes, links=links)

    async def list_rules(self, request: Request) -> Response:
        """The rules of the application's code, which every workspace has."""
        caller = caller_of(request)
        rules = await self._workspaces.list_rules(caller.tenant_id, actor=caller.actor, authorize=self._authorize)
        return answered(request, answers.RULES, rules)

    async def list_schedules(self, request: Request) -> Response:
        """The schedules that tick in the caller's tenant, with those of their targets that are its workspaces."""
        caller = caller_of(request)
        schedules = await self._workspaces.list_schedules(
            caller.tenant_id, actor=caller.actor, authorize=self._authorize
        )
        return answered(request, answers.SCHEDULES, schedules)

    async def rule_statuses(self, request: Request, workspace_id: WorkspaceId) -> Response:
        """The code rules, then the workspace's active stored rules: how far each has come, and its dead letters."""
        workspace = await self._open(request, workspace_id)
        return answered(request, answers.RULE_STATUSES, await workspace.rule_statuses())

    async def get_rule(self, request: Request, workspace_id: WorkspaceId, rule: RuleName) -> Response:
        """One of the workspace's rules, also a stored rule that was archived."""
        workspace = await self._open(request, workspace_id)
        return answered(request, answers.RULE_DESCRIPTION, await workspace.get_rule(rule))

    async def rule_history(self, request: Request, workspace_id: WorkspaceId, rule: RuleName) -> Response:
        """The facts that made each version of a stored rule; none for a rule that was never stored."""
        workspace = await self._open(request, workspace_id)
        return answered(request, answers.ENVELOPES, await workspace.rule_history(rule))

    async def list_runs(
        self,
        request: Request,
        workspace_id: WorkspaceId,
        *,
        rule: RuleFilter = None,
        scope_key: Annotated[
            Name | None, Query(description="Only those of this scope: the canonical JSON of the list of its values.")
        ] = None,
        status: Annotated[RunStatus | None, Query(description="Only those in this status.")] = None,
        limit: Annotated[Number | None, Query(description="The newest so many.")] = None,
    ) -> Response:
        """The workspace's runs, newest first."""
        workspace = await self._open(request, workspace_id)
        runs = await workspace.runs(rule=rule, scope_key=scope_key, status=status, limit=limit)
        return answered(request, answers.RUNS, runs)

    async def get_run(self, request: Request, workspace_id: WorkspaceId, run_id: RunId) -> Response:
        """One run, as it is now."""
        workspace = await self._open(request, workspace_id)
        return answered(request, answers.RUN, await workspace.run(run_id))

    async def dead_letters(
        self,
        request: Request,
        workspace_id: WorkspaceId,
        *,
        rule: RuleFilter = None,
        limit: Annotated[Number | None, Query(description="The newest so many.")] = None,
    ) -> Response:
        """What rules could not decide on, and why, oldest first."""
        workspace = await self._open(request, workspace_id)
        return answered(request, answers.DEAD_LETTERS, await workspace.dead_letters(rule=rule, limit=limit))

    async def schedule_statuses(self, request: Request, workspace_id: WorkspaceId) -> Response:
        """When each schedule that targets the workspace ticked last, and when it ticks next."""
        workspace = await self._open(request, workspace_id)
        return answered(request, answers.SCHEDULE_STATUSES, await workspace.schedule_statuses())

    async def _open(self, request: Request, workspace_id: str) -> Workspace:
        caller = caller_of(request)
        return await self._workspaces.open(
            caller.tenant_id, workspace_id, actor=caller.actor, authorize=self._authorize
        )


def _answer(result: CommandResult, write: Callable[[CommandSucceeded], str | bytes]) -> Response:
    match result:
        case CommandFailed():
            return unavailable(result.rejection)
        case CommandRejected():
            return refused(result.rejection)
        case _:
            return Response(write(result), media_type="application/json")


def _published(outcome: Outcome) -> tuple[Published, ...]:
    """Returns what came of each event."""
    match outcome:
        case PublishedMany():
            return outcome.published
        case Published():
            return (outcome,)
        case _:
            # The id is that of another command, which this one repeats.
            raise InvalidState(f"the Idempotency-Key is of a command that published nothing, but {outcome.type!r}")
