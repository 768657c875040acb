"""A page of another origin, in the system's Chromium: it streams, it publishes, and it comes back where it left off."""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, WebSocket, async_playwright, expect
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from reflexr.workspace import Workspace, Workspaces
from scripts.programs import ROOT, browser

from .application import TOKENS, ServiceError, application, workspaces
from .serving import Server, served

pytestmark = pytest.mark.system

SCREENSHOTS: Final = ROOT / "build" / "screenshots"
PATIENCE: Final = 20_000
"""How many milliseconds the page has for what it is to show."""

expect.set_options(timeout=PATIENCE)


class Api:
    """The server of the workspaces, which can go away and come back at the same address."""

    def __init__(self) -> None:
        self.workspaces: Final[Workspaces] = workspaces()
        self._port = 0
        self._running = AsyncExitStack()
        self._server: Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/api"

    async def come(self, origin: str) -> None:
        """Comes up, for pages of an origin."""
        app, router = application(self.workspaces, [origin])
        self._server = await self._running.enter_async_context(served(app, self._port, close=router.close))
        self._port = self._server.port

    def cut(self) -> None:
        assert self._server is not None
        self._server.cut()

    async def go_away(self) -> None:
        await self._running.aclose()

    async def workspace(self) -> Workspace:
        return await self.workspaces.open("acme", "prod", actor=TOKENS["adas-token"])


@pytest.fixture
async def chromium() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        async with launched:
            yield launched


@pytest.fixture
async def pages() -> AsyncGenerator[Server]:
    """The server of the page, whose origin is not that of the API."""
    folder = Path(__file__).parent / "page"
    async with served(Starlette(routes=[Mount("/", StaticFiles(directory=folder, html=True))])) as server:
        yield server


@pytest.fixture
async def api(pages: Server) -> AsyncGenerator[Api]:
    api = Api()
    await api.come(pages.origin)
    yield api
    await api.go_away()


@pytest.fixture
async def page(chromium: Browser, pages: Server, api: Api) -> Page:
    page = await chromium.new_page()
    await page.goto(pages.origin)
    await page.get_by_label("Server").fill(api.url)
    return page


async def connect(page: Page, token: str = "adas-token") -> None:
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Connect").click()


async def publish(page: Page, by: str, service: str) -> None:
    await page.get_by_label("Service").fill(service)
    await page.get_by_role("button", name=f"Publish by {by}").click()


def hellos(page: Page) -> list[dict[str, Any]]:
    """The hellos that the page says from now on."""
    said: list[dict[str, Any]] = []

    def hear(payload: str | bytes) -> None:
        if (frame := json.loads(payload))["type"] == "hello":
            said.append(frame)

    def follow(websocket: WebSocket) -> None:
        websocket.on("framesent", hear)

    page.on("websocket", follow)
    return said


def closes(page: Page) -> list[str]:
    """What the page notes of each connection that is closed from now on."""
    noted: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.text.startswith("closed with "):
            noted.append(message.text)

    page.on("console", hear)
    return noted


async def expect_rows(page: Page, *services: str) -> None:
    """Waits until the page shows the log: one row for each of these, in order, and no other."""
    await expect(page.locator("#events tr")).to_have_text(
        [
            f'{seq} Ada {{"type":"monitor:service_error","service":"{service}","severity":8}}'
            for seq, service in enumerate(services, start=1)
        ],
        use_inner_text=True,
    )


async def test_a_page_of_another_origin_shows_what_it_publishes(
    page: Page, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    workspace = await api.workspace()
    await workspace.publish(ServiceError(service="past", severity=8))

    await connect(page)
    await expect(page.locator("#state")).to_have_text("Live after 1.")
    await publish(page, "a command", "auth")
    await expect(page.locator("#answer")).to_have_text("Published by a command at 2.")
    await publish(page, "REST", "mail")
    await expect(page.locator("#answer")).to_have_text("Published by REST at 3.")
    await workspace.publish(ServiceError(service="elsewhere", severity=8))

    await expect_rows(page, "past", "auth", "mail", "elsewhere")
    await page.screenshot(path=SCREENSHOTS / "stream.png")
    assert await workspace.head_seq() == 4
    assert "WebSocket /api/workspaces/prod/stream" in caplog.text
    assert "adas-token" not in caplog.text


async def test_a_page_comes_back_to_a_server_that_was_away_and_shows_each_event_once(
    page: Page, pages: Server, api: Api
) -> None:
    workspace = await api.workspace()
    said, closed = hellos(page), closes(page)
    await workspace.publish(ServiceError(service="one", severity=8))
    await connect(page)
    await publish(page, "a command", "two")
    await expect_rows(page, "one", "two")

    await api.go_away()
    await expect(page.locator("#state")).to_contain_text("connecting again")
    await workspace.publish(ServiceError(service="three", severity=8))
    await publish(page, "a command", "four")
    await api.come(pages.origin)

    await expect(page.locator("#answer")).to_have_text("Published by a command at 4.")
    await expect_rows(page, "one", "two", "three", "four")
    assert closed[0] == "closed with 1001: the server is going away"
    assert [hello["resume_after_seq"] for hello in said] == [0, 2]


async def test_a_page_whose_connection_is_cut_comes_back_and_shows_each_event_once(page: Page, api: Api) -> None:
    workspace = await api.workspace()
    said, closed = hellos(page), closes(page)
    await connect(page)
    await publish(page, "a command", "one")
    await expect_rows(page, "one")

    api.cut()
    await workspace.publish(ServiceError(service="two", severity=8))
    await expect_rows(page, "one", "two")
    await publish(page, "a command", "three")
    async with aclosing(workspace.subscribe(after_seq=2)) as envelopes:
        await anext(envelopes)
        api.cut()

    await expect(page.locator("#answer")).to_have_text("Published by a command at 3.")
    await workspace.publish(ServiceError(service="four", severity=8))
    await expect_rows(page, "one", "two", "three", "four")
    assert closed == ["closed with 1006: "] * 2
    # The second cut may have taken the third event with it, or not.
    assert [hello["resume_after_seq"] for hello in said] in ([0, 1, 2], [0, 1, 3])
    assert await workspace.head_seq() == 4


async def test_a_page_with_a_wrong_token_is_told_so_and_stays_away(page: Page, api: Api) -> None:
    workspace = await api.workspace()
    closed = closes(page)

    await connect(page, token="nobodys")

    await expect(page.locator("#state")).to_have_text("Refused (4401): the token is not known")
    await publish(page, "REST", "auth")
    await expect(page.locator("#answer")).to_have_text("Refused, forbidden: the token is not known")
    await publish(page, "a command", "auth")
    await expect(page.locator("#answer")).to_have_text("Not published: the stream has ended")
    await page.screenshot(path=SCREENSHOTS / "refused.png")
    assert closed == ["closed with 4401: the token is not known"]
    assert await workspace.head_seq() == 0


async def test_a_page_of_an_origin_that_is_not_let_in_cannot_publish_by_rest(page: Page, api: Api) -> None:
    await api.go_away()
    await api.come("http://elsewhere.example")

    await connect(page)
    await publish(page, "REST", "auth")

    await expect(page.locator("#answer")).to_have_text("Not published: Failed to fetch")
    workspace = await api.workspace()
    assert await workspace.head_seq() == 0
