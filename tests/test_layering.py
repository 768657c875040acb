"""What each package may import. The table is the rule: an import that it does not know is a violation."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from re import split

import pytest

from .repository import ROOT, Member, files, members, name, packages

# What can be imported without reaching a clock, a socket, a file, chance or another thread.
PURE = frozenset(
    {
        "__future__",
        "abc",
        "base64",
        "bisect",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "datetime",
        "decimal",
        "difflib",
        "enum",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "inspect",
        "itertools",
        "json",
        "keyword",
        "math",
        "numbers",
        "operator",
        "re",
        "string",
        "sys",
        "textwrap",
        "types",
        "typing",
        "unicodedata",
        "uuid",
        "warnings",
        "weakref",
        "zoneinfo",
    }
)
STANDARD_LIBRARY = sys.stdlib_module_names

OPENTELEMETRY_API = frozenset(
    f"opentelemetry.{module}" for module in ("baggage", "context", "metrics", "propagate", "trace", "util")
)


@dataclass(frozen=True)
class Layer:
    """What a package may import: of the standard library, of ours, and of others, by dotted prefix."""

    standard: frozenset[str]
    ours: frozenset[str]
    others: frozenset[str]


LAYERS = {
    "reflexr.core": Layer(PURE, frozenset(), frozenset({"pydantic", "pydantic_core"})),
    "reflexr.telemetry": Layer(STANDARD_LIBRARY, frozenset({"reflexr.core"}), OPENTELEMETRY_API),
    "reflexr.workspace": Layer(
        STANDARD_LIBRARY,
        frozenset({"reflexr.core", "reflexr.telemetry"}),
        OPENTELEMETRY_API | {"cronsim", "pydantic", "pydantic_core"},
    ),
    "reflexr.sql": Layer(
        STANDARD_LIBRARY,
        frozenset({"reflexr.core", "reflexr.workspace"}),
        frozenset({"alembic", "pydantic", "pydantic_core", "sqlalchemy"}),
    ),
    "reflexr.fastapi": Layer(
        STANDARD_LIBRARY,
        frozenset({"reflexr.core", "reflexr.workspace"}),
        frozenset({"fastapi", "opentelemetry.trace", "pydantic", "pydantic_core", "starlette"}),
    ),
    "reflexr.agent": Layer(
        STANDARD_LIBRARY,
        frozenset({"reflexr.core", "reflexr.telemetry", "reflexr.workspace"}),
        OPENTELEMETRY_API | {"pydantic", "pydantic_core", "pydantic_ai", "pydantic_graph"},
    ),
    "reflexr.litellm": Layer(
        STANDARD_LIBRARY,
        frozenset({"reflexr.agent", "reflexr.core", "reflexr.telemetry", "reflexr.workspace"}),
        OPENTELEMETRY_API | {"pydantic", "pydantic_core", "pydantic_ai", "pydantic_graph"},
    ),
    "reflexr.client": Layer(
        STANDARD_LIBRARY,
        frozenset({"reflexr.core"}),
        frozenset({"httpx", "pydantic", "pydantic_core", "websockets"}),
    ),
    "reflexr.contracts": Layer(
        STANDARD_LIBRARY,
        frozenset({"reflexr.core", "reflexr.workspace"}),
        frozenset({"hypothesis", "pydantic", "pytest"}),
    ),
    "oncall": Layer(
        STANDARD_LIBRARY,
        frozenset({"reflexr.core", "reflexr.sql", "reflexr.telemetry", "reflexr.workspace"}),
        frozenset({"opentelemetry", "pydantic", "rich", "sqlalchemy"}),
    ),
}

# Reads of a clock, or of chance, that a pure import still offers.
IMPURE = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "getnode", "open", "input", "print"})

# A package whose release another pins exactly, so declaring that one declares both.
DECLARED_BY = {"pydantic-core": "pydantic"}


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """The line and the full dotted name of everything a module of `package` imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            origin = [*parents[: len(parents) + 1 - node.level]] if node.level else []
            module = ".".join([*origin, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def is_within(target: str, prefixes: frozenset[str]) -> bool:
    return any(target == prefix or target.startswith(f"{prefix}.") for prefix in prefixes)


def violations(source: str, package: str, own: frozenset[str], layer: Layer, public: dict[str, list[str]]) -> list[str]:
    """What a module imports that its layer does not allow.

    `own` are the packages whose modules it may reach into, and `public` the names of each package's `__all__`.
    """
    found: list[str] = []
    for line, target in imported(ast.parse(source), package):
        top = target.split(".")[0]
        if is_within(target, own):
            continue
        if top in STANDARD_LIBRARY:
            if top not in layer.standard:
                found.append(f"line {line}: {target} is of the standard library, but not pure")
        elif from_ours := [one for one in layer.ours if is_within(target, frozenset({one}))]:
            package_name = from_ours[0]
            if target.removeprefix(package_name).removeprefix(".") not in ["", *public[package_name]]:
                found.append(f"line {line}: {target} is no public name of {package_name}: import from the package")
        elif not is_within(target, layer.others):
            found.append(f"line {line}: {target} is not in the table of what {package} may import")
    return found


def public_names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for package, folder in packages().items():
        found[package] = []
        for statement in ast.parse((folder / "__init__.py").read_text()).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
                found[package] = ast.literal_eval(statement.value)
    return found


def test_the_table_knows_every_package() -> None:
    assert LAYERS.keys() == packages().keys()


@pytest.mark.parametrize("package", sorted(packages()))
def test_a_package_imports_what_its_layer_may(package: str) -> None:
    public = public_names()
    found = [
        f"{name(module)}, {violation}"
        for module in sorted(packages()[package].rglob("*.py"))
        for violation in violations(module.read_text(), package, frozenset({package}), LAYERS[package], public)
    ]
    assert found == []


def outsiders() -> list[Path]:
    """What is in no package: it may import whatever is installed, but of ours only what is public."""
    return [path for path in files("*.py") if "src" not in path.relative_to(ROOT).parts]


@pytest.mark.parametrize("module", outsiders(), ids=name)
def test_what_is_outside_a_package_imports_public_names_only(module: Path) -> None:
    own = frozenset(package for member in members() if member.folder in module.parents for package in member.packages)
    ours = frozenset(packages())
    public = public_names()
    found = [
        violation
        for violation in violations(module.read_text(), "tests", own, Layer(STANDARD_LIBRARY, ours, ours), public)
        if "is no public name" in violation
    ]
    assert found == []


@pytest.mark.parametrize("member", members(), ids=lambda member: member.name)
def test_a_member_declares_every_distribution_it_imports(member: Member) -> None:
    declared = {split(r"[^\w.-]", requirement)[0] for requirement in member.project["dependencies"]}
    distributions = packages_distributions()
    undeclared: set[str] = set()
    for package, folder in member.packages.items():
        for module in folder.rglob("*.py"):
            for _, target in imported(ast.parse(module.read_text()), package):
                top = target.split(".")[0]
                if top in STANDARD_LIBRARY or is_within(target, frozenset(member.packages)):
                    continue
                ours = [m.name for m in members() if is_within(target, frozenset(m.packages))]
                providers = ours or [one.replace("_", "-").lower() for one in distributions.get(top, [top])]
                if not declared & {DECLARED_BY.get(provider, provider) for provider in providers}:
                    undeclared.add(target)
    assert undeclared == set()


@pytest.mark.parametrize("module", sorted(packages()["reflexr.core"].rglob("*.py")), ids=name)
def test_core_reads_no_clock_no_chance_and_no_file(module: Path) -> None:
    called = [ast.unparse(node.func) for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
    assert [function for function in called if function.split(".")[-1] in IMPURE] == []


@pytest.mark.parametrize(
    ("source", "package", "complaint"),
    [
        ("import asyncio", "reflexr.core", "asyncio is of the standard library, but not pure"),
        ("from time import monotonic", "reflexr.core", "time.monotonic is of the standard library, but not pure"),
        ("def later():\n    import random", "reflexr.core", "line 2: random is of the standard library"),
        (
            "from reflexr.workspace import Workspaces",
            "reflexr.core",
            "reflexr.workspace.Workspaces is not in the table",
        ),
        ("from ..telemetry import spans", "reflexr.core", "reflexr.telemetry.spans is not in the table"),
        ("import sqlalchemy", "reflexr.workspace", "sqlalchemy is not in the table"),
        ("from opentelemetry.sdk.trace import Tracer", "reflexr.telemetry", "opentelemetry.sdk.trace.Tracer is not in"),
        ("from reflexr.core.rules import Rule", "reflexr.workspace", "reflexr.core.rules.Rule is no public name"),
        ("import reflexr.core.rules", "oncall", "reflexr.core.rules is no public name"),
    ],
)
def test_a_violation_is_noticed(source: str, package: str, complaint: str) -> None:
    public = {ours: ["Rule"] for ours in LAYERS}
    (found,) = violations(source, package, frozenset({package}), LAYERS[package], public)
    assert complaint in found


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("from datetime import timedelta\nfrom pydantic import BaseModel", "reflexr.core"),
        ("from .rules import Rule\nfrom . import rules", "reflexr.core"),
        ("from opentelemetry import trace\nfrom opentelemetry.metrics import Meter", "reflexr.telemetry"),
        ("from reflexr.core import Rule\nimport reflexr.core\nimport asyncio", "reflexr.workspace"),
    ],
)
def test_what_a_layer_may_import_is_no_violation(source: str, package: str) -> None:
    public = {ours: ["Rule"] for ours in LAYERS}
    assert violations(source, package, frozenset({package}), LAYERS[package], public) == []
