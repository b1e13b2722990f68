"""A cluster of the vendor's manager is taken over without a write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ccm.model import names
from providers.hcloud.testing import balancers, server
from providers.hcloud.testing.state import Call
from tests import servers
from tests.hcloud.balancing import CHECK, UID
from tests.scenario.harness import Environment, wait_for
from tests.scenario.machines import SERVICES
from tests.vendors.clouds import Hcloud

SPEC = {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80, "nodePort": 30080}]}
SETTLED = {names.FINALIZER_LOAD_BALANCER}


@pytest.mark.row("hcloud-node-05", "hcloud-balancer-18", "hcloud-route-02")
async def test_a_cluster_of_the_vendors_manager_is_taken_over_without_a_write(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    """Node, route and load balancer are as the vendor's manager leaves them.

    A second node, of a dedicated server, is not ready, has a Pod range, and stays unchanged.
    """
    vendor = Hcloud("n1")
    vendor.flags = {**vendor.flags, "controllers": ",".join(vendor.kinds)}
    fake = vendor.fake
    (made,) = fake.cloud.servers.values()
    async with vendor.opened(api_server, tmp_path) as (env, _):
        await register(env, "n1", 0, names.STATUS_TRUE, f"hcloud://{made['id']}")
        robot = await register(env, "bm1", 1, names.STATUS_UNKNOWN, "hcloud://bm-42")
        metadata = {"name": "web", "finalizers": list(SETTLED)}
        web = await env.cluster.create(SERVICES, {"metadata": metadata, "spec": SPEC})
        settle(fake, made, web["metadata"]["uid"])
        before = fake.writes

        daemon = await env.start_leading(**vendor.how)

        async def taken_over() -> bool:
            node = await env.cluster.node("n1") or {}
            held = {one["type"]: one["status"] for one in node["status"]["conditions"]}
            found = await env.cluster.get(f"{SERVICES}/web") or {}
            routed = held.get(names.CONDITION_NETWORK_UNAVAILABLE) == names.STATUS_FALSE
            return routed and bool(found["status"]["loadBalancer"])

        await wait_for(taken_over, "the node has its route and the Service its address")
        left = await env.cluster.node("bm1") or {}
        events = await env.cluster.events("bm1")
        assert await daemon.stop() == 0
        assert fake.writes == before, fake.log
        await env.cluster.patch(f"{SERVICES}/web", {"metadata": {"finalizers": None}}, kind="merge")
        await env.cluster.delete(f"{SERVICES}/web")

    assert (left["metadata"]["resourceVersion"], events) == (
        robot["metadata"]["resourceVersion"],
        [],
    )


async def register(
    env: Environment, name: str, number: int, ready: str, provider_id: str
) -> dict[str, Any]:
    """A node that was initialised long ago."""
    cidr = f"100.64.{number}.0/24"
    spec: Mapping[str, Any] = {"podCIDR": cidr, "podCIDRs": [cidr], "taints": []}
    return await env.cluster.register(name, ready=ready, providerID=provider_id, **spec)


def settle(fake: server.Service, made: dict[str, Any], uid: str) -> None:
    """Create the objects of the vendor's manager, with its names and labels."""
    (network,) = fake.cloud.networks.values()
    gateway = made["private_net"][0]["ip"]
    network["routes"].append({"destination": "100.64.0.0/24", "gateway": gateway})
    order = {
        "name": f"a{uid.replace('-', '')}"[:32],
        "load_balancer_type": "lb11",
        "location": "fsn1",
        "labels": {UID: uid},
        "network": network["id"],
        "services": [
            {
                "protocol": "tcp",
                "listen_port": 80,
                "destination_port": 30080,
                "health_check": CHECK,
            }
        ],
        "targets": [{"type": "server", "server": {"id": made["id"]}, "use_private_ip": False}],
    }
    balancers.create(fake.cloud, Call(body=order))
