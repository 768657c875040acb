"""How the timeline and the summary look: with colour and folded on a terminal, as plain lines everywhere else.

What there is to tell is `oncall.timeline`'s and `oncall.summary`'s.
"""

import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from datetime import date, datetime
from typing import Final, TextIO, override

from rich.console import Console
from rich.progress import (
    BarColumn,
    FileSizeColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from oncall.feed import Tally
from oncall.phrases import count, names, places, shown, span
from oncall.rules import BRUTE_FORCE, GAVE_UP, GUESSED
from oncall.sources import Source
from oncall.sshd import visible
from oncall.summary import Summary
from oncall.timeline import Acceptance, Burst, Decision, Entry
from reflexr.core import Absence, Rule, Run
from reflexr.core import Sequence as SequencePattern

# Each rule's sign and style.
_SIGNS: Final = {
    BRUTE_FORCE.name: ("▲", "bold yellow"),
    GUESSED.name: ("!", "bold red"),
    GAVE_UP.name: ("○", "green"),
}
_OTHER_SIGN: Final = ("▸", "bold")

_WHO: Final = 17
"""The width of the column that says who: an address, or a rule."""

MOST_ADDRESSES: Final = 5
"""How many addresses the summary lists."""


class Screen(Console):
    """A console on a stream: plain where the stream is no terminal, or colours are not wanted.

    What is written to a closed pipe raises `BrokenPipeError`, as with any other file.
    """

    def __init__(self, stream: TextIO, *, plain: bool = False) -> None:
        terminal = stream.isatty() and not plain
        super().__init__(
            file=stream,
            force_terminal=terminal,
            color_system="auto" if terminal and not os.environ.get("NO_COLOR") else None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    @override
    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError

    def row(self, head: Text, body: Text) -> None:
        """Prints a row; on a terminal, a body that is too long goes on below its beginning."""
        if not self.is_terminal:
            self.print(head + body, soft_wrap=True)
            return
        for part in body.wrap(self, max(self.width - len(head), 20)):
            part.rstrip()
            self.print(head + part, soft_wrap=True)
            head = Text(" " * len(head))


class Report:
    """Tells the story on one stream, and what is not part of it, such as its speed, on another."""

    def __init__(self, out: Screen, notes: Screen, *, quiet: bool = False) -> None:
        """Begins a report.

        Args:
            out: Where the story goes.
            notes: Where the rest goes, if `out` is no terminal.
            quiet: Whether to tell the end alone.
        """
        self._quiet = quiet
        self._out = out
        # On a terminal both go through one console, which keeps the bar below what scrolls by.
        self._notes = out if out.is_terminal else notes
        self._day: date | None = None

    @contextmanager
    def progress(self, source: Source) -> Generator[Callable[[], None]]:
        """Shows how far the log was read while the block runs; the function it gives says that it was read on."""
        known = source.size is not None
        columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) if known else (FileSizeColumn(),)
        bar = Progress(
            SpinnerColumn(),
            TextColumn("reading"),
            *columns,
            console=self._notes,
            transient=True,
            disable=not self._notes.is_terminal,
        )
        with bar:
            task = bar.add_task("", total=source.size)
            yield lambda: bar.update(task, completed=source.position)

    def begin(self, name: str, rules: Sequence[Rule]) -> None:
        """Says what is read, and what is watched for."""
        if self._quiet:
            return
        self._out.row(Text("reading ", "dim"), Text(visible(name), "bold"))
        for rule in rules:
            sign, style = _sign(rule)
            head = Text.assemble(" " * 9, (sign, style), " ", (_local(rule.name).ljust(_WHO), style), " ")
            self._out.row(head, Text(rule.description or "", "dim"))

    def resume(self, after: datetime, failures: int, acceptances: int) -> None:
        """Says what the workspace's log held already, and when it ended."""
        if not self._quiet:
            held = f"{count(failures, 'failure')} and {count(acceptances, 'acceptance')}"
            verb = "was" if failures + acceptances == 1 else "were"
            self._out.row(
                Text("continues after ", "dim"),
                Text.assemble((_moment(after), "bold"), (f": {held} {verb} here already", "dim")),
            )

    def retell(self) -> None:
        """Says that nothing came, and that what is told now is what there was."""
        if not self._quiet:
            self._out.row(Text(), Text("nothing new since the last time; this is what the log holds", "dim"))

    def tell(self, entry: Entry) -> None:
        """Prints an entry of the timeline."""
        if self._quiet:
            return
        match entry:
            case Burst():
                self._at(entry.first, "·", entry.address, "", _burst(entry))
            case Acceptance(time, login):
                text = Text.assemble("logged in as ", (shown(login.user), "bold"), f" by {visible(login.method)}")
                self._at(time, "→", login.address, "cyan", text)
            case _:
                sign, style = _sign(entry.rule)
                self._at(entry.run.fired_at, sign, _local(entry.rule.name), style, _decision(entry))
                self._out.row(*_outcome(entry.rule, entry.run))

    def end(self, tally: Tally, summary: Summary, rules: Sequence[Rule], *, new: int | None = None) -> None:
        """Prints the summary.

        Args:
            tally: What became of the lines.
            summary: What the workspace's log holds.
            rules: The rules to list.
            new: How many of the logins the workspace's log did not hold before, if it held anything.
        """
        for row in _summary(tally, summary, rules, new):
            self._out.row(Text(), row)

    def note(self, text: str) -> None:
        """Says something that is not part of the story."""
        self._notes.row(Text(), Text(text, "dim"))

    def _at(self, time: datetime, sign: str, who: str, style: str, text: Text) -> None:
        if time.date() != self._day:
            self._day = time.date()
            self._out.row(Text(), Text())
            self._out.row(Text(), Text(f"{time:%b} {time.day}", "bold"))
        head = Text.assemble((f"{time:%H:%M:%S}", "dim"), " ", (f"{sign} {who.ljust(_WHO)}", style), " ")
        self._out.row(head, text)


def _sign(rule: Rule) -> tuple[str, str]:
    return _SIGNS.get(rule.name, _OTHER_SIGN)


def _local(rule: str) -> str:
    return rule.partition(":")[2]


def _burst(burst: Burst) -> Text:
    text = Text(count(burst.failures, "failure"))
    if burst.last > burst.first:
        text.append(f" in {span(burst.last - burst.first)}")
    existing = [user for user, exists in burst.users.items() if exists]
    unknown = [user for user, exists in burst.users.items() if not exists]
    if existing:
        text.append(f" as {names(existing)}")
    if unknown:
        text.append(f" · invalid {'user' if len(unknown) == 1 else 'users'} {names(unknown)}", "dim")
    return text


def _decision(decision: Decision) -> Text:
    matched = decision.matched
    match decision.rule.when.pattern:
        case Absence():
            told = f"no failure since {matched[-1].ts:%H:%M:%S}"
        case SequencePattern():
            told = ", then ".join(f"{one.event_type.rpartition('.')[2]} {one.ts:%H:%M:%S}" for one in matched)
        case _:
            told = f"{count(len(matched), 'failure')} in {span(matched[-1].ts - matched[0].ts)}"
    return Text.assemble((decision.address, "bold"), f" {told} ", (places([one.seq for one in matched]), "dim"))


def _outcome(rule: Rule, run: Run) -> tuple[Text, Text]:
    """Returns what ran, and what came of it."""
    head = Text.assemble(" " * 9, ("└ ", "dim"), rule.then.action.ljust(_WHO), " ")
    match run.output:
        case {"said": str(said)} if run.status == "succeeded":
            return head, Text.assemble(("✓ ", "green"), visible(said))
        case output if run.status == "succeeded":
            return head, Text.assemble(("✓ ", "green"), visible(json.dumps(output)))
        case _:
            error = f": {visible(run.error)}" if run.error else ""
            return head, Text(f"✗ {run.status} at attempt {run.attempt}{error}", "red")


def _summary(tally: Tally, summary: Summary, rules: Sequence[Rule], new: int | None) -> Iterator[Text]:
    yield Text()
    yield Text("summary", "bold")
    yield from _table(_facts(tally, summary, new))
    yield Text()
    yield from _table(
        [
            ("rule", "fired", "runs"),
            *((rule.name, f"{summary.fired[rule.name]:,}", _statuses(summary, rule)) for rule in rules),
        ],
        right={1},
    )
    if busiest := summary.busiest(MOST_ADDRESSES):
        yield Text()
        rows = [
            (
                address,
                f"{summary.failures[address]:,}",
                f"{summary.acceptances[address]:,}",
                *(f"{summary.by_address[rule.name, address]:,}" for rule in rules),
            )
            for address in busiest
        ]
        yield from _table(
            [("busiest", "failures", "accepted", *(_local(rule.name) for rule in rules)), *rows],
            right=set(range(1, 3 + len(rules))),
        )


def _facts(tally: Tally, summary: Summary, new: int | None) -> list[tuple[str, str]]:
    period = "no time"
    if tally.first and tally.latest:
        period = f"{_moment(tally.first)} to {_moment(tally.latest)} ({span(tally.latest - tally.first)})"
    published = f"{count(summary.failures.total(), 'failure')}, {count(summary.acceptances.total(), 'acceptance')}"
    if new is not None:
        published += f"; {new or 'none'} of them this time"
    facts = [
        ("period", period),
        ("published", published),
        ("lines", f"{tally.lines:,}: {tally.logins:,} about logins, {tally.other:,} about something else"),
        ("skipped", count(tally.unreadable, "unreadable line") if tally.unreadable else "nothing"),
    ]
    if tally.late:
        facts.append(("late", f"{count(tally.late, 'line')} out of order, published at the time of the line before"))
    return facts


def _statuses(summary: Summary, rule: Rule) -> str:
    return ", ".join(f"{number:,} {status}" for status, number in sorted(summary.runs[rule.name].items())) or "-"


def _moment(time: datetime) -> str:
    return f"{time:%b} {time.day} {time:%H:%M:%S}"


def _table(rows: Sequence[Sequence[str]], *, right: AbstractSet[int] = frozenset()) -> Iterator[Text]:
    """Yields rows whose columns are aligned: those in `right` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield Text(f"  {'  '.join(cells)}".rstrip())
