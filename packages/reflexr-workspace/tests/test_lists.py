from typing import Any

import pytest

from reflexr.core import RuleError

from .plant import Alarm, alarms, workspaces


def problems(**settings: Any) -> tuple[str, ...]:
    with pytest.raises(RuleError) as refused:
        workspaces(**settings)
    return refused.value.problems


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rules": alarms()}, "rules: 'plant:alarms' is no list: write rules=[Rule(...)]"),
        ({"events": "plant:alarm"}, "events: 'plant:alarm' is no list: write events=[Alarm]"),
        ({"events": Alarm}, f"events: {Alarm!r} is no list: write events=[Alarm]"),
        ({"emitted": {"plant:alarm": Alarm}}, f"emitted: {{'plant:alarm': {Alarm!r}}} is no list"),
        ({"schedules": None}, "schedules: None is no list: write schedules=[Schedule(...)]"),
        ({"events": [Alarm(machine="saw")]}, "is not an event class: write the class Alarm itself"),
        ({"events": ["plant:alrm"]}, "events: 'plant:alrm' is not an event class: write Alarm"),
        ({"rules": [alarms]}, "is not a rule: write Rule(...)"),
        ({"schedules": ["nightly"]}, "schedules: 'nightly' is not a schedule: write Schedule(...)"),
    ],
)
def test_what_is_no_list_or_holds_something_else_is_refused_with_the_remedy(settings: Any, problem: str) -> None:
    (found,) = problems(**settings)

    assert problem in found


def test_the_problems_of_all_lists_are_listed_at_once() -> None:
    assert [problem[:6] for problem in problems(events=[7, "x"], rules=alarms())] == ["events", "events", "rules:"]


def test_any_iterable_is_a_list() -> None:
    assert list(workspaces(events=iter([Alarm]), rules=(rule for rule in [alarms()])).rules) == ["plant:alarms"]
