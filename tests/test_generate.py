import sys
from os import environ
from pathlib import Path
from subprocess import run

import pytest

from scripts.generate import main, public_names

from .repository import ROOT

INIT = '''"""A package."""

from .events import Event, Other  # both

__all__ = [
    # Events
    "Event",  # a comment beside a name begins nothing
    # Rules
    "Rule",
    "by",
]
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    package = tmp_path / "packages" / "reflexr-core" / "src" / "reflexr" / "core"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(INIT)
    return tmp_path


def test_a_comment_on_its_own_line_names_the_concept_of_the_names_below_it() -> None:
    assert public_names(INIT) == {"Events": ["Event"], "Rules": ["Rule", "by"]}


def test_names_above_the_first_comment_have_no_concept() -> None:
    assert public_names('__all__ = ["b", "a"]') == {"": ["b", "a"]}


def test_a_package_that_lists_nothing_has_no_public_names() -> None:
    assert public_names('"""Nothing."""\nx = 1\n') == {}


def test_the_page_of_a_package_has_a_heading_for_each_concept(root: Path) -> None:
    assert main([], root) == 0
    page = (root / "docs" / "reference" / "core.md").read_text()
    directives = [line for line in page.splitlines() if line.startswith(("#", ":::"))]
    assert directives == [
        "# `reflexr.core`",
        "::: reflexr.core",
        "## Events",
        "::: reflexr.core.Event",
        "## Rules",
        "::: reflexr.core.Rule",
        "::: reflexr.core.by",
    ]


def test_names_without_a_concept_stand_under_no_heading(root: Path) -> None:
    init = root / "packages" / "reflexr-core" / "src" / "reflexr" / "core" / "__init__.py"
    init.write_text('__all__ = ["a"]')
    main([], root)
    assert "##" not in (root / "docs" / "reference" / "core.md").read_text()


def test_a_check_of_what_is_current_passes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([], root)
    assert main(["--check"], root) == 0
    assert capsys.readouterr().out.endswith("What is generated is current.\n")


def test_a_check_of_what_is_stale_fails_with_the_difference_and_writes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([], root)
    page = root / "docs" / "reference" / "core.md"
    page.write_text(page.read_text().replace("## Rules", "## Roles"))
    stale = page.read_text()

    assert main(["--check"], root) == 1
    out = capsys.readouterr().out
    assert "-## Roles" in out
    assert "+## Rules" in out
    assert "make generate" in out
    assert page.read_text() == stale


def test_the_command_ends_with_what_main_returns(tmp_path: Path) -> None:
    environment = environ | {"PYTHONPATH": str(ROOT)}
    done = run([sys.executable, "-m", "scripts.generate", "--no-such"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 2
