"""What each package offers: its `__all__`, reconciled with its imports, its docstrings and its reference page."""

import ast
import importlib
import inspect
import re

import pytest

from scripts.generate import public_names

from .repository import ROOT, packages

LIBRARY = {package: folder for package, folder in packages().items() if package.startswith("reflexr.")}
every_package = pytest.mark.parametrize("package", sorted(LIBRARY))


def listed(package: str) -> list[str]:
    source = (LIBRARY[package] / "__init__.py").read_text()
    return [name for names in public_names(source).values() for name in names]


@every_package
def test_all_names_each_public_name_once(package: str) -> None:
    names = listed(package)
    assert sorted(names) == sorted(set(names))
    assert names == list(getattr(importlib.import_module(package), "__all__", []))


@every_package
def test_all_lists_exactly_what_the_package_imports(package: str) -> None:
    tree = ast.parse((LIBRARY[package] / "__init__.py").read_text())
    imports = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert {alias.asname or alias.name for alias in imports} == set(listed(package))


@every_package
def test_every_public_class_and_function_says_what_it_is(package: str) -> None:
    module = importlib.import_module(package)
    values = {name: getattr(module, name) for name in listed(package)}
    own = {name: value for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)}
    assert [name for name, value in own.items() if not vars(value).get("__doc__", value.__doc__)] == []


@every_package
def test_the_reference_page_has_each_public_name_in_the_order_of_all(package: str) -> None:
    page = (ROOT / "docs" / "reference" / f"{package.removeprefix('reflexr.')}.md").read_text()
    documented = re.findall(rf"^::: {re.escape(package)}\.(\w+)$", page, re.MULTILINE)
    assert documented == listed(package)
