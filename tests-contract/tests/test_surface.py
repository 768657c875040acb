"""The application itself keeps the contract of surfaces, and what else is seen of that contract."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar, override

import pytest

from reflexr.contracts import Connect, Feature, Surface, SurfaceContract
from reflexr.core import Actor
from reflexr.workspace import Workspaces

from .in_process_surface import InProcessSurface
from .test_plugin import README, run_alone


class TestInProcess(SurfaceContract):
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.READS, Feature.TENANT_READS, Feature.STREAM})

    @override
    @asynccontextmanager
    async def surface(self, application: Workspaces) -> AsyncGenerator[Connect]:
        yield partial(InProcessSurface, application)


class HasNothing(SurfaceContract):
    """The contract of a surface that has not one method."""

    @override
    @asynccontextmanager
    async def surface(self, application: Workspaces) -> AsyncGenerator[Connect]:
        yield Nothing


class Nothing(Surface):
    """A surface that was only begun."""

    def __init__(self, tenant_id: str, workspace_id: str, actor: Actor) -> None:
        """Takes what it is told."""


class NoFactory(SurfaceContract):
    """The contract of somebody who forgot the factory."""


def test_the_lines_of_the_readme_run_the_contract_of_a_surface(tmp_path: Path) -> None:
    _, code = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    done = run_alone(tmp_path, code)
    assert done.returncode == 0, done.stdout
    assert re.search(r" 5\d passed, 5\d deselected", done.stdout)
    for feature in ("reads", "tenant_reads", "stream"):
        assert f"TestMySurface does not declare {feature}: " in done.stdout


def test_what_a_surface_does_not_have_fails() -> None:
    with pytest.raises(NotImplementedError, match=r"Nothing carries out nothing: override execute\(\)"):
        HasNothing().test_publish_appends_an_event()
    with pytest.raises(NotImplementedError, match=r"Nothing reads nothing: override read\(\)"):
        HasNothing().test_a_workspace_that_is_new_can_be_read()
    with pytest.raises(NotImplementedError, match=r"Nothing streams nothing: override stream\(\)"):
        HasNothing().test_a_stream_is_asked_about()


def test_the_contract_of_a_surface_without_its_factory_fails() -> None:
    with pytest.raises(NotImplementedError, match=r"NoFactory has nothing to try: override surface\(\)"):
        NoFactory().test_publish_appends_an_event()
