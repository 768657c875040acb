"""What somebody who runs a contract with pytest sees."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

README = Path(__file__).parent.parent / "README.md"

COMMANDS = """
from contextlib import asynccontextmanager
from datetime import timedelta
import asyncio
import pytest
from reflexr.contracts import CommandResultsContract, Feature, StorageContract, WakeupsContract
from reflexr.workspace import InMemoryCommandResults, InMemoryStorage, InProcessWakeups
"""


# Ours, and none that an author need not have.
ARGUMENTS = [
    *("-c", "/dev/null", "--rootdir", ".", "-W", "error"),
    *(word for name in ("asyncio", "randomly", "timeout", "cacheprovider") for word in ("-p", f"no:{name}")),
]


def run(pytester: pytest.Pytester, code: str, *arguments: str) -> pytest.RunResult:
    """Runs a module of tests in this process."""
    pytester.makepyfile(test_mine=code)
    return pytester.runpytest_inprocess(*ARGUMENTS, *arguments)


def run_alone(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a module of tests as its author would."""
    (folder / "test_mine.py").write_text(code)
    command = [sys.executable, "-m", "pytest", *ARGUMENTS, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def ten_lines() -> str:
    code, _ = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return code


def test_the_ten_lines_of_the_readme_run_the_contract(tmp_path: Path) -> None:
    code = ten_lines()
    done = run_alone(tmp_path, code)
    assert len([line for line in code.splitlines() if line]) <= 10
    assert done.returncode == 0, done.stdout
    assert re.search(r" 2\d\d passed, 11 deselected", done.stdout)


def test_what_is_not_declared_is_named(pytester: pytest.Pytester) -> None:
    done = run(pytester, ten_lines(), "-k", "lease or subscriber")
    assert "TestMyStorage does not declare shared_data: 10 guarantees were not asked of it" in done.stdout.str()


def test_what_is_not_declared_is_named_by_parallel_runs(tmp_path: Path) -> None:
    done = run_alone(tmp_path, ten_lines(), "-n", "1", "-k", "lease or subscriber")
    assert "TestMyStorage does not declare shared_data: 10 guarantees were not asked of it" in done.stdout


WAKES_NOBODY = """
class WakesNobody(InProcessWakeups):
    def announce(self, workspaces):
        pass

class TestMine(WakeupsContract):
    @asynccontextmanager
    async def wakeups(self):
        yield WakesNobody()
"""


def test_a_broken_promise_is_told_with_the_values_that_broke_it(pytester: pytest.Pytester) -> None:
    code = COMMANDS + WAKES_NOBODY
    done = run(
        pytester, code + "    soon = timedelta(milliseconds=10)\n", "-k", "test_a_listener_hears_of_its_workspace"
    )
    assert done.ret == 1
    assert "The guarantee" in done.stdout.str()
    assert "A listener of one workspace is woken when it is announced, and told which it is." in done.stdout.str()
    assert re.search(r"assert frozenset\(\) == \{WorkspaceRef", done.stdout.str())
    assert "asyncio/runners.py" not in done.stdout.str()


def test_what_waits_for_ever_fails(pytester: pytest.Pytester) -> None:
    code = COMMANDS + WAKES_NOBODY + "    patience = timedelta(milliseconds=50)\n"
    done = run(pytester, code, "-k", "test_who_waits_is_woken")
    assert "AssertionError: something was still waiting after 0:00:00.050000" in done.stdout.str()


def test_a_timeout_of_the_adapter_is_its_own(pytester: pytest.Pytester) -> None:
    code = """
class TestMine(WakeupsContract):
    @asynccontextmanager
    async def wakeups(self):
        raise TimeoutError("the server does not answer")
        yield
"""
    done = run(pytester, COMMANDS + code, "-k", "test_who_waits_is_woken")
    assert "TimeoutError: the server does not answer" in done.stdout.str()
    assert "still waiting" not in done.stdout.str()


@pytest.mark.parametrize("where", ["in the factory", "by a mark"])
def test_a_guarantee_that_is_skipped_has_failed(pytester: pytest.Pytester, where: str) -> None:
    mark = "@pytest.mark." + "skip('no server')\n" if where == "by a mark" else ""
    factory = "pytest." + "skip('no server')" if where == "in the factory" else "pass"
    code = f"""
{mark}class TestMine(WakeupsContract):
    @asynccontextmanager
    async def wakeups(self):
        {factory}
        yield InProcessWakeups()
"""
    done = run(pytester, COMMANDS + code)
    assert done.ret == 1
    assert re.search("11 (failed|errors)", done.stdout.str())
    assert "passed" not in done.stdout.str()
    assert "its guarantees cannot be skipped (" in done.stdout.str()
    assert "no server" in done.stdout.str()


def test_a_known_failure_is_one_that_its_author_declares(pytester: pytest.Pytester) -> None:
    code = COMMANDS + WAKES_NOBODY.replace("class TestMine", "@pytest.mark." + "xfail(strict=False)\nclass TestMine")
    done = run(pytester, code + "    soon = timedelta(milliseconds=10)\n")
    assert done.ret == 0
    assert "xfailed" in done.stdout.str()


def test_tests_beside_a_contract_are_skipped_as_ever(pytester: pytest.Pytester) -> None:
    done = run(pytester, COMMANDS + "def test_other():\n    pytest." + "skip('later')\n")
    assert done.ret == 0
    assert "1 skipped" in done.stdout.str()


@pytest.mark.parametrize("contract", ["Storage", "CommandResults", "Wakeups"])
def test_a_contract_without_a_factory_fails(pytester: pytest.Pytester, contract: str) -> None:
    done = run(pytester, f"{COMMANDS}class TestMine({contract}Contract):\n    pass\n", "-k", "wake or result")
    assert done.ret == 1
    assert " passed" not in done.stdout.str()
    assert "NotImplementedError: TestMine has nothing to try: override " in done.stdout.str()


@pytest.mark.parametrize(
    ("contract", "factory", "feature"),
    [
        ("StorageContract", "storage(self, clock):\n        yield InMemoryStorage(clock=clock)", "SHARED_DATA"),
        ("CommandResultsContract", "results(self):\n        yield InMemoryCommandResults()", "SHARED_DATA"),
        ("WakeupsContract", "wakeups(self):\n        yield InProcessWakeups()", "SHARED_WAKEUPS"),
    ],
)
def test_a_feature_with_no_second_adapter_fails(
    pytester: pytest.Pytester, contract: str, factory: str, feature: str
) -> None:
    code = f"""
class TestMine({contract}):
    features = frozenset({{Feature.{feature}}})

    @asynccontextmanager
    async def {factory}
"""
    done = run(pytester, COMMANDS + code, "-k", "another_process or another_storage or of_every_process")
    assert done.ret == 1
    assert f"TestMine declares <Feature.{feature}: '{feature.lower()}'>: override beside() too" in done.stdout.str()


def test_a_run_in_which_nothing_ran_fails(pytester: pytest.Pytester) -> None:
    done = run(pytester, COMMANDS + "class Mine(WakeupsContract):\n    pass\n")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
