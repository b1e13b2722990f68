"""The whole daemon with simulated cloud and API server: creation and deletion of Services."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenario import harness

SERVICES = "/api/v1/namespaces/default/services"
FLAGS = {"controllers": "*", "concurrent-service-syncs": "4", "configure-cloud-routes": "false"}


async def create(env: harness.Environment, name: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}]},
    }
    async with env.cluster._session.post(SERVICES, json=body) as response:
        assert response.status == 201, await response.text()


async def address(env: harness.Environment, name: str) -> str:
    async def given() -> str:
        service: Any = await env.cluster.get(f"{SERVICES}/{name}")
        ingress = service["status"]["loadBalancer"].get("ingress") or [{}]
        return str(ingress[0].get("ip", ""))

    return await harness.wait_for(given, f"address of {name}")


@pytest.mark.row("service-whole-01")
@pytest.mark.both_servers
async def test_service_gets_an_address_and_deletion_removes_its_balancer(
    whole: harness.Environment,
) -> None:
    await whole.node("n1")
    await whole.start_leading(flags=FLAGS)
    await whole.cluster.initialised("n1")

    await create(whole, "web")
    assert await address(whole, "web")
    assert len(whole.cloud.worlds.balancers.list()) == 1

    async with whole.cluster._session.delete(f"{SERVICES}/web") as response:
        assert response.status == 200

    async def gone() -> bool:
        return await whole.cluster.get(f"{SERVICES}/web") is None

    await harness.wait_for(gone, "the Service vanishes")
    assert len(whole.cloud.worlds.balancers.list()) == 0


@pytest.mark.row("service-whole-02")
async def test_restart_lists_load_balancers_once(whole: harness.Environment) -> None:
    await whole.node("n1")
    daemon = await whole.start_leading(flags=FLAGS)
    await whole.cluster.initialised("n1")
    for number in range(5):
        await create(whole, f"web{number}")
    for number in range(5):
        await address(whole, f"web{number}")
    # The node may become a member late; wait for that before the restart.
    await harness.wait_for(lambda: all_have_members(whole), "every load balancer has its member")
    assert await daemon.stop() == 0
    before = len(whole.calls())

    daemon = await whole.start_leading(flags=FLAGS)

    async def listed() -> bool:
        return any("balancer" in one.operation for one in whole.calls()[before:])

    await harness.wait_for(listed, "a listing of load balancers")
    assert await daemon.stop() == 0
    about = [one.operation for one in whole.calls()[before:] if "balancer" in one.operation]
    assert len(about) == 1, about


async def all_have_members(env: harness.Environment) -> bool:
    return all(balancer.members for balancer in env.cloud.worlds.balancers.list())
