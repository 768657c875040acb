import json
import os
import sys
from pathlib import Path
from subprocess import run
from typing import Any, Final

import pytest

from scripts.typescript import SCHEMA, TYPES, declarable, main

from .repository import ROOT

SCHEMA_OF_ONE: Final[dict[str, Any]] = {"$defs": {"Hello": {"type": "object", "title": "Hello", "properties": {}}}}

# As the generator does, but what it declares is the schema.
GENERATOR = """
    const banner = process.argv.find((one) => one.startsWith("--bannerComment=")).split("=")[1];
    console.log(banner + "\\n" + require("fs").readFileSync(0, "utf-8"));
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pins = tmp_path / "scripts" / "npm"
    pins.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        (pins / name).write_text("{}")
    generator = tmp_path / "build" / "npm" / "node_modules" / "json-schema-to-typescript" / "dist" / "src" / "cli.js"
    generator.parent.mkdir(parents=True)
    generator.write_text(GENERATOR)
    (tmp_path / "build" / "npm" / "installed.json").write_text("{}{}")
    (tmp_path / SCHEMA).parent.mkdir(parents=True)
    (tmp_path / SCHEMA).write_text(json.dumps(SCHEMA_OF_ONE))
    return tmp_path


def test_the_types_are_written_beside_the_schema_and_say_where_they_are_from(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], root) == 0

    assert capsys.readouterr().out == f"wrote {TYPES}\n"
    text = (root / TYPES).read_text()
    assert "Generated from frames.schema.json by `python -m scripts.typescript`." in text
    assert text.endswith(json.dumps(SCHEMA_OF_ONE) + "\n")


def test_a_check_of_what_is_current_passes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([], root)
    capsys.readouterr()

    assert main(["--check"], root) == 0
    assert capsys.readouterr().out == "The TypeScript of the frames is current.\n"


def test_a_check_of_what_is_stale_fails_with_the_difference_and_writes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([], root)
    (root / SCHEMA).write_text(json.dumps(SCHEMA_OF_ONE).replace("Hello", "Goodbye"))
    stale = (root / TYPES).read_text()
    capsys.readouterr()

    assert main(["--check"], root) == 1
    out = capsys.readouterr().out
    assert '-{"$defs": {"Hello"' in out
    assert '+{"$defs": {"Goodbye"' in out
    assert "run `python -m scripts.typescript`" in out
    assert (root / TYPES).read_text() == stale


def test_a_reference_keeps_its_type_whatever_is_said_beside_it() -> None:
    field = {"$ref": "#/$defs/Place", "description": "Where.", "default": 0}
    declared = declarable({"$defs": {"Hello": {"properties": {"at": field, "to": {"$ref": "#/$defs/Place"}}}}})
    assert declared["$defs"]["Hello"]["properties"] == {
        "at": {"allOf": [{"$ref": "#/$defs/Place"}], "description": "Where."},
        "to": {"allOf": [{"$ref": "#/$defs/Place"}]},
    }


def test_conditions_that_no_type_can_say_are_left_out() -> None:
    where: dict[str, Any] = {"title": "Where", "type": "object", "allOf": [{"if": {}, "then": {}}], "required": ["op"]}
    assert declarable({"$defs": {"Where": where}}) == {
        "$defs": {"Where": {"title": "Where", "type": "object", "required": ["op"]}}
    }


def test_what_is_no_model_is_any_object() -> None:
    model = {"title": "Hello", "type": "object"}
    closed = {"type": "object", "additionalProperties": False}
    declared = declarable({"$defs": {"Hello": model, "Event": {"type": "object"}, "Closed": closed}})
    assert declared["$defs"] == {
        "Hello": model,
        "Event": {"type": "object", "additionalProperties": True},
        "Closed": closed,
    }


def test_the_command_ends_with_what_main_returns(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run([sys.executable, "-m", "scripts.typescript", "--no-such"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 2
