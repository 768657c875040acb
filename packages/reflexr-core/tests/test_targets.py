from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from reflexr.core import ChainTarget, FiringTarget, RunTarget, Target

TARGET: TypeAdapter[Target] = TypeAdapter(Target)


@pytest.mark.parametrize(
    ("target", "document"),
    [
        (RunTarget(run_id="a"), {"kind": "run", "run_id": "a"}),
        (FiringTarget(firing_id="a"), {"kind": "firing", "firing_id": "a"}),
        (ChainTarget(correlation_id="a"), {"kind": "chain", "correlation_id": "a"}),
    ],
)
def test_a_target_is_told_from_the_others_by_its_kind(target: Target, document: dict[str, str]) -> None:
    assert TARGET.dump_python(target) == document
    assert TARGET.validate_python(document) == target


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"kind": "rule", "run_id": "a"}, "'run', 'firing', 'chain'"),
        ({"run_id": "a"}, "Unable to extract tag"),
        ({"kind": "run", "run_id": ""}, "An id is 1 to 255 characters"),
        ({"kind": "run", "firing_id": "a"}, "Field required"),
        ({"kind": "run", "run_id": "a", "firing_id": "b"}, "Extra inputs are not permitted"),
        ("run", "valid dictionary"),
    ],
)
def test_what_is_no_target_is_refused(document: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TARGET.validate_python(document)
