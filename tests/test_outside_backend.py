"""A backend from outside this repository: the contract runs where only the wheels of what it needs are installed."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.wheels import build, members, wheels

from .repository import ROOT

CONTRACTS = "reflexr-contracts"
BACKEND = ROOT / "tests-contract" / "tests" / "outside_storage.py"
SUITE = BACKEND.with_name("test_outside_storage.py")
LONGEST = 200


def run(command: Sequence[str | Path], folder: Path) -> None:
    """Runs a command as from any other place: nothing of the environment leads back into the repository."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_a_backend_is_written_in_few_lines() -> None:
    lines = BACKEND.read_text().splitlines()
    assert len(lines) <= LONGEST
    assert max(map(len, lines)) <= 120


@pytest.mark.timeout(600)
def test_the_contract_passes_where_only_core_workspace_and_contracts_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\nexec sh {ROOT / "scripts" / "uv"} "$@"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("UV", str(uv))
    published = members(ROOT)
    needed = [one for one in published.values() if one.name in {"reflexr-core", "reflexr-workspace", CONTRACTS}]
    dist, locked, python = tmp_path / "dist", tmp_path / "locked.txt", tmp_path / "venv" / "bin" / "python"
    build(needed, dist, run)
    export = ["export", "--quiet", "--locked", "--no-hashes", "--no-emit-workspace", "--no-header", "--all-packages"]
    run([uv, *export, "--output-file", locked], ROOT)
    run([uv, "venv", "--quiet", "--no-project", "--python", sys.executable, tmp_path / "venv"], tmp_path)
    install = [uv, "pip", "install", "--quiet", "--python", python, "--constraint", locked]
    run([*install, *wheels(published[CONTRACTS], published, dist)], tmp_path)

    backend = tmp_path / "backend"
    backend.mkdir()
    for module in (BACKEND, SUITE):
        shutil.copy(module, backend)
    (backend / "__init__.py").touch()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    tests = [python, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, backend]
    done = subprocess.run(tests, cwd=tmp_path, env=inherited, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert re.search(r"^[34]\d\d passed in ", done.stdout, re.MULTILINE), done.stdout
