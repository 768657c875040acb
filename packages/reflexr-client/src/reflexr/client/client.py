"""`Client`: the door to a server's workspaces, in the hands of whoever the credentials name."""

from collections.abc import Mapping
from datetime import timedelta
from ssl import SSLContext
from types import TracebackType
from typing import Self

import httpx

from reflexr.client import answers
from reflexr.client.addresses import Address
from reflexr.client.arguments import checked_id
from reflexr.client.backoff import Backoff
from reflexr.client.credentials import Credentials, Token
from reflexr.client.descriptions import ScheduleDescription
from reflexr.client.errors import ClientError
from reflexr.client.requests import Requests
from reflexr.client.streams import Streams
from reflexr.client.workspaces import RemoteWorkspace
from reflexr.core import DEFAULT_REGISTRY, EventRegistry, Rule


class Client:
    """A server of `reflexr.v1`, in the hands of one participant.

    Use it as an async context manager, or call `aclose` in the end. What may pass, such as a lost connection, a timeout
    or a server that restarts, is tried again; every command carries an id, so it is carried out once all the same.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: Token | None = None,
        headers: Mapping[str, str] | None = None,
        http: httpx.AsyncClient | None = None,
        tls: SSLContext | None = None,
        backoff: Backoff | None = None,
        timeout: timedelta = timedelta(seconds=10),
        keepalive: timedelta = timedelta(seconds=20),
        registry: EventRegistry = DEFAULT_REGISTRY,
    ) -> None:
        """Creates a client, which connects to nothing yet.

        Args:
            base_url: Where the application has its paths, such as `https://example.com/reflexr`.
            token: The bearer token, which travels in the header `Authorization`; or a function that is awaited for it
                before each request and each connection, where tokens are renewed.
            headers: What is sent with each request and each connection.
            http: What carries requests, with settings of its own for proxies, certificates and limits; it stays open.
                By default one that ends with the client. Streams have connections of their own.
            tls: What the server's certificate is checked with, for streams, and for requests unless `http` carries
                them; by default the authorities that everybody trusts.
            backoff: How what failed is tried again.
            timeout: How long each try may wait for the server: to connect, to take more, to send more, to say
                `welcome`. More than zero.
            keepalive: How often the server of an open stream is pinged, and how long it may take to answer before the
                connection counts as lost. More than zero.
            registry: The event types that envelopes are read with.

        Raises:
            ClientError: The address, the token or a header is none, or a duration is not more than zero.
        """
        for name, duration in (("timeout", timeout), ("keepalive", keepalive)):
            if duration <= timedelta():
                raise ClientError(f"{name}: {duration!r} is not more than zero")
        address = Address(base_url)
        credentials = Credentials(token, headers or {})
        backoff = backoff or Backoff()
        self._http = http or httpx.AsyncClient(verify=True if tls is None else tls)
        self._closes_http = http is None
        self._requests = Requests(self._http, address, credentials, timeout, backoff)
        self._streams = Streams(
            address=address,
            credentials=credentials,
            timeout=timeout,
            keepalive=keepalive,
            tls=tls,
            backoff=backoff,
        )
        self._registry = registry

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes it."""
        await self.aclose()

    async def aclose(self) -> None:
        """Closes its connections, but for those of subscriptions, each of which its generator closes."""
        if self._closes_http:
            await self._http.aclose()

    def workspace(self, workspace_id: str) -> RemoteWorkspace:
        """Returns a workspace of the participant's tenant. It need not exist yet: publishing to it begins its log.

        Args:
            workspace_id: The workspace's id within the tenant: 1 to 255 characters.

        Raises:
            ValidationFailed: The id is none.
        """
        return RemoteWorkspace(checked_id(workspace_id, "workspace_id"), self._requests, self._streams, self._registry)

    async def rules(self) -> list[Rule]:
        """Returns the code rules, which every workspace has.

        Raises:
            Forbidden: The participant may not read them.
        """
        return await self._requests.get(answers.RULES, "rules")

    async def schedules(self) -> list[ScheduleDescription]:
        """Returns the schedules that tick in the participant's tenant.

        Raises:
            Forbidden: The participant may not read them.
        """
        return await self._requests.get(answers.SCHEDULES, "schedules")
