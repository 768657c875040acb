"""Answers: what reads are answered with, so that a client that polls is told in a few bytes that nothing changed."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import Response
from pydantic import TypeAdapter

from reflexr.core import DeadLetter, Envelope, Published, Rule, Run
from reflexr.workspace import RuleDescription, RuleStatus, Schedule, ScheduleStatus

ENVELOPES: Final = TypeAdapter(list[Envelope])
RUNS: Final = TypeAdapter(list[Run])
RUN: Final = TypeAdapter(Run)
RULES: Final = TypeAdapter(list[Rule])
SCHEDULES: Final = TypeAdapter(list[Schedule])
RULE_STATUSES: Final = TypeAdapter(list[RuleStatus])
RULE_DESCRIPTION: Final = TypeAdapter(RuleDescription)
DEAD_LETTERS: Final = TypeAdapter(list[DeadLetter])
SCHEDULE_STATUSES: Final = TypeAdapter(list[ScheduleStatus])
PUBLISHED: Final = TypeAdapter(tuple[Published, ...])

ETAG: Final[dict[str, Any]] = {
    "ETag": {"description": "The version of what was read, for `If-None-Match`.", "schema": {"type": "string"}}
}
LINK: Final[dict[str, Any]] = {
    "Link": {
        "description": "The pages of the log before (`prev`) and after (`next`) this one, if it was asked for as one.",
        "schema": {"type": "string"},
    }
}
IF_NONE_MATCH: Final[dict[str, Any]] = {
    "name": "If-None-Match",
    "in": "header",
    "description": "The versions that the client has, as their `ETag` named them.",
    "schema": {"type": "string"},
}
"""How the OpenAPI document describes the headers of reads."""


def answered(
    request: Request, adapter: TypeAdapter[Any], value: object, *, links: dict[str, str] | None = None
) -> Response:
    """Returns the answer to a read: the value as JSON, or 304 if the client has it already.

    Args:
        request: The request.
        adapter: Writes the value.
        value: What was read.
        links: The URLs of related pages, by relation.
    """
    body = adapter.dump_json(value, by_alias=True)
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    # What one caller may read is no other's to be served from a cache between them.
    headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "Authorization"}
    if links:
        headers["link"] = ", ".join(f'<{url}>; rel="{relation}"' for relation, url in links.items())
    if _has(request, tag):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def pages(
    request: Request, envelopes: Sequence[Envelope], *, limit: int | None, last: int | None
) -> dict[str, str] | None:
    """Returns the URLs of the pages of a log before and after one, relative to that of the request.

    There is a page before one that does not begin with the log's first envelope, and a page after one that is full;
    either may turn out empty.
    """
    size = last if limit is None else limit
    if size is None or not envelopes:
        return None
    types = [("type", name) for name in request.query_params.getlist("type")]
    links: dict[str, str] = {}
    if envelopes[0].seq > 1:
        links["prev"] = _page(types, before_seq=envelopes[0].seq, last=size)
    if len(envelopes) == size:
        links["next"] = _page(types, after_seq=envelopes[-1].seq, limit=size)
    return links


def _page(types: Sequence[tuple[str, str]], **numbers: int) -> str:
    return f"?{urlencode([*numbers.items(), *types])}"


def _has(request: Request, tag: str) -> bool:
    """Whether the client has this version; a weak tag of it is as good as a strong one (RFC 9110, 13.1.2)."""
    given = [one.strip().removeprefix("W/") for one in ",".join(request.headers.getlist("if-none-match")).split(",")]
    return tag in given or given == ["*"]
