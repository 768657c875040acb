import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from oncall.database import DatabaseUnusableError, default_database, kept
from reflexr.workspace import InMemoryStorage, ManualClock, WorkspaceRef

# Has a workspace in hand until its input ends.
HOLDER = """
import asyncio, sys
from pathlib import Path
from oncall.database import kept
from reflexr.workspace import ManualClock

async def hold():
    async with kept(Path(sys.argv[1]), "ssh", ManualClock()):
        print("held", flush=True)
        sys.stdin.read()

asyncio.run(hold())
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "oncall.db"


def test_the_database_is_in_the_users_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    assert default_database({"XDG_STATE_HOME": "/state"}) == Path("/state/oncall/oncall.db")
    assert default_database({}) == Path("/home/alice/.local/state/oncall/oncall.db")
    assert default_database({"XDG_STATE_HOME": "state"}) == Path("/home/alice/.local/state/oncall/oncall.db")


def test_who_has_no_folder_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(DatabaseUnusableError, match="name one with --database, or keep nothing with --memory"):
        default_database({})


async def test_without_a_database_it_is_memory() -> None:
    async with kept(None, "ssh", ManualClock()) as storage:
        assert isinstance(storage, InMemoryStorage)


async def test_what_is_kept_by_nobody_else_is_a_single_file(database: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with kept(database, "ssh", ManualClock()):
            raise ZeroDivisionError
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert sorted(one.name for one in database.parent.iterdir()) == ["oncall.db", "oncall.db.lock"]


def test_a_workspace_is_in_the_hands_of_one_process(database: Path) -> None:
    async def workspaces(workspace_id: str) -> list[WorkspaceRef]:
        async with kept(database, workspace_id, ManualClock()) as storage:
            return await storage.workspaces()

    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, database], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DatabaseUnusableError, match="another process is at work on this log"):
            asyncio.run(workspaces("ssh"))
        assert asyncio.run(workspaces("another")) == []
        holder.kill()
    assert asyncio.run(workspaces("ssh")) == []
