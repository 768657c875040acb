"""Residue: what is still held in a database when everybody is gone. There must be nothing."""

import sqlite3
from contextlib import closing
from typing import Final

from sqlalchemy import make_url, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from reflexr.sql import SqlStorage
from reflexr.sql.tables import LEASES
from reflexr.sql.values import micros

from .killer import Ground
from .nursery import engine_of

LOOKS: Final = 100
"""How often it is looked for connections, by default: a server takes a moment to notice that somebody hung up."""


async def residue(ground: Ground, *, looks: int = LOOKS) -> list[str]:
    """Returns what is held in the database, other than by this call."""
    others = await _connections(ground.url, looks) if ground.is_postgresql else _locks(ground.url)
    return [*(await _live_leases(ground)), *others]


async def _live_leases(ground: Ground) -> list[str]:
    engine = engine_of(ground.url)
    async with SqlStorage(engine, listen=False) as storage:
        now = micros(await storage.now())
    async with engine.connect() as connection:
        # It waits for nobody who has locked the file.
        await connection.execution_options(sqlite_begin="DEFERRED")
        leases = await connection.execute(select(LEASES).where(LEASES.c.expires > now))
        found = [f"a lease is live: {each.name!r} in {each.workspace_id!r}, of {each.holder!r}" for each in leases]
    await engine.dispose()
    return found


async def _connections(url: str, looks: int) -> list[str]:
    """Returns the connections that there still are after so many looks."""
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    others: list[str] = []
    async with engine.connect() as connection:
        for _ in range(looks):
            if not (others := await _others(connection)):
                break
    await engine.dispose()
    return others


async def _others(connection: AsyncConnection) -> list[str]:
    found = await connection.execute(
        text(
            # It keeps what it said for as long as a transaction lasts, and each statement is one.
            "SELECT pid, state, query, (SELECT count(*) FROM pg_locks WHERE pg_locks.pid = others.pid), pg_sleep(0.05) "
            "FROM pg_stat_activity AS others WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
    )
    return [f"connection {pid} is {state} with {locks} locks: {query}" for pid, state, query, locks, _ in found.all()]


def _locks(url: str) -> list[str]:
    with closing(sqlite3.connect(str(make_url(url).database), isolation_level=None, timeout=0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError as error:
            return [f"the file is locked: {error}"]
    return ["somebody is still reading the file"] if busy else []
