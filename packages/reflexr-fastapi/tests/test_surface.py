from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import override

import httpx

from reflexr.contracts import Connect, Feature, SurfaceContract
from reflexr.workspace import Workspaces

from .surfaces import RestSurface, WebSocketSurface, serving


class TestRest(SurfaceContract):
    features = frozenset({Feature.READS, Feature.TENANT_READS})

    @override
    @asynccontextmanager
    async def surface(self, application: Workspaces) -> AsyncGenerator[Connect]:
        async with serving(application) as server, httpx.AsyncClient(base_url=server.http) as http:
            yield partial(RestSurface, http)


class TestWebSocket(SurfaceContract):
    features = frozenset({Feature.STREAM})

    @override
    @asynccontextmanager
    async def surface(self, application: Workspaces) -> AsyncGenerator[Connect]:
        async with serving(application) as server:
            yield partial(WebSocketSurface, server)
