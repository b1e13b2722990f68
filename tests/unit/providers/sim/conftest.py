"""A simulated cloud on loopback, in the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from providers import sim
from providers.sim import server, world
from tests.waiting import DEADLINE_S


class Remote:
    """Caller of the cloud that returns raw responses."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def call(
        self, method: str, path: str, body: object = None, *, token: str = "a-tokens-text"
    ) -> tuple[int, dict[str, object], aiohttp.typedefs.LooseHeaders]:
        """Return status, decoded body (empty for none) and headers of a response."""
        headers = {"Authorization": f"Bearer {token}"}
        data = None if body is None else msgspec.json.encode(body)
        async with self._session.request(method, path, data=data, headers=headers) as response:
            content = await response.read()
            return response.status, msgspec.json.decode(content or b"{}"), response.headers

    async def ok(self, method: str, path: str, body: object = None) -> dict[str, object]:
        """Return the body of a response that must not be an error."""
        status, answer, _ = await self.call(method, path, body)
        assert status < 300, answer
        return answer


def refused(code: world.Code) -> Any:
    """A context in which the world must refuse something so."""
    return pytest.raises(world.WorldError, check=lambda error: error.code == code)


@pytest_asyncio.fixture
async def service() -> server.Service:
    return server.Service(token="a-tokens-text", seed=1)


@pytest_asyncio.fixture
async def url(service: server.Service) -> AsyncIterator[str]:
    async with server.serve(service) as url:
        yield url


@pytest_asyncio.fixture
async def remote(url: str) -> AsyncIterator[Remote]:
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        yield Remote(session)


@pytest_asyncio.fixture
async def provider(url: str) -> AsyncIterator[cloud.Cloud]:
    """The provider, connected to that cloud."""
    context = cloud.Context(config=f"url: {url}\ntoken: a-tokens-text\ntimeout: 2m".encode())
    async with sim.open_cloud(context) as found:
        yield found
