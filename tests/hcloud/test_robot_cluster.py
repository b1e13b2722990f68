"""A daemon in a cluster of 20 nodes: ten servers of the cloud, and ten dedicated ones."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ccm.model import names
from ccm.testing.fake_api import Fault
from providers.hcloud.testing import __main__ as program
from providers.hcloud.testing import balancers, robot
from providers.hcloud.testing import servers as fake_servers
from providers.hcloud.testing.state import Call
from tests import servers
from tests.hcloud.balancing import CHECK, UID
from tests.scenario.harness import NODES, Environment, wait_for
from tests.scenario.machines import SERVICES
from tests.vendors.clouds import Hcloud, Vendor

SPEC = {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80, "nodePort": 30080}]}
VMS = [f"vm-{number}" for number in range(10)]
DEDICATED = [f"bm-{number}" for number in range(10)]


class MixedHcloud(Hcloud):
    """The Hetzner Cloud with dedicated servers, and therefore without routes."""

    def __init__(self, endpoint: str, robots: robot.RobotService) -> None:
        super().__init__(*VMS)
        kinds = ",".join(Vendor.kinds)
        self.flags = {
            "configure-cloud-routes": "false",
            "controllers": kinds,
            "node-monitor-period": "500ms",
        }
        pause = "ROBOT_RATE_LIMIT_WAIT_TIME: 1h\n"  # longer than the test, however slow
        self._more = program.robot_config(endpoint, robots) + pause

    def configure(self, env: Environment, url: str) -> None:
        env.cloud_config.write_text(program.config(url, self.fake.token) + self._more)


@pytest.mark.row("hcloud-robot-11")
async def test_a_mixed_cluster_lives_and_robot_is_paused_alone(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    robots = robot.RobotService()
    numbers = {name: robots.add_server(name) for name in DEDICATED}
    async with robot.serve(robots) as endpoint:
        vendor = MixedHcloud(endpoint, robots)
        ids = {one["name"]: one["id"] for one in vendor.fake.cloud.servers.values()}
        async with vendor.opened(api_server, tmp_path) as (env, _):
            cluster = env.cluster
            for name in (*VMS, *DEDICATED):
                await cluster.register(name, ready=names.STATUS_TRUE)
            daemon = await env.start_leading(**vendor.how)

            async def provider_ids() -> dict[str, str]:
                nodes = [await cluster.node(name) or {} for name in (*VMS, *DEDICATED)]
                found = {one["metadata"]["name"]: one["spec"].get("providerID") for one in nodes}
                return found if all(found.values()) else {}

            assert await wait_for(provider_ids, "all nodes are initialised") == {
                **{name: f"hcloud://{ids[name]}" for name in VMS},
                **{name: f"hrobot://{number}" for name, number in numbers.items()},
            }
            assert robots.calls.keys() == {"GET /server"}

            await cluster.create(SERVICES, {"metadata": {"name": "web"}, "spec": SPEC})
            await balanced(vendor, 20)

            robots.statuses[numbers["bm-0"]] = "shut off"
            fake_servers.power(vendor.fake.cloud, ids["vm-0"], on=False)
            for name in ("bm-0", "vm-0"):
                await cluster.set_ready(name, names.STATUS_UNKNOWN)
                await tainted(env, name)

            robots.remove_server(numbers["bm-1"])
            fake_servers.remove(vendor.fake.cloud, ids["vm-1"])
            for name in ("bm-1", "vm-1"):
                await cluster.set_ready(name, names.STATUS_UNKNOWN)
            await cluster.gone("bm-1", "vm-1")
            await balanced(vendor, 18)

            robots.script.add(Fault(code="RATE_LIMIT_EXCEEDED"))
            robots.remove_server(numbers["bm-2"])
            await cluster.set_ready("bm-2", names.STATUS_UNKNOWN)
            await daemon.says("Robot failed")
            sent = robots.calls.total()
            fake_servers.remove(vendor.fake.cloud, ids["vm-2"])
            fake_servers.power(vendor.fake.cloud, ids["vm-3"], on=False)
            for name in ("vm-2", "vm-3"):
                await cluster.set_ready(name, names.STATUS_UNKNOWN)
            await cluster.gone("vm-2")
            await tainted(env, "vm-3")
            await balanced(vendor, 17)
            assert await cluster.node("bm-2") is not None
            assert robots.calls.total() == sent
            assert await daemon.stop() == 0


@pytest.mark.row("hcloud-robot-11", "hcloud-balancer-18")
async def test_a_settled_mixed_cluster_is_taken_over_without_a_write(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    """The load balancer is as the vendor's manager leaves it; the nodes were initialised before."""
    robots = robot.RobotService()
    address = robots.servers[robots.add_server("bm-0")]["server_ip"]
    async with robot.serve(robots) as endpoint:
        vendor = MixedHcloud(endpoint, robots)
        vendor.flags = {
            **vendor.flags,
            "node-status-update-frequency": "500ms",
            "inventory-max-age": "500ms",
        }
        fake = vendor.fake
        number = next(one["id"] for one in fake.cloud.servers.values() if one["name"] == "vm-0")
        async with vendor.opened(api_server, tmp_path) as (env, _):
            for name in ("vm-0", "bm-0"):
                await env.cluster.register(name, ready=names.STATUS_TRUE)
            internal = {"addresses": [{"type": "InternalIP", "address": "10.0.1.7"}]}
            await env.cluster.patch(f"{NODES}/bm-0/status", {"status": internal})
            daemon = await env.start_leading(**vendor.how)
            await env.cluster.initialised("vm-0", "bm-0")
            assert await daemon.stop() == 0

            metadata = {"name": "web", "finalizers": [names.FINALIZER_LOAD_BALANCER]}
            web = await env.cluster.create(SERVICES, {"metadata": metadata, "spec": SPEC})
            held = settle(vendor, web["metadata"]["uid"], number, address)
            texts = [held["public_net"][family]["ip"] for family in ("ipv4", "ipv6")]
            texts += [net["ip"] for net in held["private_net"]]
            ingress = [{"ip": text, "ipMode": "VIP"} for text in texts]
            status = {"status": {"loadBalancer": {"ingress": ingress}}}
            await env.cluster.patch(f"{SERVICES}/web/status", status, kind="merge")

            async def versions() -> list[Any]:
                paths = [f"{NODES}/vm-0", f"{NODES}/bm-0", f"{SERVICES}/web"]
                objects = [await env.cluster.get(path) or {} for path in paths]
                return [one["metadata"]["resourceVersion"] for one in objects]

            async def all_events() -> list[Any]:
                return [await env.cluster.events(name) for name in ("vm-0", "bm-0", "web")]

            before = (await versions(), await all_events(), fake.writes, deepcopy(held))
            fake.calls.clear()
            robots.calls.clear()

            async def has_looked() -> bool:
                reads = sum(n for name, n in fake.calls.items() if name.startswith("GET /servers"))
                listed = fake.calls["GET /load_balancers"] and robots.calls["GET /server"]
                return reads >= 3 and bool(listed)

            daemon = await env.start_leading(**vendor.how)
            await wait_for(has_looked, "nodes and load balancer were compared")
            assert await daemon.stop() == 0
            after = (await versions(), await all_events(), fake.writes, held)
            calls = dict(robots.calls)
            await env.cluster.patch(
                f"{SERVICES}/web", {"metadata": {"finalizers": None}}, kind="merge"
            )
            await env.cluster.delete(f"{SERVICES}/web")

    assert after == before, fake.log
    assert calls == {"GET /server": 1}


def settle(vendor: Hcloud, uid: str, number: int, address: str) -> dict[str, Any]:
    """Create the load balancer of the vendor's manager, with both kinds of targets."""
    listener = {"protocol": "tcp", "listen_port": 80, "destination_port": 30080}
    order = {
        "name": f"a{uid.replace('-', '')}"[:32],
        "load_balancer_type": "lb11",
        "location": "fsn1",
        "labels": {UID: uid},
        "network": vendor.network["id"],
        "services": [{**listener, "health_check": CHECK}],
        "targets": [
            {"type": "server", "server": {"id": number}, "use_private_ip": False},
            {"type": "ip", "ip": {"ip": address}},
        ],
    }
    _, answer = balancers.create(vendor.fake.cloud, Call(body=order))
    assert answer is not None
    vendor.fake.cloud.settle(all_of_them=True)
    held: dict[str, Any] = answer["load_balancer"]
    return held


async def balanced(vendor: Hcloud, count: int) -> None:
    """Wait until the load balancer has this number of targets."""

    async def whole() -> bool:
        made = vendor.fake.cloud.load_balancers.values()
        return [len(one["targets"]) for one in made] == [count]

    await wait_for(whole, f"{count} targets")


async def tainted(env: Environment, name: str) -> None:
    """Wait for the shutdown taint."""

    async def has_taint() -> bool:
        return await env.cluster.has_taint(name, names.TAINT_SHUTDOWN)

    await wait_for(has_taint, f"{name} is tainted")
