import json
import os
import re
import sys
from pathlib import Path
from subprocess import CalledProcessError, run

import pytest

from scripts.programs import (
    LITELLM,
    NotInstalledError,
    browser,
    install_browser,
    install_litellm,
    install_npm_packages,
    main,
    run_npm_package,
)

from .repository import ROOT, files

PACKAGE = {"name": "pins", "version": "1.0.0"}
LOCK = {**PACKAGE, "lockfileVersion": 3, "packages": {"": PACKAGE}}


class Machine:
    """A PATH that holds what a test puts there, and a repository that pins no package of npm."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.bin = folder / "bin"
        self.apt_log = folder / "apt.log"
        self.uv_log = folder / "uv.log"
        self.bin.mkdir()
        self.put_uv()
        self.pin(PACKAGE)

    def pin(self, package: object, lock: object = LOCK) -> None:
        pins = self.root / "scripts" / "npm"
        pins.mkdir(parents=True, exist_ok=True)
        (pins / "package.json").write_text(json.dumps(package))
        (pins / "package-lock.json").write_text(json.dumps(lock))

    def put(self, name: str, program: str = "") -> Path:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
        return path

    def put_apt(self, *, brings_chromium: bool) -> None:
        brought = f'case $2 in install) /bin/ln -s /bin/sh "{self.bin}/chromium" ;; esac' if brings_chromium else ""
        self.put("apt-get", f'echo "$DEBIAN_FRONTEND $*" >>"{self.apt_log}"\n{brought}')

    def put_uv(self, status: int = 0) -> None:
        self.put("uv", f'echo "$*" >>"{self.uv_log}"\nexit {status}')

    def put_npm_program(self, name: str, program: str) -> None:
        path = self.root / "build" / "npm" / "node_modules" / name
        path.parent.mkdir(parents=True)
        path.write_text(program)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.setenv("UV", str(made.bin / "uv"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return made


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_a_browser_that_is_there_is_taken_and_nothing_is_installed(machine: Machine, name: str) -> None:
    machine.put_apt(brings_chromium=True)
    path = machine.put(name)

    install_browser()

    assert browser() == str(path)
    assert not machine.apt_log.exists()


def test_root_installs_chromium_by_apt_without_being_asked_anything(machine: Machine) -> None:
    machine.put_apt(brings_chromium=True)

    install_browser()

    assert browser() == str(machine.bin / "chromium")
    assert machine.apt_log.read_text().splitlines() == [
        "noninteractive -q update",
        "noninteractive -q install --yes --no-install-recommends chromium fonts-liberation",
    ]


def test_who_is_not_root_is_told_what_to_run(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.put_apt(brings_chromium=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(NotInstalledError, match="run `apt-get install chromium fonts-liberation`"):
        install_browser()

    assert not machine.apt_log.exists()


def test_where_apt_brings_no_browser_it_is_said_and_left_to_the_tests_to_fail(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.put_apt(brings_chromium=False)

    assert main([], machine.root) == 0
    assert "NOT INSTALLED: no browser" in capsys.readouterr().out


def test_where_there_is_neither_a_browser_nor_apt_it_is_an_error(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], machine.root) == 1
    assert "there is no apt to install it: install Chromium yourself" in capsys.readouterr().out


def test_where_everything_is_there_nothing_is_said(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine.put("chromium")
    assert main([], machine.root) == 0
    capfd.readouterr()

    assert main([], machine.root) == 0
    assert capfd.readouterr() == ("", "")


def test_packages_of_npm_are_installed_anew_when_they_are_pinned_otherwise(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    install_npm_packages(machine.root)
    renamed = {**PACKAGE, "name": "other"}
    machine.pin(renamed, {**LOCK, **renamed, "packages": {"": renamed}})
    capfd.readouterr()

    install_npm_packages(machine.root)

    assert "Installing the packages of npm" in capfd.readouterr().out
    assert json.loads((machine.root / "build" / "npm" / "package.json").read_text())["name"] == "other"


def test_packages_of_npm_that_cannot_be_installed_are_said_and_tried_again(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    machine.put("chromium")
    machine.pin({**PACKAGE, "dependencies": {"which-the-lock-has-not": "1.0.0"}})

    for _ in range(2):
        assert main([], machine.root) == 0
        out = capfd.readouterr().out
        assert "Installing the packages of npm" in out
        assert "NOT INSTALLED: the packages of npm that scripts/npm pins: npm ended with 1" in out


def test_litellm_is_installed_once_into_an_environment_of_its_own(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        install_litellm(machine.root)

    folder = machine.root / "build" / "litellm"
    assert machine.uv_log.read_text().splitlines() == [
        f"--quiet venv --no-project {folder}",
        f"--quiet pip install --python {folder} {LITELLM}",
    ]
    assert capsys.readouterr().out == "Installing LiteLLM's proxy into build/litellm\n"


def test_litellm_that_cannot_be_installed_is_said_and_tried_again(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.put("chromium")
    machine.put_uv(status=2)

    for _ in range(2):
        assert main([], machine.root) == 0
        assert f"NOT INSTALLED: {LITELLM}: uv ended with 2" in capsys.readouterr().out


def test_a_program_of_npm_reads_what_it_is_given_and_returns_what_it_prints(machine: Machine) -> None:
    program = """
        const text = require("fs").readFileSync(0, "utf-8");
        process.stdout.write(`${process.argv.slice(2)}: ${text}`);
    """
    machine.put_npm_program("loud/cli.js", program)

    assert run_npm_package(machine.root, "loud/cli.js", ["--so", Path("that")], "grün\n") == "--so,that: grün\n"


def test_a_program_of_npm_that_fails_says_why(machine: Machine) -> None:
    machine.put_npm_program("sad/cli.js", 'console.log("no"); process.exit(3)')

    with pytest.raises(CalledProcessError) as failed:
        run_npm_package(machine.root, "sad/cli.js", [])

    assert (failed.value.returncode, failed.value.stdout) == (3, "no\n")


def test_a_program_of_npm_that_is_not_installed_is_named(machine: Machine) -> None:
    with pytest.raises(NotInstalledError, match=r"loud/cli\.js of npm: run `python -m scripts\.programs`"):
        run_npm_package(machine.root, "loud/cli.js", [])


def test_tests_that_need_a_program_of_the_system_are_where_they_are_looked_for() -> None:
    marked = [path for path in files("*.py") if re.search(r"mark\.system\b", path.read_text(encoding="utf-8"))]
    assert marked
    looked_in = re.findall(r"^SYSTEM := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    assert {path for path in marked if not any(path.is_relative_to(ROOT / place) for place in looked_in)} == set()


def test_the_pins_are_exact_and_the_lock_has_them() -> None:
    package = json.loads((ROOT / "scripts" / "npm" / "package.json").read_text())
    lock = json.loads((ROOT / "scripts" / "npm" / "package-lock.json").read_text())

    assert package["devDependencies"] == lock["packages"][""]["devDependencies"]
    assert all(version.replace(".", "").isdigit() for version in package["devDependencies"].values())
    assert all("integrity" in one for name, one in lock["packages"].items() if name)


def test_the_command_ends_with_what_main_returns(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run([sys.executable, "-m", "scripts.programs", "--no-such"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 2
