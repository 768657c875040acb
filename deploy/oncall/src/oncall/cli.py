"""The command line: which log, how to show it, and how to end."""

import json
import os
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from asyncio import Runner
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from importlib.resources import as_file, files
from io import TextIOWrapper
from pathlib import Path
from time import perf_counter
from typing import Final

from oncall.application import start
from oncall.database import DatabaseUnusableError, default_database
from oncall.display import Report, Screen
from oncall.feed import batches
from oncall.rules import RULES
from oncall.sources import LogUnreadableError, Source, identified, opened
from oncall.sshd import visible
from oncall.story import Story
from oncall.syslog import YEARS, Syslog
from reflexr.core import derived_id
from reflexr.workspace import StorageError

SAMPLE: Final = "auth.log"

INTERRUPTED: Final = 130
UNUSABLE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the application, and returns the status to exit with.

    That is 0, 2 for a log or a database that cannot be used or arguments that make no sense, or 130 for Ctrl-C. Whoever
    reads the output may stop reading, as `head` does: that ends it quietly, with 0.
    """
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A log from anywhere has names that a terminal in an old encoding cannot show.
            stream.reconfigure(errors="replace")
    try:
        if options.rules:
            _show_rules()
        else:
            _run(options)
        sys.stdout.flush()
    except (LogUnreadableError, DatabaseUnusableError) as error:
        print(f"oncall: {error}", file=sys.stderr)
        return UNUSABLE
    except StorageError as error:
        print(f"oncall: the database failed: {error}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        print("oncall: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered has nowhere to go, also not when Python flushes it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="oncall", description="Reads an authentication log of sshd, and shows what reflexr's rules make of it."
    )
    log = "a file, also one compressed with gzip; - for the standard input; by default a short sample"
    year = "the year of the first line, if it names none; by default the latest not after the file's last change"
    parser.add_argument("log", nargs="?", metavar="LOG", help=log)
    parser.add_argument("--year", type=_year, help=year)
    kept = "what keeps what is known of each log; by default oncall/oncall.db in $XDG_STATE_HOME or ~/.local/state"
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--database", type=Path, metavar="PATH", help=kept)
    where.add_argument("--memory", action="store_true", help="keep nothing")
    parser.add_argument("--rules", action="store_true", help="print the rules as JSON, and do nothing else")
    parser.add_argument("--quiet", action="store_true", help="print the summary alone")
    parser.add_argument(
        "--plain", action="store_true", help="no colours, no folding and no progress, also on a terminal"
    )
    return parser


def _year(text: str) -> int:
    if not (text.isdecimal() and len(text) == 4 and int(text) in YEARS):
        raise ArgumentTypeError(f"{text!r} is no year from {YEARS.start} to {YEARS.stop - 1}")
    return int(text)


def _show_rules() -> None:
    # What a rule leaves to the defaults is left out, but of what it says, nothing.
    rules = [rule.model_dump(mode="json", include=set(rule.model_dump(exclude_defaults=True))) for rule in RULES]
    print(json.dumps(rules, indent=2))


def _run(options: Namespace) -> None:
    begun = perf_counter()
    out, notes = Screen(sys.stdout, plain=options.plain), Screen(sys.stderr, plain=options.plain)
    report = Report(out, notes, quiet=options.quiet)
    database = None if options.memory else options.database or default_database()
    with ExitStack() as stack:
        sample = stack.enter_context(as_file(files("oncall") / "samples" / SAMPLE))
        source = stack.enter_context(opened(str(sample) if options.log is None else options.log))
        interrupts = stack.enter_context(_ended_by_ctrl_c(source))
        workspace_id, lines = identified(source)
        if options.log is None:
            workspace_id = derived_id("sample", sample.read_text())
        runner = stack.enter_context(Runner())
        closing = AsyncExitStack()
        stack.callback(lambda: runner.run(closing.aclose()))
        application = runner.run(closing.enter_async_context(start(workspace_id, database)))
        story = Story(application, report)
        report.begin(f"the sample {SAMPLE}" if options.log is None else options.log, RULES)
        runner.run(story.resume())
        broken: LogUnreadableError | None = None
        with report.progress(source) as moved:
            try:
                for batch in batches(lines, Syslog(written=source.written, year=options.year)):
                    story.tell(runner.run(application.read(batch)))
                    moved()
            except LogUnreadableError as error:
                broken = error
            story.tell(runner.run(application.finish()))
            story.finish()
        if broken is None and not interrupts:
            runner.run(story.retell())
        runner.run(story.end(RULES))
        seconds = perf_counter() - begun
        lines_read = application.feed.tally.lines
        report.note(f"{seconds:.1f} s, {lines_read / seconds:,.0f} lines/s, {story.new / seconds:,.0f} events/s")
        if database is not None:
            report.note(f"Kept in {visible(str(database))}: the next time, it continues.")
        if options.log is None:
            report.note("That was a sample. For a log of yours: make demo LOG=/var/log/auth.log")
        if interrupts:
            raise KeyboardInterrupt
        if broken:
            raise broken


@contextmanager
def _ended_by_ctrl_c(source: Source) -> Generator[Sequence[int]]:
    """Has the first Ctrl-C end the log where it is, so that the story is told to its end; a second one ends everything.

    A `KeyboardInterrupt` would be lost where it comes while Python collects garbage, and the log be waited for all the
    same. Yields the interrupts that there were.
    """
    interrupts: list[int] = []

    def end(number: int, _frame: object) -> None:
        interrupts.append(number)
        signal.signal(number, before)
        source.end()

    before = signal.signal(signal.SIGINT, end)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
