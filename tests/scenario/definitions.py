"""The kinds of machines at an API server."""

from __future__ import annotations

from functools import partial

import aiohttp

from ccm.gardener import crds
from ccm.gardener.names import GROUP, VERSION
from tests.scenario.harness import wait_for

BASE = f"/apis/{GROUP}/{VERSION}/namespaces/default"
_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def define(session: aiohttp.ClientSession) -> None:
    """Make them known; wait until they are served. `servers.wipe` removes them."""
    for one in crds.DEFINITIONS:
        async with session.post(_PATH, json=crds.manifest(one)) as response:
            assert response.status == 201, await response.text()
    for one in crds.DEFINITIONS:
        path = f"{BASE}/{one.kind.plural}"
        # A moment after a definition was made its kind is not there yet, or not ready.
        await wait_for(partial(is_served, session, path), f"{path} is served")


async def is_served(session: aiohttp.ClientSession, path: str) -> bool:
    async with session.get(path) as response:
        return response.status == 200
