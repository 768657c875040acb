from urllib.parse import unquote, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflexr.client import ClientError
from reflexr.client.addresses import Address

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
NAMES = ["a/b", "a?b", "a#b", "a%2Fb", "%", ".", "..", "...", "ops:error-spike", "köln", "✓", " ", "a\\b", "+", ";x"]


@pytest.mark.parametrize("name", NAMES)
def test_an_id_is_one_segment_whatever_is_in_it(name: str) -> None:
    url = httpx.URL(Address("http://host/api").path("workspaces", name, "runs"))
    *front, segment, last = url.raw_path.decode("ascii").split("/")
    assert (front, last) == (["", "api", "workspaces"], "runs")
    assert unquote(segment) == name


@given(TEXTS)
def test_both_carriers_send_the_same_path(name: str) -> None:
    address = Address("https://host:8443/a/b/")
    over_http = httpx.URL(address.path("workspaces", name, "stream"))
    over_websocket = urlsplit(address.stream(name))
    assert over_websocket.scheme == "wss"
    assert over_websocket.netloc == "host:8443"
    assert over_websocket.path == over_http.raw_path.decode("ascii")
    assert unquote(over_websocket.path.split("/")[-2]) == name


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        ("http://host", "http://host"),
        ("HTTP://Host/", "http://host"),
        ("http://host:80", "http://host"),
        ("https://[::1]:9/x/", "https://[::1]:9/x"),
        ("https://bücher.example/a?", "https://xn--bcher-kva.example/a"),
    ],
)
def test_an_address_is_a_host_and_a_prefix(base_url: str, root: str) -> None:
    assert Address(base_url).path("rules") == f"{root}/rules"
    assert Address(base_url).stream("w") == f"{root}/workspaces/w/stream".replace("http", "ws", 1)


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "host",
        "/api",
        "ftp://host",
        "ws://host",
        "http://",
        "http://ho st:x",
        "http://h/?q=1",
        "http://h/#f",
        "a\nb",
    ],
)
def test_what_is_no_address_is_refused(base_url: str) -> None:
    with pytest.raises(ClientError, match="base_url"):
        Address(base_url)


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(ClientError) as raised:
        Address("https://user:hunter2@host")
    assert "hunter2" not in str(raised.value)
