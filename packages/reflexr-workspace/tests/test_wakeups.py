import asyncio
from datetime import timedelta

import pytest

from reflexr.workspace import InProcessWakeups, WorkspaceRef

PROD = WorkspaceRef("acme", "prod")
TEST = WorkspaceRef("acme", "test")


async def test_what_changes_between_two_waits_is_kept_for_the_second() -> None:
    wakeups = InProcessWakeups()
    with wakeups.listen() as listener:
        wakeups.announce([PROD])
        wakeups.announce([TEST])

        assert await listener.wait() == {PROD, TEST}
        wakeups.announce([PROD])
        assert await listener.wait() == {PROD}


async def test_a_listener_of_one_workspace_hears_of_no_other() -> None:
    wakeups = InProcessWakeups()
    with wakeups.listen(PROD) as listener:
        wakeups.announce([TEST])

        assert await listener.wait(timedelta(0)) == frozenset()
        wakeups.announce([TEST, PROD])
        assert await listener.wait() == {PROD}


async def test_a_wait_that_is_cancelled_forgets_nothing() -> None:
    wakeups = InProcessWakeups()
    with wakeups.listen() as listener:
        waiting = asyncio.create_task(listener.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        wakeups.announce([PROD])
        with pytest.raises(asyncio.CancelledError):
            await waiting

        assert await listener.wait() == {PROD}


async def test_whoever_stops_listening_is_forgotten() -> None:
    wakeups = InProcessWakeups()
    with wakeups.listen(PROD), wakeups.listen(PROD):
        assert len(wakeups) == 2

    assert len(wakeups) == 0
    assert wakeups.poll_interval is None
    wakeups.announce([PROD])
