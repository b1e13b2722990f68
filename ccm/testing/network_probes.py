"""How the provider contract asks about load balancers and routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import pytest

from ccm.cloud import errors
from ccm.cloud.interface import Cloud, LoadBalancer, LoadBalancerDigests, Routes
from ccm.model import Node, Service
from ccm.testing import leaks, probes
from ccm.testing.builders import node as build_node
from ccm.testing.harness import Harness, HeldBalancer, Made
from ccm.testing.probes import Face, by_id

T = TypeVar("T")

CLUSTER = "contract"
"""Name of the cluster towards the cloud."""

TRIES = 200
PAUSE_S = 0.02
"""How often, and after which pause at most, a call that said `RetryAfter` is repeated."""

CANCEL_AFTER = (*range(8), 10, 15, 20, 30, 40)
"""After how many steps of the event loop a call is cancelled, in turn."""


@runtime_checkable
class DigestingBalancer(LoadBalancer, LoadBalancerDigests, Protocol):
    """Both on one object."""


def balancer_of(cloud: Cloud) -> LoadBalancer:
    """The load balancers; skips the test when there are none."""
    return probes.offered(cloud.load_balancer, "load_balancer", "a LoadBalancer")


def digests_of(cloud: Cloud) -> DigestingBalancer:
    """The same with digests."""
    balancer = balancer_of(cloud)
    if not isinstance(balancer, DigestingBalancer):
        pytest.skip("not offered; write list_load_balancers and load_balancer_digest")
    return balancer


def routes_of(cloud: Cloud) -> Routes:
    """The routes; skips the test when there are none."""
    return probes.offered(cloud.routes, "routes", "a Routes")


async def nodes(cloud: Cloud, harness: Harness, number: int) -> list[Node]:
    """That many new instances as initialised nodes."""
    return [await node_of(cloud, await harness.create()) for _ in range(number)]


async def node_of(cloud: Cloud, made: Made) -> Node:
    """The initialised node of an instance."""
    addresses = made.addresses
    if addresses is None:
        metadata = await Face(cloud, old=cloud.instances is None).metadata(by_id(made))
        addresses = metadata.addresses
    return build_node(made.name, provider_id=made.provider_id, addresses=list(addresses))


def expected(balancer: LoadBalancer, service: Service, nodes: Sequence[Node]) -> HeldBalancer:
    """What the cloud should hold for a Service."""
    return HeldBalancer(
        name=balancer.get_load_balancer_name(CLUSTER, service),
        ports=frozenset((port.protocol, port.port, port.node_port) for port in service.ports),
        members=frozenset(node.name for node in nodes),
    )


async def held(harness: Harness, balancer: LoadBalancer, service: Service) -> HeldBalancer:
    """The one load balancer of a Service in the cloud."""
    name = balancer.get_load_balancer_name(CLUSTER, service)
    found = [one for one in await harness.load_balancers() if one.name == name]
    assert len(found) == 1, f"{len(found)} load balancers {name}"
    return found[0]


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again as long as the answer is `RetryAfter`."""
    for _ in range(TRIES):
        try:
            return await leaks.by_provider(ask)
        except errors.RetryAfter as error:
            await asyncio.sleep(min(error.seconds, PAUSE_S))
    pytest.fail(f"still RetryAfter after {TRIES} tries")


async def within_patience(harness: Harness, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until it works; a provider may go on waiting for a while after a fault."""
    loop = asyncio.get_running_loop()
    until = loop.time() + harness.patience_s
    while True:
        try:
            return await leaks.by_provider(ask)
        except errors.CloudError:
            if loop.time() >= until:
                raise
        await asyncio.sleep(0.05)


async def cancelled(ask: Callable[[], Awaitable[object]], *, steps: int) -> None:
    """Cancel a call after some steps of the event loop; it must end soon, in whatever way."""
    task = asyncio.ensure_future(probes.outcome(ask))
    for _ in range(steps):
        await asyncio.sleep(0)
    await probes.must_end(task, "a call")
