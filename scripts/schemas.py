"""The JSON Schemas that `reflexr-core` publishes beside its source, from its models."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from reflexr.core import frames_schema, rule_schema


def json_schemas(root: Path) -> Mapping[Path, str]:
    """The files of `packages/reflexr-core/schemas`, by path."""
    folder = root / "packages" / "reflexr-core" / "schemas"
    return {
        folder / "rule.schema.json": _text(rule_schema()),
        folder / "frames.schema.json": _text(frames_schema()),
    }


def _text(schema: Mapping[str, JsonValue]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
