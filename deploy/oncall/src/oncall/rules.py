"""What the application watches for. Each rule is data: `python -m oncall --rules` prints them as JSON.

Every address is a scope of its own, so a hundred attackers at once are a hundred counts that never mix.
"""

from datetime import timedelta
from typing import Final

from oncall.actions import block, close, page
from oncall.events import LoginAccepted, LoginFailed
from reflexr.core import F, RetryPolicy, Rule, by, on, run, sequence

# A log's clock stands still between its lines, so no time would pass before another attempt but for the next line. And
# whenever the process is killed while an action is at work, that was an attempt.
_RETRY: Final = RetryPolicy(max_attempts=20, backoff=timedelta())

BRUTE_FORCE: Final = Rule(
    name="oncall:brute-force",
    description="5 failures of an address within 1 minute, told at most once per 15 minutes: block it.",
    when=on(LoginFailed).count(at_least=5, within=timedelta(minutes=1)).at_most(1, per=timedelta(minutes=15)),
    scope=by(F.address),
    then=run(block, minutes=15),
    retry=_RETRY,
)

GUESSED: Final = Rule(
    name="oncall:guessed",
    description="A failure, then an acceptance of the same address within 1 hour: page the on-call.",
    when=sequence(on(LoginFailed), on(LoginAccepted), within=timedelta(hours=1)),
    scope=by(F.address),
    then=run(page),
    retry=_RETRY,
)

GAVE_UP: Final = Rule(
    name="oncall:gave-up",
    description="No failure of an address for 10 minutes after its last: close the case.",
    when=on(LoginFailed).absent(within=timedelta(minutes=10)),
    scope=by(F.address),
    then=run(close),
    retry=_RETRY,
)

RULES: Final = (BRUTE_FORCE, GUESSED, GAVE_UP)
