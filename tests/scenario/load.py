"""Load: many nodes and many Services at once, and what a daemon does about them.

Calls are counted twice, as the daemon logs them and as they reach the simulated cloud, and
`Work.check` holds one against the other.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import msgspec

from ccm.cloud import default_load_balancer_name
from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.nodelifecycle.manifest import MANIFEST as NODE_LIFECYCLE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import Service, names
from providers.sim import world_balancers, worlds
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
    # The usual periods: what is counted is what the load costs, not the passing of time.
    "node-monitor-period": "5s",
    "node-status-update-frequency": "5m",
    "inventory-max-age": "10s",
}
"""A daemon with raised limits."""

POD_RANGES = "10.128.0.0/9"

PATIENCE_S = 240.0
"""How long a load may take on a busy machine."""

BURST_S = 2.5
"""After so long without a request, no burst of nodes is still going on."""

LONGEST_S = 600
"""How long a test with a load may take there; seconds."""

_AT_ONCE = 32
_LOOK_S = 0.25


async def start(env: Environment, *, flags: Mapping[str, str] = FLAGS) -> Daemon:
    """Start a daemon and wait, with patience, until its controllers work."""
    # The cloud lives in the process of the test, which has much to do.
    env.configure_cloud(timeout="60s")
    daemon = await env.start(flags=flags)
    await daemon.says("became leader", within_s=PATIENCE_S)
    return daemon


async def in_parallel(work: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Do all of it, a handful at once."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(do: Callable[[], Awaitable[Any]]) -> None:
        async with slots:
            await do()

    await asyncio.gather(*(one(do) for do in work))


async def add_nodes(env: Environment, hosts: Sequence[str], *, ranges: bool = False) -> None:
    """Machines in the cloud, and their nodes as healthy kubelets register them.

    Args:
        env: the environment.
        hosts: names of both.
        ranges: whether each gets a range of `POD_RANGES`; 32,768 at most.
    """
    ready = names.STATUS_TRUE
    work: list[Callable[[], Awaitable[Any]]] = []
    for number, host in enumerate(hosts):
        env.machine(host)
        cidr = f"10.{128 + (number >> 8)}.{number & 255}.0/24"
        spec: dict[str, Any] = {"podCIDR": cidr, "podCIDRs": [cidr]} if ranges else {}
        work.append(partial(env.cluster.register, host, ready=ready, **spec))
    await in_parallel(work)


async def routed(env: Environment) -> None:
    """Wait until every node says that it has its routes."""

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
    """Create a Service; what it is then."""
    return await env.cluster.create(SERVICES, body)


async def add_services(env: Environment, services: Sequence[str]) -> None:
    """Services that want a load balancer each."""
    await in_parallel([partial(create, env, web(name)) for name in services])


async def remove(env: Environment) -> None:
    """Remove nodes, Services and events; one by one would take too long for the next test."""
    lifted = {"metadata": {"finalizers": None}}
    services = await services_of_people(env)
    held = [name for name, one in services.items() if one["metadata"].get("finalizers")]
    await in_parallel([partial(edit, env, name, lifted) for name in held])
    await in_parallel([partial(delete, env, name) for name in services])
    for path in (harness.NODES, "/api/v1/namespaces/default/events"):
        await env.cluster.delete(path)


async def services_of_people(env: Environment) -> dict[str, dict[str, Any]]:
    """All Services by name, but the one that stands for the API server and is its own."""
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


def named(prefix: str, count: int) -> list[str]:
    """So many names."""
    return [f"{prefix}-{number:04}" for number in range(count)]


def balancers(env: Environment) -> dict[str, world_balancers.Balancer]:
    """What the cloud holds, by name."""
    return {each.name: each for each in env.cloud.worlds.balancers.list()}


def with_latency(env: Environment, seconds: float) -> None:
    """Every call to the cloud takes so long from now on."""
    settings: worlds.Settings = env.cloud.settings
    env.cloud.change_settings(msgspec.structs.replace(settings, latency_s=seconds))


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


async def started(
    env: Environment, *operations: str, flags: Mapping[str, str], quiet_s: float = 1.5
) -> tuple[Daemon, Work]:
    """Start a daemon and wait until it has made these calls, and then nothing for so long."""
    calls, written = len(env.calls()), len(writes(env))
    daemon = await start(env, flags=flags)
    work = Work(env=env, daemon=daemon, first_call=calls, first_write=written, first_line=0)

    async def asked() -> bool:
        return work.calls.keys() >= {*operations}

    await wait_for(asked, f"calls of {operations}", within_s=PATIENCE_S)
    await quiet(env, for_s=quiet_s)
    return daemon, work


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
    """What daemons wrote, their Lease and the events about it apart."""
    return [
        exchange
        for exchange in env.writes(Match(write=True))
        if "/leases" not in exchange.path and b'"Lease"' not in exchange.body
    ]


@dataclass(slots=True, kw_only=True)
class Work:
    """What one daemon did since `begin`; take it when all is quiet."""

    env: Environment
    daemon: Daemon
    first_call: int
    first_write: int
    first_line: int

    @classmethod
    def begin(cls, env: Environment, daemon: Daemon) -> Self:
        """Count from now on."""
        return cls(
            env=env,
            daemon=daemon,
            first_call=len(env.calls()),
            first_write=len(writes(env)),
            first_line=len(daemon.lines()),
        )

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Its log lines of this message."""
        return [line for line in self.daemon.lines()[self.first_line :] if line["msg"] == message]

    @property
    def ensures(self) -> Counter[str]:
        """Ensures that worked, by Service."""
        return Counter(line["service"] for line in self.lines("load balancer ensured"))

    @property
    def updates(self) -> Counter[str]:
        """Changes of the members alone, by Service."""
        return Counter(line["service"] for line in self.lines("members changed"))

    @property
    def bursts(self) -> int:
        """Bursts of changes of nodes that made load balancers change their members."""
        return len(self.lines("nodes changed"))

    @property
    def calls(self) -> Counter[str]:
        """Calls that reached the cloud, by operation; `find_balancer` looks one up by name."""
        return Counter(
            "find_balancer" if "name=" in call.path and "balancers" in call.path else call.operation
            for call in self.env.calls()[self.first_call :]
        )

    @property
    def writes(self) -> Counter[str]:
        """Writes by resource."""
        found = writes(self.env)[self.first_write :]
        return Counter(_resource(exchange.path) for exchange in found)

    def check(self) -> None:
        """The log tells the truth, and no burst had a Service's members changed twice.

        An ensure and a change of members begin with one look at the load balancer, so any
        that failed, or was not logged, is a look too many.
        """
        assert self.calls["find_balancer"] == self.ensures.total() + self.updates.total()
        bursts = 0
        so_far: Counter[str] = Counter()
        for line in self.daemon.lines()[self.first_line :]:
            bursts += line["msg"] == "nodes changed"
            if line["msg"] == "members changed":
                so_far[line["service"]] += 1
                assert so_far[line["service"]] <= bursts, line


def _resource(path: str) -> str:
    known = ("nodes", "services", "events")
    return next(
        (name for name, segment in itertools.product(known, path.split("/")) if name == segment),
        path,
    )


async def warnings(env: Environment, service: str, about: str = "") -> list[str]:
    """The texts of the Warning events about a Service that contain these words."""
    return [
        event["message"]
        for event in await env.cluster.events(service)
        if event["type"] == names.WARNING and about in event["message"]
    ]
