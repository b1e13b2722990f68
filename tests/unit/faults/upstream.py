"""A small server behind the proxy, and how a test talks to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from tests import faults

ANY = faults.Match()
SHORT_S = 0.05
DROPPED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class Upstream:
    """A small server that remembers what it was asked and watches on command."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.feed: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.watches = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.raw_path}")
        self.headers.append(dict(request.headers))
        if request.query.get("watch"):
            return await self._watch(request)
        self.bodies.append(await request.content.read())
        headers = {"X-Served-By": "upstream"}
        if request.path == "/missing":
            return web.Response(status=404, text="no such thing", headers=headers)
        if request.path == "/empty":
            return web.Response(status=204)
        return web.json_response({"path": request.path, "value": "plain"}, headers=headers)

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self.watches += 1
        try:
            while (piece := await self.feed.get()) is not None:
                await response.write(piece)
        finally:
            self.watches -= 1
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A client, the proxy and the server behind."""

    client: aiohttp.ClientSession
    proxy: faults.FaultProxy
    upstream: Upstream

    async def get(self, path: str = "/a") -> Any:
        """A body that is there."""
        async with self.client.get(path) as response:
            assert response.status == 200
            return await response.json()

    async def watched(self, *pieces: bytes | None) -> bytes:
        """All that a watch brings until its end."""
        for piece in pieces:
            self.upstream.feed.put_nowait(piece)
        async with self.client.get("/a?watch=1") as response:
            return await response.read()
