"""Machines of one class that become nodes, and Services beside them, at a provider's fake cloud.

What enters: what is alike for every provider. What is of one, its class and what its fake holds,
its tests say.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ccm.gardener.names import GROUP, VERSION
from ccm.model import names
from ccm.sandbox import realserver
from ccm.testing.fake_api import FakeApi
from tests import servers
from tests.manifests import account, shipped
from tests.scenario import definitions
from tests.scenario.definitions import BASE
from tests.scenario.harness import NODES, Environment, wait_for
from tests.scenario.nodes import missing

MACHINES = f"{BASE}/machines"
SERVICES = "/api/v1/namespaces/default/services"
SECRETS = "/api/v1/namespaces/default/secrets"
RIGHTS = shipped.MACHINE_RIGHTS
CONTROLLERS = ("machine", "machineclass", "machinesafety")
TYPE: Mapping[str, Any] = {"apiVersion": f"{GROUP}/{VERSION}"}
WITHIN_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A class of machines.

    Attributes:
        provider: of the class.
        spec: of the class.
        secret: that it refers to.
        whole: whether the cloud holds what so many nodes and so many Services need.
        empty: whether it holds nothing of them any more.
        ranges: Pod range of the node of a number, with `{}` for that; empty = none.
        annotations: of the Services.
    """

    provider: str
    spec: Mapping[str, Any]
    secret: Mapping[str, bytes]
    whole: Callable[[int, int], bool]
    empty: Callable[[], bool]
    ranges: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


class Farm:
    """The machines of a pool before an API server, and the Services."""

    def __init__(self, env: Environment, pool: Pool) -> None:
        self._env = env
        self._pool = pool
        self._joined: set[str] = set()
        self._lives = 0

    # --- before and after ---------------------------------------------------------------------

    async def install(self) -> None:
        """What has to be there before machines: their kinds, our rights, a class, its Secret."""
        env, pool = self._env, self._pool
        async with servers.connect(env.server) as session:
            if isinstance(env.server, realserver.RealServer):
                await account.install(session, shipped.objects(*RIGHTS))
            await definitions.define(session)
        secret = {key: base64.b64encode(value).decode() for key, value in pool.secret.items()}
        await env.cluster.create(SECRETS, {"metadata": {"name": "small"}, "data": secret})
        made = {
            **TYPE,
            "kind": "MachineClass",
            "metadata": {"name": "small"},
            "provider": pool.provider,
            "providerSpec": pool.spec,
            "secretRef": {"name": "small", "namespace": "default"},
        }
        await env.cluster.create(f"{BASE}/machineclasses", made)

    # --- what people do -----------------------------------------------------------------------

    async def order(self, count: int) -> None:
        """Somebody wants machines."""
        for number in range(count):
            spec = {"class": {"kind": "MachineClass", "name": "small"}}
            metadata = {"name": f"m{self._lives}-{number}"}  # as none of an earlier life
            body = {**TYPE, "kind": "Machine", "metadata": metadata, "spec": spec}
            await self._env.cluster.create(MACHINES, body)

    async def expose(self, services: int) -> None:
        """Somebody wants load balancers."""
        for number in range(services):
            port = {"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080 + number}
            metadata = {"name": f"web-{number}", "annotations": dict(self._pool.annotations)}
            spec = {"type": "LoadBalancer", "ports": [port]}
            await self._env.cluster.create(SERVICES, {"metadata": metadata, "spec": spec})

    # --- what comes of it -----------------------------------------------------------------------

    async def join(self, count: int) -> None:
        """Each machine's kubelet registers its node, without a provider ID, as kubelets do."""
        cluster, known = self._env.cluster, self._joined

        async def registered() -> bool:
            for one in await cluster.items(MACHINES):
                name = one["metadata"].get("labels", {}).get("node", "")
                phase = one.get("status", {}).get("currentStatus", {}).get("phase")
                if name and phase == "Pending" and name not in known:
                    await cluster.register(name, ready=names.STATUS_TRUE, **self._range())
                    known.add(name)
            return len(known) == count

        await wait_for(registered, "machines have servers", within_s=WITHIN_S)

        async def run() -> bool:
            machines = await cluster.items(MACHINES)
            phases = Counter(one["status"]["currentStatus"]["phase"] for one in machines)
            nodes = await cluster.items(NODES)
            return phases == {"Running": count} and not any(map(missing, nodes))

        await wait_for(run, "machines run, nodes are initialised", within_s=WITHIN_S)

    def _range(self) -> Mapping[str, Any]:
        """Of the next node, as a cluster's allocator gives them."""
        if not self._pool.ranges:
            return {}
        cidr = self._pool.ranges.format(len(self._joined))
        return {"podCIDR": cidr, "podCIDRs": [cidr]}

    async def served(self, nodes: int, services: int) -> None:
        """Wait until every Service has an address, and the cloud all that is needed."""

        async def done() -> bool:
            found = [
                one
                for one in await self._env.cluster.items(SERVICES)
                if (one.get("status") or {}).get("loadBalancer", {}).get("ingress")
            ]
            return len(found) == services and self._pool.whole(nodes, services)

        await wait_for(done, "addresses and members of Services", within_s=WITHIN_S)

    async def to_nothing(self) -> None:
        """Delete machines and Services, and wait until nothing is left of them anywhere."""
        cluster = self._env.cluster
        for path in (MACHINES, SERVICES):
            for one in await cluster.items(path):
                if one["metadata"]["name"] != "kubernetes":
                    await cluster.delete(f"{path}/{one['metadata']['name']}")

        async def nothing() -> bool:
            left = [*await cluster.items(MACHINES), *await cluster.items(NODES)]
            kept = [one["metadata"]["name"] for one in await cluster.items(SERVICES)]
            return not left and set(kept) <= {"kubernetes"} and self._pool.empty()

        await wait_for(nothing, "everything is gone", within_s=WITHIN_S)
        self._joined.clear()
        self._lives += 1


async def installed(env: Environment, pool: Pool) -> Farm:
    """Return machines of the pool; its class is there."""
    farm = Farm(env, pool)
    await farm.install()
    return farm


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a life cost in calls: up to all is there, then at rest, and a daemon's next start."""

    from_nothing: Counter[str]
    at_rest: Counter[str]
    restart: Counter[str]
    restart_writes: int


async def life(
    farm: Farm,
    env: Environment,
    fake: FakeApi,
    how: Mapping[str, Any],
    *,
    nodes: int,
    services: int,
    rest_s: float,
    services_first: bool = False,
) -> Costs:
    """From nothing, at rest, after a restart, and to nothing again; counted, and told.

    Args:
        farm: installed.
        env: of it.
        fake: whose calls count.
        how: a daemon is started.
        nodes: how many machines.
        services: how many beside them.
        rest_s: how long the daemon has nothing to do; after the restart at most ten seconds.
        services_first: they are there before any node is.
    """
    daemon = await env.start_leading(**how)
    began = time.monotonic()
    if services_first:
        await farm.expose(services)
    await farm.order(nodes)
    await farm.join(nodes)
    print(f"{nodes} nodes after {time.monotonic() - began:.1f} s")
    if not services_first:
        await farm.served(nodes, 0)
        await farm.expose(services)
    await farm.served(nodes, services)
    print(f"{services} Services after {time.monotonic() - began:.1f} s")
    from_nothing = Counter(fake.calls)

    fake.calls.clear()
    await asyncio.sleep(rest_s)
    at_rest = Counter(fake.calls)
    assert await daemon.stop() == 0

    fake.calls.clear()
    again = await env.start_leading(**how)
    await asyncio.sleep(min(rest_s, 10.0))  # whatever a start does is done at its start
    restart, writes = Counter(fake.calls), fake.writes

    await farm.to_nothing()
    assert await again.stop() == 0
    told = {"from nothing": from_nothing, f"{rest_s:.0f} s of rest": at_rest, "a restart": restart}
    for what, calls in told.items():
        print(what, calls.total(), dict(calls))
    return Costs(from_nothing=from_nothing, at_rest=at_rest, restart=restart, restart_writes=writes)
