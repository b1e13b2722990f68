"""The fake has the limits of the real thing, and says so in its words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import aiohttp
import pytest

from ccm import cloud
from ccm.testing import machine_probes
from ccm.testing.contract_routes import CIDR, created
from ccm.testing.network_probes import nodes as make_nodes
from providers.hcloud.testing import catalog
from providers.hcloud.testing.state import Settings
from tests.hcloud.harness import HcloudHarness


@pytest.fixture
def machines(project: cloud.Cloud, harness: HcloudHarness) -> machine_probes.Machines:
    """Machines of the plainest spec."""
    found = machine_probes.machines_of(project, harness)
    found.spec = {"serverType": "cx23", "location": "fsn1"}
    return found


async def test_the_fake_has_the_limits_of_the_real_thing(
    harness: HcloudHarness, project: cloud.Cloud, machines: machine_probes.Machines
) -> None:
    """100 servers and 100 routes a network, and so many targets of each type."""
    assert project.routes is not None
    (one,) = await make_nodes(project, harness, 1)
    full = [{"destination": f"10.7.{each}.0/24", "gateway": "10.0.0.2"} for each in range(100)]
    harness.network["routes"][:] = full
    with pytest.raises(cloud.ResourceExhausted):
        await created(project.routes, one, CIDR)
    harness.network["routes"].pop()
    await created(project.routes, one, CIDR)
    machines.spec = {"serverType": "cx23", "networks": ["k8s"]}
    harness.network["servers"] += range(90000, 90099)
    with pytest.raises(cloud.ResourceExhausted):
        await machines.create(machines.identity())

    assert {one["name"]: one["max_targets"] for one in catalog.BALANCER_TYPES} == {
        "lb11": 25,
        "lb21": 75,
        "lb31": 150,
    }
    assert (Settings().requests, Settings().group_servers) == (3600, 10)


@pytest.mark.parametrize("asked", ["unknown", "method"])
async def test_what_the_fake_does_not_know(harness: HcloudHarness, asked: str) -> None:
    """It says so in the API's words."""
    url = harness.environ()["HCLOUD_ENDPOINT"]
    headers = {"Authorization": f"Bearer {harness.service.token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        ask: Awaitable[Any] = (
            session.get(f"{url}/isos") if asked == "unknown" else session.put(f"{url}/servers")
        )
        response = await ask
        body = await response.json()

    assert body["error"]["code"] == ("not_found" if asked == "unknown" else "method_not_allowed")


async def test_the_fake_may_be_slow(harness: HcloudHarness, project: cloud.Cloud) -> None:
    harness.service.settings.latency_s = 0.05
    assert project.inventory is not None
    began = asyncio.get_running_loop().time()

    await project.inventory.list_instances()

    assert asyncio.get_running_loop().time() - began >= 0.05
