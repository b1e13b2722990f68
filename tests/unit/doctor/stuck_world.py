"""A daemon with all of its controllers in memory, and what `kube-ccm explain` says of its objects.

The controllers are made as the daemon makes them, from their manifests; the daemon's answer goes
through the wire's form before it is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ccm.app import health, options
from ccm.app.controllers import enabled
from ccm.app.health import (
    Vitals,
)
from ccm.app.options import gates
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Cloud, CloudError, InstanceMetadata, Limits, NotFound, Rate, address
from ccm.cloud.calls.handle import Handle
from ccm.doctor import explain as doctor
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference, Service
from ccm.runtime.account import Answer
from ccm.runtime.deletions import DeletionRecord
from ccm.runtime.manifest import ControllerContext
from ccm.testing.clock import advance, settle
from tests.support.cluster import Cluster
from tests.support.configmap import Api
from tests.support.fakecloud import FakeCloud
from tests.support.routes import FakeRoutes
from tests.support.services import World

FLAGS = ("--cloud-provider=fake", "--cluster-cidr=10.120.0.0/16", "--cluster-name=c1")


class Instances(FakeCloud):
    """Instances by name; `faults` and `hangs` by name, `*` for all."""

    def __init__(self) -> None:
        super().__init__()
        self.there: set[str] = set()
        self.faults: dict[str, CloudError] = {}
        self.hangs: set[str] = set()

    async def instance_exists(self, node: Node) -> bool:
        await self._answer(node)
        return self._name(node) in self.there

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        await self._answer(node)
        name = self._name(node)
        if name not in self.there:
            raise NotFound(f"no instance is named {name}")
        return InstanceMetadata(
            provider_id=f"fake://{name}",
            instance_type="small",
            addresses=[address("InternalIP", "10.0.0.1")],
        )

    def _name(self, node: Node) -> str:
        return node.provider_id.removeprefix("fake://") or node.name

    async def _answer(self, node: Node) -> None:
        if node.name in self.hangs:
            await asyncio.Event().wait()
        fault = self.faults.get(node.name) or self.faults.get("*")
        if fault is not None:
            raise fault.with_traceback(None)


class Nobody:
    """Whom events are told."""

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Nothing comes of it."""


@dataclass
class Stuck:
    """The daemon and its surroundings."""

    nodes: Cluster = field(default_factory=Cluster)
    services: World = field(default_factory=World)
    instances: Instances = field(default_factory=Instances)
    routes: FakeRoutes = field(default_factory=FakeRoutes)
    vitals: Vitals = field(default_factory=Vitals)
    rate: Rate | None = None
    chosen: options.Options = field(default_factory=lambda: options.parse(FLAGS))

    @property
    def balancers(self) -> Any:
        """The cloud's load balancers."""
        return self.services.balancers

    @contextlib.asynccontextmanager
    async def leading(self, *flags: str) -> AsyncIterator[None]:
        """All controllers at work."""
        self.chosen = options.parse([*FLAGS, *flags])
        cloud = Cloud(
            name="fake",
            instances=self.instances,
            load_balancer=self.balancers,
            routes=self.routes,
            limits=Limits(rate=self.rate),
        )
        record = DeletionRecord(Api(), namespace="kube-system", owner="lease")
        handle = Handle(cloud, cluster_name="c1")
        for informer in (self.nodes.informer, self.services.services):
            informer._content.complete()
        self.vitals.opened(handle)
        self.vitals.informers, self.vitals.deletions = _Informers(self), record  # type: ignore[assignment]
        context = ControllerContext(
            client=lambda _name: _Client(self),  # type: ignore[arg-type,return-value]
            recorder=lambda _name: Nobody(),
            informers=self.vitals.informers,  # type: ignore[arg-type]
            handle=handle,
            inventory=None,
            gates=gates.build({}),
            deletions=record,
        )
        running = [spawn(record.run(), name="record")]
        async with contextlib.AsyncExitStack() as stack:
            for manifest, work in enabled(self.chosen, context, left_out=self.vitals.left_out):
                stack.enter_context(self.vitals.running(manifest.name, work))
                running.append(spawn(work.run(), name=manifest.name))
            try:
                await settle()
                yield
                assert [task for task in running if task.done()] == []
            finally:
                await cancel_and_join(*running)

    def case(self, kind: str, name: str, **facts: Any) -> doctor.Subject:
        """What the command knows: the object, and the daemon's answer."""
        told = health.about(kind, name, self.chosen, self.vitals)
        answer = msgspec.json.decode(msgspec.json.encode(told), type=Answer)
        store = self.nodes.informer.store if kind == "node" else self.services.services.store
        found: Node | Service | None = store.get(name)
        return doctor.Subject(kind=kind, name=name, found=found, answer=answer, **facts)

    def says(self, kind: str, name: str) -> str:
        """Return the first line; print the others for the reader of a failure."""
        subject = self.case(kind, name)
        first, *others = doctor.lines(subject, doctor.judge(subject))
        print(first, *others, sep="\n")
        return first

    async def pass_time(self, seconds: float) -> None:
        """Let the daemon work."""
        await advance(seconds)


class _Informers:
    def __init__(self, stuck: Stuck) -> None:
        self._caches: Mapping[str, Informer[Any]] = {
            "nodes": stuck.nodes.informer,
            "services": stuck.services.services,
        }

    @property
    def all(self) -> Sequence[Informer[Any]]:
        return list(self._caches.values())

    def of(self, kind: Any) -> Informer[Any]:
        return self._caches[kind.plural]


class _Client:
    def __init__(self, stuck: Stuck) -> None:
        self._apis = {"nodes": stuck.nodes, "services": stuck.services}

    def resource(self, kind: Any) -> Any:
        return self._apis[kind.plural]
