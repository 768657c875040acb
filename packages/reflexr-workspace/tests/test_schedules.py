from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reflexr.core import Tick
from reflexr.workspace.refs import WorkspaceRef
from reflexr.workspace.schedules import SCHEDULER, Schedule, tick, tick_id

MINUTE = timedelta(minutes=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def between(schedule: Schedule, first: str, last: str) -> list[datetime]:
    """Every time of a schedule from `first` to `last`, asked for one after another, as processes that restart would."""
    times: list[datetime] = []
    after = at(first) - timedelta(microseconds=1)
    while (time := schedule.next(after)) <= at(last):
        times.append(time)
        after = time
    return times


# --- Intervals


def test_intervals_fall_on_multiples_since_1970_so_that_every_process_names_the_same_times() -> None:
    schedule = Schedule(name="s", every=timedelta(seconds=30))

    assert schedule.next(at("2026-01-01T00:00:00Z")) == at("2026-01-01T00:00:30Z")
    assert schedule.next(at("2026-01-01T00:00:29.999999Z")) == at("2026-01-01T00:00:30Z")
    assert schedule.latest(at("2026-01-01T00:00:29.999999Z")) == at("2026-01-01T00:00:00Z")
    assert schedule.latest(at("2026-01-01T00:00:30Z")) == at("2026-01-01T00:00:30Z")


def test_a_tick_due_two_seconds_ago_is_published_once_with_its_own_time() -> None:
    schedule = Schedule(name="s", every=MINUTE)
    now = at("2026-01-01T00:01:02Z")

    assert schedule.missed(at("2026-01-01T00:00:00Z"), now) == [at("2026-01-01T00:01:00Z")]
    assert schedule.missed(at("2026-01-01T00:01:00Z"), now) == []


def test_skip_publishes_the_latest_missed_tick_only() -> None:
    schedule = Schedule(name="s", every=MINUTE)

    assert schedule.missed(at("2026-01-01T00:00:00Z"), at("2026-01-01T00:10:30Z")) == [at("2026-01-01T00:10:00Z")]


def test_all_publishes_each_missed_tick_oldest_first() -> None:
    schedule = Schedule(name="s", every=MINUTE, catch_up="all")

    assert schedule.missed(at("2026-01-01T00:00:00Z"), at("2026-01-01T00:03:30Z")) == [
        at("2026-01-01T00:01:00Z"),
        at("2026-01-01T00:02:00Z"),
        at("2026-01-01T00:03:00Z"),
    ]


def test_all_publishes_up_to_the_limit_at_once_and_goes_on_after_them() -> None:
    schedule = Schedule(name="s", every=MINUTE, catch_up="all", limit=2)
    now = at("2026-01-01T00:03:30Z")

    first = schedule.missed(at("2026-01-01T00:00:00Z"), now)
    second = schedule.missed(first[-1], now)

    assert first == [at("2026-01-01T00:01:00Z"), at("2026-01-01T00:02:00Z")]
    assert second == [at("2026-01-01T00:03:00Z")]
    assert schedule.missed(second[-1], now) == []


@pytest.mark.parametrize("catch_up", ["skip", "all"])
def test_a_schedule_that_never_ticked_begins_with_its_latest_tick(catch_up: Any) -> None:
    schedule = Schedule(name="s", every=MINUTE, catch_up=catch_up)

    assert schedule.missed(None, at("2026-01-01T00:03:30Z")) == [at("2026-01-01T00:03:00Z")]


# --- Cron, in a zone


def test_montreal_ten_past_midnight_on_the_day_the_clocks_go_forward() -> None:
    schedule = Schedule(name="s", cron="10 0 * * *", timezone="America/Montreal")

    assert schedule.next(at("2023-03-12T05:10:02Z")) == at("2023-03-13T04:10:00Z")


def test_new_york_half_past_one_ticks_once_on_the_day_the_clocks_go_back() -> None:
    schedule = Schedule(name="s", cron="30 1 * * *", timezone="America/New_York")

    assert between(schedule, "2026-11-01T04:00:00Z", "2026-11-02T04:59:59Z") == [at("2026-11-01T05:30:00Z")]


def test_every_quarter_of_an_hour_ticks_a_hundred_times_on_the_day_the_clocks_go_back() -> None:
    schedule = Schedule(name="s", cron="*/15 * * * *", timezone="America/New_York")

    assert len(between(schedule, "2026-11-01T04:00:00Z", "2026-11-02T04:59:59Z")) == 100


def test_new_york_half_past_two_never_ticks_twice_on_the_day_the_clocks_go_forward() -> None:
    schedule = Schedule(name="s", cron="30 2 * * *", timezone="America/New_York")

    assert between(schedule, "2026-03-08T05:00:00Z", "2026-03-09T03:59:59Z") == [at("2026-03-08T07:00:00Z")]


def test_a_process_that_looks_in_the_repeated_hour_finds_the_tick_of_its_first_pass() -> None:
    schedule = Schedule(name="s", cron="30 1 * * *", timezone="America/New_York")
    repeated = at("2026-11-01T06:10:00Z")  # 01:10 for the second time

    assert schedule.latest(repeated) == at("2026-11-01T05:30:00Z")
    assert schedule.next(repeated) == at("2026-11-02T06:30:00Z")
    assert schedule.missed(at("2026-11-01T05:30:00Z"), repeated) == []


def test_six_fields_begin_with_seconds() -> None:
    schedule = Schedule(name="s", cron="*/20 * * * * *")

    assert schedule.next(at("2026-01-01T00:00:05Z")) == at("2026-01-01T00:00:20Z")
    assert schedule.latest(at("2026-01-01T00:00:59.5Z")) == at("2026-01-01T00:00:40Z")


ZONES = ("UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia")
NOWS = st.integers(0, 15 * 365 * 24 * 3600).map(lambda seconds: at("2011-10-01T00:00:00Z") + timedelta(seconds=seconds))
CRONS = (
    "30 1 * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "*/20 * * * *",
    "15 * * * *",
    "*/30 1 * * *",
    "0 0 * * *",
    "0 9 * * mon-fri",
    "30 0 1 * *",
    "0 */6 * * *",
)


@given(
    st.sampled_from(ZONES),
    st.sampled_from(CRONS),
    NOWS,
)
def test_looking_back_finds_the_last_of_the_times_that_looking_forward_finds(
    zone: str, cron: str, now: datetime
) -> None:
    schedule = Schedule(name="s", cron=cron, timezone=zone, catch_up="all", limit=10_000)
    start = now - timedelta(days=40)
    forward = schedule.missed(start, now)

    assert forward[-1] == schedule.latest(now)
    assert forward == sorted(set(forward))
    assert all(start < time <= now for time in forward)
    assert schedule.next(now) > now


@given(
    st.sampled_from(ZONES),
    st.sampled_from(CRONS),
    NOWS,
)
def test_restarting_between_any_two_ticks_changes_no_time(zone: str, cron: str, start: datetime) -> None:
    schedule = Schedule(name="s", cron=cron, timezone=zone, catch_up="all")
    whole = schedule.missed(start, start + timedelta(days=32))[:30]

    restarted = [schedule.next(after) for after in (start, *whole[:-1])]

    assert restarted == whole


# --- What is refused


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "either `every` or `cron`"),
        ({"cron": None}, "either `every` or `cron`"),
        ({"every": MINUTE, "cron": "* * * * *"}, "either `every` or `cron`"),
        ({"every": timedelta(0)}, "every"),
        ({"every": -MINUTE}, "every"),
        ({"every": timedelta(days=36_526)}, "longer than a century"),
        ({"every": MINUTE, "timezone": "Europe/Oslo"}, "`timezone` is for `cron` alone"),
        ({"cron": "* * * *"}, "no cron expression"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": ""}, "no cron expression"),
        ({"cron": "0 0 31 2 *"}, "no cron expression"),
        ({"cron": "0 0 */31 * 5L"}, "never comes"),
        ({"cron": "* * * * *", "timezone": "Europe/Nowhere"}, "no time zone"),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "no time zone"),
        ({"cron": "* * * * *", "timezone": ""}, "no time zone"),
        ({"cron": "* * * * *", "timezone": "a\0b"}, "no time zone"),
        ({"every": MINUTE, "limit": 0}, "limit"),
        ({"every": MINUTE, "limit": True}, "limit"),
        ({"every": MINUTE, "catch_up": "some"}, "catch_up"),
        ({"every": MINUTE, "name": ""}, "name"),
        ({"every": MINUTE, "targets": ["acme"]}, "targets"),
        ({"every": MINUTE, "when": "now"}, "when"),
    ],
)
def test_a_schedule_that_can_never_work_is_refused(fields: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Schedule.model_validate({"name": "s", **fields})


# --- Where, and what is published


def test_a_schedule_without_targets_admits_every_workspace() -> None:
    assert Schedule(name="s", every=MINUTE).admits(WorkspaceRef("acme", "prod"))


def test_targets_are_pairs_of_tenant_and_workspace() -> None:
    schedule = Schedule.model_validate({"name": "s", "every": "PT1M", "targets": [("acme", "prod")]})

    assert schedule.targets == {WorkspaceRef("acme", "prod")}
    assert schedule.admits(WorkspaceRef("acme", "prod"))
    assert not schedule.admits(WorkspaceRef("other", "prod"))


def test_a_tick_carries_the_time_it_was_due_and_an_id_that_is_the_same_in_every_zone() -> None:
    due = at("2026-01-01T00:01:00Z")

    draft = tick("heartbeat", due)

    assert Tick.model_validate(draft.payload) == Tick(schedule="heartbeat", at=due)
    assert draft.id == draft.correlation_id == tick_id("heartbeat", due.astimezone(ZoneInfo("Asia/Tokyo")))
    assert draft.actor == SCHEDULER
    assert tick_id("heartbeat", due) != tick_id("heartbeat", due + MINUTE)
    assert tick_id("heartbeat", due) != tick_id("other", due)


def test_a_schedule_has_one_json_text_whatever_the_order_of_its_targets() -> None:
    targets = [("acme", workspace_id) for workspace_id in ("prod", "dev", "test", "a", "b")]

    written = [
        Schedule.model_validate({"name": "s", "every": MINUTE, "targets": order}).model_dump_json()
        for order in (targets, targets[::-1])
    ]

    assert written[0] == written[1]
    assert Schedule.model_validate_json(written[0]).targets == {WorkspaceRef(*target) for target in targets}
