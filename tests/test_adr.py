"""The records of decisions have one form, and the index knows them all."""

import re
from pathlib import Path

import pytest

from .repository import ROOT

RECORDS = sorted(path for path in (ROOT / "adr").glob("*.md") if path.name != "README.md")
LONGEST = 150
STATUS = re.compile(r"Proposed|Accepted|Rejected|Superseded by \[\d{4}\]\(\d{4}-[\w-]+\.md\)")
SECTIONS = ["Context", "Decision", "Options", "Consequences"]


def title(text: str) -> tuple[str, str]:
    ((number, words),) = re.findall(r"^# (\d{4}): (.+)$", text.splitlines()[0])
    return number, words


def entry(text: str, label: str) -> str:
    (value,) = re.findall(rf"^- {label}: (.+)$", text, re.MULTILINE)
    return value


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_the_form_of_one(record: Path) -> None:
    text = record.read_text()
    assert title(text)[0] == record.name[:4]
    assert STATUS.fullmatch(entry(text, "Status"))
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", entry(text, "Date"))
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert len(text.splitlines()) <= LONGEST


def test_numbers_follow_one_another() -> None:
    assert [int(record.name[:4]) for record in RECORDS] == list(range(len(RECORDS)))


def test_the_index_says_of_each_record_what_it_says_of_itself() -> None:
    rows = re.findall(
        r"^\| \[(\d{4})\]\((\S+)\) \| (.+) \| (.+) \| (.+) \|$", (ROOT / "adr" / "README.md").read_text(), re.MULTILINE
    )
    texts = [(record.name, record.read_text()) for record in RECORDS]
    assert rows == [
        (title(text)[0], file, title(text)[1], entry(text, "Status"), entry(text, "Date")) for file, text in texts
    ]
