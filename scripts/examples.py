"""Executes the Python blocks of a Markdown page, in order, in one namespace, as a reader would.

A page is one process, because a namespace of events belongs to one base in a process, and two pages may each declare
`ops`.
`python -m scripts.examples PAGE` runs it; warnings are errors there when Python is started with `-W error`.
"""

import ast
import asyncio
import builtins
import inspect
import re
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+) *(?P<language>[\w+-]*)(?P<rest>.*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        language: The word after the fence, empty if there is none.
        line: The number of its first line of code in the page, from 1.
        code: Its lines, without the indentation of the fence.
    """

    language: str
    line: int
    code: str


def main(arguments: Sequence[str]) -> int:
    for page in arguments:
        run_page(Path(page))
    return 0


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page.

    Raises:
        ValueError: A block is never closed.
    """
    found: list[Block] = []
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        opened = _FENCE.match(line)
        if opened is None:
            continue
        indent = len(opened["indent"])
        code: list[str] = []
        for _, inner in lines:
            if inner.strip().startswith(opened["fence"]) and not inner.strip().strip(opened["fence"][0]):
                break
            code.append(inner[indent:] if not inner[:indent].strip() else inner)
        else:
            raise ValueError(f"line {number}: the block that {line.strip()!r} opens is never closed")
        found.append(Block(opened["language"], number + 1, "\n".join(code) + "\n"))
    return found


def run_page(page: Path) -> None:
    """Executes the `python` blocks of a page; `await` may stand outside a function, and all share one event loop."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    # Pydantic looks for the names that annotations mention in the module that a class says it is from.
    before, sys.modules["__main__"] = sys.modules["__main__"], module
    try:
        with asyncio.Runner() as runner:
            for block in blocks(page.read_text(encoding="utf-8")):
                if block.language == "python":
                    _run_block(block, str(page), module, runner)
    finally:
        sys.modules["__main__"] = before


def _run_block(block: Block, page: str, module: types.ModuleType, runner: asyncio.Runner) -> None:
    # The lines before the block are left blank, so a traceback names the line of the page.
    source = "\n" * (block.line - 1) + block.code
    code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    function = types.FunctionType(code, module.__dict__)
    if code.co_flags & inspect.CO_COROUTINE:
        runner.run(function())
    else:
        function()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
