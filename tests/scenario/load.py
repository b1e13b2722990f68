"""Services of a scenario, their load balancers, and the actions of a daemon."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ccm.cloud import default_load_balancer_name
from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.nodelifecycle.manifest import MANIFEST as NODE_LIFECYCLE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import Service, names
from ccm.persistence import kubestore
from providers.sim import world_balancers
from tests.faults import Exchange, Match
from tests.scenario import harness
from tests.scenario.harness import Daemon, Environment, wait_for

SERVICES = "/api/v1/namespaces/default/services"

FLAGS: Mapping[str, str] = {
    "controllers": ",".join(each.name for each in (NODE, NODE_LIFECYCLE, SERVICE)),
    "concurrent-service-syncs": "32",
    "concurrent-node-syncs": "64",
    "kube-api-qps": "10000",
    "kube-api-burst": "20000",
    # The default periods: calls caused by the load are counted, not periodic ones.
    "node-monitor-period": "5s",
    "node-status-update-frequency": "5m",
    "inventory-max-age": "10s",
}
"""A daemon with raised limits."""


PATIENCE_S = 240.0
"""How long a load may take on a busy machine."""


LONGEST_S = 600
"""How long a test with a load may take there; seconds."""

_LOOK_S = 0.25


async def start(env: Environment, *, flags: Mapping[str, str] = FLAGS) -> Daemon:
    """Start a daemon and wait, with patience, until its controllers work."""
    # The cloud lives in the process of the test, which has much to do.
    env.configure_cloud(timeout="60s")
    daemon = await env.start(flags=flags)
    await daemon.says("became leader", within_s=PATIENCE_S)
    return daemon


async def routed(env: Environment) -> None:
    """Wait until the condition of every node confirms its routes."""

    async def cut_off() -> list[str]:
        nodes = await env.cluster.items(harness.NODES)
        return [one["metadata"]["name"] for one in nodes if not harness.has_network(one)]

    deadline = time.monotonic() + PATIENCE_S
    while left := await cut_off():
        assert time.monotonic() < deadline, f"{len(left)} without routes: {left[:5]} ..."
        await asyncio.sleep(_LOOK_S)


def web(name: str, **spec: Any) -> dict[str, Any]:
    """A Service of type LoadBalancer."""
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"type": "LoadBalancer", "ports": ports, "selector": {"app": name}, **spec},
    }


async def create(env: Environment, body: Mapping[str, Any]) -> dict[str, Any]:
    """Create a Service; return its state."""
    return await env.cluster.create(SERVICES, body)


async def services_of_people(env: Environment) -> dict[str, dict[str, Any]]:
    """All Services by name, except for `kubernetes`."""
    found = {each["metadata"]["name"]: each for each in await env.cluster.items(SERVICES)}
    found.pop("kubernetes", None)
    return found


async def edit(env: Environment, name: str, patch: Mapping[str, Any]) -> None:
    """Merge-patch a Service."""
    await env.cluster.patch(f"{SERVICES}/{name}", patch, kind="merge")


async def delete(env: Environment, name: str) -> None:
    """Delete a Service; its finalizers may hold it."""
    await env.cluster.delete(f"{SERVICES}/{name}")


async def objects(env: Environment) -> dict[str, Any]:
    """All nodes and Services as they are, by kind and name."""
    nodes = await env.cluster.items(harness.NODES)
    return {
        **{f"node {each['metadata']['name']}": each for each in nodes},
        **{f"service {name}": each for name, each in (await services_of_people(env)).items()},
    }


async def balancer_of(env: Environment, name: str) -> world_balancers.Balancer:
    """A Service's load balancer in the cloud."""
    service = await env.cluster.get(f"{SERVICES}/{name}")
    assert service is not None
    return balancers(env)[balancer_name(service)]


def balancers(env: Environment) -> dict[str, world_balancers.Balancer]:
    """Load balancers of the cloud by name."""
    return {each.name: each for each in env.cloud.worlds.balancers.list()}


async def settled(
    env: Environment, *, services: int, members: int, but: Sequence[str] = ()
) -> None:
    """Wait until every Service shows the address of a load balancer with all members.

    Args:
        env: the environment.
        services: how many want a load balancer.
        members: how many each has.
        but: names of Services that ask for one and shall not get it.
    """

    async def unsettled() -> list[str]:
        held = balancers(env)
        found = [] if len(held) == services else [f"{len(held)} load balancers"]
        found += [name for name, one in held.items() if len(one.members) != members]
        return found or [
            service["metadata"]["name"]
            for service in await env.cluster.items(SERVICES)
            if service["spec"]["type"] == "LoadBalancer"
            and service["metadata"]["name"] not in but
            and not shows_address(service, held)
        ]

    deadline = time.monotonic() + PATIENCE_S
    while left := await unsettled():
        assert time.monotonic() < deadline, f"{len(left)} not settled: {left[:5]} ..."
        await asyncio.sleep(_LOOK_S)


def shows_address(service: Mapping[str, Any], held: Mapping[str, world_balancers.Balancer]) -> bool:
    """Whether the status has the addresses of the Service's own load balancer."""
    balancer = held.get(balancer_name(service))
    shown = [entry.get("ip") for entry in ingress(service)]
    return balancer is not None and shown == [each.ip for each in balancer.ingress]


def balancer_name(service: Mapping[str, Any]) -> str:
    """The name of a Service's load balancer."""
    return default_load_balancer_name(msgspec.convert(service, Service))


def ingress(service: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The addresses that a Service shows."""
    return list(service["status"].get("loadBalancer", {}).get("ingress") or ())


async def started(env: Environment, *operations: str, flags: Mapping[str, str]) -> Daemon:
    """Start a daemon and wait until it has made these calls, and then nothing."""
    daemon = await start(env, flags=flags)

    async def asked() -> bool:
        return {call.operation for call in env.calls()} >= {*operations}

    await wait_for(asked, f"calls of {operations}", within_s=PATIENCE_S)
    await quiet(env)
    return daemon


async def quiet(env: Environment, *, for_s: float = 1.5) -> None:
    """Wait until neither the cloud nor the API server is asked for anything by a daemon.

    Watches and the Lease apart: they are never quiet.
    """

    async def pause() -> bool:
        before = _asked(env)
        await asyncio.sleep(for_s)
        return _asked(env) == before

    await wait_for(pause, f"quiet for {for_s} s", within_s=PATIENCE_S)


def _asked(env: Environment) -> int:
    return len(env.calls()) + len(writes(env))


def writes(env: Environment) -> list[Exchange]:
    """Writes of daemons, without their Lease and its events, and without their journal."""
    return [
        exchange
        for exchange in env.writes(Match(write=True))
        if "/leases" not in exchange.path
        and b'"Lease"' not in exchange.body
        and kubestore.LABEL.encode() not in exchange.body
    ]


def ensures(daemon: Daemon) -> Counter[str]:
    """Ensures that worked, by Service."""
    return Counter(line["service"] for line in daemon.lines("load balancer ensured"))


async def warnings(env: Environment, service: str, about: str = "") -> list[str]:
    """The texts of the Warning events about a Service that contain these words."""
    return [
        event["message"]
        for event in await env.cluster.events(service)
        if event["type"] == names.WARNING and about in event["message"]
    ]
