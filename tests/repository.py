"""The repository as its own tests see it: its members, their packages, and the files that git holds or would hold."""

import subprocess
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Member:
    """A member of the workspace, by what its `pyproject.toml` says."""

    folder: Path
    project: dict[str, Any]

    @property
    def name(self) -> str:
        return self.project["name"]

    @property
    def is_published(self) -> bool:
        return "Private :: Do Not Upload" not in self.project["classifiers"]

    @property
    def packages(self) -> dict[str, Path]:
        """Its import packages: `reflexr.core` and its folder."""
        source = self.folder / "src"
        inits = (*source.glob("reflexr/*/__init__.py"), *source.glob("*/__init__.py"))
        return {".".join(init.parent.relative_to(source).parts): init.parent for init in sorted(inits)}


@cache
def members() -> tuple[Member, ...]:
    folders = (*sorted(ROOT.glob("packages/*/")), ROOT / "tests-contract", *sorted(ROOT.glob("deploy/*/")))
    found = [path for folder in folders if (path := folder / "pyproject.toml").exists()]
    return tuple(Member(path.parent, tomllib.loads(path.read_text())["project"]) for path in found)


def packages() -> dict[str, Path]:
    return {name: folder for member in members() for name, folder in member.packages.items()}


@cache
def files(*patterns: str) -> tuple[Path, ...]:
    """The files that git holds or would hold, without those that are deleted."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return tuple(sorted(path for name in set(listed.split("\0")) - {""} if (path := ROOT / name).is_file()))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
