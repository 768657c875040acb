"""What runs say in the tests of streams."""

import json
from collections.abc import Iterable
from typing import Any

from reflexr.core import Delta, DeltaFrame, write_frame


def delta(number: int, *, lost: int = 0, text: str = "", run_id: str = "fir_1") -> Delta:
    """A piece of a text."""
    return Delta(
        run_id=run_id, rule="ops:a", attempt=1, number=number, kind="text", part=0, text=text or f"{number}", lost=lost
    )


def written(one: Delta) -> str:
    """A delta's frame."""
    return write_frame(DeltaFrame(delta=one))


def told(frames: Iterable[str | dict[str, Any]]) -> list[tuple[int, int]]:
    """The numbers of the deltas in some frames, and how many each says were lost before it."""
    read = [json.loads(frame) if isinstance(frame, str) else frame for frame in frames]
    return [(each["delta"]["number"], each["delta"]["lost"]) for each in read if each["type"] == "delta"]
