"""Sets of names that many workspaces share, each kept once under its digest, so that workspaces are found by it.

A workspace's row holds the digest of which rules are done with its log, and that of which schedules ever ticked there.
Ten thousand workspaces share a few such sets. So whoever looks for work reads the few digests there are, one probe of
an index for each, and then only the workspaces of those that are not what they should be.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, cast

from pydantic_core import from_json, to_json
from sqlalchemy import Column, Select, func, select

from reflexr.sql.sessions import Fetcher
from reflexr.sql.statements import TEXT, Statement, Statements, document, from_set, text_of
from reflexr.sql.tables import MEMBERS, WORKSPACES
from reflexr.sql.writing import Writer

type Members = frozenset[tuple[str, ...]]
"""A set, of which each member is one or more texts."""

NOBODY: Final = ""
"""The digest of the empty set, which is not kept."""


def digest(members: Members) -> str:
    """Returns what a set is known by."""
    return sha256(_text(members).encode()).hexdigest()[:32] if members else NOBODY


type Known = dict[str, Members]
"""The sets that a storage has seen committed, by digest."""


class MemberSets:
    """The statements on sets, and on the digests that workspaces have."""

    def __init__(self, statements: Statements) -> None:
        self._new = statements.rows("sets", digest=TEXT, members=TEXT)
        insert = statements.insert(MEMBERS).from_select(
            ["digest", "members"], from_set(self._new.c["digest"], document(self._new.c["members"]))
        )
        self._insert = statements(insert.on_conflict_do_nothing(index_elements=["digest"]))
        self._wanted = statements.rows("wanted", digest=TEXT)
        self._select = statements(
            select(MEMBERS.c.digest, text_of(MEMBERS.c.members)).where(self._wanted.holds(MEMBERS.c.digest, "digest"))
        )
        self._settled = statements(_distinct(WORKSPACES.c.settled))
        self._ticked = statements(_distinct(WORKSPACES.c.ticked))

    async def keep(self, writer: Writer, known: Known, sets: Iterable[Members]) -> Known:
        """Keeps sets as part of the transaction at hand, and returns those that are known too once it is committed."""
        new = {name: members for members in sets if members and (name := digest(members)) not in known}
        if new:
            await writer.write(
                self._insert, self._new([(name, _text(members)) for name, members in sorted(new.items())])
            )
        return new

    async def settled(self, fetcher: Fetcher, known: Known) -> Mapping[str, Members]:
        """Returns every set of rules that are done with the log of some workspace, by digest."""
        return await self._used(fetcher, known, self._settled)

    async def ticked(self, fetcher: Fetcher, known: Known) -> Mapping[str, Members]:
        """Returns every set of schedules that ticked in some workspace, by digest."""
        return await self._used(fetcher, known, self._ticked)

    async def _used(self, fetcher: Fetcher, known: Known, distinct: Statement) -> Mapping[str, Members]:
        digests = [cast("str", name) for (name,) in await fetcher.fetch(distinct, {}) if name is not None]
        if unknown := [(name,) for name in digests if name != NOBODY and name not in known]:
            for name, members in await fetcher.fetch(self._select, self._wanted(unknown)):
                known[name] = frozenset(tuple(member) for member in from_json(members))
        return {name: frozenset() if name == NOBODY else known[name] for name in digests}


def _text(members: Members) -> str:
    return to_json(sorted(members)).decode()


def _distinct(digests: Column[str]) -> Select[*tuple[Any, ...]]:
    """Selects the digests of a column, each found behind the one before by one probe of an index; at the end a null."""
    first = select(func.min(digests).label("digest")).where(WORKSPACES.c.has_log.is_(True))
    found = first.cte("found", recursive=True)
    behind = select(func.min(digests)).where(WORKSPACES.c.has_log.is_(True), digests > found.c.digest)
    found = found.union_all(select(behind.scalar_subquery()).where(found.c.digest.is_not(None)))
    return select(found.c.digest)
