"""The documentation is true: its Python runs, its JSON parses, its commands exist and its links lead somewhere."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.examples import Block, blocks
from scripts.wheels import members

from .repository import ROOT, files, name

PAGES = [path for path in files("*.md") if path.name != "CHANGELOG.md"]
LANGUAGES = {"", "console", "json", "mermaid", "python", "sh", "text", "toml"}
FIRST_SCREEN = 40


def page_blocks(*languages: str) -> list[tuple[Path, Block]]:
    return [(page, block) for page in PAGES for block in blocks(page.read_text()) if block.language in languages]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", sorted({page for page, _ in page_blocks("python")}), ids=name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "scripts.examples", str(page)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_json_of_a_page_parses(page: Path) -> None:
    for block in blocks(page.read_text()):
        if block.language == "json":
            json.loads(block.code)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_block_is_in_a_language_that_is_checked_here(page: Path) -> None:
    assert {block.language for block in blocks(page.read_text())} <= LANGUAGES


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_make_command_of_a_page_is_a_target(page: Path) -> None:
    commands = [block.code for block in blocks(page.read_text()) if block.language in {"sh", "console"}]
    named = {target for code in commands for target in re.findall(r"^(?:\$ )?make ([a-z-]+)", code, re.MULTILINE)}
    assert named <= make_targets()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    text = re.sub(r"^( *)(```+).*?^\1\2 *$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    relative = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in relative if not (page.parent / target).exists()] == []


def test_every_page_of_the_documentation_is_in_its_navigation() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    listed = re.findall(r"'([^']+\.md)'", repr(config["project"]["nav"]))
    assert sorted(listed) == sorted(name(page).removeprefix("docs/") for page in files("docs/*.md"))


def test_the_first_screen_of_the_readme_shows_how_to_watch_it_and_how_to_test_it() -> None:
    shown = [block for block in blocks((ROOT / "README.md").read_text()) if block.line <= FIRST_SCREEN]
    commands = [line for block in shown if block.language == "sh" for line in block.code.splitlines()]
    assert {"make demo", "make test"} <= {" ".join(command.split("#")[0].split()) for command in commands}


def test_make_lists_every_target_that_has_a_purpose_of_its_own() -> None:
    # Not as part of the make that may be running these tests.
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    listed = subprocess.run(["make"], cwd=ROOT, env=outside, check=True, capture_output=True, text=True).stdout
    assert {line.split()[1] for line in listed.splitlines()} == make_targets() - {"coverage-report"}


def test_ci_runs_everything_that_make_check_does() -> None:
    makefile = (ROOT / "Makefile").read_text()
    pieces = re.findall(r"^check: ([a-z -]+) ##", makefile, re.MULTILINE)[0].split()
    steps = re.findall(r"^step make (.+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    coverage = re.findall(r"^coverage: ##.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[0]
    assert set(steps) >= set(pieces) - {"coverage"} | {"demo", "test-system"}
    assert {"test COVERAGE=yes", "coverage-report"} <= set(steps)
    assert re.findall(r"--no-print-directory (.+)", coverage) == ["test COVERAGE=yes", "coverage-report"]


def test_ci_runs_every_test_on_the_oldest_python() -> None:
    trees = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["testpaths"]
    with_their_wheel = {member.folder.relative_to(ROOT).parts[0] for member in members(ROOT).values()}
    others = " ".join(sorted(set(trees) - with_their_wheel))
    assert f'step make test-oldest TESTS="{others}"' in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_guide_shows_the_action_of_dbos_that_is_tested() -> None:
    tested = (ROOT / "packages/reflexr-agent/tests/dbos_actions.py").read_text().split("\n\n", 1)[1]
    assert tested in (ROOT / "docs/guide/agents.md").read_text()
