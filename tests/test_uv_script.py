"""`scripts/uv` finds a uv that works, or says what to do. That it can fetch one is seen wherever there is none."""

import shutil
import subprocess
from pathlib import Path

import pytest

from .repository import ROOT

NEW = '#!/bin/sh\n[ "$1" = --version ] && { echo \'uv 0.13.9 (somewhere)\'; exit; }\necho "$0 got $*"\n'
OLD = "#!/bin/sh\necho 'uv 0.4.1'\n"
BROKEN = "#!/bin/sh\necho 'uv: command not found' >&2\nexit 127\n"
PLACES = [
    "bin/uv",
    "home/.local/bin/uv",
    "home/.cargo/bin/uv",
    "home/.pyenv/versions/3.11.7/bin/uv",
    "repository/.tools/uv",
]
TOOLS = ["cat", "chmod", "dirname", "mkdir", "mv", "rm", "tail"]


class Machine:
    """A folder with the script, and a PATH that holds the few tools it needs and what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        for made in ("bin", "repository/scripts", "home"):
            (folder / made).mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "uv", folder / "repository" / "scripts" / "uv")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)

    def put(self, place: str, program: str) -> Path:
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(program)
        path.chmod(0o755)
        return path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", str(self.folder / "repository" / "scripts" / "uv"), *arguments]
        environment = {"PATH": str(self.bin), "HOME": str(self.folder / "home")}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("place", PLACES)
def test_the_uv_of_the_machine_gets_the_arguments(machine: Machine, place: str) -> None:
    machine.put(place, NEW)
    done = machine.run("sync", "--locked")
    assert done.stdout.endswith("uv got sync --locked\n")
    assert done.returncode == 0


@pytest.mark.parametrize("program", [OLD, BROKEN], ids=["too old", "broken"])
def test_a_uv_that_cannot_be_used_is_passed_over(machine: Machine, program: str) -> None:
    machine.put("bin/uv", program)
    uv = machine.put("home/.local/bin/uv", NEW)
    assert machine.run("sync").stdout == f"{uv} got sync\n"


def test_where_no_python_can_fetch_uv_the_remedy_is_named(machine: Machine) -> None:
    for python in ("python3", "python", "python3.6"):
        machine.put(f"bin/{python}", BROKEN.replace("uv", "python"))
    done = machine.run("sync")
    assert done.returncode == 1
    assert "Install uv yourself" in done.stderr
    assert "python: command not found" in done.stderr
    assert [path.name for path in (machine.folder / "repository" / ".tools").iterdir()] == ["bootstrap.log"]


def test_an_old_uv_does_not_satisfy_what_the_project_requires() -> None:
    script = (ROOT / "scripts" / "uv").read_text()
    assert 'required-version = ">=0.13"' in (ROOT / "pyproject.toml").read_text()
    assert "'uv>=0.13'" in script
    assert '"uv 0.1"[0-2].*' in script
