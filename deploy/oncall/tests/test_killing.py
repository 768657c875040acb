import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import pytest

from oncall.application import TENANT
from oncall.database import kept
from oncall.sources import identified, opened
from reflexr.workspace import LogWindow, ManualClock, RunQuery, WorkspaceRef

SAMPLE = str(files("oncall") / "samples" / "auth.log")
KILLING = Path(__file__).with_name("killing.py")


class Known(NamedTuple):
    """What a database holds: the events that were fed, what came of each firing, and the most attempts that took.

    Places are left out, as a lost attempt takes some.
    """

    fed: list[tuple[object, ...]]
    came: list[tuple[str, ...]]
    attempts: int


async def known(database: Path) -> Known:
    with opened(SAMPLE) as source:
        workspace_id, _ = identified(source)
    async with kept(database, workspace_id, ManualClock(datetime(2025, 1, 1, tzinfo=UTC))) as storage:
        workspace = WorkspaceRef(TENANT, workspace_id)
        log = await storage.read(workspace, LogWindow())
        runs = await storage.runs(workspace, RunQuery())
    assert [one.seq for one in log] == list(range(1, len(log) + 1))
    ids = {one.seq: one.id for one in log}
    fed: list[tuple[object, ...]] = [
        (one.id, one.ts, one.actor, one.payload) for one in log if one.event_type.startswith("oncall:")
    ]
    fired = [str(one.payload["firing_id"]) for one in log if one.event_type == "reflexr:rule_fired"]
    assert sorted(fired) == sorted(run.id for run in runs)
    came = sorted(
        (run.rule, run.scope_key, str(run.fired_at), *(ids[seq] for seq in run.matched), run.status, repr(run.output))
        for run in runs
    )
    return Known(fed, came, max(run.attempt for run in runs))


@pytest.mark.timeout(180)  # some thirty processes
def test_wherever_it_is_killed_it_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = tmp_path / "whole.db"
    done = subprocess.run(
        [sys.executable, KILLING, SAMPLE, tmp_path, "13", "7"], capture_output=True, check=True, text=True
    )
    killed = [one for one in sorted(tmp_path.glob("*.db")) if one != whole]
    assert int(done.stdout) >= len(killed) > 5
    subprocess.run(
        [sys.executable, "-m", "oncall", "--quiet", "--database", whole, SAMPLE], capture_output=True, check=True
    )
    expected = asyncio.run(known(whole))
    assert (len(expected.came), expected.attempts) == (5, 1)
    found = [asyncio.run(known(database)) for database in killed]
    assert [one._replace(attempts=1) for one in found] == [expected] * len(killed)
    assert max(one.attempts for one in found) == 2
