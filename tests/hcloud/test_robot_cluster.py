"""A daemon in a cluster of 20 nodes: ten servers of the cloud, and ten dedicated ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccm.model import names
from ccm.testing.fake_api import Fault
from providers.hcloud.testing import __main__ as program
from providers.hcloud.testing import robot
from providers.hcloud.testing import servers as fake_servers
from tests import servers
from tests.scenario.harness import Environment, wait_for
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
