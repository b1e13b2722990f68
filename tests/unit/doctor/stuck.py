"""A daemon with an in-memory API server, and the output of `kube-ccm explain` for its objects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ccm.app import health as daemon
from ccm.app import machineapis, options
from ccm.app.controllers import build_enabled
from ccm.app.health import DaemonState
from ccm.app.machineapis import MachineApi
from ccm.app.options import gates
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Cloud, InstanceMetadata, Limits, Rate, address, errors
from ccm.cloud.calls.client import CloudClient
from ccm.doctor.explain import ObjectFacts, find_cause, lines
from ccm.kube import errors as kube
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import NODES, SERVICES, ResourceKind
from ccm.model import Node
from ccm.runtime.deletions import DeletionRecord
from ccm.runtime.manifest import ControllerContext
from ccm.runtime.object_status import ExplainResponse
from ccm.testing.clock import settle
from tests.support.configmap import Api
from tests.support.fakecloud import FakeCloud
from tests.support.routes import FakeRoutes
from tests.support.services import FakeBalancers
from tests.unit.controllers.machines import CLUSTER
from tests.unit.controllers.machinesets import Sets
from tests.unit.controllers.memory_server import MemoryServer

ALL = "*,machine,machineclass,machineset,machinedeployment"


class Instances(FakeCloud):
    """Instances by name; `faults` and `hangs` by name, `*` for all."""

    def __init__(self) -> None:
        super().__init__()
        self.there: set[str] = set()
        self.faults: dict[str, errors.CloudError] = {}
        self.hangs: set[str] = set()

    async def instance_exists(self, node: Node) -> bool:
        await self._answer(node)
        return node.name in self.there

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        await self._answer(node)
        if node.name not in self.there:
            raise errors.NotFound(f"no instance is named {node.name}")
        addresses = [address("InternalIP", "10.0.0.1")]
        return InstanceMetadata(
            provider_id=f"fake://{node.name}", instance_type="small", addresses=addresses
        )

    async def _answer(self, node: Node) -> None:
        if node.name in self.hangs:
            await asyncio.Event().wait()
        fault = self.faults.get(node.name) or self.faults.get("*")
        if fault is not None:
            raise fault.with_traceback(None)


class Stuck(Sets):
    """A daemon with its real controllers and an in-memory API server.

    The daemon's response is encoded and decoded before it is evaluated.
    """

    def __init__(self, server: MemoryServer | None = None) -> None:
        super().__init__(server)
        self.instances, self.balancers, self.routes = Instances(), FakeBalancers(), FakeRoutes()
        self.rate: Rate | None = None
        self.vitals = DaemonState()
        self.chosen = options.parse([])

    @contextlib.asynccontextmanager
    async def leading(self, *flags: str, controllers: str = ALL) -> AsyncIterator[None]:
        """Run the controllers."""
        given = ("--cloud-provider=fake", "--cluster-cidr=10.120.0.0/16", "--cluster-name=c1")
        chosen = (f"--cluster-id={CLUSTER}", f"--controllers={controllers}")
        self.chosen = options.parse([*given, *chosen, *flags])
        client = self.server.client()
        informers = SharedInformers(client)
        cloud = Cloud(
            name="fake",
            instances=self.instances,
            load_balancer=self.balancers,
            routes=self.routes,
            machines=self.driver,
            kubermatic=self.driver,
            has_cluster_id=True,
            limits=Limits(rate=self.rate),
        )
        handle = CloudClient(cloud, cluster_name="c1")
        record = DeletionRecord(Api(), namespace="kube-system", owner="lease")
        self.vitals.opened(handle)
        self.vitals.informers, self.vitals.deletions = informers, record
        context = ControllerContext(
            client=lambda _name: client,
            recorder=lambda _name: self,
            informers=informers,
            cloud_client=handle,
            inventory=None,
            gates=gates.values({}),
            deletions=record,
        )
        running = [spawn(informers.run(), name="informers"), spawn(record.run(), name="record")]
        async with contextlib.AsyncExitStack() as stack:
            for manifest, work in build_enabled(
                self.chosen, context, on_skipped=self.vitals.skipped
            ):
                stack.enter_context(self.vitals.running(manifest.name, work))
                running.append(spawn(work.run(), name=manifest.name))
            try:
                await settle()
                yield
                assert [task for task in running if task.done()] == []
            finally:
                await cancel_and_join(*running)

    def add(self, *objects: Any) -> None:
        """Add Nodes and Services to the cluster."""
        for one in objects:
            body = msgspec.to_builtins(one)
            body["metadata"] = {"name": one.name, "labels": dict(one.labels)}
            where = "/api/v1/namespaces/default/services"
            where = "/api/v1/nodes" if isinstance(one, Node) else where
            self.server.put(where, body)
            if isinstance(one, Node):
                self.server.patch(f"{where}/{one.name}/status", {"status": body["status"]})

    async def subject(
        self, kind: str, name: str, api: MachineApi = machineapis.GARDENER
    ) -> ObjectFacts:
        """Return the object with the daemon's response."""
        asked = f"{api.codec.prefix}{kind}"
        told = daemon.explain_object(asked, name, self.chosen, self.vitals)
        answer = msgspec.json.decode(msgspec.json.encode(told), type=ExplainResponse)
        kinds: tuple[ResourceKind[Any], ...] = (NODES, SERVICES, *api.kinds)
        of = next(each for each in kinds if each.kind.lower() == kind)
        namespace, _, bare = name.rpartition("/")
        try:
            found = await self.server.client().resource(of).get(bare, namespace=namespace)
        except kube.NotFound:
            found = None
        return ObjectFacts(kind=kind, name=name, obj=found, api=api, answer=answer)

    async def says(self, kind: str, name: str) -> str:
        """Return the cause and the advice; print the rest for the report of a failed test."""
        subject = await self.subject(kind, name)
        verdict = find_cause(subject)
        print(*lines(subject, verdict), sep="\n")
        return "; ".join((verdict.cause, *verdict.advice)) + ("; all is well" * verdict.is_healthy)
