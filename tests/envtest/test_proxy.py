"""The fault proxy stands before either API server, with TLS or without."""

from __future__ import annotations

import aiohttp
import pytest

from tests import faults, servers

NODES = "/api/v1/nodes"


async def test_a_write_takes_effect_though_its_answer_is_lost(
    api_server: servers.ApiServer,
) -> None:
    headers = {"Authorization": f"Bearer {api_server.token}"}
    async with (
        faults.FaultProxy(api_server.url, ca_file=api_server.ca_file) as proxy,
        aiohttp.ClientSession(proxy.url, headers=headers) as session,
    ):
        proxy.on(faults.Match(method="POST"), faults.Cut(at=faults.Point.TOOK_EFFECT))
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.post(NODES, json={"metadata": {"name": "alpha"}})
        async with session.get(f"{NODES}?watch=1") as response:
            assert b'"alpha"' in await response.content.readline()
