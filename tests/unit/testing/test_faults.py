"""The fault proxy: when a fault strikes, and which requests it strikes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests import faults
from tests.unit.kube.proxy import Server, says, serve


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with serve() as found:
        yield found


async def outcomes(proxy: faults.FaultProxy, times: int = 1) -> list[int | None]:
    """The statuses of that many changes; None: no answer."""
    found: list[int | None] = []
    for _ in range(times):
        try:
            async with aiohttp.ClientSession() as client, client.post(proxy.url) as response:
                found.append(response.status)
        except (aiohttp.ClientError, ConnectionError):
            found.append(None)
    return found


@pytest.mark.parametrize(
    ("fault", "asked", "answer"),
    [
        ({}, 0, None),
        ({"at": faults.Point.TOOK_EFFECT}, 1, None),
        ({"at": faults.Point.ANSWERED}, 1, 200),
    ],
    ids=["before", "took effect", "answered"],
)
@pytest.mark.parametrize("kind", ["cut", "reset", "fell"])
async def test_when_a_fault_strikes(
    server: Server, kind: str, fault: dict[str, Any], asked: int, answer: int | None
) -> None:
    fallen: list[int] = []
    server.will(says({}))
    async with faults.FaultProxy(server.url) as proxy:
        actions: Mapping[str, faults.Action] = {
            "cut": faults.Cut(**fault),
            "reset": faults.Reset(**fault),
            "fell": faults.Fell(lambda: fallen.append(len(server.seen)), **fault),
        }
        rule = proxy.on(faults.Match(write=True), actions[kind])

        assert await outcomes(proxy) == [answer]
    assert len(server.seen) == asked
    assert len(rule.fired) == 1
    assert fallen == [asked] * (kind == "fell")


@pytest.mark.parametrize(
    ("chosen", "statuses"),
    [
        ({}, [500] * 4),
        ({"times": 2}, [500, 500, 200, 200]),
        ({"nth": 3}, [200, 200, 500, 200]),
        ({"nth": 2, "times": 2}, [200, 500, 500, 200]),
    ],
    ids=str,
)
async def test_which_requests_a_fault_strikes(
    server: Server, chosen: dict[str, int], statuses: list[int]
) -> None:
    server.will(*[says({})] * 4)
    async with faults.FaultProxy(server.url) as proxy:
        rule = proxy.on(faults.Match(method="POST|PUT"), faults.Respond(500), **chosen)
        proxy.on(faults.Match(method="PUT"), faults.Respond(501))

        assert await outcomes(proxy, 4) == statuses
    assert (rule.seen, len(rule.fired)) == (4, statuses.count(500))
