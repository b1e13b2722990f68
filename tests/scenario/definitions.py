"""The kinds of machines at an API server."""

from __future__ import annotations

import asyncio

import aiohttp

from ccm.gardener import crds
from ccm.gardener.names import GROUP, VERSION

BASE = f"/apis/{GROUP}/{VERSION}/namespaces/default"
_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def define(session: aiohttp.ClientSession) -> None:
    """Make them known; wait until they are served."""
    for one in crds.DEFINITIONS:
        async with session.post(_PATH, json=crds.manifest(one)) as response:
            assert response.status == 201, await response.text()
    for one in crds.DEFINITIONS:
        async with asyncio.timeout(30):
            # A moment after a definition was made its kind is not there yet, or not ready.
            while not await _is_served(session, f"{BASE}/{one.kind.plural}"):
                await asyncio.sleep(0.05)


async def remove(session: aiohttp.ClientSession) -> None:
    """Make them unknown again, and with them all machines."""
    for one in crds.DEFINITIONS:
        name = crds.manifest(one)["metadata"]["name"]
        async with session.delete(f"{_PATH}/{name}") as response:
            assert response.status in (200, 202), await response.text()


async def _is_served(session: aiohttp.ClientSession, path: str) -> bool:
    async with session.get(path) as response:
        return response.status == 200
