"""A client that polls is told in a few bytes that nothing changed, and one that pages sees each envelope once."""

from itertools import chain
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from .ops import DEAD_LETTERS, EVENTS, RULES, RUNS, SCHEDULES, SPIKES, Site, error, serving

_READS = (
    "/rules",
    "/schedules",
    EVENTS,
    RULES,
    f"{RULES}/{SPIKES}",
    f"{RULES}/{SPIKES}/history",
    RUNS,
    DEAD_LETTERS,
    SCHEDULES,
)


async def publish(site: Site, *events: dict[str, Any]) -> None:
    answer = await site.client.post(EVENTS, json={"events": [{"event": event} for event in events]})
    assert answer.status_code == 200, answer.text


async def poll(site: Site, path: str, *tags: str) -> httpx.Response:
    return await site.client.get(path, headers=[("if-none-match", tag) for tag in tags])


# --- Polling


@pytest.mark.parametrize("path", _READS)
async def test_whoever_has_the_version_there_is_gets_no_body(path: str) -> None:
    async with serving() as site:
        first = await site.client.get(path)
        again = await poll(site, path, first.headers["etag"])
        assert (again.status_code, again.content) == (304, b"")
        for name in ("etag", "cache-control", "vary"):
            assert again.headers[name] == first.headers[name]
        assert "content-type" not in again.headers


async def test_a_version_is_another_once_what_is_read_changed_and_the_same_until_then() -> None:
    async with serving() as site:
        await publish(site, error())
        tag = (await site.client.get(EVENTS)).headers["etag"]
        assert (await site.client.get(EVENTS)).headers["etag"] == tag
        await publish(site, error())
        changed = await poll(site, EVENTS, tag)
        assert changed.status_code == 200
        assert len(changed.json()) == 2
        assert changed.headers["etag"] != tag


async def test_the_version_of_a_run_follows_its_status() -> None:
    async with serving() as site:
        site.ops.triage_fails = True
        await publish(site, error(8))
        await site.ops.reactor.settle()
        (run,) = (await site.client.get(RUNS)).json()
        path = f"{RUNS}/{run['id']}"
        tag = (await site.client.get(path)).headers["etag"]
        assert (await poll(site, path, tag)).status_code == 304
        await (await site.ops.open()).skip_run(run["id"])
        assert (await poll(site, path, tag)).json()["status"] == "skipped"


@pytest.mark.parametrize(
    ("tags", "status"),
    [
        (["{tag}"], 304),
        (["W/{tag}"], 304),
        (['"other", {tag}'], 304),
        (['"other",W/{tag},"more"'], 304),
        (['"other"', "{tag}"], 304),
        (["*"], 304),
        (['"other"'], 200),
        (['W/"other", "*"'], 200),
        (['"other", *'], 200),
        ([""], 200),
        (["{bare}"], 200),
        (["w/{tag}"], 200),
    ],
)
async def test_a_client_names_its_versions_as_http_has_it(tags: list[str], status: int) -> None:
    async with serving() as site:
        tag = (await site.client.get("/rules")).headers["etag"]
        given = [one.format(tag=tag, bare=tag.strip('"')) for one in tags]
        assert (await poll(site, "/rules", *given)).status_code == status


async def test_what_was_refused_has_no_version() -> None:
    async with serving() as site:
        refused = await poll(site, f"{RUNS}/fir_0", "*")
        assert refused.status_code == 404
        assert "etag" not in refused.headers


async def test_what_somebody_may_read_is_kept_by_no_cache_for_others() -> None:
    async with serving() as site:
        headers = (await site.client.get(EVENTS)).headers
        assert headers["cache-control"] == "private, no-cache"
        assert headers["vary"] == "Authorization"


# --- Paging


async def walk(site: Site, path: str, relation: str) -> list[list[int]]:
    """Reads a page and all that follow it in one direction, and returns the places of each."""
    pages: list[list[int]] = []
    url = httpx.URL(f"{site.at.http}{path}")
    while True:
        answer = await site.client.get(url)
        pages.append([envelope["seq"] for envelope in answer.json()])
        if relation not in answer.links:
            return pages
        url = url.join(answer.links[relation]["url"])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("types", ["", "&type=ops:service.error", "&type=ops:deployed&type=ops:checked"])
async def test_pages_back_and_forth_have_each_envelope_once_and_in_order(size: int, types: str) -> None:
    async with serving() as site:
        for number in range(4):
            await publish(site, error(), {"type": "ops:deployed", "service": str(number)}, error(), error())
        await publish(site, {"type": "ops:checked"})
        every = [envelope["seq"] for envelope in (await site.client.get(f"{EVENTS}?after_seq=0{types}")).json()]
        assert every
        forth = await walk(site, f"{EVENTS}?limit={size}{types}", "next")
        assert list(chain(*forth)) == every
        back = await walk(site, f"{EVENTS}?last={size}{types}", "prev")
        assert list(chain(*reversed(back))) == every
        assert all(len(page) <= size for page in [*forth, *back])


async def test_whoever_has_read_a_page_can_go_back_from_where_they_came() -> None:
    async with serving() as site:
        await publish(site, *[error() for _ in range(6)])
        middle = await site.client.get(f"{EVENTS}?after_seq=2&limit=2")
        assert [one["seq"] for one in middle.json()] == [3, 4]
        base = middle.url
        after = await site.client.get(base.join(middle.links["next"]["url"]))
        before = await site.client.get(base.join(middle.links["prev"]["url"]))
        assert [one["seq"] for one in after.json()] == [5, 6]
        assert [one["seq"] for one in before.json()] == [1, 2]
        assert "prev" not in before.links


@pytest.mark.parametrize("query", ["", "?limit=0", "?last=0", "?limit=3&after_seq=9", "?after_seq=1"])
async def test_a_read_that_is_no_page_has_no_pages_beside_it(query: str) -> None:
    async with serving() as site:
        await publish(site, error(), error())
        assert "link" not in (await site.client.get(f"{EVENTS}{query}")).headers


async def test_pages_are_named_relative_to_wherever_the_log_is_served() -> None:
    async with serving() as site:
        path = f"/workspaces/{quote('a/b?c', safe='')}/events"
        for _ in range(3):
            assert (await site.client.post(path, json={"event": error()})).status_code == 200
        assert await walk(site, f"{path}?limit=2", "next") == [[1, 2], [3]]
        answer = await site.client.get(f"{path}?limit=2")
        assert answer.headers["link"] == '<?after_seq=2&limit=2>; rel="next"'


async def test_credentials_in_a_url_are_in_no_link() -> None:
    async with serving() as site:
        await publish(site, error(), error())
        assert "ada" not in (await site.client.get(f"{EVENTS}?limit=1&token=ada")).headers["link"]


async def test_a_page_that_the_client_has_still_has_its_links() -> None:
    async with serving() as site:
        await publish(site, error(), error())
        first = await site.client.get(f"{EVENTS}?limit=1")
        again = await poll(site, f"{EVENTS}?limit=1", first.headers["etag"])
        assert again.status_code == 304
        assert again.headers["link"] == first.headers["link"]
