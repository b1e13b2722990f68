"""The administrator's calls, against the simulated cloud itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from ccm.sandbox import cloud
from providers.sim import server, traffic, world, world_orders


@pytest_asyncio.fixture
async def admin() -> AsyncIterator[cloud.Admin]:
    service = server.Service(token="t")
    async with server.serve(service) as url, cloud.open_admin(url, "t") as calls:
        yield calls


async def test_placed_instances_run_and_the_administrator_is_not_counted(
    admin: cloud.Admin,
) -> None:
    names = [f"n{number}" for number in range(2001)]  # more than one request carries

    await admin.place(names)

    running = await admin.running()
    assert list(running) == names
    assert running["n1"] == "i-0002"
    assert await admin.call_count() == 0


async def test_a_vm_that_was_ordered_runs_once_it_booted_unless_it_never_joins() -> None:
    """From here on the kubelets take it for a machine like any other."""
    service = server.Service(token="t", settings=traffic.Settings(transition_s=60.0))
    async with server.serve(service) as url, cloud.open_admin(url, "t") as calls:
        made = {
            name: service.worlds.orders.create(world_orders.Order(name=name))
            for name in ("slow", "booted", "deaf")
        }
        for name in ("booted", "deaf"):
            joins = world.Interference(state="running", joins=name != "deaf")
            service.world.update(made[name].id, joins)

        assert await calls.running() == {"booted": made["booted"].id}


async def test_a_cloud_that_is_gone_is_trouble() -> None:
    service = server.Service(token="t")
    async with server.serve(service) as url:
        pass

    async with cloud.open_admin(url, "t") as calls:
        with pytest.raises(cloud.CloudTrouble, match="GET /admin/snapshot"):
            await calls.running()


async def test_the_members_of_every_load_balancer_are_counted(admin: cloud.Admin) -> None:
    assert await admin.members() == {}
    listeners = [{"protocol": "TCP", "port": 80, "target_port": 30080}]
    headers = {"Authorization": "Bearer t"}
    async with aiohttp.ClientSession(admin.url, headers=headers) as session:
        for number in range(501):  # more than one page
            order = {"name": f"b{number}", "listeners": listeners}
            async with session.post("/admin/balancers", json=order) as response:
                assert response.status == 201, await response.text()

    members = await admin.members()

    assert len(members) == 501
    assert set(members.values()) == {0}
