"""`SqlCommandResults`: the results of commands, shared by every process on the database.

A command is claimed while it is carried out, so that whoever repeats it meanwhile, in any process, waits for the first
result. A claim lapses when its process is gone.
"""

import asyncio
import logging
from datetime import timedelta
from functools import cache, partial
from secrets import token_hex
from typing import Final, override

from pydantic import TypeAdapter
from sqlalchemy import Dialect, and_, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from reflexr.core import CommandResult
from reflexr.sql.cancellation import or_give_back, to_the_end
from reflexr.sql.databases import Database
from reflexr.sql.errors import SqlStorageError
from reflexr.sql.statements import (
    INTEGER,
    TEXT,
    Parameters,
    Statements,
    document,
    from_set,
    in_workspace,
    parameter,
    text_of,
    workspace_columns,
)
from reflexr.sql.tables import COMMAND_RESULTS
from reflexr.sql.values import duration_micros, key, read
from reflexr.workspace import Clock, CommandKey, CommandResults

KEEP: Final = timedelta(days=7)
"""How long a result is remembered by default."""

CLAIM_TTL: Final = timedelta(seconds=30)
"""How long a claim lasts that its process does not renew."""

_FIRST_LOOK: Final = 0.02
_LONGEST_LOOK: Final = 0.5
"""How many seconds pass between two looks at what another process carries out, at first and at most."""

_PRUNE_EVERY: Final = 100
"""After how many results those are forgotten that are old."""

_LOG: Final = logging.getLogger(__name__)
_RESULT: Final[TypeAdapter[CommandResult]] = TypeAdapter(CommandResult)


class SqlCommandResults(CommandResults):
    """Remembers commands' results in a database, for every process."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        clock: Clock | None = None,
        keep: timedelta = KEEP,
        claim_ttl: timedelta = CLAIM_TTL,
    ) -> None:
        """Takes an engine; nothing is asked of the database before it is used.

        Args:
            engine: The engine, as `SqlStorage` takes it.
            clock: What time it is; by default PostgreSQL's own clock, and the system's for SQLite.
            keep: How long a result is remembered; by default 7 days.
            claim_ttl: How long a claim lasts whose process is gone; by default 30 seconds. It is renewed meanwhile.

        Raises:
            EngineError: The engine has another driver.
        """
        self._database = Database(engine, clock=clock)
        self._statements = _statements(type(engine.dialect))
        self._keep = duration_micros(keep)
        self._claim_ttl = claim_ttl
        self._claims: dict[CommandKey, _Claim] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._finished = 0

    @property
    def engine(self) -> AsyncEngine:
        """The engine that it was given."""
        return self._database.engine

    @override
    async def claim(self, key: CommandKey) -> CommandResult | None:
        # Those of this process who repeat a command wait here: one of them asks the database.
        while (other := self._claims.get(key)) is not None:
            await other.ended.wait()
        claim = self._claims[key] = _Claim(key)
        try:
            result = await self._ask(claim)
        except BaseException:
            self._end(key)
            raise
        if result is not None:
            self._end(key)
            return read(_RESULT.validate_json, "command result", result)
        claim.held = True
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return None

    @override
    async def finish(self, key: CommandKey, result: CommandResult) -> None:
        claim = self._claims[key]
        claim.held = False
        try:
            await to_the_end(self._finish(claim, _RESULT.dump_json(result).decode()))
        finally:
            self._end(key)

    @override
    async def abandon(self, key: CommandKey) -> None:
        claim = self._claims[key]
        claim.held = False
        try:
            await to_the_end(self._release(claim))
        finally:
            self._end(key)

    async def _ask(self, claim: "_Claim") -> str | None:
        """Returns a command's result once there is one, or `None` with the claim."""
        look = _FIRST_LOOK
        give_back = partial(self._give_back, claim)
        while isinstance(answer := await or_give_back(self._try(claim), give_back, owner=self.engine), _Elsewhere):
            await asyncio.sleep(look)
            look = min(2 * look, _LONGEST_LOOK)
        return answer

    async def _try(self, claim: "_Claim") -> "str | _Elsewhere | None":
        times = {"now": self._database.now(), "ttl": duration_micros(self._claim_ttl)}
        async with self._database.changes() as fetcher:
            if await fetcher.fetch(self._statements.claim, {**claim.named, **times}):
                return None
            rows = await fetcher.fetch(self._statements.select, claim.named)
        return _Elsewhere() if not rows or rows[0][0] is None else rows[0][0]

    async def _give_back(self, claim: "_Claim", answer: "str | _Elsewhere | None") -> None:
        if answer is None:
            await self._release(claim)

    async def _finish(self, claim: "_Claim", result: str) -> None:
        times = {"now": self._database.now(), "ttl": self._keep}
        self._finished += 1
        async with self._database.changes() as fetcher:
            await fetcher.fetch(self._statements.finish, {**claim.named, **times, "to_result": result})
            if self._finished % _PRUNE_EVERY == 0:
                await fetcher.fetch(self._statements.prune, times)

    async def _release(self, claim: "_Claim") -> None:
        try:
            async with self._database.changes() as fetcher:
                await fetcher.fetch(self._statements.release, claim.named)
        except SqlStorageError as error:
            _LOG.warning("a claim on a command could not be given up, and lapses in %s: %s", self._claim_ttl, error)

    async def _renew(self) -> None:
        """Extends the claims that are held, until there is none."""
        while True:
            await asyncio.sleep(self._claim_ttl.total_seconds() / 3)
            held = [claim for claim in self._claims.values() if claim.held]
            if not held:
                return
            times = {"now": self._database.now(), "ttl": duration_micros(self._claim_ttl)}
            try:
                async with self._database.changes() as fetcher:
                    rows = sorted(claim.row for claim in held)
                    await fetcher.fetch(self._statements.renew, {**self._statements.held(rows), **times})
            except SqlStorageError as error:
                _LOG.warning("the claims on %d commands could not be renewed; next try soon: %s", len(held), error)

    def _end(self, key: CommandKey) -> None:
        self._claims.pop(key).ended.set()


class _Elsewhere:
    """The answer that somebody else is carrying a command out."""


class _Claim:
    """A command that somebody of this process asks for, or is carrying out."""

    def __init__(self, command: CommandKey) -> None:
        self.ended = asyncio.Event()
        self.held = False
        self.row = (
            command.workspace.tenant_id,
            command.workspace.workspace_id,
            key(command.participant),
            key(command.command_id),
            token_hex(8),
        )
        self.named: Parameters = dict(zip(("tenant", "workspace", "asker", "command", "me"), self.row, strict=True))


class _Statements:
    def __init__(self, statements: Statements) -> None:
        table = COMMAND_RESULTS
        me = parameter("me", TEXT)
        place = ("tenant_id", "workspace_id", "participant", "command_id")
        until = statements.now + parameter("ttl", INTEGER)
        this = and_(
            in_workspace(table),
            table.c.participant == parameter("asker", TEXT),
            table.c.command_id == parameter("command", TEXT),
        )
        insert = statements.insert(table).from_select(
            [*place, "claimant", "expires"],
            from_set(
                *workspace_columns(),
                parameter("asker", TEXT).label("asker"),
                parameter("command", TEXT).label("command"),
                me.label("me"),
                until.label("until"),
            ),
        )
        self.claim = statements(
            insert.on_conflict_do_update(
                index_elements=place,
                set_={"claimant": insert.excluded.claimant, "expires": insert.excluded.expires, "result": None},
                # It is tried again where the connection was lost before the answer: then the claim is there already.
                where=or_(table.c.expires <= statements.now, table.c.claimant == insert.excluded.claimant),
            ).returning(table.c.claimant)
        )
        self.select = statements(select(text_of(table.c.result)).where(this))
        self.finish = statements(
            update(table)
            .where(this, table.c.claimant == me)
            .values(claimant=None, expires=until, result=document(parameter("to_result", TEXT)))
        )
        self.release = statements(delete(table).where(this, table.c.claimant == me))
        self.prune = statements(delete(table).where(table.c.expires <= statements.now))
        self.held = statements.rows("held", tenant=TEXT, workspace=TEXT, asker=TEXT, command=TEXT, me=TEXT)
        self.renew = statements(
            update(table)
            .where(
                table.c.tenant_id == self.held.c["tenant"],
                table.c.workspace_id == self.held.c["workspace"],
                table.c.participant == self.held.c["asker"],
                table.c.command_id == self.held.c["command"],
                table.c.claimant == self.held.c["me"],
            )
            .values(expires=until)
        )


@cache
def _statements(dialect: type[Dialect]) -> _Statements:
    return _Statements(Statements(dialect()))
