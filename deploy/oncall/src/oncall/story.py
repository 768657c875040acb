"""Tells a log from where it was left the last time: puts the timeline and the summary together, and shows them.

What there is to tell comes from `oncall.application`; how it looks is `oncall.display`'s.
"""

from collections.abc import Iterable, Sequence

from oncall.application import Application, News
from oncall.display import Report
from oncall.summary import Summary
from oncall.timeline import Entry, Timeline
from reflexr.core import Rule


class Story:
    """What is told of a workspace: on the timeline what is new, in the summary all that it holds."""

    def __init__(self, application: Application, report: Report) -> None:
        """Begins to tell.

        Args:
            application: What the workspace holds, and what is new in it.
            report: Whom to tell.
        """
        self._application = application
        self._report = report
        self._timeline = Timeline()
        self._summary = Summary()
        self._known = 0
        self._told = False

    @property
    def new(self) -> int:
        """How many logins are new."""
        return self._summary.logins - self._known

    async def resume(self) -> None:
        """Says what the workspace held already, if it held anything."""
        ended = self._application.held.ts
        if ended is None:
            return
        summary = self._summary
        async for logins in self._application.logins():
            summary.count(logins)
        self._known = summary.logins
        self._report.resume(ended, summary.failures.total(), summary.acceptances.total())

    def tell(self, news: News) -> None:
        """Tells what is new."""
        self._summary.count(news.logins)
        self._show(self._timeline.add(news.logins, news.decisions))

    def finish(self) -> None:
        """Tells what was to go on, had the log not ended."""
        self._show(self._timeline.finish())

    async def retell(self) -> None:
        """Tells all that the workspace holds, if it held something before and nothing is new."""
        if self._told or self._application.held.ts is None:
            return
        self._report.retell()
        async for news in self._application.everything():
            self._show(self._timeline.add(news.logins, news.decisions))
        self.finish()

    async def end(self, rules: Sequence[Rule]) -> None:
        """Sums up.

        Args:
            rules: The rules to list.
        """
        self._summary.count_runs(await self._application.runs())
        new = None if self._application.held.ts is None else self.new
        self._report.end(self._application.feed.tally, self._summary, rules, new=new)

    def _show(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._told = True
            self._report.tell(entry)
