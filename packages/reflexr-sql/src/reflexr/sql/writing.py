"""Writing: what a transaction writes, kept back until it matters, so that PostgreSQL is told several things at once.

Each way to the server and back costs more than most of what is written. SQLite, which is asked in no time, is told
everything as it comes.
"""

from collections.abc import Sequence
from typing import Protocol, cast, override

from sqlalchemy.sql.dml import UpdateBase

from reflexr.sql.sessions import Fetcher, Session
from reflexr.sql.statements import Parameters, Row, Statement, Statements


class Writer(Fetcher, Protocol):
    """Executes statements of one transaction, which see what was written before."""

    async def write(self, statement: Statement, parameters: Parameters) -> None:
        """Executes a statement that writes to one table and answers nothing, at the latest before the next is read.

        Raises:
            SqlStorageError: What went wrong with it, or with one that was kept back.
        """
        ...


class Writing(Writer):
    """The statements of one transaction."""

    def __init__(self, session: Session, statements: Statements) -> None:
        """Begins with nothing kept back.

        Args:
            session: Executes statements.
            statements: Makes one of several.
        """
        self.session = session
        self._statements = statements
        self._kept: list[tuple[Statement, Parameters]] = []

    @override
    async def fetch(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        await self.flush()
        return await self.session.fetch(statement, parameters)

    @override
    async def write(self, statement: Statement, parameters: Parameters) -> None:
        if not self._statements.is_postgresql:
            await self.session.fetch(statement, parameters)
            return
        # No statement sees what another part of it writes.
        if any(_table_of(one) is _table_of(statement) for one, _ in self._kept):
            await self.flush()
        self._kept.append((statement, parameters))

    async def flush(self) -> None:
        """Executes what was kept back."""
        if self._kept:
            *kept, (statement, parameters) = self._kept
            self._kept = kept
            await self.finish(statement, parameters)

    async def finish(self, statement: Statement, parameters: Parameters) -> Sequence[Row]:
        """Executes what was kept back, together with a statement that reads none of it, and returns what it answers."""
        kept, self._kept = self._kept, []
        if not kept:
            return await self.session.fetch(statement, parameters)
        together = self._statements.together(*(one for one, _ in kept), statement)
        merged: dict[str, object] = {}
        for _, each in kept:
            merged.update(each)
        return await self.session.fetch(together, {**merged, **parameters})


def _table_of(statement: Statement) -> object:
    return cast("UpdateBase", statement.element).table
