"""Writes what the repository generates, or checks that it is current.

What is generated is a function that returns files by path, listed in `GENERATORS`; nothing else writes them.
`python -m scripts.generate` writes, and with `--check` it writes nothing and fails on a difference.
"""

import argparse
import ast
import difflib
import io
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from scripts.schemas import json_schemas

ROOT = Path(__file__).resolve().parent.parent

type Files = Mapping[Path, str]
type Generator = Callable[[Path], Files]


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.generate", description="Write what is generated.")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail on a difference")
    check: bool = parser.parse_args(arguments).check
    stale = [difference for difference in differences(root) if difference.diff]
    for difference in stale:
        if check:
            sys.stdout.write(difference.diff)
        else:
            difference.path.parent.mkdir(parents=True, exist_ok=True)
            difference.path.write_text(difference.text, encoding="utf-8")
            print(f"wrote {difference.path.relative_to(root)}")
    if check and stale:
        print(f"{len(stale)} generated files are not current: run `make generate`.")
        return 1
    print("What is generated is current.")
    return 0


class Difference:
    """A generated file, as it is and as it would be."""

    def __init__(self, root: Path, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        name = str(path.relative_to(root))
        self.diff = "".join(
            difflib.unified_diff(current.splitlines(keepends=True), text.splitlines(keepends=True), name, name)
        )


def differences(root: Path) -> Iterator[Difference]:
    for generator in GENERATORS:
        for path, text in generator(root).items():
            yield Difference(root, path, text)


def reference_pages(root: Path) -> Files:
    """One page for each import package, with the names of its `__all__` under the concepts they are grouped by."""
    return {
        root / "docs" / "reference" / f"{init.parent.name}.md": _reference_page(init)
        for member in ("packages/*", "tests-contract")
        for init in sorted(root.glob(f"{member}/src/reflexr/*/__init__.py"))
    }


def public_names(source: str) -> dict[str, list[str]]:
    """The names of a package's `__all__` by concept: a comment on a line of its own inside the list begins one."""
    groups: dict[str, list[str]] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            lines = source.splitlines()[statement.lineno - 1 : statement.end_lineno]
            concept = ""
            for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
                if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
                    concept = token.string.removeprefix("#").strip()
                elif token.type == tokenize.STRING:
                    groups.setdefault(concept, []).append(ast.literal_eval(token.string))
    return groups


def _reference_page(init: Path) -> str:
    package = f"reflexr.{init.parent.name}"
    parts = [f"# `{package}`", f"::: {package}\n    options:\n      members: false\n      show_root_heading: false"]
    for concept, names in public_names(init.read_text(encoding="utf-8")).items():
        if concept:
            parts.append(f"## {concept}")
        parts.extend(f"::: {package}.{name}" for name in names)
    return "\n\n".join(parts) + "\n"


GENERATORS: tuple[Generator, ...] = (reference_pages, json_schemas)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
