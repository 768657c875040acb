"""Writes the TypeScript of the frames, `frames.d.ts`, from their JSON Schema, or checks that it is current.

`python -m scripts.typescript` writes, and with `--check` it writes nothing and fails on a difference. It needs what
`python -m scripts.programs` installs, so it is no part of `scripts.generate`.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from scripts.programs import install_npm_packages, run_npm_package

ROOT = Path(__file__).resolve().parent.parent
TYPES = Path("packages", "reflexr-core", "schemas", "frames.d.ts")
SCHEMA = TYPES.with_name("frames.schema.json")

_GENERATOR = "json-schema-to-typescript/dist/src/cli.js"
_BANNER = """\
/**
 * The frames of `reflexr.v1`: a client sends each `ClientFrame`, a server each `ServerFrame`.
 *
 * Generated from frames.schema.json by `python -m scripts.typescript`.
 */"""


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.typescript", description="Write the frames' TypeScript.")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail on a difference")
    check: bool = parser.parse_args(arguments).check
    path = root / TYPES
    install_npm_packages(root)
    text = frames_types(root)
    current = path.read_text(encoding="utf-8") if path.exists() else ""
    if text == current:
        print("The TypeScript of the frames is current.")
        return 0
    if check:
        is_now, would_be = (one.splitlines(keepends=True) for one in (current, text))
        sys.stdout.writelines(difflib.unified_diff(is_now, would_be, str(TYPES), str(TYPES)))
        print("The TypeScript of the frames is not current: run `python -m scripts.typescript`.")
        return 1
    path.write_text(text, encoding="utf-8")
    print(f"wrote {TYPES}")
    return 0


def frames_types(root: Path) -> str:
    """The declarations of the frames, by the schema that is in the repository."""
    schema = json.loads((root / SCHEMA).read_text(encoding="utf-8"))
    options = ["--no-additionalProperties", "--style.printWidth=120", f"--bannerComment={_BANNER}"]
    return run_npm_package(root, _GENERATOR, options, json.dumps(declarable(schema)))


def declarable(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that says what TypeScript can, so that each of its definitions becomes one type of the same name."""
    prepared = cast("dict[str, Any]", _declarable(schema))
    for definition in prepared["$defs"].values():
        # The generator closes what is not said to be open. A model has a title; what has none is any object.
        if definition.get("type") == "object" and "title" not in definition:
            definition.setdefault("additionalProperties", True)
    return prepared


def _declarable(part: Any) -> Any:
    if isinstance(part, list):
        return [_declarable(one) for one in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    members = cast("dict[str, Any]", part)
    if "$ref" in members:
        # What is said beside a reference is of the field, and the generator would take it for a type of its own.
        said = {"description": members["description"]} if "description" in members else {}
        return {"allOf": [{"$ref": members["$ref"]}], **said}
    # The schema says conditions by `allOf`, for which TypeScript has no words.
    return {name: _declarable(member) for name, member in members.items() if name != "allOf"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
