"""Requests to a served store, and what comes back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from ccm.sandbox.apiserver import server, store
from tests.waiting import DEADLINE_S

MERGE = "application/merge-patch+json"


class Client:
    """Requests to one server."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def __call__(
        self, method: str, path: str, body: Any = None, code: int = 200, **headers: str
    ) -> Any:
        """The decoded answer, which must have that status; text if it is not JSON."""
        kind = MERGE if method == "PATCH" else "application/json"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body)
        async with self.session.request(
            method, path, data=data, headers={"Content-Type": kind, **named}
        ) as response:
            text = await response.text()
            assert response.status == code, text
            return json.loads(text) if response.content_type == "application/json" else text


@contextlib.asynccontextmanager
async def serving(objects: store.Store | None = None, **options: Any) -> AsyncIterator[Client]:
    """A client of a server of its own."""
    async with (
        server.serve(objects or store.Store(), **options) as url,
        aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=DEADLINE_S)) as session,
    ):
        yield Client(session)
