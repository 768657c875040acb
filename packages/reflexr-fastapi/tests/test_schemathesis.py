"""Whatever the served OpenAPI document admits is answered as it says, and whatever it does not is refused."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import schemathesis as untyped
from schemathesis import checks as untyped_checks
from schemathesis.core.failures import Failure
from schemathesis.engine import events, from_schema
from schemathesis.openapi.checks import RejectedPositiveData
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .ops import bearer, ops, serving
from .serving import served

# Some of their types are not known to the last.
schemathesis: Final[Any] = untyped
registered: Final[Any] = untyped_checks.__dict__["CHECKS"]

_UNSAYABLE: Final = (
    # That two parameters exclude each other.
    "limit: give limit, for the first so many, or last, for the last so many, but not both",
    # This bound: FastAPI writes bounds as floats, of which the nearest is more.
    "Input should be less than or equal to 9223372036854775807",
)
_OF_THE_APPLICATION: Final = "cannot be stored"
"""Which actions, predicates and fields there are for a rule to name is the application's to say, and no document's."""


@dataclass
class Findings:
    """What a run of schemathesis found.

    Attributes:
        cases: How many cases each of its phases had.
        checks: How often each check was made.
        failures: What failed: the operation, the check and what it says.
    """

    cases: Counter[str] = field(default_factory=Counter[str])
    checks: Counter[str] = field(default_factory=Counter[str])
    failures: set[tuple[str | None, str, str]] = field(default_factory=set[tuple[str | None, str, str]])


def try_out(url: str, *, max_examples: int, **only: Any) -> Findings:
    """Runs every phase and every check over the document that is served there."""
    config = schemathesis.Config.from_dict(
        {
            "seed": 1,
            "workers": 1,
            "headers": bearer("ada"),
            "continue-on-failure": True,
            "generation": {"deterministic": True, "max-examples": max_examples, "database": "none"},
        }
    )
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)
    schema.hook(filter_failure)
    findings = Findings()
    for event in from_schema(schema.include(**only) if only else schema).execute():
        match event:
            case events.ScenarioFinished():
                findings.cases[event.phase.value] += len(event.recorder.cases)
                for check in (check for checks in event.recorder.checks.values() for check in checks):
                    findings.checks[check.name] += 1
                    if check.failure_info is not None:
                        message = f"{check.failure_info.failure}\n{check.failure_info.code_sample}"
                        findings.failures.add((event.label, check.name, message))
            case events.NonFatalError():
                findings.failures.add((event.label, "error", repr(event.value)))
            case events.FatalError():
                findings.failures.add((None, "fatal", repr(event.exception)))
            case _:
                pass
    return findings


def filter_failure(context: Any, failure: Failure, case: Any, response: Any) -> bool:
    """Keeps every failure but for what OpenAPI has no words for: the request is refused, and says why."""
    if not isinstance(failure, RejectedPositiveData):
        return True
    detail = response.json()["detail"]
    unsayable = all(error.endswith(_UNSAYABLE) for error in detail["errors"])
    return not (unsayable or detail["message"].endswith(_OF_THE_APPLICATION))


@pytest.mark.timeout(300)
async def test_schemathesis_finds_nothing() -> None:
    async with serving() as site:
        findings = await asyncio.to_thread(try_out, site.at.http, max_examples=15)
    assert not findings.failures, "\n\n".join(
        "\n".join(map(str, failure)) for failure in sorted(findings.failures, key=str)
    )
    assert findings.cases.keys() == {"examples", "coverage", "fuzzing", "stateful"}
    assert all(count > 20 for count in findings.cases.values())
    # Those that were not switched on by a limit of their own.
    assert findings.checks.keys() == set(registered.get_all_names()) - {"max_response_time"}


class Broken:
    """The application, answering one path with a status that its document does not have."""

    def __init__(self, app: ASGIApp, path: str, status: int) -> None:
        self._app = app
        self._path = path
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_broken(message: Message) -> None:
            await send({**message, "status": self._status} if message["type"] == "http.response.start" else message)

        await self._app(scope, receive, send_broken if scope.get("path") == self._path else send)


def _names(findings: Findings) -> Iterator[str]:
    yield from (check for _, check, _ in findings.failures)


async def test_schemathesis_would_find_a_status_that_is_not_documented() -> None:
    async with served(Broken(ops().app, "/schedules", 202)) as at:
        findings = await asyncio.to_thread(try_out, at.http, max_examples=2, path="/schedules")
    assert "status_code_conformance" in _names(findings)


async def test_schemathesis_would_find_a_server_that_breaks() -> None:
    async with served(Broken(ops().app, "/schedules", 500)) as at:
        findings = await asyncio.to_thread(try_out, at.http, max_examples=2, path="/schedules")
    assert "not_a_server_error" in _names(findings)
