"""What holds for every member and every file of the repository."""

import ast
import io
import re
import tokenize
import tomllib
from pathlib import Path

import pytest

from .repository import ROOT, Member, files, members, name, packages

LONGEST_MODULE = 700
VAGUE = {"base", "common", "helper", "helpers", "misc", "util", "utils"}
SUPPRESSION = re.compile(
    r"#\s*(noqa|type:\s*ignore|pyright:|mypy:|pragma:|ruff:|fmt:|isort:|pylint:|nosec)", re.IGNORECASE
)
SKIPS = {"importorskip", "skip", "skipif", "SkipTest", "skipIf", "skipUnless", "xfail", "expectedFailure"}
# In pieces, so that this file may be searched too.
ELSEWHERE = re.compile(
    "|".join(["pypi" + r"\.org", "pythonhosted" + r"\.org", "npmjs" + r"\.(org|com)", "/ro" + "ot/", "/wo" + "rk/"])
)

published = pytest.mark.parametrize("member", [one for one in members() if one.is_published], ids=lambda one: one.name)
every_member = pytest.mark.parametrize("member", members(), ids=lambda one: one.name)
every_module = pytest.mark.parametrize("module", files("*.py"), ids=name)


def suppressions(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT and SUPPRESSION.match(token.string)]


def skips(source: str) -> list[str]:
    """What would keep a test from running, or let it fail."""
    nodes = ast.walk(ast.parse(source))
    return [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute) and node.attr in SKIPS]


def within_one_minor_version(requirement: str) -> bool:
    """Is it `name>=0.N,<0.N+1` or, from 1.0 on, `name>=N.M,<N+1`?"""
    bounds = re.fullmatch(r"[\w.-]+(?:\[[\w,-]+\])?>=(\d+)\.(\d+)(?:\.\d+)?,<(\d+)(?:\.(\d+))?", requirement)
    if bounds is None:
        return False
    major, minor, next_major, next_minor = (int(bound or 0) for bound in bounds.groups())
    return (next_major, next_minor) == ((0, minor + 1) if major == 0 else (major + 1, 0))


@every_member
def test_a_member_pins_the_members_it_needs_by_a_bounded_range(member: Member) -> None:
    names = {one.name for one in members()}
    needed = [one for one in member.project["dependencies"] if re.split(r"[^\w.-]", one)[0] in names]
    assert [one for one in needed if not within_one_minor_version(one)] == []


@pytest.mark.parametrize(
    ("requirement", "bounded"),
    [
        ("reflexr-core>=0.1,<0.2", True),
        ("reflexr-core[extra]>=0.1.3,<0.2", True),
        ("reflexr-core>=1.4,<2", True),
        ("reflexr-core", False),
        ("reflexr-core>=0.1", False),
        ("reflexr-core>=0.1,<0.3", False),
        ("reflexr-core>=0.1,<1", False),
        ("reflexr-core==0.1.0", False),
    ],
)
def test_a_range_is_bounded_when_it_ends_where_compatibility_does(requirement: str, bounded: bool) -> None:
    assert within_one_minor_version(requirement) is bounded


@every_member
def test_a_member_bounds_everything_it_needs(member: Member) -> None:
    assert [requirement for requirement in member.project["dependencies"] if "<" not in requirement] == []


@published
def test_a_published_member_says_what_it_is_what_changed_and_under_which_license(member: Member) -> None:
    assert (member.folder / "README.md").read_text().startswith(f"# {member.name}\n")
    assert re.search(
        rf"^## {re.escape(member.project['version'])}\b", (member.folder / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert (member.folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@published
def test_a_published_member_lives_in_the_namespace_and_does_not_own_it(member: Member) -> None:
    assert member.packages
    assert all(package.startswith("reflexr.") for package in member.packages)
    assert [path.name for path in (member.folder / "src" / "reflexr").iterdir() if path.is_file()] == []


@pytest.mark.parametrize("folder", packages().values(), ids=packages().keys())
def test_a_package_is_typed(folder: Path) -> None:
    assert (folder / "py.typed").exists()


def test_coverage_measures_every_member() -> None:
    run = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]
    assert set(run["source_dirs"]) == {name(member.folder / "src") for member in members()} | {"scripts"}


def test_nothing_that_runs_is_left_out_of_coverage() -> None:
    report = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["report"]
    assert report["fail_under"] == 100
    assert report["exclude_lines"] == [r"^if TYPE_CHECKING:$", r"^\s*@overload$", r"^\s*\.\.\.$"]
    assert {"omit", "exclude_also", "partial_branches"}.isdisjoint(report)


@every_module
def test_a_module_suppresses_no_check(module: Path) -> None:
    assert suppressions(module.read_text()) == []


@pytest.mark.parametrize(
    "comment",
    [
        "# " + "noqa: E501",
        "# " + "type: ignore[x]",
        "#" + "pyright: basic",
        "# " + "pragma: no cover",
        "# " + "fmt: off",
    ],
)
def test_a_suppression_is_noticed(comment: str) -> None:
    assert suppressions(f"x = 1  {comment}\n") == [comment]


@every_module
def test_a_module_skips_no_test_and_expects_no_failure(module: Path) -> None:
    assert skips(module.read_text()) == []


@pytest.mark.parametrize("line", ["pytest.skip('later')", "@pytest.mark.xfail\ndef test_it() -> None: ..."])
def test_a_skip_is_noticed(line: str) -> None:
    assert len(skips(line)) == 1


@every_module
def test_a_module_is_one_noun_and_of_a_size_to_read(module: Path) -> None:
    assert not VAGUE & {module.stem, module.stem.removeprefix("test_"), module.parent.name}
    assert len(module.read_text().splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("folder", packages().values(), ids=packages().keys())
def test_a_package_is_flat(folder: Path) -> None:
    assert [name(path) for path in folder.rglob("*.py") if len(path.relative_to(folder).parts) > 2] == []


def test_no_file_names_a_registry_or_a_place_on_somebodys_machine() -> None:
    texts = [path for path in files() if path.name != "uv.lock" and b"\0" not in path.read_bytes()]
    found = {name(path): ELSEWHERE.findall(path.read_text(encoding="utf-8")) for path in texts}
    assert {path for path, places in found.items() if places} == set()
