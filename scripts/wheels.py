"""Builds the distributions that are published, and proves each wheel where nothing else is.

`python -m scripts.wheels build` puts an sdist and a wheel of each member into `build/dist`. `check` also installs each
wheel alone into an empty environment outside the tree, with what it declares and nothing more, imports it, and then
runs the member's own tests against what is installed. Members come from the wheels just built, never from a registry.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = "reflexr-contracts"

type Run = Callable[[Sequence[str | Path], Path], None]

# Run by the Python of an environment: is the package the one that is installed there?
_IMPORTED_FROM_HERE = """
import importlib, sys
package = importlib.import_module(sys.argv[1])
if not package.__file__.startswith(sys.prefix):
    sys.exit(f"{sys.argv[1]} was imported from {package.__file__!r}, not from the wheel in {sys.prefix!r}")
"""


@dataclass(frozen=True)
class Member:
    """A distribution that is published.

    Attributes:
        name: Its name in a registry, such as `reflexr-core`.
        folder: Where its `pyproject.toml` is.
        packages: The import packages it ships.
        needs: The members it needs, by name, without theirs.
    """

    name: str
    folder: Path
    packages: tuple[str, ...]
    needs: tuple[str, ...]


def main(arguments: Sequence[str], root: Path = ROOT, run: Run | None = None) -> int:
    if list(arguments) not in (["build"], ["check"]):
        print("usage: python -m scripts.wheels build|check")
        return 2
    run = run or _run
    published = members(root)
    try:
        build(published.values(), root / "build" / "dist", run)
        if list(arguments) == ["check"]:
            with tempfile.TemporaryDirectory(prefix="reflexr-wheels-") as folder:
                for member in published.values():
                    check(member, published, root, Path(folder) / member.name, run)
    except subprocess.CalledProcessError as error:
        print(f"failed with {error.returncode}: {shlex.join(str(word) for word in error.cmd)}")
        return 1
    return 0


def members(root: Path) -> dict[str, Member]:
    """The published members by name, each after those it needs.

    Raises:
        ValueError: Members need each other in a circle.
    """
    found: dict[str, Member] = {}
    documents = [(path, tomllib.loads(path.read_text())) for path in _projects(root)]
    names = {document["project"]["name"] for _, document in documents}
    waiting = [_member(path.parent, document, names) for path, document in documents]
    while waiting:
        ready = [member for member in waiting if found.keys() >= set(member.needs)]
        if not ready:
            raise ValueError(f"these members need each other in a circle: {[member.name for member in waiting]!r}")
        found.update((member.name, member) for member in ready)
        waiting = [member for member in waiting if member.name not in found]
    return found


def build(published: Iterable[Member], dist: Path, run: Run) -> None:
    shutil.rmtree(dist, ignore_errors=True)
    for member in published:
        print(f"--- {member.name}: building", flush=True)
        # Without --wheel the wheel is built from the sdist, which proves that the sdist is whole.
        run([_uv(), "build", "--quiet", "--out-dir", dist, member.folder], member.folder)


def check(member: Member, published: Mapping[str, Member], root: Path, place: Path, run: Run) -> None:
    python = place / "venv" / "bin" / "python"
    locked = place / "locked.txt"
    tools = place / "tools.txt"
    place.mkdir(parents=True)
    export = [_uv(), "export", "--quiet", "--locked", "--no-hashes", "--no-emit-workspace", "--no-header"]
    run([*export, "--all-packages", "--output-file", locked], root)
    run([*export, "--only-group", "test", "--output-file", tools], root)
    run([_uv(), "venv", "--quiet", "--no-project", "--python", sys.executable, place / "venv"], place)
    install = [_uv(), "pip", "install", "--quiet", "--python", python, "--constraint", locked]

    print(f"--- {member.name}: alone in an empty environment", flush=True)
    run([*install, *wheels(member, published, root / "build" / "dist")], place)
    run([_uv(), "pip", "check", "--quiet", "--python", python], place)
    for package in member.packages:
        run([python, "-W", "error", "-I", "-c", _IMPORTED_FROM_HERE, package], place)

    print(f"--- {member.name}: its own tests against the wheel", flush=True)
    run([*install, "--requirements", tools, *suites(member, published, root / "build" / "dist")], place)
    shutil.copy(root / "conftest.py", place / "conftest.py")
    # With what lies beside the tests and they may read, but without the source.
    shutil.copytree(member.folder, place / "member", ignore=shutil.ignore_patterns("__pycache__", "src"))
    shutil.copy(root / "pyproject.toml", place / "pyproject.toml")
    pytest = [python, "-m", "pytest", "-q", "-n", "auto", "--maxprocesses", "8", "-m", "not system"]
    run([*pytest, "--override-ini", "pythonpath=[]", "member/tests"], place)


def wheels(member: Member, published: Mapping[str, Member], dist: Path) -> list[Path]:
    """The wheels of a member and of the members it needs, at any depth: as paths, which no registry can answer for."""
    paths: dict[str, Path] = {}
    waiting = [member]
    while waiting:
        current = waiting.pop()
        (paths[current.name],) = dist.glob(f"{current.name.replace('-', '_')}-*.whl")
        waiting.extend(published[name] for name in current.needs if name not in paths)
    return list(paths.values())


def _projects(root: Path) -> list[Path]:
    return [*sorted(root.glob("packages/*/pyproject.toml")), *root.glob("tests-contract/pyproject.toml")]


def suites(member: Member, published: Mapping[str, Member], dist: Path) -> list[Path]:
    """The wheels of the contract suites, which a member's tests may run: none for a member that the suites need."""
    contracts = published.get(CONTRACTS)
    if contracts is None:
        return []
    paths = wheels(contracts, published, dist)
    return [] if set(wheels(member, published, dist)) <= set(paths) else paths


def _member(folder: Path, document: Mapping[str, Any], names: set[str]) -> Member:
    project = document["project"]
    needs = [re.split(r"[^\w.-]", requirement)[0] for requirement in project["dependencies"]]
    packages = [f"reflexr.{typed.parent.name}" for typed in sorted(folder.glob("src/reflexr/*/py.typed"))]
    return Member(project["name"], folder, tuple(packages), tuple(name for name in needs if name in names))


def _uv() -> str:
    return os.environ.get("UV", "uv")


def _run(command: Sequence[str | Path], folder: Path) -> None:
    # No variable of the environment that runs this may lead the one under test back into the tree.
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    subprocess.run(command, cwd=folder, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
