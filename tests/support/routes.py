"""A small world for the route controller: nodes and a cloud in memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

import msgspec

from ccm.base import clock
from ccm.base.throttle import Limiter
from ccm.cloud import Cloud, Route, address
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.lookup import NodeOwnership
from ccm.controllers.route.controller import RouteController
from ccm.controllers.route.plan import RouteSettings
from ccm.model import ObjectReference
from ccm.model.cidr import parse_ranges
from ccm.runtime.deletions import DeletionRecord
from ccm.testing import builders
from tests.support.cluster import Cluster

A, B = "10.120.0.0/24", "10.120.1.0/24"
RANGES = parse_ranges("10.120.0.0/16")


class FakeRoutes:
    """Routes in memory; `faults` by operation, `slow` keeps a call open until `release`.

    A route to an address of `holders` leads to the node that has the address by now. Addresses
    count where `strict` says so.
    """

    def __init__(self, *routes: Route, strict: bool | None = None, cluster: str = "c1") -> None:
        self.routes = list(routes)
        self.strict = strict
        self.cluster = cluster
        self.holders: dict[str, str] = {}
        self.log: list[str] = []
        self.at: list[float] = []
        self.faults: dict[str, Exception] = {}
        self.slow: set[str] = set()
        self.open: dict[str, asyncio.Event] = {}
        self.latency_s = 0.0
        self.under_way = 0
        self.most = 0

    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        self.at.append(clock.monotonic())
        listed = tuple(self._shown(one) for one in self.routes)
        await self.handle("list", cluster_name)
        return listed

    def _shown(self, route: Route) -> Route:
        ends = [self.holders.get(one.address) for one in route.target_addresses]
        target = next(filter(None, ends), route.target_node)
        strict = route.enable_node_addresses if self.strict is None else self.strict
        return dataclasses.replace(route, target_node=target, enable_node_addresses=strict)

    async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:
        await self.handle(f"create {route.target_node} {route.destination_cidr}", cluster_name)
        name = f"{name_hint}-{route.destination_cidr}"
        self.routes.append(dataclasses.replace(route, name=name))

    async def delete_route(self, cluster_name: str, route: Route) -> None:
        await self.handle(f"delete {route.target_node} {route.destination_cidr}", cluster_name)
        self.routes = [one for one in self.routes if self._shown(one) != route]

    async def handle(self, what: str, cluster_name: str) -> None:
        assert cluster_name == self.cluster
        self.log.append(what)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            if what in self.slow:
                await self.open.setdefault(what, asyncio.Event()).wait()
            fault = self.faults.get(what) or self.faults.get(what.partition(" ")[0])
            if fault is not None:
                raise fault.with_traceback(None)
        finally:
            self.under_way -= 1

    def changes(self) -> list[str]:
        return [entry for entry in self.log if entry != "list"]

    def present(self) -> set[tuple[str, str]]:
        return {(route.target_node, route.destination_cidr) for route in self.routes}


class Environment(Cluster):
    """A cluster whose nodes have Pod ranges, and its cloud."""

    def __init__(self) -> None:
        super().__init__()
        self.cloud = FakeRoutes()
        self.told: list[tuple[str, str, str]] = []
        self.handle: CloudClient
        self.controller: RouteController

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        super().event(reference, kind, reason, message)
        self.told.append((reference.name, kind, reason))

    @property
    def conditions(self) -> list[tuple[str, str, str]]:
        """Every condition that was written: node, status, reason."""
        written = [(name, patch["status"]["conditions"]) for name, patch in self.patches]
        return [(name, one["status"], one["reason"]) for name, (one,) in written]

    def node(self, name: str, *cidrs: str, ip: str = "10.0.0.1", **facts: Any) -> None:
        addresses = [address("InternalIP", ip)] if ip else []
        made = builders.node(name, pod_cidrs=cidrs, addresses=addresses, ready=None, **facts)
        old = self.informer.store.get(name)
        if old is not None:
            conditions = old.status.conditions
            status = msgspec.structs.replace(made.status, conditions=conditions)
            made = msgspec.structs.replace(made, status=status)
        self.put(made)


def made(target: str, cidr: str, name: str = "r0", **fields: Any) -> Route:
    return Route(destination_cidr=cidr, target_node=target, name=name, **fields)


def spread(nodes: int) -> dict[str, str]:
    """That many nodes, each with a range of its own."""
    return {f"n{number}": f"10.120.{number}.0/24" for number in range(nodes)}


@contextlib.asynccontextmanager
async def running(
    nodes: Mapping[str, str] | None = None,
    *,
    routes: Sequence[Route] = (),
    slow: Collection[str] = (),
    faults: Mapping[str, Exception] | None = None,
    latency_s: float = 0.0,
    record: DeletionRecord | None = None,
    unreadable: str | None = None,
    limiter: Limiter | None = None,
    node_selector: str = "",
    theirs: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Environment]:
    """The controller at work, over nodes with one range each and routes that were there.

    A node of the name `unreadable` is there too, but cannot be decoded; and one of the name
    `theirs`, if facts are given by which it is another's.
    """
    env = Environment()
    for name, cidr in (nodes or {}).items():
        env.node(name, cidr)
    if theirs is not None:
        env.node("theirs", "10.120.8.0/24", **theirs)
    if unreadable is not None:
        env.informer._reflector.malformed_keys.add(unreadable)
    env.cloud.routes, env.cloud.slow = list(routes), set(slow)
    env.cloud.faults, env.cloud.latency_s = dict(faults or {}), latency_s
    env.handle = CloudClient(
        Cloud(name="fake", routes=env.cloud), cluster_name="c1", limiter=limiter
    )
    env.controller = controller = RouteController(
        nodes=env.informer,
        api=env,
        handle=env.handle,
        ranges=RANGES,
        ownership=NodeOwnership.from_flag(("fake",), node_selector),
        events=env,
        settings=RouteSettings(**settings),
        record=record,
        rng=random.Random(1),
    )
    async with env.running(controller.controller):
        yield env


def exchange(env: Environment, cloud: FakeRoutes) -> None:
    """Another provider is in use from now on."""
    env.handle.swap(Cloud(name="fake", routes=cloud))
    env.controller.controller.retry_now()
