"""A program that feeds a log and is killed on the way: `python killing.py LOG FOLDER FIRST STEP`.

It is killed after its FIRST commit, and then fed again to the end, with a database of its own; so again after STEP more
commits, until it survives. Last, with one database for all, it is killed after each of these numbers of commits in
turn. It prints how often it was killed.
"""

import os
import signal
import sys
from itertools import count
from pathlib import Path
from unittest.mock import patch

import aiosqlite

from oncall.cli import main


def feed(log: str, database: Path, commits: int | None = None) -> bool:
    """Feeds the log in a process that is killed after so many commits, and returns whether it was."""
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        if status not in (0, signal.SIGKILL):
            raise ChildProcessError(f"feeding {database} ended with {status}")
        return status == signal.SIGKILL
    execute, commit = aiosqlite.Connection.execute_fetchall, aiosqlite.Connection.commit
    done = 0

    def committed() -> None:
        nonlocal done
        done += 1
        if done == commits:
            os.kill(os.getpid(), signal.SIGKILL)

    async def counting_execute(self: aiosqlite.Connection, sql: str, parameters: tuple[object, ...] = ()) -> object:
        rows = await execute(self, sql, parameters)
        if sql == "COMMIT":
            committed()
        return rows

    async def counting_commit(self: aiosqlite.Connection) -> None:
        await commit(self)
        committed()

    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    with (
        patch.object(aiosqlite.Connection, "execute_fetchall", counting_execute),
        patch.object(aiosqlite.Connection, "commit", counting_commit),
    ):
        os._exit(main(["--quiet", "--database", str(database), log]))


def run(log: str, folder: Path, first: int, step: int) -> int:
    killed = 0
    for commits in count(first, step):
        database = folder / f"{commits}.db"
        if not feed(log, database, commits):
            break
        feed(log, database)
        killed += 1
    for commits in count(first, step):
        if not feed(log, folder / "again.db", commits):
            break
        killed += 1
    return killed


if __name__ == "__main__":
    print(run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
