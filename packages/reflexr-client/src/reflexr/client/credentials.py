"""Credentials: the headers by which a server knows who asks. They are never part of a URL or of a message."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from reflexr.client.errors import ClientError

type Token = str | Callable[[], Awaitable[str]]
"""A bearer token, or what fetches one: it is asked before each request and each connection, so it should remember."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")


class Credentials:
    """The headers of every request and every connection."""

    def __init__(self, token: Token | None, headers: Mapping[str, str]) -> None:
        """Checks what is given.

        Raises:
            ClientError: A header cannot travel, or the token comes twice.
        """
        for name, value in headers.items():
            if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
                raise ClientError(f"headers: {name!r} or its value is none: write ASCII in one line")
        if token is not None and any(name.lower() == "authorization" for name in headers):
            raise ClientError("token: it is the header Authorization, which headers= has too: leave one out")
        if isinstance(token, str):
            _checked(token)
        self._token = token
        self._headers = dict(headers)

    async def headers(self) -> dict[str, str]:
        """Returns the headers, with the token as it is now.

        Raises:
            ClientError: What fetches the token returned none.
        """
        if self._token is None:
            return dict(self._headers)
        token = self._token if isinstance(self._token, str) else _checked(await self._token())
        return {**self._headers, "Authorization": f"Bearer {token}"}


def _checked(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ClientError("token: it is empty, or holds a space or what is not ASCII")
    return token
