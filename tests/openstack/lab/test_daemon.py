"""The whole daemon with a real API server before real services."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.nodelifecycle.manifest import MANIFEST as NODE_LIFECYCLE
from ccm.controllers.route.manifest import MANIFEST as ROUTE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import names
from ccm.testing.fake_api import Fault
from tests import servers
from tests.openstack.lab.harness import LabHarness
from tests.openstack.lab.project import until
from tests.openstack.lab.test_services import left_over
from tests.scenario import harness as scenario
from tests.scenario.harness import NODES, Daemon, Environment, open_environment, wait_for
from tests.scenario.machines import SERVICES
from tests.waiting import due_by

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3000),
    pytest.mark.xdist_group("openstack-lab"),
    servers.only_real,
]

COUNT = 20
LISTINGS = ("GET /load-balancer/v2/lbaas/loadbalancers", "GET /network/v2.0/routers/{id}")
INTERNAL = {"service.beta.kubernetes.io/openstack-internal-load-balancer": "true"}
MONITORED = {"loadbalancer.openstack.org/enable-health-monitor": "true"}
WITHIN_S = 300.0
FLAGS: Mapping[str, str] = {
    "cloud-provider": "openstack",
    "cluster-name": "lab",
    "cluster-cidr": "10.120.0.0/16",
    "controllers": ",".join((NODE.name, NODE_LIFECYCLE.name, ROUTE.name, SERVICE.name)),
    "leader-elect": "false",  # the next daemon need not wait for the Lease of a dead one
    "node-monitor-period": "5s",
    "inventory-max-age": "30s",
    "kube-api-qps": "-1",
}


def port(number: int, node_port: int) -> Mapping[str, Any]:
    """A port of a Service; node ports are unique in a cluster."""
    return {"name": f"port-{number}", "port": number, "nodePort": node_port}


class LabCluster:
    """Nodes of the lab's servers, and Services, before a daemon."""

    def __init__(self, env: Environment, harness: LabHarness) -> None:
        self.env = env
        self.lab = harness
        self.how: dict[str, Any] = {"flags": FLAGS}
        env.cloud_config.write_bytes(harness.config())

    async def restart(self) -> Daemon:
        """Start a daemon, and wait until it has compared routes and load balancers.

        Whatever disappears before that counts as lost, and its resources are kept.
        """
        before = Counter(self.lab.service.calls)
        daemon = await self.env.start(**self.how)

        async def listed() -> bool:
            since = self.lab.service.calls - before
            return all(since[name] for name in LISTINGS)

        await until(listed, "the daemon has listed all", within_s=WITHIN_S)
        return daemon

    async def register(self, count: int) -> list[str]:
        """Kubelets register the nodes of servers."""
        await self.lab.lab.keep_spare(count)
        made = [await self.lab.create() for _ in range(count)]
        for number, one in enumerate(made):
            cidr = f"10.120.{number}.0/24"
            ranges = {"podCIDR": cidr, "podCIDRs": [cidr]}
            await self.env.cluster.register(one.name, ready=names.STATUS_TRUE, **ranges)
        return [one.name for one in made]

    async def expose(self, name: str, *ports: Any, annotations: Any = None, **spec: Any) -> None:
        """Create a Service."""
        meta = {"name": name, "annotations": annotations or {}}
        body = {"metadata": meta, "spec": {"type": "LoadBalancer", "ports": ports, **spec}}
        await self.env.cluster.create(SERVICES, body)

    async def expose_all(self) -> Mapping[str, str]:
        """Create a public, an internal and a checked Service; their addresses."""
        await self.expose("web", port(80, 30080))
        await self.expose("inside", port(80, 30081), port(443, 30443), annotations=INTERNAL)
        await self.expose(
            "checked",
            port(80, 30082),
            annotations=MONITORED,
            loadBalancerSourceRanges=["192.0.2.0/24"],
            externalTrafficPolicy="Local",
            healthCheckNodePort=31000,
        )
        return await self.served("web", "inside", "checked")

    async def served(self, *services: str) -> Mapping[str, str]:
        """Wait until Services have addresses; these."""

        async def done() -> dict[str, str]:
            found = {}
            for one in await self.env.cluster.items(SERVICES):
                status = (one.get("status") or {}).get("loadBalancer") or {}
                for entry in status.get("ingress") or ():
                    found[one["metadata"]["name"]] = entry["ip"]
            return found if found.keys() == set(services) else {}

        return await wait_for(done, f"addresses of {services}", within_s=WITHIN_S)

    async def routed(self, nodes: Sequence[str]) -> None:
        """Wait until nodes have routes."""

        async def done() -> bool:
            found = await self.env.cluster.items(NODES)
            return len(found) == len(nodes) and all(map(scenario.has_network, found))

        await wait_for(done, "routes of all nodes", within_s=WITHIN_S)

    async def withdraw(self) -> None:
        """Delete Services and nodes, and wait until the API server has none."""
        for path in (SERVICES, NODES):
            for one in await self.env.cluster.items(path):
                if one["metadata"]["name"] != "kubernetes":
                    await self.env.cluster.delete(f"{path}/{one['metadata']['name']}")

        async def gone() -> bool:
            left = [*await self.env.cluster.items(SERVICES), *await self.env.cluster.items(NODES)]
            return [one["metadata"]["name"] for one in left] == ["kubernetes"]

        await wait_for(gone, "Services and nodes are gone", within_s=WITHIN_S)
        await until(self._has_no_routes, "routes are gone")

    async def _has_no_routes(self) -> bool:
        return not await self.lab.routes()

    async def remains(self) -> Sequence[str]:
        """Resources of the cluster in the project."""
        pairs = [
            f"{port['id']} {port['allowed_address_pairs']}"
            for port in await self.lab.lab.own("ports")
            if port["allowed_address_pairs"]
        ]
        return [*await left_over(self.lab), *await self.lab.routes(), *pairs]


@contextlib.asynccontextmanager
async def opened(
    api_server: servers.ApiServer, folder: Path, harness: LabHarness
) -> AsyncIterator[LabCluster]:
    async with open_environment(api_server, folder) as env:
        yield LabCluster(env, harness)


async def test_nodes_services_and_routes_of_a_cluster_come_and_go(
    api_server: servers.ApiServer, tmp_path: Path, harness: LabHarness
) -> None:
    """Twenty servers, three Services, and a restart without a write."""
    async with opened(api_server, tmp_path, harness) as cluster:
        nodes = await cluster.register(COUNT)
        harness.service.calls.clear()
        daemon = await cluster.env.start(**cluster.how)
        await cluster.env.cluster.initialised(*nodes, within_s=WITHIN_S)
        print("nodes", harness.service.calls.total(), dict(harness.service.calls))
        await cluster.routed(nodes)
        addresses = await cluster.expose_all()
        print("all", harness.service.calls.total(), dict(harness.service.calls))
        ips = {one["floating_ip_address"] for one in await harness.lab.own("floatingips")}
        assert {addresses["web"], addresses["checked"]} == ips
        assert {len(one.members) for one in await harness.load_balancers()} == {COUNT}
        assert await daemon.stop() == 0

        before = Counter(harness.service.calls)
        again = await cluster.restart()
        await due_by(10.0)
        assert await again.stop() == 0
        restart = harness.service.calls - before
        print("a restart", restart.total(), dict(restart))
        assert [name for name in restart if name.startswith(("PUT", "DELETE"))] == []

        last = await cluster.restart()
        await cluster.withdraw()
        assert await last.stop() == 0

    assert await cluster.remains() == []


LIFE = ("web", port(80, 30080))
GROUPS = {"manage-security-groups": "true"}
PORT = "PUT /network/v2.0/ports/{id}"
CREATION = (
    ("POST /load-balancer/v2/lbaas/loadbalancers", 0),
    ("POST /network/v2.0/floatingips", 0),
    ("POST /network/v2.0/security-groups", 0),
    ("POST /network/v2.0/security-group-rules", 0),
    ("DELETE /network/v2.0/security-group-rules/{id}", 0),
    (PORT, 0),
    (PORT, 1),
    ("PUT /network/v2.0/routers/{id}/add_extraroutes", 0),
)
"""The writing calls for a new node with a route and a Service, and how many like it come before.

The port of the node gets an allowed address pair and a security group.
"""

DELETION = (
    ("DELETE /network/v2.0/floatingips/{id}", 0),
    ("DELETE /load-balancer/v2/lbaas/loadbalancers/{id}", 0),
    ("DELETE /network/v2.0/security-groups/{id}", 0),
    (PORT, 2),
    (PORT, 3),
    ("PUT /network/v2.0/routers/{id}/remove_extraroutes", 0),
)
"""Those for their deletion."""


@pytest.mark.parametrize(("operation", "skip"), CREATION + DELETION)
async def test_a_daemon_killed_at_a_writing_call_leaves_nothing(
    api_server: servers.ApiServer, tmp_path: Path, harness: LabHarness, operation: str, skip: int
) -> None:
    """The call takes effect, and its answer never arrives."""
    harness.extra["LoadBalancer"] = GROUPS
    async with opened(api_server, tmp_path, harness) as cluster:
        (name,) = await cluster.register(1)
        daemon = await cluster.env.start(**cluster.how)
        fault = Fault(operation=operation, kind="drop", applied=True, skip=skip, count=1)
        harness.service.script.add(fault)
        harness.service.on_drop = lambda: daemon.signal(signal.SIGKILL)

        async def revive() -> None:
            await daemon.ended(within_s=WITHIN_S)
            harness.service.on_drop = None
            await cluster.env.start(**cluster.how)

        await cluster.expose(*LIFE)
        if (operation, skip) in CREATION:
            await revive()
        await cluster.env.cluster.initialised(name, within_s=WITHIN_S)
        await cluster.routed([name])
        await cluster.served("web")
        assert len(await harness.lab.balancers()) == 1
        if (operation, skip) in DELETION:
            for path in (f"{SERVICES}/web", f"{NODES}/{name}"):
                await cluster.env.cluster.delete(path)
            await revive()
        await cluster.withdraw()

    assert await cluster.remains() == []
