"""The command: `python -m benchmarks [WORD ...]` runs the benchmarks whose names contain one of the words."""

import argparse
import asyncio
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

import benchmarks
from benchmarks import harness


def main(arguments: Sequence[str], registry: harness.Benchmarks = harness.benchmark) -> int:
    """Measures, prints a table, writes JSON; 1 when a floor is missed, 2 when there is nothing to measure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure each benchmark beside its raw limit."
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only benchmarks whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=9, help="how often each side is measured (default: 9)")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"), help="where the JSON goes")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}: it must be at least 1")
    for module in pkgutil.iter_modules(benchmarks.__path__, "benchmarks."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    selected = registry.select(options.words)
    if not selected:
        print(f"No benchmark's name contains any of {options.words!r}." if options.words else "There is no benchmark.")
        return 2
    results = asyncio.run(_measured(selected, options.rounds))
    print(harness.table(results))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(harness.as_json(results), encoding="utf-8")
    return 0 if all(result.reached for result in results) else 1


async def _measured(selected: Sequence[harness.Benchmark], rounds: int) -> list[harness.Result]:
    results: list[harness.Result] = []
    for subject in selected:
        print(f"measuring: {subject.name}", file=sys.stderr, flush=True)
        results.append(await harness.measure(subject, rounds=rounds))
    return results


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
