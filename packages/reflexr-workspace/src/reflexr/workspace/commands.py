"""Commands: carried out once for each id, and their results remembered, by the `CommandResults` port."""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from secrets import token_hex
from typing import Final, Protocol

from reflexr.core import (
    CancelRun,
    Command,
    CommandRejected,
    CommandResult,
    CommandSucceeded,
    GiveFeedback,
    InstallRule,
    InvalidState,
    NewEvent,
    Outcome,
    Publish,
    Published,
    PublishedMany,
    PublishMany,
    Recorded,
    Rejected,
    ReplayRule,
    ResumeRun,
    RetryRun,
    RuleReplayed,
    RunChanged,
    SkipRun,
    UpdateRule,
    derived_id,
    parse_feedback,
    participant,
)
from reflexr.telemetry import Instruments
from reflexr.workspace.errors import WorkspaceError
from reflexr.workspace.handles import Workspace
from reflexr.workspace.publishing import Publication, checked_id
from reflexr.workspace.refs import WorkspaceRef

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommandKey:
    """What tells one command from every other.

    Attributes:
        workspace: The tenant and workspace it is for.
        participant: Who asks, as `reflexr.core.participant` has it.
        command_id: What that participant calls it.
    """

    workspace: WorkspaceRef
    participant: str
    command_id: str


class CommandFailed(CommandRejected):
    """A command that could not be carried out, as something broke. Nothing is remembered: a repetition is tried.

    It travels as any refusal does; a surface that can say so tells its client to try again.
    """


class CommandResults(Protocol):
    """Remembers commands' results, and who is carrying one out."""

    async def claim(self, key: CommandKey) -> CommandResult | None:
        """Returns a command's result, or `None` if the caller is to carry it out, and then to `finish` or `abandon` it.

        If somebody else is carrying it out, waits for what comes of that: the result, or the claim if they abandon it.
        A caller that is cancelled while it waits holds nothing.
        """
        ...

    async def finish(self, key: CommandKey, result: CommandResult) -> None:
        """Remembers the result of a command that the caller claimed, and gives it to those who wait.

        The claim is over whatever it raises, also a cancellation; then one of those who wait gets it.
        """
        ...

    async def abandon(self, key: CommandKey) -> None:
        """Gives up a claim with no result: one of those who wait gets it. Never suspends for long."""
        ...


class InMemoryCommandResults:
    """Remembers the latest results of this process."""

    def __init__(self, *, max_results: int = 10_000) -> None:
        """Creates an empty memory.

        Args:
            max_results: How many results it remembers, 0 or more; the ones that were asked for longest ago are
                forgotten first.

        Raises:
            WorkspaceError: `max_results` is negative.
        """
        if max_results < 0:
            raise WorkspaceError(f"max_results: {max_results!r} is less than 0")
        self._max_results = max_results
        self._results: OrderedDict[CommandKey, CommandResult] = OrderedDict()
        self._claims: dict[CommandKey, _Claim] = {}

    def __len__(self) -> int:
        return len(self._results)

    async def claim(self, key: CommandKey) -> CommandResult | None:
        """Returns the result, or `None` with the claim."""
        while True:
            if (result := self._results.get(key)) is not None:
                self._results.move_to_end(key)
                return result
            if (claim := self._claims.get(key)) is None:
                self._claims[key] = _Claim()
                return None
            await claim.ended.wait()
            # Those who waited get the result also where it is forgotten by now.
            if claim.result is not None:
                return claim.result

    async def finish(self, key: CommandKey, result: CommandResult) -> None:
        """Remembers the result."""
        self._results[key] = result
        while len(self._results) > self._max_results:
            self._results.popitem(last=False)
        self._end(key, result)

    async def abandon(self, key: CommandKey) -> None:
        """Gives up the claim."""
        self._end(key, None)

    def _end(self, key: CommandKey, result: CommandResult | None) -> None:
        claim = self._claims.pop(key)
        claim.result = result
        claim.ended.set()


class _Claim:
    """A command that somebody is carrying out, and what came of it once that has ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.result: CommandResult | None = None


class Commands:
    """Carries out commands through handles, once for each id."""

    def __init__(self, results: CommandResults, instruments: Instruments) -> None:
        """Creates what carries out commands.

        Args:
            results: Remembers their results.
            instruments: Counts them.
        """
        self._results = results
        self._instruments = instruments

    async def execute(self, workspace: Workspace, command: Command, command_id: str | None) -> CommandResult:
        """Returns the command's result, whatever happens."""
        name = f"cmd_{token_hex(8)}"
        try:
            if command_id is None:
                # Nobody can repeat it, so there is nothing to remember.
                result = await _result(workspace, command, _key(workspace, name))
            else:
                name = checked_id(command_id, "command_id")
                result = await self._once(workspace, command, name)
            outcome = "ok" if isinstance(result, CommandSucceeded) else result.rejection.type
        except Rejected as rejected:
            # The id itself was none, so the answer has one of its own.
            result, outcome = CommandRejected(command_id=name, rejection=rejected.rejection), rejected.rejection.type
        except Exception as error:
            _LOG.exception("the command %r could not be carried out; a repetition of it will be tried", command.type)
            problem = InvalidState(f"the command could not be carried out: {type(error).__name__}; try again")
            result, outcome = CommandFailed(command_id=name, rejection=problem.rejection), "error"
        if self._instruments.active:
            self._instruments.commands.add(
                1,
                {
                    "reflexr.tenant.id": workspace.tenant_id,
                    "reflexr.workspace.id": workspace.workspace_id,
                    "reflexr.command": command.type,
                    "reflexr.outcome": outcome,
                },
            )
        return result

    async def _once(self, workspace: Workspace, command: Command, command_id: str) -> CommandResult:
        key = _key(workspace, command_id)
        if (remembered := await self._results.claim(key)) is not None:
            return remembered
        try:
            result = await _result(workspace, command, key)
        except BaseException:
            await self._results.abandon(key)
            raise
        try:
            await self._results.finish(key, result)
        except Exception:
            _LOG.exception("the result of the command %r was not remembered; a repetition will be tried", command.type)
        return result


def _key(workspace: Workspace, command_id: str) -> CommandKey:
    return CommandKey(workspace.ref, participant(workspace.actor), command_id)


async def _result(workspace: Workspace, command: Command, key: CommandKey) -> CommandResult:
    try:
        return CommandSucceeded(command_id=key.command_id, outcome=await _outcome(workspace, command, key))
    except Rejected as rejected:
        return CommandRejected(command_id=key.command_id, rejection=rejected.rejection)


async def _outcome(workspace: Workspace, command: Command, key: CommandKey) -> Outcome:
    match command:
        case Publish():
            event_id = command.id or _event_id(key, 0)
            return _published(
                await workspace.publish(command.event, id=event_id, correlation_id=command.correlation_id)
            )
        case PublishMany():
            events = [
                NewEvent(item.event, item.id or _event_id(key, place)) for place, item in enumerate(command.events)
            ]
            published = await workspace.publish_many(events, correlation_id=command.correlation_id)
            return PublishedMany(published=tuple(map(_published, published)))
        case GiveFeedback():
            feedback = parse_feedback(command.feedback_type, command.value)
            envelope = await workspace.give_feedback(feedback, on=command.target)
            return Recorded(seq=envelope.seq, id=envelope.id)
        case RetryRun():
            return RunChanged(run=await workspace.retry_run(command.run_id))
        case SkipRun():
            return RunChanged(run=await workspace.skip_run(command.run_id, reason=command.reason))
        case CancelRun():
            return RunChanged(run=await workspace.cancel_run(command.run_id, reason=command.reason))
        case ResumeRun():
            return RunChanged(
                run=await workspace.resume_run(command.run_id, answer=command.answer, attempt=command.attempt)
            )
        case ReplayRule():
            progress = await workspace.replay_rule(command.rule, from_seq=command.from_seq, mode=command.mode)
            return RuleReplayed(rule=command.rule, progress=progress)
        case InstallRule():
            return await workspace.install_rule(command.rule, provenance=command.provenance)
        case UpdateRule():
            return await workspace.update_rule(
                command.rule, expected_version=command.expected_version, provenance=command.provenance
            )
        case _:
            return await workspace.archive_rule(
                command.rule, expected_version=command.expected_version, reason=command.reason
            )


def _event_id(key: CommandKey, place: int) -> str:
    """Returns the id of an event that its client gave none.

    The command's own, so that what a process published that died before it could remember the result, or whose result
    is forgotten, is not there twice when the command is repeated.
    """
    return derived_id("evt", "command", key.participant, key.command_id, place)


def _published(publication: Publication) -> Published:
    return Published(seq=publication.seq, id=publication.id, duplicate=publication.duplicate)
