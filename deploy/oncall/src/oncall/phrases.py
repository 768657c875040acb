"""How numbers, times and lists read in a sentence."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from oncall.sshd import visible

LONGEST_NAME: Final = 32
"""How many characters of a name are shown."""


def count(number: int, noun: str) -> str:
    """Returns `1 failure`, `2,000 failures`."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def span(duration: timedelta) -> str:
    """Returns a duration by its two largest units: `25 s`, `3 min 10 s`, `4 h 9 min`, `2 d 1 h`."""
    seconds = int(duration.total_seconds())
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return _units(days, "d", hours % 24, "h")
    if hours:
        return _units(hours, "h", minutes % 60, "min")
    return _units(minutes, "min", seconds % 60, "s") if minutes else f"{seconds} s"


def names(of: Sequence[str], most: int = 4) -> str:
    """Returns `root, admin, pi, git +7`."""
    listed = ", ".join(map(shown, of[:most]))
    return listed if len(of) <= most else f"{listed} +{len(of) - most:,}"


def shown(text: str) -> str:
    """Returns a name as it can be shown: in quotes where it could be mistaken for words around it."""
    text = visible(text)
    if len(text) > LONGEST_NAME:
        text = f"{text[: LONGEST_NAME - 1]}…"
    return text if text and not set(text) & set(' ,;:"()·') else f'"{text}"'


def places(seqs: Sequence[int]) -> str:
    """Returns `#12`, `#12..16`, `#12 #14..17`: places in a log."""
    runs: list[list[int]] = []
    for seq in seqs:
        if runs and seq == runs[-1][-1] + 1:
            runs[-1].append(seq)
        else:
            runs.append([seq])
    return " ".join(f"#{run[0]}" if len(run) == 1 else f"#{run[0]}..{run[-1]}" for run in runs)


def _units(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large:,} {large_unit} {small} {small_unit}" if small else f"{large:,} {large_unit}"
