from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from reflexr.sql import DatabaseBusyError, EngineError, SqlStorage, create_schema, create_sqlite_engine
from reflexr.workspace import LogWindow

from .shop import REF, append, draft


@pytest.mark.parametrize("url", ["sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:", "postgresql+asyncpg://host/db"])
def test_an_engine_needs_a_file(url: str) -> None:
    with pytest.raises(EngineError, match="names no SQLite file"):
        create_sqlite_engine(url)


async def test_a_file_is_in_wal_mode_and_its_commits_reach_the_disk(tmp_path: Path) -> None:
    engine = create_sqlite_engine(f"sqlite+aiosqlite:///{tmp_path}/log.db", busy_timeout=timedelta(seconds=7))
    async with engine.connect() as connection:
        pragmas = [
            (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        ]
    await engine.dispose()
    assert pragmas == ["wal", 2, 7_000]


async def test_a_transaction_of_the_applications_own_takes_the_lock_at_its_beginning(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/log.db"
    engine, hasty = create_sqlite_engine(url), create_sqlite_engine(url, busy_timeout=timedelta(milliseconds=1))
    await create_schema(engine)
    async with engine.begin():
        with pytest.raises(DatabaseBusyError):
            await append(SqlStorage(hasty, listen=False), draft("e1"))
    assert await append(SqlStorage(hasty, listen=False), draft("e1")) == [1]
    await engine.dispose()
    await hasty.dispose()


async def test_a_transaction_that_only_reads_can_leave_the_lock_alone(tmp_path: Path) -> None:
    engine = create_sqlite_engine(f"sqlite+aiosqlite:///{tmp_path}/log.db", busy_timeout=timedelta(milliseconds=1))
    await create_schema(engine)
    storage = SqlStorage(engine, listen=False)
    async with engine.connect() as connection:
        await connection.execution_options(sqlite_begin="DEFERRED")
        await connection.execute(text("SELECT count(*) FROM reflexr_events"))
        assert await append(storage, draft("e1")) == [1]
    assert len(await storage.read(REF, LogWindow())) == 1
    await engine.dispose()
