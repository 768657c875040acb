"""Addresses: the URLs of a server's paths. Ids are one segment each, whatever is in them."""

from typing import Final
from urllib.parse import quote

import httpx

from reflexr.client.errors import ClientError

# As they are, these two would be understood as the folder itself and the one above.
_DOTS: Final = {".": "%2E", "..": "%2E%2E"}


class Address:
    """Where a server's paths are."""

    def __init__(self, base_url: str) -> None:
        """Reads an address.

        Args:
            base_url: `http://` or `https://`, a host, and the prefix under which the application has its paths.

        Raises:
            ClientError: It is none, or holds a query, a fragment or credentials.
        """
        try:
            url = httpx.URL(base_url)
        except (httpx.InvalidURL, TypeError) as error:
            raise ClientError(f"base_url: {base_url!r} is no URL: {error}") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise ClientError(f"base_url: {base_url!r} is no address: write one such as 'https://example.com/reflexr'")
        if url.userinfo:
            raise ClientError("base_url: it holds credentials: give token= or headers= instead")
        if url.query or url.fragment:
            raise ClientError(f"base_url: {base_url!r} goes on after its path: leave out what follows '?' or '#'")
        self._root = str(url).rstrip("/?#")

    def path(self, *segments: str) -> str:
        """Returns the URL of a path, whose segments hold no lone surrogates."""
        return "/".join((self._root, *map(_segment, segments)))

    def stream(self, workspace_id: str) -> str:
        """Returns the URL of a workspace's stream."""
        return "ws" + self.path("workspaces", workspace_id, "stream").removeprefix("http")


def _segment(text: str) -> str:
    quoted = quote(text, safe="")
    return _DOTS.get(quoted, quoted)
