"""Permissions: the one hook that every method of a workspace asks first, and what it is asked about."""

from collections.abc import Awaitable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Final, Protocol

from reflexr.core import Actor, Forbidden

OPEN: Final = "reflexr:open"
READ_EVENTS: Final = "reflexr:read_events"
READ_RUNS: Final = "reflexr:read_runs"
READ_DEAD_LETTERS: Final = "reflexr:read_dead_letters"
READ_RULES: Final = "reflexr:read_rules"
READ_SCHEDULES: Final = "reflexr:read_schedules"
READ_CURSORS: Final = "reflexr:read_cursors"
SAVE_CURSOR: Final = "reflexr:save_cursor"
PUBLISH: Final = "reflexr:publish"
GIVE_FEEDBACK: Final = "reflexr:give_feedback"
RETRY_RUN: Final = "reflexr:retry_run"
SKIP_RUN: Final = "reflexr:skip_run"
CANCEL_RUN: Final = "reflexr:cancel_run"
RESUME_RUN: Final = "reflexr:resume_run"
REPLAY_RULE: Final = "reflexr:replay_rule"
INSTALL_RULE: Final = "reflexr:install_rule"
UPDATE_RULE: Final = "reflexr:update_rule"
ARCHIVE_RULE: Final = "reflexr:archive_rule"


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody is about to do.

    Attributes:
        action: `reflexr:` and the type of a command, or one of the reads, such as `reflexr:read_events`.
        rule: The rule that it names, if it names one.
    """

    action: str
    rule: str | None = None


class Authorize(Protocol):
    """The application's permissions. It may be a plain function or a coroutine function."""

    def __call__(
        self, tenant_id: str, workspace_id: str | None, actor: Actor, access: Access, /
    ) -> bool | Awaitable[bool]:
        """Says whether the actor may do this; asked before anything is read.

        `True` alone says yes. What it raises goes to whoever asked, and nothing is done.

        Args:
            tenant_id: The tenant.
            workspace_id: The workspace; `None` for a read that spans the tenant.
            actor: Who is about to do it.
            access: What.
        """
        ...


async def says_yes(answer: bool | Awaitable[bool]) -> bool:
    """Whether a hook's answer, perhaps one to await, is `True`; what merely counts as true, such as a text, is none."""
    given: object = await answer if isawaitable(answer) else answer
    return given is True


async def permit(
    hooks: tuple[Authorize, ...], tenant_id: str, workspace_id: str | None, actor: Actor, access: Access
) -> None:
    """Asks every hook.

    Raises:
        Forbidden: One of them did not say `True`, and nothing else says yes. The message tells nothing that is in the
            workspace.
    """
    for hook in hooks:
        if not await says_yes(hook(tenant_id, workspace_id, actor, access)):
            where = f"the tenant {tenant_id!r}" if workspace_id is None else f"the workspace {workspace_id!r}"
            about = "" if access.rule is None else f" on the rule {access.rule!r}"
            raise Forbidden(f"this {actor.kind} may not {access.action!r}{about} in {where}")
