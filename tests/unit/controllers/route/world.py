"""A small world for the route controller: a cache, an API server and a cloud in memory."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.errors import CloudError
from ccm.cloud.types import Route, address
from ccm.controllers.route import plan
from ccm.controllers.route.controller import RouteController, Settings
from ccm.controllers.route.schedule import Times
from ccm.kube.errors import NotFound
from ccm.kube.informer import Informer
from ccm.model import Node, NodeSpec, NodeStatus, ObjectMeta, ObjectReference
from ccm.testing.clock import settle

RANGES = plan.parse_ranges("10.120.0.0/16")


class FakeRoutes:
    """Routes in memory; `faults` by operation, `slow` keeps a call open until `release`."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self.log: list[str] = []
        self.at: list[float] = []
        self.faults: dict[str, CloudError] = {}
        self.slow: set[str] = set()
        self.open: dict[str, asyncio.Event] = {}
        self.latency_s = 0.0
        self.under_way = 0
        self.most = 0

    async def list(self) -> Sequence[Route]:
        self.at.append(clock.monotonic())
        listed = tuple(self.routes)
        await self.handle("list")
        return listed

    async def create(self, name_hint: str, route: Route) -> None:
        await self.handle(f"create {route.target_node} {route.destination_cidr}")
        name = f"{name_hint}-{route.destination_cidr}"
        self.routes.append(dataclasses.replace(route, name=name))

    async def delete(self, route: Route) -> None:
        await self.handle(f"delete {route.target_node} {route.destination_cidr}")
        if route in self.routes:
            self.routes.remove(route)

    async def handle(self, what: str) -> None:
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

    def changes(self) -> builtins.list[str]:
        return [entry for entry in self.log if entry != "list"]

    def present(self) -> set[tuple[str, str]]:
        return {(route.target_node, route.destination_cidr) for route in self.routes}


class FakeApi:
    patch_merge: Any = None
    get: Any = None

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.conditions: list[tuple[str, str, str]] = []
        self.error: Exception | None = None

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> Node:
        assert subresource == "status"
        if self.error is not None:
            raise self.error
        (condition,) = patch["status"]["conditions"]
        self.conditions.append((name, condition["status"], condition["reason"]))
        return self.stage.conditioned(name, condition)


class Stage:
    """A controller over a cache that the test fills."""

    def __init__(self, **settings: Any) -> None:
        self.cloud = FakeRoutes()
        self.api = FakeApi(self)
        self.events: list[tuple[str, str, str]] = []
        self.informer: Informer[Node] = Informer(None, resource="nodes")  # type: ignore[arg-type]
        self.version = 0
        self.controller = RouteController(
            nodes=self.informer,
            api=self.api,
            cloud=self.cloud,
            ranges=RANGES,
            events=self,
            settings=Settings(**timed(settings)),
            rng=random.Random(1),
        )

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        assert reference.api_version == "v1"
        self.events.append((reference.name, kind, reason))

    def node(self, name: str, *cidrs: str, ip: str = "10.0.0.1", uid: str = "") -> None:
        self.version += 1
        old = self.informer.store.get(name)
        self.informer._content.upsert(
            Node(
                metadata=ObjectMeta(
                    name=name, uid=uid or f"uid-{name}", resource_version=str(self.version)
                ),
                spec=NodeSpec(pod_cidrs=list(cidrs) or None),
                status=NodeStatus(
                    addresses=[address("InternalIP", ip)],
                    conditions=old.status.conditions if old else None,
                ),
            )
        )

    def conditioned(self, name: str, condition: Mapping[str, Any]) -> Node:
        from ccm.model import NodeCondition

        old = self.informer.store.get(name)
        if old is None:
            raise NotFound(status=404, reason="NotFound", message="gone")
        self.version += 1
        changed = Node(
            metadata=ObjectMeta(name=name, uid=old.uid, resource_version=str(self.version)),
            spec=old.spec,
            status=NodeStatus(
                addresses=list(old.addresses),
                conditions=[
                    NodeCondition(
                        type=condition["type"],
                        status=condition["status"],
                        reason=condition["reason"],
                    )
                ],
            ),
        )
        self.informer._content.upsert(changed)
        return changed

    def remove(self, name: str) -> None:
        self.informer._content.remove(name)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.informer._content.complete()
        task = spawn(self.controller.controller.run(), name="controller")
        try:
            await settle()
            yield
            assert not task.done()
        finally:
            await cancel_and_join(task)


def timed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what belongs into `times` gathered there."""
    names = {field.name for field in dataclasses.fields(Times)}
    times = {name: value for name, value in settings.items() if name in names}
    others = {name: value for name, value in settings.items() if name not in names}
    return {"times": Times(**times), **others}
