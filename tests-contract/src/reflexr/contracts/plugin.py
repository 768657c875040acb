"""The plugin of pytest: a contract's tests are run or counted, none is skipped, and a failure tells its guarantee."""

from collections.abc import Generator
from inspect import cleandoc
from typing import Any

import pytest

from reflexr.contracts.contract import NEEDS, Contract

_UNDECLARED = pytest.StashKey[dict[str, dict[str, int]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker that each guarantee carries."""
    config.addinivalue_line("markers", f"{NEEDS}(*features): a guarantee of a contract, and the features that it needs")
    config.stash[_UNDECLARED] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the guarantees that need a feature which the adapter does not declare, and counts them."""
    undeclared = config.stash[_UNDECLARED]
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        if missing := _missing(item):
            counts = undeclared.setdefault(item.nodeid.rpartition("::")[0], {})
            counts[missing] = counts.get(missing, 0) + 1
            left_out.append(item)
        else:
            kept.append(item)
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a guarantee that was skipped, and tells the guarantee of one that failed."""
    report = yield
    if item.get_closest_marker(NEEDS) is None:
        return report
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"A contract holds or does not: its guarantees cannot be skipped ({report.longreprtext})."
    if report.failed:
        told: str | None = getattr(getattr(item, "function", None), "__doc__", None)
        report.sections.append(("The guarantee", cleandoc(told or item.name)))
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over what a worker of pytest-xdist left out."""
    output: dict[str, dict[str, dict[str, int]]] = getattr(node, "workeroutput", {})
    node.config.stash[_UNDECLARED].update(output.get(NEEDS, {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands what was left out to the controller of pytest-xdist, if this is a worker of it."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[NEEDS] = session.config.stash[_UNDECLARED]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Names the features that an adapter does not declare, so that nobody takes the rest for the whole."""
    for contract, counts in config.stash[_UNDECLARED].items():
        for feature, count in counts.items():
            terminalreporter.write_line(
                f"{contract} does not declare {feature}: {count} guarantees were not asked of it", yellow=True
            )


def _missing(item: pytest.Item) -> str:
    """The features that a guarantee needs and its adapter does not declare."""
    marker = item.get_closest_marker(NEEDS)
    contract = getattr(item, "cls", None)
    if marker is None or contract is None or not issubclass(contract, Contract):
        return ""
    return " and ".join(feature for feature in marker.args if feature not in contract.features)
