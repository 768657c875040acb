"""The command line: which log, how to show it, and how to end."""

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from asyncio import Runner
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.resources import as_file, files
from io import TextIOWrapper
from time import perf_counter
from typing import Final

from oncall.application import News, start
from oncall.display import Report, Screen
from oncall.feed import batches
from oncall.rules import RULES
from oncall.sources import LogUnreadableError, opened
from oncall.summary import Summary
from oncall.syslog import YEARS, Syslog
from oncall.timeline import Timeline

SAMPLE: Final = "auth.log"

INTERRUPTED: Final = 130
UNREADABLE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the application, and returns the status to exit with.

    That is 0, 2 for a log that cannot be read or arguments that make no sense, or 130 for Ctrl-C. Whoever reads the
    output may stop reading, as `head` does: that ends it quietly, with 0.
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
    except LogUnreadableError as error:
        print(f"oncall: {error}", file=sys.stderr)
        return UNREADABLE
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
    timeline, summary = Timeline(), Summary()

    def show(news: News) -> None:
        summary.count(news.logins, news.decisions)
        for entry in timeline.add(news.logins, news.decisions):
            report.tell(entry)

    with ExitStack() as stack:
        place = (
            options.log
            if options.log is not None
            else str(stack.enter_context(as_file(files("oncall") / "samples" / SAMPLE)))
        )
        source = stack.enter_context(opened(place))
        # Lines are read outside of the loop, where Ctrl-C ends a read that waits.
        runner = stack.enter_context(Runner())
        application = runner.run(start())
        tally = application.feed.tally
        broken: LogUnreadableError | KeyboardInterrupt | None = None
        report.begin(f"the sample {SAMPLE}" if options.log is None else place, RULES)
        with report.progress(source) as moved:
            try:
                for batch in batches(source.lines(), Syslog(written=source.written, year=options.year)):
                    show(runner.run(application.read(batch)))
                    moved()
            except (LogUnreadableError, KeyboardInterrupt) as error:
                broken = error
            show(runner.run(application.finish()))
            for entry in timeline.finish():
                report.tell(entry)
        report.end(tally, summary, RULES)
        seconds = perf_counter() - begun
        report.note(f"{seconds:.1f} s, {tally.lines / seconds:,.0f} lines/s, {tally.events / seconds:,.0f} events/s")
        if options.log is None:
            report.note("That was a sample. For a log of yours: make demo LOG=/var/log/auth.log")
        if broken:
            raise broken
