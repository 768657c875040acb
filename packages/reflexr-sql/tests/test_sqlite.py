from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest
from sqlalchemy import text

from reflexr.sql import (
    DatabaseBusyError,
    DatabaseUnavailableError,
    EngineError,
    SqlStorage,
    create_schema,
    create_sqlite_engine,
)
from reflexr.workspace import LogWindow

from .shop import REF, append, draft


@pytest.mark.parametrize("url", ["sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:", "postgresql+asyncpg://host/db"])
def test_an_engine_needs_a_file(url: str) -> None:
    with pytest.raises(EngineError, match="names no SQLite file"):
        create_sqlite_engine(url)


async def test_a_file_that_cannot_be_opened_leaves_no_thread_that_may_outlive_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Thread] = []
    start = Thread.start

    def noted(thread: Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(Thread, "start", noted)
    with pytest.raises(DatabaseUnavailableError, match="unable to open database file"):
        await create_schema(create_sqlite_engine(f"sqlite+aiosqlite:///{tmp_path}"))
    assert started == []


async def test_a_file_can_be_named_by_a_uri(tmp_path: Path) -> None:
    engine = create_sqlite_engine(f"sqlite+aiosqlite:///file:{tmp_path}/log.db?uri=true")
    await create_schema(engine)
    assert await append(SqlStorage(engine, listen=False), draft("e1")) == [1]
    await engine.dispose()
    assert (tmp_path / "log.db").is_file()


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
