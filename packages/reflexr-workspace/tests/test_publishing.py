import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, override

import pytest

from reflexr.core import (
    AgentActor,
    DepthExceeded,
    Event,
    Forbidden,
    NotFound,
    Rejected,
    Tick,
    UnknownEvent,
    ValidationFailed,
)
from reflexr.workspace import InMemoryStorage, NewEvent, StorageError, Transaction, WorkspaceError, WorkspaceRef

from .hesitation import HesitantStorage, cancelled_after
from .plant import ADA, START, Alarm, Opened, Repaired, Stopped, cause, opened

AGENT = AgentActor(rule="plant:alarms", run_id="fir_1", name="page")


async def test_an_event_is_appended_with_who_published_it_and_begins_a_chain() -> None:
    workspace = await opened()

    published = await workspace.publish(Alarm(machine="press"), id="a")

    envelope = published.envelope
    assert (published.seq, published.id, published.duplicate) == (1, "a", False)
    assert (envelope.actor, envelope.correlation_id, envelope.causation) == (ADA, "a", None)
    assert envelope.event == Alarm(machine="press")
    assert await workspace.read() == [envelope]


async def test_an_event_without_an_id_gets_a_new_one() -> None:
    workspace = await opened()

    first, second = [await workspace.publish(Alarm(machine="press")) for _ in range(2)]

    assert first.id.startswith("evt_")
    assert len(first.id) == 20
    assert first.id != second.id


async def test_an_id_that_is_in_the_log_appends_nothing_and_returns_the_logged_envelope() -> None:
    workspace = await opened()
    first = await workspace.publish(Alarm(machine="press"), id="a")

    again = await workspace.publish(Alarm(machine="saw"), id="a")

    assert again.duplicate
    assert again.envelope == first.envelope
    assert await workspace.head_seq() == 1


@pytest.mark.parametrize(
    ("event", "rejection", "message"),
    [
        ({"type": "alarm", "machine": "press"}, NotFound, "did you mean 'plant:alarm'"),
        ({"type": "plant:unheard"}, NotFound, "no event type"),
        ({"type": "reflexr:tick", "schedule": "s", "at": "2026-01-01T00:00:00Z"}, Forbidden, "only reflexr"),
        (Tick(schedule="s", at=START), Forbidden, "only reflexr"),
        ({"type": "plant:repaired", "machine": "press"}, Forbidden, "runs alone"),
        ({"machine": "press"}, ValidationFailed, "names its type"),
        ({"type": None}, ValidationFailed, "names its type"),
        ({"type": ["plant:alarm"]}, ValidationFailed, "names its type"),
        (["plant:alarm"], ValidationFailed, "names its type"),
        (None, ValidationFailed, "names its type"),
    ],
)
async def test_only_events_of_the_allowlist_are_published(event: Any, rejection: type[Rejected], message: str) -> None:
    workspace = await opened()

    with pytest.raises(rejection, match=message):
        await workspace.publish(event)

    assert await workspace.head_seq() == 0


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"type": "plant:alarm"}, "machine"),
        ({"type": "plant:alarm", "machine": "press", "extra": 1}, "extra"),
        ({"type": "plant:alarm", "machine": 7}, "machine"),
        ({"type": "plant:alarm", "machine": "\ud800"}, "surrogate"),
        ({"type": "plant:machine.stopped", "machine": "m", "minutes": math.nan}, "nan"),
        ({"type": "plant:machine.stopped", "machine": "m", "details": nested(200)}, "nests deeper"),
        ({"type": "plant:machine.stopped", "machine": "m", "details": {1, 2}}, "details"),
        (Stopped(machine="m", minutes=math.inf), "inf"),
        (Stopped(machine="m", details={"x": math.nan}), "nan"),
        (Stopped(machine="m", details=nested(200)), "json"),
        (UnknownEvent.model_validate({"type": "plant:alarm", "machine": "press", "extra": 1}), "extra"),
    ],
)
async def test_an_event_that_is_not_valid_is_refused_with_its_problems(event: Any, error: str) -> None:
    workspace = await opened()

    with pytest.raises(ValidationFailed) as refused:
        await workspace.publish(event)

    assert any(error in problem.lower() for problem in refused.value.errors)


async def test_a_type_that_is_open_by_its_own_wish_takes_any_field() -> None:
    workspace = await opened()

    published = await workspace.publish({"type": "plant:opened", "by": "ada"})

    assert published.envelope.payload == {"type": "plant:opened", "by": "ada"}
    assert isinstance(published.envelope.event, Opened)


async def test_what_a_client_sends_as_json_is_what_the_class_would_write() -> None:
    workspace = await opened()

    published = await workspace.publish({"type": "plant:alarm", "machine": "press"})

    assert published.envelope.payload == Alarm(machine="press").payload()


@pytest.mark.parametrize("bad", ["", "x" * 256, "a\0b", "\udfff"])
async def test_an_id_that_is_none_is_refused(bad: str) -> None:
    workspace = await opened()

    for arguments in ({"id": bad}, {"correlation_id": bad}):
        with pytest.raises(ValidationFailed) as refused:
            await workspace.publish(Alarm(machine="press"), **arguments)
        assert refused.value.errors[0].startswith(next(iter(arguments)))


# --- Chains


async def test_an_event_joins_the_chain_that_it_names_by_its_first_event() -> None:
    workspace = await opened()
    await workspace.publish(Alarm(machine="press"), id="first")

    joined = await workspace.publish(Alarm(machine="press"), id="second", correlation_id="first")

    assert joined.envelope.correlation_id == "first"
    with pytest.raises(ValidationFailed, match="later event") as refused:
        await workspace.publish(Alarm(machine="press"), correlation_id="second")
    assert "'first'" in refused.value.errors[0]
    with pytest.raises(NotFound, match="no causal chain"):
        await workspace.publish(Alarm(machine="press"), correlation_id="unheard")


async def test_an_event_may_name_itself_as_its_chain() -> None:
    workspace = await opened()

    published = await workspace.publish(Alarm(machine="press"), id="a", correlation_id="a")

    assert published.envelope.correlation_id == "a"


async def test_a_duplicate_is_returned_whatever_chain_it_names_now() -> None:
    workspace = await opened()
    await workspace.publish(Alarm(machine="press"), id="a")

    assert (await workspace.publish(Alarm(machine="press"), id="a", correlation_id="unheard")).duplicate


async def test_what_a_run_publishes_records_the_run_and_continues_its_chain() -> None:
    workspace = await opened()
    run = workspace.as_actor(AGENT).caused_by(cause(), correlation_id="first")

    published = await run.publish(Repaired(machine="press"), id="r")
    named = await run.publish(Alarm(machine="press"), correlation_id="first")

    assert published.envelope.actor == AGENT
    assert published.envelope.causation == run.causation == cause()
    assert published.envelope.correlation_id == named.envelope.correlation_id == "first"
    with pytest.raises(ValidationFailed, match="joins the run's causal chain"):
        await run.publish(Alarm(machine="press"), correlation_id="other")


async def test_an_event_beyond_the_depth_limit_is_refused() -> None:
    workspace = await opened(max_depth=2)

    await workspace.caused_by(cause(depth=2), correlation_id="first").publish(Alarm(machine="press"))
    with pytest.raises(DepthExceeded) as refused:
        await workspace.caused_by(cause(depth=3), correlation_id="first").publish(Alarm(machine="press"))

    assert refused.value.rejection.model_dump() == {
        "type": "depth_exceeded",
        "message": str(refused.value),
        "depth": 3,
        "limit": 2,
    }


# --- Many at once


async def test_events_are_published_in_order_each_beginning_a_chain_of_its_own() -> None:
    workspace = await opened()

    published = await workspace.publish_many(
        [Alarm(machine="a"), NewEvent(Alarm(machine="b"), "b"), {"type": "plant:alarm", "machine": "c"}]
    )

    assert [(item.seq, item.envelope.payload["machine"]) for item in published] == [(1, "a"), (2, "b"), (3, "c")]
    assert [item.envelope.correlation_id for item in published] == [item.id for item in published]
    assert await workspace.publish_many([]) == []


async def test_an_id_that_comes_twice_is_appended_once() -> None:
    workspace = await opened()

    first, second = await workspace.publish_many([NewEvent(Alarm(machine=name), "same") for name in ("a", "b")])

    assert (first.duplicate, second.duplicate) == (False, True)
    assert second.envelope == first.envelope
    assert second.envelope.payload["machine"] == "a"
    assert await workspace.head_seq() == 1


async def test_an_id_that_comes_twice_has_the_place_at_which_it_came_first() -> None:
    workspace = await opened()

    published = await workspace.publish_many([NewEvent(Alarm(machine=name), name) for name in "abaca"])

    assert [(item.id, item.seq, item.duplicate) for item in published] == [
        ("a", 1, False),
        ("b", 2, False),
        ("a", 1, True),
        ("c", 3, False),
        ("a", 1, True),
    ]
    assert [envelope.payload["machine"] for envelope in await workspace.read()] == ["a", "b", "c"]


async def test_events_published_together_can_join_the_chain_of_the_first() -> None:
    workspace = await opened()

    published = await workspace.publish_many(
        [NewEvent(Alarm(machine="a"), "a"), NewEvent(Alarm(machine="b"), "b")], correlation_id="a"
    )

    assert [item.envelope.correlation_id for item in published] == ["a", "a"]


async def test_an_event_that_is_there_already_and_later_in_its_chain_names_none() -> None:
    workspace = await opened()
    await workspace.publish(Alarm(machine="a"), id="a")
    await workspace.publish(Alarm(machine="b"), id="b", correlation_id="a")

    with pytest.raises(ValidationFailed, match="'b' is a later event of a causal chain"):
        await workspace.publish_many(
            [NewEvent(Alarm(machine="b"), "b"), NewEvent(Alarm(machine="c"), "c")], correlation_id="b"
        )

    assert await workspace.head_seq() == 2


async def test_all_are_appended_or_none_and_every_problem_is_listed_with_its_place() -> None:
    workspace = await opened()
    valid, invalid = Alarm(machine="a"), {"type": "plant:alarm", "level": "high"}

    with pytest.raises(ValidationFailed) as refused:
        await workspace.publish_many([valid, invalid, NewEvent(valid, ""), valid])
    with pytest.raises(NotFound):
        await workspace.publish_many([valid, {"type": "plant:unheard"}])
    with pytest.raises(NotFound):
        await workspace.publish_many([valid, valid], correlation_id="unheard")

    places = [error.split(":")[0] for error in refused.value.errors]
    assert places == ["events.1", "events.1", "events.2"]
    assert await workspace.head_seq() == 0


async def test_which_of_many_events_json_cannot_hold_is_listed() -> None:
    workspace = await opened()
    valid = Stopped(machine="m")

    with pytest.raises(ValidationFailed) as refused:
        await workspace.publish_many(
            [
                valid,
                Stopped(machine="m", details=[math.nan]),
                {"type": "plant:alarm"},
                Stopped(machine="m", details=nested(200)),
            ]
        )

    assert [error.split(":")[0] for error in refused.value.errors] == ["events.1", "events.2", "events.3"]
    assert await workspace.head_seq() == 0


async def test_events_that_can_be_written_only_once_are_refused_though_nobody_can_tell_which() -> None:
    workspace = await opened()

    with pytest.raises(ValidationFailed, match="nan"):
        await workspace.publish_many([Stopped(machine="m"), Stopped(machine="m", details=iter([math.nan]))])

    assert await workspace.head_seq() == 0


# --- At the same time


async def test_publishes_that_arrive_together_share_a_commit_each_with_its_own_outcome() -> None:
    storage = HesitantStorage()
    workspace = await opened(storage)

    outcomes = await asyncio.gather(
        workspace.publish(Alarm(machine="a"), id="a"),
        workspace.publish(Alarm(machine="b"), id="a"),
        workspace.publish(Alarm(machine="c"), correlation_id="unheard"),
        workspace.publish(Alarm(machine="d"), id="d", correlation_id="a"),
        workspace.publish(Alarm(machine="e"), correlation_id="d"),
        return_exceptions=True,
    )

    first, duplicate, missing, joined, later = outcomes
    assert isinstance(missing, NotFound)
    assert isinstance(later, ValidationFailed)
    assert not isinstance(first, BaseException)
    assert not isinstance(duplicate, BaseException)
    assert not isinstance(joined, BaseException)
    assert (first.duplicate, duplicate.duplicate, duplicate.envelope) == (False, True, first.envelope)
    assert (joined.seq, joined.envelope.correlation_id) == (2, "a")
    assert await workspace.head_seq() == 2


@pytest.mark.parametrize("moments", range(10))
async def test_a_publish_that_is_cancelled_at_any_moment_is_whole_or_not_there_at_all(moments: int) -> None:
    storage = HesitantStorage()
    workspace = await opened(storage)

    ended = await cancelled_after(
        moments, lambda: workspace.publish_many([NewEvent(Alarm(machine=name), name) for name in "ab"])
    )

    assert await workspace.head_seq() == (2 if ended else 0)
    assert storage.sizes().callers == 0
    published = await workspace.publish_many([NewEvent(Alarm(machine=name), name) for name in "ab"])
    assert [item.duplicate for item in published] == [ended, ended]


class ForgetfulStorage(HesitantStorage):
    """Commits, and then says of its first commits that they failed, as where a connection is lost at a wrong moment."""

    failures = 1

    @override
    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator[Transaction]:
        async with super().transaction(workspace) as transaction:
            yield transaction
        if self.failures:
            self.failures -= 1
            raise StorageError("the connection was lost")


async def test_an_event_whose_commit_is_in_doubt_is_no_duplicate_of_itself() -> None:
    storage = ForgetfulStorage()
    workspace = await opened(storage)

    published = await asyncio.gather(*(workspace.publish(Alarm(machine=name), id=name) for name in "abc"))

    assert [(item.id, item.duplicate) for item in published] == [("a", False), ("b", False), ("c", False)]
    assert await workspace.head_seq() == 3


async def test_a_lone_publish_whose_commit_fails_looks_for_its_event_once() -> None:
    workspace = await opened(ForgetfulStorage())

    first = await workspace.publish(Alarm(machine="a"), id="a")

    assert (first.duplicate, await workspace.head_seq()) == (False, 1)


async def test_a_lone_publish_whose_commits_fail_says_so_and_can_be_repeated() -> None:
    storage = ForgetfulStorage()
    storage.failures = 2
    workspace = await opened(storage)

    with pytest.raises(StorageError):
        await workspace.publish(Alarm(machine="a"), id="a")

    assert (await workspace.publish(Alarm(machine="a"), id="a")).duplicate


async def test_events_can_be_part_of_a_transaction_that_somebody_else_commits() -> None:
    storage = InMemoryStorage()
    workspace = await opened(storage)

    async with storage.transaction(workspace.ref) as transaction:
        events = [Alarm(machine="press"), NewEvent(Alarm(machine="saw"), id="b")]
        published = await workspace.publish_within(transaction, events)
        outside = await workspace.head_seq()

    assert ([one.seq for one in published], outside, await workspace.head_seq()) == ([1, 2], 0, 2)
    assert published[0].envelope.event == Alarm(machine="press")


async def test_events_that_are_refused_leave_such_a_transaction_as_it_was() -> None:
    storage = InMemoryStorage()
    workspace = await opened(storage)

    async with storage.transaction(workspace.ref) as transaction:
        with pytest.raises(Rejected):
            await workspace.publish_within(transaction, [Alarm(machine="press")], correlation_id="nowhere")
        await workspace.publish_within(transaction, [Alarm(machine="saw")])

    assert [envelope.payload["machine"] for envelope in await workspace.read()] == ["saw"]


async def test_events_are_part_of_a_transaction_on_their_own_workspace_only() -> None:
    storage = InMemoryStorage()
    workspace = await opened(storage)

    async with storage.transaction(WorkspaceRef("acme", "other")) as transaction:
        with pytest.raises(WorkspaceError, match="open one on"):
            await workspace.publish_within(transaction, [Alarm(machine="press")])


@pytest.mark.parametrize("event", [Alarm.model_construct(level=2), Alarm.model_construct(), Repaired.model_construct()])
async def test_an_event_that_was_made_without_what_it_needs_is_refused_like_any_that_is_not_valid(event: Event) -> None:
    workspace = (await opened()).caused_by(cause(), correlation_id="first")

    with pytest.raises(ValidationFailed, match=f"this is no valid '{event.event_type}': machine: Field required"):
        await workspace.publish(event)
    assert await workspace.head_seq() == 0


async def test_an_event_that_was_made_without_being_checked_and_is_whole_is_appended_as_it_is() -> None:
    event = Alarm.model_construct(machine="press")

    assert (await (await opened()).publish(event)).envelope.event == Alarm(machine="press")


async def test_an_id_that_is_none_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValidationFailed) as refused:
        await (await opened()).publish(Opened(), id="a\0b")

    assert str(refused.value) == "id: an id is 1 to 255 characters, with no NUL and no lone surrogate"
