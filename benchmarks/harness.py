"""Registers benchmarks, measures them and judges them against their floors. They themselves live in the other modules.

A benchmark compares two sides, `ours` and `raw`, round by round in one run, so a noisy machine slows both. What counts
is the median of the rounds' ratios: of rates for a floor of `at_least` (ours to raw: more is better), of costs for a
floor of `at_most` (ours to raw: less is better).

    @benchmark("evaluate, one count rule over 100 scopes", at_least=0.5)
    async def evaluate() -> AsyncGenerator[Sides]:
        log = envelopes(10_000)
        yield Sides(ours=timed(lambda: decide(log), units=len(log)), raw=timed(lambda: parse(log), units=len(log)))
"""

import gc
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

type Cost = Callable[[], Awaitable[float]]
"""Does its work once and returns what a unit of it cost: seconds, or bytes, the same for both sides."""


@dataclass(frozen=True)
class Sides:
    """What a benchmark compares."""

    ours: Cost
    raw: Cost


@dataclass(frozen=True)
class Benchmark:
    """A registered benchmark.

    Attributes:
        name: What it measures, unique.
        floor: The ratio it must reach, or must not pass.
        direction: Which of the two.
        open: Prepares the sides, and cleans up after them.
    """

    name: str
    floor: float
    direction: Literal["at least", "at most"]
    open: Callable[[], AbstractAsyncContextManager[Sides]]


@dataclass(frozen=True)
class Result:
    """What was measured: the ratio, and the median cost of a unit on each side."""

    name: str
    ratio: float
    direction: Literal["at least", "at most"]
    floor: float
    reached: bool
    ours: float
    raw: float
    rounds: int


class Benchmarks:
    """Benchmarks by name, in the order in which they were registered."""

    def __init__(self) -> None:
        self._by_name: dict[str, Benchmark] = {}

    def __call__(
        self, name: str, *, at_least: float | None = None, at_most: float | None = None
    ) -> Callable[[Callable[[], AsyncGenerator[Sides]]], Callable[[], AsyncGenerator[Sides]]]:
        """Registers the decorated function, which yields the sides once.

        Raises:
            ValueError: The name is taken, or not exactly one floor is given.
        """
        if name in self._by_name:
            raise ValueError(f"there is a benchmark {name!r} already: give this one a name of its own")
        if (at_least is None) == (at_most is None):
            raise ValueError(f"benchmark {name!r}: give either at_least or at_most")

        def register(function: Callable[[], AsyncGenerator[Sides]]) -> Callable[[], AsyncGenerator[Sides]]:
            opened = asynccontextmanager(function)
            if at_least is not None:
                self._by_name[name] = Benchmark(name, at_least, "at least", opened)
            elif at_most is not None:
                self._by_name[name] = Benchmark(name, at_most, "at most", opened)
            return function

        return register

    def select(self, words: Iterable[str]) -> list[Benchmark]:
        """The benchmarks whose names contain one of the words, or all of them when there is no word."""
        wanted = list(words)
        return [one for name, one in self._by_name.items() if not wanted or any(word in name for word in wanted)]


benchmark = Benchmarks()
"""The registry that `make bench` runs."""


def timed[T](run: Callable[[], T], *, units: int = 1, before: Callable[[], object] | None = None) -> Cost:
    """A side that is a plain function, in seconds for each of `units`; `before` runs first each time, off the clock."""

    async def cost() -> float:
        if before is not None:
            before()
        gc.collect()
        # What was prepared is not part of the work: the collector need not go through it again.
        gc.freeze()
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) / units

    return cost


def timed_async[T](
    run: Callable[[], Awaitable[T]], *, units: int = 1, before: Callable[[], Awaitable[object]] | None = None
) -> Cost:
    """A side that is awaited, in seconds for each of `units`; `before` is awaited first each time, off the clock."""

    async def cost() -> float:
        if before is not None:
            await before()
        gc.collect()
        # What was prepared is not part of the work: the collector need not go through it again.
        gc.freeze()
        start = time.perf_counter()
        await run()
        return (time.perf_counter() - start) / units

    return cost


async def measure(subject: Benchmark, *, rounds: int) -> Result:
    """Measures both sides `rounds` times, after one round that does not count; which side goes first alternates."""
    ours: list[float] = []
    raw: list[float] = []
    async with subject.open() as sides:
        await sides.raw()
        await sides.ours()
        for number in range(rounds):
            if number % 2:
                ours.append(await sides.ours())
                raw.append(await sides.raw())
            else:
                raw.append(await sides.raw())
                ours.append(await sides.ours())
    costs = median(one / other for one, other in zip(ours, raw, strict=True))
    ratio = 1 / costs if subject.direction == "at least" else costs
    reached = ratio >= subject.floor if subject.direction == "at least" else ratio <= subject.floor
    return Result(subject.name, ratio, subject.direction, subject.floor, reached, median(ours), median(raw), rounds)


def table(results: Iterable[Result]) -> str:
    """The results for a person: one line each, aligned."""
    rows = [("Benchmark", "Ratio", "Floor", "", "Ours", "Raw")]
    rows.extend(
        (
            result.name,
            f"{result.ratio:.3g}",
            f"{result.direction} {result.floor:g}",
            "reached" if result.reached else "MISSED",
            f"{result.ours:.3g}",
            f"{result.raw:.3g}",
        )
        for result in results
    )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def as_json(results: Iterable[Result]) -> str:
    """The results for a program: a list of objects with the fields of `Result`."""
    return json.dumps([asdict(result) for result in results], indent=2) + "\n"
