import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.harness import Benchmarks, Cost, Sides, measure, timed, timed_async


def costs(*values: float) -> Cost:
    """A side that says what it cost instead of working: the first value is the round that does not count."""
    remaining = iter(values)

    async def cost() -> float:
        return next(remaining)

    return cost


def sides(ours: Callable[[], Cost], raw: Callable[[], Cost]) -> Callable[[], AsyncGenerator[Sides]]:
    async def opened() -> AsyncGenerator[Sides]:
        yield Sides(ours=ours(), raw=raw())

    return opened


@pytest.fixture
def registry() -> Benchmarks:
    return Benchmarks()


async def test_the_ratio_is_the_median_of_the_rounds(registry: Benchmarks) -> None:
    registry("absence", at_most=1.3)(sides(lambda: costs(9, 2, 8, 3), lambda: costs(9, 2, 2, 2)))
    result = await measure(registry.select([])[0], rounds=3)
    assert (result.ratio, result.reached) == (1.5, False)
    assert (result.ours, result.raw) == (3, 2)


@pytest.mark.parametrize(("cost", "reached"), [(1.0, True), (2.0, True), (2.5, False)])
async def test_a_floor_of_at_least_compares_rates(registry: Benchmarks, cost: float, reached: bool) -> None:
    registry("publish", at_least=0.5)(sides(lambda: costs(1, cost), lambda: costs(1, 1)))
    result = await measure(registry.select([])[0], rounds=1)
    assert (result.ratio, result.reached) == (1 / cost, reached)


async def test_the_sides_take_turns_in_going_first(registry: Benchmarks) -> None:
    order: list[str] = []

    def side(name: str) -> Cost:
        async def cost() -> float:
            order.append(name)
            return 1.0

        return cost

    registry("turns", at_most=1)(sides(lambda: side("ours"), lambda: side("raw")))
    await measure(registry.select([])[0], rounds=2)
    assert order == ["raw", "ours", "raw", "ours", "ours", "raw"]


async def test_a_cost_is_that_of_one_unit_and_leaves_out_what_comes_before() -> None:
    order: list[str] = []
    once = await timed(lambda: order.append("run"), before=lambda: order.append("before"), units=1000)()
    assert order == ["before", "run"]
    assert 0 < once < 1


async def test_a_cost_can_be_awaited() -> None:
    order: list[str] = []

    def note(name: str) -> Callable[[], Awaitable[None]]:
        async def noted() -> None:
            order.append(name)

        return noted

    assert await timed_async(note("run"), before=note("before"))() > 0
    assert await timed_async(note("again"))() > 0
    assert await timed(lambda: None)() > 0
    assert order == ["before", "run", "again"]


def test_a_name_is_taken_once(registry: Benchmarks) -> None:
    registry("absence", at_most=1)(sides(costs, costs))
    with pytest.raises(ValueError, match="there is a benchmark 'absence' already"):
        registry("absence", at_most=1)


@pytest.mark.parametrize("floors", [{}, {"at_least": 1.0, "at_most": 1.0}])
def test_a_benchmark_has_exactly_one_floor(registry: Benchmarks, floors: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="'absence': give either at_least or at_most"):
        registry("absence", **floors)


def test_the_command_prints_a_table_and_writes_json(
    registry: Benchmarks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry("absence", at_most=2)(sides(lambda: costs(1, 3), lambda: costs(1, 2)))
    output = tmp_path / "made" / "bench.json"

    assert main(["--rounds", "1", "--output", str(output)], registry) == 0

    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["Benchmark", "Ratio", "Floor", "Ours", "Raw"]
    assert row.split() == ["absence", "1.5", "at", "most", "2", "reached", "3", "2"]
    (written,) = json.loads(output.read_text())
    assert (written["name"], written["ratio"], written["reached"]) == ("absence", 1.5, True)


def test_the_command_fails_when_a_floor_is_missed(
    registry: Benchmarks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry("reached", at_most=2)(sides(lambda: costs(1, 1), lambda: costs(1, 1)))
    registry("missed", at_most=0.5)(sides(lambda: costs(1, 1), lambda: costs(1, 1)))
    assert main(["--rounds", "1", "--output", str(tmp_path / "bench.json")], registry) == 1
    assert "MISSED" in capsys.readouterr().out


def test_words_choose_among_the_benchmarks(
    registry: Benchmarks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry("count over 100 scopes", at_most=2)(sides(lambda: costs(1, 1), lambda: costs(1, 1)))
    registry("absence", at_most=2)(sides(costs, costs))
    assert main(["count", "--rounds", "1", "--output", str(tmp_path / "bench.json")], registry) == 0
    assert "absence" not in capsys.readouterr().out


@pytest.mark.parametrize(("words", "said"), [([], "There is no benchmark."), (["x"], "No benchmark's name contains")])
def test_nothing_to_measure_is_a_failure(
    registry: Benchmarks, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words, registry) == 2
    assert said in capsys.readouterr().out


def test_no_rounds_are_refused(registry: Benchmarks, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rounds", "0"], registry)
    assert "--rounds is 0: it must be at least 1" in capsys.readouterr().err
