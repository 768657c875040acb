import sys
from pathlib import Path

import pytest

from scripts.examples import Block, blocks, main, run_page


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "page.md"


def test_blocks_are_found_with_their_language_and_line() -> None:
    text = "# Title\n\n```python\nx = 1\n```\n\n~~~json\n{}\n~~~\n"
    assert blocks(text) == [Block("python", 4, "x = 1\n"), Block("json", 8, "{}\n")]


def test_a_block_inside_a_list_loses_its_indentation() -> None:
    text = "- so:\n\n  ```python\n  if True:\n      x = 1\n\n  ```\n"
    assert blocks(text) == [Block("python", 4, "if True:\n    x = 1\n\n")]


def test_a_line_that_is_less_indented_than_its_block_is_kept() -> None:
    assert blocks("  ```text\nleft\n  ```\n") == [Block("text", 2, "left\n")]


def test_a_longer_fence_holds_a_shorter_one() -> None:
    assert blocks("````text\n```python\n```\n````\n") == [Block("text", 2, "```python\n```\n")]


def test_a_block_that_is_never_closed_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"line 1: the block that '```python' opens is never closed"):
        blocks("```python\nx = 1\n")


def test_the_blocks_of_a_page_share_a_namespace_and_may_await(page: Path, tmp_path: Path) -> None:
    page.write_text(
        "```python\nimport asyncio\nloops = [asyncio.get_running_loop() for _ in [await asyncio.sleep(0)]]\n```\n"
        "```json\nnot python\n```\n"
        "```python\nawait asyncio.sleep(0)\nassert loops == [asyncio.get_running_loop()]\n```\n"
        f"```python\nfrom pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n```\n"
    )
    assert main([str(page)]) == 0
    assert (tmp_path / "ran").exists()


def test_annotations_that_mention_names_of_the_page_are_understood(page: Path) -> None:
    page.write_text(
        "```python\nfrom pydantic import BaseModel\n\n\nclass A(BaseModel):\n    b: 'B | None' = None\n\n\n"
        "class B(BaseModel):\n    n: int = 0\n\n\nassert A(b={'n': 1}).b == B(n=1)\n```\n"
    )
    before = sys.modules["__main__"]
    run_page(page)
    assert sys.modules["__main__"] is before


def test_an_error_names_the_line_of_the_page(page: Path) -> None:
    page.write_text("# Title\n\n```python\nx = 1\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as raised:
        run_page(page)
    assert raised.traceback[-1].lineno == 4
    assert raised.traceback[-1].path == page
