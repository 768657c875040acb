import shutil
import sys
from collections.abc import Sequence
from os import environ
from pathlib import Path
from subprocess import run

import pytest

from scripts.wheels import main, members, suites, wheels

from .repository import ROOT


class Commands:
    """Records the commands that would run, and builds empty wheels."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, command: Sequence[str | Path], folder: Path) -> None:
        words = [str(word) for word in command]
        self.lines.append(" ".join(words))
        if "build" in words:
            dist = Path(words[words.index("--out-dir") + 1])
            dist.mkdir(parents=True, exist_ok=True)
            (dist / f"{folder.name.replace('-', '_')}-0.1.0-py3-none-any.whl").touch()

    def matching(self, word: str) -> list[str]:
        return [line for line in self.lines if word in line]


def add_member(root: Path, name: str, package: str, *needs: str) -> None:
    folder = root / "packages" / name
    (folder / "src" / "reflexr" / package).mkdir(parents=True)
    (folder / "src" / "reflexr" / package / "py.typed").touch()
    (folder / "tests").mkdir()
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\ndependencies = {list(needs)!r}\n')


@pytest.fixture
def root(tmp_path: Path) -> Path:
    add_member(tmp_path, "reflexr-alpha", "alpha", "reflexr-beta>=0.1,<0.2", "rich>=15,<16")
    add_member(tmp_path, "reflexr-beta", "beta", "reflexr-core>=0.1,<0.2")
    add_member(tmp_path, "reflexr-core", "core", "pydantic>=2.14,<3")
    (tmp_path / "conftest.py").touch()
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def test_members_come_after_those_they_need(root: Path) -> None:
    found = members(root)
    assert list(found) == ["reflexr-core", "reflexr-beta", "reflexr-alpha"]
    assert found["reflexr-alpha"].needs == ("reflexr-beta",)
    assert found["reflexr-alpha"].packages == ("reflexr.alpha",)


def test_members_that_need_each_other_are_refused(root: Path) -> None:
    add_member(root, "reflexr-delta", "delta", "reflexr-gamma")
    add_member(root, "reflexr-gamma", "gamma", "reflexr-delta")
    with pytest.raises(ValueError, match=r"in a circle: \['reflexr-delta', 'reflexr-gamma'\]"):
        members(root)


def test_build_builds_each_member_and_tests_nothing(root: Path) -> None:
    commands = Commands()
    assert main(["build"], root, commands) == 0
    assert len(commands.matching(" build ")) == len(commands.lines) == 3


def test_a_wheel_comes_with_those_it_needs_at_any_depth(root: Path) -> None:
    main(["build"], root, Commands())
    found = members(root)
    paths = wheels(found["reflexr-alpha"], found, root / "build" / "dist")
    assert [path.name.split("-")[0] for path in paths] == ["reflexr_alpha", "reflexr_beta", "reflexr_core"]


def test_the_contract_suites_come_with_the_tests_of_those_that_they_do_not_need(root: Path) -> None:
    add_member(root, "reflexr-contracts", "contracts", "reflexr-beta>=0.1,<0.2")
    shutil.move(root / "packages" / "reflexr-contracts", root / "tests-contract")
    main(["build"], root, Commands())
    dist = root / "build" / "dist"
    (dist / "tests_contract-0.1.0-py3-none-any.whl").rename(dist / "reflexr_contracts-0.1.0-py3-none-any.whl")
    found = members(root)
    names = {name: [path.name.split("-")[0] for path in suites(one, found, dist)] for name, one in found.items()}
    assert names["reflexr-alpha"] == ["reflexr_contracts", "reflexr_beta", "reflexr_core"]
    assert names["reflexr-core"] == names["reflexr-beta"] == names["reflexr-contracts"] == []


def test_a_wheel_is_imported_before_the_tools_of_its_tests_are_there(root: Path) -> None:
    commands = Commands()
    assert main(["check"], root, commands) == 0
    core = [line for line in commands.matching("/reflexr-core/venv") if "venv --quiet" not in line]
    installed, checked, imported, tools, tested = core
    assert installed.endswith("/build/dist/reflexr_core-0.1.0-py3-none-any.whl")
    assert " pip check " in checked
    assert imported.endswith(" reflexr.core")
    assert tools.endswith("/reflexr-core/tools.txt")
    assert tested.endswith(" member/tests")


def test_what_was_built_before_is_not_checked(root: Path) -> None:
    dist = root / "build" / "dist"
    dist.mkdir(parents=True)
    (dist / "reflexr_core-0.0.9-py3-none-any.whl").touch()
    main(["build"], root, Commands())
    assert not (dist / "reflexr_core-0.0.9-py3-none-any.whl").exists()


@pytest.mark.parametrize("arguments", [[], ["publish"], ["build", "check"]])
def test_anything_else_is_answered_with_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().out == "usage: python -m scripts.wheels build|check\n"


def test_a_command_that_fails_ends_the_check_and_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UV", "false")
    assert main(["build"], root) == 1
    assert "failed with 1: false build --quiet" in capsys.readouterr().out


def test_the_command_ends_with_what_main_returns(tmp_path: Path) -> None:
    done = run(
        [sys.executable, "-m", "scripts.wheels"], cwd=tmp_path, env=environ | {"PYTHONPATH": str(ROOT)}, check=False
    )
    assert done.returncode == 2
