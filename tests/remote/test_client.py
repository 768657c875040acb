"""reflexr-client over reflexr-fastapi, on real sockets: all that holds of a surface."""

import inspect
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, override

import httpx
from pydantic import TypeAdapter, ValidationError

from reflexr.client import Backoff, Client, NewEvent, RemoteWorkspace, Unavailable
from reflexr.contracts import Connect, Feature, JsonObject, Surface, SurfaceContract, SurfaceRejected
from reflexr.core import (
    Actor,
    ArchiveRule,
    CancelRun,
    Command,
    CommandFrame,
    CommandSucceeded,
    GiveFeedback,
    InstallRule,
    Outcome,
    Publish,
    PublishedMany,
    PublishMany,
    Rejected,
    ReplayRule,
    ResumeRun,
    RetryRun,
    RuleReplayed,
    RunChanged,
    SkipRun,
    UpdateRule,
    ValidationFailed,
    parse_feedback,
    problems,
)
from reflexr.workspace import Workspace, Workspaces

from .served import served, token_of

METHODS: Final = {"events": "read", "rule": "get_rule"}

_FRAME: Final[TypeAdapter[CommandFrame]] = TypeAdapter(CommandFrame)
_JSON: Final[TypeAdapter[Any]] = TypeAdapter(Any)


def travelled(value: object) -> Any:
    """What is in an answer, as it travels."""
    return json.loads(_JSON.dump_json(value, by_alias=True))


class ClientSurface(Surface):
    """The methods of a client, which sends no command that is none."""

    def __init__(self, clients: "Clients", tenant_id: str, workspace_id: str, actor: Actor) -> None:
        self._client = clients.client(token_of(tenant_id, actor))
        self._workspace_id = workspace_id

    @override
    async def execute(self, command: JsonObject, *, command_id: str) -> JsonObject:
        try:
            frame = _FRAME.validate_python({"type": "command", "command_id": command_id, "command": command})
            outcome = await self._carried_out(frame.command, command_id)
        except ValidationError as error:
            raise refused(ValidationFailed("this is no command", problems(error))) from error
        except Rejected as rejected:
            raise refused(rejected) from rejected
        except Unavailable as unavailable:
            # The server asked it to try again, which it does not do here.
            raise SurfaceRejected({"type": "invalid_state", "message": str(unavailable)}) from unavailable
        return travelled(CommandSucceeded(command_id=command_id, outcome=outcome))

    @override
    async def read(self, name: str, **arguments: Any) -> Any:
        try:
            if name in ("rules", "schedules"):
                return travelled(await getattr(self._client, name)())
            return travelled(await getattr(self._workspace(), METHODS.get(name, name))(**arguments))
        except Rejected as rejected:
            raise refused(rejected) from rejected

    def _workspace(self) -> RemoteWorkspace:
        return self._client.workspace(self._workspace_id)

    async def _carried_out(self, command: Command, command_id: str) -> Outcome:
        workspace = self._workspace()
        match command:
            case Publish():
                return await workspace.publish(
                    command.event, id=command.id, correlation_id=command.correlation_id, command_id=command_id
                )
            case PublishMany():
                events = [NewEvent(item.event, item.id) for item in command.events]
                published = await workspace.publish_many(
                    events, correlation_id=command.correlation_id, command_id=command_id
                )
                return PublishedMany(published=tuple(published))
            case GiveFeedback():
                feedback = parse_feedback(command.feedback_type, command.value)
                return await workspace.give_feedback(feedback, on=command.target, command_id=command_id)
            case RetryRun():
                return RunChanged(run=await workspace.retry_run(command.run_id, command_id=command_id))
            case SkipRun():
                run = await workspace.skip_run(command.run_id, reason=command.reason, command_id=command_id)
                return RunChanged(run=run)
            case CancelRun():
                run = await workspace.cancel_run(command.run_id, reason=command.reason, command_id=command_id)
                return RunChanged(run=run)
            case ResumeRun():
                run = await workspace.resume_run(
                    command.run_id, answer=command.answer, attempt=command.attempt, command_id=command_id
                )
                return RunChanged(run=run)
            case ReplayRule():
                progress = await workspace.replay_rule(
                    command.rule, from_seq=command.from_seq, mode=command.mode, command_id=command_id
                )
                return RuleReplayed(rule=command.rule, progress=progress)
            case InstallRule():
                return await workspace.install_rule(command.rule, provenance=command.provenance, command_id=command_id)
            case UpdateRule():
                return await workspace.update_rule(
                    command.rule,
                    expected_version=command.expected_version,
                    provenance=command.provenance,
                    command_id=command_id,
                )
            case ArchiveRule():
                return await workspace.archive_rule(
                    command.rule,
                    expected_version=command.expected_version,
                    reason=command.reason,
                    command_id=command_id,
                )


class Clients:
    """One client for each participant, over the same connections."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url
        self._http = http

    def client(self, token: str) -> Client:
        return Client(self._url, token=token, http=self._http, backoff=Backoff(attempts=1))


def refused(rejected: Rejected) -> SurfaceRejected:
    return SurfaceRejected(travelled(rejected.rejection))


class TestClient(SurfaceContract):
    features = frozenset({Feature.READS, Feature.TENANT_READS})

    @override
    @asynccontextmanager
    async def surface(self, application: Workspaces) -> AsyncGenerator[Connect]:
        async with served(application) as port, httpx.AsyncClient() as http:
            yield partial(ClientSurface, Clients(f"http://127.0.0.1:{port}", http))


LOCAL: Final = {"as_actor", "caused_by", "publish_within", "rule_progress", "schedule_ticks", "cursor", "save_cursor"}
"""What a handle has that does not travel."""

BEYOND: Final = {"subscribe": {"from_head"}}
"""What the methods of a client take besides, but for the id of their command."""


def public_methods(kind: type) -> dict[str, list[str]]:
    functions = inspect.getmembers(kind, inspect.isfunction)
    return {name: list(inspect.signature(one).parameters) for name, one in functions if not name.startswith("_")}


def test_a_client_has_the_methods_of_a_handle_with_their_parameters() -> None:
    of_handle, of_client = public_methods(Workspace), public_methods(RemoteWorkspace)

    assert of_client.keys() == of_handle.keys() - LOCAL
    for name, parameters in of_client.items():
        beyond = BEYOND.get(name, set()) | {"command_id"}
        assert [one for one in parameters if one not in beyond] == of_handle[name], name
